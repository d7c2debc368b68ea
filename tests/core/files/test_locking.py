"""Read, change and save by several processes: one after another, and none is lost."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from acil import ACILClassifier, load, save
from acil.core.files import locked, writing
from acil.errors import InputError, ModelFileError

SEVERAL_PROCESSES = """
import os, sys
from pathlib import Path
import numpy as np, torch
from acil import ACILClassifier, load, save
from acil.core.files import locked
torch.set_num_threads(1)
path, workers, steps = Path(sys.argv[1]), 3, 8
children = []
for worker in range(workers):
    child = os.fork()
    if child == 0:
        for step in range(steps):
            with locked(path):
                model = load(path) if path.exists() else ACILClassifier(scores="ridge", expansion_size=8)
                model.partial_fit(np.eye(3)[[step % 3]] + worker, [worker])
                save(model, path)
        os._exit(0)
    children.append(child)
codes = [os.waitpid(child, 0)[1] for child in children]
print(codes, load(path).class_count_.tolist(), os.listdir(path.parent))
"""

KILLED_WHILE_LOCKING = """
import os, sys, time
from acil.core.files import locked
with locked(sys.argv[1]):
    print("locked", flush=True)
    time.sleep(60)
"""


def run(source, *arguments):
    command = [sys.executable, "-c", source, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_no_update_of_several_processes_is_lost(tmp_path):
    finished = run(SEVERAL_PROCESSES, tmp_path / "m.acil")
    assert finished.stdout == "[0, 0, 0] [8, 8, 8] ['m.acil']\n", finished.stderr


@pytest.mark.parametrize("exists", [True, False])
def test_lock_ends_with_its_process(tmp_path, exists):
    path = tmp_path / "m.acil"
    if exists:
        path.touch()
    command = [sys.executable, "-c", KILLED_WHILE_LOCKING, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(ModelFileError, match="another process"), locked(path, 0.05):
            pass
        process.kill()
    with locked(path, timeout=5):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == (["m.acil"] if exists else [])


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
