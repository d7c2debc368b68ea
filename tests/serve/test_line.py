"""The line: batches form, requests take turns by cost, too much is refused, answers stay the same."""

import math
import threading
import time

import pytest
import torch

from acil.serve.kinds import stacked
from acil.serve.line import BusyError, Line, Waiting


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


def answered(features):
    return features[:, 0].tolist()


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
        made.append(Line(stacked(embedder or Recorder()), **options))
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


@pytest.fixture
def busy(line, gate):
    """A function that makes a line whose only thread decodes an image until the gate opens."""

    def make(embedder=None, **options):
        first, begun = blocked(gate)
        made = line(embedder, decoders=0, **options)
        made.submit("x", [first], answered)
        assert begun.wait(10)
        return made

    return make


def test_waiting_images_go_together(line, gate):
    embedder = Recorder(gate)
    made = line(embedder, max_images=8)
    futures = [made.submit("a", [image(i)], answered) for i in range(17)]
    gate.set()
    assert [future.result(10) for future in futures] == [[float(i)] for i in range(17)]
    assert sum(map(len, embedder.batches)) == 17
    assert max(map(len, embedder.batches)) <= 8
    assert len(embedder.batches) <= 6


def test_batch_has_no_more_than_its_cost_unless_one_has_more(line, gate):
    embedder, dear = Recorder(gate), 9
    made = line(embedder, max_images=8, batch_cost=6)
    others = [made.submit("a", [image(i, cost=2)], answered) for i in range(8)]
    last = made.submit("b", [image(dear, cost=100)], answered)
    gate.set()
    assert [future.result(10) for future in others] == [[float(i)] for i in range(8)]
    assert last.result(10) == [float(dear)]
    assert [batch for batch in embedder.batches if dear in batch] == [[dear]]
    assert max(map(len, embedder.batches)) <= 3
    assert len(embedder.batches) <= 6


def test_what_is_read_ahead_of_a_flood_holds_up_no_request_of_many(line, gate):
    """A client whose images are many and dear has had what went through the network, and no more."""
    embedder = Recorder(gate)
    made = line(embedder, max_images=8, batch_cost=10, max_decoded=math.inf)
    flood = made.submit("a", [image(1, cost=10)] * 40, answered)
    time.sleep(0.2)  # all of it is read
    honest = made.submit("b", [image(2, cost=1)] * 10, answered)
    time.sleep(0.2)
    gate.set()
    assert honest.result(10) == [2.0] * 10
    assert flood.result(10) == [1.0] * 40
    assert max(i for i, batch in enumerate(embedder.batches) if 2 in batch) <= 5


def test_images_of_a_request_keep_their_order(line, gate):
    embedder, batches = Recorder(gate), []
    made = line(embedder, max_images=4, decoders=3, on_batch=batches.append)
    future = made.submit("a", [image(i) for i in range(20)], answered)
    gate.set()
    assert future.result(10) == [float(i) for i in range(20)]
    assert sum(batches) == 20
    assert batches == [len(batch) for batch in embedder.batches]


