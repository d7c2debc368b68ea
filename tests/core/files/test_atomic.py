"""Nobody ever sees a part of a file, whatever happens to the process that writes it."""

import errno
import fcntl
import os
import random
import resource
import signal
import stat
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError
from sklearn.base import clone

from acil import ACILClassifier, load, save
from acil.core.files.writing import replacing
from acil.errors import ModelFileError
from support.forks import called


def kill_while_saving(path):
    """Kill processes that save two models in turns; return what was seen of the file meanwhile."""
    X = np.random.default_rng(0).normal(size=(60, 6))
    # On the CPU: CUDA does not survive a fork.
    model = ACILClassifier(expansion_size=96, device="cpu")
    models = [clone(model).fit(X[:n], np.arange(n) % 3) for n in (20, 60)]
    save(models[0], path)
    random.seed(0)
    found, leftovers, kills, end = set(), 0, 0, time.monotonic() + 90
    # At least a dozen kills; on a busy machine more, until some came in the middle of a write.
    while kills < 12 or ((len(found) < 2 or not leftovers) and time.monotonic() < end):
        kills += 1
        child = os.fork()
        if child == 0:
            while True:
                for model in models:
                    save(model, path)
        time.sleep(random.uniform(0.01, 0.05) * (1 + kills // 12))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        model = load(path)
        twin = models[0] if model.n_samples_ == 20 else models[1]
        assert model.coef_.tobytes() == twin.coef_.tobytes()
        found.add(model.n_samples_)
        leftovers += len([*path.parent.iterdir()]) - 1
    save(models[0], path)
    return sorted(found), leftovers > 0, [entry.name for entry in path.parent.iterdir()]


def test_model_survives_kills_while_it_is_saved(tmp_path):
    # Some kills came while a file was half written, and the last save has cleaned up after them.
    assert called(kill_while_saving, tmp_path / "m.acil") == ([20, 60], True, ["m.acil"])


@pytest.fixture
def model():
    X = np.random.default_rng(0).normal(size=(20, 3))
    return ACILClassifier(scores="ridge", expansion_size=32, device="cpu").fit(X, np.arange(20) % 2)


@pytest.fixture
def path(tmp_path, model):
    save(model, tmp_path / "m.acil")
    return tmp_path / "m.acil"


def check_untouched(path, model):
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert load(path).coef_.tobytes() == model.coef_.tobytes()


def test_failed_write_leaves_the_old_file(path, model):
    X = np.random.default_rng(1).normal(size=(9, 3))
    other = ACILClassifier(scores="ridge", expansion_size=64).fit(X, np.arange(9) % 2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A real failure in the middle of a write, as when a disk is full
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(ModelFileError, match=r"[Ff]ile too large") as caught:
            save(other, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "not changed" in str(caught.value)
    check_untouched(path, model)


@pytest.mark.parametrize("function", ["fsync", "fchmod"])
@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "Free some space"),
        (errno.EROFS, "not read-only"),
        (errno.EACCES, "permissions"),
        (errno.EIO, "somewhere else"),
    ],
)
def test_failures_say_what_to_do(path, model, monkeypatch, function, code, advice):
    def fail(*args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(ModelFileError, match=advice) as caught:
        save(model, path)
    assert os.strerror(code) in str(caught.value)
    check_untouched(path, model)


def test_full_disk_is_told_and_one_more_copy_is_all_the_room_that_saving_takes(path, model, monkeypatch):
    most, honest = [], os.fsync

    def measure(descriptor):
        most.append(sum(file.stat().st_size for file in path.parent.rglob("*") if file.is_file()))
        honest(descriptor)

    before = path.stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", measure)
        save(model, path)
    assert max(most) <= before + path.stat().st_size

    def full(*args, **options):
        # The words of the library, which has no class for it
        raise SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(ModelFileError, match="No space"):
        save(model, path)
    check_untouched(path, model)


def test_interrupt_while_writing_leaves_the_old_file(path, model):
    def interrupted():
        with replacing(path) as draft:
            draft.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    check_untouched(path, model)


def test_places_that_cannot_be_written(tmp_path, model):
    with pytest.raises(ModelFileError, match="Create its directory"):
        save(model, tmp_path / "no" / "such" / "m.acil")
    with pytest.raises(ModelFileError, match="is a directory"):
        save(model, tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="regular file"):
        save(model, tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="usable path"):
        save(model, "a\0b")
    with pytest.raises(ModelFileError, match="shorter name"):
        save(model, tmp_path / ("m" * 300))
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelFileError, match="Not a directory"):
        save(model, tmp_path / "file" / "m.acil")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "pipe"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_new_file_has_the_mode_of_the_umask(tmp_path, model, umask, mode):
    before = os.umask(umask)
    try:
        save(model, tmp_path / "m.acil")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "m.acil").stat().st_mode) == mode


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_replaced_file_keeps_its_mode(path, model, mode):
    path.chmod(mode)
    save(model, path)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_link_is_followed_and_stays_a_link(tmp_path, path, model):
    link = tmp_path / "link.acil"
    link.symlink_to("m.acil")
    inode = path.stat().st_ino
    save(model, link)
    assert link.is_symlink()
    assert path.stat().st_ino != inode
    assert not path.is_symlink()


def test_only_folders_of_dead_processes_are_removed(tmp_path, path, model):
    dead, alive = tmp_path / ".acil-0000.tmp", tmp_path / ".acil-1111.tmp"
    for folder in (dead, alive):
        folder.mkdir()
        (folder / "draft").write_text("half")
    descriptor = os.open(alive, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        save(model, path)
        assert sorted(entry.name for entry in tmp_path.iterdir()) == [alive.name, path.name]
        assert (alive / "draft").read_text() == "half"
    finally:
        os.close(descriptor)


def test_folder_taken_for_a_leftover_is_made_again(tmp_path, path, model, monkeypatch):
    honest, taken = os.open, []

    def taken_once(name, flags, *args, **options):
        if not taken and flags & os.O_DIRECTORY and ".acil-" in str(name):
            taken.append(name)
            Path(name).rmdir()
        return honest(name, flags, *args, **options)

    monkeypatch.setattr(os, "open", taken_once)
    save(model, path)
    assert len(taken) == 1
    check_untouched(path, model)


def test_file_is_complete_and_flushed_before_it_gets_its_name(path, monkeypatch):
    events = []
    honest = os.fsync

    def record(descriptor):
        kind = "directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        events.append((kind, path.read_bytes() == b"new"))
        honest(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    with replacing(path) as draft:
        draft.write_bytes(b"new")
    assert events == [("file", False), ("directory", True)]
