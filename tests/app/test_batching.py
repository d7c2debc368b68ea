"""The batcher: batches form, requests take turns, results do not depend on it."""

import threading
import time
from concurrent.futures import CancelledError, wait

import pytest
import torch

from acil.app.batching import Batcher


class Recorder:
    """An embedder that remembers its batches; the feature of an image is its first pixel."""

    def __init__(self, seconds=0.0, gate=None):
        self.sizes, self.order = [], []
        self.seconds, self.gate = seconds, gate

    def embed(self, pixels):
        if self.gate is not None:
            self.gate.wait(10)
        time.sleep(self.seconds)
        self.sizes.append(len(pixels))
        self.order.append(pixels[:, 0, 0, 0].tolist())
        if (pixels == 255).any():
            raise ValueError("a bad image")
        return pixels[:, :, 0, 0].float()


def image(value):
    return torch.full((1, 2, 2), value, dtype=torch.uint8)


def answered(asked):
    return [(features[:, 0].tolist(), question) for features, question in asked]


@pytest.fixture
def gate():
    made = threading.Event()
    yield made
    made.set()


def test_waiting_images_go_together(gate):
    embedder = Recorder(gate=gate)
    batcher = Batcher(embedder, answered, max_images=8)
    futures = [batcher.submit([image(i)], i) for i in range(17)]
    gate.set()
    assert [future.result(10) for future in futures] == [([float(i)], i) for i in range(17)]
    assert sum(embedder.sizes) == 17
    assert max(embedder.sizes) == 8
    assert len(embedder.sizes) <= 4
    batcher.close()


def test_network_for_single_images_gets_all_of_them_in_order(gate):
    embedder = Recorder(gate=gate)
    embedder.batch_size = 1
    batcher = Batcher(embedder, answered, max_images=8)
    future = batcher.submit([image(i) for i in range(20)], None)
    gate.set()
    assert future.result(10)[0] == [float(i) for i in range(20)]
    assert sum(embedder.sizes) == 20
    batcher.close()


def test_many_images_of_one_do_not_hold_up_another(gate):
    embedder = Recorder(gate=gate)
    batcher = Batcher(embedder, answered, max_images=4)
    large = batcher.submit([image(1)] * 100, "large")
    small = batcher.submit([image(2)], "small")
    gate.set()
    assert small.result(10) == ([2.0], "small")
    assert large.result(10)[0] == [1.0] * 100
    turn = next(i for i, batch in enumerate(embedder.order) if 2 in batch)
    assert turn <= 1
    batcher.close()


def test_lone_request_does_not_wait():
    batcher = Batcher(Recorder(), answered, wait_seconds=30)
    assert batcher.submit([image(3)], None).result(10) == ([3.0], None)
    batcher.close()


def test_batch_waits_for_a_request_on_its_way_but_not_for_ever():
    embedder = Recorder()
    batcher = Batcher(embedder, answered, max_images=2, wait_seconds=10)
    with batcher.expecting():
        first = batcher.submit([image(1)], None)
        time.sleep(0.05)
        assert not first.done()
        second = batcher.submit([image(2)], None)
        wait([first, second], 5)
    assert embedder.sizes == [2]
    batcher.close()
    impatient = Batcher(Recorder(), answered, max_images=2, wait_seconds=0.02)
    with impatient.expecting():
        assert impatient.submit([image(1)], None).result(5) == ([1.0], None)
    impatient.close()


def test_error_reaches_those_of_the_batch_and_the_thread_goes_on():
    batcher = Batcher(Recorder(), answered, max_images=2)
    broken = batcher.submit([image(255)] * 5, None)
    with pytest.raises(ValueError, match="bad image"):
        broken.result(10)
    assert batcher.submit([image(1)], None).result(10) == ([1.0], None)
    batcher.close()


def test_cancelled_request_is_dropped(gate):
    embedder = Recorder(gate=gate)
    batcher = Batcher(embedder, answered, max_images=1)
    first, second = batcher.submit([image(1)], None), batcher.submit([image(2)] * 50, None)
    second.cancel()
    gate.set()
    assert first.result(10) == ([1.0], None)
    with pytest.raises(CancelledError):
        second.result(10)
    assert batcher.submit([image(3)], None).result(10) == ([3.0], None)
    batcher.close()
    assert sum(embedder.sizes) <= 3


def test_closing_answers_what_waits():
    batcher = Batcher(Recorder(seconds=0.01), answered, max_images=2)
    futures = [batcher.submit([image(i)] * 3, None) for i in range(5)]
    batcher.close()
    assert all(future.done() for future in futures)
    with pytest.raises(RuntimeError, match="closed"):
        batcher.submit([image(1)], None)
