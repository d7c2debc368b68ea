"""Many rows of an ill-conditioned problem: weights are corrected, looked at, and refined if need be."""

import numpy as np
import pytest
import torch

from acil.analytic import factor
from acil.analytic.following import Following
from acil.analytic.head import GramHead
from acil.analytic.linalg import woodbury_with
from acil.analytic.precision import PRECISIONS
from acil.analytic.solution import Solution
from strategies import relative

WIDTH, GAMMA = 600, 1e-4


def rows_of(n, seed):
    """Return rows whose matrix has κ of a few millions, most of it because no value is negative."""
    rows = np.random.default_rng(seed).normal(size=(n, WIDTH))
    return torch.from_numpy(np.abs(rows) * np.geomspace(1, 1e-2, WIDTH))


def labels_of(rows):
    return torch.arange(len(rows)) % 3


def head_of(*phases):
    """Return a head that has learnt rows with labels, phase by phase, with weights after each."""
    head = GramHead(WIDTH, PRECISIONS["float64"], torch.device("cpu"), GAMMA)
    head.grow(torch.empty(0, dtype=torch.int64), 3)
    for rows, labels in phases:
        head.learn([(rows, labels, None)], len(rows))
        head.coefficients()
    return head


@pytest.fixture
def looks(monkeypatch):
    """Collect what looks at weights find; the list can be given answers first."""
    found, answers = [], []
    usual = Solution.good_enough

    def good_enough(self, coef):
        found.append((self.factor.rank, answers.pop(0) if answers else usual(self, coef)))
        return found[-1][1]

    monkeypatch.setattr(Solution, "good_enough", good_enough)
    return found, answers


@pytest.mark.parametrize("answers", [[], [True, False]], ids=["as it is", "refined"])
def test_a_correction_by_many_rows_is_looked_at(looks, answers):
    found, given = looks
    given += answers
    base, new, test = rows_of(1800, 1), rows_of(90, 2), rows_of(50, 3)
    head = head_of((base, labels_of(base)), (new, labels_of(new)))
    assert head._solution.refine
    assert [rank for rank, _ in found] == [0, 90]
    joint = head_of((torch.cat([new, base]), torch.cat([labels_of(new), labels_of(base)])))
    scores, expected = (test @ part.coefficients()[0] for part in (head, joint))
    assert relative(scores.numpy(), expected.numpy()) <= 1e-9


def test_few_rows_are_refined_at_once(looks):
    found, _ = looks
    base, new = rows_of(1800, 1), rows_of(2, 2)
    head = head_of((base, labels_of(base)), (new, labels_of(new)))
    assert head._solution.factor.rank == 2
    assert [rank for rank, _ in found] == [0]


def test_rows_that_call_for_a_look_are_not_corrected_for_in_vain(looks, monkeypatch):
    found, _ = looks
    absorbed, usual = [], Following.absorb

    def absorb(self, rows, *rest):
        absorbed.append(len(rows))
        return usual(self, rows, *rest)

    monkeypatch.setattr(Following, "absorb", absorb)
    # At four rows for each dimension the least eigenvalue is looked at again.
    base, new = rows_of(4 * WIDTH - 90, 1), rows_of(90, 2)
    head_of((base, labels_of(base)), (new[:89], labels_of(new[:89])), (new[89:], labels_of(new[89:])))
    assert absorbed == [89]
    assert [rank for rank, _ in found] == [0, 89, 0]


def test_a_correction_that_did_not_come_out_right_is_solved_anew(monkeypatch):
    base, new, test = rows_of(1800, 1), rows_of(90, 2), rows_of(50, 3)
    head = head_of((base, labels_of(base)))

    def failed(image, whitened, residual):
        V, inner, _ = woodbury_with(image, whitened, residual)
        return 2 * V, inner, torch.tensor(17)

    with monkeypatch.context() as patched:
        patched.setattr(factor, "woodbury_with", failed)
        head.learn([(new, labels_of(new), None)], len(new))
    assert head._solution.factor.rank == 0
    joint = head_of((torch.cat([new, base]), torch.cat([labels_of(new), labels_of(base)])))
    scores, expected = (test @ part.coefficients()[0] for part in (head, joint))
    assert relative(scores.numpy(), expected.numpy()) <= 1e-9
