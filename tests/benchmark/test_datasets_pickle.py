"""Pickles are read like Python reads them, as long as they are data; nothing in them is ever run."""

import pickle
import pickletools
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acil.benchmark.datasets.safe_pickle import read_pickle
from acil.errors import InputError

IMAGES = np.arange(60, dtype=np.uint8).reshape(5, 12)


class Python2:
    """Writes what Python 2's cPickle wrote with protocol 2: byte strings and memo entries."""

    def __init__(self):
        self.out, self.n_memo = b"\x80\x02", 0

    def put(self):
        self.out += b"q" + bytes([self.n_memo])
        self.n_memo += 1

    def string(self, value):
        short = b"U" + bytes([len(value)]) if len(value) < 256 else b"T" + struct.pack("<i", len(value))
        self.out += short + value
        self.put()

    def array(self, array):
        self.out += b"cnumpy.core.multiarray\n_reconstruct\n"
        self.put()
        self.out += b"cnumpy\nndarray\n"
        self.put()
        self.out += b"K\x00\x85"
        self.string(b"b")
        self.out += b"\x87R"
        self.put()
        self.out += b"(K\x01" + b"".join(b"M" + struct.pack("<H", n) for n in array.shape) + b"\x86"
        self.out += b"cnumpy\ndtype\n"
        self.string(b"u1")
        self.out += b"K\x00K\x01\x87R"
        self.put()
        self.out += b"(K\x03"
        self.string(b"|")
        self.out += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        self.string(array.tobytes())
        self.out += b"tb"

    def value(self, value):
        if isinstance(value, dict):
            self.out += b"}"
            self.put()
            self.out += b"("
            for key, item in value.items():
                self.string(key)
                self.value(item)
            self.out += b"u"
        elif isinstance(value, list):
            self.out += b"]"
            self.put()
            self.out += b"("
            for item in value:
                self.value(item)
            self.out += b"e"
        elif isinstance(value, int):
            self.out += b"K" + bytes([value])
        elif isinstance(value, bytes):
            self.string(value)
        else:
            self.array(value)
        return self


def python2_pickle(value):
    return Python2().value(value).out + b"."


def read(folder, content):
    path = Path(folder) / "content"
    path.write_bytes(content)
    return read_pickle(path)


def same(ours, reference):
    if isinstance(reference, np.ndarray):
        return (
            isinstance(ours, np.ndarray) and ours.dtype == np.uint8 and np.array_equal(ours, reference)
        )
    if isinstance(reference, dict):
        return list(ours) == list(reference) and all(same(ours[k], reference[k]) for k in reference)
    if isinstance(reference, list | tuple):
        return len(ours) == len(reference) and all(map(same, ours, reference))
    return type(ours) is type(reference) and ours == reference


def test_official_layout_of_python_2_is_read(tmp_path):
    content = python2_pickle(
        {b"filenames": [b"a.png", b"b.png"], b"fine_labels": [3, 99], b"data": IMAGES, b"label": b"\xff"}
    )
    ours = read(tmp_path, content)
    assert same(ours, pickle.loads(content, encoding="latin1"))
    assert ours["fine_labels"] == [3, 99]
    assert np.array_equal(ours["data"], IMAGES)


plain = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**20), 10**20),
        st.text(max_size=300),
        st.binary(max_size=300),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers()), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(plain, st.sampled_from([2, 3, 4]))
def test_plain_data_are_read_as_python_reads_them(tmp_path_factory, value, protocol):
    content = pickle.dumps(value, protocol)
    assert same(read(tmp_path_factory.mktemp("pickle"), content), value)


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("array", [IMAGES, np.asfortranarray(IMAGES), IMAGES[:0], IMAGES[0, 0:300]])
def test_arrays_are_read_and_shared_ones_stay_shared(tmp_path, protocol, array):
    ours = read(tmp_path, pickle.dumps({"a": array, "b": [array]}, protocol))
    assert same(ours["a"], array)
    assert ours["b"][0] is ours["a"]


