"""Discriminant scores: from the sums alone, fair to few samples, calibrated; features to one scale."""

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss

from acil import ACILClassifier, load, save
from acil.core.classifier import learnt_of
from acil.core.inputs import Rows
from acil.core.model import Learnt
from acil.core.scores import FALSE_ALARMS, Calibration, Discriminant
from acil.errors import InputError, SingularMatrixError, UnsupportedError
from support.strategies import blobs, relative

#: ε·κ with κ < 1e6, and solving for the means once more.
SAME = 1e-8
PROBLEM = blobs(120, 6, 4, 0)
X, Y = PROBLEM.X, PROBLEM.y
HELD_OUT = PROBLEM.held_out


def discriminant(**options):
    return ACILClassifier(**{"expansion_size": 24, "gamma": 2.0, "scores": "discriminant"} | options)


def reference(rows, y, gamma, query, weights=None, drawn=None):
    """Scores by their definition, from the rows."""
    weights = np.ones(len(y)) if weights is None else weights
    n = np.array([weights[y == c].sum() for c in np.unique(y)])
    means = np.array([np.average(rows[y == c], axis=0, weights=weights[y == c]) for c in np.unique(y)])
    deviations = (rows - means[y]) * np.sqrt(weights)[:, None]
    S = np.linalg.inv(deviations.T @ deviations + gamma * np.eye(rows.shape[1]))
    if drawn is None:
        t = rows.shape[1] - gamma * np.trace(S)
        noise = t / (n.sum() - len(n) - t) / n
        share = n / n.sum()
        gaps = means - share @ means
        q = share * (1 - share)
        b = (share @ np.einsum("ci,ij,cj->c", gaps, S, gaps) - q @ noise) / q.sum()
        # What chance adds to means of few, beyond what S tells: the more, the fewer classes S is of
        unseen = 0.09 + share @ share
        drawn = b, b / (b + noise), unseen
    b, s, unseen = drawn
    centre = s @ means / s.sum()
    means = np.vstack([centre + (means - centre) * s[:, None], centre])
    squares = np.einsum("ci,ij,cj->c", means, S, means)
    squares[:-1] -= unseen * s * (1 - s) * b
    scores = query @ S @ means.T - squares / 2
    return (scores[:, :-1] - scores[:, -1:]) / b, drawn


def rows_of(model, values):
    return learnt_of(model).model.expansion(torch.from_numpy(values)).numpy()


@pytest.mark.parametrize("size", [None, 24, 200])
@pytest.mark.parametrize("weighted", [False, True])
def test_scores_by_their_definition(size, weighted):
    weights = np.random.default_rng(0).uniform(0.5, 2, len(Y)) if weighted else None
    model = discriminant(expansion_size=size).fit(X, Y, sample_weight=weights)
    expected, _ = reference(rows_of(model, X), Y, 2.0, rows_of(model, HELD_OUT), weights)
    assert relative(model.decision_function(HELD_OUT), expected) <= SAME


def test_phases_merging_and_forgetting_give_the_scores_of_joint_learning():
    joint = discriminant().fit(X, Y).decision_function(HELD_OUT)
    first = Y < 2
    phased = discriminant().fit(X[first], Y[first])
    phased.predict(HELD_OUT)
    phased.partial_fit(X[~first][:-2], Y[~first][:-2]).partial_fit(X[~first][-2:], Y[~first][-2:])
    merged = discriminant().fit(X[:50], Y[:50]).merge(discriminant().fit(X[50:], Y[50:]))
    more = np.vstack([X, HELD_OUT]), np.concatenate([Y, np.full(len(HELD_OUT), 9)])
    forgotten = discriminant().fit(*more).forget(more[0][len(X) :], more[1][len(X) :])
    for model in (phased, merged, forgotten):
        assert model.classes_.tolist() == [0, 1, 2, 3]
        assert relative(model.decision_function(HELD_OUT), joint) <= SAME


