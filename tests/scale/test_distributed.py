"""Several processes, each with a shard, learn the model of one process, and fail together."""

import os
import re
import signal
import time

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import distributed as dist

from acil import ACILClassifier
from acil.core.classifier import learnt_of
from acil.core.files import pack
from acil.errors import InputError, InputTypeError, ProcessLostError, RemoteError, UnsupportedError
from acil.scale import Group, learning, partial_fit, share
from acil.scale import group as group_module
from support.ranks import together
from support.strategies import blobs, relative

OPTIONS = {"expansion_size": 96, "gamma": 1e-3, "device": "cpu"}
#: More dimensions than samples: κ is nearly 1e9.
ILL_CONDITIONED = {"expansion_size": 400, "gamma": 3e-3}
#: ε·κ at κ = 1e9, with a margin for the largest of the problems below.
SCORES = 1e-6
LABELS = np.array(["ant", "bee", "caterpillar", "dog", "eel"])


def problem():
    """Three phases: new classes, more of the old ones, one sample of a class with a long name."""
    found = blobs(300, 12, 5, seed=3)
    y = LABELS[found.y]
    phases = np.where(found.y < 3, 0, np.where(found.y == 3, 1, 2))
    phases[:20] = 1
    weights = np.random.default_rng(0).uniform(0.2, 3.0, len(y))
    weights[::17] = 0.0
    return found.X, y, phases, weights, found.held_out


def cut(n, size, how):
    """Return which rank has each of n samples."""
    if how == "even":
        return np.arange(n) % size
    if how == "uneven":
        # Rank 1 has nothing, rank 0 nearly everything
        return np.where(np.arange(n) % 10 < 8, 0, (np.arange(n) % size) * (np.arange(n) % size != 1))
    return np.sort(np.arange(n) % size)  # by class where samples are sorted


def scores_of(group, options, how, weighted):
    X, y, phases, weights, held_out = problem()
    model = ACILClassifier(**({"scores": "ridge"} | options))
    for phase in range(3):
        chosen = np.flatnonzero(phases == phase)
        if how == "by class":
            chosen = chosen[np.argsort(y[chosen], kind="stable")]
        mine = chosen[cut(len(chosen), group.size, how) == group.rank]
        own = weights[mine] if weighted else None
        partial_fit(model, X[mine], y[mine], sample_weight=own, group=group)
        model.predict(held_out)
    scores = model.decision_function(held_out)
    sums = {name: np.array(part) for name, part in pack(model).items() if "header" not in name}
    return scores, model.coef_, model.classes_, (sums, model.class_count_)


def assert_same_bits(sums, others):
    (tensors, counts), (expected, expected_counts) = sums, others
    assert {"gram", "moment", "coef", "projection"} <= tensors.keys()
    assert tensors.keys() == expected.keys()
    assert all(np.array_equal(tensors[name], expected[name]) for name in expected)
    assert np.array_equal(counts, expected_counts)


def alone(options, weighted):
    X, y, phases, weights, held_out = problem()
    model = ACILClassifier(**({"scores": "ridge"} | options))
    for phase in range(3):
        mine = phases == phase
        model.partial_fit(X[mine], y[mine], sample_weight=weights[mine] if weighted else None)
        model.predict(held_out)  # selects γ, where that is left to the model
    return model, held_out


@pytest.mark.parametrize(
    ("size", "how", "weighted", "options"),
    [
        (2, "even", False, {}),
        (2, "uneven", True, {"fit_intercept": True}),
        (4, "by class", True, {}),
        (4, "uneven", False, {"expansion_size": 96, "gamma": 1e6}),
        (2, "even", False, {"gamma": "auto", "class_balance": True}),
        (2, "even", True, {"expansion_size": 600, "gamma": 1e6}),
        (8, "by class", False, {}),
        (4, "even", True, ILL_CONDITIONED),
    ],
)
def test_scores_and_sums_are_those_of_one_process(size, how, weighted, options):
    options = OPTIONS | options
    model, held_out = alone(options, weighted)
    found = together(size, scores_of, options, how, weighted)
    for scores, coef, classes, sums in found:
        assert relative(scores, model.decision_function(held_out)) <= SCORES
        assert classes.tolist() == LABELS.tolist()
        assert np.array_equal(coef, found[0][1])
        assert_same_bits(sums, found[0][3])
    assert np.array_equal(found[0][3][1], model.class_count_)
    tensors, expected = found[0][3][0], pack(model)
    assert relative(tensors["gram"], expected["gram"].numpy()) <= 1e-15
    assert relative(tensors["moment"], expected["moment"].numpy()) <= 1e-15


