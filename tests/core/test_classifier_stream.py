"""Single samples into a fitted model: exact, and without a new factorization."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from acil import ACILClassifier, save
from acil.core import ridge
from acil.core.classifier import learnt_of
from support.strategies import (
    blobs,
    condition_number,
    correction_rank,
    expanded,
    promise,
    relative,
    sums_of,
)

EXACT = 1e-10


def test_single_samples_cost_no_factorization(monkeypatch):
    problem = blobs(200, 8, 4, 0)
    model = ACILClassifier(scores="ridge", expansion_size=100, gamma=10.0).fit(
        problem.X[:180], problem.y[:180]
    )
    model.predict(problem.held_out)

    def forbidden(*args):
        raise AssertionError("factorized anew")

    monkeypatch.setattr(ridge, "Factor", forbidden)
    for i in range(180, 200):
        model.partial_fit(problem.X[i : i + 1], problem.y[i : i + 1]).predict(problem.held_out)
    assert correction_rank(model) == 20


def test_a_sample_unlike_anything_learnt_leads_to_a_new_factor():
    problem = blobs(200, 8, 4, 0)
    model = ACILClassifier(scores="ridge", expansion_size=50, gamma=1e-3).fit(problem.X, problem.y)
    model.predict(problem.held_out)
    strange = np.random.default_rng(0).normal(size=(1, 8)) * 100
    model.partial_fit(strange, [2])
    assert correction_rank(model) == 0, "a correction would multiply rounding errors"
    joint = ACILClassifier(scores="ridge", expansion_size=50, gamma=1e-3)
    joint.fit(np.vstack([problem.X, strange]), np.r_[problem.y, 2])
    scores = joint.decision_function(problem.held_out)
    assert relative(model.decision_function(problem.held_out), scores) <= EXACT


def test_samples_are_the_same_sums_whether_or_not_weights_are_asked_for_in_between():
    problem = blobs(200, 8, 4, 0)
    models = [ACILClassifier(scores="ridge", expansion_size=50, gamma=1.0) for _ in range(2)]
    for start in range(0, 200, 10):
        for i, model in enumerate(models):
            model.partial_fit(problem.X[start : start + 10], problem.y[start : start + 10])
            if i:
                model.predict(problem.held_out)
    left, right = (sums_of(model) for model in models)
    assert all(relative(left[name] + 1, right[name] + 1) <= 1e-15 for name in left)


def test_rows_that_wait_are_not_memory_of_the_caller():
    problem = blobs(80, 24, 3, 0)
    X, y = torch.from_numpy(problem.X), torch.from_numpy(problem.y)
    model = ACILClassifier(scores="ridge", expansion_size=None, gamma=1.0).fit(X[:70], y[:70])
    row = X[70:71].clone()
    model.partial_fit(row, y[70:71])
    row.zero_()
    joint = ACILClassifier(scores="ridge", expansion_size=None, gamma=1.0).fit(X[:71], y[:71])
    assert relative(model.coef_, joint.coef_) <= EXACT


def test_probabilities_in_a_stream_follow_the_sums():
    problem = blobs(220, 8, 4, 0)
    stream = ACILClassifier(scores="ridge", expansion_size=50, gamma=10.0).fit(
        problem.X[:200], problem.y[:200]
    )
    for i in range(200, 220):
        stream.partial_fit(problem.X[i : i + 1], problem.y[i : i + 1]).predict_proba(problem.held_out)
    joint = ACILClassifier(scores="ridge", expansion_size=50, gamma=10.0).fit(problem.X, problem.y)
    assert stream.temperature_ == pytest.approx(joint.temperature_, rel=1e-9)
    assert (
        relative(stream.predict_proba(problem.held_out), joint.predict_proba(problem.held_out)) <= 1e-9
    )


def stream_of(X, y, sizes, held_out, **options):
    """Learn in drops of these sizes, in turn, and predict after each."""
    model, start, turn = ACILClassifier(**({"scores": "ridge"} | options)), 0, 0
    while start < len(X):
        stop = start + sizes[turn % len(sizes)]
        model.partial_fit(X[start:stop], y[start:stop]).predict(held_out[:1])
        start, turn = stop, turn + 1
    return model


@pytest.mark.parametrize(
    "options",
    [{"gamma": 10.0}, {"gamma": 1e-9}, {"fit_intercept": True}, {"class_balance": True}],
    ids=str,
)
@pytest.mark.parametrize(
    ("n", "sizes"),
    [(600, (1,)), (2500, (1, 7, 100, 3)), pytest.param(25_000, (1,), marks=pytest.mark.slow)],
)
def test_many_drops_are_as_exact_as_a_full_solution(n, sizes, options):
    problem = blobs(n, 8, 4, 0)
    options = {"expansion_size": 32, "gamma": 1.0} | options
    stream = stream_of(problem.X, problem.y, sizes, problem.held_out, **options)
    joint = ACILClassifier(**({"scores": "ridge"} | options)).fit(problem.X, problem.y)
    assert stream.n_samples_ == n
    bar = promise(condition_number(expanded(problem.X, 32), options["gamma"]), c=10)
    scores = joint.decision_function(problem.held_out)
    assert relative(stream.decision_function(problem.held_out), scores) <= bar
    assert relative(stream.coef_, joint.coef_) <= bar
    assert relative(stream.intercept_ + 1, joint.intercept_ + 1) <= bar


def test_a_file_has_no_trace_of_the_last_rows_beyond_the_sums(tmp_path):
    problem = blobs(300, 8, 4, 0)
    options = {"expansion_size": 64, "gamma": 1.0}
    stream = stream_of(problem.X, problem.y, (1,), problem.held_out, **options)
    assert correction_rank(stream) > 0
    assert learnt_of(stream).model.head._waiting
    # The same samples, the last ones first: whatever knows which came last would differ.
    turned = stream_of(problem.X[::-1], problem.y[::-1], (1,), problem.held_out, **options)
    contents = []
    for name, model in (("stream", stream), ("turned", turned)):
        save(model, tmp_path / name)
        assert correction_rank(model) == 0
        assert not learnt_of(model).model.head._waiting
        contents.append(load_file(tmp_path / name))
    assert contents[0].keys() == contents[1].keys()
    for name, tensor in contents[0].items():
        assert tensor.shape == contents[1][name].shape
        assert relative(tensor + 1, contents[1][name] + 1) <= 1e-12, name