class Attack:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class Stateful:
    def __init__(self):
        self.state = 1


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_malicious_pickle_runs_nothing(tmp_path, protocol):
    victim = tmp_path / "victim"
    content = pickle.dumps({"data": Attack(Path.touch, victim)}, protocol)
    with pytest.raises(InputError, match=r"was not read.*No code in it was run"):
        read(tmp_path, content)
    assert not victim.exists()
    pickle.loads(content)  # the attack is a real one
    assert victim.exists()


def hostile():
    """Pickles that ask for more than data, most of them through the names that are known."""
    yield "object", pickle.dumps(Stateful(), 2)
    yield "object protocol 4", pickle.dumps(Stateful(), 4)
    yield "system", b"cos\nsystem\n(S'true'\ntR."
    yield "inst", b"(S'true'\nios\nsystem\n."
    yield "persistent", b"Pabc\n."
    yield "extension", b"\x80\x02\x82\x01."
    yield "call ndarray", b"\x80\x02cnumpy\nndarray\n)R."
    yield "reconstruct of something else", b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nN\x85R."
    yield "object array", pickle.dumps(np.array([Stateful()], dtype=object), 2)
    yield "float array", pickle.dumps(np.zeros(3), 2)
    yield "set", pickle.dumps({1, 2}, 4)
    yield "float", pickle.dumps(1.5, 2)
    yield "build on a list", b"\x80\x02]}b."
    yield "tuple as key", pickle.dumps({(1, 2): 3}, 2)
    yield (
        "codec that is another",
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x04\x00\x00\x00zlib\x86R.",
    )
    yield "stack global", pickle.dumps(print, 4)


@pytest.mark.parametrize("content", [c for _, c in hostile()], ids=[n for n, _ in hostile()])
def test_anything_but_data_is_refused(tmp_path, content):
    with pytest.raises(InputError, match="No code in it was run"):
        read(tmp_path, content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b".",
        b"\x80\x02",
        b"hello, this is no pickle",
        b"\x80\x02]a.",
        b"\x80\x02K\x01K\x02.",
        b"\x80\x02h\x05.",
        b"\x80\x02K\x01e.",
        b"\x80\x02(K\x01e.",
        b"\x80\x02T\xff\xff\xff\x7fabc.",
        b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7fabc.",
        b"\x80\x02}(K\x01u.",
        b"\x80\x02cnumpy\ndtype\nh.",
        b"\x80\x02" + b"(" * 10,
        b"\x80\x02(.",
        b"\x80\x02(\x85.",
        b"\x80\x02]cnumpy\ndtype\na.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n\x85R.",
    ],
)
def test_damaged_pickle_is_an_input_error(tmp_path, content):
    with pytest.raises(InputError, match=r"damaged|was not read"):
        read(tmp_path, content)


def test_deep_nesting_is_survived(tmp_path):
    content = b"\x80\x02N" + b"\x85" * 200_000
    assert isinstance(read(tmp_path, content + b"."), tuple)
    with pytest.raises(InputError):
        read(tmp_path, b"\x80\x02}" + content[2:] + b"K\x01s.")


def test_array_of_the_wrong_length_is_an_input_error(tmp_path):
    content = python2_pickle(IMAGES).replace(b"M\x05\x00", b"M\x06\x00")
    with pytest.raises(InputError, match="60 bytes"):
        read(tmp_path, content)


OFFICIAL = python2_pickle({b"fine_labels": [3, 99], b"data": IMAGES})


@settings(max_examples=300)
@given(st.data())
def test_damage_anywhere_gives_data_or_an_input_error(tmp_path_factory, data):
    content = bytearray(OFFICIAL)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    try:
        read(tmp_path_factory.getbasetemp(), bytes(content))
    except InputError:
        return


def test_missing_file_and_folder_are_input_errors(tmp_path):
    for path in (tmp_path / "nosuch", tmp_path):
        with pytest.raises(InputError, match="Cannot read"):
            read_pickle(path)


def test_our_writer_of_old_pickles_writes_what_it_should():
    names = {opcode.name for opcode, _, _ in pickletools.genops(OFFICIAL)}
    assert {"SHORT_BINSTRING", "BINPUT", "GLOBAL", "REDUCE", "BUILD"} <= names
    assert "BINUNICODE" not in names