def test_left_out_scores_are_those_of_models_that_never_saw_the_sample():
    weights = np.linspace(0.5, 2, len(Y))
    model = discriminant().fit(X, Y, sample_weight=weights)
    head, rows = learnt_of(model).model, rows_of(model, X)
    coef, offsets = head.ridge.coefficients()
    expanded = torch.from_numpy(rows).to(coef)
    ridge_scores, leverages = expanded @ coef + offsets, head.ridge.leverage(expanded)
    scores, distances, counts, farther = Discriminant.of(head).left_out(
        ridge_scores.cpu(), leverages.cpu(), torch.from_numpy(Y), torch.from_numpy(weights)
    )
    _, drawn = reference(rows, Y, 2.0, rows, weights)
    for i in range(0, len(Y), 17):
        one = min(weights[i], 1.0)  # a sample of weight 2 is two samples, of which one is left out
        rest = np.where(np.arange(len(Y)) == i, weights - one, weights)
        expected, _ = reference(rows, Y, 2.0, rows[i : i + 1], rest, drawn)
        assert relative(scores[i], expected[0]) <= SAME
        # The squared distance to the nearest of the drawn means, by the scatter without this sample, and
        # less what chance adds to the length of the mean
        present = np.unique(Y)
        means = np.stack([np.average(rows[c == Y], axis=0, weights=rest[c == Y]) for c in present])
        within = rows - means[np.searchsorted(present, Y)]
        S = (within.T * rest) @ within + 2.0 * np.eye(24)
        gaps = rows[i] - Discriminant.of(head).means[:-1].numpy() @ means
        nearest = np.einsum("cj,jk,ck->c", gaps, np.linalg.inv(S), gaps)[scores[i].argmax()]
        b, s = drawn[0], drawn[1][scores[i].argmax()]
        nearest -= drawn[2] * s * (1 - s) * b
        best = present[int(scores[i].argmax())]
        assert float(distances[i]) * (1 + 1 / rest[best == Y].sum()) == pytest.approx(nearest, rel=1e-6)
    n = np.array([weights[y == Y].sum() for y in Y])
    left = n - np.minimum(weights, 1)
    np.testing.assert_allclose(counts.numpy(), (left / n) ** 3 * n.max() / n)
    s = Discriminant.of(head).drawn.numpy()[np.searchsorted(np.unique(Y), Y)]
    np.testing.assert_allclose(farther.numpy(), 1 + s / left)


def test_samples_are_farther_from_means_of_few_which_are_drawn_than_from_true_ones():
    """Classes and their true means are normally distributed, with the same scatter."""
    generator, near, far = np.random.default_rng(0), [], []
    sizes, d = np.repeat([1, 3, 40], 30), 12
    for _ in range(6):
        true = generator.normal(size=(len(sizes), d))
        labels = np.repeat(np.arange(len(sizes)), sizes)
        rows = true[labels] + generator.normal(size=(len(labels), d))
        model = discriminant(gamma=1e-6, expansion_size=None).fit(rows, labels)
        found = Discriminant.of(learnt_of(model).model)
        means = np.stack([rows[labels == c].mean(axis=0) for c in range(len(sizes))])
        gaps = true - found.means[:-1].numpy() @ means
        near.append(1 + np.square(gaps).mean(axis=1))
        far.append(1 + found.drawn.numpy() / sizes)
        assert found.farther == pytest.approx(far[-1].mean())
    for n in (1, 3, 40):
        assert np.mean(near, axis=0)[sizes == n].mean() == pytest.approx(
            np.mean(far, axis=0)[sizes == n].mean(), rel=0.03
        )


def few_of_the_newer_half(k, seed):
    """Digits: 60 samples of 0 to 4, and k of 5 to 9; held-out samples of all."""
    digits, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    digits, labels = digits[order], labels[order]
    places = [np.flatnonzero(labels == c) for c in range(10)]
    learnt = np.concatenate([p[: 60 if c < 5 else k] for c, p in enumerate(places)])
    held_out = np.concatenate([p[100:] for p in places])
    return digits[learnt], labels[learnt], digits[held_out], labels[held_out]


def recalls(model, rows, y):
    found = model.predict(rows)
    recall = np.array([np.mean(found[y == c] == c) for c in range(10)])
    return recall[:5].mean(), recall[5:].mean()


@pytest.mark.parametrize(("k", "gain"), [(2, 0.25), (5, 0.1)])
def test_classes_of_few_samples_are_recognised_and_the_others_still_are(k, gain):
    found = {"ridge": [], "discriminant": []}
    for seed in range(3):
        rows, y, held_out, truth = few_of_the_newer_half(k, seed)
        for scores, values in found.items():
            model = ACILClassifier(expansion_size=256, scores=scores).fit(rows, y)
            values.append(recalls(model, held_out, truth))
    (old, new), (old_before, new_before) = (np.mean(found[s], 0) for s in ("discriminant", "ridge"))
    assert new > new_before + gain
    assert old > old_before - 0.05


