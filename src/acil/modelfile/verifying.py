"""Whether a model file is whole and its parts belong together: more than `load` needs to know."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import torch

from acil.analytic import Frozen, Recursion, Ridge
from acil.analytic.cholesky import cholesky_
from acil.consistency import impossible, least_left
from acil.errors import ACILError, SingularMatrixError
from acil.modelfile.header import checksum, opened
from acil.modelfile.saving import load

#: Error of solving, of the precision of the sums: rounding grows with √d. Mixed precision stops earlier.
_SOLVED, _SOLVED_MIXED = 100.0, 1e-7
#: Share of a class that rounding of the recursion may invent.
_RECURSION = {torch.float64: 1e-4, torch.float32: 0.5}


class Check(NamedTuple):
    """One thing that was looked at.

    Attributes
    ----------
    name : str
    ok : bool
    detail : str
        What was found.
    """

    name: str
    ok: bool
    detail: str


def verify(path: str | os.PathLike[str]) -> list[Check]:
    """Check everything that can be checked about a model file.

    Header and shapes; the checksum of each tensor; values and the expansion; and of a full model,
    whether its sums can be sums over samples, fit the counts of the classes, and give its weights.

    Parameters
    ----------
    path : str or path-like

    Returns
    -------
    list of Check
        It ends early where later checks need what has failed.

    Examples
    --------
    >>> import tempfile, os
    >>> from acil import ACILClassifier, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.acil")
    ...     save(ACILClassifier(expansion_size=8).fit([[0.0], [1.0]], [0, 1]), path)
    ...     all(check.ok for check in verify(path))
    True
    """
    checks = []
    for check in _checks(path):
        checks.append(check)
        # Sums and weights are looked at even if one of them is wrong.
        if not check.ok and check.name in ("header", "checksums", "values"):
            break
    return checks


def _checks(path: str | os.PathLike[str]) -> Iterator[Check]:
    try:
        with opened(path) as (file, header, layouts):
            number, classes = sum(header["counts"]), len(header["classes"])
            yield Check("header", True, f"{header['kind']}, {classes} classes, {number} samples")
            sums = header["checksums"]
            bad = [name for name in layouts if checksum(file.get_tensor(name)) != sums.get(name)]
            yield Check("checksums", not bad, f"differ: {', '.join(bad)}" if bad else ", ".join(layouts))
    except ACILError as error:
        yield Check("header", False, str(error))
        return
    try:
        clf = load(path, device="cpu")
    except ACILError as error:
        yield Check("values", False, str(error))
        return
    yield Check("values", True, "all finite; the expansion has its fingerprint")
    head = clf._state.model.head
    if isinstance(head, Frozen):
        return
    d = header["size"]
    yield Check("symmetry", True, f"one triangle of {d} x {d} is stored")
    if isinstance(head, Recursion):
        yield from _of_recursion(head)
        return
    if header["release"] is None or not header["release"]["private"]:
        yield from _of_sums(head)
    else:
        yield Check("sums", True, "noise was added for privacy: not compared with the counts")
    yield _of_weights(head)


def _of_sums(ridge: Ridge) -> Iterator[Check]:
    fits = bool(((ridge.counts > 0) == (ridge.weights > 0)).all())
    yield Check("counts", fits, "every class with samples has weight, no other has")
    fault = impossible(ridge)
    yield Check("sums", not fault, fault or "gram is positive definite; moment and counts belong to it")


def _of_weights(ridge: Ridge) -> Check:
    solution, d = ridge.solved(), len(ridge.sums.gram)
    size = (float(ridge.sums.gram.diagonal().sum()) + solution.gamma) * float(solution.coef.norm())
    error = float(ridge.residual(solution.gamma, solution.coef).norm()) / max(size, 1e-300)
    bound = _SOLVED * d**0.5 * torch.finfo(solution.coef.dtype).eps
    bound = _SOLVED_MIXED if ridge.precision.name == "mixed" else bound
    return Check("weights", error <= bound, f"solve the sums to {error:.1e}, at most {bound:.1e}")


def _of_recursion(head: Recursion) -> Iterator[Check]:
    lower = head.R.clone()
    try:
        cholesky_(lower, head.gamma)
    except SingularMatrixError:
        yield Check("rfaum", False, "not positive definite")
        return
    yield Check("rfaum", True, "positive definite")
    slack = _RECURSION[lower.dtype] * float(head.weights.max())
    fits = least_left(lower, head.coef, head.weights) >= -slack
    yield Check(
        "weights", fits, "coef and counts " + ("belong" if fits else "do not belong") + " to rfaum"
    )
