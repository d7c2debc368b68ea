"""Files that are damaged, hostile, foreign or of another version are refused in words."""

import copy
import json
import os
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from acil import ACILClassifier, load, save
from acil.core.files import describe
from acil.core.files.header import HEADER, MAX_LABELS, InvalidFileError, parse_header
from acil.core.parameters import PARAMETERS
from acil.errors import InputError, ModelFileError
from support.modelfiles import X, header_of, rewrite, write_model


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "m.acil")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def header(folder):
    return header_of(write_model(folder / "header.acil"))


def refused(path, words):
    for read in (load, describe):
        with pytest.raises(ModelFileError, match=words) as caught:
            read(path)
        assert str(path) in str(caught.value)
        assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not start like"),
        (b"x", "not start like"),
        (b"PK\x03\x04 a zip archive", "not start like"),
        (b"\x80\x04\x95" + bytes(50), "not start like"),
        (struct.pack("<Q", 2**63) + b"{" + bytes(50), "not start like"),
        (struct.pack("<Q", 99) + b"{}", "truncated"),
        (struct.pack("<Q", 2) + b"{}", "no entry 'acil'"),
        (struct.pack("<Q", 2) + b"{]", "damaged"),
        (struct.pack("<Q", 20000) + b'{"a":' * 4000, "damaged"),
        (struct.pack("<Q", 26) + b'{"__metadata__":{"acil":1}}'[:26], "damaged"),
    ],
)
def test_files_that_are_no_models(tmp_path, content, words):
    path = tmp_path / "m.acil"
    path.write_bytes(content)
    refused(path, words)


def test_paths_that_are_no_files(tmp_path):
    refused(tmp_path / "missing.acil", "no such file")
    refused(tmp_path, "directory")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "not a regular file")
    for read in (load, describe):
        with pytest.raises(ModelFileError, match="no such file"):
            read("a\0b")


def test_unreadable_file_says_so(model, monkeypatch):
    def deny(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("acil.core.files.header.TensorFile", deny)
    refused(model, "Permission denied. Check path and permissions")


def test_appended_bytes_are_refused(model):
    with model.open("ab") as file:
        file.write(b"\0")
    refused(model, "truncated or damaged")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[1, 2]", "not an object"),
        ("null", "not an object"),
        ('{"format_version": NaN}', "format version nan"),
        ('{"format_version": -Infinity}', "format version -inf"),
        ('{"gamma": ' + "9" * 5000 + "}", "not valid JSON"),
        ('{"backbone": ' * 100_000, "not valid JSON"),
        ("{}", "format version None"),
    ],
    ids=range(9),
)
def test_headers_that_are_no_objects(model, text, words):
    rewrite(model, text=text)
    refused(model, words)