def calibration_error(model, rows, y):
    """Expected calibration error over 15 bins of equal mass."""
    return error_of(model.predict_proba(rows), np.searchsorted(model.classes_, y))


def error_of(probabilities, y):
    sure, right = probabilities.max(1), probabilities.argmax(1) == y
    bins = np.array_split(np.argsort(sure), 15)
    return sum(len(b) * abs(sure[b].mean() - right[b].mean()) for b in bins) / len(y)


def test_probabilities_are_a_softmax_at_a_temperature_that_grows_with_the_highest_score():
    for options in ({}, {"scores": "ridge"}):
        model = discriminant(**options).fit(X, Y)
        rows = np.vstack([HELD_OUT, 3 * HELD_OUT])
        scores = model.decision_function(rows)
        heat = 1.0 if options else 1 + np.maximum(scores.max(axis=1, keepdims=True), 0)
        heated = scores / (model.temperature_ * heat)
        np.testing.assert_allclose(model.predict_proba(rows), softmax(heated, axis=1), rtol=1e-9)


@pytest.mark.parametrize("seed", [0, 2])
def test_probabilities_of_rows_of_many_lengths_are_calibrated_better_than_by_any_one_temperature(seed):
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(20, 16))

    def sample(n):
        labels = np.repeat(np.arange(20), n)
        rows = 0.8 * means[labels] + rng.normal(size=(len(labels), 16))
        return rows * np.exp(0.7 * rng.normal(size=(len(rows), 1))), labels

    model = ACILClassifier(expansion_size=None).fit(*sample(40))
    rows, labels = sample(100)
    scores = model.decision_function(rows)
    ones = [log_loss(labels, softmax(scores / T, axis=1)) for T in 2.0 ** np.arange(-8, 3, 0.25)]
    assert log_loss(labels, model.predict_proba(rows)) < 0.97 * min(ones)
    one = softmax(scores / 2.0 ** (0.25 * np.argmin(ones) - 8), axis=1)
    assert calibration_error(model, rows, labels) < 0.8 * error_of(one, labels)


@pytest.mark.parametrize("calls", [1, 6])
def test_probabilities_are_calibrated_also_when_learnt_in_several_calls(calls):
    digits, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    learnt, held_out = order[:600], order[600:]
    model = discriminant(expansion_size=64, gamma="auto")
    for part in np.array_split(learnt, calls):
        model.partial_fit(digits[part], labels[part])
    assert model.score(digits[held_out], labels[held_out]) < 0.99, "else there is little to calibrate"
    assert calibration_error(model, digits[held_out], labels[held_out]) <= 0.03
    assert 0.9 < learnt_of(model).calibration.samples / 600 < 1.1


@pytest.mark.parametrize("later", [0, 200])
@pytest.mark.parametrize("n_wrong", [40, 150])
def test_probabilities_stay_calibrated_when_samples_of_wrong_classes_are_forgotten(later, n_wrong):
    digits, labels = load_digits(return_X_y=True)
    wrong, before, after, held_out = np.split(
        np.random.default_rng(0).permutation(len(labels)), [n_wrong, 650 - later, 650]
    )
    model = discriminant(expansion_size=64, gamma="auto").fit(digits[before], labels[before])
    model.partial_fit(digits[wrong], (labels[wrong] + 1) % 10)
    if later:
        model.partial_fit(digits[after], labels[after])
    model.forget(digits[wrong], (labels[wrong] + 1) % 10)
    assert calibration_error(model, digits[held_out], labels[held_out]) <= 0.05


@pytest.mark.parametrize("n_left", [400, 40])
def test_probabilities_are_not_too_sure_when_most_samples_are_forgotten(n_left):
    digits, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    gone, learnt, held_out = order[n_left:800], order[:800], order[800:]
    model = discriminant(expansion_size=64, gamma="auto").fit(digits[learnt], labels[learnt])
    model.forget(digits[gone], labels[gone])
    never = discriminant(expansion_size=64, gamma="auto").fit(
        digits[order[:n_left]], labels[order[:n_left]]
    )
    losses = [log_loss(labels[held_out], m.predict_proba(digits[held_out])) for m in (model, never)]
    assert losses[0] <= 1.2 * losses[1]


