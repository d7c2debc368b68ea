"""Dense linear algebra on symmetric matrices of which only the lower triangle is kept.

All matrices are row-major. torch does the work, by panels where it has no routine for symmetric
matrices; on CPUs that its own library is slow on, SciPy's ``syrk``, ``potrf`` and ``potri`` do it, in
place on the memory of the torch tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from scipy.linalg import blas, lapack
from torch import Tensor

from acil.errors import SingularMatrixError


def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8")[:1000]
    except OSError:
        return False


#: Whether torch's own library is the faster one on this CPU. It is MKL, which is at its best on Intel;
#: elsewhere SciPy's OpenBLAS is. Never both in turn: the threads of one library go on waiting for work
#: for a while, in the way of the other's (measured: a solve took twice as long after a foreign factor).
_MKL_AT_HOME = bool(torch.backends.mkl.is_available()) and _is_intel()  # type: ignore[no-untyped-call]

_PREFIX = {torch.float64: "d", torch.float32: "s"}
#: Columns of one panel. Wide enough for full speed, narrow enough that the half of the diagonal
#: blocks that is computed in vain stays small.
_PANEL = 512
#: The same where each step costs time of its own, and all diagonal blocks are taken in one
_GPU_PANEL = 2048
#: Columns of one product of rowsᵀ rows, and of those in its block on the diagonal.
_GRAM_PANEL, _GRAM_STEP = 1024, 256
#: Steps of the eigenvalue estimate
_MIN_STEPS, _MAX_STEPS = 3, 20


def add_gram_(gram: Tensor, rows: Tensor, sign: int = 1) -> Tensor:
    """Add ``sign · rowsᵀ rows`` to the lower triangle of a matrix, in place, at half the work.

    Parameters
    ----------
    gram : Tensor of shape (d, d), row-major
        The upper triangle is neither read nor kept.
    rows : Tensor of shape (n, d)
        May be of lower precision than ``gram``: products are then computed in the precision of
        the rows and added in that of the matrix.
    sign : {1, -1}
    """
    if rows.dtype == gram.dtype and _through_scipy(gram):
        # BLAS reads memory by columns: our row-major lower triangle is its upper one.
        syrk = getattr(blas, _PREFIX[gram.dtype] + "syrk")
        columns = rows.contiguous().numpy().T
        by_columns = not gram.is_contiguous()
        c = gram.numpy() if by_columns else gram.numpy().T
        result = syrk(float(sign), columns, beta=1.0, c=c, overwrite_c=1, lower=by_columns)
        if result.ctypes.data != c.ctypes.data:
            # SciPy works on a copy of memory that it does not like.
            c[...] = result
        return gram
    for start, stop in _panels(gram.shape[0], _GRAM_PANEL):
        if gram.device.type != "cpu":
            # Each product takes time of its own to start.
            _add_product_(gram, rows, slice(start, gram.shape[0]), slice(start, stop), sign)
            continue
        # On the diagonal in narrow steps: half of what is computed there is computed in vain.
        for first, last in _panels(stop - start, _GRAM_STEP):
            _add_product_(
                gram, rows, slice(start + first, stop), slice(start + first, start + last), sign
            )
        _add_product_(gram, rows, slice(stop, gram.shape[0]), slice(start, stop), sign)
    return gram


def _add_product_(gram: Tensor, rows: Tensor, here: slice, there: slice, sign: int) -> None:
    """Add a block of ``sign · rowsᵀ rows``, in the precision of the matrix."""
    block, left, right = gram[here, there], rows[:, here].T, rows[:, there]
    if rows.dtype == gram.dtype:
        block.addmm_(left, right, alpha=sign)
    else:
        block.add_(left @ right, alpha=sign)


def symmetric_matmul(lower: Tensor, right: Tensor) -> Tensor:
    """Multiply a symmetric matrix, given by its lower triangle, with a matrix.

    Parameters
    ----------
    lower : Tensor of shape (d, d)
    right : Tensor of shape (d, k)

    Returns
    -------
    Tensor of shape (d, k)
    """
    if lower.device.type != "cpu":
        return symmetric_matmul_by_tiles(lower, right, _GPU_PANEL)
    product = torch.zeros_like(right)
    for start, stop in _panels(lower.shape[0]):
        product[start:stop].addmm_(_mirrored(lower[start:stop, start:stop]), right[start:stop])
        _add_below_(product, lower, right, start, stop)
    return product


def symmetric_matmul_by_tiles(lower: Tensor, right: Tensor, side: int) -> Tensor:
    """Do as `symmetric_matmul`, all tiles on the diagonal at once, in few and large steps.

    Parameters
    ----------
    lower : Tensor of shape (d, d)
    right : Tensor of shape (d, k)
    side : int
        Of the tiles.
    """
    d = lower.shape[0]
    whole = d // side * side
    product = torch.empty_like(right)
    product[:whole] = _diagonal_product(lower[:whole, :whole], right[:whole], side)
    # What is left at the end of the diagonal
    product[whole:] = _diagonal_product(lower[whole:, whole:], right[whole:], d - whole)
    for start, stop in _panels(d, side):
        _add_below_(product, lower, right, start, stop)
    return product


def _diagonal_product(lower: Tensor, right: Tensor, side: int) -> Tensor:
    """Multiply the tiles on the diagonal of a symmetric matrix, of d / side tiles, with a matrix."""
    if not lower.numel():
        return right
    tiles = lower.view(-1, side, len(lower) // side, side).diagonal(dim1=0, dim2=2)
    tiles = tiles.movedim(-1, 0)
    known = torch.ones(side, side, dtype=torch.bool, device=lower.device).tril_()
    full = torch.where(known, tiles, tiles.mT)
    return (full @ right.view(-1, side, right.shape[1])).flatten(0, 1)


def _add_below_(product: Tensor, lower: Tensor, right: Tensor, start: int, stop: int) -> None:
    """Add what the columns start … stop below the diagonal, and their mirror image, contribute."""
    below = lower[stop:, start:stop]
    product[stop:].addmm_(below, right[start:stop])
    product[start:stop].addmm_(below.T, right[stop:])


def mirror_(lower: Tensor) -> Tensor:
    """Copy the lower triangle of a matrix over its upper one, in place."""
    for start, stop in _panels(lower.shape[0]):
        lower[start:stop, start:stop] = _mirrored(lower[start:stop, start:stop])
        lower[start:stop, stop:] = lower[stop:, start:stop].T
    return lower


def cholesky_(matrix: Tensor, gamma: float) -> Tensor:
    """Factorize the symmetric matrix of a lower triangle as L Lᵀ, in place, or say why not.

    Parameters
    ----------
    matrix : Tensor of shape (d, d), row-major or, on a GPU, column-major
        Lower triangle of gram + γI; holds L afterwards (its upper triangle is unspecified).
    gamma : float
        The γ already added to the diagonal, for the error message.

    Raises
    ------
    SingularMatrixError
        If a pivot is not positive, or so small that rounding alone could have made it. Nothing is
        ever added to the diagonal to get through.
    """
    require_positive(matrix, gamma, factorize_(matrix))
    return matrix


def factorize_(matrix: Tensor) -> Tensor:
    """Factorize as `cholesky_` does, without a look at the result, and so without waiting for it.

    Returns
    -------
    Tensor of shape (3,), float64
        For `require_positive`.
    """
    # In place: the diagonal will not be there afterwards.
    scale = matrix.diagonal().max()
    # The libraries work by columns: a row-major lower triangle is an upper one to them.
    turned = matrix.stride(-1) == 1
    if turned and _through_scipy(matrix):
        potrf = getattr(lapack, _PREFIX[matrix.dtype] + "potrf")
        _, info = potrf(matrix.numpy().T, lower=0, overwrite_a=1, clean=0)
        status = torch.tensor(info)
    else:
        whole, status = matrix.mT if turned else matrix, matrix.new_empty((), dtype=torch.int32)
        torch.linalg.cholesky_ex(whole, upper=turned, out=(whole, status))
    return torch.stack([part.double() for part in (scale, status, matrix.diagonal().min())])


def require_positive(factor: Tensor, gamma: float, pivots: Tensor) -> float:
    """Return the smallest pivot of a factorization; raise if it is not more than rounding.

    Parameters
    ----------
    factor : Tensor of shape (d, d)
        L in the lower triangle.
    gamma : float
        For the error message.
    pivots : Tensor of shape (3,)
        Largest element of the diagonal of the matrix that was factorized; order of its first leading
        minor that is not positive, 0 if there is none; smallest element of the diagonal of L.

    Raises
    ------
    SingularMatrixError
        See `cholesky_`.
    """
    d = factor.shape[0]
    scale, failed, smallest = pivots.tolist()
    if failed:
        raise _singular(factor, gamma, f"pivot {failed:.0f} of {d} is not positive")
    # Pivots are squared diagonal entries of L. Rounding in the sums and in the factorization grows
    # about as √d, so a pivot below this bound is noise, whatever its sign.
    pivot: float = smallest**2
    noise = math.sqrt(d) * torch.finfo(factor.dtype).eps * scale
    if not pivot > noise:
        reason = f"its smallest pivot is {pivot:.3g}, no more than rounding noise ({noise:.3g})"
        raise _singular(factor, gamma, reason)
    return pivot


def cholesky_solve(factor: Tensor, right: Tensor) -> Tensor:
    """Solve L Lᵀ Z = right.

    Parameters
    ----------
    factor : Tensor of shape (d, d)
        L in the lower triangle; the upper triangle is not read.
    right : Tensor of shape (d, k)
    """
    return solve_lower_transposed(factor, solve_lower(factor, right))


def solve_lower(factor: Tensor, right: Tensor) -> Tensor:
    """Solve L Z = right for a lower-triangular L."""
    solution: Tensor = torch.linalg.solve_triangular(factor, right, upper=False)
    return solution


def solve_lower_transposed(factor: Tensor, right: Tensor) -> Tensor:
    """Solve Lᵀ Z = right for a lower-triangular L."""
    solution: Tensor = torch.linalg.solve_triangular(factor.mT, right, upper=True)
    return solution


def woodbury(RXt: Tensor, X: Tensor, sign: int = 1) -> tuple[Tensor, Tensor]:
    """Update R = A⁻¹ after ``sign · XᵀX`` was added to A, without touching a d × d matrix.

    With S = I + sign · X R Xᵀ = C Cᵀ and V = R Xᵀ C⁻ᵀ, the paper's Eq. (10) reads
    R_k = R − sign · V Vᵀ, and the gain in Eq. (9) is R_k Xᵀ = V C⁻¹.

    Parameters
    ----------
    RXt : Tensor of shape (d, n)
        R Xᵀ.
    X : Tensor of shape (n, d)
    sign : {1, -1}
        1 when rows were added, −1 when they were removed.

    Returns
    -------
    V : Tensor of shape (d, n)
    C : Tensor of shape (n, n), lower triangular

    Raises
    ------
    SingularMatrixError
        If rows are removed whose removal leaves no positive definite matrix.
    """
    C, status = _woodbury_factor(RXt, X, sign)
    if int(status):
        raise SingularMatrixError(
            "These rows cannot be removed: the matrix would no longer be positive definite. "
            "They were not all learnt by this model."
        )
    # V = R Xᵀ C⁻ᵀ, from C Vᵀ = (R Xᵀ)ᵀ
    return solve_lower(C, RXt.mT).mT, C


def woodbury_with(RXt: Tensor, X: Tensor, residual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return V of `woodbury` after rows were added, and C⁻¹ residual, without waiting for the device.

    Parameters
    ----------
    RXt : Tensor of shape (d, n)
    X : Tensor of shape (n, d)
    residual : Tensor of shape (n, k)

    Returns
    -------
    V : Tensor of shape (d, n)
    inner : Tensor of shape (n, k)
    status : Tensor
        A number on the device that is 0 if they are right.
    """
    C, status = _woodbury_factor(RXt, X, 1)
    # Both in one: a solution takes many small steps, however few columns there are.
    both = solve_lower(C, torch.cat([RXt.mT, residual], dim=1))
    return both[:, : X.shape[1]].mT, both[:, X.shape[1] :], status


