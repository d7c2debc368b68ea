"""The sums of a model as plain arrays: what other programs, engines and sites exchange."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from acil.core.inputs import (
    Labels,
    check_labels,
    check_same_kind,
    columns_of,
    require_not_private,
    union,
)
from acil.core.linalg import unpack_lower_
from acil.core.scores import Calibration
from acil.core.sums import PRECISIONS, Sums
from acil.errors import InputError, UnsupportedError

Array = npt.NDArray[Any]
#: How far sums that were added up in two ways may be apart, relative, by the precision of the sums.
_ROUNDING = {"float64": 1e-8, "mixed": 1e-4, "float32": 1e-2}
#: Fields that are no arrays: as arrays, they are one text.
_FACTS = "facts"


@dataclass(frozen=True)
class Origin:
    """What sums must have the same to be added: the features that they are of."""

    n_features: int
    fingerprint: str
    scaling: list[list[float]] | None = None
    dtype: str = "float64"
    clip_norm: float | None = None
    backbone: dict[str, Any] | None = None
    feature_names: list[str] | None = None

    def require_same(self, other: Origin) -> None:
        """Raise unless sums of another origin can be added to sums of this one."""
        if self.backbone != other.backbone:
            raise InputError(
                f"The models were fitted on features of different backbones ({self.backbone} and "
                f"{other.backbone}): their sums cannot be added."
            )
        if None not in (names := (self.feature_names, other.feature_names)) and names[0] != names[1]:
            raise InputError(
                "The models were fitted on features of different names, or in another order: their sums "
                "cannot be added."
            )
        if self.n_features != other.n_features:
            raise InputError(
                f"The models were fitted on {self.n_features} and {other.n_features} features: they "
                "cannot be merged."
            )
        if self.scaling != other.scaling:
            raise InputError(
                "The models scale their features differently, so their sums cannot be added: each took "
                "the scale of its first samples. Give all models to be merged the same one, such as "
                "standardize=first.scaling_, or scale the features before and give standardize=False."
            )
        if self.fingerprint != other.fingerprint:
            raise InputError(
                "The models have different expansions, so their sums cannot be added. Fit both with the "
                "same expansion_size, activation, random_state and clip_norm; of the activations "
                "'fourier' and 'gaussian', which look at samples, make one model from the other."
            )
        if self.clip_norm is not None and self.dtype != other.dtype:
            raise UnsupportedError(
                f'With clip_norm, models of dtype="{self.dtype}" and dtype="{other.dtype}" cannot be '
                "merged: a sample must not change sums by more than that, and in float32 it does, by "
                "the rounding of all others. Fit both with the same dtype."
            )


@dataclass(frozen=True)
class ModelSums:
    """The sums of a model over its samples, as NumPy arrays, with all that is needed to use them.

    Made by `ACILClassifier.sums`, taken by `ACILClassifier.add_sums` and `ACILClassifier.from_sums`.
    Sums of different samples are added with ``+``, in any order. They stand for the samples: they can
    give single ones away (docs/privacy.md), and whoever has them has what the model has learnt.

    Attributes
    ----------
    classes : ndarray of shape (n_classes,)
        Labels, sorted.
    counts, class_weight : ndarray of shape (n_classes,)
        Number of samples of each class, int64, and the sum of their weights, float64.
    gram : ndarray of shape (d (d + 1) / 2,)
        Lower triangle of Σ w x xᵀ, row by row, of expanded rows x.
    moment : ndarray of shape (d, n_classes)
        Σ w x of each class.
    total : ndarray of shape (d,)
        Σ w x of all samples.
    total_weight : float
        Σ w.
    n_features : int
        Number of features before the expansion.
    fingerprint : str
        Hash of the expansion.
    parameters : dict
        Arguments of the classifier that these sums are of, as they were in force.
    projection, bias : ndarray or None
        The expansion, float32. Left out, it is drawn again from ``parameters["random_state"]``.
    feature_names, backbone : list of str, dict, or None
        ``feature_names_in_`` and ``backbone_`` of the classifier.
    clipped : bool
        Whether acil has clipped all rows to ``parameters["clip_norm"]``. Sums that were made elsewhere
        cannot say so: `acil.privacy.privatize` refuses them.
    release : dict or None
        Private releases of these samples, or of which these sums are one (``private``).
    linear : float
        Factor of the features themselves, which are the first of the expanded ones; 0 if they are not.
    calibration : dict or None
        How the samples scored when they were left out. Without it a model cannot tell what is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from acil import ACILClassifier
    >>> X, y = np.eye(4), np.array(["cat", "dog", "cat", "owl"])
    >>> parts = [ACILClassifier(expansion_size=8, gamma=1.0).fit(X[i : i + 2], y[i : i + 2]).sums()
    ...          for i in (0, 2)]
    >>> clf = ACILClassifier.from_sums(parts[0] + parts[1])
    >>> clf.class_count_
    array([2, 1, 1])
    """

    classes: Labels
    counts: Array
    class_weight: Array
    gram: Array
    moment: Array
    total: Array
    total_weight: float
    n_features: int
    fingerprint: str
    parameters: dict[str, Any]
    projection: Array | None = None
    bias: Array | None = None
    linear: float = 0.0
    feature_names: list[str] | None = None
    backbone: dict[str, Any] | None = None
    clipped: bool = False
    release: dict[str, Any] | None = None
    calibration: dict[str, Any] | None = None

    @property
    def n_samples(self) -> int:
        """Number of samples in the sums."""
        return int(self.counts.sum())

    @property
    def origin(self) -> Origin:
        """What other sums must have the same to be added."""
        settings = self.parameters
        scaling = settings["standardize"] if isinstance(settings["standardize"], list) else None
        return Origin(
            *(self.n_features, self.fingerprint, scaling, settings["dtype"], settings["clip_norm"]),
            *(self.backbone, self.feature_names),
        )

    @property
    def private(self) -> bool:
        """Whether these are the sums of a private release."""
        return self.release is not None and bool(self.release["private"])

    def __add__(self, other: ModelSums) -> ModelSums:
        """Return the sums over the samples of both, of which none may be in both."""
        if not isinstance(other, ModelSums):
            return NotImplemented
        for sums in (self, other):
            require_not_private(sums.release)
        self.origin.require_same(other.origin)
        check_same_kind(other.classes, self.classes)
        classes = union(self.classes, other.classes)
        added: dict[str, Any] = {
            "gram": self.gram + other.gram,
            "total": self.total + other.total,
            "total_weight": self.total_weight + other.total_weight,
            "classes": classes,
            "clipped": self.clipped and other.clipped,
            "release": both_ledgers(self.release, other.release),
        }
        for name in ("counts", "class_weight", "moment"):
            mine = getattr(self, name)
            both = np.zeros((*mine.shape[:-1], len(classes)), mine.dtype)
            for sums in (self, other):
                both[..., columns_of(sums.classes, classes).numpy()] += getattr(sums, name)
            added[name] = both
        now = torch.from_numpy(added["counts"])
        known = [s.calibrated(now) for s in (self, other)]
        calibration = joined(*known)
        added["calibration"] = calibration and calibration.to_dict(summary=False)
        return replace(self, **added)

    def calibrated(self, now: Tensor) -> Calibration | None:
        """Return the calibration among the classes of which there are so many samples now."""
        if self.calibration is None:
            return None
        known = Calibration.from_dict(self.calibration, summary=False)
        if known is None:
            raise InputError("'calibration' does not have the numbers that it must have.")
        return known.among(torch.from_numpy(np.asarray(self.counts)), now)

    def to_arrays(self) -> dict[str, Array]:
        """Return everything as arrays, for ``np.savez`` and the like; none is of objects.

        Examples
        --------
        >>> import io
        >>> import numpy as np
        >>> from acil import ACILClassifier
        >>> clf = ACILClassifier(expansion_size=8, gamma=1.0).fit(np.eye(4), [0, 1, 0, 1])
        >>> file = io.BytesIO()
        >>> np.savez(file, **clf.sums().to_arrays())
        >>> _ = file.seek(0)
        >>> again = type(clf.sums()).from_arrays(np.load(file))
        >>> bool((ACILClassifier.from_sums(again).coef_ == clf.coef_).all())
        True
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        facts = {name: value for name, value in values.items() if name not in arrays}
        return {**arrays, _FACTS: np.array(json.dumps(facts))}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        """Return the sums that `to_arrays` has described; what they say is checked by who takes them."""
        known = {field.name for field in fields(cls)}
        try:
            content = json.loads(str(arrays[_FACTS])) | {
                name: np.asarray(arrays[name]) for name in arrays if name != _FACTS
            }
            if unknown := content.keys() - known:
                raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
            return cls(**content)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"These arrays are no sums of a model: {error}.") from None

    def tensors(self) -> Sums:
        """Return the sums as the learner has them, checked in themselves; raise if they are none."""
        precision, name = PRECISIONS[self.parameters["dtype"]], self.parameters["dtype"]
        d, k = len(self.total), len(self.classes)
        shapes = {"gram": (d * (d + 1) // 2,), "moment": (d, k), "counts": (k,), "class_weight": (k,)}
        for part, shape in (*shapes.items(), ("total", (d,))):
            array = getattr(self, part)
            if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype.kind not in "if":
                raise InputError(
                    f"The sums' {part} must be an array of numbers of shape {shape}, got "
                    f"{getattr(array, 'dtype', type(array).__name__)} of {np.shape(array)}."
                )
            if not np.isfinite(array).all():
                raise InputError(f"The sums' {part} has values that are NaN or infinite.")
        labels = check_labels(self.classes)
        if not k or not np.array_equal(np.unique(labels), labels):
            raise InputError("The sums' classes must be distinct and sorted, at least one.")
        if self.counts.dtype.kind != "i" or (self.counts < 0).any() or not self.counts.any():
            raise InputError("The sums' counts must be ints, none negative, not all zero.")
        if not self.private and ((self.class_weight > 0) != (self.counts > 0)).any():
            raise InputError("The sums' class_weight must be positive for classes with samples alone.")
        sums = Sums(d, k, precision.sums)
        unpack_lower_(torch.from_numpy(np.array(self.gram)), sums.gram)
        sums.moment.copy_(torch.from_numpy(np.array(self.moment)))
        sums.total.copy_(torch.from_numpy(np.array(self.total)))
        sums.counts.copy_(torch.from_numpy(np.array(self.counts)))
        sums.target_total.copy_(torch.from_numpy(np.array(self.class_weight)))
        sums.total_weight, sums.n_samples = float(self.total_weight), int(sums.counts.sum())
        scale = float(sums.gram.diagonal().abs().sum() * max(sums.total_weight, 0.0)) ** 0.5
        off = float((sums.total - sums.moment.sum(dim=1)).norm())
        heavy = float(sums.target_total.sum())
        if off > _ROUNDING[name] * scale or abs(sums.total_weight - heavy) > 1e-8 * heavy:
            raise InputError("The sums' total and total_weight are not those of its classes.")
        norm = self.parameters["clip_norm"]
        if norm is not None and not self.private:
            longest = norm**2 * sums.total_weight * (1 + _ROUNDING[name])
            if float(sums.gram.diagonal().sum()) > longest or (self.class_weight > self.counts).any():
                raise InputError(
                    f"These sums have rows longer than clip_norm={norm:g}, or weights above 1."
                )
        return sums


def joined(mine: Calibration | None, theirs: Calibration | None) -> Calibration | None:
    """Return the calibration of the samples of two models; None if neither knows any."""
    if mine is None:
        return theirs and theirs.merged(None)
    return mine.merged(theirs)


def both_ledgers(mine: dict[str, Any] | None, theirs: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return all releases of two sets of samples, which may have samples in common."""
    if mine is None or theirs is None:
        return mine or theirs
    known = {entry["id"]: entry for entry in (*mine["releases"], *theirs["releases"])}
    return {**mine, "releases": list(known.values())}
