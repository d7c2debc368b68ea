"""Networks for texts by name: MiniLM, sentence-transformers, ONNX, and modules of Python."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from acil.core.files.reading import cannot_read
from acil.encoders.images.embedder import worker_threads
from acil.encoders.images.extract import full_float32
from acil.encoders.images.onnx_models import open_session, read_onnx
from acil.encoders.text.bert import MINILM, open_minilm, open_tokenizer
from acil.encoders.text.encoder import TextEncoder
from acil.errors import InputError, MissingExtraError, ModelFileError

#: all-MiniLM-L6-v2, which was trained on English.
DEFAULT = MINILM
#: Tokens that are read if no file says how many.
_LENGTH = 256
#: A name on the hub: owner/name or name.
_HUB_NAME = re.compile(r"[A-Za-z0-9_.\-]+(/[A-Za-z0-9_.\-]+)?")
#: Files that can hold code: weights are taken from safetensors alone.
_UNSAFE = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")


def open_encoder(name: str = DEFAULT) -> TextEncoder:
    """Return the network for texts of this name.

    Parameters
    ----------
    name : str
        ``minilm``, which was trained on English; ``sentence-transformers:NAME_OR_FOLDER``;
        ``onnx:FOLDER``, with a model.onnx and a tokenizer.json; or ``module:PACKAGE.MODULE.NAME``, an
        object with a method ``encode``, or a function that returns one.

    Notes
    -----
    Nothing is downloaded. A model is bound to its network: another one later means learning again from
    the texts.
    """
    if name == MINILM:
        return open_minilm()
    kind, separator, rest = name.partition(":")
    if separator and kind in _KINDS and rest:
        return _KINDS[kind](rest)
    raise InputError(
        f"There is no network {name!r} for texts. Give {MINILM}, sentence-transformers:NAME_OR_FOLDER, "
        "onnx:FOLDER or module:PACKAGE.MODULE.NAME."
    )


class _OneByOne(TextEncoder):
    """A network that gets one text at a time, so that features depend on no other text."""

    def _encode(
        self, texts: list[str], tell: Callable[[int], None]
    ) -> tuple[npt.NDArray[np.float32], list[int]]:
        features = np.empty((len(texts), self.dimension), dtype=np.float32)
        cut = []
        for place, (row, shortened) in enumerate(self._rows(texts)):
            features[place] = row
            cut += [place] * shortened
            tell(place + 1)
        return features, cut

    def _rows(self, texts: list[str]) -> Any:
        """Yield the features of each text, and whether it was cut."""
        return map(self._row, texts)

    @abstractmethod
    def _row(self, text: str) -> tuple[npt.NDArray[np.float32], bool]: ...


class ModuleEncoder(_OneByOne):
    """An object that turns lists of texts into rows of features by a method ``encode``.

    Parameters
    ----------
    module : object
        With ``encode(list of str)``, as the networks of sentence-transformers have it. What it is comes
        from ``state_dict()`` of a module of torch, or else from an attribute ``version``, a str that
        changes when its features do.
    name : str
    preprocessing : mapping, optional
        See `TextEncoder`.
    tokens : callable, optional
        Returns the number of tokens of a text.
    """

    def __init__(
        self,
        module: Any,
        name: str,
        preprocessing: Mapping[str, Any] | None = None,
        tokens: Callable[[str], int] | None = None,
    ) -> None:
        self._module, self._tokens = module, tokens
        self._lock = threading.Lock()
        # Without a limit of its own it gets what its author may cut.
        facts = preprocessing or {"tokenizer": "", "pooling": "", "length": 2**20}
        super().__init__(name, _fingerprint(module, name), facts, "python")
        self.dimension = len(self._row("a")[0])

    def _row(self, text: str) -> tuple[npt.NDArray[np.float32], bool]:
        with self._lock, full_float32(), torch.inference_mode():
            try:
                output = self._module.encode([text])
            except Exception as error:  # code of others
                raise InputError(f"The network {self.name} cannot encode a text: {error}") from error
            cut = self._tokens is not None and self._tokens(text) > self.preprocessing["length"]
        rows = output.cpu().numpy() if isinstance(output, torch.Tensor) else np.asarray(output)
        if rows.ndim != 2 or len(rows) != 1 or rows.dtype.kind != "f" or not np.isfinite(rows).all():
            raise InputError(
                f"The method encode of {self.name} must return one row of finite numbers for each text. "
                f"Got shape {rows.shape} of {rows.dtype} for one."
            )
        return rows[0].astype(np.float32), cut


def _fingerprint(module: Any, name: str) -> str:
    """Return a hash of the weights of a module, or of what says its version."""
    digest = hashlib.sha256()
    if callable(getattr(module, "state_dict", None)):
        for key, tensor in sorted(module.state_dict().items()):
            digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return digest.hexdigest()
    version = getattr(module, "version", None)
    if not isinstance(version, str) or not version:
        raise InputError(
            f"{name} has neither weights (state_dict) nor a text 'version', so that a model could not "
            "tell it from another network. Add an attribute 'version' that changes when its features do."
        )
    return hashlib.sha256(version.encode()).hexdigest()


def _open_module(path: str) -> TextEncoder:
    place, _, name = path.replace(":", ".").rpartition(".")
    try:
        target: Any = getattr(importlib.import_module(place), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"Cannot import {path!r} ({error}). Give module:PACKAGE.MODULE.NAME of something that "
            "Python can import here."
        ) from error
    made = isinstance(target, type) or not hasattr(target, "encode")
    try:
        module = target() if made else target
    except Exception as error:  # constructors fail in their own ways
        raise InputError(f"Cannot make the network module:{path}: {error}") from error
    if isinstance(module, TextEncoder):
        return module
    if not callable(getattr(module, "encode", None)):
        raise InputError(
            f"module:{path} is {type(module).__name__}, which has no method 'encode' from a list of "
            "texts to rows of features."
        )
    return ModuleEncoder(module, f"module:{path}")


def _open_sentence_transformer(name: str) -> TextEncoder:
    folder = _hub_folder(name)
    _require_no_code(folder)
    sentence_transformers = _library("sentence_transformers")
    try:
        network = sentence_transformers.SentenceTransformer(
            str(folder),
            device="cpu",
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"use_safetensors": True, "dtype": torch.float32},
        )
    except Exception as error:  # several libraries, each with errors of its own
        raise InputError(f"Cannot open {folder} as a sentence transformer: {error}") from error
    backend = getattr(network.tokenizer, "backend_tokenizer", None)
    facts = {
        "tokenizer": hashlib.sha256(backend.to_str().encode()).hexdigest() if backend else "",
        "pooling": re.sub(r"\s+", " ", repr([type(part).__name__ for part in network])),
        "length": int(network.max_seq_length or _LENGTH),
    }

    def tokens(text: str) -> int:
        return len(network.tokenizer(text, truncation=False, verbose=False)["input_ids"])

    shown = "" if Path(name).is_dir() else f":{name}"
    return ModuleEncoder(_Quiet(network), f"sentence-transformers{shown}", facts, tokens)


def _library(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"Networks 'sentence-transformers:' need the package {module}, which is not installed. "
            "Install it with: pip install sentence-transformers"
        ) from error


class _Quiet:
    """A sentence transformer without progress bars."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.state_dict = network.state_dict

    def encode(self, texts: list[str]) -> Any:
        return self._network.encode(texts, show_progress_bar=False)


