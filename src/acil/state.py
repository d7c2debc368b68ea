"""What a classifier has learnt, in one object, and whether more can be added to it or taken away."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from acil.analytic import AnalyticModel, Repeatable
from acil.errors import InputError
from acil.inputs import Rows, input_errors
from acil.labels import Labels, columns_of, union

#: What sums of weights may round by; anything beyond that was never learnt.
_WEIGHT_ROUNDING = 1e-9


@dataclass
class State:
    """Everything learnt, in one object: solving lazily must not change the estimator itself.

    Attributes
    ----------
    classes : ndarray of shape (n_classes,)
        Labels, sorted; label i is column i of the model.
    model : AnalyticModel
    seed : int
        Seed that the expansion was drawn with.
    interrupted : bool
        True while samples are being added, and for good if that was interrupted.
    """

    classes: Labels
    model: AnalyticModel
    seed: int
    interrupted: bool = False

    def features(self, rows: Rows) -> Iterable[Tensor]:
        """Return rows as blocks of the size and type that the model wants, made anew each time."""
        model = self.model
        return Repeatable(lambda: rows.blocks(model.block_rows, model.precision.products, model.device))

    def grow(self, labels: Labels) -> None:
        """Make room for labels that are not known yet."""
        classes = union(self.classes, labels)
        if len(classes) > len(self.classes):
            self.model.head.grow(columns_of(self.classes, classes), len(classes))
            self.classes = classes

    def keep(self, kept: Tensor) -> None:
        """Keep only some classes, given as a bool for each."""
        if not bool(kept.all()):
            self.model.learner().keep(torch.nonzero(kept).flatten())
            self.classes = self.classes[kept.numpy()]

    def check_values(self, rows: Rows) -> None:
        """Raise an `InputError` if rows have values that are not finite or too large to be squared."""
        with input_errors():
            # |x W_fe|² ≤ ‖x‖² · (largest column norm)², and sums of it must not overflow
            limit = torch.finfo(self.model.precision.products).max / 1e3
            rows.check_finite(limit / max(1.0, self.model.expansion.column_norm() ** 2))

    def require_learnt(self, columns: Tensor, weights: Tensor | None) -> None:
        """Raise an `InputError` if a class has fewer samples, or less weight, than are to be forgotten.

        Parameters
        ----------
        columns : Tensor of shape (n,), int64
            Class of each sample.
        weights : Tensor of shape (n,), optional
        """
        head, n_classes = self.model.learner(), len(self.classes)
        counted = columns if weights is None else columns[weights > 0]
        asked = torch.bincount(counted, minlength=n_classes)
        for column in torch.nonzero(asked > head.counts).flatten().tolist():
            raise InputError(
                f"Cannot forget {int(asked[column])} samples of {self.classes[column].item()!r}: only "
                f"{int(head.counts[column])} were learnt."
            )
        if weights is None:
            return
        heavy = torch.bincount(columns, weights, minlength=n_classes)
        for column in torch.nonzero(heavy > head.weights * (1 + _WEIGHT_ROUNDING)).flatten().tolist():
            raise InputError(
                f"Cannot forget a weight of {float(heavy[column]):g} of "
                f"{self.classes[column].item()!r}: only {float(head.weights[column]):g} was learnt."
            )

    def require_same_expansion(self, other: State) -> None:
        """Raise an `InputError` if the sums of another model are not of the same expanded features."""
        mine, theirs = self.model.expansion, other.model.expansion
        if mine.in_features != theirs.in_features:
            raise InputError(
                f"The models were fitted on {mine.in_features} and {theirs.in_features} features: they "
                "cannot be merged."
            )
        if mine.fingerprint() != theirs.fingerprint():
            raise InputError(
                "The models have different expansions, so their sums cannot be added. Fit both with the "
                "same expansion_size, activation and random_state."
            )
