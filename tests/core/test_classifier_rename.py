"""Renaming classes, and making one of several: as if all had been learnt with the new labels."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from acil import ACILClassifier, load, save
from acil.errors import InputError, UnsupportedError
from support.strategies import Unchanged

#: Two orders of the same sums: rounding of well-conditioned problems (κ < 1e4).
ROUNDING = 1e-9
SETTINGS = [
    {"scores": "ridge", "gamma": 1.0},
    {"scores": "ridge", "gamma": "auto", "fit_intercept": True},
    {"scores": "ridge", "gamma": 1.0, "class_balance": 0.5},
    {"scores": "discriminant"},
    {"solver": "recursive", "gamma": 1.0},
]
#: Swaps two names, and makes one class of two, under a name that sorts elsewhere.
NAMES = {"ant": "owl", "owl": "ant", "cat": "pet", "dog": "pet"}


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    y = np.array(["ant", "cat", "dog", "eel", "owl"])[np.arange(100) % 5]
    X = rng.normal(size=(100, 6)) + 2 * np.eye(5, 6)[np.arange(100) % 5]
    return X, y, np.array([NAMES.get(label, label) for label in y])


@pytest.mark.parametrize("settings", SETTINGS)
def test_renamed_model_equals_one_that_learnt_the_new_labels(problem, settings):
    X, y, renamed = problem
    settings = {"expansion_size": 24, **settings}
    clf = ACILClassifier(**settings).fit(X[:60], y[:60])
    clf.predict(X)
    clf.partial_fit(X[60:62], y[60:62])  # rows that wait
    clf.rename_classes(NAMES)
    clf.partial_fit(X[62:], renamed[62:])
    joint = ACILClassifier(**settings).fit(X, renamed)
    assert clf.classes_.tolist() == joint.classes_.tolist() == ["ant", "eel", "owl", "pet"]
    assert clf.class_count_.tolist() == joint.class_count_.tolist()
    if settings.get("gamma", "auto") == "auto":  # the same sums may round to a neighbour on the grid
        clf.set_gamma(joint.gamma_)
    np.testing.assert_allclose(clf.coef_, joint.coef_, rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(clf.intercept_, joint.intercept_, rtol=0, atol=ROUNDING)
    np.testing.assert_array_equal(clf.predict(X), joint.predict(X))


def test_weights_are_those_of_a_foreign_ridge_on_the_new_labels(problem):
    X, y, renamed = problem
    clf = ACILClassifier(expansion_size=None, scores="ridge", gamma=2.0).fit(X, y)
    clf.rename_classes(NAMES)
    targets = (renamed[:, None] == clf.classes_).astype(float)
    foreign = Ridge(alpha=2.0, fit_intercept=False).fit(X, targets)
    np.testing.assert_allclose(clf.coef_, foreign.coef_, rtol=0, atol=ROUNDING)


def test_γ_is_chosen_again_for_other_targets_and_kept_for_other_names(problem):
    X, y, renamed = problem
    clf = ACILClassifier(expansion_size=24).fit(X, y)
    before = clf.gamma_
    assert clf.copy().rename_classes({"ant": "bee"}).gamma_ == before
    joint = ACILClassifier(expansion_size=24).fit(X, renamed)
    assert clf.rename_classes(NAMES).gamma_ == pytest.approx(joint.gamma_)


def test_samples_of_a_renamed_class_are_forgotten_under_its_new_label(problem, tmp_path):
    X, y, renamed = problem
    clf = ACILClassifier(expansion_size=24, gamma=1.0).fit(X, y).rename_classes(NAMES)
    save(clf, tmp_path / "m.acil")
    clf = load(tmp_path / "m.acil").forget(X[:40], renamed[:40])
    joint = ACILClassifier(expansion_size=24, gamma=1.0).fit(X[40:], renamed[40:])
    np.testing.assert_allclose(clf.coef_, joint.coef_, rtol=0, atol=ROUNDING)


def test_calibration_stays_and_says_what_was_measured_apart(problem):
    X, y, _ = problem
    clf = ACILClassifier(expansion_size=24).fit(X, y)
    before = clf.sums().calibration
    assert clf.copy().rename_classes({"ant": "bee"}).sums().calibration == before
    merged = clf.rename_classes(NAMES).sums().calibration
    assert merged["approximate"]
    assert merged["novelties"] == before["novelties"]
    np.testing.assert_allclose(clf.predict_proba(X).sum(axis=1), 1)
    assert (clf.relative_novelty(X) < 1).mean() > 0.9


def test_numbers_stay_numbers_and_swap(problem):
    X, y, _ = problem
    labels = np.unique(y, return_inverse=True)[1]
    clf = ACILClassifier(expansion_size=24).fit(X, labels)
    before = clf.predict(X)
    clf.rename_classes({0: 4, 4: 0, 2: 17})
    assert clf.classes_.dtype == labels.dtype
    assert clf.classes_.tolist() == [0, 1, 3, 4, 17]
    np.testing.assert_array_equal(clf.predict(X), np.array([4, 1, 17, 3, 0])[before])


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"fox": "bee"}, "never learnt"),
        ({"ant": 3}, "of type"),
        ({1: "bee"}, "of type"),
        ({"ant": "a\0b"}, "cannot be stored"),
    ],
)
def test_refused_names_change_nothing(problem, names, said):
    X, y, _ = problem
    clf = ACILClassifier(expansion_size=24).fit(X, y)
    with Unchanged(clf, X), pytest.raises(InputError, match=said):
        clf.rename_classes(names)


def test_a_model_that_only_predicts_keeps_its_names(problem, tmp_path):
    X, y, _ = problem
    save(ACILClassifier(expansion_size=24).fit(X, y), tmp_path / "m.acil", inference=True)
    with pytest.raises(UnsupportedError, match="only predict"):
        load(tmp_path / "m.acil").rename_classes({"ant": "bee"})