def _hub_folder(name: str) -> Path:
    """Return the folder of a sentence transformer: as given, or in the cache of the hub."""
    if Path(name).is_dir():
        return Path(name)
    if not _HUB_NAME.fullmatch(name):
        raise InputError(f"There is no folder {name}, and that is no name of the hub either.")
    hub = _library("huggingface_hub")
    full = name if "/" in name else f"sentence-transformers/{name}"
    try:
        return Path(hub.snapshot_download(full, local_files_only=True))
    except Exception as error:  # whatever the cache lacks
        raise InputError(
            f"The network {full} is not on this machine, and nothing is downloaded unasked. Fetch it "
            f"with `hf download {full}`, or give a folder (sentence-transformers:FOLDER)."
        ) from error


def _require_no_code(folder: Path) -> None:
    """Raise unless a sentence transformer consists of parts of the library and of safetensors."""
    listed = folder / "modules.json"
    try:
        parts = json.loads(listed.read_text(encoding="utf-8")) if listed.is_file() else []
        kinds = [str(part["type"]) for part in parts]
        places = [folder / str(part["path"]) for part in parts]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelFileError(f"Cannot read {listed}: {error}") from None
    strange = [kind for kind in kinds if not kind.startswith("sentence_transformers.")]
    if strange:
        raise InputError(
            f"{folder} names the code {strange[0]!r}. A file does not decide which code runs: write a "
            "module that makes the network (module:PACKAGE.MODULE.NAME)."
        )
    for place in {folder, *places}:
        unsafe = [file for kind in _UNSAFE for file in place.glob(kind)]
        if unsafe and not any(place.glob("*.safetensors")):
            raise InputError(
                f"{unsafe[0]} may hold code, and there are no weights as safetensors beside it. Convert "
                "them to safetensors."
            )