def test_five_percent_of_known_classes_and_most_of_a_foreign_one_are_novel():
    digits, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(1).permutation(np.flatnonzero(labels != 7))
    model = discriminant(expansion_size=256, gamma="auto").fit(digits[order[:600]], labels[order[:600]])
    known, foreign = digits[order[600:]], digits[labels == 7]
    assert np.mean(model.relative_novelty(known) > 1) == pytest.approx(FALSE_ALARMS, abs=0.02)
    assert np.mean(model.relative_novelty(foreign) > 1) > 0.6
    noise = np.random.default_rng(2).uniform(0, 16, size=(200, 64))
    assert np.mean(model.relative_novelty(noise) > 1) > 0.95
    # In other units the scores grow, too: exp(−score) alone would call these known for certain.
    assert (model.relative_novelty(10 * known) > 1).all()


def test_calibrations_add_up_and_say_when_they_are_approximate():
    halves = [discriminant().fit(X[i::2], Y[i::2]) for i in (0, 1)]
    parts = [learnt_of(half).calibration for half in halves]
    halves[0].merge(halves[1])
    both = learnt_of(halves[0]).calibration
    assert both.samples == pytest.approx(sum(part.samples for part in parts))
    counts = [np.bincount(Y[i::2])[:, None] for i in (0, 1)]
    assert both.samples == pytest.approx(sum((((n - 1) / n) ** 3 * n.max()).sum() for n in counts))
    assert len(Y) == pytest.approx(float(both.novelties.sum()))
    torch.testing.assert_close(both.losses, parts[0].losses + parts[1].losses)
    assert not both.approximate
    assert learnt_of(halves[0].forget(X[:3], Y[:3])).calibration.approximate
    assert learnt_of(halves[1].merge(halves[0])).calibration.approximate


@pytest.fixture(scope="module")
def by_class():
    """Digits 0 to 7, for learning and held out, and others."""
    digits, labels = load_digits(return_X_y=True)
    known = labels < 8
    order = np.random.default_rng(3).permutation(np.flatnonzero(known))
    return digits[order], labels[order], digits[~known]


def test_growing_from_one_class_says_what_is_unknown_and_how_likely(by_class):
    rows, labels, others = by_class
    learnt, held_out = slice(0, 900), slice(900, None)
    joint = discriminant(expansion_size=None, gamma="auto").fit(rows[learnt], labels[learnt])
    grown, parts = discriminant(expansion_size=None, gamma="auto"), []
    for c in range(8):
        mine = rows[learnt][labels[learnt] == c]
        grown.partial_fit(mine, [c] * len(mine))
        parts.append(discriminant(expansion_size=None, gamma="auto").fit(mine, [c] * len(mine)))
    for part in parts[1:]:
        parts[0].merge(part)
    best = log_loss(labels[held_out], joint.predict_proba(rows[held_out]))
    found = np.mean(joint.relative_novelty(others) > 1)
    for model in (grown, parts[0]):
        assert np.mean(model.relative_novelty(rows[held_out]) > 1) <= 2 * FALSE_ALARMS
        assert np.mean(model.relative_novelty(others) > 1) > found / 2
        assert log_loss(labels[held_out], model.predict_proba(rows[held_out])) < 1.2 * best


def test_samples_counted_among_few_classes_count_less_in_whatever_order():
    counted = Calibration.empty().plus(
        torch.zeros(4, 2, dtype=torch.float64),
        torch.zeros(4, dtype=torch.int64),
        *torch.ones(3, 4).double(),
    )
    few, some, many = (torch.ones(n) for n in (2, 3, 8))
    at_once, by_steps = counted.among(few, many), counted.among(few, some).among(some, many)
    assert at_once.samples == pytest.approx(4 / 64)
    torch.testing.assert_close(by_steps.losses, at_once.losses)
    torch.testing.assert_close(by_steps.novelties, at_once.novelties)
    # Classes that are forgotten do not give weight back, and those without samples are none.
    assert counted.among(many, few).samples == 4
    assert counted.among(few, torch.tensor([1, 1, 0, 0])).samples == 4


