"""The default solver: keep the sums, solve by Cholesky when weights are needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor

from acil.core import gcv
from acil.core.cholesky import Factor
from acil.core.linalg import largest_eigenvalue, mirror_, spread, symmetric_product
from acil.core.sums import Block, Precision, Sums, joined, weighted
from acil.errors import InputError, SingularMatrixError

#: Most rows that wait to be added to the sums together, and the same as a share of d.
_MAX_WAITING, _WAITING_SHARE = 512, 1 / 8
#: Width from which a choice of γ takes about a second on one core: few samples are no reason for one.
_SLOW_CHOICE = 1536
#: Share of the targets' squares that weights explain below which their products are made anew:
#: a correction rounds by the whole of the squares.
_LEAST_EXPLAINED = 1e-3
#: Relative residual at which the weights of mixed precision are as good as its sums.
_REFINED, _MAX_REFINEMENTS = 1e-8, 10
#: Largest estimate of the condition number for products in float32. Estimates are a little too low: with
#: this limit κ > 8.4e4, where eps32 · κ > 0.01, is always refused, and κ ≤ 5e4 never.
_MAX_FLOAT32_CONDITION = 6.5e4


@dataclass(frozen=True)
class Solution:
    """Weights, and what they came from."""

    gamma: float
    #: Of shape (d, n_classes), or (d + 1, n_classes) with the intercepts first.
    coef: Tensor
    #: Samples behind the choice of γ.
    n_samples: int
    #: None if it was given back.
    factor: Factor | None = None
    #: Whether the weights were corrected for samples that came after the factorization.
    corrected: bool = False
    #: Most degrees of freedom that γ was chosen for.
    freedom: float = math.inf


class Ridge:
    """W = argmin Σ w ‖y − Wᵀx − b‖² + γ‖W‖², from sums.

    Learning, forgetting and merging return another object, which has taken over the matrix of the sums:
    the former one then has nothing but the weights it was solved for. What an object does to itself is
    to solve, and to add samples that wait to the sums. If γ is None, every solution chooses it anew,
    with ``freedom`` as the share of `gcv.most_freedom`.
    """

    solver = "gram"

    def __init__(
        self,
        sums: Sums,
        precision: Precision,
        gamma: float | None,
        intercept: bool,
        freedom: float | None = None,
    ) -> None:
        self.sums, self.precision = sums, precision
        self.gamma, self.intercept, self.freedom = gamma, intercept, freedom
        self.solution: Solution | None = None
        #: Recent samples: to add many to the sums at once takes little more than to add one.
        self._waiting: tuple[Block, ...] = ()
        #: The weights of a solution and `products` of them, once they were asked for.
        self._products: tuple[Tensor, Tensor, Tensor] | None = None
        #: The sums with the numbers and weights of samples that wait.
        self._late: Sums | None = None
        #: A solution whose γ is kept for the next one: only few samples have come since.
        self._kept: Solution | None = None
        #: A lower bound of the least eigenvalue of gram + γI, which more samples can only raise.
        self._least = 0.0

    def __getstate__(self) -> dict[str, Any]:
        self.drop_factor()  # no copy carries what is derived from recent rows
        return self.__dict__

    @property
    def latest(self) -> Sums:
        """The sums, of which numbers and weights of samples have those that wait; not to be written."""
        return self.sums if self._late is None else self._late

    @property
    def counts(self) -> Tensor:
        """Number of samples of each class."""
        return self.latest.counts

    @property
    def class_weights(self) -> Tensor:
        """Sum of the sample weights of each class."""
        return self.latest.target_total

    def products(self) -> tuple[Tensor, Tensor]:
        """Return MᵀW and WᵀW in float64 on the CPU, where M = Σ w x yᵀ, centred with an intercept."""
        coef = self.solved().coef
        if self._products is None or self._products[0] is not coef:
            self.flush()
            sums, moment, W = self.sums, self.sums.moment, coef[int(self.intercept) :].double()
            if self.intercept:
                mean = sums.total / sums.total_weight
                moment = torch.addr(moment, mean, sums.target_total.to(mean), alpha=-1)
            self._products = coef, (moment.double().T @ W).cpu(), (W.T @ W).cpu()
        return self._products[1:]

    def learn(self, blocks: Iterable[Block], n_rows: int, places: Tensor, n_classes: int) -> Ridge:
        """Return the regression that has seen more samples.

        Few rows correct factor and weights, and wait to be added to the sums with others. More rows are
        added at once, and correct factor and weights only where that is cheaper than a new factor.

        The blocks have ``n_rows`` rows in all. To make room for ``n_classes``, the column of each class
        moves to its place in ``places``.
        """
        new = self._grown(places, n_classes)
        few = min(_MAX_WAITING, len(self.sums.moment) * _WAITING_SHARE)
        if not new._can_correct(n_rows):
            last, new.solution, new._kept = self.solution or self._kept, None, None
            slow = len(self.sums.moment) >= _SLOW_CHOICE
            if slow and last is not None and n_rows <= few and not self._is_due(last, n_rows):
                new._kept = replace(last, coef=last.coef[:0], factor=None)
        waiting = self.latest.n_samples - self.sums.n_samples
        if n_rows + waiting <= few:
            for rows, columns, weights in blocks:
                # Copies: without an expansion, rows may be memory of the caller.
                new._wait((rows.clone(), columns, weights))
        else:
            new._products = None
            new._write(lambda sums: sums.add(chain(joined(new._waiting), new._correcting(blocks))))
        # Now that it is known which classes the rows are of
        if new.solution is not None and new._is_due(new.solution):
            new.solution = None
        if new._kept is not None and new._is_due(new._kept):
            new._kept = None
        return new

    def forget(self, blocks: Iterable[Block], declared: Tensor) -> tuple[Ridge, Tensor]:
        """Return the regression that has never seen some samples, and which classes it has.

        ``declared`` of shape (n_classes,) marks classes to keep even without samples.
        """
        self.drop_factor()
        new = self.with_gamma(self.gamma)
        new._write(lambda sums: sums.add(blocks, sign=-1))
        kept = (new.counts > 0) | declared
        new.sums.keep(torch.nonzero(kept).flatten())
        return new, kept

    def merge(self, other: Sums, positions: Tensor, places: Tensor, n_classes: int) -> Ridge:
        """Return the regression that has seen other samples, too; their column i is ``positions[i]``."""
        self.flush()
        new = self._grown(places, n_classes)
        new.solution = new._kept = None
        new._write(lambda sums: sums.merge(other, positions))
        return new

    def regrouped(self, places: Tensor, n_classes: int) -> Ridge:
        """Return the regression whose column i is at ``places[i]``; columns of one place add up."""
        self.drop_factor()
        new = self._copy(self.sums.draft(places, n_classes))
        solution, new.solution, new._products = new.solution, None, None
        if n_classes != len(places):  # other targets may want another γ
            new._kept = None
        elif solution is not None:
            new.solution = replace(solution, coef=spread(solution.coef, places, n_classes))
        return new

    def with_gamma(self, gamma: float | None) -> Ridge:
        """Return the regression with another γ, or with the same one, to be solved anew."""
        new = self._copy(self.sums)
        new.gamma, new.solution, new._kept, new._least = gamma, None, None, 0.0
        return new

    def widened(self, size: int) -> Ridge:
        """Return the regression on rows of another width, of which all so far have 0 at the end."""
        self.flush()
        old = self.sums
        new = self._copy(old.widened(size))
        new.solution, new._kept, new._least = None, None, 0.0
        return new

    def clone(self) -> Ridge:
        """Return a regression with the same sums and weights that shares no memory to be written."""
        self.flush()
        new = self._copy(self.sums.clone())
        new.solution = self.solution and replace(self.solution, factor=None)
        return new

    def best_gamma(self, candidates: Tensor | None = None) -> float:
        """Return the best γ by generalized cross-validation over the sums."""
        self.drop_factor()
        if candidates is None:
            coarse = self.precision.products == torch.float32
            least = self._largest_eigenvalue() * 1.1 / _MAX_FLOAT32_CONDITION if coarse else 0.0
            return gcv.choose_gamma(self.sums, self.intercept, least, self.most_freedom())
        found = [(gcv.criterion(self.sums, g, self.intercept), g) for g in candidates.tolist()]
        if not math.isfinite(min(found)[0]):
            raise InputError(
                "No candidate for gamma can be judged: the model would fit its "
                f"{self.sums.n_samples} samples exactly. Offer larger ones, or learn more samples first."
            )
        return float(min(found)[1])

    def solve(self, like: Solution | None = None) -> Solution:
        """Solve from the sums alone; γ is that of a former solution, else fixed, else chosen anew."""
        like = like or self._kept
        gamma = self.gamma if like is None else like.gamma
        if gamma is None:
            gamma = self.best_gamma()
        self.drop_factor()
        right, mixed = gcv.right_hand_side(self.sums, self.intercept), self.precision.name == "mixed"
        try:
            solution = self._refined(gamma, right) if mixed else None
            if solution is None:
                factor = Factor(self.sums, gamma, self.intercept, right.dtype)
                solution = Solution(gamma, factor.solve(right), self.sums.n_samples, factor)
            if self.precision.products == torch.float32:
                self._require_float32_to_do(solution)
        except SingularMatrixError:
            if like is None or self.gamma is not None:
                raise
            self._kept = None
            return self.solve()  # samples that came since need a larger γ
        solution = replace(solution, freedom=self.most_freedom())
        if like is not None:  # a former γ is due for another choice when it was before
            solution = replace(solution, n_samples=like.n_samples, freedom=like.freedom)
        self.solution = solution
        return solution

    def solved(self) -> Solution:
        """Return the solution; solve if there is none."""
        return self.solution or self.solve()

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Return W of shape (d, n_classes) and the intercepts of shape (n_classes,)."""
        coef = self.solved().coef
        return (coef[1:], coef[0]) if self.intercept else (coef, coef.new_zeros(coef.shape[1]))

    def flush(self) -> None:
        """Add the samples that wait to the sums."""
        if self._waiting:
            self._write(lambda sums: sums.add(joined(self._waiting)))

    def drop_factor(self, memory: bool = False) -> None:
        """Drop the factor and every trace of recent rows; with ``memory``, give its memory back."""
        self.flush()
        self.solution = self.solution and replace(self.solution, factor=None)
        if memory:
            self.sums.matrix.spare = None

    def leverage(self, rows: Tensor) -> Tensor:
        """Return xᵀ R x of each row."""
        return self._factor().leverage(self._with_one(rows))

    def condition(self, more: Callable[[Tensor], Tensor] | None = None) -> float:
        """Estimate κ: the largest eigenvalue of gram + γI over the least one, centred if asked for.

        ``more`` maps a block to what is to be added to its image by the inverse, for the least one.
        """
        return self._condition(self.solved().gamma, self._factor(fresh=True), more)

    def degrees_of_freedom(self) -> float:
        """Return tr H, from 0 to the number of samples."""
        factor = self._factor()
        if not factor.knows_trace:
            factor = self._factor(fresh=True)
        return gcv.degrees_of_freedom(factor, self.solved().gamma)

    def residual_squares(self) -> Tensor:
        """Return Σ w (y_c − x w_c)² of each class."""
        self.flush()
        solution = self.solved()
        return gcv.residual_squares(solution.coef, self.sums, solution.gamma, self.intercept)

    def residual(self, gamma: float, coef: Tensor) -> Tensor:
        """Return how far weights are from solving the normal equations, of the shape of the weights."""
        sums, k = self.sums, int(self.intercept)
        image = symmetric_product(sums.gram, coef[k:]) + gamma * coef[k:]
        if k:
            first = sums.total @ coef[1:] + sums.total_weight * coef[0]
            image = torch.cat([first.unsqueeze(0), image + torch.outer(sums.total, coef[0])])
        return gcv.right_hand_side(sums, self.intercept) - image

    def _refined(self, gamma: float, right: Tensor) -> Solution | None:
        """Solve with a float32 factor of float64 sums; None if that does not get there."""
        sums = self.sums
        try:
            factor = Factor(sums, gamma, self.intercept, self.precision.products)
        except SingularMatrixError:
            return None
        coef, rest, previous = torch.zeros_like(right), right, math.inf
        for _ in range(_MAX_REFINEMENTS):
            coef = coef + factor.solve(rest).to(coef)
            rest = self.residual(gamma, coef)
            error = float(rest.norm() / right.norm())
            if error <= _REFINED:
                return Solution(gamma, coef, sums.n_samples, factor)
            if not error < previous / 2:
                return None
            previous = error
        return None

    def _largest_eigenvalue(self) -> float:
        gram = mirror_(self.sums.gram)
        return largest_eigenvalue(lambda block: gram @ block, gram)

    def _condition(
        self, gamma: float, factor: Factor, more: Callable[[Tensor], Tensor] | None = None
    ) -> float:
        least = factor.least_eigenvalue(more)
        if more is None:
            self._least = 0.9 * least  # the estimate comes from above
        if least <= 0:  # rounding has taken all of it
            return math.inf
        return max(1.0, (self._largest_eigenvalue() + gamma) / least)

    def _require_float32_to_do(self, solution: Solution) -> None:
        gamma, trace = solution.gamma, float(self.sums.gram.diagonal().sum())
        # The trace as the largest eigenvalue: often there is no need to look closer.
        if trace + gamma <= _MAX_FLOAT32_CONDITION * max(self._least, gamma) or solution.factor is None:
            return
        condition = self._condition(gamma, solution.factor)
        if condition > _MAX_FLOAT32_CONDITION:
            raise SingularMatrixError(
                f"The condition number of gram + γI is {condition:.2g}, too large for "
                f'dtype="{self.precision.name}" (γ = {gamma:g}): float32 products would leave an error '
                f"of about {condition * torch.finfo(torch.float32).eps:.1g}. Take a larger gamma, "
                'gamma="auto" or dtype="float64".'
            )

    def _factor(self, fresh: bool = False) -> Factor:
        """Return the factor, made again if it was given back or, if a fresh one is needed, corrected."""
        solution = self.solved()
        if solution.factor is None or (fresh and solution.factor.rank):
            solution = self.solve(solution)
        return cast(Factor, solution.factor)

    def _can_correct(self, n_rows: int) -> bool:
        """Say whether weights can be corrected for new rows, and that is cheaper than solving anew."""
        solution = self.solution
        if solution is None or solution.factor is None:
            return False
        due = self._is_due(solution, n_rows)
        return not due and solution.factor.worth_correcting(n_rows, len(self.sums.counts))

    def most_freedom(self) -> float:
        """Return the most degrees of freedom that a choice of γ may leave."""
        if self.freedom is None:
            return math.inf
        return gcv.most_freedom(self.latest.target_total, self.freedom)

    def _is_due(self, solution: Solution, n_rows: int = 0) -> bool:
        """Say whether γ, chosen for other samples than with these, is due for another choice."""
        if self.gamma is not None:
            return False
        if self.latest.n_samples + n_rows > 2 * solution.n_samples:
            return True
        if n_rows:  # of which classes they are is looked at afterwards
            return False
        d = len(self.sums.moment)
        now, then = min(self.most_freedom(), d), min(solution.freedom, d)
        return not then / 2 <= now <= then * 2

    def _correcting(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield blocks after correcting factor and weights for them, as long as that is possible."""
        for block in blocks:
            if self.solution is not None:
                self._correct(*self._weighted(block))
            yield block

    def _weighted(self, block: Block) -> tuple[Tensor, Tensor]:
        rows, targets, weights = block
        return weighted(self._with_one(rows), targets, weights, len(self.sums.counts))[:2]

    def _correct(self, X: Tensor, Y: Tensor, late: Sums | None = None) -> None:
        """Correct factor and weights; and products, given sums that have counted these rows."""
        solution, self.solution = self.solution, None
        if solution is None or solution.factor is None:
            return
        before = solution.coef
        X, Y = X.to(before), Y.to(before)
        residual = torch.addmm(Y, X, before, alpha=-1)
        # W += R_k Xᵀ (Y − X W), of which Eq. (9) is the case of new classes only
        updated = solution.factor.updated(X, residual)
        if updated is None:
            return
        factor, P, inner = updated
        P, inner = P.to(before), inner.to(before)
        coef = torch.addmm(before, P, inner)
        self.solution = replace(solution, factor=factor, coef=coef, corrected=True)
        if late is None or self._products is None or self._products[0] is not before:
            return
        (K, squares), k, targets = self._products[1:], int(self.intercept), [Y, Y]
        if float(K.trace()) < _LEAST_EXPLAINED * late.total_weight:
            return
        if k:  # less their means, before and after these rows
            means = (sums.target_total.to(Y) / sums.total_weight for sums in (self.latest, late))
            targets = [torch.addmm(Y, X[:, :1], mean.unsqueeze(0), alpha=-1) for mean in means]
        # As A W = M, Σ w y yᵀ − K grows by Eᵀ E' for the residuals E before and E' after.
        left = torch.addmm(residual, X @ P, inner, alpha=-1)
        K = K + (targets[0].T @ targets[1] - residual.T @ left).cpu().double()
        W, P = before[k:], P[k:]
        half = torch.addmm(W.T @ P, inner.T, P.T @ P, alpha=0.5) @ inner
        self._products = coef, K, squares + (half + half.T).cpu().double()

    def _wait(self, block: Block) -> None:
        """Learn a block that waits to be added to the sums."""
        late = self.latest.tallied(block)
        self._correct(*self._weighted(block), late)
        self._late, self._waiting = late, (*self._waiting, block)

    def _with_one(self, rows: Tensor) -> Tensor:
        return torch.cat([rows.new_ones(len(rows), 1), rows], dim=1) if self.intercept else rows

    def _write(self, write: Callable[[Sums], None]) -> None:
        """Write over the sums; samples that wait have to be among what is written."""
        sums = self.sums.draft()
        write(sums)
        self.sums, self._waiting, self._late = sums, (), None

    def _copy(self, sums: Sums) -> Ridge:
        new = Ridge.__new__(Ridge)
        new.__dict__.update(self.__dict__, sums=sums)
        return new

    def _grown(self, places: Tensor, n_classes: int) -> Ridge:
        """Return the regression with room for more classes."""
        if n_classes == len(places):
            return self._copy(self.sums)
        new = self._copy(self.sums.draft(places, n_classes))
        new._waiting = tuple((rows, places[c], weights) for rows, c, weights in self._waiting)
        if self._late is not None:
            new._late = self._late.draft(places, n_classes)
        if self.solution is not None:
            # A class without samples has the weights 0.
            coef = spread(self.solution.coef, places, n_classes)
            new.solution = replace(self.solution, coef=coef)
            new._products = None
        return new