def probabilities_of(group):
    """Of a model that counts how samples score when they are left out; rank 1 has none of them first."""
    X, y, _, _, held_out = problem()
    model = ACILClassifier(**OPTIONS | {"gamma": 1.0, "scores": "discriminant"})
    for part in (slice(0, 100), slice(100, 300)):
        mine = slice(part.start + group.rank, part.stop, group.size)
        mine = (part if group.leads else slice(0)) if part.start == 0 else mine
        partial_fit(model, X[mine], y[mine], group=group)
    calibration = learnt_of(model).calibration
    return model.predict_proba(held_out), calibration.samples, calibration.approximate


def test_probabilities_are_those_of_one_process():
    X, y, _, _, held_out = problem()
    model = ACILClassifier(**OPTIONS | {"gamma": 1.0, "scores": "discriminant"})
    model.partial_fit(X[:100], y[:100]).partial_fit(X[100:], y[100:])
    found = together(3, probabilities_of)
    for probabilities, samples, approximate in found:
        assert np.array_equal(probabilities, found[0][0])
        assert relative(probabilities, model.predict_proba(held_out)) <= SCORES
        assert samples == pytest.approx(learnt_of(model).calibration.samples)
        assert not approximate


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.mark.parametrize(
    ("device", "change", "tolerance"),
    [
        # eps of float32 times a condition number of about 1e3
        ("cpu", {"dtype": "float32", "gamma": 100.0}, 1e-4),
        pytest.param("cuda:0", {}, SCORES, marks=GPU, id="two processes share a GPU"),
    ],
)
def test_other_precisions_and_devices_have_the_scores_of_one_process(device, change, tolerance):
    model, held_out = alone(OPTIONS | change, True)
    options = OPTIONS | change | {"device": device}
    found = together(2, scores_of, options, "uneven", True, device=device)
    for scores, coef, _, _ in found:
        assert relative(scores, model.decision_function(held_out)) <= tolerance
        assert np.array_equal(coef, found[0][1])


def misfits(group, kind):
    """Let the last rank give something bad; return error, time and whether all models are as before."""
    X, y, _, _, held_out = problem()
    mine = slice(group.rank, None, group.size)
    model = partial_fit(ACILClassifier(**({"scores": "ridge"} | OPTIONS)), X[mine], y[mine], group=group)
    before = model.decision_function(held_out)
    bad, labels, weights, caught = X[mine].copy(), y[mine], None, None
    if group.rank == group.size - 1:
        bad = {
            "sparse": scipy.sparse.csr_array(bad),
            "nan": np.where(np.arange(len(bad))[:, None] == 3, np.nan, bad),
            "width": bad[:, :-1],
        }.get(kind, bad)
        labels = {"length": labels[:-1], "labels": np.arange(len(labels))}.get(kind, labels)
        weights = np.full(len(labels), -1.0) if kind == "weights" else None
        if kind == "model":
            model.partial_fit(X[:1], y[:1])
            before = model.decision_function(held_out)
        model.set_params(**{"gamma": {"gamma": 7.0}, "solver": {"solver": "recursive"}}.get(kind, {}))
        if kind == "bug":
            # In this process alone, which ends with this test
            learning.check_samples = None
    try:
        partial_fit(model, bad, labels, sample_weight=weights, group=group)
    except Exception as error:
        caught = error
    unchanged = np.array_equal(before, model.decision_function(held_out))
    model.gamma, model.solver = OPTIONS["gamma"], "gram"
    if kind not in ("model", "bug"):
        # The group goes on.
        partial_fit(model, X[mine], y[mine], group=group)
    return type(caught), str(caught), unchanged, model.n_samples_


MISFITS = {
    "sparse": (InputTypeError, "Rank 1: Sparse data"),
    "nan": (InputError, "Rank 1: .*NaN"),
    "width": (InputError, "Rank 1: X has 11 features"),
    "length": (InputError, "Rank 1: X has 150 rows, but y has 149"),
    "labels": (InputError, "Rank 1: Labels are of type int"),
    "weights": (InputError, "Rank 1: .*[Nn]egative"),
    "gamma": (InputError, "Ranks 0 and 1 differ in the parameters"),
    "solver": (UnsupportedError, "Rank 1: .*recursive"),
    "model": (InputError, "Ranks 0 and 1 differ in what the model has learnt"),
}


