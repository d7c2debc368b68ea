"""A head that can only predict: weights without the sums they came from."""

from __future__ import annotations

from typing import NoReturn

from torch import Tensor

from acil.errors import UnsupportedError


class FrozenHead:
    """Weights for prediction; everything that needs sums is refused.

    Parameters
    ----------
    coef : Tensor of shape (d, classes)
    intercept : Tensor of shape (classes,)
    counts : Tensor of shape (classes,), int64
        Number of samples behind each class.
    gamma : float
        γ of the model they come from.
    temperature : float
        Of its softmax.
    """

    solver = "frozen"

    def __init__(
        self, coef: Tensor, intercept: Tensor, counts: Tensor, gamma: float, temperature: float
    ) -> None:
        self.coef = coef
        self.intercept = intercept
        self.counts = counts
        self.gamma = gamma
        self.temperature = temperature

    @property
    def size(self) -> int:
        """Width d of the rows."""
        return self.coef.shape[0]

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Return W of shape (d, classes) and the intercepts of shape (classes,)."""
        return self.coef, self.intercept

    def release(self, memory: bool = True) -> None:
        """Do nothing: there are no derived tensors."""

    def refuse(self, *args: object, **kwargs: object) -> NoReturn:
        """Say that this needs the sums."""
        raise UnsupportedError(
            "This model can only predict: it was saved or loaded for inference, without the sums that "
            "learning, forgetting, merging and novelty need. Load the full model file instead."
        )

    learn = forget = grow = keep = novelty = condition = solve_anew = refuse
