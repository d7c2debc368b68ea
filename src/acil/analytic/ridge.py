"""What a head solves: how strong the ridge is, whether it is centred, and with which digits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from acil.analytic.precision import Precision


@dataclass
class Ridge:
    """The regression of one head, shared by its parts; γ may change.

    Attributes
    ----------
    precision : Precision
    gamma : float or None
        Ridge strength γ; ``None`` as long as it is to be selected.
    fit_intercept : bool
        Whether rows and targets are centred.
    extended : bool
        Whether low parts of the sums are kept for good.
    """

    precision: Precision
    gamma: float | None
    fit_intercept: bool = False
    extended: bool = False

    @property
    def known_gamma(self) -> float:
        """γ as far as it is known: 0 if it is to be selected."""
        return self.gamma or 0.0

    @property
    def exact(self) -> bool:
        """Whether products are in float64, so that sums of them can have digits beyond."""
        return self.precision.products == torch.float64
