"""The line: batches form, requests take turns by cost, too much is refused, answers stay the same."""

import threading
import time
from concurrent.futures import CancelledError

import pytest
import torch

from acil.app.line import BusyError, Line, Waiting


class Recorder:
    """An embedder that remembers its batches; the feature of an image is its first pixel."""

    def __init__(self, gate=None):
        self.batches, self.gate = [], gate

    def embed(self, pixels):
        if self.gate is not None:
            self.gate.wait(10)
        self.batches.append(pixels[:, 0, 0, 0].tolist())
        if (pixels == 255).any():
            raise ValueError("a bad image")
        return pixels[:, :, 0, 0].float()


def image(value, cost=1, pixels=1, read=None):
    content = torch.full((1, 2, 2), value, dtype=torch.uint8)
    return Waiting(read or (lambda: content), pixels, cost)


def answered(features, question):
    return features[:, 0].tolist(), question


@pytest.fixture
def gate():
    made = threading.Event()
    yield made
    made.set()


@pytest.fixture
def line():
    """A function that makes a line, which is closed at the end."""
    made = []

    def make(embedder=None, **options):
        options = {"max_pixels": 100, "limit": 1000, **options}
        made.append(Line(embedder or Recorder(), answered, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def blocked(gate):
    """Return an image whose decoding has begun, when the event is set, and waits for the gate."""
    begun = threading.Event()

    def read():
        begun.set()
        gate.wait(10)
        return torch.zeros(1, 2, 2, dtype=torch.uint8)

    return image(0, read=read), begun


def test_waiting_images_go_together(line, gate):
    embedder = Recorder(gate)
    made = line(embedder, max_images=8)
    futures = [made.submit("a", [image(i)], i) for i in range(17)]
    gate.set()
    assert [future.result(10) for future in futures] == [([float(i)], i) for i in range(17)]
    assert sum(map(len, embedder.batches)) == 17
    assert max(map(len, embedder.batches)) <= 8
    assert len(embedder.batches) <= 6


def test_images_of_a_request_keep_their_order(line, gate):
    embedder = Recorder(gate)
    made = line(embedder, max_images=4, decoders=3)
    future = made.submit("a", [image(i) for i in range(20)], None)
    gate.set()
    assert future.result(10)[0] == [float(i) for i in range(20)]
    assert (made.images, sum(map(len, embedder.batches))) == (20, 20)


@pytest.mark.parametrize("client", ["a", "b"])
def test_many_images_do_not_hold_up_another_request(line, gate, client):
    """Neither those of another client nor those of another request of the same client."""
    embedder = Recorder(gate)
    made = line(embedder, max_images=4)
    large = made.submit("a", [image(1)] * 100, "large")
    small = made.submit(client, [image(2)], "small")
    gate.set()
    assert small.result(10) == ([2.0], "small")
    assert large.result(10)[0] == [1.0] * 100
    assert next(i for i, batch in enumerate(embedder.batches) if 2 in batch) <= 3


def test_many_requests_do_not_hold_up_another_client(line, gate):
    embedder = Recorder(gate)
    made = line(embedder, max_images=4)
    futures = [made.submit("a", [image(1)], None) for _ in range(100)]
    futures.append(made.submit("b", [image(2)], None))
    gate.set()
    for future in futures:
        future.result(10)
    assert next(i for i, batch in enumerate(embedder.batches) if 2 in batch) <= 3


def test_cheap_images_go_before_dear_ones_of_the_same_client(line, gate):
    first, begun = blocked(gate)
    embedder = Recorder()
    made = line(embedder, max_images=1, decoders=0)
    made.submit("a", [first], None)
    assert begun.wait(10)
    futures = [made.submit("a", [image(i, cost=50)], None) for i in (1, 2, 3)]
    futures.append(made.submit("a", [image(9, cost=1)], None))
    gate.set()
    for future in futures:
        future.result(10)
    assert [value for batch in embedder.batches for value in batch] == [0, 9, 1, 2, 3]


def test_large_images_leave_a_thread_and_the_memory_of_one(line, gate):
    """Of images with all pixels that may be decoded at a time one is; small ones pass it."""
    held, begun = blocked(gate)
    made = line(decoders=3, max_pixels=100)
    large = [made.submit("a", [held._replace(pixels=90)], None)]
    assert begun.wait(10)
    second, second_begun = blocked(gate)
    large.append(made.submit("b", [second._replace(pixels=90)], None))
    for _ in range(5):
        assert made.submit("c", [image(7, pixels=10)], None).result(10) == ([7.0], None)
    assert not second_begun.is_set()
    gate.set()
    for future in large:
        future.result(10)


def test_decoding_pauses_while_a_batch_waits(line, gate):
    """What is decoded and waits is bounded, whatever was sent."""
    read = []
    made = line(Recorder(gate), max_images=4, decoders=2)

    def reading(value):
        read.append(value)
        return torch.zeros(1, 2, 2, dtype=torch.uint8)

    future = made.submit("a", [image(0, read=lambda i=i: reading(i)) for i in range(60)], None)
    time.sleep(0.2)
    # One batch is in the network, one waits, and each thread may have had one in hand.
    assert len(read) <= 4 + 4 + 3
    gate.set()
    assert len(future.result(10)[0]) == 60


def test_client_with_too_much_loses_its_largest_request(line, gate):
    first, begun = blocked(gate)
    made = line(limit=100, decoders=0)
    made.submit("a", [first], None)
    assert begun.wait(10)
    light, heavy = made.submit("a", [image(1, 30)], None), made.submit("a", [image(2, 60)], None)
    light_too = made.submit("a", [image(3, 30)], None)
    with pytest.raises(BusyError, match="This client") as caught:
        heavy.result(10)
    assert caught.value.status == 429
    with pytest.raises(BusyError):
        made.submit("a", [image(4, 90)], None).result(10)
    gate.set()
    assert [light.result(10)[0], light_too.result(10)[0]] == [[1.0], [3.0]]


def test_too_much_of_all_clients_is_taken_from_the_one_with_most(line, gate):
    first, begun = blocked(gate)
    made = line(limit=100, decoders=0)
    made.submit("x", [first], None)
    assert begun.wait(10)
    futures = {client: made.submit(client, [image(1, 60)], client) for client in "ab"}
    most = made.submit("a", [image(2, 39)], None)
    futures["c"] = made.submit("c", [image(3, 50)], "c")
    with pytest.raises(BusyError, match="Others") as caught:
        futures.pop("a").result(10)
    assert caught.value.status == 503
    gate.set()
    assert most.result(10)[0] == [2.0]
    assert all(future.result(10)[1] == client for client, future in futures.items())


@pytest.mark.parametrize("place", ["decoder", "network"])
def test_error_reaches_those_who_asked_and_the_threads_go_on(line, place):
    def damaged():
        raise ValueError("a bad image")

    made = line(max_images=2)
    bad = image(255) if place == "network" else image(0, read=damaged)
    broken = made.submit("a", [bad] * 5, None)
    with pytest.raises(ValueError, match="bad image"):
        broken.result(10)
    for _ in range(5):
        assert made.submit("a", [image(1)], None).result(10) == ([1.0], None)


def test_cancelled_request_takes_no_more_time(line, gate):
    first, begun = blocked(gate)
    read = []
    made = line(decoders=0)
    made.submit("a", [first], None)
    assert begun.wait(10)
    second = made.submit("a", [image(2, read=lambda: read.append(1))] * 50, None)
    second.cancel()
    gate.set()
    with pytest.raises(CancelledError):
        second.result(10)
    assert made.submit("a", [image(3)], None).result(10) == ([3.0], None)
    assert read == []


def test_closing_answers_what_waits():
    made = Line(Recorder(), answered, max_pixels=100, limit=1000, max_images=2)
    futures = [made.submit("a", [image(i)] * 3, None) for i in range(5)]
    made.close()
    assert all(future.done() for future in futures)
    with pytest.raises(RuntimeError, match="closed"):
        made.submit("a", [image(1)], None)
