"""Processes of a group: what they tell each other, whom they wait for, and how they fail together."""

import os
import signal
import time

import numpy as np
import pytest
import torch
from torch import distributed as dist

from acil import ACILClassifier
from acil.distributed import Group, partial_fit, share
from acil.distributed.group import backend_for
from acil.errors import InputError, ProcessLostError
from ranks import together
from strategies import blobs

OPTIONS = {"expansion_size": 96, "gamma": 1e-3, "device": "cpu"}


def die_in_phase(group, place):
    found = blobs(300, 12, 5, seed=3)
    mine = slice(group.rank, None, group.size)
    X, y = found.X[mine], found.y[mine]
    model = partial_fit(ACILClassifier(**OPTIONS), X, y, group=group)
    before = model.coef_
    if group.rank == 1:
        if place == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        elif place == "reduction":
            dist.all_reduce = lambda *a, **o: os.kill(os.getpid(), signal.SIGKILL)
        elif place == "leaving":
            raise KeyError("enough")
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


def first_in_the_chain_dies(group):
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group.exchange()


def test_all_ranks_hear_of_one_that_dies():
    first, killed, *others = together(4, first_in_the_chain_dies, timeout=60.0)
    assert killed == signal.SIGKILL
    assert all(isinstance(error, ProcessLostError) for error in (first, *others))


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
    with pytest.raises(InputError, match=f"in seconds, got .?{value}"), Group.join(device="cpu"):
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
    assert backend_for(gpus) == backend
