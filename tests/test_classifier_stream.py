"""Single samples into a fitted model: exact, and without a new factorization."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acil import ACILClassifier
from acil.analytic.factor import CorrectedFactor
from strategies import blobs, correction_rank, relative

EXACT = 1e-10


@pytest.mark.parametrize("options", [{}, {"fit_intercept": True}, {"class_balance": True}], ids=str)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**16), n_first=st.integers(80, 150))
def test_a_stream_of_single_samples_equals_a_joint_fit_at_every_step(options, seed, n_first):
    problem = blobs(n_first + 15, 8, 4, seed)
    options = {"expansion_size": 50, "gamma": 10.0} | options
    stream = ACILClassifier(**options).fit(problem.X[:n_first], problem.y[:n_first])
    stream.predict(problem.held_out)
    for i in range(n_first, problem.n):
        stream.partial_fit(problem.X[i : i + 1], problem.y[i : i + 1])
        joint = ACILClassifier(**options).fit(problem.X[: i + 1], problem.y[: i + 1])
        scores = stream.decision_function(problem.held_out)
        assert relative(scores, joint.decision_function(problem.held_out)) <= EXACT
        assert relative(stream.intercept_ + 1, joint.intercept_ + 1) <= EXACT
    assert correction_rank(stream) > 0


def test_single_samples_cost_no_factorization(monkeypatch):
    problem = blobs(200, 8, 4, 0)
    model = ACILClassifier(expansion_size=100, gamma=10.0).fit(problem.X[:180], problem.y[:180])
    model.predict(problem.held_out)

    def forbidden(self, *args):
        raise AssertionError("factorized anew")

    monkeypatch.setattr(CorrectedFactor, "factorize", forbidden)
    for i in range(180, 200):
        model.partial_fit(problem.X[i : i + 1], problem.y[i : i + 1]).predict(problem.held_out)
    assert correction_rank(model) == 20


def test_a_sample_unlike_anything_learnt_leads_to_a_new_factor():
    problem = blobs(200, 8, 4, 0)
    model = ACILClassifier(expansion_size=50, gamma=1e-3).fit(problem.X, problem.y)
    model.predict(problem.held_out)
    strange = np.random.default_rng(0).normal(size=(1, 8)) * 100
    model.partial_fit(strange, [2])
    assert correction_rank(model) == 0, "a correction would multiply rounding errors"
    joint = ACILClassifier(expansion_size=50, gamma=1e-3)
    joint.fit(np.vstack([problem.X, strange]), np.r_[problem.y, 2])
    scores = joint.decision_function(problem.held_out)
    assert relative(model.decision_function(problem.held_out), scores) <= EXACT


def test_sums_are_the_same_whether_or_not_weights_are_asked_for_in_between():
    problem = blobs(200, 8, 4, 0)
    models = [ACILClassifier(expansion_size=50) for _ in range(2)]
    for start in range(0, 200, 10):
        for i, model in enumerate(models):
            model.partial_fit(problem.X[start : start + 10], problem.y[start : start + 10])
            if i:
                model.predict(problem.held_out)
    sums = [model._state.model.head.statistics for model in models]
    assert np.array_equal(sums[0].gram.tril().numpy(), sums[1].gram.tril().numpy())
    assert np.array_equal(sums[0].moment.numpy(), sums[1].moment.numpy())


def test_a_stream_from_the_very_first_sample():
    problem = blobs(120, 8, 4, 0)
    stream = ACILClassifier(expansion_size=30, gamma=10.0)
    for i in range(problem.n):
        stream.partial_fit(problem.X[i : i + 1], problem.y[i : i + 1])
        assert stream.predict(problem.held_out).shape == (60,)
    joint = ACILClassifier(expansion_size=30, gamma=10.0).fit(problem.X, problem.y)
    assert relative(stream.coef_, joint.coef_) <= EXACT


def test_probabilities_in_a_stream_follow_the_sums():
    problem = blobs(220, 8, 4, 0)
    stream = ACILClassifier(expansion_size=50, gamma=10.0).fit(problem.X[:200], problem.y[:200])
    for i in range(200, 220):
        stream.partial_fit(problem.X[i : i + 1], problem.y[i : i + 1]).predict_proba(problem.held_out)
    joint = ACILClassifier(expansion_size=50, gamma=10.0).fit(problem.X, problem.y)
    assert stream.temperature_ == pytest.approx(joint.temperature_, rel=1e-9)
    assert (
        relative(stream.predict_proba(problem.held_out), joint.predict_proba(problem.held_out)) <= 1e-9
    )
