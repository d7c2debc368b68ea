"""The paper's recursion: its equations, and the safeguards around them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acil.core.recursion import Recursion
from acil.core.sums import PRECISIONS
from acil.errors import SingularMatrixError
from support.regressions import CPU, learn, samples, weights_for
from support.strategies import relative

pytestmark = pytest.mark.usefixtures("library")

GAMMA = 2.0
#: Between what blocks of d / 4 rows lose and what one block of all rows loses (see the test).
SPLIT = 1e-7


def new(d, c, gamma=GAMMA, precision="float64"):
    head = Recursion(d, PRECISIONS[precision], CPU, gamma)
    head.counts, head.class_weights = (
        torch.zeros(c, dtype=torch.int64),
        torch.zeros(c, dtype=torch.float64),
    )
    head.coef = head.coef.new_zeros(d, c)
    return head


def solution(rows, columns, c, gamma=GAMMA, weights=None):
    """R and W of Eq. (4) and (8) by NumPy."""
    rows, Y = rows.numpy(), np.eye(c)[columns.numpy()]
    w = np.ones(len(rows)) if weights is None else weights.numpy()
    A = (rows * w[:, None]).T @ rows + gamma * np.eye(rows.shape[1])
    return np.linalg.inv(A), np.linalg.solve(A, (rows * w[:, None]).T @ Y)


@given(
    d=st.integers(1, 30),
    n_base=st.integers(1, 60),
    n_next=st.integers(1, 60),
    c=st.integers(1, 5),
    seed=st.integers(0, 999),
    weighted=st.booleans(),
)
def test_base_and_next_phase_give_the_joint_inverse_and_weights(d, n_base, n_next, c, seed, weighted):
    rows, columns = samples(n_base + n_next, d, c, seed)
    weights = weights_for(len(rows), seed) if weighted else None
    head = new(d, c)
    for part in (slice(0, n_base), slice(n_base, None)):
        head = learn(head, rows[part], columns[part], None if weights is None else weights[part])
    R, W = solution(rows, columns, c, weights=weights)
    assert relative(head.R, R) <= 1e-9
    assert relative(head.coef + 1, W + 1) <= 1e-9
    assert torch.equal(head.R, head.R.T), "R must stay symmetric"
    assert head.counts.tolist() == np.bincount(columns.numpy(), minlength=c).tolist()


def test_eq_9_of_the_paper_for_a_phase_of_new_classes():
    # Eq. (9): W_k = [W − R_k XᵀX W | R_k XᵀY]
    rows, columns = samples(60, 10, 3)
    old = columns < 2
    head = learn(new(10, 2), rows[old], columns[old])
    W, X = head.coef.numpy().copy(), rows[~old].numpy()
    block = [(rows[~old], columns[~old], None)]
    head = head.learn(block, len(X), torch.tensor([0, 1]), 3)
    R = head.R.numpy()
    expected = np.column_stack([W - R @ X.T @ X @ W, R @ X.T @ np.ones(len(X))])
    assert relative(head.coef, expected) <= 1e-12
    assert relative(head.coef, solution(rows, columns, 3)[1]) <= 1e-12


def test_single_precision_is_as_good_as_its_digits():
    rows, columns = samples(200, 20, 3)
    head = new(20, 3, precision="float32")
    for start in range(0, 200, 50):
        head = learn(head, rows[start : start + 50].float(), columns[start : start + 50])
    assert head.R.dtype == head.coef.dtype == torch.float32
    assert relative(head.coef, solution(rows, columns, 3)[1]) <= 1e-4


def test_a_large_phase_after_a_tiny_base_is_learnt_in_small_blocks():
    # After one sample R is I/γ in all other directions: 8000 rows at once would be off by 8e-7, blocks
    # of d / 4 rows are off by 9e-10.
    rows, columns = samples(8001, 100, 4)
    rows[:, 0] += 10.0
    head = learn(learn(new(100, 4, 1e-5), rows[:1], columns[:1]), rows[1:], columns[1:])
    assert relative(head.coef, solution(rows, columns, 4, 1e-5)[1]) <= SPLIT


def test_rows_too_large_for_the_precision_are_refused_as_rows_to_learn():
    rows, columns = samples(100, 20, 3)
    head = learn(new(20, 3, precision="float32"), rows.float(), columns)
    with pytest.raises(SingularMatrixError, match="learnt"):
        learn(head, 1e5 * rows.float(), columns)


def test_diagnostics_follow_from_r():
    rows, columns = samples(60, 12, 3)
    head, (R, W) = learn(new(12, 3), rows, columns), solution(rows, columns, 3)
    values = np.linalg.eigvalsh(R)
    assert head.condition() == pytest.approx(values[-1] / values[0], rel=0.05)
    assert head.degrees_of_freedom() == pytest.approx(12 - GAMMA * np.trace(R), rel=1e-12)
    squares = ((np.eye(3)[columns.numpy()] - rows.numpy() @ W) ** 2).sum(axis=0)
    assert relative(head.residual_squares(), squares) <= 1e-11
    query = samples(7, 12, 3, seed=5)[0]
    expected = np.einsum("ij,jk,ik->i", query.numpy(), R, query.numpy())
    assert relative(head.leverage(query), expected) <= 1e-12
    assert not head.coefficients()[1].any()