def _woodbury_factor(RXt: Tensor, X: Tensor, sign: int) -> tuple[Tensor, Tensor]:
    """Return C of `woodbury` and a number on the device that is 0 if there is one."""
    S = (X @ RXt).mul_(sign)
    S.diagonal().add_(1.0)
    C, status = torch.linalg.cholesky_ex(S)
    return C, status


def cholesky_inverse_(factor: Tensor) -> Tensor:
    """Replace L by the full symmetric matrix (L Lᵀ)⁻¹, in place."""
    if _through_scipy(factor):
        potri = getattr(lapack, _PREFIX[factor.dtype] + "potri")
        potri(factor.numpy().T, lower=0, overwrite_c=1)
    else:
        factor.copy_(torch.cholesky_inverse(factor))
    return mirror_(factor)


def trace_of_inverse(factor: Tensor) -> float:
    """Return tr (L Lᵀ)⁻¹ = ‖L⁻¹‖² by panels of columns, each of which starts at its diagonal."""
    d, total = factor.shape[0], 0.0
    for start, stop in _panels(d):
        unit = torch.zeros(d - start, stop - start, dtype=factor.dtype, device=factor.device)
        unit.diagonal().fill_(1.0)
        total += float(solve_lower(factor[start:, start:], unit).square().sum(dtype=torch.float64))
    return total


