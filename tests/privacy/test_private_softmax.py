"""Private softmax classifiers: noise of the stated scale, bounded gradients, an ε that adds up."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from acil import ACILClassifier, load, save
from acil.core.classifier import learnt_of
from acil.errors import InputError, UnsupportedError
from acil.privacy import combine, guarantee, private_softmax, privatize, release, softmax

dp_accounting = pytest.importorskip("dp_accounting")

rng = np.random.default_rng(0)
X, y = rng.random((300, 8)), np.repeat(["cat", "dog", "owl"], 100)
DELTA = 1e-5


def plain(**settings):
    return ACILClassifier(
        **({"scores": "ridge"} | {"expansion_size": None, "gamma": 1.0, "clip_norm": 1.0, **settings})
    )


def far_apart(n):
    """Return n samples of each of three classes."""
    centres = np.repeat(np.eye(3, 8) - np.eye(3, 8).mean(axis=0), n, axis=0)
    return rng.normal(size=(3 * n, 8)) * 0.2 + centres, np.repeat(["cat", "dog", "owl"], n)


def test_it_predicts_and_is_stored_with_its_guarantee(tmp_path):
    many, names = far_apart(2000)
    made = private_softmax(plain(scores="discriminant").fit(many, names), many, names, 1.0, DELTA)
    assert made.score(many, names) > 0.95
    with pytest.raises(UnsupportedError, match="inference=True"):
        save(made, tmp_path / "r.acil")
    save(made, tmp_path / "r.acil", inference=True)
    read = load(tmp_path / "r.acil")
    assert np.array_equal(read.coef_, made.coef_)
    np.testing.assert_allclose(read.predict_proba(many), made.predict_proba(many), rtol=1e-12)
    assert guarantee(read) == guarantee(made)
    assert guarantee(read)["epsilon"] == 1.0


@pytest.mark.parametrize(
    "bad", [{"steps": 0}, {"steps": 2.5}, {"longest_error": 0.0}, {"longest_error": 2.0}]
)
def test_bad_settings_of_the_descent_release_nothing(bad):
    clf = plain().fit(X, y)
    with pytest.raises(InputError, match="steps"):
        private_softmax(clf, X, y, 1.0, DELTA, **bad)
    assert guarantee(private_softmax(clf, X, y, 1.0, DELTA))["epsilon"] == 1.0


def test_it_is_the_softmax_classifier_where_noise_does_not_count(monkeypatch):
    from sklearn.linear_model import LogisticRegression

    centres = rng.normal(size=(3, 8))
    labels = rng.integers(0, 3, size=6000)
    rows = centres[labels] * 0.5 + rng.normal(size=(6000, 8))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    monkeypatch.setattr(softmax, "_RIDGE", 1e-3)
    settings = {"steps": 400, "longest_error": math.sqrt(2)}
    made = private_softmax(plain().fit(rows, labels), rows, labels, 1e6, DELTA, **settings)
    C = 1 / (1e-3 * 6000 / 3 / 8)
    reference = LogisticRegression(C=C, fit_intercept=False, tol=1e-8).fit(rows, labels)
    np.testing.assert_allclose(
        made.predict_proba(rows[:200]), reference.predict_proba(rows[:200]), atol=1e-3
    )


@given(st.integers(0, 299), st.integers(1, 4), st.floats(0.0, 100.0))
def test_one_sample_moves_a_gradient_by_at_most_the_stated_length(left_out, blocks, size):
    columns = torch.arange(300) % 3
    rows = torch.from_numpy(X / np.linalg.norm(X, axis=1, keepdims=True))
    W = size * torch.from_numpy(rng.normal(size=(8, 3)))

    def slope(kept):
        parts = zip(rows[kept].chunk(blocks), columns[kept].chunk(blocks), strict=True)
        return softmax.gradient(((x, c, None) for x, c in parts), W, 0.5)

    kept = torch.arange(300) != left_out
    whole, rest = slope(torch.ones(300, dtype=torch.bool)), slope(kept)
    assert float((whole - rest).norm()) <= 0.5 + 1e-9


def test_gradients_that_are_short_enough_are_exact():
    rows, columns = torch.from_numpy(X), torch.arange(300) % 3
    W = torch.zeros(8, 3, dtype=torch.float64, requires_grad=True)
    torch.nn.functional.cross_entropy(rows @ W, columns, reduction="sum").backward()
    torch.testing.assert_close(softmax.gradient(iter([(rows, columns, None)]), W.detach(), 10.0), W.grad)


@pytest.mark.parametrize(("steps", "longest"), [(8, 0.25), (5, 1.0)])
def test_the_noise_has_the_stated_scale(monkeypatch, steps, longest):
    clip_norm, sigma = 2.0, dp_accounting.get_sigma_gaussian(2.0, DELTA)
    seen, sums = [], []
    monkeypatch.setattr(softmax, "gradient", lambda blocks, W, longest: torch.zeros_like(W))
    real = softmax.gaussian
    monkeypatch.setattr(softmax, "gaussian", lambda *shape: seen.append(real(*shape)) or seen[-1])
    real_sums = softmax.noisy_sums
    monkeypatch.setattr(softmax, "noisy_sums", lambda *given: sums.append(given[3]) or real_sums(*given))
    # Without ridge and momentum, and with the last iterate alone, weights are a sum of the noise.
    monkeypatch.setattr(softmax, "_RIDGE", 0.0)
    monkeypatch.setattr(softmax, "_RIDGE_OF_NOISE", 0.0)
    monkeypatch.setattr(softmax, "_MOMENTUM", 0.0)
    monkeypatch.setattr(softmax, "_AVERAGED_FROM", (steps - 1) / steps)
    moment, counts = torch.zeros(8, 3, dtype=torch.float64), torch.full((3,), 100.0).double()
    W = softmax._descended(lambda: iter([]), moment, counts, clip_norm, sigma, steps, longest)
    assert len(seen) == steps
    rate = 1 / (100 * clip_norm**2 / 8 * (2 / 3))
    each = sigma * math.sqrt(steps) * longest * clip_norm
    torch.testing.assert_close(W, -rate * sum(release.on_grid(each * noise, each) for noise in seen))
    # All together: class sums and the steps make up one mechanism with the stated σ.
    clf = plain(clip_norm=clip_norm).fit(X, y)
    scales = []
    real_descended = softmax._descended
    monkeypatch.setattr(
        softmax, "_descended", lambda *given: scales.append(given[4]) or real_descended(*given)
    )
    private_softmax(clf, X, y, 2.0, DELTA, steps=steps, longest_error=longest)
    assert len(seen) == 2 * steps
    assert sums[0] ** -2 + scales[0] ** -2 == pytest.approx(sigma**-2)
    noise = torch.cat([part.flatten() for part in seen])
    assert abs(float(noise.std()) - 1) < 5 / math.sqrt(2 * len(noise))


def test_releases_of_both_kinds_add_up(tmp_path):
    clf = plain().fit(X, y)
    private_softmax(clf, X, y, 1.0, DELTA)
    save(clf, tmp_path / "m.acil")
    clf = load(tmp_path / "m.acil")
    privatize(clf, 2.0, DELTA)
    last = guarantee(private_softmax(clf, X, y, 0.5, DELTA))["epsilon"]
    loss = sum(dp_accounting.get_sigma_gaussian(epsilon, DELTA) ** -2 for epsilon in (1.0, 2.0, 0.5))
    assert last == pytest.approx(dp_accounting.get_epsilon_gaussian(loss**-0.5, DELTA))


def test_samples_in_any_order_and_classes_without_samples():
    order = rng.permutation(300)
    clf = plain(expansion_size=32).partial_fit(X[:200], y[:200]).partial_fit(X[200:], y[200:])
    names = ["cat", "dog", "emu", "owl"]
    made = private_softmax(clf, X[order], y[order], 1.0, DELTA, classes=names)
    assert made.classes_.tolist() == names
    assert (made.class_count_ >= 1).all()
    assert made.predict(X).shape == (300,)


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        (X[:-1], y[:-1], "all samples"),
        (X + 1e-3, y, "all samples"),
        (np.concatenate([X, X[:1]]), np.concatenate([y, y[:1]]), "all samples"),
        (X, np.roll(y, 1), "all samples"),
        (X, np.where(y == "cat", "emu", y), "never learnt"),
        (X[:, :-1], y, "features"),
        (X, y[:-1], "labels"),
        (X * math.nan, y, "NaN"),
    ],
)
def test_other_samples_than_those_learnt_are_refused_and_change_nothing(rows, labels, message):
    clf = plain().fit(X, y)
    state = learnt_of(clf)
    with pytest.raises(InputError, match=message):
        private_softmax(clf, rows, labels, 1.0, DELTA)
    assert learnt_of(clf) is state


def test_weighted_samples_and_label_sets_that_lack_a_class_are_refused():
    clf = plain().fit(X, y, sample_weight=np.full(300, 0.5))
    with pytest.raises(InputError, match="weight 1"):
        private_softmax(clf, X, y, 1.0, DELTA)
    with pytest.raises(InputError, match="lacks classes"):
        private_softmax(plain().fit(X, y), X, y, 1.0, DELTA, classes=["cat", "dog"])
    with pytest.raises(InputError, match="epsilon"):
        private_softmax(plain().fit(X, y), X, y, 0.0, DELTA)
    with pytest.raises(UnsupportedError, match="clip_norm"):
        private_softmax(plain(clip_norm=None).fit(X, y), X, y, 1.0, DELTA)


def test_a_release_does_not_learn_forget_merge_or_mix():
    clf = plain().fit(X, y)
    made, other = private_softmax(clf, X, y, 1.0, DELTA), privatize(plain().fit(X, y), 1.0, DELTA)
    for change in (
        lambda: made.partial_fit(X, y),
        lambda: made.forget(X[:1], y[:1]),
        lambda: clf.merge(made),
        lambda: privatize(made, 1.0, DELTA),
        lambda: private_softmax(made, X, y, 1.0, DELTA),
    ):
        with pytest.raises(UnsupportedError):
            change()
    for releases in ([made], [made, other], [other, made]):
        with pytest.raises(UnsupportedError, match="private_softmax"):
            combine(releases, disjoint=True)


@pytest.mark.parametrize(("n", "hidden"), [(8, True), (30, False)])
def test_few_samples_get_more_noise_than_epsilon_asks_for(monkeypatch, n, hidden):
    found, descended = [], softmax._descended
    monkeypatch.setattr(
        softmax, "_descended", lambda *given: found.append(given[4]) or descended(*given)
    )
    # Counts without noise: else it would be a matter of chance whether they are few.
    for module in (softmax, release):
        monkeypatch.setattr(module, "gaussian", lambda *shape: torch.zeros(shape, dtype=torch.float64))
    rows, labels = far_apart(n)
    made = private_softmax(plain().fit(rows, labels), rows, labels, 1.0, DELTA)
    asked = dp_accounting.get_sigma_gaussian(1.0, DELTA) / math.sqrt(0.9)
    assert found == [softmax._HIDING if hidden else pytest.approx(asked)]
    assert asked < softmax._HIDING
    # The area of the best attack on a Gaussian mechanism of this σ
    assert ndtr(1 / softmax._HIDING / math.sqrt(2)) <= 0.55
    assert guarantee(made)["epsilon"] == 1.0
