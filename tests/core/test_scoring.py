"""Expansion and regression together, block by block."""

import math

import numpy as np
import pytest
import torch

from acil.core.expansion import AnalyticModel, Expansion
from acil.core.recursion import Recursion
from acil.core.ridge import Ridge
from acil.core.scores import Pooled, estimated_temperature
from acil.core.sums import PRECISIONS, Sums
from support.regressions import CPU, samples, weights_for
from support.strategies import relative

SOLVERS = pytest.mark.parametrize("solver", ["gram", "recursive"])


def model_of(size=20, solver="gram", precision="float64", balanced=False, gamma=1.0):
    expansion, types = Expansion.draw(5, size, "relu", seed=0), PRECISIONS[precision]
    if solver == "gram":
        head = Ridge(Sums(expansion.size, 0, types.sums), types, gamma, intercept=False)
    else:
        head = Recursion(expansion.size, types, CPU, gamma)
    return AnalyticModel(expansion, head, CPU, Pooled(1.0) if balanced else None)


def learnt(model, X, columns, weights=None, block=1000, c=3):
    blocks = model.blocks(torch.split(X, block), columns, weights)
    places = torch.arange(len(model.head.counts))
    return model.with_head(model.learner.learn(blocks, len(X), places, c))


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


@pytest.mark.parametrize(("solver", "balanced"), [("gram", False), ("gram", True), ("recursive", False)])
def test_temperature_is_that_of_the_cross_validated_error(solver, balanced):
    X, columns = samples(200, 5, 3)
    columns[::3] = 0  # classes of different sizes
    model = learnt(model_of(solver=solver, balanced=balanced), X, columns)
    rows, Y = model.expansion(X).numpy(), np.eye(3)[columns.numpy()]
    H = rows @ np.linalg.solve(rows.T @ rows + np.eye(20), rows.T)
    scores = rows @ model.weights().coef.numpy() if balanced else H @ Y
    error = np.mean((Y - scores) ** 2) / (1 - np.trace(H) / 200) ** 2
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
