"""Checks of what users give: arrays, which become tensors; and labels, which become columns.

scikit-learn is imported where it checks: half a second that a plan of a benchmark would wait for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from acil.core.parameters import MAX_GAMMA, invalid, is_number, number
from acil.core.sums import PRECISIONS
from acil.errors import ACILError, InputError, InputTypeError, UnsupportedError

Labels = npt.NDArray[Any]
#: Features whose largest root mean square is more than this many times the median are in several units.
MIXED_UNITS = 10.0
#: Rows whose root mean square length is below this are too short beside the bias of an expansion.
SHORT_ROWS = 0.1
#: Longest label in characters: arrays of strings are as wide as the longest. A file takes no longer one.
MAX_LENGTH = 1024
#: What no text file can hold, and NumPy drops at the end of a string.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float", "U": "str"}
#: Rows read at a time when an array is only looked at.
_CHECK_BYTES = 2**24
_CPU = torch.device("cpu")
#: Rows that travel to another device at a time: a copy waits for all work queued there.
_UPLOAD_BYTES = 2**26


@contextmanager
def input_errors() -> Iterator[None]:
    """Turn what scikit-learn says of bad input into an `InputError` with the same words."""
    try:
        yield
    except ACILError:
        raise
    except TypeError as error:
        raise InputTypeError(str(error)) from error
    except ValueError as error:
        raise InputError(str(error)) from error


class Rows:
    """A checked array of shape (n, n_features) that is read block by block, never copied as a whole.

    With ``names``, features of a stream, of which more may come later.
    """

    def __init__(self, source: npt.NDArray[Any] | Tensor, names: Sequence[str] | None = None) -> None:
        self.source, self.names = source, names

    def __len__(self) -> int:
        return int(self.source.shape[0])

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return int(self.source.shape[1])

    @property
    def tensor_device(self) -> torch.device | None:
        """Device of the caller's tensor, or None if the caller gave something else."""
        return self.source.device if isinstance(self.source, Tensor) else None

    def blocks(self, size: int, dtype: torch.dtype, device: torch.device) -> Iterator[Tensor]:
        """Yield consecutive blocks of ``size`` rows as fresh tensors."""
        together = size
        if device.type != "cpu" and self.tensor_device != device:
            row = 8 * max(1, self.n_features)
            together = max(1, _UPLOAD_BYTES // (size * row)) * size
        for start in range(0, len(self), together):
            sent = self._block(start, start + together).to(device=device, dtype=dtype)
            yield from torch.split(sent, size)

    @input_errors()
    def check_finite(self, limit: float) -> None:
        """Raise unless every value is finite and Σ x² stays below ``limit``."""
        size = max(1, _CHECK_BYTES // (8 * max(1, self.source.shape[1])))
        total = 0.0
        for start in range(0, len(self), size):
            block = self._block(start, start + size)
            values = block if block.is_floating_point() else block.double()
            norm = float(torch.linalg.vector_norm(values, dtype=torch.float64))
            square = norm * norm
            if not np.isfinite(square):
                from sklearn.utils.validation import check_array

                # Words and details are scikit-learn's; values may be finite and merely huge.
                array = block.double().cpu().numpy()
                check_array(array, input_name="X", estimator="ACILClassifier")
            total += square
        if not total < limit:
            raise InputError(
                f"X has values too large to square and sum without overflow (Σ x² = {total:.3g}). "
                'Scale the features, or use dtype="float64".'
            )

    def largest(self) -> float:
        """Return the largest absolute value; values have been checked."""
        size = max(1, _CHECK_BYTES // (8 * max(1, self.n_features)))
        starts = range(0, len(self), size)
        return max(float(self._block(i, i + size).double().abs().max()) for i in starts)

    def scaling(self, weights: Tensor | None, always: bool = True) -> Tensor | None:
        """Return the mean of each feature and its deviation; None if that is not needed, unless always.

        It is if features are in several units, or rows are far shorter than the bias of the expansion.
        """
        size = max(1, _CHECK_BYTES // (8 * self.n_features))
        weights = torch.ones(len(self), dtype=torch.float64) if weights is None else weights
        shares = torch.split(weights / weights.sum(), size)
        mean, square = torch.zeros(2, self.n_features, dtype=torch.float64)
        for block, share in zip(self.blocks(size, torch.float64, _CPU), shares, strict=True):
            mean += share @ block
        for block, share in zip(self.blocks(size, torch.float64, _CPU), shares, strict=True):
            square += share @ (block - mean).square()
        squares = square + mean.square()
        lengths, row = squares[squares > 0].sqrt(), float(squares.sum().sqrt())
        several = len(lengths) > 0 and bool(lengths.max() > MIXED_UNITS * lengths.median())
        if not always and not several and not 0 < row < SHORT_ROWS:
            return None
        # Of a constant feature, what deviates is rounding, and how others will deviate is not known.
        sizes = torch.where(mean == 0, 1.0, mean.abs())
        deviation = torch.where(square.sqrt() > 1e-9 * mean.abs(), square.sqrt(), sizes)
        return torch.stack([mean, deviation])

    def drawn(self, n: int, weights: Tensor | None, seed: int) -> Tensor:
        """Return at most n rows, drawn without replacement, float64, on the CPU; none of weight 0."""
        places = torch.arange(len(self)) if weights is None else torch.nonzero(weights > 0).flatten()
        generator = torch.Generator().manual_seed(seed)
        chosen = places[torch.randperm(len(places), generator=generator)[:n]]
        on_device = isinstance(self.source, Tensor)
        rows = self.source[chosen.to(self.source.device) if on_device else chosen.numpy()]
        return next(Rows(rows).blocks(max(1, len(chosen)), torch.float64, _CPU))

    def _block(self, start: int, stop: int) -> Tensor:
        if isinstance(self.source, Tensor):
            return self.source[start:stop]
        block = self.source[start:stop]
        # A copy in native byte order: torch refuses read-only, swapped and exotic memory.
        kind = block.dtype if block.dtype in (np.float32, np.float64) else np.float64
        return torch.from_numpy(np.array(block, dtype=np.dtype(kind).newbyteorder("=")))


def check_rows(estimator: Any, X: Any, reset: bool) -> Rows:
    """Check the shape and type of X (not its values) and its agreement with earlier calls.

    X is an array, a DataFrame, a Tensor, anything with DLPack, or `Rows` whose columns the caller has
    put in the order of ``feature_names_in_``, or named. The first data of a model (``reset``)
    set its ``n_features_in_`` and ``feature_names_in_``.
    """
    from sklearn.utils.validation import _check_n_features, validate_data

    with input_errors():
        if isinstance(X, Rows):
            if not reset:
                _check_n_features(estimator, X.source, reset=False)
                return X
            if X.names is not None:
                estimator.n_features_in_ = X.n_features
                estimator.feature_names_in_ = np.array(X.names, dtype=object)
                return X
            X = X.source
        if not isinstance(X, np.ndarray | Tensor) and hasattr(X, "__dlpack__"):
            X = torch.utils.dlpack.from_dlpack(X)
        if isinstance(X, Tensor):
            return Rows(_check_tensor(estimator, X, reset))
        plain = type(X) is np.ndarray and X.ndim == 2 and len(X) and X.dtype in (np.float32, np.float64)
        if not reset and plain and _has_known_width(estimator, X):
            # In a stream, a closer look would take longer than learning.
            return Rows(X)
        options = {"dtype": "numeric", "order": None, "ensure_all_finite": False}
        return Rows(validate_data(estimator, X, reset=reset, **options))


def check_weights(sample_weight: Any, rows: Rows) -> Tensor | None:
    """Return the weights of samples, finite and not negative, as float64 on the CPU, or None."""
    if sample_weight is None:
        return None
    from sklearn.utils.validation import _check_sample_weight

    with input_errors():
        if isinstance(sample_weight, Tensor):
            sample_weight = sample_weight.detach().double().cpu().numpy()
        weights = _check_sample_weight(
            sample_weight, np.empty((len(rows), 1)), dtype=np.float64, ensure_non_negative=True
        )
    return torch.from_numpy(np.array(weights))


def _has_known_width(estimator: Any, X: Any) -> bool:
    """Say whether scikit-learn would find nothing to say about the columns of a checked array."""
    return X.shape[1] == getattr(estimator, "n_features_in_", None) and not hasattr(
        estimator, "feature_names_in_"
    )


def _check_tensor(estimator: Any, X: Tensor, reset: bool) -> Tensor:
    if X.layout != torch.strided:
        raise InputTypeError(
            "Sparse data was passed, but dense data is required. Use X.to_dense() to convert."
        )
    if X.is_complex():
        raise InputError("Complex data not supported. Give real features.")
    if X.ndim != 2:
        raise InputError(
            f"Expected 2D array, got {X.ndim}D array instead (shape={tuple(X.shape)}). Reshape X to "
            "(samples, features)."
        )
    if 0 in X.shape:
        what = "sample" if X.shape[0] == 0 else "feature"
        raise InputError(
            f"Found array with 0 {what}(s) (shape={tuple(X.shape)}) while a minimum of 1 is required."
        )
    if reset or not _has_known_width(estimator, X):
        from sklearn.utils.validation import validate_data

        validate_data(estimator, X, reset=reset, skip_check_array=True)
    return X.detach()


def check_labels(y: Any) -> Labels:
    """Return labels as an array of bool, int, float or str, of shape (n,)."""
    if y is None:
        raise InputError(
            "This ACILClassifier estimator requires y to be passed, but the target y is None."
        )
    from sklearn.utils.validation import column_or_1d

    with input_errors():
        if isinstance(y, Tensor):
            y = y.detach().cpu()
            y = (y.double() if y.is_floating_point() else y).numpy()
        elif hasattr(y, "to_numpy"):
            # Nullable integers and booleans would become floats on the way through scikit-learn.
            y = y.to_numpy()
        elif isinstance(y, list | tuple) and any(isinstance(label, str) for label in y):
            # NumPy would turn the numbers of a mixed list into text.
            y = np.array(y, dtype=object)
        plain = type(y) is np.ndarray and y.ndim == 1
        labels = _typed(y if plain else column_or_1d(y, warn=True))
        if labels.dtype.kind not in _KINDS:
            raise InputTypeError(
                f"Labels must be int, float, bool or str, got an array of dtype {labels.dtype}. "
                "Convert them, for example with y.astype(str)."
            )
        if labels.dtype.kind == "f" and not np.isfinite(labels).all():
            bad = "NaN" if np.isnan(labels).any() else "infinity"
            raise InputError(f"Input y contains {bad}. Remove these samples or name their class.")
        if labels.dtype.kind == "u":
            if labels.size and labels.max() > np.iinfo(np.int64).max:
                raise InputError(f"Labels must fit into int64, got {labels.max()}.")
            labels = labels.astype(np.int64)
        if labels.dtype.kind == "f" and (labels != np.round(labels)).any():
            # Not check_classification_targets: it warns of many classes, which are normal here.
            raise InputError(
                "Unknown label type: continuous. Float labels must be whole numbers; convert others, "
                "for example with y.astype(str)."
            )
    return labels


def check_same_kind(labels: Labels, known: Labels) -> None:
    """Raise unless labels are of the type of those already known."""
    kind, known_kind = _KINDS[labels.dtype.kind], _KINDS[known.dtype.kind]
    if kind != known_kind:
        raise InputError(
            f"Labels are of type {kind}, but this model has learnt labels of type {known_kind}. Convert "
            "them to the same type."
        )


def check_declared(classes: Any, labels: Labels) -> Labels:
    """Return the sorted classes that a call names, by ``classes`` or else by its labels."""
    seen = np.unique(labels)
    if classes is None:
        return _storable(seen)
    declared = _storable(np.unique(check_labels(classes)))
    check_same_kind(declared, labels)
    outside = np.setdiff1d(seen, declared)
    if outside.size:
        raise InputError(f"y has labels that are not in classes: {_listed(outside)}.")
    return declared


def union(left: Labels, right: Labels) -> Labels:
    """Return all classes of both, sorted, of which the left ones are sorted already."""
    if len(left) and _found(left, np.searchsorted(left, right), right):
        return left
    # Concatenating widens fixed-width strings; assigning would cut them.
    return np.unique(np.concatenate([left, right]))


def columns_of(labels: Labels, classes: Labels) -> Tensor:
    """Return the column of each label, or raise if one is not among the (sorted) classes."""
    columns = np.searchsorted(classes, labels)
    if not len(labels) or (len(classes) and _found(classes, columns, labels)):
        return torch.from_numpy(columns)
    unknown = np.setdiff1d(labels, classes)
    raise InputError(f"Labels that were never learnt: {_listed(unknown)}. Known: {_listed(classes)}.")


def _found(classes: Labels, columns: npt.NDArray[np.int64], labels: Labels) -> bool:
    """Say whether the label of each column is the one that was looked for."""
    return bool((classes[np.minimum(columns, len(classes) - 1)] == labels).all())


def _listed(labels: Labels) -> str:
    """Return labels as text, the first few of them."""
    shown = ", ".join(repr(label) for label in labels[:8].tolist())
    return shown + (f" and {len(labels) - 8} more" if len(labels) > 8 else "")


def _storable(labels: Labels) -> Labels:
    """Return labels; raise if they are text that no file could keep."""
    for label in labels.tolist() if labels.dtype.kind in "UO" else ():
        if len(label) > MAX_LENGTH or _UNSTORABLE.search(label):
            raise InputError(
                f"The label {label[:40]!r} cannot be stored: labels have at most {MAX_LENGTH} "
                "characters, and neither NUL nor lone surrogates. Rename the class."
            )
    return labels


def _typed(y: Labels) -> Labels:
    """Give labels of dtype object the type that all of them share."""
    if y.dtype.kind == "T":
        y = y.astype(object)
    if y.dtype.kind != "O":
        return y
    if all(isinstance(label, str) for label in y):
        return _storable(y).astype(str)
    accepted = {np.bool_: bool | np.bool_, np.int64: int | np.integer, np.float64: float | np.floating}
    for dtype, kinds in accepted.items():
        if all(isinstance(label, kinds) for label in y):
            try:
                return y.astype(dtype)
            except OverflowError:
                raise InputError(
                    "Labels must fit into int64. Convert them, for example to str."
                ) from None
    types = sorted({type(label).__name__ for label in y})
    raise InputTypeError(
        f"Labels must be all int, all float, all bool or all str, got {', '.join(types)}."
    )


def given_scaling(settings: Mapping[str, Any]) -> Tensor | None:
    """Return means and deviations that are given, of shape (2, n_features), if they are."""
    scaling = settings["standardize"]
    return None if isinstance(scaling, bool | str) else torch.tensor(scaling, dtype=torch.float64)


def check_gamma(gamma: Any, dtype: str) -> float:
    """Return a γ that is given after learning, or raise an `InputError`."""
    valid = number(0, MAX_GAMMA[dtype])
    if not valid.accepts(gamma):
        raise InputError(f"gamma must be {valid.words}. Got {gamma!r}.")
    return float(gamma)


def check_candidates(gammas: Any, dtype: str) -> Tensor:
    """Return candidates for γ as float64 of shape (k,), or raise an `InputError`."""
    with input_errors():
        if isinstance(gammas, Tensor):
            gammas = gammas.detach().cpu().numpy()
        candidates = torch.from_numpy(np.array(gammas, dtype=np.float64).reshape(-1))
    valid = (candidates >= 0) & (candidates <= MAX_GAMMA[dtype])
    if not len(valid) or not bool(valid.all()):
        raise InputError(f"gammas must be numbers from 0 to {MAX_GAMMA[dtype]:g}, at least one.")
    return candidates


def resolve_seed(random_state: Any) -> int:
    """Return the seed of the expansion: an int as it is, anything else as one number drawn."""
    with input_errors():
        if is_number(random_state, Integral):
            if not 0 <= int(random_state) < 2**63:
                raise invalid("random_state", "an int from 0 to 2**63 - 1", random_state)
            return int(random_state)
        from sklearn.utils import check_random_state

        return int(check_random_state(random_state).randint(2**31 - 1))


def resolve_device(name: Any, dtype: str) -> torch.device:
    """Return the device, after making sure that it holds numbers of the given precision."""
    # Accelerators other than CUDA may lack float64, and must be asked for by name.
    if isinstance(name, str) and name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, dtype=PRECISIONS[dtype].sums, device=device)
    except Exception as error:  # each device that is not there has its own way to say so
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(
            f"The 'device' parameter of ACILClassifier is {name!r}, which cannot be used here with "
            f'dtype="{dtype}": {reason}. Use device="auto" or device="cpu", also to load a model.'
        ) from error
    return device


def require_not_private(ledger: dict[str, Any] | None) -> None:
    """Raise if the sums are those of a private release, which must not mix with others."""
    if ledger is not None and ledger["private"]:
        raise UnsupportedError(
            "This model is a private release: its sums have noise, and its ε would no longer hold "
            "for what is added or removed. Change the model it was made from and release that "
            "again; releases are added up by acil.privacy.combine."
        )
