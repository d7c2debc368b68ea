"""Expansion and regression together, block by block."""

import math

import numpy as np
import pytest
import torch

from acil.analytic import PRECISIONS, AnalyticModel, Expansion, Frozen, Recursion, Ridge, Sums
from acil.calibration import estimated_temperature, relative_leverage
from acil.errors import InterruptedModelError, UnsupportedError
from acil.scores import MIXERS, balance_factors
from regressions import CPU, samples, weights_for
from strategies import relative

SOLVERS = pytest.mark.parametrize("solver", ["gram", "recursive"])


def model_of(size=20, solver="gram", precision="float64", balanced=False, gamma=1.0):
    expansion, types = Expansion.draw(5, size, "relu", seed=0), PRECISIONS[precision]
    if solver == "gram":
        head = Ridge(Sums(expansion.size, 0, types.sums), types, gamma, intercept=False)
    else:
        head = Recursion(expansion.size, types, CPU, gamma)
    return AnalyticModel(expansion, head, CPU, MIXERS["balanced" if balanced else "ridge"])


def learnt(model, X, columns, weights=None, block=1000, c=3):
    blocks = model.blocks(lambda: iter(torch.split(X, block)), columns, weights)
    places = torch.arange(len(model.head.counts))
    return model.with_head(model.learner.learn(blocks, len(X), places, c))


def scores(model, X, block=13):
    return torch.cat(list(model.scores(torch.split(X, block), model.weights())))


@SOLVERS
def test_blocks_of_any_size_give_the_same_scores(solver):
    X, columns = samples(60, 5, 3)
    expected = scores(learnt(model_of(solver=solver), X, columns), X, 60)
    assert expected.shape == (60, 3)
    for block in (17, 1):
        model = learnt(model_of(solver=solver), X, columns, block=block)
        assert relative(scores(model, X, block), expected) <= 1e-11


def test_scores_are_the_expanded_rows_times_the_weights_and_empty_classes_have_none():
    X, columns = samples(60, 5, 3)
    model = learnt(model_of(), X, columns, c=4)
    coef, intercept, empty = model.weights()
    assert (coef.shape, empty.tolist()) == ((20, 4), [False, False, False, True])
    found = scores(model, X)
    assert torch.allclose(found[:, :3], (model.expansion(X) @ coef + intercept)[:, :3], rtol=1e-12)
    assert (found[:, 3] == -torch.inf).all()


@SOLVERS
def test_rows_of_weight_zero_are_left_out_of_blocks(solver):
    (X, columns), weights = samples(60, 5, 3), weights_for(60)
    weights[:20] = 0.0  # all of the first block, and part of the second
    weights[25] = 0.0
    kept = weights > 0
    model = learnt(model_of(solver=solver), X, columns, weights, block=20)
    plain = learnt(model_of(solver=solver), X[kept], columns[kept], weights[kept])
    assert int(model.head.counts.sum()) == 39
    assert relative(model.weights().coef, plain.weights().coef) <= 1e-11


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("size", [10, 300, 3000])
def test_blocks_are_small_beside_the_sums_and_large_enough_for_speed(size, precision):
    number = PRECISIONS[precision].products.itemsize
    rows = model_of(size, precision=precision).block_rows
    assert 256 <= rows <= min(PRECISIONS[precision].max_block_rows, 2**25 / (size * number))


def test_balance_scales_by_mean_over_own_weight():
    factors = balance_factors(torch.tensor([1.0, 3.0, 0.0, 8.0], dtype=torch.float64))
    assert factors.tolist() == pytest.approx([4.0, 4 / 3, 1.0, 0.5])
    (X, columns), weights = samples(60, 5, 3), weights_for(60)
    plain, balanced = (learnt(model_of(balanced=b), X, columns, weights) for b in (False, True))
    own = np.bincount(columns.numpy(), weights.numpy())
    expected = plain.weights().coef.numpy() * (own.mean() / own)
    assert relative(balanced.weights().coef, expected) <= 1e-13


