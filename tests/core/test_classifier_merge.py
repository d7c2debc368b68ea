"""Merging models equals having learnt everything in one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acil import ACILClassifier
from acil.errors import ACILError, InputError
from support.strategies import (
    Unchanged,
    blobs,
    condition_number,
    cut,
    expanded,
    gamma_for,
    problems,
    promise,
    relative,
    slack,
)


@pytest.mark.parametrize("n_models", [2, 3, 7, 20])
@settings(max_examples=8)
@given(
    problem=problems(min_rows=20),
    size=st.one_of(st.none(), st.integers(20, 120)),
    exponent=st.floats(0.5, 11),
    seed=st.integers(0, 2**16),
    by_class=st.booleans(),
)
def test_merged_models_equal_one_model(n_models, problem, size, exponent, seed, by_class):
    rows = expanded(problem.X, size)
    gamma = gamma_for(rows, 10**exponent)
    condition = condition_number(rows, gamma)
    sites = [
        ACILClassifier(scores="ridge", expansion_size=size, gamma=gamma).fit(
            problem.X[part], problem.y[part]
        )
        for part in cut(problem.y, n_models, seed, by_class)
    ]
    sites[0].predict(problem.held_out)  # solved weights must not survive the merge
    merged = sites[0]
    for site in sites[1:]:
        merged.merge(site)
    joint = ACILClassifier(scores="ridge", expansion_size=size, gamma=gamma).fit(problem.X, problem.y)
    assert np.array_equal(merged.classes_, joint.classes_)
    assert np.array_equal(merged.class_count_, joint.class_count_)
    assert merged.n_samples_ == problem.n
    scores = merged.decision_function(problem.held_out)
    assert relative(scores, joint.decision_function(problem.held_out)) <= promise(condition)
    assert relative(merged.coef_, joint.coef_) <= slack(problem) * promise(condition)


def test_merge_leaves_the_other_model_as_it_was():
    problem = blobs(100, 6, 4, 0)
    half = problem.y < 2
    left = ACILClassifier(scores="ridge", expansion_size=30).fit(problem.X[half], problem.y[half])
    right = ACILClassifier(scores="ridge", expansion_size=30).fit(problem.X[~half], problem.y[~half])
    with Unchanged(right, problem.held_out):
        assert left.merge(right) is left
        left.partial_fit(problem.X, problem.y)
    assert left.classes_.tolist() == [0, 1, 2, 3]


def test_merging_a_model_with_itself_learns_everything_twice():
    problem = blobs(100, 6, 4, 0)
    model = ACILClassifier(scores="ridge", expansion_size=30).fit(problem.X, problem.y)
    model.predict(problem.held_out)
    model.merge(model)
    twice = ACILClassifier(scores="ridge", expansion_size=30).fit(
        np.tile(problem.X, (2, 1)), np.tile(problem.y, 2)
    )
    assert np.array_equal(model.class_count_, twice.class_count_)
    assert relative(model.coef_, twice.coef_) <= 1e-10


def test_merge_keeps_weights_and_intercept_exact():
    problem = blobs(120, 6, 4, 0)
    weights = np.random.default_rng(0).uniform(0.1, 5, problem.n)
    options = {"expansion_size": 30, "fit_intercept": True, "class_balance": True, "gamma": 1.0}
    models = [
        ACILClassifier(**({"scores": "ridge"} | options)).fit(
            problem.X[part], problem.y[part], sample_weight=weights[part]
        )
        for part in (slice(0, 50), slice(50, 120))
    ]
    joint = ACILClassifier(**({"scores": "ridge"} | options)).fit(
        problem.X, problem.y, sample_weight=weights
    )
    merged = models[0].merge(models[1])
    assert relative(merged.coef_, joint.coef_) <= 1e-10
    assert relative(merged.intercept_, joint.intercept_) <= 1e-10


def test_merge_of_string_classes_of_different_length_cuts_no_name():
    X = np.random.default_rng(0).normal(size=(20, 3))
    left = ACILClassifier(scores="ridge", expansion_size=10).fit(X, ["ox"] * 20)
    right = ACILClassifier(scores="ridge", expansion_size=10).fit(X + 5, ["hippopotamus"] * 20)
    assert left.merge(right).classes_.tolist() == ["hippopotamus", "ox"]
    assert set(left.predict(np.vstack([X, X + 5]))) == {"hippopotamus", "ox"}


def samples(n_features=6):
    problem = blobs(60, n_features, 3, 1)
    return problem.X, problem.y


X, Y = samples()


def partner(X=X, y=Y, backbone=None, **options):
    model = ACILClassifier(**({"scores": "ridge"} | {"expansion_size": 30, **options})).fit(X, y)
    if backbone is not None:
        model.backbone_ = {"name": backbone}
    return model


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (partner(random_state=1), "expansion"),
        (partner(expansion_size=31), "expansion"),
        (partner(expansion_size=None), "expansion"),
        (partner(activation="tanh"), "expansion"),
        (partner(*samples(7)), "6 and 7 features"),
        (partner(backbone="resnet18"), "backbone"),
        (partner(y=Y.astype(str)), "type str"),
        (partner(gamma=0.1, solver="recursive"), 'solver="gram"'),
        (ACILClassifier(scores="ridge", expansion_size=30), "not learnt"),
        ("model", "str"),
    ],
    ids=range(10),
)
def test_merge_refuses_what_cannot_be_added_and_changes_nothing(other, words):
    model = partner()
    with Unchanged(model, X), pytest.raises(InputError, match=words) as caught:
        model.merge(other)
    assert isinstance(caught.value, ACILError)
    assert isinstance(caught.value, ValueError)
    assert model.merge(partner()).n_samples_ == 120


def test_models_of_other_feature_names_do_not_merge():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    table, y = pandas.DataFrame(rng.normal(size=(20, 3)), columns=list("abc")), np.arange(20) % 2
    first, turned = (
        ACILClassifier(scores="ridge", expansion_size=8, gamma=1.0).fit(table[names], y)
        for names in (list("abc"), list("cba"))
    )
    with pytest.raises(InputError, match="different names"):
        first.merge(turned)
    nameless = ACILClassifier(scores="ridge", expansion_size=8, gamma=1.0).fit(table.to_numpy(), y)
    assert first.merge(nameless).n_samples_ == 40
