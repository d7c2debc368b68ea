"""Row-major symmetric matrices of which the lower triangle is kept, and one thread for small work."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from scipy.linalg import blas, lapack
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
from torch import Tensor

#: Multiplications up to which a second thread saves little: docs/performance.md, "A busy machine".
SMALL = 2**24

Function = TypeVar("Function", bound=Callable[..., Any])


class _Mine(threading.local):
    """What this thread had before it was limited: threads of OpenMP and of MKL; None if it is not."""

    before: tuple[int, int] | None = None


_mine = _Mine()
# torch.set_num_threads also decides for threads that begin later. Its libraries have settings for one
# thread alone; where they cannot be reached, nothing is limited.
_library = ctypes.PyDLL(torch._C.__file__)
_set_openmp = getattr(_library, "omp_set_num_threads", None)
_set_mkl = getattr(_library, "MKL_Set_Num_Threads_Local", None)


@contextmanager
def threads_for(multiplications: float) -> Iterator[None]:
    """Compute in one thread what is too small to divide, anything else in as many as the caller has set.

    The innermost of nested ones counts. Other threads, and those that begin meanwhile, keep theirs.

    >>> with threads_for(1000):
    ...     torch.get_num_threads()
    1
    """
    small, before = multiplications <= SMALL, _mine.before
    if small == (before is not None) or _set_openmp is None:
        yield
    elif before is not None:
        _mine.before = None
        _set(*before)
        try:
            yield
        finally:
            _mine.before = before
            _set(1, 1)
    else:
        # The first call of torch in a thread sets them.
        threads = torch.get_num_threads()
        _mine.before = before = threads, _set(1, 1)
        try:
            yield
        finally:
            _set(*before)
            _mine.before = None


def sized(multiplications: Callable[..., float]) -> Callable[[Function], Function]:
    """Run a function in `threads_for` as many multiplications as are told by its arguments."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with threads_for(multiplications(*args, **kwargs)):
                return function(*args, **kwargs)

        return cast(Function, run)

    return decorate


def _set(openmp: int, mkl: int) -> int:
    """Set the threads of OpenMP and of MKL; return those of MKL before, 0 if they follow OpenMP's."""
    if _set_openmp is not None:
        _set_openmp(openmp)
    return 0 if _set_mkl is None else int(_set_mkl(mkl))


#: Limits of OpenBLAS are the process's: of two at once, the last one to end would stay.
_limiting = threading.Lock()


@contextmanager
def one_scipy_thread() -> Iterator[None]:
    """Have SciPy compute in one thread: threads of OpenBLAS that wait are busy, and gain little here."""
    with _limiting, _libraries().limit(limits=1, user_api="blas"):
        yield


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()  # which takes milliseconds to find them


def _is_intel() -> bool:
    facts = Path("/proc/cpuinfo")
    return facts.exists() and "GenuineIntel" in facts.read_text(encoding="utf-8")[:1000]


#: Width from which SciPy's OpenBLAS adds up, factorizes and inverts CPU tensors instead of torch's MKL.
#: On processors that are not Intel's it is the faster one there. Below, its threads and those of torch
#: are in each other's way, and on a busy machine it takes up to ten times as long.
SCIPY_FROM = math.inf if torch.backends.mkl.is_available() and _is_intel() else 4096  # type: ignore[no-untyped-call]

#: Width up to which it does so. On two threads its products with 15360 columns write beyond their buffer
#: (OpenBLAS 0.3.30; compare numpy issue 19685), and so does its factorization with 16384.
SCIPY_UP_TO = 12288

#: Columns of one panel: wide enough for full speed, narrow enough that the half of the diagonal blocks
#: that is computed for nothing stays small.
PANEL = 512
#: The same for XᵀX: columns of a product, and of the steps along the diagonal.
_GRAM_PANEL, _GRAM_STEP = 1024, 256
#: Widest matrix of which a copy costs little beside everything else.
_COPIED = 4096


@contextmanager
def plain_torch() -> Iterator[None]:
    """Leave inference mode, autocast and a default device, in which callers may extract features.

    Tensors made in the first cannot be written later, and the second rounds float32 to half precision.
    """
    with ExitStack() as modes:
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        if torch.empty(0).device.type != "cpu":  # sooner told than by torch.get_default_device
            modes.enter_context(torch.device("cpu"))
        yield


