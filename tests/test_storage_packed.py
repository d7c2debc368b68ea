"""Models inside something else, and models that keep all digits: what their files say."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from acil import ACILClassifier, load, save
from acil.errors import ModelFileError
from acil.storage import describe, pack, unpack
from strategies import same_sums


def data(n=40, n_features=4):
    rng = np.random.default_rng(0)
    columns = np.concatenate([np.arange(3), rng.integers(0, 3, n - 3)])
    return rng.normal(size=(n, n_features)) + columns[:, None], columns


def test_extended_sums_stay_extended(tmp_path, monkeypatch):
    monkeypatch.setattr("acil.analytic.rounding._NARROW", 0)
    X, y = data(n=400, n_features=16)
    model = ACILClassifier(expansion_size=24, gamma=100.0, sums="extended").fit(X[:100], y[:100])
    save(model, tmp_path / "m.acil")
    report = describe(tmp_path / "m.acil")
    assert (report["format_version"], report["sums"], report["parameters"]["sums"]) == (
        3,
        "extended",
        "extended",
    )
    for twin in (load(tmp_path / "m.acil"), unpack(pack(model)), model.copy()):
        assert twin.sums == "extended"
        assert same_sums(twin.partial_fit(X[100:], y[100:]), model.copy().partial_fit(X[100:], y[100:]))
        assert "gram_low" in twin.stored_bytes()
    save(model, tmp_path / "small.acil", inference=True)
    assert load(tmp_path / "small.acil").sums == "extended"
    # What the model is made with counts, not what was asked for since.
    changed = ACILClassifier(expansion_size=24, gamma=100.0).fit(X, y).set_params(sums="extended")
    save(changed, tmp_path / "m.acil")
    assert "gram_low" not in load(tmp_path / "m.acil").partial_fit(X, y).stored_bytes()
    model.set_params(sums="auto")
    save(model, tmp_path / "m.acil")
    assert "gram_low" in load(tmp_path / "m.acil").partial_fit(X, y).stored_bytes()


def test_a_file_without_a_word_on_sums_is_of_automatic_ones(tmp_path):
    X, y = data()
    model = ACILClassifier(expansion_size=8).fit(X, y)
    content = pack(model)
    header = json.loads(content["header"])
    assert "sums" not in header["parameters"]
    del header["sums"]
    loaded = unpack(content | {"header": json.dumps(header)})
    assert loaded.sums == "auto"
    assert same_sums(loaded, model)


def test_packing_measures_nothing_and_the_model_made_of_it_measures_for_itself(monkeypatch):
    X, y = data()
    model = ACILClassifier(expansion_size=8).fit(X, y)
    expected = model.copy().predict_proba(X)

    def refuse(self):
        raise AssertionError("packing must not factorize")

    with monkeypatch.context() as context:
        context.setattr("acil.analytic.head.GramHead.trace_of_inverse", refuse)
        context.setattr("acil.analytic.head.GramHead.condition", refuse)
        content = pack(model)
    header = json.loads(content["header"])
    assert header["temperature"] is None
    assert header["condition"] is None
    assert np.array_equal(unpack(content).predict_proba(X), expected)


def test_a_file_needs_a_temperature(tmp_path):
    X, y = data()
    save(ACILClassifier(expansion_size=8).fit(X, y), tmp_path / "m.acil")
    with safe_open(tmp_path / "m.acil", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    (name,) = (key for key, text in metadata.items() if "temperature" in text)
    header = json.loads(metadata[name]) | {"temperature": None}
    save_file(tensors, tmp_path / "m.acil", metadata | {name: json.dumps(header)})
    with pytest.raises(ModelFileError, match="temperature"):
        load(tmp_path / "m.acil")
