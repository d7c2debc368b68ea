"""RiverClassifier: sample by sample, it gives what learning all at once gives."""

import pickle
import sys
import types

import numpy as np
import pandas
import pytest
from sklearn.datasets import load_iris

from acil import ACILClassifier, load, save
from acil.core.classifier import adopt, learnt_of
from acil.core.files import verify
from acil.core.inputs import Rows
from acil.errors import InputError, MissingExtraError
from support.river_base import Classifier

X, y = load_iris(return_X_y=True)
NAMES = ("sepal length", "sepal width", "petal length", "petal width")
LABELS = np.array(["setosa", "versicolor", "virginica"])[y]


MODELS = [
    {"expansion_size": None},
    {"expansion_size": 32},
    {"expansion_size": 32, "scores": "discriminant"},
    {"expansion_size": None, "fit_intercept": True},
    {"expansion_size": None, "solver": "recursive"},
    {"expansion_size": 32, "solver": "recursive"},
]


@pytest.fixture(params=["stand-in", "river"])
def adapter(request, monkeypatch):
    """Import acil.scale.river, with the package or with what stands for it."""
    monkeypatch.delitem(sys.modules, "acil.scale.river", raising=False)
    if request.param == "river":
        pytest.importorskip("river")
    else:
        base = types.ModuleType("river.base")
        base.Classifier = Classifier
        monkeypatch.setitem(sys.modules, "river", types.ModuleType("river"))
        monkeypatch.setitem(sys.modules, "river.base", base)
    from acil.scale.river import RiverClassifier

    yield RiverClassifier
    sys.modules.pop("acil.scale.river", None)


def samples():
    return [
        (dict(zip(NAMES, row, strict=True)), str(label)) for row, label in zip(X, LABELS, strict=True)
    ]


@pytest.mark.parametrize(("size", "rows"), [(None, X), (32, Rows(X, NAMES))], ids=["plain", "expanded"])
def test_one_after_another_equals_all_at_once(adapter, size, rows):
    stream = adapter(ACILClassifier(scores="ridge", expansion_size=size, gamma=1.0))
    for x, label in samples():
        stream.learn_one(x, label)
    whole = ACILClassifier(scores="ridge", expansion_size=size, gamma=1.0).fit(rows, LABELS)
    found = [stream.predict_proba_one(x) for x, _ in samples()[::10]]
    assert [*found[0]] == ["setosa", "versicolor", "virginica"]
    expected = whole.predict_proba(Rows(X[::10]))
    np.testing.assert_allclose([[*row.values()] for row in found], expected, rtol=1e-6)
    predicted = whole.predict(Rows(X[::10])).tolist()
    assert [stream.predict_one(x) for x, _ in samples()[::10]] == predicted


def test_nothing_is_predicted_before_anything_is_learnt(adapter):
    stream = adapter(ACILClassifier(scores="ridge"))
    assert stream.predict_proba_one({"a": 1.0}) == {}
    assert stream.predict_one({"a": 1.0}) is None


def test_order_of_features_does_not_matter_and_missing_ones_are_zero(adapter):
    stream = adapter(ACILClassifier(scores="ridge", expansion_size=None, gamma=1.0))
    for x, label in samples():
        stream.learn_one(x, label)
    x = samples()[7][0]
    assert stream.predict_proba_one(dict(reversed(x.items()))) == stream.predict_proba_one(x)
    first = {NAMES[0]: 5.0}
    assert stream.predict_proba_one(first) == stream.predict_proba_one(dict.fromkeys(NAMES, 0.0) | first)


def coming_and_going():
    """Return samples each of which has some of the features, in any order."""
    rng = np.random.default_rng(0)
    for x, label in samples():
        names = rng.permutation(NAMES)[: rng.integers(1, 5)]
        yield {str(name): x[name] for name in names}, label


def answers(stream, among):
    return np.array([[*stream.predict_proba_one(x).values()] for x, _ in among])


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_features_may_come_and_go_in_any_order(adapter, options):
    stream, later, told = (
        adapter(ACILClassifier(**({"scores": "ridge", "gamma": 1.0} | options))) for _ in range(3)
    )
    known = [*coming_and_going()]
    for x, label in known:
        stream.learn_one(x, label)
        told.learn_one(dict.fromkeys(NAMES, 0.0) | x, label)
    for x, label in reversed(known):
        later.learn_one(dict(reversed(x.items())), label)
    expected = answers(told, samples())
    np.testing.assert_allclose(answers(stream, samples()), expected, rtol=1e-4, atol=1e-6)
    if "scores" not in options:  # its calibration depends on the order
        np.testing.assert_allclose(answers(later, samples()), expected, rtol=1e-4, atol=1e-6)
    # What was never learnt does not count.
    x = samples()[3][0]
    assert stream.predict_proba_one(x | {"colour": 9.0}) == stream.predict_proba_one(x)