class OnnxTextEncoder(_OneByOne):
    """A folder with model.onnx and tokenizer.json, run by onnxruntime.

    The model takes ``input_ids``, and if it wants them ``attention_mask`` and ``token_type_ids``, int64
    of shape (n, tokens). An output of shape (n, features) is taken as it is; of one of shape
    (n, tokens, features) the mean over tokens, of length one. A file sentence_bert_config.json, or else
    the tokenizer, says how many tokens are read.
    """

    def __init__(self, folder: Path) -> None:
        places = [folder / "model.onnx", folder / "onnx" / "model.onnx"]
        graph = next((place for place in places if place.is_file()), None)
        tokenizer = folder / "tokenizer.json"
        if graph is None or not tokenizer.is_file():
            raise InputError(f"{folder} must be a folder with a model.onnx and a tokenizer.json.")
        content, described = read_onnx(graph), _read(tokenizer)
        length = _length_of(folder, described)
        self._tokenizer = open_tokenizer(described, length)
        self._session = open_session(content, "onnx")
        self._inputs = [end.name for end in self._session.get_inputs()]
        strange = {*self._inputs} - {"input_ids", "attention_mask", "token_type_ids"}
        if strange or "input_ids" not in self._inputs:
            raise InputError(
                f"{graph} must take input_ids, attention_mask and token_type_ids. It takes "
                f"{', '.join(self._inputs)}."
            )
        pooled = [end.name for end in self._session.get_outputs() if len(end.shape or ()) == 2]
        self._output = pooled[0] if pooled else self._session.get_outputs()[0].name
        facts = {
            "tokenizer": hashlib.sha256(described).hexdigest(),
            "pooling": "model" if pooled else "mean",
            "length": length,
        }
        super().__init__("onnx", hashlib.sha256(content).hexdigest(), facts, "onnxruntime")
        self.dimension = len(self._row("a")[0])

    def _rows(self, texts: list[str]) -> Any:
        # Each runs in one thread, and several run at a time.
        with ThreadPoolExecutor(worker_threads(), thread_name_prefix="acil-text") as pool:
            yield from pool.map(self._row, texts)

    def _row(self, text: str) -> tuple[npt.NDArray[np.float32], bool]:
        encoding = self._tokenizer.encode(text)
        ids = np.array([encoding.ids], dtype=np.int64)
        every = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        every["token_type_ids"] = np.zeros_like(ids)
        try:
            (output,) = self._session.run([self._output], {name: every[name] for name in self._inputs})
        except Exception as error:  # onnxruntime has its own classes for what models do at run time
            raise InputError(f"The network cannot run: {str(error).splitlines()[0]}") from None
        if output.ndim == 3:
            mean = output[0].mean(axis=0)
            output = (mean / max(float(np.linalg.norm(mean)), 1e-12))[None]
        if output.ndim != 2 or len(output) != 1:
            raise InputError(
                "The network must return features of shape (1, features) or (1, tokens, features) for a "
                f"text. Got {output.shape}."
            )
        return output[0].astype(np.float32), bool(encoding.overflowing)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise cannot_read(path, error) from error


def _length_of(folder: Path, tokenizer: bytes) -> int:
    """Return how many tokens of a text are read, as the files of a network say it."""
    try:
        file = folder / "sentence_bert_config.json"
        if file.is_file():
            length = json.loads(_read(file)).get("max_seq_length")
        else:
            length = (json.loads(tokenizer).get("truncation") or {}).get("max_length")
    except (ValueError, AttributeError) as error:
        raise ModelFileError(f"Cannot read how long texts may be in {folder}: {error}.") from None
    return length if type(length) is int and 2 < length <= 2**20 else _LENGTH


_KINDS: dict[str, Callable[[str], TextEncoder]] = {
    "sentence-transformers": _open_sentence_transformer,
    "onnx": lambda folder: OnnxTextEncoder(Path(folder)),
    "module": _open_module,
}
