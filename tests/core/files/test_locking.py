"""Read, change and save by several processes: one after another, and none is lost."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from acil import ACILClassifier, load, save
from acil.core.files import locked, writing
from acil.errors import InputError, ModelFileError
from support.forks import forks


def learn_eight_times(path, worker):
    """Learn samples of a class of one's own, one after the other."""
    for step in range(8):
        with locked(path):
            model = load(path) if path.exists() else ACILClassifier(scores="ridge", expansion_size=8)
            model.partial_fit(np.eye(3)[[step % 3]] + worker, [worker])
            save(model, path)


def test_no_update_of_several_processes_is_lost(tmp_path):
    path = tmp_path / "m.acil"
    workers = [forks().Process(target=learn_eight_times, args=(path, worker)) for worker in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert load(path).class_count_.tolist() == [8, 8, 8]
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.acil"]


def lock_and_wait(path, connection):
    with locked(path):
        connection.send("locked")
        time.sleep(60)


@pytest.mark.parametrize("exists", [True, False])
def test_lock_ends_with_its_process(tmp_path, exists):
    path = tmp_path / "m.acil"
    if exists:
        path.touch()
    receiving, sending = forks().Pipe(duplex=False)
    process = forks().Process(target=lock_and_wait, args=(path, sending))
    process.start()
    assert receiving.recv() == "locked"
    with pytest.raises(ModelFileError, match="another process"), locked(path, 0.05):
        pass
    process.kill()
    process.join(60)
    with locked(path, timeout=5):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == (["m.acil"] if exists else [])


def lock_and_leave(path, connection):
    """Lock a file, and start a process that outlives this one, as those do that decode images."""
    with locked(path):
        child = os.fork()
        if child == 0:
            with locked(path.with_name("other")):
                connection.send(os.getpid())
            time.sleep(60)
            os._exit(0)
        time.sleep(60)


def test_lock_ends_with_its_process_and_not_with_a_fork_of_it(tmp_path):
    path = tmp_path / "m.acil"
    path.touch()
    receiving, sending = forks().Pipe(duplex=False)
    process = forks().Process(target=lock_and_leave, args=(path, sending))
    process.start()
    child = receiving.recv()
    with pytest.raises(ModelFileError, match="another process"), locked(path, timeout=0):
        pass
    process.kill()
    process.join(60)
    with locked(path, timeout=0):
        os.kill(child, signal.SIGKILL)


def busy(path):
    """Say whether another thread finds a path locked."""
    found = []

    def look():
        try:
            with locked(path, timeout=0):
                found.append(False)
        except ModelFileError:
            found.append(True)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("exists", [True, False])
def test_path_stays_locked_while_its_file_is_replaced(tmp_path, exists):
    path = tmp_path / "m.acil"
    model = ACILClassifier(scores="ridge", expansion_size=4).fit(np.eye(3), [0, 1, 2])
    if exists:
        save(model, path)
    assert not busy(path)
    with locked(path):
        assert busy(path)
        for _ in range(2):
            save(model, path)
            assert busy(path)
    assert not busy(path)
    assert load(path).n_samples_ == 3


def test_file_made_by_the_one_waited_for_is_seen(tmp_path):
    path, seen = tmp_path / "m.acil", []

    def wait():
        with locked(path, timeout=10):
            seen.append(path.exists())

    with locked(path):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        assert not seen
        save(ACILClassifier(scores="ridge", expansion_size=4).fit(np.eye(3), [0, 1, 2]), path)
    thread.join()
    assert seen == [True]


def test_files_of_one_directory_do_not_wait_for_each_other(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).touch()
    with locked(tmp_path / "a"), locked(tmp_path / "b", timeout=0):
        assert not busy(tmp_path / "c")
    with locked(tmp_path / "new"), locked(tmp_path / "newer", timeout=0):
        assert busy(tmp_path / "new")
    assert not busy(tmp_path / "new")


def test_lock_of_a_file_that_was_removed_and_one_beside_it_end_separately(tmp_path):
    path, failed = tmp_path / "m.acil", []
    path.touch()

    def beside():
        try:
            with locked(tmp_path / "new", timeout=0), locked(path, timeout=0):
                pass
        except Exception as error:
            failed.append(error)

    with locked(path):
        path.unlink()
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
    assert not failed
    assert not busy(path)


def test_locking_twice_is_an_error_and_not_a_standstill(tmp_path):
    (tmp_path / "link").symlink_to("m.acil")
    with (
        locked(tmp_path / "m.acil"),
        pytest.raises(InputError, match="already locked"),
        locked(tmp_path / "link"),
    ):
        pass
    with locked(tmp_path / "m.acil", timeout=0):
        pass


def test_error_inside_passes_and_unlocks(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "m.acil"):
        raise ZeroDivisionError
    assert not busy(tmp_path / "m.acil")


def test_no_descriptor_is_left_open(tmp_path):
    model = ACILClassifier(scores="ridge", expansion_size=4).fit(np.eye(3), [0, 1, 2])
    before = os.listdir("/proc/self/fd")  # noqa: PTH208
    for _ in range(3):
        with locked(tmp_path / "m.acil"):
            save(model, tmp_path / "m.acil")
            load(tmp_path / "m.acil")
    assert len(os.listdir("/proc/self/fd")) == len(before)  # noqa: PTH208


def test_places_that_cannot_be_locked(tmp_path):
    with pytest.raises(ModelFileError, match="existing directory"), locked(tmp_path / "no" / "m.acil"):
        pass
    with pytest.raises(ModelFileError, match="Is a directory"), locked(tmp_path):
        pass


def test_file_system_without_locks_is_logged(tmp_path, monkeypatch, caplog):
    def fail(*args):
        raise OSError(writing.errno.ENOLCK, "No locks available")

    monkeypatch.setattr(writing.fcntl, "flock", fail)
    with locked(tmp_path / "m.acil"):
        save(
            ACILClassifier(scores="ridge", expansion_size=4).fit(np.eye(3), [0, 1, 2]),
            tmp_path / "m.acil",
        )
    assert "without locks" in caplog.text
    assert load(tmp_path / "m.acil").n_samples_ == 3


def test_read_only_file_can_be_locked(tmp_path, monkeypatch):
    path = tmp_path / "m.acil"
    path.touch()
    honest = os.open

    def deny_writing(name, flags, *args):
        if flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied")
        return honest(name, flags, *args)

    monkeypatch.setattr(os, "open", deny_writing)
    with locked(path):
        assert busy(path)
