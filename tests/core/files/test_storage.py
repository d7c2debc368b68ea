"""Models survive being saved: bit-equal sums, the same predictions, and learning goes on."""

import itertools
import json
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import acil
from acil import ACILClassifier, load, save
from acil.core.classifier import learnt_of
from acil.core.files import describe, pack, saving, unpack
from acil.errors import (
    InputError,
    InterruptedModelError,
    NotFittedError,
    UnsupportedError,
)
from support.strategies import correction_rank, same_sums

LABELS = {
    "int64": np.array([-7, 0, 12]),
    "int8": np.array([-7, 0, 12], dtype=np.int8),
    "float64": np.array([-1.0, 0.0, 2.0]),
    "float16": np.array([-1.0, 0.0, 2.0], dtype=np.float16),
    "bool": np.array([False, True]),
    "<U8": np.array(["", "Ärger 猫\n", "\x1b[31m"]),
}


def data(labels=LABELS["int64"], n=40, n_features=4, seed=0):
    rng = np.random.default_rng(seed)
    columns = np.concatenate([np.arange(len(labels)), rng.integers(0, len(labels), n - len(labels))])
    return rng.normal(size=(n, n_features)) + columns[:, None], np.asarray(labels)[columns]


@st.composite
def models(draw):
    """Draw an unfitted model of any kind that can be fitted."""
    parameters = {
        "expansion_size": draw(st.sampled_from([None, 1, 24])),
        "gamma": draw(st.sampled_from([0.5, 3, np.float32(2.0)])),
        "activation": draw(st.sampled_from(["relu", "tanh", "gelu", "identity"])),
        "dtype": draw(st.sampled_from(["float64", "float32", "mixed"])),
        "random_state": draw(st.sampled_from([0, np.int64(3), 2**63 - 1, None])),
        "device": "cpu",
    }
    if parameters["dtype"] != "mixed" and draw(st.booleans()):
        return ACILClassifier(solver="recursive", **({"scores": "ridge"} | parameters))
    if draw(st.booleans()):
        parameters["gamma"] = "auto"
    parameters["class_balance"] = draw(st.sampled_from([False, 0.5, np.float32(1), True]))
    return ACILClassifier(fit_intercept=draw(st.booleans()), **({"scores": "ridge"} | parameters))


def saved_and_loaded(model, inference_file=False, **options):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.acil"
        save(model, path, inference=inference_file)
        return load(path, **options)


@given(model=models(), labels=st.sampled_from(list(LABELS.values())), weighted=st.booleans())
def test_loaded_model_is_the_one_that_was_saved(model, labels, weighted):
    X, y = data(labels)
    weights = np.linspace(0, 2, len(y)) if weighted else None
    model.fit(X, y, sample_weight=weights)
    loaded = saved_and_loaded(model)
    assert same_sums(loaded, model)
    assert loaded.coef_.tobytes() == model.coef_.tobytes()
    assert loaded.classes_.dtype == model.classes_.dtype
    assert loaded.n_features_in_ == 4
    assert loaded.gamma_ == model.gamma_
    assert loaded.temperature_ == model.temperature_
    assert np.array_equal(loaded.predict(X), model.predict(X))
    np.testing.assert_allclose(loaded.predict_proba(X), model.predict_proba(X), rtol=1e-5)
    expected = model.get_params() | {"random_state": learnt_of(model).seed}
    assert loaded.get_params() == expected


@given(model=models(), first=st.integers(3, 30), weighted=st.booleans())
def test_learning_goes_on_as_if_never_saved(model, first, weighted):
    X, y = data()
    weights = np.linspace(0.1, 2, len(y)) if weighted else np.ones(len(y))
    model.random_state = 5
    twin = ACILClassifier(**({"scores": "ridge"} | model.get_params()))
    for one in (model, twin):
        one.partial_fit(X[:first], y[:first], sample_weight=weights[:first])
    twin = saved_and_loaded(twin)
    for one in (model, twin):
        one.partial_fit(X[first:], y[first:], sample_weight=weights[first:])
        one.partial_fit(X[:5] * 2, [99] * 5)
        if one.solver == "gram":
            one.solve()
    if model.solver == "gram":
        assert same_sums(twin, model)
        assert twin.coef_.tobytes() == model.coef_.tobytes()
    else:
        # The order of summation in memory may differ, and the recursion builds on its weights.
        tolerance = 1e-3 if model.dtype == "float32" else 1e-9
        np.testing.assert_allclose(twin.coef_, model.coef_, rtol=tolerance, atol=tolerance)


