"""The inverse of gram + γI as a Cholesky factor and a low-rank correction."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from acil.analytic.aside import Aside
from acil.analytic.linalg import add_gram_, trace_of_inverse, woodbury_with
from acil.analytic.triangle import Triangle, laid_out

#: Largest size of the correction, which stands beside the factor; on a GPU, where a new factor is slow
#: beside products, also up to this share of it.
_CORRECTION_BYTES, _GPU_SHARE = 48 * 2**20, 0.5
#: A correction multiplies rounding errors by about the leverage of its rows, so rows that are
#: further than this from everything learnt are left to a new factorization.
_MAX_LEVERAGE = 100.0
#: Products of d² numbers that refining one column takes: two steps of residual and solution.
_REFINING = 10


class CorrectedFactor:
    """R = L⁻ᵀ (I − Qᵀ Q) L⁻¹, with A = L Lᵀ at the last factorization and rows Q collected since.

    A few new rows are absorbed by the correction in O(d²) a row, where a new factor takes O(d³). The
    rows of Q are whitened recent samples: they live in memory only and are gone with the next factor.

    Parameters
    ----------
    size : int
        Width d.
    device : torch.device
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.device = device
        self.rank = 0
        self._buffer: Tensor | None = None
        self._factor: Triangle | None = None
        self._rows: Tensor | None = None
        self._aside = Aside(device)
        #: Of the last correction; 0 if it is right.
        self._status: Tensor | None = None

    @property
    def ready(self) -> bool:
        """Whether there is a factor."""
        return self._factor is not None

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the factor."""
        return self._triangle.dtype

    def factorize(self, gram: Tensor, gamma: float, centre: Tensor | None, dtype: torch.dtype) -> None:
        """Factorize gram − centre centreᵀ + γI, in one buffer that is used again and again.

        Parameters
        ----------
        gram : Tensor of shape (d, d)
            Lower triangle; not changed.
        gamma : float
        centre : Tensor of shape (d,), optional
        dtype : torch.dtype
            Precision of the factor, which may be lower than that of ``gram``.
        """
        self.drop()
        if self._buffer is None or self._buffer.dtype != dtype:
            self._buffer = None
            self._buffer = torch.empty(self.size, self.size, dtype=dtype, device=self.device)
        matrix = laid_out(self._buffer)
        matrix.copy_(gram)
        if centre is not None:
            add_gram_(matrix, centre.unsqueeze(0).to(dtype), sign=-1)
        matrix.diagonal().add_(gamma)
        self._factor = Triangle(matrix, gamma)

    def solve(self, right: Tensor) -> Tensor:
        """Return A⁻¹ right as of the last factorization, in the precision of the factor."""
        return self.unwhiten(self.whiten(right))

    def solve_corrected(self, right: Tensor) -> Tensor:
        """Return R right, corrections included."""
        image = self.whiten(right)
        if self.rank:
            image = image - self._correction.mT @ (self._correction @ image)
        return self.unwhiten(image)

    def whiten(self, right: Tensor) -> Tensor:
        """Return L⁻¹ right as of the last factorization."""
        return self._triangle.solve(right)

    def unwhiten(self, right: Tensor) -> Tensor:
        """Return L⁻ᵀ right as of the last factorization."""
        return self._triangle.solve_transposed(right)

    def smallest_pivot(self) -> float:
        """Return the smallest pivot of the factorization, an upper bound of the least eigenvalue."""
        return self._triangle.smallest_pivot

    def trace_of_inverse(self) -> float:
        """Return tr A⁻¹ as of the last factorization."""
        return trace_of_inverse(self._triangle.lower)

    def leverage(self, rows: Tensor) -> Tensor:
        """Return xᵀ R x of each row, corrections included."""
        whitened = self.whiten(rows.mT)
        leverage = whitened.square().sum(dim=0)
        if self.rank:
            leverage -= (self._correction @ whitened).square().sum(dim=0)
        return leverage

    def worth_correcting(self, n: int, n_classes: int, refined: bool = False) -> bool:
        """Say whether absorbing n rows is cheaper than factorizing and solving anew.

        Parameters
        ----------
        n, n_classes : int
        refined : bool
            Whether the weights are refined, which costs more for n rows and for n_classes columns.
        """
        if not self.ready:
            return False
        d, c, p = self.size, n_classes, self.rank
        bytes_of_row = d * self._triangle.lower.element_size()
        share = 0.0 if self.device.type == "cpu" else _GPU_SHARE
        if (p + n + 1) * bytes_of_row > max(_CORRECTION_BYTES, share * d * bytes_of_row):
            return False
        correcting = d * d * (n + min(n, c)) + d * n * (4 * p + 2 * n)
        anew = d**3 / 3 + 2 * d * d * c
        if refined:
            correcting += _REFINING * d * d * n
            anew += _REFINING * d * d * c
        return correcting < anew

    def absorb(
        self, rows: Tensor, residual: Callable[[], Tensor] | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """Correct R for rows added to gram.

        Parameters
        ----------
        rows : Tensor of shape (n, d)
        residual : callable, optional
            Gives Y − X W of shape (n, k), for `step`; called while the device is busy with the rows.

        Returns
        -------
        V, inner : Tensor of shape (d, n), Tensor of shape (n, k)
            For `step`; without a residual k = 0. None, with nothing done, if these rows are too far
            from everything learnt for an accurate correction.
        """
        whitened = self.whiten(rows.mT)
        leverage = whitened.square().sum(dim=0).max()
        errors = whitened.new_empty(len(rows), 0) if residual is None else residual().to(whitened)
        if not float(leverage) <= _MAX_LEVERAGE:
            return None
        image = whitened
        if self.rank:
            image = whitened - self._correction.mT @ (self._correction @ whitened)
        # Eq. (10) in the coordinates L⁻¹x, where R is I − QᵀQ and becomes I − QᵀQ − V Vᵀ
        with self._aside.work(image, whitened, errors):
            V, inner, self._status = woodbury_with(image, whitened.mT, errors)
            self._append(V.mT)
        return V, inner

    @property
    def sound(self) -> bool:
        """Whether the last correction came out right; waits for the device.

        It does in exact arithmetic. A correction that does not is of no use, nor is the factor with it.
        """
        self._aside.join()
        return self._status is None or not int(self._status)

    def step(self, V: Tensor, inner: Tensor) -> Tensor:
        """Return R_k Xᵀ (Y − X W) = L⁻ᵀ V C⁻¹ (Y − X W), for absorbed rows X.

        Parameters
        ----------
        V, inner
            From `absorb`, with a residual.

        Returns
        -------
        Tensor of shape (d, k)
        """
        if not inner.shape[1]:
            raise RuntimeError("the rows were absorbed without a residual")
        self._aside.join()
        if V.shape[1] < inner.shape[1]:
            return self.unwhiten(V) @ inner
        return self.unwhiten(V @ inner)

    def drop(self) -> None:
        """Forget factor and correction; the memory of the factor is kept for the next one."""
        self._factor = self._rows = self._status = None
        self.rank = 0

    def release(self) -> None:
        """Forget factor and correction and give their memory back."""
        self.drop()
        self._buffer = None

    @property
    def _triangle(self) -> Triangle:
        if self._factor is None:
            raise RuntimeError("there is no factor")
        return self._factor

    @property
    def _correction(self) -> Tensor:
        if self._rows is None:
            raise RuntimeError("there is no correction")
        self._aside.join()
        return self._rows[: self.rank]

    def _append(self, rows: Tensor) -> None:
        need = self.rank + len(rows)
        if self._rows is None or len(self._rows) < need:
            grown = rows.new_empty(max(64, 2 * self.rank, need), self.size)
            if self._rows is not None:
                grown[: self.rank] = self._correction
            self._rows = grown
        self._rows[self.rank : need] = rows
        self.rank = need
