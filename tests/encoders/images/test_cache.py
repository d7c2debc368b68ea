"""The cache of features: hits, bounds, damage, writers that meet."""

import json
import logging
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from acil.encoders.images.cache import METADATA_KEY, FeatureCache
from support.forks import forks

ROW_BYTES = 4


class Counted:
    """Computes a tensor and counts how often."""

    value, calls = torch.arange(12, dtype=torch.float32).reshape(4, 3), 0

    def __call__(self) -> torch.Tensor:
        self.calls += 1
        return self.value.clone()


@pytest.fixture
def compute():
    return Counted()


def never():
    raise AssertionError("must not be computed")


@pytest.mark.parametrize("on_disk", [False, True])
def test_computed_once(tmp_path, compute, on_disk):
    folder = tmp_path / "new" / "folder"
    cache = FeatureCache(folder if on_disk else None)
    assert torch.equal(cache.get("key", compute), compute.value)
    assert torch.equal(cache.get("key", never), compute.value)
    assert compute.calls == 1
    assert folder.exists() is on_disk
    if on_disk:
        # As another process would
        found = FeatureCache(folder).get("key", never)
        assert torch.equal(found, compute.value)
        assert found.data_ptr() % 64 == 0


@pytest.mark.parametrize("key", ["a/b:c", "../up", "x" * 10_000, "", "schön"])
def test_any_text_is_a_key(tmp_path, compute, key):
    cache = FeatureCache(tmp_path / "cache")
    cache.get(key, compute)
    assert cache.path(key).parent == tmp_path / "cache"
    assert [entry.name for entry in tmp_path.iterdir()] == ["cache"]
    assert torch.equal(FeatureCache(tmp_path / "cache").get(key, never), compute.value)


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(0, 64),
        torch.zeros(3, 0),
        torch.arange(6.0).reshape(2, 3).T,
        torch.ones(2, dtype=int),
        torch.ones(2, requires_grad=True) * 2,
    ],
)
def test_odd_tensors_survive_without_gradient(tmp_path, value):
    assert not FeatureCache(tmp_path).get("key", lambda: value).requires_grad
    found = FeatureCache(tmp_path).get("key", never)
    assert torch.equal(found, value)
    assert found.dtype == value.dtype


def with_facts(path, facts):
    save_file(load_file(path), path, metadata={METADATA_KEY: json.dumps(facts)})


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "header cut": lambda path: path.write_bytes(path.read_bytes()[:20]),
    "last byte": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"),
    "not safetensors": lambda path: path.write_text("hello, this is no such file"),
    "other key": lambda path: with_facts(path, {"key": "other", "crc32": 0}),
    "other facts": lambda path: with_facts(path, []),
    "other tensor": lambda path: save_file({"x": torch.zeros(1)}, path),
    "no metadata": lambda path: save_file(load_file(path), path),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_file_is_computed_again_with_a_warning(tmp_path, compute, caplog, damage):
    path = FeatureCache(tmp_path).path("key")
    FeatureCache(tmp_path).get("key", compute)
    damage(path)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(FeatureCache(tmp_path).get("key", compute), compute.value)
    assert compute.calls == 2
    assert str(path) in caplog.text
    assert torch.equal(FeatureCache(tmp_path).get("key", never), compute.value)


def test_folder_that_cannot_be_written_costs_no_result(tmp_path, compute, caplog):
    (tmp_path / "file").write_text("in the way")
    cache = FeatureCache(tmp_path / "file")
    with caplog.at_level(logging.WARNING):
        assert torch.equal(cache.get("key", compute), compute.value)
    assert "not cached" in caplog.text
    assert torch.equal(cache.get("key", never), compute.value)


def test_memory_is_bounded_and_drops_what_was_used_longest_ago():
    cache = FeatureCache(None, max_bytes=3 * ROW_BYTES)
    computed = []

    def get(key):
        cache.get(key, lambda: (computed.append(key), torch.zeros(1))[1])

    for key in ("a", "b", "c", "a", "d", "a", "b"):
        get(key)
    assert computed == ["a", "b", "c", "d", "b"]


def test_tensor_larger_than_the_bound_drives_nothing_out(tmp_path):
    cache = FeatureCache(tmp_path, max_bytes=2 * ROW_BYTES)
    cache.get("small", lambda: torch.zeros(2))
    cache.get("large", lambda: torch.zeros(3))
    assert torch.equal(cache.get("large", never), torch.zeros(3))
    cache.path("small").unlink()
    assert torch.equal(cache.get("small", never), torch.zeros(2))


