"""RiverClassifier: sample by sample, it gives what learning all at once gives."""

import sys
import types

import numpy as np
import pytest
from sklearn.datasets import load_iris

from acil import ACILClassifier
from acil.errors import InputError, MissingExtraError

X, y = load_iris(return_X_y=True)
NAMES = ("sepal length", "sepal width", "petal length", "petal width")
LABELS = np.array(["setosa", "versicolor", "virginica"])[y]


class Classifier:
    """Stands for river.base.Classifier, of which only `predict_one` does something."""

    def predict_one(self, x, **options):
        found = self.predict_proba_one(x, **options)
        return max(found, key=found.get) if found else None


@pytest.fixture(params=["stand-in", "river"])
def adapter(request, monkeypatch):
    """Import acil.river, with the package or with what stands for it."""
    monkeypatch.delitem(sys.modules, "acil.river", raising=False)
    if request.param == "river":
        pytest.importorskip("river")
    else:
        base = types.ModuleType("river.base")
        base.Classifier = Classifier
        monkeypatch.setitem(sys.modules, "river", types.ModuleType("river"))
        monkeypatch.setitem(sys.modules, "river.base", base)
    from acil.river import RiverClassifier

    yield RiverClassifier
    sys.modules.pop("acil.river", None)


def samples():
    return [
        (dict(zip(NAMES, row, strict=True)), str(label)) for row, label in zip(X, LABELS, strict=True)
    ]


def test_one_after_another_equals_all_at_once(adapter):
    stream = adapter(ACILClassifier(scores="ridge", expansion_size=32, gamma=1.0))
    for x, label in samples():
        stream.learn_one(x, label)
    whole = ACILClassifier(scores="ridge", expansion_size=32, gamma=1.0).fit(X, LABELS)
    found = [stream.predict_proba_one(x) for x, _ in samples()[::10]]
    assert [*found[0]] == ["setosa", "versicolor", "virginica"]
    expected = whole.predict_proba(X[::10])
    np.testing.assert_allclose([[*row.values()] for row in found], expected, rtol=1e-6)
    assert [stream.predict_one(x) for x, _ in samples()[::10]] == whole.predict(X[::10]).tolist()


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
    with pytest.raises(InputError, match="'colour' was not in the first sample"):
        stream.learn_one({**x, "colour": 1.0}, "setosa")


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
        adapter(stream.model)


def test_missing_package_is_named(monkeypatch):
    for name in ("river", "river.base"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "acil.river", raising=False)
    from acil.river import RiverClassifier

    sys.modules.pop("acil.river")
    with pytest.raises(MissingExtraError, match="pip install river"):
        RiverClassifier(ACILClassifier(scores="ridge"))