def test_automatic_gamma_is_chosen_anew_in_a_stream(by_class):
    rows, labels, _ = by_class
    for options in ({}, {"scores": "ridge"}):
        stream = discriminant(expansion_size=None, gamma="auto", **options)
        for row, label in zip(rows[:320], labels[:320], strict=True):
            stream.partial_fit([row], [label])
            # Measures the temperature, which needs a factor of all samples.
            stream.predict_proba(rows[:1])
        found = stream.gamma_
        best = discriminant(expansion_size=None, gamma="auto", **options)
        # Chosen when there were at least half as many samples as now
        candidates = [best.fit(rows[:n], labels[:n]).gamma_ for n in range(160, 321, 8)]
        assert min(candidates) / 1.01 <= found <= max(candidates) * 1.01


def test_few_samples_hardly_move_the_typical_temperature():
    one = Calibration.empty().plus(
        torch.tensor([[9.0, 0.0]]).double(),
        torch.tensor([0]),
        torch.zeros(1).double(),
        *torch.ones(2, 1).double(),
    )
    typical = Calibration.empty().temperature(1.0)
    assert 0.5 * typical < one.temperature(1.0) < typical
    # Of classes of one sample each, what was measured counts at most twice as far.
    assert one.temperature(1.0) < one.temperature(2.0) < 2 * typical
    assert one.largest_known() < Calibration.empty().largest_known()


def test_classes_of_one_sample_raise_the_temperature_where_the_others_are_hard_to_tell_apart():
    def measured(right):  # 200 samples of two classes, a share of which is taken for the other
        own = torch.arange(200) < 200 * right
        scores = torch.stack([own, ~own], dim=1).double()
        weights = torch.ones(2, 200).double()
        empty = Calibration.empty()
        return empty.plus(scores, torch.zeros(200).long(), torch.zeros(200).double(), *weights)

    raised = [m.temperature(1.0, 0.5) / m.temperature(1.0) for m in map(measured, (0.99, 0.8, 0.6))]
    assert 1 <= raised[0] < 1.02 < raised[1] < raised[2] < 1.15
    few = np.r_[np.flatnonzero(Y < 2), np.flatnonzero(Y == 2)[:1], np.flatnonzero(Y == 3)[:2]]
    assert Discriminant.of(learnt_of(discriminant().fit(X[few], Y[few])).model).single == 0.25


@pytest.mark.parametrize("dtype", ["float64", "float32", "mixed"])
def test_saved_models_score_as_before(dtype, tmp_path):
    gamma = 2.0 if dtype == "float64" else 200.0
    model = discriminant(dtype=dtype, gamma=gamma, standardize=True).fit(X, Y, sample_weight=None)
    model.forget(X[:2], Y[:2])
    save(model, tmp_path / "full.acil")
    save(model, tmp_path / "small.acil", inference=True)
    full = load(tmp_path / "full.acil")
    frozen = [load(tmp_path / "full.acil", inference=True), load(tmp_path / "small.acil")]
    tolerance = {"float64": 1e-12, "float32": 1e-4, "mixed": 1e-6}[dtype]
    for other in (full, *frozen):
        found, expected = other.decision_function(HELD_OUT), model.decision_function(HELD_OUT)
        assert relative(found, expected) <= tolerance
        # An inference file has two digits of it.
        assert other.temperature_ == pytest.approx(model.temperature_, rel=0.05)
        assert learnt_of(other).calibration.approximate
    np.testing.assert_allclose(full.relative_novelty(HELD_OUT), model.relative_novelty(HELD_OUT), 1e-3)
    both = [m.partial_fit(HELD_OUT[:9], [7] * 9).decision_function(HELD_OUT) for m in (full, model)]
    assert relative(*both) <= tolerance
    with pytest.raises(UnsupportedError, match="inference"):
        frozen[1].relative_novelty(HELD_OUT)


def test_a_loaded_model_predicts_without_factorizing(tmp_path, monkeypatch):
    save(discriminant().fit(X, Y), tmp_path / "model.acil")
    monkeypatch.setattr(Discriminant, "of", lambda model: pytest.fail("computed again"))
    load(tmp_path / "model.acil").predict_proba(HELD_OUT)


