"""Private releases: noise of the stated scale, an ε that is never too small, attacks that fail."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri
from sklearn.metrics import roc_auc_score

from acil import ACILClassifier, load, save
from acil.core.classifier import learnt_of
from acil.core.files import pack, unpack
from acil.errors import InputError, UnsupportedError
from acil.privacy import audit, combine, guarantee, private_softmax, privatize, release

dp_accounting = pytest.importorskip("dp_accounting")

rng = np.random.default_rng(0)
X, y = rng.random((300, 8)), np.repeat(["cat", "dog", "owl"], 100)
DELTA = 1e-5


def plain(**settings):
    return ACILClassifier(
        **({"scores": "ridge"} | {"expansion_size": None, "gamma": 1.0, "clip_norm": 1.0, **settings})
    )


def sums_of(clf):
    ridge = learnt_of(clf).model.ridge
    ridge.flush()
    return ridge.sums


def total_epsilon(*epsilons):
    sigmas = [dp_accounting.get_sigma_gaussian(epsilon, DELTA) for epsilon in epsilons]
    events = [dp_accounting.GaussianDpEvent(sigma) for sigma in sigmas]
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(dp_accounting.ComposedDpEvent(events))
    return accountant.get_epsilon(DELTA)


def test_a_release_predicts_and_is_stored_with_its_guarantee(tmp_path):
    centres = np.repeat(np.eye(3, 8) * 2, 2000, axis=0)
    many, names = rng.normal(size=(6000, 8)) * 0.3 + centres, np.repeat(["cat", "dog", "owl"], 2000)
    made = privatize(plain(class_balance=True).fit(many, names), 1.0, DELTA)
    save(made, tmp_path / "r.acil")
    read = load(tmp_path / "r.acil")
    assert read.score(many, names) > 0.95
    assert guarantee(read)["epsilon"] == 1.0
    save(read, tmp_path / "i.acil", inference=True)
    assert guarantee(load(tmp_path / "i.acil"))["delta"] == DELTA


@pytest.mark.parametrize("gram", [True, False])
def test_one_sample_moves_the_released_numbers_by_at_most_one_unit_of_noise(gram):
    # The worst case: a row of full length. Variances of the noise are 1 / share.
    clf, unit = plain().fit(X, y), [[0.6, 0.8, *[0.0] * 6]]
    parts = []
    for model in (clf, clf.copy().partial_fit(unit, ["dog"])):
        exact = sums_of(model)
        full = torch.tril(exact.gram) + torch.tril(exact.gram, -1).T
        parts.append((full, exact.moment, exact.target_total))
    shares = release._SHARES[gram]
    squares = [float((after - before).square().sum()) for before, after in zip(*parts, strict=True)]
    assert sum(share * square for share, square in zip(shares, squares, strict=True)) <= 1 + 1e-12


def test_the_noise_has_the_stated_scale(monkeypatch):
    clf = plain(clip_norm=2.0).fit(X, y)
    sigma = dp_accounting.get_sigma_gaussian(2.0, DELTA)
    # Without what makes sums of samples of it: eigenvalues and counts as they come
    monkeypatch.setattr(torch.Tensor, "clamp", lambda self, min: self)
    monkeypatch.setattr(release, "_drawn", lambda values, variance: values)
    exact = sums_of(clf)
    gram = torch.tril(exact.gram) + torch.tril(exact.gram, -1).T
    diagonal, beside, moment, counts = [], [], [], []
    below = torch.ones(8, 8, dtype=torch.bool).tril(-1)
    for _ in range(300):
        made = sums_of(privatize(clf, 2.0, DELTA))
        noise = made.gram - gram
        diagonal.append(noise.diagonal())
        beside.append(noise[below])
        moment.append((made.moment - exact.moment).flatten())
        counts.append(made.target_total - exact.target_total)
    shares = release._SHARES[True]
    expected = [sigma * 2.0**p / math.sqrt(share) for p, share in zip((2, 1, 0), shares, strict=True)]
    for values, scale in zip(
        (diagonal, beside, moment, counts),
        (expected[0], expected[0] / math.sqrt(2), expected[1], expected[2]),
        strict=True,
    ):
        values = torch.cat(values)
        # Five standard errors of a standard deviation, and of a mean
        assert abs(float(values.std()) / scale - 1) < 5 / math.sqrt(2 * len(values))
        assert abs(float(values.mean())) < 5 * scale / math.sqrt(len(values))


def test_the_last_bits_of_a_release_are_the_same_whatever_the_samples_are():
    # Of one class nothing is drawn together, and with little noise no eigenvalue is negative: the
    # numbers are those to which noise was added. All their bits would tell samples for certain.
    made = sums_of(privatize(plain().fit(X, np.zeros(300, dtype=int)), 1000.0, DELTA))
    sigma = dp_accounting.get_sigma_gaussian(1000.0, DELTA)
    parts = (made.gram, made.moment, made.target_total)
    for values, share in zip(parts, release._SHARES[True], strict=True):
        places = values / 2.0 ** (math.floor(math.log2(sigma / math.sqrt(share))) - 10)
        # What is left is the rounding of what was computed with them.
        assert float((places - places.round()).abs().max()) < 1e-6


def test_noise_is_new_each_time_and_has_nothing_to_do_with_seeds():
    clf = plain(random_state=0).fit(X, y)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 (it must not matter)
    first = privatize(clf, 1.0, DELTA).coef_
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    assert not np.allclose(first, privatize(clf, 1.0, DELTA).coef_)


def test_repeated_releases_add_up():
    clf = plain().fit(X, y)
    stated = [guarantee(privatize(clf, epsilon, DELTA))["epsilon"] for epsilon in (1.0, 2.0, 0.5)]
    assert stated[0] == 1.0
    assert stated[2] == pytest.approx(total_epsilon(1.0, 2.0, 0.5), rel=1e-3)
    assert stated[2] > stated[1] > 2.0


KINDS = ["release", "learn", "forget", "merge", "copy", "save", "fit"]
CHANGES = st.lists(st.sampled_from(KINDS), max_size=8)


@given(CHANGES)
def test_epsilon_is_never_understated(tmp_path_factory, changes):
    """Whatever happens to a model, its next release counts all releases of any of its samples."""
    folder = tmp_path_factory.mktemp("changes")
    clf, made, others = plain().fit(X[::10], y[::10]), [], 0
    for change in changes:
        if change == "release":
            privatize(clf, 1.0, DELTA)
            made.append(1.0)
        elif change == "learn":
            clf.partial_fit(X[1:2], y[1:2])
            others += 1
        elif change == "forget" and others:
            clf.forget(X[1:2], y[1:2])
            others -= 1
        elif change == "merge":
            site = plain().fit(X[1::7], y[1::7])
            privatize(site, 2.0, DELTA)
            made.append(2.0)
            clf.merge(site)
        elif change == "copy":
            clf = clf.copy()
        elif change == "fit":
            clf.fit(X[::10], y[::10])
            others = 0
        elif change == "save":
            save(clf, folder / "m.acil")
            clf = load(folder / "m.acil")
    last = guarantee(privatize(clf, 1.0, DELTA))["epsilon"]
    # Gaussian mechanisms of the same samples: 1/σ² adds up
    loss = sum(dp_accounting.get_sigma_gaussian(epsilon, DELTA) ** -2 for epsilon in (*made, 1.0))
    assert last >= dp_accounting.get_epsilon_gaussian(loss**-0.5, DELTA) * (1 - 1e-9)


def test_disjoint_releases_have_the_largest_epsilon_and_others_that_of_all():
    first = privatize(plain().fit(X[:150], y[:150]), 1.0, DELTA)
    second = privatize(plain().fit(X[150:], y[150:]), 2.0, DELTA)
    together = combine([first, second], disjoint=True)
    assert together.classes_.tolist() == ["cat", "dog", "owl"]
    assert guarantee(together)["epsilon"] == pytest.approx(2.0)
    unknown = guarantee(combine([first, second], disjoint=False))["epsilon"]
    assert unknown == pytest.approx(total_epsilon(1.0, 2.0), rel=1e-3)
    torch.testing.assert_close(
        sums_of(together).moment.sum(dim=1), sums_of(first).total + sums_of(second).total
    )
    with pytest.raises(InputError, match="given twice"):
        combine([together, second], disjoint=True)


def test_private_and_plain_sums_never_mix():
    clf = plain().fit(X, y)
    made = privatize(clf, 1.0, DELTA)
    for change in (
        lambda: made.partial_fit(X, y),
        lambda: made.forget(X[:1], y[:1]),
        lambda: made.merge(clf),
        lambda: clf.merge(made),
        lambda: privatize(made, 1.0, DELTA),
    ):
        with pytest.raises(UnsupportedError, match="private release"):
            change()
    with pytest.raises(InputError, match="privatize"):
        combine([made, clf], disjoint=True)
    made.fit(X, y)
    assert guarantee(made) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_norm": None}, "clip_norm"),
        ({"dtype": "float32"}, "float64"),
        ({"standardize": True}, "scale"),
        ({"solver": "recursive"}, "need the sums"),
    ],
)
def test_models_that_cannot_be_released_are_refused(settings, message):
    with pytest.raises(UnsupportedError, match=message):
        privatize(plain(**settings).fit(X, y), 1.0, DELTA)


def test_sums_in_float32_do_not_get_into_a_release_by_merging():
    clf = plain().fit(X, y)
    for dtype in ("float32", "mixed"):
        with pytest.raises(UnsupportedError, match="merged"):
            clf.merge(plain(dtype=dtype).fit(X, y))
    assert clf.n_samples_ == 300


@pytest.mark.parametrize(("epsilon", "delta"), [(0, DELTA), (math.inf, DELTA), (1, 0), (1, 1)])
def test_budgets_are_checked(epsilon, delta):
    with pytest.raises(InputError, match="must be a"):
        privatize(plain().fit(X, y), epsilon, delta)


def test_the_label_set_is_fixed_and_does_not_tell_which_classes_have_samples():
    made = privatize(plain().fit(X, y), 1.0, DELTA, classes=["cat", "dog", "emu", "owl"])
    assert made.classes_.tolist() == ["cat", "dog", "emu", "owl"]
    assert (made.class_count_ >= 1).all()
    with pytest.raises(InputError, match="lacks classes"):
        privatize(plain().fit(X, y), 1.0, DELTA, classes=["cat", "dog"])


def test_the_largest_noise_is_finite(monkeypatch):
    monkeypatch.setattr(release.os, "urandom", lambda n: b"\xff" * n)
    assert torch.isfinite(release.gaussian(2)).all()


def test_nothing_of_the_model_but_public_settings_is_in_a_release():
    clf = plain(gamma="auto", scores="discriminant").fit(X, y)
    clf.backbone_, clf.images_ = {"name": "n"}, {"source": "n", "tracked": [{"salt": "0" * 32}]}
    known = {"_state", "n_features_in_", "backbone_", "images_", *clf.get_params()}
    made = privatize(clf, 1.0, DELTA)
    assert made.gamma_ != clf.gamma_
    for one in (made, private_softmax(clf, X, y, 1.0, DELTA)):
        assert one.images_ == {"source": "n", "tracked": []}
        assert learnt_of(one).calibration.samples == 0
        assert set(one.__dict__) <= known


@pytest.mark.parametrize(("epsilon", "bound"), [(1.0, 0.58), (0.63, 0.55)])
def test_the_best_attack_on_a_sample_that_nothing_hides_has_the_stated_area(monkeypatch, epsilon, bound):
    # Noise as it comes: what makes sums of samples of it can only hide more.
    monkeypatch.setattr(release, "_drawn", lambda values, variance: values)
    unit = np.array([[0.6, 0.8]])
    clf = plain().fit(np.zeros((2000, 2)), np.repeat(["cat", "dog"], 1000))
    scores = []
    for model in (clf.copy().partial_fit(unit, ["dog"]), clf):
        expansion = learnt_of(model).model.expansion
        noise = dp_accounting.get_sigma_gaussian(epsilon, DELTA)
        given = (sums_of(model), learnt_of(model), model.classes_, noise, False, expansion)
        made = [release.noisy_sums(*given)[0] for _ in range(5000)]
        # The likelihood ratio of with and without the sample, in the class of the sample
        shares = release._SHARES[False]
        scores.append(
            [
                shares[1] * float(unit[0] @ sums.moment[:, 1].numpy())
                + shares[2] * float(sums.target_total[1])
                for sums in made
            ]
        )
    found = roc_auc_score(np.repeat([1, 0], 5000), np.concatenate(scores))
    stated = guarantee(privatize(clf, epsilon, DELTA))["area"]
    assert stated < bound
    # Four standard errors
    assert abs(found - stated) < 4 * math.sqrt(1 / 6 / 5000)


def test_the_stated_area_counts_all_releases():
    clf = plain().fit(X, y)
    areas = [guarantee(privatize(clf, 1.0, DELTA))["area"] for _ in range(4)]
    # Four times: twice the distance of what is seen with a sample and without
    assert ndtri(areas[3]) == pytest.approx(2 * ndtri(areas[0]))


def test_sums_of_a_release_could_be_those_of_samples():
    made = sums_of(privatize(plain(expansion_size=32).fit(X, y), 0.5, DELTA))
    joint = torch.cat(
        [torch.cat([made.gram, made.moment], 1), torch.cat([made.moment.T, made.target_total.diag()], 1)]
    )
    values = torch.linalg.eigvalsh(joint)
    assert float(values[0]) > -1e-9 * float(values[-1])


@pytest.mark.parametrize("kind", ["with gram", "without gram", "softmax"])
def test_attacks_on_a_release_of_small_epsilon_are_no_better_than_chance(kind):
    def released(n):
        if kind == "softmax":
            return private_softmax(clf, members[:n], labels[:n], 1.0, DELTA)
        return privatize(clf, 1.0, DELTA, gram=kind == "with gram")

    # So few samples that each stands out. Chance itself scatters by 0.009: 100 and others, 20 times.
    labels = np.arange(100) % 4
    areas, recovered = {}, 0
    for _ in range(20):
        members, others = rng.random((100, 8)), rng.random((100, 8))
        given = {"features": members, "labels": labels, "others": others, "other_labels": labels}
        clf = plain(expansion_size=256).fit(members[:-5], labels[:-5])
        before = released(95)
        clf.partial_fit(members[-5:], labels[-5:])
        after = released(100)
        whole = audit(after, **given)
        recovered += audit(after, before).recovered + whole.recovered
        for way, result in whole.membership.items():
            areas.setdefault(way, []).append(result.area)
    assert audit(clf, **given).membership["leverage"].area > 0.9, "there must be something to hide"
    assert recovered == 0
    assert areas.keys() == ({"score"} if kind == "softmax" else {"leverage", "score"})
    assert max(map(np.mean, areas.values())) < 0.55


def test_a_release_of_discriminants_keeps_nothing_that_was_measured_on_samples(tmp_path):
    clf = plain(scores="discriminant").fit(X, y)
    made = privatize(clf, 8.0, DELTA)
    measured, kept = learnt_of(clf).calibration, learnt_of(made).calibration
    assert measured.samples > 0
    assert kept.samples == 0
    assert not kept.losses.any()
    assert not kept.novelties.any()
    save(made, tmp_path / "release.acil")
    again = load(tmp_path / "release.acil")
    assert np.array_equal(again.predict_proba(X), made.predict_proba(X))


def test_a_release_of_discriminants_does_not_draw_its_means_together_twice(tmp_path):
    rows, labels = rng.random((60, 200)), np.arange(60) % 3
    rows[np.arange(60), labels] += 8.0
    # Noise gives sums of fewer samples than dimensions full rank.
    made = privatize(plain(scores="discriminant").fit(rows, labels), 200.0, DELTA)
    save(made, tmp_path / "release.acil")
    for model in (made, load(tmp_path / "release.acil"), unpack(pack(made))):
        sums = sums_of(model)
        gram = sums.gram.tril() + sums.gram.tril(-1).T
        means = sums.moment / sums.target_total
        within = gram - means @ sums.moment.T + model.gamma_ * torch.eye(200)
        W = torch.linalg.solve(within, means)
        expected = torch.from_numpy(rows / np.linalg.norm(rows, axis=1, keepdims=True)) @ W
        expected -= (means * W).sum(dim=0) / 2
        found = torch.from_numpy(model.decision_function(rows))
        # Up to a factor, and to what is the same for all classes
        found, expected = (part - part.mean(dim=1, keepdim=True) for part in (found, expected))
        scale = float((found * expected).sum() / expected.square().sum())
        assert scale > 0
        torch.testing.assert_close(found, scale * expected, rtol=1e-6, atol=1e-9)
        assert model.predict_proba(rows).max() > 0.5


def test_the_label_set_is_of_the_kind_of_the_labels():
    with pytest.raises(InputError, match="Convert"):
        privatize(plain().fit(X, np.arange(300) % 3), 8.0, DELTA, classes=[0.0, 1.0, 2.0])


def test_numbers_of_numpy_are_numbers_and_bad_ones_spend_nothing(tmp_path):
    rng = np.random.default_rng(0)
    clf = ACILClassifier(scores="ridge", expansion_size=None, clip_norm=1.0).fit(
        rng.random((90, 4)), np.arange(90) % 3
    )
    for bad in (
        {"gamma": -1.0},
        {"gamma": math.nan},
        {"gamma": "auto"},
        {"epsilon": 1e13},
        {"epsilon": 1e-12, "delta": 1e-12},
        {"epsilon": True},
    ):
        with pytest.raises(InputError):
            privatize(clf, **{"epsilon": 4.0, "delta": 1e-6, **bad})
        assert learnt_of(clf).release is None
    release = privatize(clf, np.float64(4.0), np.float64(1e-6), gamma=np.float64(2.0))
    for model in (release, clf):
        save(model, tmp_path / "model.acil")
    assert guarantee(release)["epsilon"] == 4.0


def test_releases_of_other_labels_or_names_are_not_combined():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(np.random.default_rng(0).random((90, 2)), columns=["a", "b"])
    models = [
        ACILClassifier(scores="ridge", expansion_size=None, clip_norm=1.0).fit(rows, labels)
        for rows, labels in (
            (table, np.arange(90) % 3),
            (table, np.array(list("abc"))[np.arange(90) % 3]),
            (table[["b", "a"]], np.arange(90) % 3),
        )
    ]
    first, texts, turned = (privatize(model, 4.0, 1e-6) for model in models)
    with pytest.raises(InputError, match="same type"):
        combine([first, texts], disjoint=True)
    with pytest.raises(InputError, match="different names"):
        combine([first, turned], disjoint=True)