def all_misfits(group):
    """One after the other in one group: it outlives them."""
    return [misfits(group, kind) for kind in MISFITS]


def test_bad_input_of_one_rank_is_the_same_error_on_all_and_changes_nothing():
    for kind, first, second in zip(MISFITS, *together(2, all_misfits), strict=True):
        expected, words = MISFITS[kind]
        # Error, message, whether nothing has changed, and then the number of samples
        assert first[:3] == second[:3] == (expected, first[1], True)
        assert re.search(words, first[1])
        assert kind == "model" or first[3] == second[3] == 600


def test_a_bug_in_one_rank_is_told_to_the_others():
    own, other = together(2, misfits, "bug")[::-1]
    assert own[0] is TypeError
    assert other[0] is RemoteError
    assert other[1].startswith("Rank 1: TypeError: ")


def nothing_to_learn(group):
    partial_fit(ACILClassifier(**({"scores": "ridge"} | OPTIONS)), None, None, group=group)


def test_no_samples_at_all_are_an_error():
    assert all("No process has samples" in str(error) for error in together(2, nothing_to_learn))


def first_samples_elsewhere(group):
    """Rank 0 has no sample; it draws the expansion all the same. Rank 1 has a data frame."""
    import pandas as pd

    frame = pd.DataFrame(np.eye(4), columns=list("abcd"))
    model = ACILClassifier(scores="ridge", expansion_size=8, random_state=None, device="cpu")
    mine = (frame, [True, False, True, False]) if group.rank else (None, None)
    partial_fit(model, *mine, group=group)
    return model.coef_, model.n_features_in_, list(model.feature_names_in_), model.classes_.dtype.kind


def test_an_empty_shard_ends_with_everything_that_others_know():
    first, second = together(2, first_samples_elsewhere)
    assert np.array_equal(first[0], second[0])
    assert first[1:] == second[1:] == (4, list("abcd"), "b")


def labels_of_types(group):
    mine, found = [group.rank], []
    for kind in (np.int32, np.float32):
        model = ACILClassifier(**({"scores": "ridge"} | OPTIONS))
        found.append(partial_fit(model, np.eye(3)[mine], np.arange(3, dtype=kind)[mine], group=group))
    return [model.classes_ for model in found]


def guarded(group, least):
    model = ACILClassifier(**({"scores": "ridge"} | OPTIONS), min_class_samples=least)
    X, y = np.eye(4)[group.rank :: 2], ["ant", "ant"]
    try:
        return partial_fit(model, X, y, group=group).class_count_.tolist()
    except InputError as error:
        return str(error), model.__sklearn_is_fitted__()


def test_a_class_is_large_enough_if_all_ranks_together_have_enough_of_it():
    assert together(2, guarded, 4) == [[4], [4]]
    for text, learnt in together(2, guarded, 5):
        assert "'ant' would have 4 samples, fewer than min_class_samples=5" in text
        assert not learnt


def test_numbers_keep_their_type():
    for whole, real in together(2, labels_of_types):
        assert whole.tolist() == real.tolist() == [0, 1]
        assert (whole.dtype, real.dtype) == (np.int32, np.float32)


def sums_in_small_blocks(group):
    group_module.BLOCK_BYTES = 2**16
    return scores_of(group, OPTIONS | {"expansion_size": 600}, "even", True)


def test_sums_that_travel_in_many_blocks_are_the_same():
    options = OPTIONS | {"expansion_size": 600}
    blocked, whole = together(2, sums_in_small_blocks), together(2, scores_of, options, "even", True)
    assert_same_bits(blocked[0][3], whole[0][3])


def test_one_process_alone_learns_as_ever():
    X, y, _, _, held_out = problem()
    with Group.join(device="cpu") as group:
        assert group.size == 1
        model = partial_fit(ACILClassifier(**({"scores": "ridge"} | OPTIONS)), X, y, group=group)
        with pytest.raises(InputError, match="NaN"):
            partial_fit(model, X * np.nan, y, group=group)
    expected = ACILClassifier(**({"scores": "ridge"} | OPTIONS)).fit(X, y).decision_function(held_out)
    assert relative(model.decision_function(held_out), expected) <= SCORES


def gamma_chosen_by_one(group):
    X, y, _, _, held_out = problem()
    mine = slice(group.rank, None, group.size)
    model = ACILClassifier(**({"scores": "ridge"} | OPTIONS | {"gamma": "auto"}))
    for _ in range(2):
        partial_fit(model, X[mine], y[mine], group=group)
        if group.leads:
            model.predict(held_out)
    return model.gamma_