def test_degenerate_data_has_scores():
    single = discriminant().fit(X[:5], np.zeros(5))
    assert single.predict(HELD_OUT).tolist() == [0.0] * len(HELD_OUT)
    assert np.isfinite(single.relative_novelty(HELD_OUT)).all()
    one_each = discriminant().fit(X[:3], ["a", "b", "c"])
    assert one_each.predict(X[:3]).tolist() == ["a", "b", "c"]
    assert learnt_of(one_each).calibration.samples == 0
    declared = discriminant().partial_fit(X[:9], np.arange(9) % 2, classes=[0, 1, 2])
    assert (declared.decision_function(HELD_OUT)[:, 2] == -np.inf).all()
    assert np.isfinite(declared.predict_proba(HELD_OUT)).all()
    # Means differ by rounding alone.
    same = discriminant().fit(X[[0] * 10], np.arange(10) % 3)
    np.testing.assert_allclose(same.predict_proba(HELD_OUT), 1 / 3, rtol=1e-6)


def test_a_sample_of_weight_two_is_two_samples_also_for_probabilities():
    twice = discriminant().fit(np.vstack([X, X]), np.tile(Y, 2))
    heavy = discriminant().fit(X, Y, sample_weight=np.full(len(Y), 2.0))
    np.testing.assert_allclose(twice.predict_proba(HELD_OUT), heavy.predict_proba(HELD_OUT), 1e-7)


def test_what_cannot_be_solved_can_still_be_learnt():
    model = discriminant(expansion_size=None, gamma=0).fit(X[:4], [0, 0, 1, 1])
    with pytest.raises(SingularMatrixError):
        model.predict(X)
    assert model.partial_fit(X[4:], Y[4:]).score(X, Y) > 0.5


@pytest.mark.parametrize("option", ["fit_intercept", "class_balance"])
def test_what_discriminants_do_by_themselves_is_refused(option):
    with pytest.raises(InputError, match="by itself"):
        discriminant(**{option: True}).fit(X, Y)
    with pytest.raises(InputError, match="'ridge', 'discriminant'"):
        discriminant(scores="lda").fit(X, Y)
    with pytest.raises(UnsupportedError, match="sums"):
        discriminant(solver="recursive").fit(X, Y)


def test_standardized_features_have_the_scale_of_the_first_call():
    units = np.array([1e-3, 1.0, 5.0, 1e4, 1.0, 1.0])
    first, rest = slice(0, 60), slice(60, None)
    raw = X * units + 7 * units
    model = ACILClassifier(scores="ridge", expansion_size=24, gamma=2.0, standardize=True)
    model.fit(raw[first], Y[first]).partial_fit(raw[rest], Y[rest])
    mean, deviation = raw[first].mean(0), raw[first].std(0)
    np.testing.assert_allclose(model.scaling_, [mean, deviation])
    bias = 0.5 * np.sqrt(6)  # half the length of a standardized row
    by_hand = ACILClassifier(scores="ridge", expansion_size=24, gamma=2.0, expansion_bias=bias)
    by_hand.fit((X * units + 7 * units - mean) / deviation, Y)
    assert relative(model.coef_, by_hand.coef_) <= SAME
    scaled = (HELD_OUT * units + 7 * units - mean) / deviation
    found = model.decision_function(HELD_OUT * units + 7 * units)
    assert relative(found, by_hand.decision_function(scaled)) <= SAME


def test_constant_features_are_divided_by_their_size_when_standardized():
    shift, unit = Rows(np.column_stack([np.full(5, 0.1), np.zeros(5), np.arange(5.0)])).scaling(None)
    assert unit.tolist() == pytest.approx([0.1, 1.0, np.sqrt(2)])
    assert shift.tolist() == pytest.approx([0.1, 0.0, 2.0])


@pytest.mark.parametrize(("unit", "size", "scaled"), [(1, 1, False), (30, 1, True), (1, 1e-3, True)])
def test_features_in_several_or_small_units_are_scaled_by_default(unit, size, scaled):
    rows = size * (X * np.where(np.arange(6) == 0, unit, 1.0) + 3)
    model = ACILClassifier(expansion_size=24).fit(rows, Y)
    assert (model.scaling_ is not None) == scaled
    same = ACILClassifier(expansion_size=24, standardize=scaled and model.scaling_)
    parts = [same.partial_fit(rows[i::2], Y[i::2]) for i in (0, 1)][1].solve()
    # The choice of γ depends on the sums alone.
    assert relative(parts.decision_function(rows), model.solve().decision_function(rows)) <= 1e-9
    assert ACILClassifier(expansion_size=24, scores="ridge").fit(rows, Y).scaling_ is None
    assert ACILClassifier(expansion_size=24, clip_norm=9.0).fit(rows, Y).scaling_ is None
    assert ACILClassifier(expansion_size=24, standardize=False).fit(rows, Y).scaling_ is None


