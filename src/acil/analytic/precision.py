"""Which floating-point type holds the sums and which one multiplies."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Precision:
    """Floating-point types of one model.

    Attributes
    ----------
    name : str
        ``"float64"``, ``"float32"`` or ``"mixed"``.
    sums : torch.dtype
        Type of ``gram``, ``moment`` and the weights.
    products : torch.dtype
        Type of the expanded rows and of the matrix products and factors computed with them.
    max_block_rows : int
        Rows that one product may sum over before it is added to the sums.
    """

    name: str
    sums: torch.dtype
    products: torch.dtype
    max_block_rows: int

    @property
    def rounding(self) -> float:
        """Unit roundoff of the products: half the distance from 1 to the next number."""
        return torch.finfo(self.products).eps / 2


#: "mixed" multiplies in float32 and adds the products of at most 1,024 rows to float64 sums: longer
#: float32 sums would lose digits that the float64 sums cannot bring back.
PRECISIONS = {
    "float64": Precision("float64", torch.float64, torch.float64, 8192),
    "float32": Precision("float32", torch.float32, torch.float32, 8192),
    "mixed": Precision("mixed", torch.float64, torch.float32, 1024),
}