@given(model=models(), weighted=st.booleans())
def test_inference_model_scores_like_the_full_one(model, weighted):
    X, y = data(LABELS["<U8"])
    model.fit(X, y, sample_weight=np.linspace(0.5, 3, len(y)) if weighted else None)
    labels = model.predict(X)
    from_full = saved_and_loaded(model, inference=True)
    np.testing.assert_allclose(from_full.predict_proba(X), model.predict_proba(X), rtol=1e-5)
    assert from_full.gamma_ == model.gamma_
    from_small = saved_and_loaded(model, inference_file=True)
    again = saved_and_loaded(from_small, inference_file=True)
    for small in (from_full, from_small, again):
        assert small.coef_.tobytes() == model.coef_.tobytes()
        assert small.intercept_.tobytes() == model.intercept_.tobytes()
        assert np.array_equal(small.predict(X), labels)
        assert list(small.class_count_) == list(model.class_count_)
        with pytest.raises(UnsupportedError, match="inference=True"):
            saved_and_loaded(small)


def test_inference_model_refuses_to_learn_and_still_predicts():
    X, y = data()
    model = ACILClassifier(scores="ridge", expansion_size=8).fit(X, y)
    small = saved_and_loaded(model, inference=True)
    for change in (small.partial_fit, small.forget):
        with pytest.raises(UnsupportedError, match="only predict"):
            change(X, y)
        assert np.array_equal(small.predict(X), model.predict(X))
    with pytest.raises(UnsupportedError, match="sums"):
        small.merge(model)
    assert np.array_equal(small.copy().decision_function(X), small.decision_function(X))
    assert small.fit(X[:9], y[:9]).n_samples_ == 9


def test_pending_correction_is_folded_in_before_saving():
    X, y = data(n=300)
    corrected = ACILClassifier(scores="ridge", expansion_size=64, gamma=1.0).fit(X[:295], y[:295])
    direct = ACILClassifier(scores="ridge", expansion_size=64, gamma=1.0).fit(X[:295], y[:295])
    corrected.predict(X[:1])
    for model in (corrected, direct):
        model.partial_fit(X[295:], y[295:])
    assert correction_rank(corrected) > 0
    loaded = saved_and_loaded(corrected)
    assert loaded.coef_.tobytes() == direct.coef_.tobytes()
    assert loaded.temperature_ == direct.temperature_


def test_loading_does_not_solve_again(monkeypatch):
    X, y = data()
    loaded = saved_and_loaded(ACILClassifier(scores="ridge", expansion_size=8).fit(X, y))
    monkeypatch.setattr("acil.core.ridge.Factor", None)
    assert loaded.predict_proba(X).shape == (40, 3)


def test_settings_changed_after_fitting_do_not_change_what_was_learnt():
    X, y = data()
    model = ACILClassifier(scores="ridge", expansion_size=8, class_balance=True).fit(X, y)
    model.set_params(expansion_size=5, activation="tanh", class_balance=False, fit_intercept=True)
    loaded = saved_and_loaded(model)
    assert loaded.get_params() == model.get_params()
    np.testing.assert_allclose(loaded.decision_function(X), model.decision_function(X), rtol=1e-12)


def test_feature_names_and_backbone_are_kept():
    X, y = data()
    without = saved_and_loaded(ACILClassifier(scores="ridge", expansion_size=8).fit(X, y))
    assert not {"backbone_", "feature_names_in_"} & vars(without).keys()
    model = ACILClassifier(scores="ridge", expansion_size=8).fit(
        pd.DataFrame(X, columns=list("abcd")), y
    )
    model.backbone_ = {"name": "resnet18", "sha256": "00", "mean": [0.5, 0.25], "engine": None}
    loaded = saved_and_loaded(model)
    assert list(loaded.feature_names_in_) == list("abcd")
    assert loaded.backbone_ == model.backbone_
    assert loaded.merge(model).n_samples_ == 80


@pytest.mark.parametrize(
    "backbone", [{"size": (1, 2)}, {1: "a"}, {"weights": np.ones(2)}, {"x": np.nan}, {"x": "a\0"}]
)
def test_backbone_that_would_come_back_different_is_refused(tmp_path, backbone):
    X, y = data()
    model = ACILClassifier(scores="ridge", expansion_size=8).fit(X, y)
    model.backbone_ = backbone
    with pytest.raises(InputError, match="'backbone"):
        save(model, tmp_path / "m.acil")
    assert not list(tmp_path.iterdir())


