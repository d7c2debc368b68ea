"""Small work takes one thread, large work as many as the caller has set, and nothing else changes."""

import re
import threading
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from acil import ACILClassifier
from acil.bench.training.settings import Training
from acil.core import linalg
from acil.core.expansion import ACTIVATIONS
from acil.core.linalg import SMALL, sized, threads_for
from acil.encoders.images import FeatureExtractor, ImageSet, build
from acil.encoders.images.decode import decode
from acil.encoders.images.embedder import embed_files
from acil.encoders.images.extract import multiplications
from acil.serve.kinds import stacked
from acil.serve.line import Line, Waiting
from support.small_training import fit, make_network, problem

ALL = 3
TASKS = Path("/proc/self/task")
needs_proc = pytest.mark.skipif(not TASKS.exists(), reason="counts threads in /proc")


@pytest.fixture(autouse=True)
def all_threads():
    """Let torch use more than one thread, on any machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(ALL)
    yield
    torch.set_num_threads(before)


def number():
    """Return the threads that torch has here; those of MKL have to be as many."""
    mkl = re.search(r"mkl_get_max_threads\(\) : (\d+)", torch.__config__.parallel_info())
    assert mkl is None or int(mkl[1]) == torch.get_num_threads()
    return torch.get_num_threads()


def in_a_thread(action):
    """Return what an action returns in a thread of its own."""
    found = []
    thread = threading.Thread(target=lambda: found.append(action()))
    thread.start()
    thread.join()
    return found[0]


def test_only_small_work_takes_one_thread():
    with threads_for(SMALL):
        assert number() == 1
    assert number() == ALL
    with threads_for(SMALL + 1):
        assert number() == ALL
    with pytest.raises(ValueError, match="inside"), threads_for(1):
        raise ValueError("inside")
    assert number() == ALL


@pytest.mark.parametrize("works", [(1, SMALL + 1), (SMALL + 1, 1), (1, 1), (1, SMALL + 1, 1)])
def test_the_innermost_counts(works):
    def go(outer, *inner):
        with pytest.raises(KeyError) if outer == 1 else nullcontext(), threads_for(outer):
            assert number() == (1 if outer == 1 else ALL)
            if inner:
                go(*inner)
                assert number() == (1 if outer == 1 else ALL)
            if outer == 1:
                raise KeyError

    go(*works)
    assert number() == ALL


@pytest.mark.parametrize("limit", [1, 2])
def test_nobody_gets_more_threads_than_it_has_set(limit):
    torch.set_num_threads(limit)
    with threads_for(SMALL + 1):
        assert number() == limit
    with threads_for(1):
        assert number() == 1
        with threads_for(SMALL + 1):
            assert number() == limit
    assert number() == limit


def test_other_threads_keep_theirs():
    begun, limited, asked = threading.Event(), threading.Event(), []

    def beside():
        asked.append(number())
        begun.set()
        limited.wait(10)
        asked.append(number())

    thread = threading.Thread(target=beside)
    thread.start()
    begun.wait(10)
    with threads_for(1):
        assert in_a_thread(number) == ALL
        limited.set()
        thread.join()
        assert number() == 1
    assert asked == [ALL, ALL]


def test_each_thread_gets_its_own_back():
    barrier = threading.Barrier(4, timeout=20)
    found = {}

    def work(mine):
        torch.get_num_threads()
        barrier.wait()
        with threads_for(1):
            barrier.wait()
            with threads_for(SMALL + 1):
                barrier.wait()
                inner = number()
            barrier.wait()
        found[mine] = inner, number()

    running = [threading.Thread(target=work, args=(mine,)) for mine in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert found == dict.fromkeys(range(4), (ALL, ALL))


def test_nothing_is_limited_where_the_library_has_no_such_setting(monkeypatch):
    monkeypatch.setattr(linalg, "_set_openmp", None)
    with threads_for(1):
        assert torch.get_num_threads() == ALL


def test_the_size_comes_from_the_arguments():
    @sized(lambda rows, columns=1: rows * columns)
    def work(rows, columns=1):
        """Say how many threads there are."""
        return number()

    assert (work(10), work(SMALL, columns=2), work.__name__) == (1, ALL, "work")


@pytest.fixture
def seen(monkeypatch):
    """Return the numbers of threads at each expansion, and at each factorization."""
    found = {"expansion": [], "factor": []}

    def spied(name, function):
        def run(*args, **kwargs):
            found[name].append(number())
            return function(*args, **kwargs)

        return run

    monkeypatch.setitem(ACTIVATIONS, "relu", spied("expansion", torch.relu_))
    monkeypatch.setattr(torch.linalg, "cholesky_ex", spied("factor", torch.linalg.cholesky_ex))
    return found


@pytest.mark.parametrize(
    "call",
    [
        lambda clf, X, y: clf.fit(X, y),
        lambda clf, X, y: clf.partial_fit(X, y),
        lambda clf, X, y: clf.forget(X, y),
        lambda clf, X, y: clf.predict(X),
        lambda clf, X, y: clf.predict_proba(X=X),
        lambda clf, X, y: clf.decision_function(X),
        lambda clf, X, y: clf.novelty(X),
        lambda clf, X, y: clf.relative_novelty(X),
    ],
    ids=["fit", "partial_fit", "forget", "predict", "proba", "scores", "novelty", "relative"],
)
@pytest.mark.parametrize(("width", "expected"), [(64, 1), (300, ALL)], ids=["narrow", "wide"])
def test_rows_of_a_head_take_the_threads_that_they_are_worth(call, width, expected, seen, monkeypatch):
    monkeypatch.setattr(linalg, "SMALL", 20 * 100**2)
    X, y = np.random.default_rng(0).normal(size=(20, 8)), np.arange(20) % 2
    clf = ACILClassifier(expansion_size=width, gamma=1.0, random_state=0)
    clf.fit(X, y).partial_fit(X, y)
    seen["expansion"].clear()
    call(clf, X, y)
    assert set(seen["expansion"]) == {expected}
    assert number() == ALL


def test_a_large_factor_takes_all_threads_also_for_one_row(seen, monkeypatch):
    monkeypatch.setattr(linalg, "SMALL", 100**3 / 3)
    X, y = np.random.default_rng(0).normal(size=(20, 8)), np.arange(20) % 2
    for width, expected in ((90, 1), (110, ALL)):
        clf = ACILClassifier(expansion_size=width, gamma=1.0, scores="ridge").fit(X, y)
        seen["factor"].clear()
        seen["expansion"].clear()
        clf.predict(X[:1])
        assert set(seen["factor"]) == {expected}
        assert set(seen["expansion"]) == {1}


def test_multiplications_of_a_network():
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 6 * 6, 5))
    assert multiplications(network, torch.zeros(2, 3, 6, 6)) == 2 * 8 * 6 * 6 * (3 * 3 * 3 + 5)
    assert multiplications(nn.Flatten(), torch.zeros(2, 3)) == float("inf")


@pytest.mark.parametrize(("small", "expected"), [(32 * 313_536, 1), (32 * 313_344 - 1, ALL)])
def test_a_small_network_is_trained_and_run_in_one_thread(small, expected, monkeypatch):
    monkeypatch.setattr(linalg, "SMALL", small)
    images, labels = problem(64)
    network, found = make_network(), []
    network.register_forward_pre_hook(lambda _module, _x: found.append(number()))
    fit(network, images, labels, Training(epochs=1, batch_size=32, learning_rate=0.01))
    assert found[-2:] == [expected] * 2
    backbone, found = build("smallcnn"), []
    backbone.register_forward_pre_hook(lambda _module, _x: found.append(number()))
    FeatureExtractor(backbone, batch_size=32).features(ImageSet(images, None, ""))
    assert found[-2:] == [expected] * 2
    assert number() == ALL


@needs_proc
def test_reading_an_image_starts_no_threads():
    picture = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)

    def started():
        before = set(TASKS.iterdir())
        decode(picture, 256)
        return set(TASKS.iterdir()) - before

    assert not in_a_thread(started)


class Plain:
    """An embedder of images that are large enough to be copied by several threads."""

    batch_size, num_features = 2, 1

    def decode(self, source):
        return torch.full((3, 224, 224), source, dtype=torch.uint8)

    def embed(self, pixels):
        return pixels[:, 0, 0, :1].float()


def test_images_are_put_together_in_one_thread(monkeypatch):
    found, stack = [], torch.stack
    monkeypatch.setattr(torch, "stack", lambda parts: found.append(number()) or stack(parts))
    assert embed_files([5, 6, 7, 8], Plain()).features.flatten().tolist() == [5, 6, 7, 8]
    assert found == [1, 1]
    line = Line(stacked(Plain()), max_pixels=10**6, limit=10**6)
    picture = Waiting(lambda: Plain().decode(9), 224 * 224, 1)
    assert line.submit("client", [picture], lambda features: features.item()).result(20) == 9
    line.close()
    assert found[2] == 1