@pytest.mark.parametrize("options", MODELS[:2], ids=str)
def test_a_stream_goes_on_with_a_model_from_a_file(adapter, tmp_path, options):
    stream = adapter(ACILClassifier(scores="ridge", gamma=1.0, **options))
    known = [*coming_and_going()]
    for x, label in known[:70]:
        stream.learn_one(x, label)
    save(stream.model, tmp_path / "m.acil")
    again, copied = adapter(load(tmp_path / "m.acil")), pickle.loads(pickle.dumps(stream.model))
    for x, label in [*known[70:], ({"colour": 2.0, **known[0][0]}, "setosa")]:
        for one in (stream, again):
            one.learn_one(x, label)
    np.testing.assert_allclose(answers(again, samples()), answers(stream, samples()), rtol=1e-6)
    assert again.model.feature_names_in_.tolist() == stream.model.feature_names_in_.tolist()
    assert again.model.n_features_in_ == 5
    assert copied.n_features_in_ == 4
    assert not [check for check in verify(tmp_path / "m.acil") if not check.ok]


def test_a_refused_sample_changes_nothing(adapter):
    stream = adapter(ACILClassifier(scores="ridge", expansion_size=None, gamma=1.0))
    for x, label in samples()[::25]:
        stream.learn_one(x, label)
    before, x = answers(stream, samples()), samples()[0][0]
    for bad, words in (
        ({"colour": np.nan, **x}, "NaN"),
        ({"colour": "red", **x}, "'colour' is 'red', which is no number"),
        ({"1": 1.0, 1: 2.0}, "same name"),
    ):
        with pytest.raises(InputError, match=words):
            stream.learn_one(bad, "setosa")
        assert stream.model.n_features_in_ == 4
        assert (answers(stream, samples()) == before).all()
    with pytest.raises(InputError, match="no features"):
        adapter(ACILClassifier(scores="ridge")).learn_one({}, "setosa")
    no_ridge = adapter(
        ACILClassifier(scores="ridge", expansion_size=None, solver="recursive", gamma=0.0)
    )
    no_ridge.model.fit(*as_table())
    with pytest.raises(InputError, match="StandardScaler"):
        adapter(ACILClassifier(scores="ridge", standardize=True))
    with pytest.raises(InputError, match="gamma=0"):
        no_ridge.learn_one({"colour": 1.0, **x}, "setosa")


def as_table():
    return pandas.DataFrame(X, columns=NAMES), LABELS


def test_what_the_caller_does_to_a_dict_later_does_not_matter(adapter):
    stream = adapter(ACILClassifier(scores="ridge", expansion_size=None, gamma=1.0))
    for x, label in samples():
        stream.learn_one(x, label)
        x.update(dict.fromkeys(NAMES, 1e9))
        x.popitem()
    whole = ACILClassifier(scores="ridge", expansion_size=None, gamma=1.0).fit(X, LABELS)
    np.testing.assert_allclose(answers(stream, samples()), whole.predict_proba(X), rtol=1e-6)


#: River's checks that failed while features of the first sample were the only ones.
CONTRACT = (
    "check_emerging_features",
    "check_shuffle_features_no_impact",
    "check_init_has_default_params_for_tests",
)


@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_checks_of_river_pass(everything):
    checks = pytest.importorskip("river.checks")
    from acil.scale.river import RiverClassifier

    first, *others = RiverClassifier._unit_test_params()
    for parameters in [first, *(others if everything else ())]:
        model = RiverClassifier(**parameters)
        passed = [
            check(model.clone())
            for check in checks.yield_checks(model)
            if (everything or check.__name__ in CONTRACT)
            and check.__name__ not in model._unit_test_skips()
        ]
        assert len(passed) > 6


def test_a_clone_has_the_settings_and_nothing_learnt(adapter):
    stream = adapter(ACILClassifier(scores="ridge", expansion_size=None, gamma=3.0))
    for x, label in samples()[::25]:
        stream.learn_one(x, label)
    fresh = stream.clone()
    assert fresh.model.gamma == 3.0
    assert fresh.predict_proba_one(samples()[0][0]) == {}
    # Its own first sample decides the order of the features.
    fresh.learn_one({"b": 1.0, "a": 2.0}, "x")
    assert fresh.model.classes_.tolist() == ["x"]
    assert len(stream.model.classes_) == 3
    with pytest.raises(InputError, match="learnt nothing"):
        adapter(ACILClassifier(scores="ridge").fit(X, y))


def test_missing_package_is_named(monkeypatch):
    for name in ("river", "river.base"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "acil.scale.river", raising=False)
    from acil.scale.river import RiverClassifier

    sys.modules.pop("acil.scale.river")
    with pytest.raises(MissingExtraError, match="pip install river"):
        RiverClassifier(ACILClassifier(scores="ridge"))


@pytest.mark.parametrize("size", [None, 16])
def test_features_that_come_later_to_standardized_ones_change_nothing_where_they_are_0(size):
    table, labels = as_table()
    model = ACILClassifier(scores="ridge", expansion_size=size, gamma=1.0, standardize=True).fit(
        table, labels
    )
    expected = model.predict_proba(table)
    state = learnt_of(model).widened(["colour"])
    assert state.scaling[:, 4].tolist() == [0.0, 1.0]
    adopt(model, state)
    model.n_features_in_ = 5
    model.feature_names_in_ = np.array([*NAMES, "colour"], dtype=object)
    found = model.predict_proba(table.assign(colour=0.0))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
