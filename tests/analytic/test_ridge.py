"""The default solver: weights of any samples, learnt in any way, are those of one ridge regression."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge as SklearnRidge

from acil.analytic import PRECISIONS, ridge
from acil.analytic.cholesky import Factor
from acil.errors import InputError, InterruptedModelError, SingularMatrixError
from regressions import (
    condition,
    exact,
    forget,
    ill_conditioned,
    learn,
    new_ridge,
    samples,
    sums_of,
    weights_for,
)
from strategies import EPS32, promise, relative

pytestmark = pytest.mark.usefixtures("library")
EITHER = pytest.mark.parametrize("intercept", [False, True])


def coef_of(head):
    """Return W, below the intercepts if there are any; a copy."""
    return head.solved().coef.clone()


def learnt(rows, columns, c=3, weights=None, **settings):
    return learn(new_ridge(rows.shape[1], c, **settings), rows, columns, weights)


def streamed(head, rows, columns, step=1):
    """Learn drops of a few samples, with weights after each."""
    for start in range(0, len(rows), step):
        head = learn(head, rows[start : start + step], columns[start : start + step])
        head.coefficients()
    return head


@EITHER
@pytest.mark.parametrize("heavy", [False, True])
@given(d=st.integers(1, 30), n=st.integers(5, 80), c=st.integers(2, 5), seed=st.integers(0, 999))
def test_weights_are_those_of_scikit_learn(intercept, heavy, d, n, c, seed):
    rows, columns = samples(n, d, c, seed, shift=1.0)
    weights = weights_for(n, seed) if heavy else None
    W, b = learnt(rows, columns, c, weights, intercept=intercept).coefficients()
    theirs = SklearnRidge(1.0, fit_intercept=intercept, solver="svd")
    theirs.fit(rows.numpy(), np.eye(c)[columns.numpy()], None if weights is None else weights.numpy())
    assert np.allclose(W, theirs.coef_.T, rtol=0, atol=1e-11)
    assert np.allclose(b, theirs.intercept_, rtol=0, atol=1e-11)


@pytest.mark.parametrize("shift", [0.0, 1.0, 1e3])
def test_an_intercept_is_centring_by_hand(shift):
    rows, columns = samples(200, 30, 3, shift=shift)
    expected = exact(rows, columns, 3, 1.0, intercept=True)
    bound = promise(condition(rows, 1.0, intercept=True))
    head = learnt(rows, columns, intercept=True)
    assert relative(head.coefficients()[0], expected[1:]) <= bound
    scores = head.coefficients()[1] + rows @ head.coefficients()[0]
    assert relative(scores, expected[0] + rows.numpy() @ expected[1:]) <= bound


def in_phases(rows, columns, settings):
    head = new_ridge(rows.shape[1], 3, **settings)
    for phase in torch.arange(len(rows)).split(97):
        head = learn(head, rows[phase], columns[phase])
        head.release()
    return head


def merged(rows, columns, settings):
    head = learnt(rows[:50], columns[:50], **settings)
    for start in range(50, len(rows), 50):
        other = sums_of(rows[start : start + 50], columns[start : start + 50], 3)
        head = head.merge(other, torch.arange(3), torch.arange(3), 3)
        if start > 300:
            head.coefficients()
    return head


def weighing(rows, columns, settings):
    """Every sample in two parts, of weights that add up to one."""
    share = weights_for(len(rows)) / 4
    parts = [rows, rows], [columns, columns], [share, 1 - share]
    return learnt(*(torch.cat(part) for part in parts[:2]), 3, torch.cat(parts[2]), **settings)


def stream(rows, columns, settings):
    half = len(rows) // 2
    head = learnt(rows[:half], columns[:half], **settings)
    head.coefficients()
    return streamed(head, rows[half:], columns[half:])


def small_start(rows, columns, settings):
    """Drops of 20 samples from the first one on, weights only at the end."""
    head = new_ridge(rows.shape[1], 3, **settings)
    for drop in torch.arange(len(rows)).split(20):
        head = learn(head, rows[drop], columns[drop])
    return head


def forgetful(rows, columns, settings):
    more = 2 * rows[:100].flip(0)
    head = learnt(torch.cat([more, rows]), torch.cat([columns[:100], columns]), **settings)
    head.coefficients()
    return forget(head, more, columns[:100])


@EITHER
@pytest.mark.parametrize("target", [1e3, 1e6, 1e9, 1e11])
@pytest.mark.parametrize(
    ("way", "c"),
    [(in_phases, 1), (merged, 1), (weighing, 1), (stream, 10), (small_start, 10), (forgetful, 10)],
)
def test_every_way_to_learn_the_same_samples_keeps_the_promise(way, c, target, intercept):
    rows, columns, gamma = ill_conditioned(400, 64, 3, target)
    held_out = ill_conditioned(400, 64, 3, target, seed=5)[0]
    settings = {"gamma": gamma, "intercept": intercept}
    before = torch.cat([2 * rows[:100], rows]) if way is forgetful else rows
    bound = promise(condition(rows, gamma, before, intercept), c)
    joint, head = learnt(rows, columns, **settings), way(rows, columns, settings)
    (W, b), (V, a) = joint.coefficients(), head.coefficients()
    assert relative(V, W) <= bound
    assert relative(held_out @ V + a, held_out @ W + b) <= bound
    true = exact(rows, columns, 3, gamma, intercept)
    assert relative(coef_of(head), true) <= bound


def test_thousands_of_single_samples_keep_the_promise():
    rows, columns = samples(3100, 24, 3, shift=0.5)
    head = learnt(rows[:100], columns[:100])
    head.coefficients()
    head = streamed(head, rows[100:], columns[100:])
    bound = promise(condition(rows, 1.0), 10)
    assert relative(coef_of(head), exact(rows, columns, 3, 1.0)) <= bound


@pytest.fixture
def factors(monkeypatch):
    """Collect γ of each factor that is made."""
    made, usual = [], Factor.__init__

    def counted(self, sums, gamma, *rest):
        made.append(gamma)
        usual(self, sums, gamma, *rest)

    monkeypatch.setattr(Factor, "__init__", counted)
    return made


def test_weights_are_solved_once_and_only_when_asked_for(factors):
    rows, columns = samples(50, 10, 3)
    head = learnt(rows, columns)
    assert not factors
    for _ in range(3):
        head.coefficients(), head.leverage(rows), head.condition(), head.degrees_of_freedom()
    assert len(factors) == 1


@EITHER
@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("step", [1, 2, 20])  # up to 25 wait
def test_corrected_weights_are_those_of_a_new_solution(intercept, heavy, step, factors):
    rows, columns = samples(700, 200, 4, shift=0.5)
    weights = weights_for(700) if heavy else torch.ones(700, dtype=torch.float64)
    head = learnt(rows[:620], columns[:620], 4, weights[:620], intercept=intercept)
    head.coefficients()
    for part in torch.arange(620, 700).split(step):
        head = learn(head, rows[part], columns[part], weights[part])
    corrected, leverage = coef_of(head), head.leverage(rows[:9])
    assert (len(factors), head.solution.factor.rank, head.solution.corrected) == (1, 80, True)
    head.solve()
    assert (head.solution.factor.rank, head.solution.corrected) == (0, False)
    assert not torch.equal(corrected, coef_of(head))
    assert relative(corrected, coef_of(head)) <= 1e-11
    assert relative(leverage, head.leverage(rows[:9])) <= 1e-11


def test_rows_far_from_everything_learnt_are_left_to_a_new_factor():
    rows, columns = samples(100, 30, 3)
    head = learnt(rows[:90], columns[:90], gamma=1e-3)
    head.coefficients()
    far = rows[95:96] * 1e4
    blocks = [(rows[90:95], columns[90:95], None), (far, columns[95:96], None)]
    head = head.learn(blocks, 6, torch.arange(3), 3)
    assert head.solution is None
    seen = torch.cat([rows[:95], far])
    bound = promise(condition(seen, 1e-3), 10)
    assert relative(coef_of(head), exact(seen, columns[:96], 3, 1e-3)) <= bound


@pytest.mark.parametrize("n", [1, 12])
def test_new_classes_find_their_columns_whether_rows_wait_or_not(n):
    rows, columns = samples(300 + n, 64, 4)
    places = torch.tensor([0, 2, 3])
    columns[:300] = places[columns[:300] % 3]
    head = learnt(rows[:298], columns[:298], c=4)
    head = head.forget(lambda: iter([]), torch.tensor([True, False, True, True]))[0]
    head.coefficients()
    # Two samples wait when the new class comes.
    head = learn(head, rows[298:300], torch.bucketize(columns[298:300], places))
    columns[300:] = 1
    head = head.learn([(rows[300:], columns[300:], None)], n, places, 4)
    assert head.solution.factor.rank == 2 + n
    assert head.counts.tolist() == columns.bincount().tolist()
    assert relative(coef_of(head), exact(rows, columns, 4, 1.0)) <= 1e-12
    assert relative(head.solve().coef, exact(rows, columns, 4, 1.0)) <= 1e-12


@pytest.mark.parametrize(("d", "limit"), [(7, 0), (8, 1), (100, 12), (200, 20)])
def test_few_rows_wait_and_no_more_than_an_eighth_of_the_width(d, limit, monkeypatch):
    monkeypatch.setattr(ridge, "_MAX_WAITING", 20)
    rows, columns = samples(200, d, 3)
    head = new_ridge(d, 3)
    for i in range(100):
        head = learn(head, rows[i : i + 1], columns[i : i + 1])
        waiting = i + 1 - head.sums.n_samples
        assert waiting == sum(len(part[1]) for part in head._waiting) == (i + 1) % (limit + 1)
        assert int(head.counts.sum()) == i + 1
    assert learn(new_ridge(d, 3), rows, columns).sums.n_samples == 200, "many do not wait"
    assert relative(coef_of(head), exact(rows[:100], columns[:100], 3, 1.0)) <= 1e-12
    assert head.sums.n_samples == 100


@pytest.fixture
def waiting():
    """A regression with ten samples that wait, and all its samples."""
    (rows, columns), weights = samples(260, 100, 3), weights_for(260)
    head = learnt(rows[:250], columns[:250], 3, weights[:250])
    head.coefficients()
    for i in range(250, 260):
        # The last one has no weight of its own.
        head = learn(head, rows[i : i + 1], columns[i : i + 1], weights[i : i + 1] if i < 259 else None)
    weights[259] = 1.0
    assert head.sums.n_samples == 250
    return head, rows, columns, weights


@pytest.mark.parametrize(
    "ask",
    [
        lambda head: head.weights,
        lambda head: head.clone(),
        lambda head: head.release(),
        lambda head: head.flush(),
        lambda head: head.solve(),
        lambda head: head.best_gamma(),
        lambda head: head.condition(),
        lambda head: head.residual_squares(),
        lambda head: pickle.dumps(head),
        lambda head: copy.deepcopy(head),
    ],
)
def test_whoever_asks_for_the_sums_has_them_complete(waiting, ask):
    head, rows, columns, weights = waiting
    ask(head)
    assert not head._waiting
    gram = (rows.T * weights @ rows).tril()
    assert torch.allclose(head.sums.gram.tril(), gram, rtol=1e-13, atol=1e-12)
    assert torch.equal(head.sums.counts, columns.bincount())
    assert relative(head.weights, np.bincount(columns.numpy(), weights.numpy())) <= 1e-14
    assert relative(coef_of(head), exact(rows, columns, 3, 1.0, weights=weights)) <= 1e-11


def test_what_waits_takes_part_in_the_next_change(waiting):
    head, rows, columns, weights = waiting
    expected = exact(rows, columns, 3, 1.0, weights=weights)
    assert relative(forget(learn(head, rows, columns), rows, columns).solve().coef, expected) <= 1e-11


def test_sums_that_were_written_half_way_are_never_used(waiting, monkeypatch):
    head, rows, columns, _ = waiting
    before = coef_of(head)

    def interrupted(gram, *_):
        gram[0, 0] += 1.0
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("acil.analytic.sums.add_gram_", interrupted)
        with pytest.raises(KeyboardInterrupt):
            head.flush()
    uses = [head.flush, head.clone, head.solve, head.with_gamma(2.0).solve]
    uses += [lambda: learn(head, rows, columns), lambda: forget(head, rows[:3], columns[:3])]
    for use in uses:
        with pytest.raises(InterruptedModelError, match="interrupted"):
            use()
    assert torch.equal(coef_of(head), before), "the weights need no sums"


@pytest.mark.parametrize("n", [2, 100])
def test_an_object_is_left_as_it_was_by_what_follows_from_it(n):
    rows, columns = samples(400, 100, 3)
    old = learnt(rows[:300], columns[:300])
    before, counts = coef_of(old), old.counts.clone()
    later = learn(old, rows[300 : 300 + n], columns[300 : 300 + n])
    learnt_later = coef_of(later)
    later.flush()
    last = forget(later.with_gamma(5.0), rows[:2], columns[:2])
    last.solve()
    assert torch.equal(old.solved().coef, before)
    assert torch.equal(old.counts, counts)
    assert relative(before, exact(rows[:300], columns[:300], 3, 1.0)) <= 1e-12
    assert torch.equal(later.solved().coef, learnt_later)
    assert relative(learnt_later, exact(rows[: 300 + n], columns[: 300 + n], 3, 1.0)) <= 1e-11
    seen = slice(2, 300 + n)
    assert relative(coef_of(last), exact(rows[seen], columns[seen], 3, 5.0)) <= 1e-11
    for use in (old.solve, lambda: learn(old, rows, columns), later.clone):
        with pytest.raises(InterruptedModelError):
            use()


@pytest.mark.parametrize("memory", [False, True])
def test_release_keeps_weights_and_no_trace_of_recent_rows(waiting, memory):
    head, rows, columns, weights = waiting
    before, place = coef_of(head), head.sums.matrix.spare.data_ptr()
    head.release(memory)
    assert head.solution.factor is None
    assert not head._waiting
    assert torch.equal(head.solved().coef, before)
    assert (head.sums.matrix.spare is None) == memory
    head.solve()
    assert memory or head.sums.matrix.spare.data_ptr() == place
    assert relative(coef_of(head), exact(rows, columns, 3, 1.0, weights=weights)) <= 1e-11


def test_a_clone_has_the_same_weights_and_goes_its_own_way(waiting):
    head, rows, columns, _ = waiting
    twin, before = head.clone(), coef_of(head)
    assert torch.equal(twin.solved().coef, before)
    other = forget(learn(twin, rows, columns), rows[:7], columns[:7])
    other.solve()
    assert relative(head.solve().coef, before) <= 1e-11
    assert int(head.counts.sum()) == 260


def test_forgetting_what_cannot_have_been_learnt_changes_nothing():
    rows, columns = samples(50, 10, 3)
    head = learnt(rows, columns)
    before, sums = coef_of(head), head.sums.clone()
    with pytest.raises(InputError, match="cannot be forgotten"):
        forget(head, torch.cat([rows[:3], 100 * rows[3:4]]), columns[:4])
    assert torch.equal(head.sums.gram.tril(), sums.gram.tril())
    assert torch.equal(head.counts, sums.counts)
    assert torch.equal(coef_of(head), before)


@EITHER
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("n_left", [0, 1, 5, 30, 199])
def test_forgetting_what_was_learnt_is_always_possible(precision, n_left, intercept):
    # Also when fewer samples are left than there are dimensions: then gram is singular.
    rows, columns = samples(200, 30, 3, shift=2.0)
    rows = rows.to(PRECISIONS[precision].products)
    head = learnt(rows, columns, precision=precision, gamma=1e3, intercept=intercept)
    head = forget(head, rows[n_left:], columns[n_left:])
    assert int(head.counts.sum()) == n_left
    if n_left == 0:
        assert not any(part.any() for part in (head.sums.gram, head.sums.moment, head.weights))
    elif precision == "float64":
        true = exact(rows[:n_left], columns[:n_left], 3, 1e3, intercept)
        assert relative(coef_of(head), true) <= 1e-11


def test_a_class_without_samples_leaves_unless_it_was_declared():
    rows, columns = samples(60, 12, 3)
    gone = columns == 1
    for declared in (False, True):
        head = learnt(rows, columns)
        blocks = [(rows[gone], columns[gone], None)]
        rest, kept = head.forget(lambda: iter(blocks), torch.full((3,), declared))  # noqa: B023
        assert kept.tolist() == [True, declared, True]
        true = exact(rows[~gone], columns[~gone], 3, 1.0)[:, kept.numpy()]
        assert relative(coef_of(rest), true) <= 1e-12


@EITHER
def test_mixed_precision_is_refined_to_the_precision_of_its_sums(intercept):
    rows, columns = samples(500, 40, 3)
    head = learnt(rows.float(), columns, precision="mixed", intercept=intercept)
    W, b = head.coefficients()
    assert (head.solution.factor.L.dtype, W.dtype) == (torch.float32, torch.float64)
    plain = new_ridge(40, 3, intercept=intercept)
    plain.sums = head.sums.clone()
    assert relative(W, plain.coefficients()[0]) <= 1e-7, "far better than a float32 solution"
    assert relative(b + 1, plain.coefficients()[1] + 1) <= 1e-7
    assert relative(W, exact(rows, columns, 3, 1.0, intercept)[intercept:]) <= 1e-5


@pytest.mark.parametrize("precision", ["mixed", "float32"])
@pytest.mark.parametrize("spectrum", ["geometric", "one small", "one large", "linear"])
def test_float32_products_have_a_limit(precision, spectrum):
    d, n = 50, 400
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(size, d)))[0] for size in (n, d))
    for target in (1e3, 3e4, 4.9e4, 8.6e4, 2e5, 1e6):
        values = {
            "geometric": np.geomspace(1, 1 / target, d),
            "one small": np.r_[np.ones(d - 1), 1 / target],
            "one large": np.r_[np.full(d - 1, 1 / target), 1.0],
            "linear": np.linspace(1 / target, 1, d),
        }[spectrum]
        rows = torch.from_numpy((left * np.sqrt(values)) @ right).float()
        columns = torch.from_numpy(left[:, :3].argmax(axis=1))
        true = condition(rows.double(), 1e-9)
        assert true == pytest.approx(target, rel=0.02)
        head = learnt(rows, columns, precision=precision, gamma=1e-9)
        if target < 5e4:
            scores = rows.double() @ coef_of(head).double()
            expected = rows.double().numpy() @ exact(rows, columns, 3, 1e-9)
            # Classes that show in the thinnest direction alone take all that float32 has lost there.
            assert relative(scores, expected) <= (1e-3 if spectrum == "geometric" else EPS32 * true)
        else:
            for _ in range(2):
                with pytest.raises(SingularMatrixError, match=r'too large for.*dtype="float64"'):
                    head.coefficients()


@pytest.mark.parametrize("precision", ["mixed", "float32"])
def test_a_smaller_gamma_is_judged_anew(precision):
    rows, columns, _ = ill_conditioned(300, 40, 3, 1e8)
    head = learnt(rows.float(), columns, precision=precision, gamma=3e-5)
    assert head.condition() == pytest.approx(1 / 3e-5, rel=0.2)
    with pytest.raises(SingularMatrixError, match="too large"):
        head.with_gamma(1e-6).solve()


@EITHER
@pytest.mark.parametrize("target", [1.5, 1e3, 1e6, 1e9])
@pytest.mark.parametrize("d", [1, 2, 3, 60])
def test_condition_is_estimated_to_a_fifth(target, d, intercept):
    rows, columns, gamma = ill_conditioned(200, d, 1, target)
    head = learnt(rows, columns, c=1, gamma=gamma, intercept=intercept)
    assert head.condition() == pytest.approx(condition(rows, gamma, intercept=intercept), rel=0.2)


@EITHER
def test_diagnostics_are_those_of_numpy(intercept):
    rows, columns = samples(80, 12, 3, shift=0.5)
    head = learnt(rows, columns, gamma=0.7, intercept=intercept)
    X = rows.numpy() - rows.numpy().mean(axis=0) * intercept
    R = np.linalg.inv(X.T @ X + 0.7 * np.eye(12))
    freedom = 12 - 0.7 * np.trace(R) + intercept
    assert head.degrees_of_freedom() == pytest.approx(freedom, rel=1e-10)
    W, b = head.coefficients()
    squares = ((np.eye(3)[columns.numpy()] - rows.numpy() @ W.numpy() - b.numpy()) ** 2).sum(axis=0)
    assert relative(head.residual_squares(), squares) <= 1e-10
    query = samples(9, 12, 3, seed=4)[0]
    centred = query.numpy() - rows.numpy().mean(axis=0) * intercept
    leverage = np.einsum("ij,jk,ik->i", centred, R, centred) + intercept / 80
    assert relative(head.leverage(query), leverage) <= 1e-10


def test_gamma_that_is_left_open_follows_the_samples_and_not_its_past():
    rows, columns = samples(600, 30, 3)
    rows[torch.arange(600), columns] += 2.0
    head = learnt(rows[:1], columns[:1], gamma=None)
    early = head.solved().gamma
    for part in torch.arange(1, 600).split(7):
        head = learn(head, rows[part], columns[part])
        head.coefficients()
    joint = learnt(rows, columns, gamma=None)
    assert head.solve().gamma == pytest.approx(joint.solved().gamma, rel=1e-9)
    assert early != pytest.approx(joint.solved().gamma, rel=0.1)
    true = exact(rows, columns, 3, joint.solved().gamma)
    assert relative(coef_of(head), true) <= 1e-12


def test_few_samples_keep_gamma_and_twice_as_many_choose_it_anew(factors):
    rows, columns = samples(200, 64, 3)
    head = learnt(rows[:90], columns[:90], gamma=None)
    first = head.solved().gamma
    factors.clear()
    for i in range(90, 180):
        head = learn(head, rows[i : i + 1], columns[i : i + 1])
        head.coefficients()
    assert not factors
    assert (head.solved().gamma, head.solved().corrected) == (first, True)
    head = learn(head, rows[180:181], columns[180:181])
    assert head.solution is None
    head.coefficients()
    assert len(factors) <= 11


def test_best_of_given_candidates_and_what_to_do_if_there_is_none():
    rows, columns = samples(200, 10, 3)
    head = learnt(rows, columns)
    found = [ridge.gcv.criterion(head.sums, gamma, False) for gamma in (1.0, 50.0, 1e5)]
    best = head.best_gamma(torch.tensor([1.0, 50.0, 1e5]))
    assert best == (1.0, 50.0, 1e5)[int(np.argmin(found))]
    assert head.with_gamma(7.0).solved().gamma == 7.0
    few = learnt(rows[:5], columns[:5])
    with pytest.raises(InputError, match=r"5 samples exactly.*larger"):
        few.best_gamma(torch.tensor([0.0, 1e-9]))


@pytest.mark.parametrize("precision", ["mixed", "float32"])
@EITHER
def test_gamma_that_is_left_open_stays_within_the_limit_of_float32(precision, intercept):
    rows, columns, _ = ill_conditioned(300, 40, 3, 1e12)
    head = learnt(rows.float(), columns, gamma=None, precision=precision, intercept=intercept)
    assert head.condition() <= 8.4e4
    assert torch.isfinite(coef_of(head)).all()


@EITHER
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("gamma", [1.0, None])
def test_samples_of_zeros_have_weights_of_zero(precision, gamma, intercept):
    rows = torch.zeros(10, 8, dtype=PRECISIONS[precision].products)
    head = learnt(rows, torch.arange(10) % 3, gamma=gamma, precision=precision, intercept=intercept)
    assert not head.coefficients()[0].any()
    assert head.condition() == pytest.approx(1.0, rel=0.01)
