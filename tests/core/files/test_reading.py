"""The reader of safetensors files: what it returns and refuses is what the format's own library does."""

import random

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from acil.core.files.reading import DamagedFileError, TensorFile

TENSORS = {
    "float64": torch.arange(6, dtype=torch.float64).reshape(2, 3),
    "none": torch.zeros(0, 3),
    "number": torch.tensor(3),
    "bfloat16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "float16": torch.tensor([1.5, -2.0], dtype=torch.float16),
    "truth": torch.tensor([True, False, True]),
    **{str(kind): torch.tensor([1, 2], dtype=kind) for kind in (torch.int8, torch.int32, torch.uint8)},
}


@pytest.fixture
def path(tmp_path):
    save_file(TENSORS, tmp_path / "a.safetensors", metadata={"facts": '{"a": 1}', "text": "{"})
    return tmp_path / "a.safetensors"


def of_library(path):
    """Return what the library reads, or None if it refuses."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except Exception:
        return None


def test_every_type_is_read_into_memory_of_its_own(path):
    found = TensorFile(path).tensors()
    assert found.keys() == TENSORS.keys()
    for name, expected in TENSORS.items():
        assert found[name].dtype == expected.dtype
        assert torch.equal(found[name], expected)
        found[name].fill_(1)
    assert torch.equal(TensorFile(path).tensors()["float64"], TENSORS["float64"])


def test_arrays_are_mapped_and_their_changes_reach_no_file(path):
    array = TensorFile(path).array("float64")
    np.testing.assert_array_equal(array, TENSORS["float64"].numpy())
    array[:] = 7
    assert TensorFile(path).array("float64")[0, 1] == 1
    with pytest.raises(DamagedFileError, match="BF16"):
        TensorFile(path).array("bfloat16")


def test_facts_are_json(path):
    file = TensorFile(path)
    assert file.facts("facts") == {"a": 1}
    for key in ("text", "missing"):
        with pytest.raises(DamagedFileError, match=key):
            file.facts(key)


def test_a_file_that_is_replaced_is_still_the_one_that_was_checked(path):
    file = TensorFile(path)
    path.unlink()
    path.write_bytes(b"")
    assert torch.equal(file.tensors()["float64"], TENSORS["float64"])


@pytest.mark.parametrize("seed", range(4))
def test_damage_is_noticed_where_the_library_notices_it(path, seed):
    generator, good = random.Random(seed), path.read_bytes()
    header = 8 + int.from_bytes(good[:8], "little")
    for _ in range(100):
        content, place = bytearray(good), generator.randrange(header + 8)
        kind = generator.choice(["change", "digit", "drop", "insert", "cut"])
        if kind == "change":
            content[place] = generator.randrange(256)
        elif kind == "digit":
            content[place] = generator.choice(b"0123456789[]{},")
        elif kind == "drop":
            del content[place]
        elif kind == "insert":
            content.insert(place, generator.choice(b'01"[]{},:- '))
        else:
            del content[generator.randrange(len(content)) :]
        path.unlink()
        path.write_bytes(content)
        expected = of_library(path)
        if expected is None:
            with pytest.raises(DamagedFileError):
                TensorFile(path).tensors()
        else:
            found = TensorFile(path).tensors()
            assert found.keys() == expected.keys()
            # As bytes: damage may have made NaN, which equals nothing.
            for name, tensor in expected.items():
                assert found[name].dtype == tensor.dtype
                pair = [t.reshape(-1).view(torch.uint8) for t in (found[name], tensor) if t.numel()]
                assert not pair or torch.equal(*pair)
