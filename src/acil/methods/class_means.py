"""Count and mean of the rows of each class, and the scatter around the means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from acil.analytic.linalg import add_gram_, mirror_
from acil.modelfile.saving import pack_lower, unpack_lower_


class ClassMeans:
    """Counts n_c and means μ_c, in float64, of classes in the order in which they came.

    They depend only on the set of rows added: classes may come back, and their rows in any grouping.

    Parameters
    ----------
    device : torch.device

    Attributes
    ----------
    labels : Tensor of shape (classes,), int64, on the CPU
    counts : Tensor of shape (classes,), int64, on the CPU
    means : Tensor of shape (classes, d), float64
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.labels = torch.zeros(0, dtype=torch.int64)
        self.counts = torch.zeros(0, dtype=torch.int64)
        self.means = torch.zeros(0, 0, dtype=torch.float64, device=device)

    @property
    def n_samples(self) -> int:
        """Number of rows added."""
        return int(self.counts.sum())

    @property
    def nbytes(self) -> int:
        """Bytes of counts and means."""
        return 8 * (self.counts.numel() + self.means.numel())

    def position(self, label: int, width: int) -> int:
        """Return the position of a class, which is made, with no rows, if there is none.

        Parameters
        ----------
        label : int
        width : int
            Number d of features.
        """
        found = torch.nonzero(self.labels == label).flatten().tolist()
        if found:
            return int(found[0])
        self.labels = torch.cat([self.labels, torch.tensor([label])])
        self.counts = torch.cat([self.counts, torch.tensor([0])])
        self.means = torch.cat([self.means.reshape(-1, width), self.means.new_zeros(1, width)])
        return len(self.labels) - 1

    def add(self, label: int, rows: Tensor) -> Tensor:
        """Add rows of one class.

        Parameters
        ----------
        label : int
        rows : Tensor of shape (k, d), float64, on the device
            At least one.

        Returns
        -------
        Tensor of shape (k, d) or (k + 1, d)
            Rows whose Gram matrix is what the scatter Σ (x − μ_c)(x − μ_c)ᵀ of the class grows by.
        """
        at = self.position(label, rows.shape[1])
        n, k, mean = int(self.counts[at]), len(rows), rows.mean(dim=0)
        centred, jump = rows - mean, mean - self.means[at]
        self.counts[at] += k
        self.means[at] += jump * (k / (n + k))
        if n == 0:
            return centred
        # With n old rows of mean μ and k new ones of mean m, the scatter grows by
        # Σ (x − m)(x − m)ᵀ + nk / (n + k) (m − μ)(m − μ)ᵀ: one more row.
        return torch.cat([centred, (jump * (n * k / (n + k)) ** 0.5).unsqueeze(0)])

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything, on the CPU."""
        return {"classes": self.labels, "counts": self.counts, "means": self.means.cpu()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.labels, self.counts = state["classes"].clone(), state["counts"].clone()
        self.means = state["means"].clone().to(self.device)


class ScatteredMeans(ClassMeans):
    """Class means and the within-class scatter S = Σ (x − μ_y)(x − μ_y)ᵀ of all classes together.

    Sums around the means, and not Σ x xᵀ with the means taken off at the end: that would lose digits.

    Attributes
    ----------
    scatter : Tensor of shape (d, d), float64
        Lower triangle of S; the upper triangle is unspecified.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.scatter = torch.zeros(0, 0, dtype=torch.float64, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes of counts, means and one triangle of the scatter."""
        d = self.scatter.shape[0]
        return super().nbytes + 8 * (d * (d + 1) // 2)

    def position(self, label: int, width: int) -> int:
        """Return the position of a class; see `ClassMeans.position`."""
        if not len(self.labels):
            self.scatter = self.scatter.new_zeros(width, width)
        return super().position(label, width)

    def add(self, label: int, rows: Tensor) -> Tensor:
        """Add rows of one class to means and scatter; see `ClassMeans.add`."""
        growth = super().add(label, rows)
        add_gram_(self.scatter, growth)
        return growth

    def full_scatter(self) -> Tensor:
        """Return both triangles of S, in new memory."""
        return mirror_(self.scatter.clone())

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything, on the CPU; of the scatter one triangle."""
        return {**super().state_dict(), "scatter": pack_lower(self.scatter)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        super().load_state_dict(state)
        d = self.means.shape[1]
        self.scatter = unpack_lower_(state["scatter"], self.means.new_zeros(d, d))


def by_class(features: Tensor, labels: Tensor, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """Yield each class, in the order of labels, with its rows in their own order, float64.

    Parameters
    ----------
    features : Tensor of shape (n, d)
    labels : Tensor of shape (n,), int64
    device : torch.device
    """
    order = torch.argsort(labels, stable=True)
    present, counts = torch.unique(labels, return_counts=True)
    start = 0
    for label, count in zip(present.tolist(), counts.tolist(), strict=True):
        members = order[start : start + count]
        yield label, features[members].to(device=device, dtype=torch.float64)
        start += count
