"""The recursion as the paper's authors compute it, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from acil.core.expansion import Expansion


class PublishedRecursion:
    """R and W, batch by batch from R = I / γ, in float64.

    Parameters
    ----------
    expansion : Expansion
    gamma : float
    batch : int
        Rows of one step; 1 is the recursion sample by sample.
    device : torch.device
    """

    def __init__(self, expansion: Expansion, gamma: float, batch: int, device: torch.device) -> None:
        self.expansion, self.batch, self.device = expansion, batch, device
        self.R = torch.eye(expansion.size, dtype=torch.float64, device=device) / gamma
        self.W = torch.zeros(expansion.size, 0, dtype=torch.float64, device=device)

    def learn(self, features: Tensor, labels: Tensor) -> None:
        """Learn one phase."""
        self.grow(int(labels.max()) + 1)
        for start in range(0, len(features), self.batch):
            X = self.expansion(features[start : start + self.batch].to(self.device).double())
            Y = torch.nn.functional.one_hot(labels[start : start + self.batch], self.W.shape[1])
            self.step(X, Y.to(self.device).double())

    def grow(self, n_classes: int) -> None:
        """Make room for new classes."""
        missing = max(0, n_classes - self.W.shape[1])
        self.W = torch.cat([self.W, self.W.new_zeros(self.W.shape[0], missing)], dim=1)

    def step(self, X: Tensor, Y: Tensor) -> None:
        """Update R by Eq. (10) and W by Eq. (9)."""
        K = torch.inverse(torch.eye(len(X), dtype=X.dtype, device=X.device) + X @ self.R @ X.T)
        self.R -= self.R @ X.T @ K @ X @ self.R
        self.W += self.R @ X.T @ (Y - X @ self.W)

    def scores(self, features: Tensor) -> Tensor:
        """Return scores of all classes."""
        return self.expansion(features.to(self.device).double()) @ self.W
