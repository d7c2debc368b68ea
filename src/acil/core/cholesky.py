"""The inverse of gram + γI as a Cholesky factor and a low-rank correction for rows that came later."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from acil.core import linalg
from acil.core.blocked import BlockInverses
from acil.core.linalg import cholesky_in_place_, solve_lower
from acil.core.sums import Stack, Sums
from acil.errors import SingularMatrixError

#: Largest size of the correction, which stands beside the factor; on a GPU, where a new factor is slow
#: beside products, also up to this share of it.
_CORRECTION_BYTES, _GPU_SHARE = 48 * 2**20, 0.5
#: A correction multiplies rounding errors by about the leverage of its rows, so rows that are
#: further than this from everything learnt are left to a new factorization.
_MAX_LEVERAGE = 100.0


def cholesky_(matrix: Tensor, gamma: float) -> None:
    """Replace the lower triangle of A = gram + γI by L with A = L Lᵀ; γ is for the error message.

    Raises a `SingularMatrixError` if a pivot is not positive, or so small that rounding alone could have
    made it. Nothing is ever added to the diagonal to get through.
    """
    _checked_pivot(matrix, gamma, matrix.diagonal().max(), cholesky_in_place_(matrix))


def _checked_pivot(lower: Tensor, gamma: float, scale: Tensor, status: Tensor, first: int = 0) -> None:
    smallest = lower.diagonal()[first:].min()
    # In one go, because each number read from a GPU waits for it
    largest, failed, root = torch.stack([scale, status.to(scale), smallest]).tolist()
    d = lower.shape[0] - first
    # Pivots are squared diagonal entries of L. Rounding in the sums and in the factorization grows
    # about as √d, so a pivot below this bound is noise, whatever its sign.
    pivot, noise = root * root, math.sqrt(d) * torch.finfo(lower.dtype).eps * largest
    if not failed and pivot > noise:
        return
    small = f"its smallest pivot is {pivot:.3g}, no more than rounding noise ({noise:.3g})"
    reason = f"pivot {max(1, int(failed) - first)} of {d} is not positive" if failed else small
    raise SingularMatrixError(
        f"gram + γI is not positive definite to working precision (γ = {gamma:g}, "
        f"{str(lower.dtype).removeprefix('torch.')}, {d} x {d}): {reason}. Take a larger gamma, "
        'gamma="auto", dtype="float64", a narrower expansion or more samples.'
    )


class Factor:
    """R = L⁻ᵀ (I − VᵀV) L⁻¹, with A = L Lᵀ at the last factorization and rows V collected since.

    It is never changed; a correction makes another one. The rows of V are whitened recent samples: they
    live in memory only and are gone with the next factorization. L is in memory that the next factor of
    the same sums uses again.

    With an intercept, rows have a leading 1, and A is bordered by n and Σx: A = [n, Σxᵀ; Σx, gram + γI].
    Cholesky eliminates that row first, which is centring. The factor may be of lower precision than the
    sums.
    """

    def __init__(self, sums: Sums, gamma: float, intercept: bool, dtype: torch.dtype) -> None:
        gram, k = sums.gram, int(intercept)
        memory = sums.matrix.scratch(len(gram) + k, dtype)
        # A GPU factorizes a triangle by columns faster (8192 x 8192 on an H200: 8 ms, by rows 14).
        self.L = memory.mT if memory.device.type == "cuda" else memory
        self.L[k:, k:] = gram
        if intercept:
            self.L[0, 0] = sums.total_weight
            self.L[1:, 0] = sums.total
        self.L.diagonal()[k:].add_(gamma)
        self.first = k
        self._rows = Stack(self.L.new_empty(0, len(self.L)))
        #: tr of the inverse of L Lᵀ, once it was asked for, and what the correction takes from it.
        self._trace: float | None = None
        self._taken: float | None = 0.0
        self._inverses: BlockInverses | None = None
        scale = self.L.diagonal()[k:].max()
        status = cholesky_in_place_(self.L)
        if self.L.device.type == "cuda":
            # Queued before anything waits for the factor
            self._inverses = BlockInverses(self.L)
        _checked_pivot(self.L, gamma, scale, status, k)

    @property
    def rank(self) -> int:
        """Number of rows in the correction."""
        return self._rows.length

    def whiten(self, right: Tensor) -> Tensor:
        """Return L⁻¹ right."""
        right = right.to(self.L)
        return solve_lower(self.L, right) if self._inverses is None else self._inverses.solve(right)

    def unwhiten(self, right: Tensor) -> Tensor:
        """Return L⁻ᵀ right."""
        if self._inverses is None:
            return solve_lower(self.L, right, transposed=True)
        return self._inverses.solve_transposed(right)

    def _corrected(self, whitened: Tensor) -> Tensor:
        """Return (I − VᵀV) whitened."""
        V = self._rows.values
        return whitened - V.mT @ (V @ whitened) if self.rank else whitened

    def solve(self, right: Tensor) -> Tensor:
        """Return R right, for ``right`` of shape (d, k), in the precision of the factor."""
        return self.unwhiten(self._corrected(self.whiten(right)))

    def leverage(self, rows: Tensor) -> Tensor:
        """Return xᵀ R x of each row."""
        # zᵀ (I − VᵀV) z, with z = L⁻¹x
        whitened = self.whiten(rows.mT)
        return whitened.square().sum(dim=0) - (self._rows.values @ whitened).square().sum(dim=0)

    def trace_of_inverse(self, overwrite: bool = False) -> float:
        """Return tr R, of the centred A with an intercept; L is lost if it may be overwritten."""
        if self._trace is None:
            lower = self.L[self.first :, self.first :]
            self._trace = linalg.squared_norm_of_inverse(lower, overwrite)
        return self._trace - cast(float, self._taken)

    @property
    def knows_trace(self) -> bool:
        """Say whether the trace follows without another factorization."""
        return self._taken is not None

    def least_eigenvalue(self, more: Callable[[Tensor], Tensor] | None = None) -> float:
        """Estimate the least eigenvalue of A, or of the centred matrix, from above.

        Or of the matrix whose inverse is larger than that by ``more``.
        """
        L, k = self.L, self.first

        def inverse(block: Tensor) -> Tensor:
            # Through the whole factor, with a leading 0: a part of it would be copied for every vector.
            whole = torch.cat([block.new_zeros(k, block.shape[1]), block])
            image = solve_lower(L, solve_lower(L, whole), True)[k:]
            return image if more is None else image + more(block).to(image)

        return 1 / linalg.largest_eigenvalue(inverse, L[k:, k:])

    def worth_correcting(self, n: int, n_classes: int) -> bool:
        """Say whether a correction for n rows is cheaper than factorizing and solving anew."""
        d, c, p = len(self.L), n_classes, self.rank
        bytes_of_row = d * self.L.element_size()
        share = 0.0 if self.L.device.type == "cpu" else _GPU_SHARE
        if (p + n) * bytes_of_row > max(_CORRECTION_BYTES, share * d * bytes_of_row):
            return False
        correcting = d * d * (n + min(n, c)) + d * n * (4 * p + 2 * n)
        return correcting < d**3 / 3 + 2 * d * d * c

    def updated(self, X: Tensor, residual: Tensor) -> tuple[Factor, Tensor, Tensor] | None:
        """Return R after rows X were added to gram, and R_k Xᵀ (Y − X W), by which the weights change.

        The change is a product of two matrices, of as few columns and rows as there are new ones. The
        residual Y − X W has shape (n, n_classes). None if these rows are too far from everything learnt
        for an accurate correction.
        """
        Z = self.whiten(X.mT)
        U = self._corrected(Z)
        S = Z.mT @ U
        S.diagonal().add_(1.0)
        # Eq. (10) in the coordinates L⁻¹x, where R is I − VᵀV: with I + X R Xᵀ = C Cᵀ, the rows
        # C⁻¹ Uᵀ join V, and R_k Xᵀ = L⁻ᵀ (C⁻¹ Uᵀ)ᵀ C⁻¹.
        C, status = torch.linalg.cholesky_ex(S)
        leverage = Z.square().sum(dim=0).max()
        right = torch.cat([U.mT, residual.to(Z)], dim=1)
        if len(X) == 1:
            both = right / C
        else:
            both = solve_lower(C, right) if self._inverses is None else BlockInverses(C).solve(right)
        V, inner = both[:, : len(self.L)], both[:, len(self.L) :]
        new = Factor.__new__(Factor)
        new.__dict__.update(self.__dict__)
        new._rows = self._rows.plus(V)
        # The narrower of the two goes through the triangle.
        narrow = len(X) < inner.shape[1] or len(X) == 1
        new._taken = None
        if narrow:
            P = self.unwhiten(V.mT)
            if self._taken is not None:
                # tr L⁻ᵀ VᵀV L⁻¹, of the new rows of V
                new._taken = self._taken + float(P[self.first :].square().sum(dtype=torch.float64))
        else:
            P, inner = self.unwhiten(V.mT @ inner), torch.eye(inner.shape[1]).to(inner)
        # Last, because reading a number waits for a GPU
        largest, failed = torch.stack([leverage, status.to(leverage)]).tolist()
        return None if failed or not largest <= _MAX_LEVERAGE else (new, P, inner)