def test_forgotten_wide_class_and_declared_class_round_trip():
    X, y = data(np.array(["a", "b", "a long name"]))
    model = ACILClassifier(scores="ridge", expansion_size=8).partial_fit(
        X, y, classes=["a", "b", "a long name", "never"]
    )
    model.forget(X[y == "a long name"], y[y == "a long name"])
    loaded = saved_and_loaded(model)
    assert list(loaded.classes_) == ["a", "b", "never"]
    assert list(loaded.class_count_) == list(model.class_count_)
    assert "never" not in loaded.predict(X)
    assert loaded.partial_fit(X[:2], ["a very long name indeed"] * 2).n_samples_ == model.n_samples_ + 2


def test_extended_floats_are_stored_as_float64():
    X, y = data(LABELS["float64"].astype(np.longdouble))
    model = ACILClassifier(scores="ridge", expansion_size=8).fit(X, y)
    assert saved_and_loaded(model).classes_.dtype == np.float64


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("solver", ["gram", "recursive"])
def test_tensors_of_a_loaded_model_are_aligned_and_its_own(tmp_path, monkeypatch, solver, inference):
    X, y = data()
    save(
        ACILClassifier(scores="ridge", expansion_size=7, gamma=0.1, solver=solver).fit(X, y),
        tmp_path / "m.acil",
    )
    raw, read = [], saving._read

    def record(file, name, header):
        raw.append(read(file, name, header))
        return raw[-1]

    monkeypatch.setattr(saving, "_read", record)
    model = learnt_of(load(tmp_path / "m.acil", inference=inference)).model
    tensors = [model.expansion.projection, *model.head.coefficients()]
    if not inference:
        head = model.head
        tensors += [head.sums.gram, head.sums.moment] if solver == "gram" else [head.R]
    assert len(raw) >= 3
    for tensor in tensors:
        assert tensor.data_ptr() % 64 == 0
        assert all(tensor.data_ptr() != other.data_ptr() for other in raw)


def test_reading_for_inference_leaves_the_sums_alone(tmp_path, monkeypatch):
    X, y = data()
    save(
        ACILClassifier(scores="ridge", expansion_size=8, class_balance=True).fit(X, y),
        tmp_path / "m.acil",
    )
    names, read = [], saving._read
    monkeypatch.setattr(
        saving, "_read", lambda file, name, header: names.append(name) or read(file, name, header)
    )
    load(tmp_path / "m.acil", inference=True)
    assert sorted(names) == ["coef", "intercept", "mixing", "projection"]


def numbers(value):
    """Return all numbers in a JSON value."""
    if isinstance(value, dict | list):
        children = value.values() if isinstance(value, dict) else value
        return [number for child in children for number in numbers(child)]
    return [value] if isinstance(value, float) else []


@pytest.mark.parametrize(
    "options",
    [{}, {"gamma": "auto"}, {"solver": "recursive"}, {"scores": "discriminant"}, {"standardize": True}],
    ids=str,
)
def test_inference_file_does_not_tell_gamma(tmp_path, options):
    # With γ, the weights of classes of one sample give back these samples to the last digit.
    X, y = np.random.default_rng(0).normal(size=(5, 16)), np.arange(5)
    model = ACILClassifier(
        **({"scores": "ridge"} | {"expansion_size": None, "gamma": 0.37} | options)
    ).fit(X, y)
    save(model, tmp_path / "m.acil", inference=True)
    assert describe(tmp_path / "m.acil")["tensors"].keys() <= {"coef", "intercept", "scaling"}
    secret = [model.gamma_, model.condition_, model.temperature_]
    secret += [model.gamma_relative_] if model.solver == "gram" else []
    assert not set(secret) & set(numbers(describe(tmp_path / "m.acil")))
    small = load(tmp_path / "m.acil")
    np.testing.assert_allclose(small.predict_proba(X), model.predict_proba(X), atol=0.05)
    with pytest.raises(UnsupportedError, match="no gamma"):
        small.gamma_  # noqa: B018


def test_description_has_the_facts(tmp_path):
    X, y = data(LABELS["<U8"])
    model = ACILClassifier(scores="ridge", expansion_size=8, gamma=2.0, random_state=None).fit(X, y)
    path = tmp_path / "m.acil"
    save(model, path)
    report = describe(path)
    assert report["classes"] == model.classes_.tolist()
    assert report["counts"] == model.class_count_.tolist()
    assert report["gamma_relative"] == model.gamma_relative_
    assert report["condition"] == model.condition_
    assert report["parameters"]["random_state"] == learnt_of(model).seed
    assert report["tensors"]["gram"] == {"dtype": "F64", "shape": [36], "bytes": 288}
    assert report["file_bytes"] == path.stat().st_size
    assert report["versions"]["acil"] == acil.__version__
    assert report["versions"]["torch"] == torch.__version__


