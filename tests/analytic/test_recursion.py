"""The paper's recursion: its equations, and the safeguards around them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acil.analytic import PRECISIONS, RecursiveHead
from acil.errors import InputError, SingularMatrixError
from strategies import EPS64, relative

CPU = torch.device("cpu")
GAMMA = 2.0
#: Between what blocks of d / 4 rows lose and what one block of all rows loses (see the test).
SPLIT = 1e-7


def head_of(d, c, gamma=GAMMA, precision="float64"):
    head = RecursiveHead(d, PRECISIONS[precision], CPU, gamma)
    head.grow(torch.zeros(0, dtype=torch.int64), c)
    return head


def samples(n, d, c, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(n, d))), torch.from_numpy(rng.integers(0, c, n))


def block(rows, columns, weights=None):
    return [(rows, columns, weights)]


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
    rng = np.random.default_rng(seed + 1)
    weights = torch.from_numpy(rng.uniform(0.2, 3, len(rows))) if weighted else None
    head = head_of(d, c)
    for part in (slice(0, n_base), slice(n_base, None)):
        share = None if weights is None else weights[part]
        head.learn(block(rows[part], columns[part], share), len(columns[part]))
    R, W = solution(rows, columns, c, weights=weights)
    assert relative(head.rfaum.numpy(), R) <= 1e-9
    assert relative(head.coef.numpy() + 1, W + 1) <= 1e-9
    assert torch.equal(head.rfaum, head.rfaum.T), "R must stay symmetric"
    assert head.counts.tolist() == np.bincount(columns.numpy(), minlength=c).tolist()


def test_new_classes_start_from_zero_weights():
    rows, columns = samples(60, 10, 3)
    head = head_of(10, 2)
    old = columns < 2
    head.learn(block(rows[old], columns[old]), int(old.sum()))
    before = head.coef.clone()
    head.grow(torch.tensor([0, 1]), 3)
    assert torch.equal(head.coef[:, :2], before)
    assert not head.coef[:, 2].any()
    head.learn(block(rows[~old], columns[~old]), int((~old).sum()))
    assert relative(head.coef.numpy(), solution(rows, columns, 3)[1]) <= 1e-12


def test_eq_9_of_the_paper_for_a_phase_of_new_classes():
    # Eq. (9): W_k = [W − R_k XᵀX W | R_k XᵀY]
    rows, columns = samples(60, 10, 3)
    old = columns < 2
    head = head_of(10, 3)
    head.learn(block(rows[old], columns[old]), int(old.sum()))
    W = head.coef.numpy()[:, :2].copy()
    X = rows[~old].numpy()
    head.learn(block(rows[~old], columns[~old]), int((~old).sum()))
    R = head.rfaum.numpy()
    expected = np.column_stack([W - R @ X.T @ X @ W, R @ X.T @ np.ones(len(X))])
    assert relative(head.coef.numpy(), expected) <= 1e-12


@given(seed=st.integers(0, 999), n_gone=st.integers(1, 30))
def test_forgetting_undoes_learning(seed, n_gone):
    rows, columns = samples(60, 12, 3, seed)
    head = head_of(12, 3)
    head.learn(block(rows, columns), 60)
    head.forget(block(rows[:n_gone], columns[:n_gone]))
    R, W = solution(rows[n_gone:], columns[n_gone:], 3)
    assert relative(head.rfaum.numpy(), R) <= 1e-9
    assert relative(head.coef.numpy(), W) <= 1e-9
    assert int(head.counts.sum()) == 60 - n_gone


def test_impossible_forgetting_leaves_everything_as_it_was():
    rows, columns = samples(60, 12, 3)
    head = head_of(12, 3)
    head.learn(block(rows, columns), 60)
    before = [t.clone() for t in (head.rfaum, head.coef, head.counts, head.weights)]
    blocks = block(rows[:5], columns[:5]) + block(1e3 * rows[5:6], columns[5:6])
    with pytest.raises(InputError, match="positive definite"):
        head.forget(blocks)
    after = (head.rfaum, head.coef, head.counts, head.weights)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_large_batches_lose_nothing():
    # 4000 rows at once into width 100, tiny γ: R = I/γ would lose everything here.
    rows, columns = samples(8000, 100, 4)
    head = head_of(100, 4, gamma=1e-4)
    head.learn(block(rows[:4000], columns[:4000]), 4000)
    head.learn(block(rows[4000:], columns[4000:]), 4000)
    assert relative(head.coef.numpy(), solution(rows, columns, 4, 1e-4)[1]) <= 1e-10


def test_a_large_phase_after_a_tiny_base_is_learnt_in_small_blocks():
    # After one sample R is I/γ in all other directions: 8000 rows at once would be off by 8e-7, blocks
    # of d / 4 rows are off by 9e-10.
    rows, columns = samples(8001, 100, 4)
    rows[:, 0] += 10.0
    head = head_of(100, 4, gamma=1e-5)
    head.learn(block(rows[:1], columns[:1]), 1)
    head.learn(block(rows[1:], columns[1:]), 8000)
    assert relative(head.coef.numpy(), solution(rows, columns, 4, 1e-5)[1]) <= SPLIT


def test_a_singular_base_phase_is_an_error():
    rows, columns = samples(5, 12, 3)
    with pytest.raises(SingularMatrixError, match="γ = 0"):
        head_of(12, 3, gamma=0.0).learn(block(rows, columns), 5)


def test_diagnostics_follow_from_r():
    rows, columns = samples(60, 12, 3)
    head = head_of(12, 3)
    head.learn(block(rows, columns), 60)
    R, W = solution(rows, columns, 3)
    values = np.linalg.eigvalsh(R)
    assert values[-1] / values[0] / 2 <= head.condition() <= 2 * values[-1] / values[0]
    assert head.trace_of_inverse() == pytest.approx(np.trace(R), rel=1e-12)
    assert relative(head.moment().numpy(), rows.numpy().T @ np.eye(3)[columns.numpy()]) <= 1e-11
    query = samples(7, 12, 3, seed=5)[0]
    expected = np.einsum("ij,jk,ik->i", query.numpy(), R, query.numpy())
    assert relative(head.novelty(query).numpy(), expected) <= 1e-12
    coef, intercept = head.coefficients()
    assert relative(coef.numpy(), W) <= 1e-12
    assert not intercept.any()


def test_a_thousand_single_samples_drift_by_rounding_only():
    rows, columns = samples(1030, 20, 4)
    head = head_of(20, 4)
    head.learn(block(rows[:30], columns[:30]), 30)
    for i in range(30, 1030):
        head.learn(block(rows[i : i + 1], columns[i : i + 1]), 1)
    R, W = solution(rows, columns, 4)
    assert relative(head.coef.numpy(), W) <= 1000 * 10 * EPS64
    assert relative(head.rfaum.numpy(), R) <= 1000 * 10 * EPS64


def test_keeping_classes_keeps_their_columns():
    rows, columns = samples(60, 12, 3)
    head = head_of(12, 3)
    head.learn(block(rows, columns), 60)
    coef, counts = head.coef.clone(), head.counts.clone()
    head.keep(torch.tensor([0, 2]))
    assert torch.equal(head.coef, coef[:, [0, 2]])
    assert torch.equal(head.counts, counts[[0, 2]])