@pytest.mark.parametrize(("client", "requests"), [("a", 1), ("b", 1), ("b", 100)])
def test_many_images_do_not_hold_up_another_request(line, gate, client, requests):
    """Neither those of another client, in one request or many, nor those of another request."""
    embedder, decoded = Recorder(gate), threading.Event()

    def read():
        decoded.set()
        return torch.full((1, 2, 2), 2, dtype=torch.uint8)

    # One thread that decodes: of two, a busy machine may stop the one that has the other image.
    made = line(embedder, max_images=4, decoders=0)
    others = [made.submit("a", [image(1)] * (100 // requests), answered) for _ in range(requests)]
    small = made.submit(client, [image(2, read=read)], answered)
    # It is decoded at once, and then waits for the network beside the others.
    assert decoded.wait(10)
    time.sleep(0.1)
    gate.set()
    assert small.result(10) == [2.0]
    assert [row for other in others for row in other.result(10)] == [1.0] * 100
    assert next(i for i, batch in enumerate(embedder.batches) if 2 in batch) <= 3


def test_cheap_images_go_before_dear_ones_of_the_same_client(busy, gate):
    embedder = Recorder()
    made = busy(embedder, max_images=1)
    futures = [made.submit("a", [image(i, cost=50)], answered) for i in (1, 2, 3)]
    futures.append(made.submit("a", [image(9, cost=1)], answered))
    gate.set()
    for future in futures:
        future.result(10)
    assert [value for batch in embedder.batches for value in batch] == [0, 9, 1, 2, 3]


def test_large_images_leave_a_thread_and_the_memory_of_one(line, gate):
    """Of images with all pixels that may be decoded at a time one is; small ones pass it."""
    held, begun = blocked(gate)
    made = line(decoders=3, max_pixels=100)
    large = [made.submit("a", [held._replace(pixels=90)], answered)]
    assert begun.wait(10)
    second, second_begun = blocked(gate)
    large.append(made.submit("b", [second._replace(pixels=90)], answered))
    for _ in range(5):
        assert made.submit("c", [image(7, pixels=10)], answered).result(10) == [7.0]
    assert not second_begun.is_set()
    gate.set()
    for future in large:
        future.result(10)


def test_photograph_is_decoded_beside_a_bomb_of_another_client(line, gate):
    held, begun = blocked(gate)
    made = line(decoders=2, max_pixels=100)
    bombs = [made.submit("a", [held._replace(pixels=100)], answered)]
    assert begun.wait(10)
    second, second_begun = blocked(gate)
    bombs.append(made.submit("a", [second._replace(pixels=24)], answered))
    assert made.submit("b", [image(7, pixels=24)], answered).result(10) == [7.0]
    # Of its own client, or beyond the reserve, it waits.
    bombs.append(made.submit("b", [second._replace(pixels=26)], answered))
    assert not second_begun.wait(0.1)
    gate.set()
    for future in bombs:
        future.result(10)


def test_who_comes_is_served_before_who_has_something_in_hand(line, gate):
    """Even if what the other waits for is cheaper."""
    order, in_hand = [], threading.Event()

    def read(client, wait=None):
        order.append(client)
        in_hand.set()
        if wait is not None:
            wait.wait(10)
        return torch.zeros(1, 2, 2, dtype=torch.uint8)

    made, later = line(max_images=1, decoders=0), threading.Event()
    first, begun = blocked(gate)
    other = made.submit("x", [first], answered)
    assert begun.wait(10)
    pending = [
        made.submit("a", [image(0, cost=5, read=lambda: read("a", later))], answered) for _ in range(2)
    ]
    gate.set()
    other.result(10)
    assert in_hand.wait(10)
    pending.append(made.submit("b", [image(0, cost=8, read=lambda: read("b"))], answered))
    later.set()
    for future in pending:
        future.result(10)
    assert order == ["a", "b", "a"]


def test_decoding_pauses_while_a_batch_waits(line, gate):
    """What is decoded and waits is bounded, whatever was sent."""
    read = []
    made = line(Recorder(gate), max_images=4, decoders=2)

    def reading(value):
        read.append(value)
        return torch.zeros(1, 2, 2, dtype=torch.uint8)

    future = made.submit("a", [image(0, read=lambda i=i: reading(i)) for i in range(60)], answered)
    time.sleep(0.2)
    # One batch is in the network, one waits, and each thread may have had one in hand.
    assert len(read) <= 4 + 4 + 3
    gate.set()
    assert len(future.result(10)) == 60


def test_client_with_too_much_loses_its_largest_request(busy, gate):
    made = busy(limit=100)
    light, heavy = made.submit("a", [image(1, 30)], answered), made.submit("a", [image(2, 60)], answered)
    light_too = made.submit("a", [image(3, 30)], answered)
    with pytest.raises(BusyError, match="This client") as caught:
        heavy.result(10)
    assert caught.value.status_code == 429
    with pytest.raises(BusyError):
        made.submit("a", [image(4, 90)], answered).result(10)
    gate.set()
    assert [light.result(10), light_too.result(10)] == [[1.0], [3.0]]


def test_too_much_of_all_clients_is_taken_from_the_one_with_most(busy, gate):
    made = busy(limit=100)
    futures = {client: made.submit(client, [image(1, 60)], answered) for client in "ab"}
    most = made.submit("a", [image(2, 39)], answered)
    futures["c"] = made.submit("c", [image(3, 50)], answered)
    with pytest.raises(BusyError, match="Others") as caught:
        futures.pop("a").result(10)
    assert caught.value.status_code == 503
    gate.set()
    assert most.result(10) == [2.0]
    assert [futures[client].result(10) for client in "bc"] == [[1.0], [3.0]]


@pytest.mark.parametrize("place", ["decoder", "network"])
def test_error_reaches_those_who_asked_and_the_threads_go_on(line, place):
    def damaged():
        raise ValueError("a bad image")

    made = line(max_images=2)
    bad = image(255) if place == "network" else image(0, read=damaged)
    broken = made.submit("a", [bad] * 5, answered)
    with pytest.raises(ValueError, match="bad image"):
        broken.result(10)
    for _ in range(5):
        assert made.submit("a", [image(1)], answered).result(10) == [1.0]


def test_closing_answers_what_waits():
    made = Line(stacked(Recorder()), max_pixels=100, limit=1000, max_images=2)
    futures = [made.submit("a", [image(i)] * 3, answered) for i in range(5)]
    made.close()
    assert all(future.done() for future in futures)
    with pytest.raises(RuntimeError, match="closed"):
        made.submit("a", [image(1)], answered)