@SOLVERS
@pytest.mark.parametrize("balanced", [False, True])
def test_temperature_is_that_of_the_cross_validated_error(solver, balanced):
    X, columns = samples(200, 5, 3)
    model = learnt(model_of(solver=solver, balanced=balanced), X, columns)
    rows, Y = model.expansion(X).numpy(), np.eye(3)[columns.numpy()]
    if balanced:
        Y = Y * (200 / 3 / Y.sum(axis=0))
    H = rows @ np.linalg.solve(rows.T @ rows + np.eye(20), rows.T)
    error = np.mean((Y - H @ Y) ** 2) / (1 - np.trace(H) / 200) ** 2
    # The variance of Gumbel noise of scale T is π² T² / 6.
    assert estimated_temperature(model) == pytest.approx(np.sqrt(6 * error) / np.pi, rel=1e-8)
    assert estimated_temperature(learnt(model, X * 3, columns.flip(0))) != estimated_temperature(model)


@pytest.mark.parametrize("gamma", [1e-9, 1e9])
def test_degenerate_fits_have_a_temperature_that_can_be_used(gamma):
    y = torch.arange(60) % 3
    X = torch.eye(5, dtype=torch.float64)[y]
    assert 0 < estimated_temperature(learnt(model_of(None, gamma=gamma), X, y)) < math.inf
    few = learnt(model_of(100, gamma=gamma), *samples(4, 5, 3))
    assert 0 < estimated_temperature(few) < math.inf
    # As many degrees of freedom as samples, up to rounding
    few._freedom = 4.0
    few.known_temperature = None
    assert 0 < estimated_temperature(few) < math.inf


def leverage_of(model, X):
    rows = model.expansion(X)
    return relative_leverage(model, rows, model.learner.leverage(rows))


def test_relative_leverage_is_about_one_for_rows_like_those_learnt():
    X, columns = samples(600, 5, 3)
    model = learnt(model_of(), X[:400], columns[:400])
    rows, new = model.expansion(X[:400]).numpy(), model.expansion(X[400:]).numpy()
    R = np.linalg.inv(rows.T @ rows + np.eye(20))
    mean = (20 - np.trace(R)) / 400
    scale = (rows**2).sum() / 400 / (new**2).sum(axis=1)
    expected = np.einsum("ij,jk,ik->i", new, R, new) * scale / (mean / (1 - mean))
    found = leverage_of(model, X[400:])
    assert relative(found, expected) <= 1e-10
    assert 0.7 < float(found.mean()) < 1.5
    nothing = torch.zeros(1, 5, dtype=torch.float64)
    assert float(leverage_of(model, nothing)) > 10 * float(found.max())


def test_corrected_weights_are_solved_again_from_the_sums():
    X, columns = samples(300, 5, 3)
    model = learnt(model_of(64), X[:298], columns[:298])
    model.weights()
    model = learnt(model, X[298:], columns[298:])
    corrected = model.weights().coef
    assert model.head.solution.corrected
    model.solve_again()
    joint = learnt(model_of(64), X, columns).weights().coef
    assert relative(model.weights().coef, joint) <= 1e-13
    assert relative(corrected, joint) <= 1e-11
    assert not model.head.solution.corrected


@SOLVERS
def test_a_model_knows_whether_its_matrix_is_its_own(solver):
    X, columns = samples(60, 5, 3)
    first = learnt(model_of(solver=solver), X, columns)
    before = first.weights().coef.clone()
    second = learnt(first, X, columns)
    assert (first.is_whole, second.is_whole) == (False, True)
    with pytest.raises(InterruptedModelError):
        first.require_whole()
    assert torch.equal(first.weights().coef, before), "what was ready stays"
    assert first.lock is second.lock


def test_recursion_keeps_no_sums():
    with pytest.raises(UnsupportedError, match='solver="gram"'):
        model_of(solver="recursive").ridge  # noqa: B018


def test_frozen_models_predict_and_refuse_the_rest():
    X, columns = samples(60, 5, 3)
    model = learnt(model_of(), X, columns)
    coef, intercept, _ = model.weights()
    weights, temperature = (coef, intercept), estimated_temperature(model)
    head = Frozen(weights, model.head.counts, model.precision, 0.5, temperature)
    # Weights that were stored are balanced already.
    frozen = AnalyticModel(model.expansion, head, CPU, MIXERS["balanced"])
    assert torch.equal(scores(frozen, X), scores(model, X))
    assert (estimated_temperature(frozen), frozen.gamma()) == (estimated_temperature(model), 0.5)
    assert frozen.is_whole
    uses = (lambda: frozen.learner, lambda: frozen.ridge, frozen.degrees_of_freedom)
    for use in (*uses, lambda: leverage_of(frozen, X)):
        with pytest.raises(UnsupportedError, match="inference"):
            use()
