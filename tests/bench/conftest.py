"""What several tests of the benchmark need."""

from contextlib import contextmanager

import pytest

from support.running import DIGITS, command, timeless, write_features


@contextmanager
def not_drawing():
    """Drawing takes longer than all the rest, and writes its files like any other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("acil.bench.report._draw", lambda *_: [])
        yield


@pytest.fixture(scope="module")
def without_plots():
    with not_drawing():
        yield


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The records of a run on digits that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    with not_drawing():
        assert command(*DIGITS, "--out", folder).exit_code == 0
    return timeless(folder)


@pytest.fixture(scope="session")
def embeddings(tmp_path_factory):
    """A file of features: 12 classes, 20 training and 5 test samples each."""
    path = tmp_path_factory.mktemp("embeddings") / "features.npz"
    write_features(path)
    return path