@pytest.mark.parametrize("given", [[[0.0] * 6], [[0.0] * 6, [0.0] * 6], "yes", [[0.0], [np.nan]], 3])
def test_a_scale_that_is_none_is_refused(given):
    with pytest.raises(InputError, match="standardize"):
        ACILClassifier(expansion_size=24, standardize=given).fit(X, Y)


def test_a_scale_of_another_width_is_refused():
    with pytest.raises(InputError, match="5 features"):
        ACILClassifier(standardize=[[0.0] * 5, [1.0] * 5]).fit(X, Y)


def test_features_whose_unit_is_too_small_to_square_are_refused():
    with pytest.raises(InputError, match="Scale"):
        ACILClassifier(scores="ridge", expansion_size=24, standardize=True).fit(1e-160 * X, Y)


def test_models_of_one_scale_merge_and_others_are_refused():
    model = ACILClassifier(scores="ridge", expansion_size=24, gamma=2.0, standardize=True).fit(
        X[:40], Y[:40]
    )
    twin = model.copy().partial_fit(X[40:80], Y[40:80]).forget(X[:40], Y[:40])
    model.partial_fit(X[80:], Y[80:])
    scores = model.copy().partial_fit(X[40:80], Y[40:80]).decision_function(HELD_OUT)
    assert relative(model.merge(twin).decision_function(HELD_OUT), scores) <= SAME
    for standardize in (True, False):
        other = ACILClassifier(
            scores="ridge", expansion_size=24, gamma=2.0, standardize=standardize
        ).fit(X[5:], Y[5:])
        with pytest.raises(InputError, match="scale"):
            model.merge(other)


@pytest.mark.parametrize("dtype", ["float64", "float32", "mixed"])
@pytest.mark.parametrize("seed", range(8))
def test_one_sample_of_each_class_is_enough(seed, dtype):
    rows = np.maximum(np.random.default_rng(seed).normal(size=(5, 300)), 0)
    clf = discriminant(expansion_size=None, gamma="auto", dtype=dtype).fit(rows, list("abcde"))
    assert clf.predict(rows).tolist() == list("abcde")
    exact = discriminant(expansion_size=None, gamma=clf.gamma_).fit(rows, list("abcde"))
    assert relative(clf.decision_function(rows), exact.decision_function(rows)) < 1e-3
    one_by_one = discriminant(expansion_size=None, gamma=50.0, dtype=dtype)
    for row, label in zip(rows, "abcde", strict=True):
        one_by_one.partial_fit(row[None], [label])
    assert one_by_one.predict(rows).tolist() == list("abcde")


def test_weights_that_add_up_to_one_do_not_hide_the_classes():
    clf = discriminant().fit(X, Y, sample_weight=np.full(len(Y), 1 / len(Y)))
    assert clf.score(X, Y) > 0.9


@pytest.mark.parametrize("failure", [MemoryError, KeyboardInterrupt])
def test_samples_that_could_not_be_counted_make_the_calibration_approximate(monkeypatch, failure):
    clf = discriminant().fit(X[:80], Y[:80])

    def fail(*args):
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(Learnt, "measured", fail)
        with pytest.raises(failure):
            clf.partial_fit(X[80:], Y[80:])
    assert clf.n_samples_ == len(X)
    assert learnt_of(clf).calibration.approximate
    before = learnt_of(discriminant().fit(X[:80], Y[:80])).calibration
    assert learnt_of(clf).calibration.samples == before.samples


def test_data_without_any_spread_can_be_learnt():
    zeros = discriminant().fit(np.zeros((6, 3)), [0, 0, 0, 1, 1, 1])
    assert np.isfinite(zeros.decision_function(np.ones((2, 3)))).all()
    assert np.isfinite(zeros.relative_novelty(np.ones((2, 3)))).all()
    assert zeros.forget(np.zeros((1, 3)), [0]).n_samples_ == 5
    same = discriminant(expansion_size=None, gamma=0).fit(np.repeat(np.eye(2), 4, 0), [0] * 4 + [1] * 4)
    assert same.n_samples_ == 8
    with pytest.raises(SingularMatrixError, match="larger gamma"):
        same.predict(np.eye(2))


