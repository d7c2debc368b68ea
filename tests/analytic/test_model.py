"""Expansion and head together, block by block."""

import numpy as np
import pytest
import torch

from acil.analytic import PRECISIONS, AnalyticModel, Expansion, FrozenHead, GramHead, RecursiveHead
from acil.analytic.model import balance_factors
from acil.errors import UnsupportedError
from strategies import relative

CPU = torch.device("cpu")


def model_of(size=20, n_features=5, c=3, solver="gram", precision="float64", balanced=False):
    expansion = Expansion.draw(n_features, size, "relu", seed=0)
    types = PRECISIONS[precision]
    if solver == "gram":
        head = GramHead(expansion.size, types, CPU, 1.0)
    else:
        head = RecursiveHead(expansion.size, types, CPU, 1.0)
    head.grow(torch.zeros(0, dtype=torch.int64), c)
    return AnalyticModel(expansion, head, types, CPU, balanced)


def samples(n=60, c=3, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(n, 5))), torch.from_numpy(rng.integers(0, c, n))


@pytest.mark.parametrize("solver", ["gram", "recursive"])
def test_blocks_of_any_size_give_the_same_scores(solver):
    X, columns = samples()
    scores = []
    for size in (60, 17, 1):
        model = model_of(solver=solver)
        model.learn(torch.split(X, size), columns, None, 60)
        scores.append(torch.cat(list(model.scores(torch.split(X, 13)))))
    assert scores[0].shape == (60, 3)
    assert relative(scores[1].numpy(), scores[0].numpy()) <= 1e-11
    assert relative(scores[2].numpy(), scores[0].numpy()) <= 1e-11


def test_scores_are_the_expanded_rows_times_the_weights():
    X, columns = samples()
    model = model_of()
    model.learn([X], columns, None, 60)
    coef, intercept = model.weights()
    assert coef.shape == (3, 20)
    expected = model.expansion(X) @ coef.T + intercept
    assert torch.allclose(next(iter(model.scores([X]))), expected, rtol=1e-12)


def test_rows_of_weight_zero_are_left_out_of_blocks():
    X, columns = samples()
    weights = torch.ones(60, dtype=torch.float64)
    weights[:20] = 0.0  # all of the first block, and part of the second
    weights[25] = 0.0
    model, plain = model_of(), model_of()
    model.learn(torch.split(X, 20), columns, weights, 60)
    kept = weights > 0
    plain.learn([X[kept]], columns[kept], None, int(kept.sum()))
    assert int(model.head.counts.sum()) == 39
    assert relative(model.weights()[0].numpy(), plain.weights()[0].numpy()) <= 1e-12


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("size", [10, 300, 3000])
def test_blocks_are_small_beside_the_sums_and_large_enough_for_speed(size, precision):
    model = model_of(size=size, precision=precision)
    number = PRECISIONS[precision].products.itemsize
    assert model.block_rows <= PRECISIONS[precision].max_block_rows
    assert 256 <= model.block_rows <= 2**25 / (size * number)


def test_balance_scales_by_mean_over_own_weight():
    factors = balance_factors(torch.tensor([1.0, 3.0, 0.0, 8.0], dtype=torch.float64))
    assert factors.tolist() == pytest.approx([4.0, 4 / 3, 1.0, 0.5])


def test_temperature_is_cached_until_something_changes():
    X, columns = samples()
    model = model_of()
    model.learn([X], columns, None, 60)
    first = model.temperature()
    assert model.temperature() == first
    model.learn([X * 3], columns.flip(0), None, 60)
    second = model.temperature()
    assert second != first
    model.select_gamma(torch.tensor([1e4]))
    assert model.temperature() != second


@pytest.mark.parametrize("solver", ["gram", "recursive"])
@pytest.mark.parametrize("balanced", [False, True])
def test_temperature_is_that_of_the_cross_validated_error(solver, balanced):
    X, columns = samples(200)
    model = model_of(solver=solver, balanced=balanced)
    model.learn([X], columns, None, 200)
    rows, Y = model.expansion(X).numpy(), np.eye(3)[columns.numpy()]
    if balanced:
        Y = Y * (200 / 3 / Y.sum(axis=0))
    A = rows.T @ rows + np.eye(20)
    H = rows @ np.linalg.solve(A, rows.T)
    error = np.mean((Y - H @ Y) ** 2) / (1 - np.trace(H) / 200) ** 2
    assert model.temperature() == pytest.approx(np.sqrt(6 * error) / np.pi, rel=1e-8)


def test_recursion_keeps_no_sums():
    model = model_of(solver="recursive")
    with pytest.raises(UnsupportedError, match='solver="gram"'):
        model.require_sums()


def test_frozen_heads_predict_and_refuse_the_rest():
    X, columns = samples()
    model = model_of()
    model.learn([X], columns, None, 60)
    coef, intercept = model.head.coefficients()
    frozen_head = FrozenHead(coef, intercept, model.head.counts, 1.0, model.temperature())
    frozen = AnalyticModel(model.expansion, frozen_head, model.precision, CPU)
    assert torch.equal(next(iter(frozen.scores([X]))), next(iter(model.scores([X]))))
    assert frozen.temperature() == model.temperature()
    for use in (
        lambda: frozen.learn([X], columns, None, 60),
        lambda: frozen.forget([X], columns, None),
        lambda: list(frozen.novelty([X])),
        lambda: frozen.require_sums(),
        lambda: frozen.select_gamma(None),
        lambda: frozen.merge(model, torch.arange(3)),
    ):
        with pytest.raises(UnsupportedError, match="inference"):
            use()
