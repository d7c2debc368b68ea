"""The low parts of sums that are kept as pairs of floats; see `pairs`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from acil.analytic.columns import spread


@dataclass
class LowParts:
    """What rounding took from the sums.

    Those of the matrix live in its own upper triangle, which is free: no second matrix is needed.

    Attributes
    ----------
    diagonal : Tensor of shape (d,)
        Of the diagonal of the matrix.
    moment : Tensor of shape (d, n_classes)
    weights : Tensor of shape (n_classes,), float64
    """

    diagonal: Tensor
    moment: Tensor
    weights: Tensor

    @classmethod
    def zeros_like(cls, moment: Tensor) -> LowParts:
        """Return the low parts of sums that are not yet pairs."""
        weights = torch.zeros(moment.shape[1], dtype=torch.float64)
        return cls(moment.new_zeros(moment.shape[0]), torch.zeros_like(moment), weights)

    def grown(self, positions: Tensor, n_classes: int) -> LowParts:
        """Return them for more classes: column i has moved to ``positions[i]``."""
        weights = spread(self.weights.unsqueeze(0), positions, n_classes).squeeze(0)
        return LowParts(self.diagonal, spread(self.moment, positions, n_classes), weights)

    def kept(self, columns: Tensor) -> LowParts:
        """Return them for some of the classes."""
        moment = self.moment[:, columns.to(self.moment.device)].contiguous()
        return LowParts(self.diagonal, moment, self.weights[columns])

    def copy(self) -> LowParts:
        """Return low parts that share no memory with these."""
        return LowParts(self.diagonal.clone(), self.moment.clone(), self.weights.clone())
