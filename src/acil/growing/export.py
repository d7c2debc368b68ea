"""ONNX: network, expansion and head in one graph, compared with PyTorch before it is written.

Beside the graph goes a script that needs no acil. It turns an image file into the pixels that the graph
takes, as `acil.encoders.images.decode` does (numpy, Pillow and onnxruntime), or texts into tokens, as
`acil.encoders.text.clean_text` and the tokenizer beside it do (numpy, tokenizers and onnxruntime).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

import acil
from acil.core.classifier import ACILClassifier, learnt_of
from acil.core.expansion import ACTIVATIONS
from acil.core.files.writing import replacing
from acil.core.scores import heat
from acil.encoders.images.embedder import Embedder
from acil.encoders.images.onnx_models import export_module, open_session, require_onnx
from acil.encoders.text import TextEncoder
from acil.encoders.text.bert import BertEncoder
from acil.encoders.text.encoder import CHARACTERS_PER_TOKEN
from acil.errors import InputError, UnsupportedError

#: Largest difference of scores to PyTorch, which computes in float64: absolute, and of their range.
TOLERANCE, TEXT_TOLERANCE = 1e-3, 1e-4
#: Samples, drawn at random, that the graph is compared on.
_CHECKED = 8
#: The file beside a graph for texts that their tokens come from.
TOKENIZER = "tokenizer.json"
#: The script beside a graph for images; {name} is the file of the graph.
_SCRIPT = '''\
"""Name the class of images: python SCRIPT IMAGE...  Needs numpy, pillow and onnxruntime."""
import json, pathlib, sys
import numpy, onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(pathlib.Path(__file__).with_name({name!r}))
facts = session.get_modelmeta().custom_metadata_map
classes, needed = json.loads(facts["acil_classes"]), json.loads(facts["acil_backbone"])["preprocessing"]


def centre(image, width, height):
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


def pixels(path):
    """Return an image file as the graph takes it: uint8 of shape (1, channels, size, size)."""
    image, size = ImageOps.exif_transpose(Image.open(path)), needed["size"]
    if image.mode.startswith("I"):  # 16 bits
        grey, clear = numpy.asarray(image).astype(int), image.info.get("transparency")
        grey = numpy.where(grey == clear, 255, (grey + 128) // 257)
        image = Image.fromarray(grey.astype("uint8"))
    if "A" in image.mode.upper() or "transparency" in image.info:  # on white
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image, short = image.convert("RGB" if len(needed["mean"]) == 3 else "L"), min(image.size)
    image = centre(image, min(image.width, 4 * short), min(image.height, 4 * short))
    side = max(size, min(round(size / needed["crop"]), short))
    scaled = [max(side, length * side // short) for length in image.size]
    image = centre(image.resize(scaled, Image.Resampling.BILINEAR), size, size)
    return numpy.asarray(image).reshape(1, size, size, -1).transpose(0, 3, 1, 2)


if __name__ == "__main__":
    for path in sys.argv[1:]:
        (scores,), (probabilities,) = session.run(None, {{"pixels": pixels(path)}})
        print(path, classes[scores.argmax()], f"{{probabilities.max():.3f}}")
'''
#: The script beside a graph for texts; {characters} of a token are looked at, at most.
_TEXT_SCRIPT = '''\
"""Name the class of texts: python SCRIPT TEXT..., or one a line on standard input.