def test_a_gamma_that_one_rank_has_selected_is_everyones():
    first, second = together(2, gamma_chosen_by_one)
    assert first == second


def bytes_of_a_phase(group):
    X, y, *_ = problem()
    model = ACILClassifier(**({"scores": "ridge"} | OPTIONS))
    mine = slice(group.rank, None, group.size)
    real, moved = dist.all_reduce, []

    def counting(tensor, **options):
        moved.append(tensor.nbytes)
        return real(tensor, **options)

    dist.all_reduce = counting
    partial_fit(model, X[mine], y[mine], group=group)
    return sum(moved)


def test_what_travels_is_what_the_guide_says():
    d, c, s = OPTIONS["expansion_size"], len(LABELS), 8
    for moved in together(2, bytes_of_a_phase):
        assert moved == s * (d * (d + 1) // 2 + d * c + d) + 8 * c + 8 * c + 16


def die_in_phase(group, place):
    X, y = (part[group.rank :: group.size] for part in problem()[:2])
    model = partial_fit(ACILClassifier(**({"scores": "ridge"} | OPTIONS)), X, y, group=group)
    before = model.coef_
    if group.rank == 1 and place == "leaving":
        raise KeyError("enough")
    if group.rank == 1 and place == "reduction":
        dist.all_reduce = lambda *a, **o: os.kill(os.getpid(), signal.SIGKILL)
    elif group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    try:
        partial_fit(model, X, y, group=group)
    except ProcessLostError as error:
        return str(error), time.monotonic() - started, np.array_equal(model.coef_, before)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("before", "it did not answer"),
        ("reduction", "tensors did not arrive"),
        ("leaving", "it did not answer"),
    ],
)
def test_a_rank_that_dies_is_an_error_at_once(place, words):
    (text, seconds, unchanged), other = together(2, die_in_phase, place, timeout=60.0)
    assert words in text
    assert "--resume" in text
    # Far less than the time-out, on a busy machine
    assert seconds < 20
    assert unchanged
    assert isinstance(other, KeyError) if place == "leaving" else other == signal.SIGKILL


def fails_and_leaves(group):
    with group.together():
        if group.leads:
            raise InputError("X has no rows.")
        time.sleep(0.5)


def test_the_last_words_of_a_rank_that_has_left_are_heard():
    for error in together(3, fails_and_leaves):
        assert isinstance(error, InputError)
        assert str(error) == "Rank 0: X has no rows."


def silent_first(group):
    if group.leads:
        time.sleep(4.0)
    else:
        group.exchange()


def test_a_rank_that_does_not_answer_within_the_time_out_is_lost():
    error = together(2, silent_first, timeout=1.0)[1]
    assert isinstance(error, ProcessLostError)
    assert "did not answer" in str(error)


def several_groups(group):
    with Group.join(device="cpu") as inner:
        return group.exchange(group.rank) + inner.exchange(inner.rank + 10)


def test_groups_beside_each_other_do_not_mix():
    assert together(2, several_groups) == [[0, 1, 10, 11]] * 2


def shared_content(group):
    content = {"half": torch.ones(3, dtype=torch.float16), "count": torch.tensor(7), "name": "net"}
    content |= {"flags": torch.tensor([True, False]), "none": torch.empty(0, 2)}
    found = share(content if group.leads else None, group)
    return {k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in found.items()}


def test_everything_of_rank_0_can_be_shared():
    first, second = together(2, shared_content)
    assert first.keys() == second.keys()
    assert second["name"] == "net"
    for name in ("half", "count", "flags", "none"):
        assert first[name].dtype == second[name].dtype
        assert np.array_equal(first[name], second[name])


@pytest.mark.parametrize("value", ["soon", "0", "-1", "inf"])
def test_a_time_out_that_is_none_is_refused(value, monkeypatch):
    monkeypatch.setenv("ACIL_DISTRIBUTED_TIMEOUT", value)
    with pytest.raises(InputError, match=f"seconds, got .?{value}"), Group.join(device="cpu"):
        pass


@pytest.mark.parametrize(
    ("gpus", "backend"),
    [
        (["GPU-1", "GPU-2", "GPU-3"], "nccl"),
        (["GPU-1", "GPU-2", "GPU-1"], "gloo"),
        (["GPU-1", None], "gloo"),
        ([None, None], "gloo"),
    ],
)
def test_only_processes_with_a_gpu_each_talk_through_nccl(gpus, backend):
    assert group_module.backend_for(gpus) == backend
