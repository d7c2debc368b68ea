"""Forgetting samples equals never having learnt them."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError as SklearnNotFittedError

from acil import ACILClassifier, save
from acil.core.classifier import learnt_of
from acil.core.files import verify
from acil.errors import InputError, NotFittedError
from support.strategies import (
    Unchanged,
    blobs,
    condition_number,
    expanded,
    gamma_for,
    problems,
    promise,
    relative,
    slack,
)

pytestmark = pytest.mark.usefixtures("library")


RECURSIVE_SCORES = 1e-6


@given(
    problem=problems(min_rows=20),
    size=st.one_of(st.none(), st.integers(20, 120)),
    exponent=st.floats(0.5, 11),
    seed=st.integers(0, 2**16),
    share=st.floats(0.02, 0.6),
    fit_intercept=st.booleans(),
    weighted=st.booleans(),
)
def test_forgotten_samples_were_never_learnt(
    problem, size, exponent, seed, share, fit_intercept, weighted
):
    rng = np.random.default_rng(seed)
    gone = rng.random(problem.n) < share
    assume(gone.any())
    assume(len(np.unique(problem.y[~gone])) > 1)
    weights = rng.uniform(0.5, 2.0, problem.n) if weighted else np.ones(problem.n)
    root, rows = np.sqrt(weights)[:, None], expanded(problem.X, size)
    gamma = gamma_for(rows * root, 10**exponent)
    left = rows[~gone] - np.average(rows[~gone], axis=0, weights=weights[~gone]) * fit_intercept
    left = left * root[~gone]
    # Rounding in the sums stays from before: their largest eigenvalue counts.
    largest = np.linalg.norm(rows * root, 2) ** 2 + gamma
    smallest = (np.linalg.norm(left, 2) ** 2 + gamma) / condition_number(left, gamma)
    bar = promise(largest / smallest, c=10)
    options = {"expansion_size": size, "gamma": gamma, "fit_intercept": fit_intercept}

    def given_weights(chosen):
        return weights[chosen] if weighted else None

    model = ACILClassifier(**({"scores": "ridge"} | options))
    model.fit(problem.X, problem.y, sample_weight=given_weights(slice(None)))
    model.forget(problem.X[gone], problem.y[gone], sample_weight=given_weights(gone))
    never = ACILClassifier(**({"scores": "ridge"} | options))
    never.fit(problem.X[~gone], problem.y[~gone], sample_weight=given_weights(~gone))
    assert np.array_equal(model.classes_, never.classes_)
    assert np.array_equal(model.class_count_, never.class_count_)
    scores = model.decision_function(problem.held_out)
    assert relative(scores, never.decision_function(problem.held_out)) <= bar
    assert relative(model.coef_, never.coef_) <= slack(problem) * bar


@given(
    problem=problems(min_rows=80),
    size=st.integers(20, 80),
    exponent=st.floats(0.5, 5),
    seed=st.integers(0, 2**16),
)
def test_the_recursion_forgets_too(problem, size, exponent, seed):
    gone = np.random.default_rng(seed).random(problem.n) < 0.3
    assume(gone.any())
    assume(not gone.all())
    gamma = gamma_for(expanded(problem.X, size), 10**exponent)
    options = {"expansion_size": size, "gamma": gamma}
    model = ACILClassifier(solver="recursive", **({"scores": "ridge"} | options)).fit(
        problem.X, problem.y
    )
    model.forget(problem.X[gone], problem.y[gone])
    never = ACILClassifier(**({"scores": "ridge"} | options)).fit(problem.X[~gone], problem.y[~gone])
    assert np.array_equal(model.classes_, never.classes_)
    scores = model.decision_function(problem.held_out)
    assert relative(scores, never.decision_function(problem.held_out)) <= RECURSIVE_SCORES


def test_the_recursion_refuses_to_forget_what_it_cannot_forget_exactly():
    # With fewer rows than dimensions, γ / ‖x‖² of the matrix is left where a row was.
    problem = blobs(30, 40, 3, 0)
    options = {"expansion_size": None, "gamma": 1e-2}
    model = ACILClassifier(solver="recursive", **({"scores": "ridge"} | options)).fit(
        problem.X, problem.y
    )
    model.forget(problem.X[:10], problem.y[:10])
    never = ACILClassifier(**({"scores": "ridge"} | options)).fit(problem.X[10:], problem.y[10:])
    assert relative(model.coef_, never.coef_) <= 1e-4
    model = ACILClassifier(
        solver="recursive", **({"scores": "ridge"} | (options | {"gamma": 1e-6}))
    ).fit(problem.X, problem.y)
    with Unchanged(model, problem.held_out), pytest.raises(InputError, match="solver='gram' could"):
        model.forget(problem.X[:10], problem.y[:10])


@pytest.mark.parametrize("solver", ["gram", "recursive"])
def test_a_class_leaves_with_its_last_sample(solver):
    problem = blobs(120, 6, 4, 0)
    model = ACILClassifier(scores="ridge", expansion_size=40, gamma=1.0, solver=solver).fit(
        problem.X, problem.y
    )
    of_two = np.flatnonzero(problem.y == 2)
    model.forget(problem.X[of_two[1:]], problem.y[of_two[1:]])
    assert model.classes_.tolist() == [0, 1, 2, 3]
    model.forget(problem.X[of_two[:1]], problem.y[of_two[:1]])
    assert model.classes_.tolist() == [0, 1, 3]
    assert model.coef_.shape == (3, 40)
    assert 2 not in model.predict(problem.held_out)
    never = ACILClassifier(scores="ridge", expansion_size=40, gamma=1.0).fit(
        problem.X[problem.y != 2], problem.y[problem.y != 2]
    )
    assert relative(model.coef_, never.coef_) <= 1e-9
    model.partial_fit(problem.X[of_two], problem.y[of_two])
    assert model.classes_.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("solver", ["gram", "recursive"])
@pytest.mark.parametrize("weighted", [False, True])
def test_forgetting_everything_leaves_an_unfitted_model_that_learns_again(solver, weighted):
    problem = blobs(90, 6, 3, 0)
    weights = np.random.default_rng(0).uniform(0.5, 2, 90) if weighted else None
    options = {"expansion_size": 30, "gamma": 1.0, "solver": solver}
    model = ACILClassifier(**({"scores": "ridge"} | options)).fit(
        problem.X, problem.y, sample_weight=weights
    )
    model.forget(problem.X, problem.y, sample_weight=weights)
    for use in (model.predict, model.decision_function, model.novelty):
        with pytest.raises(NotFittedError) as caught:
            use(problem.held_out)
        assert isinstance(caught.value, SklearnNotFittedError)
    assert not hasattr(model, "classes_")
    model.partial_fit(problem.X[:, :4], problem.y.astype(str))
    fresh = ACILClassifier(**({"scores": "ridge"} | options)).fit(
        problem.X[:, :4], problem.y.astype(str)
    )
    assert np.array_equal(model.coef_, fresh.coef_), "nothing of the forgotten samples is left"


def test_forget_follows_corrections():
    problem = blobs(200, 6, 4, 0)
    options = {"expansion_size": 60, "gamma": 10.0}
    model = ACILClassifier(**({"scores": "ridge"} | options)).fit(problem.X[:190], problem.y[:190])
    model.predict(problem.held_out)
    for i in range(190, 200):
        model.partial_fit(problem.X[i : i + 1], problem.y[i : i + 1])
    model.forget(problem.X[180:195], problem.y[180:195])
    kept = np.r_[0:180, 195:200]
    never = ACILClassifier(**({"scores": "ridge"} | options)).fit(problem.X[kept], problem.y[kept])
    assert relative(model.coef_, never.coef_) <= 1e-10


def test_most_samples_can_be_forgotten():
    problem = blobs(2000, 6, 4, 0)
    options = {"expansion_size": 50, "gamma": 1.0}
    model = ACILClassifier(**({"scores": "ridge"} | options)).fit(problem.X, problem.y)
    model.forget(problem.X[30:], problem.y[30:])
    never = ACILClassifier(**({"scores": "ridge"} | options)).fit(problem.X[:30], problem.y[:30])
    # Rounding stays from the sums before, 70 times larger; γ = 1 is the smallest eigenvalue.
    largest = np.linalg.norm(expanded(problem.X, 50), 2) ** 2
    difference = relative(
        model.decision_function(problem.held_out), never.decision_function(problem.held_out)
    )
    assert difference <= promise(largest, c=10)


@pytest.mark.parametrize("gamma", ["auto", 1.0])
def test_samples_far_larger_than_the_rest_leave_sums_that_are_sound(gamma, tmp_path):
    # Such as pixels from 0 to 255 that should have been scaled to 1
    problem, large = blobs(100, 64, 3, 0), blobs(100, 64, 3, 1)
    model = ACILClassifier(scores="ridge", expansion_size=256, gamma=gamma).fit(problem.X, problem.y)
    model.partial_fit(large.X * 255, large.y).forget(large.X * 255, large.y)
    save(model, tmp_path / "model.acil")
    assert all(check.ok for check in verify(tmp_path / "model.acil"))
    with pytest.raises(InputError, match="forgotten"):
        model.forget(large.X[:1], large.y[:1])
    assert model.forget(problem.X[:10], problem.y[:10]).n_samples_ == 90


def fitted(**options):
    problem = blobs(120, 6, 4, 0)
    model = ACILClassifier(**({"scores": "ridge"} | ({"expansion_size": 40, "gamma": 1.0} | options)))
    return model.fit(problem.X, problem.y), problem


@pytest.mark.parametrize("solver", ["gram", "recursive"])
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (lambda p: (p.X[:3], [0, 1, 9]), "never learnt: 9"),
        (lambda p: (p.X[:3], ["a", "b", "c"]), "type str"),
        (lambda p: (np.tile(p.X, (2, 1)), np.tile(p.y, 2)), "were learnt"),
        (lambda p: (p.X[:1] * 1e3, p.y[:1]), "positive definite"),
    ],
    ids=["unknown", "type", "too many", "never learnt"],
)
def test_impossible_forgetting_changes_nothing(solver, asked, words):
    model, problem = fitted(solver=solver)
    with Unchanged(model, problem.held_out), pytest.raises(InputError, match=words):
        model.forget(*asked(problem))
    model.forget(problem.X[:5], problem.y[:5])
    assert model.n_samples_ == 115


@pytest.mark.parametrize("dtype", ["float64", "float32", "mixed"])
@pytest.mark.parametrize("n_gone", [1, 5])
def test_forgetting_under_the_wrong_class_is_noticed_while_samples_are_few(dtype, n_gone):
    # Fewer samples than dimensions, as with photographs: every sample stands out.
    problem = blobs(60, 6, 4, 0)
    model = ACILClassifier(scores="ridge", expansion_size=80, dtype=dtype)
    for part in np.array_split(np.arange(60), 5):
        model.partial_fit(problem.X[part], problem.y[part])
    X, y = problem.X[:n_gone], problem.y[:n_gone]
    with Unchanged(model, problem.held_out), pytest.raises(InputError, match="these classes"):
        model.forget(X, (y + 1) % 4)
    assert model.forget(X, y).n_samples_ == 60 - n_gone


def test_failed_forgetting_in_the_second_block_changes_nothing(monkeypatch):
    for solver in ("gram", "recursive"):
        model, problem = fitted(solver=solver)
        monkeypatch.setattr(type(learnt_of(model).model), "block_rows", property(lambda _: 16))
        X, y = problem.X[:40].copy(), problem.y[:40]
        X[30] *= 1e3
        with Unchanged(model, problem.held_out), pytest.raises(InputError, match="positive definite"):
            model.forget(X, y)
        monkeypatch.undo()


def test_more_weight_than_was_learnt_cannot_be_forgotten():
    # The gram matrix stays positive definite, yet no class can have a negative weight.
    model = ACILClassifier(scores="ridge", expansion_size=None, gamma=1.0)
    X, y = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [0, 1, 1]
    model.fit(X, y, sample_weight=[1.0, 100.0, 1.0])
    with Unchanged(model, np.eye(2)), pytest.raises(InputError):
        model.forget(X[:1], y[:1], sample_weight=[50.0])


def test_forgetting_without_ridge_must_leave_a_regular_matrix():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(12, 6)), np.arange(12) % 2
    model = ACILClassifier(scores="ridge", expansion_size=None, gamma=0.0).fit(X, y)
    with Unchanged(model, X), pytest.raises(InputError, match="positive definite"):
        model.forget(X[:8], y[:8])
    model.forget(X[:4], y[:4])
    expected = np.linalg.lstsq(X[4:], np.eye(2)[y[4:]], rcond=None)[0].T
    assert relative(model.coef_, expected) <= 1e-9


def test_forgetting_before_learning_is_refused():
    with pytest.raises(NotFittedError):
        ACILClassifier(scores="ridge").forget([[1.0]], [0])


def test_zero_weight_samples_are_not_there_to_be_forgotten():
    problem = blobs(60, 6, 3, 0)
    weights = np.ones(60)
    weights[:10] = 0.0
    model = ACILClassifier(scores="ridge", expansion_size=30, gamma=1.0)
    model.fit(problem.X, problem.y, sample_weight=weights)
    assert model.n_samples_ == 50
    model.forget(problem.X[:20], problem.y[:20], sample_weight=weights[:20])
    never = ACILClassifier(scores="ridge", expansion_size=30, gamma=1.0).fit(
        problem.X[20:], problem.y[20:]
    )
    assert model.n_samples_ == 40
    assert relative(model.coef_, never.coef_) <= 1e-9


@pytest.mark.parametrize(
    ("gone", "weight"),
    [
        (slice(40, 60), None),  # all of class 2, with half of its weight
        (slice(40, 41), 40.0),  # one of class 2, with all of its weight
    ],
)
def test_samples_and_weights_of_a_class_must_go_together(gone, weight):
    X, y = np.random.default_rng(0).normal(size=(60, 5)), np.repeat([0, 1, 2], 20)
    clf = ACILClassifier(scores="ridge", expansion_size=32, gamma=1.0).fit(
        X, y, sample_weight=np.full(60, 2.0)
    )
    given = None if weight is None else np.full(len(y[gone]), weight)
    with Unchanged(clf, X), pytest.raises(InputError, match="weights"):
        clf.forget(X[gone], y[gone], sample_weight=given)
    assert clf.forget(X[40:], y[40:], sample_weight=np.full(20, 2.0)).classes_.tolist() == [0, 1]
