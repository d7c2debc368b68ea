"""Work aside: who waits for whom. Streams are stand-ins here; tests with CUDA have the real ones."""

from contextlib import contextmanager

import pytest
import torch

from acil.analytic import aside
from acil.analytic.aside import Aside


class Stream:
    """Remembers for which streams it was made to wait."""

    def __init__(self):
        self.waited_for = []

    def wait_stream(self, other):
        self.waited_for.append(other)


@pytest.fixture
def streams(monkeypatch):
    """Return the main stream and the one aside."""
    main, side = Stream(), Stream()
    current = [main]

    @contextmanager
    def entered(stream):
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(aside, "_side_stream", lambda device: side)
    return main, side


@pytest.mark.parametrize("joins_itself", [False, True])
def test_each_side_waits_once_for_the_other(streams, joins_itself):
    main, side = streams
    work = Aside(torch.device("cuda"))
    work.join()
    assert main.waited_for == []
    with work.work():
        if joins_itself:
            work.join()
    assert side.waited_for == [main]
    work.join()
    work.join()
    assert main.waited_for == [side]


def test_on_a_cpu_it_is_simply_done(streams):
    main, side = streams
    work = Aside(torch.device("cpu"))
    with work.work():
        done = True
    work.join()
    assert done
    assert main.waited_for == side.waited_for == []