def nested(depth):
    return {} if depth == 0 else {"a": [nested(depth - 1)]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *(
            ({"format_version": v}, "another version of acil")
            for v in (4, 7, 0, "5", 5.0, True, 10**400)
        ),
        ({"kind": "partial"}, "'kind' must be one of 'full', 'inference', found 'partial'"),
        ({"kind": ["full"]}, "kind"),
        ({"solver": "sgd"}, "solver"),
        ({"dtype": "float16"}, "dtype"),
        ({"activation": "swish"}, "activation"),
        ({"size": 5}, "tensor 'coef' must be .'F64'"),
        ({"size": 2**62}, "tensor 'coef' must be .'F64'"),
        *(({"size": v}, "size") for v in (2**80, True, 4.0)),
        ({"n_features": 4}, "'projection' must be .'F32'"),
        *(({"n_features": v}, "n_features") for v in (0, "3")),
        ({"feature_names": ["a", "b"]}, "2 'feature_names' do not fit 3 features"),
        *(({"feature_names": ["a", "b", v]}, "feature_names.2") for v in (None, "\0", "\ud800")),
        ({"classes": ["dog", "cat"]}, "sorted and distinct"),
        ({"classes": ["cat", "cat"]}, "sorted and distinct"),
        ({"classes": ["cat", 1]}, "must all be str"),
        *(({"classes": ["cat", v]}, "'classes.1.' must be") for v in ("do\0", "\udc80", "x" * 1025)),
        ({"classes": []}, "classes"),
        ({"classes": "ab"}, "classes"),
        ({"classes": ["cat", "dog", "owl"]}, "counts"),
        ({"classes": [0, True], "classes_dtype": "int64"}, "must all be int"),
        ({"classes": [0, 1], "classes_dtype": "float64"}, "must all be float"),
        ({"classes": [0, 300], "classes_dtype": "int8"}, "cannot be represented"),
        ({"classes": [0, 2**63], "classes_dtype": "int64"}, "classes.1"),
        ({"classes": [0.1, 0.2], "classes_dtype": "float16"}, "cannot be represented"),
        ({"classes": [0.0, 1e300], "classes_dtype": "float16"}, "cannot be represented"),
        ({"classes_dtype": "<U999999999"}, "not as wide"),
        ({"classes_dtype": "<U2"}, "not as wide"),
        ({"classes_dtype": "object"}, "no label type"),
        ({"classes_dtype": None}, "classes_dtype"),
        *(({"counts": v}, "counts") for v in ([31, -1], [30], [15.0, 15.0], [2**62, 2**62], [0, 0])),
        *(({"weights": v}, "weights") for v in ([1.0, -1.0], [1.0], [0, 0], [1e305, 1e305], None)),
        *(({"weights": [1.0, v]}, "weights.1") for v in (2**70, True, "1")),
        *(({"gamma": v}, "gamma") for v in (-0.1, "auto", None, 10**400, 1e308, True)),
        ({"gamma_relative": -1}, "gamma_relative"),
        ({"condition": 0.5}, "condition"),
        *(({"temperature": v}, "temperature") for v in (0, None, 1e-320, 1e300)),
        ({"fit_intercept": 1}, "fit_intercept"),
        ({"class_balance": None}, "class_balance"),
        ({"gamma_chosen": 1}, "gamma_chosen"),
        ({"checksums": [1]}, "checksums"),
        *(({"backbone": v}, "backbone") for v in ("resnet18", {"name": "a\0"}, {"\x1b[2J": 1})),
        ({"backbone": {"a": ["x" * 1025]}}, "backbone.a.0"),
        ({"backbone": {"a": 10**400}}, "backbone.a"),
        ({"backbone": nested(40)}, "nested more than 32"),
        *(({"images": v}, "images") for v in ([], {}, {"source": "a"})),
        ({"versions": ["0.1"]}, "versions"),
        ({"versions": {"acil": "\x9b31m"}}, "versions"),
        ({"fingerprint": "a\nb"}, "fingerprint"),
        ({"parameters": None}, "parameters"),
        ({"parameters": {}}, "'parameters.expansion_size'"),
        ({"kind": "inference"}, "weights"),
        ({"kind": "inference", "weights": None}, "gamma"),
        (
            {"kind": "inference", "weights": None, "gamma": None, "total_weight": None},
            "'gram' must be 'none'",
        ),
        ({"solver": "recursive"}, "'gram' must be 'none'"),
        ({"task": "numbers"}, "'task' must be 'classes', found 'numbers'"),
        ({"encoder": "images"}, "'images' belongs to models of images"),
        ({"total_weight": 31.0}, "'total_weight' must be the sum of 'weights'"),
        ({"total_weight": None}, "'total_weight' belongs to full models"),
        ({"clipped": 1}, "'clipped' must be true or false"),
        ({"solver": "recursive", "fit_intercept": True}, "no intercept"),
        ({"dtype": "float32"}, "must be .'F32'"),
        ({"dtype": "float32", "gamma": 1e39}, "at most 1e.35"),
        ({"comment": "what no version knows"}, "unknown entry 'comment'"),
    ],
    ids=lambda value: ascii(value)[:50],
)
def test_headers_with_wrong_values(model, changes, words):
    rewrite(model, changes)
    refused(model, words)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("expansion_size", 0),
        ("expansion_size", True),
        ("gamma", -1),
        ("gamma", "large"),
        ("gamma", 10**400),
        ("gamma", 1e308),
        ("activation", 1),
        ("solver", None),
        ("dtype", "int8"),
        ("random_state", 1.5),
        *(("device", name) for name in ("meta", "hpu", "privateuseone", "cuda; rm", "cuda:9999", 0)),
        ("fit_intercept", "no"),
        ("unknown", 1),
    ],
)
def test_wrong_parameters(model, name, value):
    rewrite(model, {"parameters": describe(model)["parameters"] | {name: value}})
    refused(model, name)


def peak_of(function, *arguments):
    """Return the most bytes that Python and NumPy have taken at once in a call."""
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [10**6, 1024])
def test_memory_of_reading_is_bounded_when_one_label_is_long(tmp_path, length):
    path, labels = tmp_path / "m.acil", [f"{number:04}" for number in range(1000)]
    save(
        ACILClassifier(scores="ridge", expansion_size=None, gamma=1.0).fit(np.ones((1000, 1)), labels),
        path,
    )
    rewrite(path, {"classes": [*labels[:-1], "x" * length], "classes_dtype": f"<U{length}"})

    def read():
        if length > 1024:
            refused(path, "at most 1024 characters")
        else:
            assert len(load(path).classes_[-1]) == len(describe(path)["classes"][-1]) == length

    assert peak_of(read) < 16 * path.stat().st_size + 2**24


@pytest.mark.parametrize("label", ["x" * 1025, "a\0b", "\ud800"], ids=ascii)
@pytest.mark.parametrize("dtype", [object, str])
def test_labels_that_no_file_could_keep_are_refused_when_they_are_learnt(label, dtype):
    labels = np.array(["cat", "dog", label], dtype=dtype)
    for learn in (ACILClassifier(scores="ridge").fit, ACILClassifier(scores="ridge").partial_fit):
        with pytest.raises(InputError, match="cannot be stored"):
            learn(np.eye(3), labels)


