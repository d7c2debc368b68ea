"""What comes out: labels of the type that went in, tensors for tensors, probabilities, novelty."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from acil import ACILClassifier
from acil.errors import InputError
from support.strategies import blobs, correction_rank, expanded, relative

PROBLEM = blobs(120, 5, 3, 0)
CODES = PROBLEM.y

KINDS_OF_LABELS = {
    "int64": (CODES, "i"),
    "int32": (CODES.astype(np.int32), "i"),
    "uint8": (CODES.astype(np.uint8), "i"),
    "list of int": (CODES.tolist(), "i"),
    "negative int": (CODES - 5, "i"),
    "object int": (CODES.astype(object), "i"),
    "float": (CODES.astype(float), "f"),
    "float32": (CODES.astype(np.float32), "f"),
    "object float": (CODES.astype(float).astype(object), "f"),
    "bool": (CODES > 0, "b"),
    "object bool": ((CODES > 0).astype(object), "b"),
    "str": (np.array(["a", "bb", "ccc"])[CODES], "U"),
    "object str": (np.array(["a", "bb", "ccc"], dtype=object)[CODES], "U"),
    "list of str": (np.array(["a", "bb", "ccc"])[CODES].tolist(), "U"),
    "variable-width str": (np.array(["a", "bb", "ccc"])[CODES].astype(np.dtypes.StringDType()), "U"),
    "Series of int": (pd.Series(CODES), "i"),
    "Series of nullable int": (pd.Series(CODES, dtype="Int64"), "i"),
    "Series of nullable bool": (pd.Series(CODES > 0, dtype="boolean"), "b"),
    "Series of str": (pd.Series(np.array(["a", "bb", "ccc"])[CODES]), "U"),
    "Series of string dtype": (pd.Series(np.array(["a", "bb", "ccc"])[CODES], dtype="string"), "U"),
    "Categorical of str": (pd.Categorical(np.array(["a", "bb", "ccc"])[CODES]), "U"),
    "categorical Series of int": (pd.Series(CODES).astype("category"), "i"),
    "int tensor": (torch.from_numpy(CODES), "i"),
    "uint8 tensor": (torch.from_numpy(CODES).to(torch.uint8), "i"),
    "float tensor": (torch.from_numpy(CODES).float(), "f"),
    "bfloat16 tensor": (torch.from_numpy(CODES).bfloat16(), "f"),
    "bool tensor": (torch.from_numpy(CODES) > 0, "b"),
}


@pytest.mark.parametrize("kind", KINDS_OF_LABELS)
def test_labels_keep_their_type(kind):
    y, letter = KINDS_OF_LABELS[kind]
    model = ACILClassifier(scores="ridge", expansion_size=30, gamma=1.0).partial_fit(PROBLEM.X, y)
    predicted = model.predict(PROBLEM.X)
    assert model.classes_.dtype.kind == letter
    assert predicted.dtype.kind == letter
    assert sorted(set(predicted.tolist())) == model.classes_.tolist()
    assert set(model.classes_.tolist()) == set(y.tolist() if hasattr(y, "tolist") else y)
    assert model.score(PROBLEM.X, y) > 0.9
    model.partial_fit(PROBLEM.X, y)
    assert model.class_count_.sum() == 240


NAMES = st.text(alphabet=st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=12)


@given(st.lists(NAMES, min_size=1, max_size=6, unique=True))
def test_class_names_of_growing_length_are_never_cut(names):
    names = sorted(names, key=len)
    rng = np.random.default_rng(0)
    model = ACILClassifier(scores="ridge", expansion_size=20, gamma=1e-3)
    centres = rng.normal(scale=10, size=(len(names), 4))
    for name, centre in zip(names, centres, strict=True):
        model.partial_fit(centre + rng.normal(size=(5, 4)) * 1e-3, [name] * 5)
    assert model.classes_.tolist() == sorted(names)
    assert model.predict(centres).tolist() == names


def test_one_class_is_always_predicted():
    model = ACILClassifier(scores="ridge", expansion_size=20).fit(PROBLEM.X, ["only"] * 120)
    assert set(model.predict(PROBLEM.held_out)) == {"only"}
    assert model.decision_function(PROBLEM.held_out).shape == (60, 1)
    assert np.array_equal(model.predict_proba(PROBLEM.held_out), np.ones((60, 1)))
    assert model.score(PROBLEM.X, ["only"] * 120) == 1.0


@pytest.mark.parametrize("labels", [[False, True], ["n", "y"], [0, 1], [1.0, 2.0]], ids=str)
def test_two_classes_have_one_score(labels):
    y = np.array(labels)[(CODES > 0).astype(int)]
    model = ACILClassifier(scores="ridge", expansion_size=20).fit(PROBLEM.X, y)
    scores = model.decision_function(PROBLEM.held_out)
    assert scores.shape == (60,)
    assert np.array_equal(model.predict(PROBLEM.held_out), model.classes_[(scores > 0).astype(int)])
    assert model.predict_proba(PROBLEM.held_out).shape == (60, 2)


def test_declared_classes_are_there_but_never_predicted():
    model = ACILClassifier(scores="ridge", expansion_size=30, gamma=1.0)
    model.partial_fit(PROBLEM.X, CODES, classes=[0, 1, 2, 7])
    assert model.classes_.tolist() == [0, 1, 2, 7]
    assert model.class_count_.tolist()[3] == 0
    assert 7 not in model.predict(PROBLEM.held_out * 100)
    assert np.isneginf(model.decision_function(PROBLEM.held_out)[:, 3]).all()
    assert (model.predict_proba(PROBLEM.held_out)[:, 3] == 0).all()
    plain = ACILClassifier(scores="ridge", expansion_size=30, gamma=1.0).fit(PROBLEM.X, CODES)
    learnt = model.predict_proba(PROBLEM.held_out)[:, :3]
    assert relative(learnt, plain.predict_proba(PROBLEM.held_out)) <= 1e-12
    model.partial_fit(PROBLEM.X + 9, np.full(120, 7))
    assert 7 in model.predict(PROBLEM.X + 9)


def test_one_learnt_and_one_declared_class():
    model = ACILClassifier(scores="ridge", expansion_size=30)
    model.partial_fit(PROBLEM.X, np.zeros(120, int), classes=[0, 1])
    scores = model.decision_function(PROBLEM.held_out)
    assert scores.shape == (60,)
    assert np.isneginf(scores).all()
    assert (model.predict(PROBLEM.held_out) == 0).all()


@pytest.mark.parametrize("kind", [int, str, float])
def test_many_classes_can_be_declared_without_a_warning(kind):
    labels = np.arange(100).astype(kind)
    model = ACILClassifier(scores="ridge", expansion_size=20)
    model.partial_fit(PROBLEM.X, labels[CODES], classes=labels)
    assert len(model.classes_) == 100


def test_a_phase_may_bring_one_sample_of_each_of_many_classes():
    model = ACILClassifier(scores="ridge", expansion_size=20).partial_fit(PROBLEM.X[:60], np.arange(60))
    assert len(model.classes_) == 60


def test_labels_outside_the_declared_classes_are_refused():
    with pytest.raises(InputError, match="classes: 2"):
        ACILClassifier(scores="ridge", expansion_size=20).partial_fit(PROBLEM.X, CODES, classes=[0, 1])
    with pytest.raises(InputError, match="type"):
        ACILClassifier(scores="ridge", expansion_size=20).partial_fit(
            PROBLEM.X, CODES, classes=["0", "1", "2"]
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("solver", ["gram", "recursive"])
def test_tensors_come_back_for_tensors(dtype, solver):
    X = torch.from_numpy(PROBLEM.X).to(dtype)
    model = ACILClassifier(scores="ridge", expansion_size=30, gamma=0.1, solver=solver).fit(
        X, torch.from_numpy(CODES)
    )
    methods = ["decision_function", "predict_proba", "predict", "novelty"]
    for method in methods + ["relative_novelty"] * (solver == "gram"):
        answer = getattr(model, method)(X)
        assert isinstance(answer, torch.Tensor), method
        assert answer.device == X.device
        assert not answer.requires_grad
        array = getattr(model, method)(X.double().numpy())
        assert isinstance(array, np.ndarray), method
        assert np.array_equal(answer.numpy(), array), method
    assert isinstance(model.coef_, np.ndarray)


def test_text_labels_come_back_as_an_array_even_for_tensors():
    model = ACILClassifier(scores="ridge", expansion_size=30).fit(
        torch.from_numpy(PROBLEM.X), CODES.astype(str)
    )
    assert isinstance(model.predict(torch.from_numpy(PROBLEM.X)), np.ndarray)
    assert model.score(torch.from_numpy(PROBLEM.X), CODES.astype(str)) > 0.8


def test_attributes_are_copies():
    model = ACILClassifier(scores="ridge", expansion_size=30).fit(PROBLEM.X, CODES)
    before = model.decision_function(PROBLEM.X)
    model.coef_[:] = 0
    model.intercept_[:] = 9
    model.class_count_[:] = 0
    assert np.array_equal(model.decision_function(PROBLEM.X), before)
    assert model.class_count_.sum() == 120


@pytest.mark.parametrize(
    "options",
    [{}, {"solver": "recursive"}, {"dtype": "mixed"}, {"fit_intercept": True}, {"class_balance": True}],
    ids=str,
)
def test_probabilities_sum_to_one_and_rank_like_scores(options):
    model = ACILClassifier(expansion_size=30, gamma=1.0, **({"scores": "ridge"} | options)).fit(
        PROBLEM.X, CODES
    )
    probabilities = model.predict_proba(PROBLEM.held_out)
    scores = model.decision_function(PROBLEM.held_out)
    assert np.allclose(probabilities.sum(axis=1), 1, rtol=0, atol=1e-6)
    assert (probabilities >= 0).all()
    assert np.array_equal(np.argsort(probabilities, axis=1), np.argsort(scores, axis=1))
    assert np.array_equal(model.classes_[probabilities.argmax(axis=1)], model.predict(PROBLEM.held_out))


# How much worse than the best temperature, found on the held-out data itself, ours may be. Where
# almost nothing is left to lose (width 400, 1200 samples: 0.03 nats) relative losses are larger.
CALIBRATION, CALIBRATION_NARROW = 1.15, 1.30


def losses(model, X, y):
    """Log-loss as a function of the temperature, and its minimum."""
    scores = model.decision_function(X)

    def loss(temperature):
        return -log_softmax(scores / temperature, axis=1)[np.arange(len(y)), y].mean()

    return loss, minimize_scalar(lambda t: loss(np.exp(t)), bounds=(-7, 7), method="bounded").fun


@pytest.mark.filterwarnings("ignore:.*candidates for gamma were left out")
@pytest.mark.parametrize("n_train", [100, 300, 1200])
@pytest.mark.parametrize(
    ("options", "bar"),
    [
        ({"expansion_size": 1000, "gamma": "auto"}, CALIBRATION),
        ({"expansion_size": 1000, "gamma": 0.1, "fit_intercept": True}, CALIBRATION),
        ({"expansion_size": 400, "gamma": "auto", "fit_intercept": True}, CALIBRATION_NARROW),
        ({"expansion_size": 400, "gamma": 10.0, "solver": "recursive"}, CALIBRATION_NARROW),
        ({"expansion_size": 400, "gamma": 100.0, "dtype": "mixed"}, CALIBRATION_NARROW),
    ],
    ids=str,
)
def test_probabilities_are_calibrated_on_digits(digits, n_train, options, bar):
    X, y = digits
    model = ACILClassifier(**({"scores": "ridge"} | options)).fit(X[:n_train], y[:n_train])
    loss, best = losses(model, X[1200:], y[1200:])
    probabilities = model.predict_proba(X[1200:])[np.arange(len(y) - 1200), y[1200:]]
    ours = -np.log(probabilities).mean()
    assert ours == pytest.approx(loss(model.temperature_), rel=1e-4)
    assert ours < loss(1.0)
    assert ours <= bar * best


def leverage(rows, gamma, query, fit_intercept):
    if fit_intercept:
        mean = rows.mean(axis=0)
        centred = leverage(rows - mean, gamma, query - mean, fit_intercept=False)
        return centred + 1 / len(rows)
    R = np.linalg.inv(rows.T @ rows + gamma * np.eye(rows.shape[1]))
    return np.einsum("ij,jk,ik->i", query, R, query)


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({}, 1e-10),
        ({"fit_intercept": True}, 1e-10),
        ({"solver": "recursive"}, 1e-9),
        ({"dtype": "mixed"}, 1e-3),
        ({"dtype": "float32"}, 1e-3),
    ],
    ids=str,
)
def test_novelty_is_the_leverage(options, tolerance):
    model = ACILClassifier(expansion_size=30, gamma=5.0, **({"scores": "ridge"} | options)).fit(
        PROBLEM.X, CODES
    )
    expected = leverage(
        expanded(PROBLEM.X, 30), 5.0, expanded(PROBLEM.held_out, 30), "fit_intercept" in options
    )
    assert relative(model.novelty(PROBLEM.held_out), expected) <= tolerance


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_novelty_follows_corrections(fit_intercept):
    model = ACILClassifier(scores="ridge", expansion_size=60, gamma=5.0, fit_intercept=fit_intercept)
    model.fit(PROBLEM.X[:110], CODES[:110]).predict(PROBLEM.held_out)
    model.partial_fit(PROBLEM.X[110:], CODES[110:])
    expected = leverage(expanded(PROBLEM.X, 60), 5.0, expanded(PROBLEM.held_out, 60), fit_intercept)
    assert correction_rank(model) > 0
    assert relative(model.novelty(PROBLEM.held_out), expected) <= 1e-10


@pytest.mark.parametrize("solver", ["gram", "recursive"])
def test_novelty_grows_for_rows_unlike_anything_learnt(digits, solver):
    X, y = digits
    known = y < 5
    model = ACILClassifier(scores="ridge", expansion_size=200, gamma=1.0, solver=solver)
    model.fit(X[known][:400], y[known][:400])
    same = model.novelty(X[known][400:])
    other = model.novelty(X[~known])
    assert np.median(other) > 1.3 * np.median(same)
    strange = model.novelty(np.random.default_rng(0).uniform(size=(200, 64)))
    assert np.median(strange) > 3 * np.median(same)
    model.partial_fit(X[~known][:400], y[~known][:400])
    assert np.median(model.novelty(X[~known])) < np.median(other)