def largest_eigenvalue(multiply: Callable[[Tensor], Tensor], start: Tensor) -> float:
    """Estimate the largest eigenvalue of a symmetric positive definite operator from below.

    Block Lanczos with full orthogonalization: the best estimate in the space of start, A start, A² start
    … until another step moves it by less than 1 %, but at least three and at most twenty steps.

    Parameters
    ----------
    multiply : callable
        Maps a Tensor of shape (d, k) to its image.
    start : Tensor of shape (d, k)
        Starting block, for example random.
    """
    basis = torch.linalg.qr(start).Q
    images = block = multiply(basis)
    value = 0.0
    for step in range(_MAX_STEPS):
        projected = basis.mT @ images
        previous, value = value, float(torch.linalg.eigvalsh((projected + projected.mT) / 2).max())
        room = min(basis.shape[0] - basis.shape[1], block.shape[1])
        if room == 0 or (step >= _MIN_STEPS and value <= 1.01 * previous):
            break
        # Twice, because once leaves rounding errors along the old directions
        fresh = block[:, :room]
        for _ in range(2):
            fresh = torch.linalg.qr(fresh - basis @ (basis.mT @ fresh)).Q
        block = multiply(fresh)
        basis, images = torch.cat([basis, fresh], dim=1), torch.cat([images, block], dim=1)
    return value


def _through_scipy(matrix: Tensor) -> bool:
    return matrix.device.type == "cpu" and not _MKL_AT_HOME


def _panels(d: int, width: int | None = None) -> list[tuple[int, int]]:
    width = width or _PANEL
    return [(start, min(start + width, d)) for start in range(0, d, width)]


def _mirrored(block: Tensor) -> Tensor:
    """Return the full symmetric block of a block's lower triangle."""
    return block.tril() + block.tril(-1).mT


def _singular(matrix: Tensor, gamma: float, reason: str) -> SingularMatrixError:
    dtype = str(matrix.dtype).removeprefix("torch.")
    return SingularMatrixError(
        f"gram + γI is not positive definite to working precision (γ = {gamma:g}, {dtype}, "
        f"{matrix.shape[0]} x {matrix.shape[0]}): {reason}. Take a larger gamma, "
        'gamma="auto", dtype="float64", a narrower expansion or more samples.'
    )