def test_features_without_spread_within_classes_are_refused_where_float32_cannot_tell():
    rows = np.hstack([X, np.full((len(X), 1), 100.0)])
    options = {"expansion_size": None, "gamma": 0.1, "standardize": False}
    exact = discriminant(**options).fit(rows, Y).decision_function(rows)
    plain = discriminant(**options).fit(X, Y).decision_function(X)
    assert relative(exact, plain) < 1e-9  # a constant feature tells nothing
    for dtype in ("mixed", "float32"):
        # Which of its steps notices is a matter of rounding.
        with pytest.raises(SingularMatrixError, match="larger gamma"):
            discriminant(**options, dtype=dtype).fit(rows, Y).predict(rows)


@pytest.mark.parametrize("dtype", ["float32", "mixed"])
def test_a_large_mean_is_taken_off_before_digits_are_lost(dtype):
    far = X + 1.7e9
    options = {"expansion_size": 24, "gamma": 20.0, "standardize": True}
    exact = ACILClassifier(**({"scores": "ridge"} | options)).fit(far, Y).decision_function(far)
    found = (
        ACILClassifier(**({"scores": "ridge"} | options), dtype=dtype).fit(far, Y).decision_function(far)
    )
    assert relative(found, exact) < 1e-3


@pytest.mark.parametrize(
    ("options", "linear"),
    [
        ({}, True),
        ({"expansion_size": 7}, True),
        ({"expansion_size": 6}, False),  # with no room for random units, features are as they are
        ({"expansion_size": 5}, False),
        ({"expansion_bias": 0.5}, False),
        ({"clip_norm": 5.0}, False),
        ({"scores": "ridge"}, False),
        ({"activation": "identity"}, False),
        ({"expansion_size": None}, False),
    ],
)
def test_discriminants_have_the_features_among_their_units(options, linear):
    model = discriminant(**options).fit(X, Y)
    assert (learnt_of(model).model.expansion.linear > 0) == linear
    assert model.coef_.shape == (4, options.get("expansion_size", 24) or 6)


def test_as_many_features_as_units_are_learnt_merged_and_saved_as_they_are(tmp_path):
    first, second = (ACILClassifier(expansion_size=6).fit(X[i::2], Y[i::2]) for i in (0, 1))
    merged = first.merge(second).solve()
    joint = ACILClassifier(expansion_size=None).fit(X, Y)
    assert relative(merged.decision_function(HELD_OUT), joint.decision_function(HELD_OUT)) <= SAME
    save(merged, tmp_path / "m.acil")
    again = load(tmp_path / "m.acil")
    assert again.expansion_size == 6
    np.testing.assert_array_equal(again.coef_, merged.coef_)
    added = ACILClassifier.from_sums(merged.sums())
    assert relative(added.decision_function(HELD_OUT), joint.decision_function(HELD_OUT)) <= SAME


def test_a_new_class_of_two_samples_is_recalled_beside_many_of_others():
    # Two features tell the classes apart, eighteen are noise that two samples cannot tell from that.
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1400, 20))
    labels = np.repeat([0, 1], 700)
    rows[labels == 1, :2] += 3
    learnt = np.r_[:400, 700:702]
    held_out = np.r_[400:700, 1100:1400]
    model = ACILClassifier(expansion_size=200).fit(rows[learnt], labels[learnt])
    free = ACILClassifier(expansion_size=200).fit(rows[learnt], labels[learnt])
    free.set_gamma(0.01, relative=True)
    new = labels[held_out] == 1
    recall, without = ((m.predict(rows[held_out]) == 1)[new].mean() for m in (model, free))
    assert recall > 0.95 > 0.9 > without
    assert (model.predict(rows[held_out]) == 0)[~new].mean() > 0.9


def test_gamma_is_due_when_a_class_has_far_fewer_samples_than_others():
    model = ACILClassifier(expansion_size=200).fit(X, Y)
    before = model.gamma_
    model.partial_fit(HELD_OUT[:1], [7])
    assert model.gamma_ > before
    again = ACILClassifier(expansion_size=200)
    again.fit(np.r_[X, HELD_OUT[:1]], np.r_[Y, [7]])
    assert model.gamma_ == pytest.approx(again.gamma_, rel=1e-9)
    # That of a ridge regression is kept for few samples, as before.
    ridge = ACILClassifier(expansion_size=200, scores="ridge").fit(X, Y)
    kept = ridge.gamma_
    assert ridge.partial_fit(HELD_OUT[:1], [7]).gamma_ == kept