def test_classes_that_padded_to_the_longest_would_fill_the_memory_are_refused(header):
    names = [f"{number:06}" for number in range(MAX_LABELS // 1024)] + ["x" * 1024]
    ones = [1] * len(names)
    changes = {"classes": names, "classes_dtype": "<U1024", "counts": ones, "weights": ones}
    with pytest.raises(InvalidFileError, match="longest name"):
        parse_header(json.dumps(header | changes))


def test_every_key_is_needed(header):
    assert header.keys() == HEADER.keys()
    assert header["parameters"].keys() == PARAMETERS.keys()
    before = {
        "history",
        "gamma_samples",
        "linear",
        "unseen",
        "unseen_by_one",
    }  # which earlier files lack
    for key in header.keys() - before:
        rest = {name: value for name, value in header.items() if name != key}
        with pytest.raises(InvalidFileError, match=key.replace("_", ".")):
            parse_header(json.dumps(rest))
    assert parse_header(json.dumps(header)) == header


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, None) for name in ("gram", "moment", "coef", "intercept")),
        ("extra", np.ones(2)),
        ("gram", np.ones(11)),
        ("gram", np.ones((4, 4))),
        ("gram", np.ones(10, dtype=np.float32)),
        ("gram", np.ones(10, dtype=np.int64)),
        ("moment", np.ones((2, 4))),
        ("coef", np.ones((4, 2))),
        ("coef", np.ones(8)),
        ("intercept", np.ones(3)),
        ("projection", np.ones((3, 4))),
    ],
)
def test_tensors_that_are_missing_too_many_or_of_another_layout(model, name, value):
    rewrite(model, **({"drop": [name]} if value is None else {name: value}))
    refused(model, f"tensor '{name}' must be")


def test_model_without_its_projection(model):
    rewrite(model, drop=["projection"])
    refused(model, "no projection")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["gram", "moment", "coef", "intercept", "projection", "rfaum"])
def test_values_that_are_no_numbers(tmp_path, name, bad):
    model = write_model(tmp_path / "m.acil", solver="recursive" if name == "rfaum" else "gram")
    tensor = load_file(model)[name]
    tensor.reshape(-1)[-1] = bad
    rewrite(model, **{name: tensor})
    with pytest.raises(ModelFileError, match=f"'{name}' .*NaN"):
        load(model)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scores": "ridge"}, "'unseen' belongs to discriminant scores"),
        ({"scores": "ridge", "unseen": 0}, "'unseen_by_one' belongs to discriminant scores"),
        (
            {"scores": "ridge", "unseen": 0, "unseen_by_one": 0},
            "'calibration' belongs to discriminant scores",
        ),
        ({"class_balance": 0.5}, "discriminant scores need sums, and no class balance"),
        (
            {"calibration": {"samples": 1, "losses": [], "novelties": [], "approximate": False}},
            "numbers",
        ),
        ({}, "divide by positive numbers"),
    ],
)
def test_discriminants_and_scales_that_cannot_be(tmp_path, changes, words):
    path = write_model(tmp_path / "m.acil", scores="discriminant", standardize=True)
    rewrite(path, changes, **({} if changes else {"scaling": np.zeros((2, 3))}))
    with pytest.raises(ModelFileError, match=words):
        load(path)


def test_changed_projection_is_noticed(model):
    tensor = load_file(model)["projection"]
    tensor[0, 0] += 1
    rewrite(model, projection=tensor)
    for inference in (False, True):
        with pytest.raises(ModelFileError, match="fingerprint"):
            load(model, inference=inference)


def read_anyway(path):
    """Load a file that may be damaged: a ModelFileError, or a model that predicts."""
    try:
        loaded = load(path)
    except ModelFileError:
        return False
    loaded.predict(X[:2])
    return True


@pytest.mark.parametrize("options", [{}, {"solver": "recursive", "dtype": "float32"}], ids=str)
def test_any_flipped_bit_is_noticed(tmp_path, options):
    path = write_model(tmp_path / "m.acil", expansion_size=2, **options)
    content = path.read_bytes()
    assert len(content) > 1000
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        assert not read_anyway(path), f"bit {position % 8} of byte {position}"


def test_reading_for_inference_notices_flipped_bits_in_what_it_reads(model):
    content = bytearray(model.read_bytes())
    weights = load_file(model)["coef"].tobytes()
    content[content.index(weights) + 5] ^= 1
    model.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"'coef' .*checksum"):
        load(model, inference=True)


def test_any_truncation_gives_an_error(model):
    content = model.read_bytes()
    for length in range(len(content)):
        model.write_bytes(content[:length])
        assert not read_anyway(model)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(), max_size=3)
    | st.sampled_from([10**400, 1e308, "\ud800", "a\0", "\x1b["])
)
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=2), v)
)


@given(st.data())
def test_any_value_anywhere_in_the_header_gives_an_error_or_a_model(folder, header, data):
    path = write_model(folder / "any.acil")
    changed = copy.deepcopy(header)
    place = data.draw(st.sampled_from(["header", "parameters"]))
    target = changed if place == "header" else changed["parameters"]
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(values)
    rewrite(path, text=json.dumps(changed))
    read_anyway(path)