def test_file_that_goes_away_while_it_is_opened_is_computed_again(tmp_path, monkeypatch, caplog):
    stored = FeatureCache(tmp_path)
    stored.get("key", lambda: torch.ones(2))
    mapped = torch.UntypedStorage.from_file

    def removed_first(path, *args, **kwargs):
        stored.path("key").unlink()
        return mapped(path, *args, **kwargs)

    # The header has been read by then, through an opening of its own.
    monkeypatch.setattr(torch.UntypedStorage, "from_file", removed_first)
    assert torch.equal(FeatureCache(tmp_path).get("key", lambda: torch.ones(2)), torch.ones(2))
    assert not caplog.records
    assert stored.path("key").exists()


def write_and_remove(folder, said):
    """Make the same entry again and again, as another process does at the same time."""
    sys.stdout = said.open("w")
    torch.set_num_threads(1)
    logging.basicConfig(stream=sys.stdout)
    for _ in range(30):
        cache = FeatureCache(folder)
        found = cache.get("key", lambda: torch.full((1000, 8), 3.0))
        assert torch.equal(found, torch.full((1000, 8), 3.0))
        cache.path("key").unlink(missing_ok=True)


def test_processes_that_write_at_once_see_whole_files(tmp_path):
    said = [tmp_path / f"said-{number}" for number in range(2)]
    folder = tmp_path / "cache"
    workers = [forks().Process(target=write_and_remove, args=(folder, file)) for file in said]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    # A warning would mean that one had seen a part of what the other wrote.
    assert [file.read_text() for file in said] == ["", ""]
    assert all(entry.suffix == ".safetensors" for entry in folder.iterdir())


def rows_of(n, stop=None, calls=None):
    """Return what computes rows that say their number, in batches of three, and may be stopped."""

    def compute(first):
        if calls is not None:
            calls.append(first)
        for start in range(first, n, 3):
            if stop is not None and start >= stop:
                raise KeyboardInterrupt
            numbers = torch.arange(start, min(start + 3, n), dtype=torch.float32)
            yield numbers[:, None] * torch.ones(5)

    return compute


def test_rows_go_on_where_they_were_stopped_and_only_those_chosen_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("acil.encoders.images.cache._BLOCK_BYTES", 4 * 5 * 4)  # blocks of four rows
    calls = []
    with pytest.raises(KeyboardInterrupt):
        FeatureCache(tmp_path).rows("key", (50, 5), rows_of(50, stop=30, calls=calls))
    (draft,) = tmp_path.glob("*.part")
    draft.write_bytes(draft.read_bytes() + b"half a row")
    found = FeatureCache(tmp_path).rows("key", (50, 5), rows_of(50, calls=calls))
    assert calls == [0, 28]
    assert torch.equal(found[:, 0], torch.arange(50.0))
    chosen = torch.tensor([49, 0, 0])
    again = FeatureCache(tmp_path).rows("key", (50, 5), rows_of(50, calls=calls), chosen)
    assert again[:, 4].tolist() == [49.0, 0.0, 0.0]
    assert calls == [0, 28]
    assert np.array_equal(np.load(next(tmp_path.glob("*.npy"))), found.numpy())


@pytest.mark.parametrize("damage", ["row", "end", "sums", "header"])
def test_damaged_rows_are_computed_again_from_there_on(tmp_path, monkeypatch, damage, caplog):
    monkeypatch.setattr("acil.encoders.images.cache._BLOCK_BYTES", 4 * 5 * 4)
    calls = []
    FeatureCache(tmp_path).rows("key", (50, 5), rows_of(50))
    (path,), (sums,) = tmp_path.glob("*.npy"), tmp_path.glob("*.crc")
    content = bytearray(path.read_bytes())
    if damage == "row":
        content[128 + 20 * 21] ^= 1
    elif damage == "header":
        content[3] ^= 1
    path.write_bytes(content[:-4] if damage == "end" else content)
    if damage == "sums":
        sums.write_bytes(sums.read_bytes()[:8])
    found = FeatureCache(tmp_path).rows("key", (50, 5), rows_of(50, calls=calls))
    assert calls == [{"row": 20, "end": 48, "sums": 8, "header": 0}[damage]]
    assert torch.equal(found[:, 0], torch.arange(50.0))
    assert "damaged" in caplog.text


def test_rows_without_a_folder_are_in_memory():
    found = FeatureCache().rows("key", (7, 5), rows_of(7), torch.tensor([6]))
    assert found.tolist() == [[6.0] * 5]