Needs numpy, tokenizers and onnxruntime.
"""
import json, pathlib, re, sys, unicodedata
import numpy, onnxruntime, tokenizers

here = pathlib.Path(__file__)
session = onnxruntime.InferenceSession(here.with_name({name!r}))
facts = session.get_modelmeta().custom_metadata_map
classes = json.loads(facts["acil_classes"])
length = json.loads(facts["acil_backbone"])["preprocessing"]["length"]
tokenizer = tokenizers.Tokenizer.from_str(here.with_name("{tokenizer}").read_text(encoding="utf-8"))
tokenizer.enable_truncation(length)
tokenizer.enable_padding()


def clean(text):
    """Return a text as the network learnt it: composed, without control characters."""
    spaced = re.sub("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f]", " ", text)
    return unicodedata.normalize("NFC", spaced).strip()[: {characters} * length]


def tokens(texts):
    """Return texts as the graph takes them: ids of tokens, and 1 for each that is no filling."""
    found = tokenizer.encode_batch([clean(text) for text in texts])
    return {{
        "input_ids": numpy.array([each.ids for each in found], dtype="int64"),
        "attention_mask": numpy.array([each.attention_mask for each in found], dtype="int64"),
    }}


if __name__ == "__main__":
    for text in sys.argv[1:] or (line.rstrip("\\n") for line in sys.stdin):
        (scores,), (probabilities,) = session.run(None, tokens([text]))
        print(text, classes[scores.argmax()], f"{{probabilities.max():.3f}}", sep="\\t")
'''
#: Those of `acil.core`, without writing over their input.
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **ACTIVATIONS,
    "relu": functional.relu,
    "tanh": torch.tanh,
    "fourier": torch.cos,
}


@dataclass(frozen=True)
class Exported:
    """What was written, and how it compares with PyTorch."""

    bytes: int  # size of the file
    compared: int  # number of samples compared
    difference: float  # largest one of a score


class _Head(nn.Module):
    """Expansion, scores and probabilities."""

    def __init__(self, clf: ACILClassifier) -> None:
        super().__init__()
        model = learnt_of(clf).model
        projection, self._activation = model.expansion.projection, model.expansion.activation
        if projection is not None and self._activation == "gaussian":
            raise UnsupportedError(
                'A model with activation="gaussian" holds samples, and is not exported. Learn with '
                "another."
            )
        self.projection = None if projection is None else _constant(projection)
        self.bias = None if model.expansion.bias is None else _constant(model.expansion.bias)
        scaling = learnt_of(clf).scaling
        self.scaling = None if scaling is None else _constant(scaling)
        self._clip_norm, self._linear = model.expansion.clip_norm, model.expansion.linear
        self.coef = _constant(torch.from_numpy(clf.coef_).mT)
        self.intercept = _constant(torch.from_numpy(clf.intercept_))
        self._temperature, self._hotter = clf.temperature_, learnt_of(clf).hotter

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and probabilities."""
        rows = features
        if self.scaling is not None:
            rows = (rows - self.scaling[0]) / self.scaling[1]
        if self.projection is not None:
            units = rows @ self.projection
            units = _ACTIVATIONS[self._activation](units if self.bias is None else units + self.bias)
            rows = torch.cat([self._linear * rows, units], dim=1) if self._linear else units
        if self._clip_norm is not None:
            rows = rows * (self._clip_norm / rows.norm(dim=1, keepdim=True)).clamp(max=1.0)
        scores = rows @ self.coef + self.intercept
        return scores, torch.softmax(scores / (self._temperature * heat(scores, self._hotter)), dim=1)


def _constant(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values.float().contiguous(), requires_grad=False)


def export_onnx(
    clf: ACILClassifier,
    network: Embedder | TextEncoder,
    path: str | os.PathLike[str],
    force: bool = True,
) -> Exported:
    """Write network and head as one ONNX file, compared with PyTorch first, and a script for it.

    The classifier is fitted on features of the network, every class with samples. Files there are
    replaced; without ``force`` another tokenizer.json is an error. A graph that does not give the scores
    of PyTorch is not written (`UnsupportedError`).

    Notes
    -----
    Of images, input ``pixels``: uint8 of shape (n, channels, size, size), RGB. Of texts, inputs
    ``input_ids`` and ``attention_mask``: int64 of shape (n, tokens), from the file tokenizer.json, which
    is written beside the graph; only the default network for texts can be exported. Outputs ``scores``
    and ``probabilities`` of shape (n, classes). The metadata has the names of the classes
    (``acil_classes``, a JSON list) and the network's identity (``acil_backbone``). The script has the
    name of the graph and ``.py``.
    """
    require_onnx()
    if (clf.class_count_ == 0).any():
        raise UnsupportedError("A class without samples has no scores: learn or drop it first.")
    place, files = Path(path), {}
    if isinstance(network, Embedder):
        whole = _merged(clf, network.to_onnx(), ["pixels"], network.num_features, network.identity)
        runs, features = _drawn_images(network)
        script, tolerance = _SCRIPT.format(name=place.name), TOLERANCE
    elif isinstance(network, BertEncoder):
        tokenizer, content = place.with_name(TOKENIZER), network.tokenizer_file
        if not force and tokenizer.exists() and tokenizer.read_bytes() != content:
            raise InputError(
                f"{tokenizer} exists, and is of another network. Give --force, or write into another "
                "folder."
            )
        files[tokenizer] = content
        inputs = ["input_ids", "attention_mask"]
        whole = _merged(clf, network.to_onnx(), inputs, network.dimension, network.identity)
        runs, features = _drawn_texts(network)
        script, tolerance = (
            _TEXT_SCRIPT.format(name=place.name, tokenizer=TOKENIZER, characters=CHARACTERS_PER_TOKEN),
            TEXT_TOLERANCE,
        )
    else:
        raise UnsupportedError(
            f"Of the networks for texts only the default one can be exported, and this model uses "
            f"{network.name!r}. Learn with --network minilm."
        )
    difference = _compare(whole, clf, runs, features, tolerance)
    files |= {place: whole, Path(f"{os.fspath(path)}.py"): script.encode()}
    for target, content in files.items():
        with replacing(target) as draft:
            draft.write_bytes(content)
    return Exported(len(whole), len(features), difference)


