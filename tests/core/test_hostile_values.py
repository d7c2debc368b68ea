"""Hostile values in model files, with right checksums: an error in words, never a NaN as an answer."""

import zlib
from contextlib import suppress

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from acil import ACILClassifier, load, save
from acil.core.classifier import learnt_of
from acil.core.expansion import Expansion
from acil.core.files import verify
from acil.errors import ACILError, InputError
from support.modelfiles import header_of, rewrite

Y = np.repeat(["a", "b", "c"], 12)
X = np.random.default_rng(0).normal(size=(36, 5)) + 3 * np.repeat(np.eye(3, 5), 12, axis=0)
KINDS = {
    "ridge": {"gamma": 1.0},
    "balanced": {"class_balance": True},
    "intercept in float32": {"dtype": "float32", "fit_intercept": True},
    "mixed": {"dtype": "mixed"},
    "discriminant": {"scores": "discriminant", "standardize": True},
    "discriminant in float32": {"scores": "discriminant", "expansion_size": None, "dtype": "float32"},
    "recursive": {"solver": "recursive", "gamma": 1.0},
}
FAST = ("ridge", "discriminant", "recursive")


def everywhere(share):
    """Return what fills a tensor with a share of the largest number of its type."""
    return lambda t: np.full_like(t, share * np.finfo(t.dtype).max)


def one(place):
    def change(t):
        t = t.copy()
        t.flat[place] = np.finfo(t.dtype).max
        return t

    return change


VALUES = {
    "NaN": lambda t: t * np.nan,
    "infinity": lambda t: np.full_like(t, -np.inf),
    "huge": everywhere(0.5),
    "huge and negative": everywhere(-0.5),
    "large": lambda t: np.full_like(t, np.finfo(t.dtype).max ** 0.49),
    "first": one(0),
    "last": one(-1),
    "tiny": lambda t: np.full_like(t, np.finfo(t.dtype).tiny / 2),
    "zero": np.zeros_like,
    "equal": np.ones_like,
    "negative": np.negative,
    "rotated": lambda t: np.roll(t, 1, axis=-1),
}


def put(path, name, tensor):
    """Put another tensor into a file, with all checksums, and the fingerprint of a projection."""
    tensor, header = np.ascontiguousarray(tensor), header_of(path)
    if name == "projection":
        expansion = (torch.from_numpy(tensor), header["activation"], header["n_features"])
        sums = header["checksums"] | {name: zlib.crc32(tensor)}
        fingerprint = Expansion(*expansion, header["clip_norm"]).fingerprint()
        rewrite(path, {"fingerprint": fingerprint, "checksums": sums}, projection=tensor)
    else:
        rewrite(path, **{name: tensor})


def changed(path, change):
    """Return what a model says after a change of it."""
    model = load(path)
    change(model)
    return model.predict_proba(X)


QUESTIONS = {
    "predict": lambda path: load(path).predict(X) == "",
    "predict_proba": lambda path: load(path).predict_proba(X),
    "decision_function": lambda path: load(path).decision_function(X),
    "for inference": lambda path: load(path, inference=True).predict_proba(X),
    "novelty": lambda path: load(path).relative_novelty(X),
    "leverage": lambda path: load(path).novelty(X),
    "condition": lambda path: load(path).condition_,
    "forget": lambda path: changed(path, lambda model: model.forget(X[:3], Y[:3])),
    "learn": lambda path: changed(path, lambda model: model.partial_fit(X[:3], Y[:3])),
    "solve": lambda path: changed(path, lambda model: model.solve()),
    "merge": lambda path: changed(path, lambda model: model.merge(load(path))),
    "save": lambda path: save(load(path), path.with_suffix(".again"), inference=True) or 0.0,
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in FAST else pytest.mark.slow) for kind in KINDS]
)
def test_hostile_values_are_refused_in_words_or_answered_in_numbers(tmp_path, kind, inference):
    path = tmp_path / "m.acil"
    options = {"expansion_size": 8, "device": "cpu"} | KINDS[kind]
    save(ACILClassifier(**options).fit(X, Y), path, inference=inference)
    good = path.read_bytes()
    for name, tensor in load_file(path).items():
        for what, change in VALUES.items():
            path.write_bytes(good)
            with np.errstate(over="ignore"):
                put(path, name, change(tensor))
            assert all("\n" not in check.detail for check in verify(path))
            for question, ask in QUESTIONS.items():
                with suppress(ACILError):
                    assert not np.isnan(ask(path)).any(), (name, what, question)


@pytest.mark.parametrize("name", ["coef", "moment", "mixing"])
def test_verify_names_what_is_wrong_with_hostile_values(tmp_path, name):
    options = {"expansion_size": 8, "scores": "discriminant"}
    save(ACILClassifier(**options).fit(X, Y), tmp_path / "m.acil")
    tensor = load_file(tmp_path / "m.acil")[name]
    put(tmp_path / "m.acil", name, np.full_like(tensor, 1e308))
    failed = [check.detail for check in verify(tmp_path / "m.acil") if not check.ok]
    assert failed
    if name != "moment":
        assert "too large to use" in failed[0]


def test_answers_that_overflow_are_errors_and_classes_without_samples_are_not():
    model = ACILClassifier(expansion_size=None, gamma=1.0, scores="ridge").fit(X, Y)
    learnt_of(model).model.head.sums.moment.fill_(1e300)
    model.set_gamma(1e-9)
    for ask in (model.predict, model.predict_proba, model.decision_function):
        with pytest.raises(InputError, match="overflow"):
            ask(X * 1e20)
    model = ACILClassifier(expansion_size=None, gamma=1.0).partial_fit(
        X, Y, classes=["a", "b", "c", "d"]
    )
    assert np.isneginf(model.decision_function(X)[:, 3]).all()
    model = ACILClassifier(expansion_size=None, gamma=1.0).partial_fit(X[:9], Y[:9], classes=["a", "b"])
    assert np.isneginf(model.decision_function(X)).all()


@pytest.mark.parametrize("gamma", [0.0, 1e-300, 1e200])
def test_any_gamma_beside_the_matrix_of_the_recursion_is_answered_in_numbers(tmp_path, gamma):
    path = tmp_path / "m.acil"
    save(ACILClassifier(expansion_size=8, solver="recursive", gamma=1.0).fit(X, Y), path)
    rewrite(path, {"gamma": gamma})
    assert np.isfinite(changed(path, lambda model: model.forget(X[:3], Y[:3]))).all()