def panels(d: int, width: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield the first column of each panel, and the one after its last."""
    width = width or PANEL
    for start in range(0, d, width):
        yield start, min(start + width, d)


def lower_panels(matrix: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield the place of each panel of rows in a packed lower triangle, the rows, and which entries."""
    for start, stop in panels(len(matrix)):
        panel = matrix[start:stop, :stop]
        below = torch.ones_like(panel, dtype=torch.bool).tril(start)
        yield slice(start * (start + 1) // 2, stop * (stop + 1) // 2), panel, below


def pack_lower(matrix: Tensor) -> Tensor:
    """Return the lower triangle of a matrix row by row, of shape (d (d + 1) / 2,), on the CPU.

    >>> pack_lower(torch.tensor([[1.0, torch.nan], [2.0, 3.0]]))
    tensor([1., 2., 3.])
    """
    d = len(matrix)
    packed = torch.empty(d * (d + 1) // 2, dtype=matrix.dtype)
    for place, panel, below in lower_panels(matrix):
        packed[place] = panel[below].cpu()
    return packed


def unpack_lower_(packed: Tensor, matrix: Tensor) -> Tensor:
    """Fill the lower triangle of a matrix with what `pack_lower` has returned, in place."""
    for place, panel, below in lower_panels(matrix):
        panel[below] = packed[place].to(panel)
    return matrix


def _uses_scipy(matrix: Tensor) -> bool:
    fits = SCIPY_FROM <= len(matrix) <= SCIPY_UP_TO
    return fits and matrix.device.type == "cpu" and matrix.is_contiguous()


def _in_place(routine: Callable[..., Any], matrix: Tensor) -> Any:
    """Give a matrix to a routine of SciPy that overwrites it; return what else the routine returns."""
    # The libraries read memory by columns: our row-major lower triangle is an upper one to them.
    place = matrix.numpy().T
    result = routine(place)
    result, *rest = result if isinstance(result, tuple) else (result,)
    if result.ctypes.data != place.ctypes.data:
        # SciPy has worked on a copy.
        place[...] = result
    return rest


def _routine(name: str, matrix: Tensor, **options: Any) -> Callable[..., Any]:
    """Return a routine of BLAS or LAPACK for the type of a matrix."""
    full = {torch.float64: "d", torch.float32: "s"}[matrix.dtype] + name
    return partial(getattr(blas if name in ("syrk", "trsv") else lapack, full), **options)


@sized(lambda gram, rows, sign=1: rows.numel() * len(gram))
def add_gram_(gram: Tensor, rows: Tensor, sign: int = 1) -> Tensor:
    """Add ``sign · rowsᵀ rows`` to the lower triangle of a matrix, in place, at half the work.

    Products are computed in the precision of the rows, of shape (n, d), and added in that of the matrix.
    """
    if rows.dtype == gram.dtype and _uses_scipy(gram):
        syrk, columns = _routine("syrk", gram, overwrite_c=1), rows.contiguous().numpy().T
        _in_place(lambda place: syrk(float(sign), columns, 1.0, c=place), gram)
        return gram
    for start, stop in panels(gram.shape[0], _GRAM_PANEL):
        # On a CPU in narrow steps along the diagonal, to compute little for nothing. On a GPU each
        # product takes time of its own to start.
        for first, last in panels(stop - start, _GRAM_STEP if gram.device.type == "cpu" else None):
            here, there = slice(start + first, stop), slice(start + first, start + last)
            _add_product_(gram[here, there], rows[:, here].T, rows[:, there], sign)
        _add_product_(gram[stop:, start:stop], rows[:, stop:].T, rows[:, start:stop], sign)
    return gram


def _add_product_(block: Tensor, left: Tensor, right: Tensor, sign: int) -> None:
    if left.dtype == block.dtype:
        block.addmm_(left, right, alpha=sign)
    else:
        block.add_(left @ right, alpha=sign)


def mirror_(lower: Tensor) -> Tensor:
    """Copy the lower triangle of a matrix over its upper one, in place."""
    for start, stop in panels(lower.shape[0]):
        block = lower[start:stop, start:stop]
        lower[start:stop, start:stop] = block.tril() + block.tril(-1).mT
        lower[start:stop, stop:] = lower[stop:, start:stop].T
    return lower


@sized(lambda lower, right: len(lower) * right.numel())
def symmetric_product(lower: Tensor, right: Tensor) -> Tensor:
    """Return the product of a symmetric matrix, of which the lower triangle is given, with a matrix."""
    product = torch.zeros_like(right)
    for start, stop in panels(len(lower)):
        block, below = lower[start:stop, start:stop], lower[stop:, start:stop]
        product[start:stop].addmm_(block.tril() + block.tril(-1).mT, right[start:stop])
        product[start:stop].addmm_(below.T, right[stop:])
        product[stop:].addmm_(below, right[start:stop])
    return product


@sized(lambda matrix: len(matrix) ** 3 / 3)
def cholesky_in_place_(matrix: Tensor) -> Tensor:
    """Replace the lower triangle of A, row-major or column-major, by L with A = L Lᵀ.

    Returns 0, or the order of the first leading minor that is not positive, without waiting for a GPU.
    """
    if _uses_scipy(matrix):
        return torch.tensor(_in_place(_routine("potrf", matrix, overwrite_a=1, clean=0), matrix)[0])
    by_rows = matrix.stride(-1) == 1
    whole, status = matrix.mT if by_rows else matrix, matrix.new_empty((), dtype=torch.int32)
    torch.linalg.cholesky_ex(whole, upper=by_rows, out=(whole, status))
    return status


@sized(lambda lower, right, transposed=False: len(lower) * right.numel() / 2)
def solve_lower(lower: Tensor, right: Tensor, transposed: bool = False) -> Tensor:
    """Return L⁻¹ right, or L⁻ᵀ right, for ``right`` of shape (d, k) and the lower triangle L."""
    vector = right.numel() == len(lower) > 0 and lower.device.type == "cpu"
    if vector and not transposed and lower.is_contiguous():
        # In a stream. torch takes up to twice as long, only this way; SciPy starts no thread for it.
        solve = _routine("trsv", lower, lower=0, trans=1)
        return torch.from_numpy(solve(lower.numpy().T, right[:, 0].numpy())).unsqueeze(1)
    solution: Tensor = torch.linalg.solve_triangular(
        lower.mT if transposed else lower, right, upper=transposed
    )
    return solution


@sized(lambda lower: len(lower) ** 3 / 3)
def cholesky_inverse_(lower: Tensor) -> Tensor:
    """Replace L by the full symmetric matrix (L Lᵀ)⁻¹, in place."""
    if _uses_scipy(lower):
        _in_place(_routine("potri", lower, overwrite_c=1), lower)
    else:
        lower.copy_(torch.cholesky_inverse(lower))
    return mirror_(lower)


@sized(lambda lower, overwrite=False: len(lower) ** 3 / 3)
def squared_norm_of_inverse(lower: Tensor, overwrite: bool = False) -> float:
    """Return ‖L⁻¹‖² = tr (L Lᵀ)⁻¹; L is lost if it may be overwritten."""
    total = 0.0
    if _uses_scipy(lower) and (overwrite or len(lower) <= _COPIED):
        inverse = lower if overwrite else lower.clone()
        _in_place(_routine("trtri", inverse, overwrite_c=1), inverse)
        for start, stop in panels(len(lower)):
            total += float(inverse[start:stop, :stop].tril(start).square_().sum(dtype=torch.float64))
        return total
    # By panels of columns of the inverse, each of which starts at its diagonal
    for start, stop in panels(len(lower)):
        rest = lower[start:, start:]
        unit = torch.eye(len(rest), stop - start, dtype=lower.dtype, device=lower.device)
        total += float(solve_lower(rest, unit).square_().sum(dtype=torch.float64))
    return total


def largest_eigenvalue(multiply: Callable[[Tensor], Tensor], like: Tensor) -> float:
    """Estimate the largest eigenvalue of a symmetric positive definite operator, from below, to 1 %.

    It maps a Tensor of shape (d, k) to its image; ``like`` of shape (d, d) gives size, type and device.
    """
    d = len(like)

    def on_array(vector: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return multiply(torch.from_numpy(vector.reshape(d, -1)).to(like)).double().cpu().numpy()

    start = np.eye(d) if d < 3 else np.random.default_rng(0).normal(size=d)
    image = on_array(start)
    if not np.isfinite(image).all():
        return math.inf
    if d < 3:
        return float(np.linalg.eigvalsh(image).max())
    if not image.any():
        return 0.0
    operator = LinearOperator((d, d), matvec=on_array, dtype=np.float64)
    try:
        return float(eigsh(operator, k=1, v0=start, tol=1e-3, return_eigenvectors=False)[0])
    except ArpackError:  # of images of other vectors that are not finite
        return math.inf


def spread(matrix: Tensor, places: Tensor, n_columns: int) -> Tensor:
    """Return a copy with other columns: column i moves to ``places[i]``, where several are added up.

    >>> spread(torch.tensor([[1.0, 2.0]]), torch.tensor([0, 2]), 3)
    tensor([[1., 0., 2.]])
    >>> spread(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([1, 0, 1]), 2)
    tensor([[2., 4.]])
    """
    wider, k = matrix.new_zeros(*matrix.shape[:-1], n_columns), matrix.shape[-1]
    if torch.equal(places, torch.arange(k)):
        # New ones come last, as in most phases: no indices have to travel to a GPU.
        wider[..., :k] = matrix
    else:
        wider.index_add_(-1, places.to(matrix.device), matrix)
    return wider
