"""Sums as arrays: what comes back is the model, and nothing gets in that samples cannot have."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.linear_model import Ridge

from acil import ACILClassifier, ImageClassifier, ModelSums, load, save
from acil.core.exchange import Origin
from acil.core.files import describe, verify
from acil.errors import InputError, UnsupportedError
from acil.growing.snapshot import Snapshot, Tracker

#: Of two ways to the same sums, relative: κ of these models is below 1e6.
ROUNDING = 1e-9
N = 90
X = np.random.default_rng(0).normal(size=(N, 5)) + np.repeat(np.eye(3, 5) * 4, N // 3, axis=0)
Y = np.repeat(["cat", "dog", "owl"], N // 3)
WEIGHTS = np.random.default_rng(1).uniform(0.5, 2.0, N)


def model(**options):
    return ACILClassifier(**({"expansion_size": 40, "gamma": 1.0, "standardize": False} | options))


def shares(k=3, **options):
    """Return the sums of models that have each seen a share of the samples, all of some classes."""
    return [model(**options).fit(X[i::k], Y[i::k]).sums() for i in range(k)]


def close(found, expected):
    np.testing.assert_array_equal(found.classes_, expected.classes_)
    scale = np.abs(expected.coef_).max()
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=0, atol=ROUNDING * scale)
    np.testing.assert_allclose(found.intercept_, expected.intercept_, rtol=0, atol=ROUNDING * 10)
    assert found.class_count_.tolist() == expected.class_count_.tolist()


KINDS = {
    "discriminant": {},
    "chosen": {"gamma": "auto"},
    "standardized": {"standardize": True},
    "balanced": {"scores": "ridge", "class_balance": 0.5},
    "intercept": {"fit_intercept": True},
    "plain": {"expansion_size": None, "scores": "ridge"},
    "float32": {"dtype": "float32", "gamma": 10.0, "scores": "ridge"},
    "mixed": {"dtype": "mixed", "gamma": 10.0, "scores": "ridge"},
    "clipped": {"clip_norm": 2.0},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("projection", [True, False])
def test_a_model_comes_back_from_its_sums(kind, projection):
    clf = model(**KINDS[kind]).fit(X, Y, sample_weight=None if kind == "clipped" else WEIGHTS)
    again = ACILClassifier.from_sums(clf.sums(projection))
    assert again.sums().gram.tobytes() == clf.sums().gram.tobytes()
    np.testing.assert_array_equal(again.decision_function(X), clf.decision_function(X))
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))
    np.testing.assert_array_equal(again.relative_novelty(X), clf.relative_novelty(X))
    again.partial_fit(X[:7], Y[:7])
    clf.partial_fit(X[:7], Y[:7])
    close(again, clf) if "32" not in kind and kind != "mixed" else None


@pytest.mark.parametrize("kind", ["discriminant", "balanced", "intercept", "plain"])
def test_added_sums_are_the_model_of_all_samples_in_any_order(kind):
    whole, parts = model(**KINDS[kind]).fit(X, Y), shares(**KINDS[kind])
    close(ACILClassifier.from_sums(parts[0] + parts[1] + parts[2]), whole)
    close(ACILClassifier.from_sums(parts[2] + (parts[0] + parts[1])), whole)
    one_by_one = model(**KINDS[kind])
    for part in parts:
        one_by_one.add_sums(part)
    close(one_by_one, whole)
    first = model(**KINDS[kind]).fit(X[::3], Y[::3])
    close(first.add_sums(parts[1] + parts[2]), whole)


def test_sums_of_other_classes_make_room_for_them():
    first, second = (model().fit(X[part], Y[part]) for part in (slice(0, 60), slice(60, None)))
    both = second.sums() + first.sums()
    assert both.classes.tolist() == ["cat", "dog", "owl"]
    close(ACILClassifier.from_sums(both), model().fit(X, Y))
    assert both.calibration["samples"] > 0


def test_merging_models_is_adding_their_sums():
    first, second = (model().fit(X[i::2], Y[i::2]) for i in (0, 1))
    added = ACILClassifier.from_sums(first.sums() + second.sums())
    merged = first.merge(second)
    close(added, merged)
    assert added.temperature_ == pytest.approx(merged.temperature_, rel=1e-9)


def test_what_was_measured_at_temperatures_of_another_kind_is_not_added():
    first, second = (model().fit(X[i::2], Y[i::2]) for i in (0, 1))
    sums = second.sums()
    sums = replace(sums, calibration={**sums.calibration, "hotter": 0.0})  # of a file of before
    before = first.sums().calibration["samples"]
    merged = first.add_sums(sums).sums().calibration
    assert merged["approximate"]
    assert merged["hotter"] == 1
    assert merged["samples"] == pytest.approx(before)
    of_before = ACILClassifier.from_sums(sums)
    assert of_before.sums().calibration["hotter"] == 0
    heated = of_before.decision_function(X) / of_before.temperature_
    np.testing.assert_allclose(of_before.predict_proba(X), softmax(heated, axis=1))
    for bad in (-1.0, float("nan"), 1e9):
        with pytest.raises(InputError, match="calibration"):
            ACILClassifier.from_sums(replace(sums, calibration={**sums.calibration, "hotter": bad}))


def test_sums_by_numpy_are_the_ridge_regression_of_scikit_learn():
    """Whoever computes the sums by other means gets the model, too."""
    rows, targets = X * WEIGHTS[:, None], np.eye(3)[np.unique(Y, return_inverse=True)[1]]
    like = model(expansion_size=None, scores="ridge")
    sums = ModelSums(
        classes=np.unique(Y),
        counts=targets.sum(axis=0).astype(int),
        class_weight=WEIGHTS @ targets,
        gram=(X.T @ rows)[np.tril_indices(5)],
        moment=rows.T @ targets,
        total=rows.sum(axis=0),
        total_weight=WEIGHTS.sum(),
        n_features=5,
        fingerprint=like.fit(X[:2], Y[:2]).sums().fingerprint,
        parameters=like.sums().parameters,
    )
    reference = Ridge(alpha=1.0, fit_intercept=False).fit(X, targets, sample_weight=WEIGHTS)
    found = ACILClassifier.from_sums(sums)
    np.testing.assert_allclose(found.coef_, reference.coef_, rtol=0, atol=1e-12)


def test_arrays_hold_everything_and_no_objects():
    sums = model(clip_norm=2.0).fit(X, Y).sums()
    file = io.BytesIO()
    np.savez(file, **sums.to_arrays())
    file.seek(0)
    again = ModelSums.from_arrays(np.load(file, allow_pickle=False))
    assert json.dumps(again.parameters) == json.dumps(sums.parameters)
    assert again.clipped
    assert again.origin == sums.origin
    for name, array in sums.to_arrays().items():
        assert array.tobytes() == again.to_arrays()[name].tobytes(), name
    with pytest.raises(InputError, match="no sums"):
        ModelSums.from_arrays({"gram": np.ones(3)})
    with pytest.raises(InputError, match="unknown: extra"):
        ModelSums.from_arrays({**sums.to_arrays(), "extra": np.ones(3)})


def test_like_gives_expansion_and_settings_to_sums_without():
    clf = model(standardize=True).fit(X[:60], Y[:60])
    part = model(standardize=clf.scaling_).fit(X[60:], Y[60:]).sums(projection=False)
    added = ACILClassifier.from_sums(part, like=clf.set_params(gamma=3.0))
    assert added.gamma_ == 3.0
    assert added.classes_.tolist() == ["owl"]
    other = model(random_state=7)
    with pytest.raises(InputError, match="different expansions"):
        ACILClassifier.from_sums(model().fit(X, Y).sums(projection=False), like=other)


EMPTY = {"samples": 1.0, "losses": [], "novelties": [], "approximate": True}
BAD = {
    "NaN": ({"total": np.full(40, np.nan)}, "total has values that are NaN"),
    "shape": ({"moment": np.zeros((40, 2))}, r"moment must be .* of shape \(40, 3\)"),
    "text": ({"gram": np.full(820, "x")}, "gram must be an array of numbers"),
    "unsorted": ({"classes": np.array(["owl", "dog", "cat"])}, "distinct and sorted"),
    "twice": ({"classes": np.array(["cat", "cat", "owl"])}, "distinct and sorted"),
    "negative": ({"counts": np.array([-1, 30, 30])}, "none negative"),
    "fractions": ({"counts": np.array([1.5, 30, 30])}, "must be ints"),
    "weightless": ({"class_weight": np.array([0.0, 30, 30])}, "positive for classes with samples"),
    "other total": ({"total": np.ones(40)}, "not those of its classes"),
    "other weight": ({"total_weight": 91.0}, "not those of its classes"),
    "features": ({"n_features": 6}, "float32 and fit each other"),
    "calibration": ({"calibration": EMPTY}, "'calibration' does not have"),
    "hash": ({"fingerprint": "0" * 64}, "different expansions"),
    "projection": ({"projection": np.zeros((5, 35), np.float32)}, "different expansions"),
}


@pytest.mark.parametrize("fault", BAD)
def test_arrays_that_are_no_sums_of_samples_change_nothing(fault):
    changes, words = BAD[fault]
    sums = replace(model().fit(X, Y).sums(), **changes)
    with pytest.raises(InputError, match=words):
        ACILClassifier.from_sums(sums)
    taking = model().fit(X[:30], Y[:30])
    before = taking.coef_
    if fault not in ("projection", "features"):  # which it has itself
        with pytest.raises(InputError):
            taking.add_sums(sums)
    np.testing.assert_array_equal(taking.coef_, before)
    untaught = model()
    with pytest.raises(InputError):
        untaught.add_sums(sums)
    assert not untaught.__sklearn_is_fitted__()


@pytest.mark.parametrize(
    ("part", "factor"), [("gram", -1.0), ("gram", 0.3), ("moment", 3.0)], ids=["no", "small", "large"]
)
def test_sums_that_no_samples_can_have_are_refused(part, factor):
    clf = model(gamma=1e-3).fit(X, Y)
    sums = clf.sums()
    changed = {part: getattr(sums, part) * factor}
    if part == "moment":
        changed["total"] = sums.total * factor
    with pytest.raises(InputError, match="sums over samples"):
        ACILClassifier.from_sums(replace(sums, **changed))


def test_sums_of_other_features_are_refused():
    clf, other = model().fit(X, Y), model()
    with pytest.raises(InputError, match="5 and 4 features"):
        clf.add_sums(model().fit(X[:, :4], Y).sums())
    with pytest.raises(InputError, match="scale"):
        clf.add_sums(model(standardize=True).fit(X, Y).sums())
    with pytest.raises(InputError, match="type int"):
        clf.add_sums(model().fit(X, np.arange(N) % 3).sums())
    other.backbone_ = {"name": "another"}
    with pytest.raises(InputError, match="different backbones"):
        clf.add_sums(other.fit(X, Y).sums())
    with pytest.raises(UnsupportedError, match="solver"):
        model(solver="recursive").add_sums(clf.sums())
    with pytest.raises(UnsupportedError, match="sums"):
        model(solver="recursive").fit(X, Y).sums()
    for wrong in (clf, {}, None):
        with pytest.raises(InputError, match="ModelSums"):
            model().add_sums(wrong)
        with pytest.raises(InputError, match="ModelSums"):
            ACILClassifier.from_sums(wrong)
    with pytest.raises(InputError, match="fewer than"):
        model(min_class_samples=31).add_sums(clf.sums())


def test_rows_longer_than_the_clip_norm_are_noticed():
    sums = model(clip_norm=2.0).fit(X, Y).sums()
    with pytest.raises(InputError, match="clip_norm"):
        ACILClassifier.from_sums(replace(sums, gram=sums.gram * 9, total=sums.total))


def test_private_sums_add_up_through_combine_alone():
    pytest.importorskip("dp_accounting")
    from acil.privacy import combine, guarantee, privatize

    exact = model(clip_norm=1.0, expansion_size=None, gamma=1.0).fit(X, Y)
    releases = [privatize(exact.copy(), 8.0, 1e-6) for _ in range(2)]
    private = [release.sums() for release in releases]
    for wrong in (
        lambda: private[0] + private[1],
        lambda: exact.sums() + private[0],
        lambda: exact.copy().add_sums(private[0]),
        lambda: ACILClassifier.from_sums(private[0]).add_sums(private[1]),
        lambda: ACILClassifier.from_sums(private[0]).add_sums(exact.sums()),
    ):
        with pytest.raises(UnsupportedError, match=r"acil.privacy.combine"):
            wrong()
    again = [ACILClassifier.from_sums(sums) for sums in private]
    for release, found in zip(releases, again, strict=True):
        np.testing.assert_array_equal(found.decision_function(X), release.decision_function(X))
        assert guarantee(found) == guarantee(release)
    both = combine(again, disjoint=False)
    assert guarantee(both)["epsilon"] == guarantee(combine(releases, disjoint=False))["epsilon"]
    # What was released before is stated with what comes next, on whatever way it came there.
    noted = exact.copy()
    privatize(noted, 8.0, 1e-6)
    ledger = ACILClassifier.from_sums(noted.sums()).sums().release
    assert len(ledger["releases"]) == 1
    assert not ledger["private"]


def test_privatize_refuses_sums_that_acil_did_not_clip(tmp_path):
    pytest.importorskip("dp_accounting")
    from acil.privacy import privatize

    sums = model(clip_norm=1.0, expansion_size=None).fit(X, Y).sums()
    assert privatize(ACILClassifier.from_sums(sums), 8.0, 1e-6) is not None
    given = ACILClassifier.from_sums(replace(sums, clipped=False))
    mixed = model(clip_norm=1.0, expansion_size=None).fit(X, Y).add_sums(replace(sums, clipped=False))
    save(given, tmp_path / "m.acil")
    merged = ACILClassifier.from_sums(sums).merge(given)
    for clf in (given, mixed, merged, load(tmp_path / "m.acil"), given.copy().partial_fit(X[:3], Y[:3])):
        with pytest.raises(UnsupportedError, match="clipped"):
            privatize(clf, 8.0, 1e-6)


def test_without_calibration_nothing_is_called_unknown(tmp_path):
    sums = replace(model().fit(X, Y).sums(), calibration=None)
    clf = ACILClassifier.from_sums(sums)
    assert np.isfinite(clf.predict_proba(X)).all()
    save(clf, tmp_path / "m.acil")
    assert all(check.ok for check in verify(tmp_path / "m.acil"))
    assert describe(tmp_path / "m.acil")["calibration"] is None
    for found in (clf, load(tmp_path / "m.acil"), clf.copy().partial_fit(X[:9], Y[:9])):
        snapshot = Snapshot(found, Tracker())
        assert snapshot.can_learn
        assert not snapshot.knows_novelty
    # With samples that were calibrated, it is known for these.
    clf.add_sums(model().fit(X, Y).sums())
    assert Snapshot(clf, Tracker()).knows_novelty
    assert clf.sums().calibration["approximate"]


def test_inspect_and_predict_say_that_there_is_no_calibration(tmp_path):
    from typer.testing import CliRunner

    from acil.cli import app

    file, features = tmp_path / "m.acil", tmp_path / "x.npz"
    clf = ACILClassifier.from_sums(replace(model().fit(X, Y).sums(), calibration=None))
    save(clf, file)
    np.savez(features, features=X[:3] * 50)
    shown = CliRunner().invoke(app, ["inspect", str(file)], env={"COLUMNS": "300"})
    assert "put together without calibration" in shown.output
    answer = CliRunner().invoke(app, ["predict", str(file), str(features), "--json"])
    assert "cannot tell what is unknown" in answer.stderr
    assert [found["label"] for found in json.loads(answer.stdout)] == clf.predict(X[:3] * 50).tolist()
    assert ImageClassifier.load(file).snapshot.classify(X[:2], ["a", "b"], 1, 1.0)[0].novelty is None


def test_origins_are_compared_part_by_part():
    mine = Origin(3, "a")
    mine.require_same(Origin(3, "a", dtype="float32"))
    with pytest.raises(UnsupportedError, match="same dtype"):
        Origin(3, "a", clip_norm=1.0).require_same(Origin(3, "a", dtype="float32", clip_norm=1.0))
    with pytest.raises(InputError, match="different names"):
        Origin(3, "a", feature_names=["x"]).require_same(Origin(3, "a", feature_names=["y"]))
    mine.require_same(Origin(3, "a", feature_names=["x"]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_sums_of_a_gpu_are_arrays():
    clf = model(device="cuda").fit(X, Y)
    close(ACILClassifier.from_sums(clf.sums()), clf)