def test_stored_bytes_are_those_of_the_file(tmp_path):
    X, y = data()
    for options in ({}, {"solver": "recursive", "gamma": 1.0}, {"expansion_size": None}):
        model = ACILClassifier(**({"scores": "ridge"} | ({"expansion_size": 9} | options))).fit(X, y)
        save(model, tmp_path / "m.acil")
        stored = describe(tmp_path / "m.acil")["tensors"]
        assert model.stored_bytes() == {name: part["bytes"] for name, part in stored.items()}


def test_model_on_a_missing_device_says_how_to_load_it(tmp_path):
    X, y = data()
    model = ACILClassifier(scores="ridge", expansion_size=8).fit(X, y)
    model.device = "cuda:97"
    path = tmp_path / "m.acil"
    save(model, path)
    with pytest.raises(InputError, match=r'cuda:97(.|\n)*device="cpu"'):
        load(path)
    loaded = load(path, device="cpu")
    assert loaded.device == "cpu"
    assert np.array_equal(loaded.predict(X), model.predict(X))
    with pytest.raises(InputError, match="nonsense"):
        load(path, device="nonsense")


def test_models_that_cannot_be_saved_are_refused_and_the_file_stays(tmp_path):
    X, y = data()
    path = tmp_path / "m.acil"
    save(ACILClassifier(scores="ridge", expansion_size=8).fit(X, y), path)
    before = path.read_bytes()
    empty = (
        ACILClassifier(scores="ridge", expansion_size=8)
        .partial_fit(X, y, classes=[-7, 0, 12, 99])
        .forget(X, y)
    )
    interrupted = ACILClassifier(scores="ridge", expansion_size=8).fit(X, y)
    learnt_of(interrupted).model.head.sums.matrix.version = -1
    spoilt = ACILClassifier(scores="ridge", expansion_size=8).fit(X, y)
    spoilt.predict(X)
    learnt_of(spoilt).model.head.sums.moment[0, 0] = torch.nan
    invalid = ACILClassifier(scores="ridge", expansion_size=8).fit(X, y).set_params(activation="none")
    for model, error, words in [
        (ACILClassifier(scores="ridge"), NotFittedError, "not learnt anything"),
        (empty, NotFittedError, "not learnt anything"),
        (interrupted, InterruptedModelError, "interrupted"),
        (spoilt, InputError, "NaN|JSON"),
        (invalid, InputError, "activation"),
        ("model", InputError, "got str"),
    ]:
        with pytest.raises(error, match=words):
            save(model, path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.acil"]


def test_header_that_the_library_would_not_read_is_refused(tmp_path, monkeypatch):
    X, y = data()
    monkeypatch.setattr(saving, "MAX_HEADER_BYTES", 100)
    with pytest.raises(InputError, match="shorter names"):
        save(ACILClassifier(scores="ridge", expansion_size=8).fit(X, y), tmp_path / "m.acil")


def test_names_are_those_of_the_learner():
    from acil.core.files import header
    from acil.core.inputs import MAX_LENGTH

    assert MAX_LENGTH == header.MAX_TEXT


def test_wide_triangles_span_panels(tmp_path):
    X, y = data(n=50, n_features=30)
    for solver, size in itertools.product(("gram", "recursive"), (511, 513)):
        model = ACILClassifier(scores="ridge", expansion_size=size, solver=solver, gamma=10.0).fit(X, y)
        save(model, tmp_path / "m.acil")
        assert same_sums(load(tmp_path / "m.acil"), model)


def test_packing_measures_nothing_and_the_model_made_of_it_measures_for_itself(monkeypatch):
    X, y = data()
    model = ACILClassifier(scores="ridge", expansion_size=8).fit(X, y)
    expected = model.copy().predict_proba(X)

    def refuse(self):
        raise AssertionError("packing must not factorize")

    with monkeypatch.context() as context:
        context.setattr("acil.core.ridge.Ridge.degrees_of_freedom", refuse)
        context.setattr("acil.core.ridge.Ridge.condition", refuse)
        content = pack(model)
    header = json.loads(content["header"])
    assert header["temperature"] is None
    assert header["condition"] is None
    assert np.array_equal(unpack(content).predict_proba(X), expected)