def _drawn_images(network: Embedder) -> tuple[list[dict[str, npt.NDArray[Any]]], Tensor]:
    """Return images as a graph takes them, and their features.

    One by one, because a graph of a user may be made for one image; called as the script does.
    """
    needed = network.preprocessing
    shape = (_CHECKED, len(needed.mean), needed.size, needed.size)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return [{"pixels": image[None].numpy()} for image in pixels], network.embed(pixels)


def _drawn_texts(network: BertEncoder) -> tuple[list[dict[str, npt.NDArray[Any]]], Tensor]:
    """Return texts of one to the most words as a graph takes them, all at once, and their features."""
    words = network.words
    generator = np.random.default_rng(0)
    lengths = np.geomspace(1, network.preprocessing["length"], _CHECKED).astype(int)
    texts = [" ".join(generator.choice(words, length)) for length in lengths]
    return [network.tokens(texts)], torch.from_numpy(network.encode(texts).features)


def _merged(
    clf: ACILClassifier, content: bytes, inputs: list[str], width: int, identity: dict[str, Any]
) -> bytes:
    """Return a network with these inputs and so many features as one graph with the head behind it."""
    import onnx
    from onnx import compose

    network = onnx.load_from_string(content)
    # Of a user's network with several outputs, the first has the features.
    del network.graph.output[1:]
    opset = next(item.version for item in network.opset_import if item.domain in ("", "ai.onnx"))
    example = torch.ones(2, width)
    head = onnx.load_from_string(
        export_module(_Head(clf).eval(), example, "features", ["scores", "probabilities"], opset)
    )
    head.ir_version = network.ir_version
    # The two come from different exports, and may use the same names inside.
    network, head = compose.add_prefix(network, "network/"), compose.add_prefix(head, "head/")
    joint = [(network.graph.output[0].name, head.graph.input[0].name)]
    whole: Any = compose.merge_models(network, head, io_map=joint)
    names = {"head/scores": "scores", "head/probabilities": "probabilities"}
    # Older files list weights among the inputs.
    weights = {tensor.name for tensor in whole.graph.initializer}
    taken = [end.name for end in whole.graph.input if end.name not in weights]
    _rename(whole.graph, {**dict(zip(taken, inputs, strict=True)), **names})
    onnx.helper.set_model_props(
        whole,
        {"acil_classes": json.dumps(clf.classes_.tolist()), "acil_backbone": json.dumps(identity)},
    )
    whole.producer_name, whole.producer_version = "acil", acil.__version__
    onnx.checker.check_model(whole)
    merged: bytes = whole.SerializeToString()
    return merged


def _rename(graph: Any, names: dict[str, str]) -> None:
    for end in (*graph.input, *graph.output):
        end.name = names.get(end.name, end.name)
    for node in graph.node:
        for values in (node.input, node.output):
            for place, name in enumerate(values):
                values[place] = names.get(name, name)
        for attribute in node.attribute:  # bodies of loops and branches
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, names)


def _compare(
    content: bytes,
    clf: ACILClassifier,
    runs: list[dict[str, npt.NDArray[Any]]],
    features: Tensor,
    tolerance: float,
) -> float:
    """Return the largest difference of scores; raise if it is too large."""
    session = open_session(content, "exported")
    scores = np.concatenate([session.run(["scores"], run)[0] for run in runs]).astype(np.float64)
    model = learnt_of(clf).model
    rows = features.to(device=model.device, dtype=model.precision.products)
    expected = torch.cat(list(model.scores([rows], model.weights()))).cpu().double().numpy()
    # So classes are the same, but for two whose scores are closer than twice the difference.
    # The only class there is may have the score 1 for every image.
    spread = min(1, np.ptp(expected)) if len(clf.classes_) > 1 else 1
    difference, allowed = float(np.abs(scores - expected).max()), tolerance * spread
    if not difference <= allowed:
        condition = "not known"
        with contextlib.suppress(UnsupportedError):
            condition = f"{clf.condition_:.2g}"
        raise UnsupportedError(
            f"The ONNX graph differs from PyTorch: scores by up to {difference:.2g}, allowed are "
            f"{allowed:.2g}. It was not written. Take a larger gamma: the condition number is "
            f"{condition}."
        )
    return difference
