"""The attack: find single samples in sums over samples, or in the difference of two such sums.

Notes
-----
X, of shape (k, d), are the expanded rows of k samples; G = XᵀX and M = XᵀY are their sums. If the rows
are independent, they span the range of G, and xᵢᵀ G⁺ xⱼ is 1 for i = j and 0 otherwise. So in a basis
B of the range, with G = B Bᵀ, the samples are orthonormal vectors. G does not say which ones, but two
more things are known. Rows that come out of a ReLU have many exact zeros. And with the projection W of
the expansion, only few vectors of the range are relu(zᵀW) of any z. Each of the two singles samples out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor
from torch.nn import functional

from acil.core.expansion import Expansion

#: Starts without success after which the attack gives up, and starts in all. More would find more.
PATIENCE, STARTS = 16, 128
#: Steps of one start. Those that succeed take 10 to 30.
_STEPS = 40
#: The eigenvalues of k samples end in a fall to rounding, at least by this factor.
_FALL = 0.1
#: Share of a row that may lie outside the range of the sums: rounding, of float64 and of float32.
_OUTSIDE = (1e-9, 1e-4)
#: A vertex by chance has as many zeros as dimensions, less one; a sample has this share of all more.
_MORE_ZEROS = 0.05
#: A class membership that is computed from the sums is 0 or 1 for true samples, up to this.
_CERTAIN = 0.05
#: Entries above this share of the largest one are no rounding.
_ACTIVE = 1e-3


@dataclass(frozen=True)
class Recovered:
    """Samples found in sums."""

    rank: int | None  # of the sums, as far as rounding or noise lets it be seen; None if nobody looked
    rows: Tensor  # expanded, (recovered, d)
    columns: list[int]  # class of each


def recover(gram: Tensor, moment: Tensor, n_samples: int, expansion: Expansion) -> Recovered:
    """Find the samples that sums, both triangles of gram and in float64, are sums of.

    There are fewer samples than dimensions. Every row returned is one that the sums confirm: it lies in
    their range, has the form of an expanded row, and belongs to one class and no other.
    """
    d, linear = len(gram), linear_units(expansion)
    values, vectors = _largest(gram, min(n_samples + 8, d))
    rank = n_samples
    rounding = abs(float(values[rank] / values[rank - 1]))  # noise has no fall
    nothing = Recovered(rank, gram.new_zeros(0, d), [])
    if not (float(values[rank - 1]) > 0 and rounding < _FALL):
        return replace(nothing, rank=int((values > _FALL * values.abs().max()).sum()))
    basis = vectors[:, :rank] * values[:rank].sqrt()
    # xᵀ G⁺ M of x = B q is qᵀ (B⁺ M)
    classes = (vectors[:, :rank].T @ moment) / values[:rank].sqrt().unsqueeze(1)
    find = _finder(expansion, min(max(rounding, _OUTSIDE[0]), _OUTSIDE[1]))
    rest = torch.eye(rank, dtype=gram.dtype)
    generator, failures, starts = torch.Generator().manual_seed(0), 0, 0
    rows, columns = [], []
    # The coordinates of the sum of n samples have the square n: a class of one sample is that sample.
    alone = [q for q in classes.T if abs(float(q @ q) - 1) < _CERTAIN]
    q: Tensor | None
    while rest.shape[1] and failures < PATIENCE and starts < STARTS:
        starts += not alone
        if rest.shape[1] == 1:
            q, failures = rest[:, 0], PATIENCE
        else:
            q = alone.pop() if alone else find(basis[linear:], rest, generator)
        column = None if q is None else _class_of(q @ classes)
        if q is None or column is None:
            failures += 1
            continue
        row = basis @ q
        rows.append(row * torch.sign(row[linear:].sum()))
        columns.append(column)
        # What is left is orthogonal to what was found.
        rest = rest @ _complement(rest.T @ q)
        failures = 0
    return Recovered(rank, torch.stack(rows), columns) if rows else nothing


def backbone_features(rows: Tensor, expansion: Expansion) -> Tensor | None:
    """Return the features z behind expanded rows relu(zᵀW), up to their length, (n, in_features).

    None where fewer units are active than there are features.
    """
    W, features = projection_of(expansion), []
    if W is None:
        return rows
    if linear := linear_units(expansion):
        return rows[:, :linear]
    W = W.to(rows)
    for row in rows:
        # x_j = zᵀ w_j for every active unit j
        active = row > _ACTIVE * row.max()
        if expansion.activation != "relu" or int(active.sum()) < len(W):
            return None
        features.append(torch.linalg.lstsq(W[:, active].T, row[active, None]).solution[:, 0])
    z = torch.stack(features) if features else rows.new_zeros(0, len(W))
    # The bias tells the length, too.
    return z if expansion.bias is None else z[:, :-1] / z[:, -1:]


def linear_units(expansion: Expansion) -> int:
    """Return how many units, the first ones, are the features themselves."""
    return expansion.in_features if expansion.linear else 0


def projection_of(expansion: Expansion) -> Tensor | None:
    """Return W_fe, with the bias as the row of a last feature that is 1."""
    if expansion.projection is None or expansion.bias is None:
        return expansion.projection
    return torch.cat([expansion.projection, expansion.bias.unsqueeze(0)])


def recover_from_weights(
    before: Tensor, after: Tensor, expansion: Expansion
) -> tuple[int, Tensor | None]:
    """Find the one sample that was learnt between two sets of weights, (d, n_classes).

    Learning x of class y adds R x (y − Wᵀx)ᵀ to W. The right factor tells y and, up to its length, the
    scores of x: as many equations for x as there are classes. Returns the rank of the difference, which
    is the number of samples if there are more classes than that, and the expanded row if there was one
    sample and it could be found.
    """
    _, values, right = torch.linalg.svd(after - before, full_matrices=False)
    rank = int((values > 1e-9 * float(after.norm())).sum())
    W, n_classes, linear = projection_of(expansion), before.shape[1], linear_units(expansion)
    known = W is None or expansion.activation == "relu"
    if rank != 1 or not known or n_classes <= (expansion.in_features if W is None else len(W)):
        return rank, None
    v = right[0] * torch.sign(right[0][right[0].abs().argmax()])
    target = torch.zeros_like(v)
    target[int(v.argmax())] = 1.0
    if W is None:
        return rank, _solved(torch.cat([before, v.unsqueeze(0)]), target)[0]
    generator = torch.Generator().manual_seed(0)
    if linear:
        W = torch.cat([expansion.linear * torch.eye(len(W), linear).to(W), W], dim=1)
    W = W.to(before)
    always = torch.arange(W.shape[1]) < linear
    for _ in range(4 * PATIENCE):
        z = torch.randn(len(W), generator=generator, dtype=W.dtype)
        residual = 1.0
        for step in (0.1,) * 3 * _STEPS + (1.0,) * _STEPS:
            # With the active units as they are, the scores are linear in z.
            scores = (W * (always | ((z @ W) > 0))) @ before
            better, residual = _solved(torch.cat([scores, v.unsqueeze(0)]), target)
            z = z + step * (better - z)
        if residual < 1e-6:
            return rank, torch.where(always, z @ W, torch.relu(z @ W))
    return rank, None


def _solved(equations: Tensor, target: Tensor) -> tuple[Tensor, float]:
    """Return z, of all unknowns but the last, and what is left over."""
    solution = torch.linalg.lstsq(equations.T, target.unsqueeze(1)).solution[:, 0]
    return solution[:-1], float((solution @ equations - target).norm())


def _finder(expansion: Expansion, outside: float) -> Callable[..., Tensor | None]:
    """Return what finds the coordinates q, of shape (k,), of one sample, or None.

    It gets a basis, of shape (d, k), the directions that are left, of shape (k, m), and a generator.
    """
    W = projection_of(expansion)
    if W is not None and expansion.activation == "relu" and 4 * len(W) <= W.shape[1]:
        return partial(_by_projection, W.double(), outside)
    return _by_zeros


def _by_projection(
    W: Tensor, outside: float, basis: Tensor, rest: Tensor, generator: torch.Generator
) -> Tensor | None:
    """Find z such that relu(zᵀW) lies in the range.

    With the active units of the present z, x = D Wᵀ z is linear in z. The part of x outside the range is
    made smaller by a step of inverse iteration, whose shift is that part: (S + f B) z' = B z.
    """
    V = torch.linalg.qr(basis @ rest).Q
    z = torch.randn(len(W), generator=generator, dtype=W.dtype)
    f = 1.0
    for _ in range(_STEPS):
        active = (z @ W) > 0
        part = W[:, active]
        B, inside = part @ part.T, part @ V[active]
        S = B - inside @ inside.T
        f = float(z @ S @ z / (z @ B @ z))
        if f < outside * 1e-3:
            break
        z = torch.linalg.solve(S + max(f, 1e-12) * B, B @ z)
        z = z / z.norm()
    if f > outside:
        return None
    row = torch.relu(z @ W)
    q = rest @ torch.linalg.lstsq(basis @ rest, row.unsqueeze(1)).solution[:, 0]
    return functional.normalize(q, dim=0)


def _by_zeros(basis: Tensor, rest: Tensor, generator: torch.Generator) -> Tensor | None:
    """Find a row without negative entries that has many zeros: a vertex of the cone of such rows."""
    B = (basis @ rest).numpy()
    size = np.abs(B).max(axis=1)
    B = B[size > 1e-9 * size.max()]
    direction = torch.randn(B.shape[1], generator=generator, dtype=torch.float64).numpy()
    # min direction · q for B q ≥ 0, Σ B q = 1
    solution = linprog(
        direction,
        A_ub=-B,
        b_ub=np.zeros(len(B)),
        A_eq=B.sum(axis=0)[None],
        b_eq=[1.0],
        bounds=(None, None),
    )
    if solution.status != 0:
        return None
    row = B @ solution.x
    zeros = int((row < 1e-6 * row.max()).sum())
    if zeros < B.shape[1] + _MORE_ZEROS * len(B):
        return None
    return functional.normalize(rest @ torch.from_numpy(solution.x), dim=0)


def _class_of(memberships: Tensor) -> int | None:
    """Return the only class that a sample belongs to, or None if it is not clear."""
    memberships = memberships * torch.sign(memberships.sum())
    column = int(memberships.argmax())
    target = torch.zeros_like(memberships)
    target[column] = 1.0
    return column if float((memberships - target).abs().max()) < _CERTAIN else None


def _largest(matrix: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest eigenvalues of a symmetric matrix, falling, and their vectors."""
    d = len(matrix)
    if 4 * k > d:
        values, vectors = torch.linalg.eigh(matrix)
        return values.flip(0)[:k], vectors.flip(1)[:, :k]
    generator = torch.Generator().manual_seed(0)
    Q = torch.randn(d, k, generator=generator, dtype=matrix.dtype)
    for _ in range(3):
        Q = torch.linalg.qr(matrix @ Q).Q
    values, small = torch.linalg.eigh(Q.T @ matrix @ Q)
    return values.flip(0), (Q @ small).flip(1)


def _complement(vector: Tensor) -> Tensor:
    """Return an orthonormal basis, of shape (m, m − 1), of what is orthogonal to a vector."""
    basis: Tensor = torch.linalg.qr(vector.unsqueeze(1), mode="complete").Q
    return basis[:, 1:]
