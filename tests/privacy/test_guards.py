"""Guards against revealing models: clipped rows, classes of few samples, saved states that lie close."""

import numpy as np
import pytest

from acil import ACILClassifier, load, save
from acil.core.classifier import learnt_of
from acil.errors import InputError
from acil.growing.snapshot import Snapshot, Tracker
from acil.privacy import privatize

rng = np.random.default_rng(0)
X, y = rng.normal(size=(60, 5)), np.repeat(["cat", "dog", "owl"], 20)


@pytest.mark.parametrize("size", [None, 16])
def test_clipped_rows_are_what_scaled_features_would_be(size):
    # ReLU keeps positive factors, so clipping expanded rows is the same as scaling the features.
    clf = ACILClassifier(scores="ridge", expansion_size=size, gamma=1.0, clip_norm=0.5).fit(X, y)
    plain = ACILClassifier(scores="ridge", expansion_size=size, gamma=1.0).fit(X, y)
    rows = X if size is None else np.maximum(X @ learnt_of(plain).model.expansion.projection.numpy(), 0)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled = ACILClassifier(scores="ridge", expansion_size=size, gamma=1.0).fit(
        X * np.minimum(1, 0.5 / norms), y
    )
    np.testing.assert_allclose(clf.coef_, scaled.coef_, rtol=1e-5, atol=1e-6)


def test_clipped_rows_are_forgotten_and_saved_like_others(tmp_path):
    clf = ACILClassifier(scores="ridge", expansion_size=16, gamma=1.0, clip_norm=0.5).fit(X, y)
    without = ACILClassifier(scores="ridge", expansion_size=16, gamma=1.0, clip_norm=0.5).fit(
        X[:-3], y[:-3]
    )
    save(clf, tmp_path / "m.acil")
    read = load(tmp_path / "m.acil").forget(X[-3:], y[-3:])
    np.testing.assert_allclose(read.coef_, without.coef_, atol=1e-12)


def test_models_of_different_clip_norms_do_not_merge():
    first, second = (
        ACILClassifier(scores="ridge", expansion_size=8, gamma=1.0, clip_norm=c).fit(X, y)
        for c in (1, 2)
    )
    with pytest.raises(InputError, match="expansions"):
        first.merge(second)


def test_no_clipped_sample_counts_more_than_once():
    heavy = np.r_[2.0, np.ones(59)]
    with pytest.raises(InputError, match="weight 2"):
        ACILClassifier(scores="ridge", clip_norm=1.0).fit(X, y, sample_weight=heavy)
    # What counts is how the model has learnt, not how it is set now.
    clf = (
        ACILClassifier(scores="ridge", expansion_size=8, clip_norm=1.0)
        .fit(X, y)
        .set_params(clip_norm=None)
    )
    with pytest.raises(InputError, match="weight 2"):
        clf.partial_fit(X, y, sample_weight=heavy)


@pytest.mark.parametrize(("name", "value"), [("clip_norm", 0), ("min_class_samples", 0)])
def test_guards_are_checked(name, value):
    with pytest.raises(InputError, match=name):
        ACILClassifier(**({"scores": "ridge"} | {name: value})).fit(X, y)


def test_a_class_of_few_samples_is_refused_and_leaves_no_trace(caplog):
    clf = ACILClassifier(scores="ridge", expansion_size=8, gamma=1.0, min_class_samples=10).fit(X, y)
    before = clf.coef_
    with pytest.raises(InputError, match=r"'emu' .*min_class_samples"):
        clf.partial_fit(X[:10], ["emu"] * 9 + ["cat"])
    assert "emu" not in clf.classes_
    assert clf.n_samples_ == 60
    np.testing.assert_array_equal(clf.coef_, before)
    # Single samples of a class that is large enough, and forgetting, go on.
    clf.partial_fit(X[:1], ["cat"]).forget(X[20:35], y[20:35])
    assert "Class 'dog' has 5 samples left, fewer than min_class_samples=10" in caplog.text
    with pytest.raises(InputError, match=r"'dog' .*6"):
        clf.partial_fit(X[20:21], ["dog"])


def test_samples_of_weight_zero_do_not_make_a_class_large_enough():
    with pytest.raises(InputError, match=r"'owl' .*1"):
        ACILClassifier(scores="ridge", min_class_samples=2).fit(
            X, y, sample_weight=np.r_[np.ones(41), np.zeros(19)]
        )


def test_merging_does_not_bring_small_classes_in():
    clf = ACILClassifier(scores="ridge", expansion_size=8, gamma=1.0, min_class_samples=10).fit(X, y)
    small = ACILClassifier(scores="ridge", expansion_size=8, gamma=1.0).fit(X[:3], ["emu"] * 3)
    with pytest.raises(InputError, match=r"'emu' .*3"):
        clf.merge(small)


def test_private_release_has_sums_and_cannot_learn():
    pytest.importorskip("dp_accounting")
    clf = ACILClassifier(scores="ridge", expansion_size=8, gamma=1.0, clip_norm=1.0).fit(X, y)
    plain, released = Snapshot(clf, Tracker()), Snapshot(privatize(clf, 4.0, 1e-6), Tracker())
    assert (plain.can_learn, plain.knows_novelty) == (True, True)
    assert (released.can_learn, released.knows_novelty) == (False, False)
    assert released.classify(X[:1].astype(np.float32), ["a"], 1, 1.0)[0].novelty is None


def test_the_recursion_learns_and_predicts_without_novelty():
    clf = ACILClassifier(scores="ridge", expansion_size=8, gamma=1.0, solver="recursive").fit(X, y)
    recursive = Snapshot(clf, Tracker())
    assert (recursive.can_learn, recursive.knows_novelty) == (True, False)
    (found,) = recursive.classify(X[:1].astype(np.float32), ["a"], 1, 1.0)
    assert (found.novelty, found.unknown, found.label) == (None, False, clf.predict(X[:1])[0])
