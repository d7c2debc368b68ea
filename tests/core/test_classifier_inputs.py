"""Arrays of every kind go in; bad ones are refused, and change nothing."""

from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

from acil import ACILClassifier, load, save
from acil.core.classifier import learnt_of
from acil.core.inputs import Rows
from acil.errors import ACILError, InputError, InputTypeError, SingularMatrixError, UnsupportedError
from support.strategies import Unchanged, blobs, relative

PROBLEM = blobs(80, 5, 3, 0)
#: Values that float16 and bfloat16 hold exactly, so that every type carries the same numbers.
COARSE = np.round(PROBLEM.X * 4) / 4
INTEGERS = np.round(PROBLEM.X * 4)


def fitted(**options):
    return ACILClassifier(
        **({"scores": "ridge"} | ({"expansion_size": 20, "gamma": 1.0} | options))
    ).fit(PROBLEM.X, PROBLEM.y)


def big_endian(X):
    return X.astype(X.dtype.newbyteorder(">"))


def non_contiguous(X):
    wide = np.zeros((2 * X.shape[0], 3 * X.shape[1]))
    wide[::2, ::3] = X
    return wide[::2, ::3]


def read_only(X):
    X = X.copy()
    X.flags.writeable = False
    return X


KINDS_OF_ARRAY = {
    "float64": lambda X: X.copy(),
    "float32": lambda X: X.astype(np.float32),
    "float16": lambda X: X.astype(np.float16),
    "longdouble": lambda X: X.astype(np.longdouble),
    "big-endian float64": big_endian,
    "big-endian float32": lambda X: big_endian(X.astype(np.float32)),
    "Fortran order": np.asfortranarray,
    "non-contiguous": non_contiguous,
    "reversed": lambda X: X[::-1].copy()[::-1],
    "read-only": read_only,
    "list": lambda X: X.tolist(),
    "tuple of arrays": tuple,
    "object array of numbers": lambda X: X.astype(object),
    "DataFrame": pd.DataFrame,
    "DataFrame of float32": lambda X: pd.DataFrame(X.astype(np.float32)),
    "nullable DataFrame": lambda X: pd.DataFrame(X).astype("Float64"),
    "tensor float64": torch.from_numpy,
    "tensor float32": lambda X: torch.from_numpy(X).float(),
    "tensor float16": lambda X: torch.from_numpy(X).half(),
    "tensor bfloat16": lambda X: torch.from_numpy(X).bfloat16(),
    "tensor requiring grad": lambda X: torch.from_numpy(X).requires_grad_(),
    "tensor of a graph": lambda X: torch.from_numpy(X).requires_grad_() * 1.0,
    "non-contiguous tensor": lambda X: torch.from_numpy(X.T.copy()).T,
    "DLPack": lambda X: DLPackOnly(torch.from_numpy(X)),
}
KINDS_OF_INTEGERS = {
    "int64": lambda X: X.astype(np.int64),
    "int8": lambda X: X.astype(np.int8),
    "bool": lambda X: X > 0,
    "tensor int64": lambda X: torch.from_numpy(X).long(),
    "tensor int8": lambda X: torch.from_numpy(X).to(torch.int8),
    "tensor bool": lambda X: torch.from_numpy(X) > 0,
}


class DLPackOnly:
    """An array of a library that we know nothing of."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.shape = tuple(tensor.shape)

    def __dlpack__(self, **kwargs):
        return self.tensor.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("solver", ["gram", "recursive"])
@pytest.mark.parametrize("kind", KINDS_OF_ARRAY)
def test_every_kind_of_array_gives_the_same_model(kind, solver):
    convert = KINDS_OF_ARRAY[kind]
    options = {"expansion_size": 20, "gamma": 1.0, "solver": solver}
    expected = ACILClassifier(**({"scores": "ridge"} | options)).fit(COARSE, PROBLEM.y)
    given = convert(COARSE)
    model = ACILClassifier(**({"scores": "ridge"} | options)).fit(given, PROBLEM.y)
    model_scores = model.decision_function(convert(COARSE[:10]))
    assert np.array_equal(model.coef_, expected.coef_)
    # The number of rows of a product may change its last digit, hence not bit-equal.
    assert relative(np.asarray(model_scores), expected.decision_function(COARSE[:10])) <= 1e-14
    if isinstance(given, np.ndarray):
        assert np.array_equal(given.astype(np.float64), COARSE), "the caller's array was changed"
    elif isinstance(given, torch.Tensor):
        assert np.array_equal(given.detach().double().numpy(), COARSE)


MODES = {
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "another default device": lambda: torch.device("meta"),
}


def learnt_within(mode, path, options):
    """Return probabilities, scores and novelty of a model that began in a mode of torch."""
    X, y = torch.from_numpy(PROBLEM.X), PROBLEM.y
    with mode():
        clf = ACILClassifier(
            expansion_size=64, device="cpu", **({"scores": "ridge"} | options)
        ).partial_fit(X[:40], y[:40])
        clf.predict(X)
        save(clf.partial_fit(X[40:42], y[40:42]), path)
        loaded = load(path)
        found = [loaded.predict_proba(X), clf.partial_fit(X[42:44], y[42:44]).decision_function(X)]
    for model in (clf, loaded):
        model.partial_fit(X[44:45], y[44:45]).partial_fit(X[45:], y[45:]).forget(X[:2], y[:2])
        found += [model.decision_function(X), model.novelty(X)]
    return [part.numpy() for part in found]


@pytest.mark.parametrize(
    "options", [{"solver": "recursive", "gamma": 1.0}, {"dtype": "mixed", "scores": "discriminant"}]
)
@pytest.mark.parametrize("mode", MODES)
def test_modes_of_torch_around_a_call_change_nothing(mode, options, tmp_path):
    found = learnt_within(MODES[mode], tmp_path / "model.acil", options)
    expected = learnt_within(nullcontext, tmp_path / "model.acil", options)
    assert all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("kind", KINDS_OF_INTEGERS)
def test_integers_and_booleans_are_numbers(kind):
    given = KINDS_OF_INTEGERS[kind](INTEGERS)
    expected = ACILClassifier(scores="ridge", expansion_size=20).fit(
        np.asarray(given, dtype=np.float64), PROBLEM.y
    )
    assert np.array_equal(
        ACILClassifier(scores="ridge", expansion_size=20).fit(given, PROBLEM.y).coef_, expected.coef_
    )


@pytest.mark.parametrize("dtype", ["float64", "float32", "mixed"])
def test_memory_mapped_arrays_are_learnt(tmp_path, dtype):
    path = tmp_path / "X.npy"
    np.save(path, PROBLEM.X.astype(np.float32))
    mapped = np.load(path, mmap_mode="r")
    model = ACILClassifier(scores="ridge", expansion_size=20, dtype=dtype).fit(mapped, PROBLEM.y)
    expected = ACILClassifier(scores="ridge", expansion_size=20, dtype=dtype).fit(
        np.array(mapped), PROBLEM.y
    )
    assert np.array_equal(model.coef_, expected.coef_)
    assert np.array_equal(model.predict(mapped), expected.predict(np.array(mapped)))


def test_without_expansion_the_callers_data_is_not_touched():
    X = torch.from_numpy(PROBLEM.X.copy())
    model = ACILClassifier(scores="ridge", expansion_size=None, gamma=1.0)
    model.partial_fit(X[:40], PROBLEM.y[:40], sample_weight=np.full(40, 2.0))
    model.predict(X)
    model.partial_fit(X[40:], PROBLEM.y[40:]).forget(X[40:50], PROBLEM.y[40:50])
    model.novelty(X)
    assert np.array_equal(X.numpy(), PROBLEM.X)


def test_feature_names_are_kept_and_compared():
    frame = pd.DataFrame(PROBLEM.X, columns=list("abcde"))
    model = ACILClassifier(scores="ridge", expansion_size=20).fit(frame, PROBLEM.y)
    assert model.feature_names_in_.tolist() == list("abcde")
    with Unchanged(model, frame), pytest.raises(InputError, match="feature names"):
        model.partial_fit(frame[list("edcba")], PROBLEM.y)
    with pytest.warns(UserWarning, match="feature names"):
        model.predict(PROBLEM.X)


def test_blocks_do_not_change_the_result(monkeypatch):
    expected = fitted()
    monkeypatch.setattr(type(learnt_of(expected).model), "block_rows", property(lambda _: 16))
    small = fitted()
    assert relative(small.coef_, expected.coef_) <= 1e-12
    assert np.array_equal(small.predict(PROBLEM.X), expected.predict(PROBLEM.X))
    assert small.novelty(PROBLEM.X).shape == (80,)


def with_value(value, row=70):
    X = PROBLEM.X.copy()
    X[row, 3] = value
    return X


GOOD_Y = PROBLEM.y
BAD_SAMPLES = {
    "NaN": (with_value(np.nan), GOOD_Y, "NaN"),
    "infinity": (with_value(np.inf), GOOD_Y, "infinity"),
    "minus infinity": (with_value(-np.inf), GOOD_Y, "infinity"),
    "NaN in float32": (with_value(np.nan).astype(np.float32), GOOD_Y, "NaN"),
    "NaN in a tensor": (torch.from_numpy(with_value(np.nan)), GOOD_Y, "NaN"),
    "infinity in a bfloat16 tensor": (
        torch.from_numpy(with_value(np.inf)).bfloat16(),
        GOOD_Y,
        "infinity",
    ),
    "squares that overflow": (PROBLEM.X * 1e200, GOOD_Y, "too large"),
    "too wide": (np.ones((80, 6)), GOOD_Y, "6 features"),
    "too narrow": (PROBLEM.X[:, :4], GOOD_Y, "4 features"),
    "too wide a tensor": (torch.ones(80, 6), GOOD_Y, "6 features"),
    "too few labels": (PROBLEM.X, GOOD_Y[:-1], "80 rows.*79 labels"),
    "too many labels": (PROBLEM.X[:-1], GOOD_Y, "79 rows.*80 labels"),
    "zero rows": (PROBLEM.X[:0], GOOD_Y[:0], "0 sample"),
    "zero rows of a tensor": (torch.zeros(0, 5), GOOD_Y[:0], "0 sample"),
    "zero features": (PROBLEM.X[:, :0], GOOD_Y, "0 feature"),
    "one dimension": (PROBLEM.X[0], GOOD_Y, "2D"),
    "three dimensions": (PROBLEM.X[None], GOOD_Y, "dim"),
    "three dimensions of a tensor": (torch.ones(1, 80, 5), GOOD_Y, "3D"),
    "object array of text": (PROBLEM.X.astype(str).astype(object), ["x"] * 79, "labels"),
    "object array of anything": (np.full((80, 5), object(), dtype=object), GOOD_Y, "number"),
    "text": (np.full((80, 5), "a"), GOOD_Y, "numeric"),
    "complex": (PROBLEM.X * 1j, GOOD_Y, "Complex"),
    "complex tensor": (torch.ones(80, 5, dtype=torch.complex64), GOOD_Y, "Complex"),
    "sparse matrix": (scipy.sparse.csr_matrix(PROBLEM.X), GOOD_Y, "[Ss]parse"),
    "sparse array": (scipy.sparse.coo_array(PROBLEM.X), GOOD_Y, "[Ss]parse"),
    "sparse tensor": (torch.from_numpy(PROBLEM.X).to_sparse(), GOOD_Y, "[Ss]parse"),
    "None": (None, GOOD_Y, "None"),
    "a string": ("features.npy", GOOD_Y, "2D"),
    "no labels": (PROBLEM.X, None, "None"),
    "labels of another type": (PROBLEM.X, GOOD_Y.astype(str), "type str.*type int"),
    "float labels after int": (PROBLEM.X, GOOD_Y.astype(float), "type float.*type int"),
    "bool labels after int": (PROBLEM.X, GOOD_Y > 0, "type bool.*type int"),
    "NaN label": (PROBLEM.X, np.where(GOOD_Y == 0, np.nan, GOOD_Y), "NaN"),
    "infinite label": (PROBLEM.X, np.where(GOOD_Y == 0, np.inf, GOOD_Y), "infinity"),
    "continuous labels": (PROBLEM.X, np.linspace(0, 1, 80), "continuous"),
    "missing text label": (PROBLEM.X, np.array(["a", None] * 40, dtype=object), "NoneType"),
    "numbers and strings mixed": (PROBLEM.X, [1, "a"] * 40, "int"),
    "mixed labels in an object array": (PROBLEM.X, np.array([1, "a"] * 40, dtype=object), "int, str"),
    "dates": (PROBLEM.X, np.full(80, "2020-01-01", dtype="M8[D]"), "datetime64"),
    "bytes": (PROBLEM.X, np.full(80, b"a"), "dtype"),
    "complex labels": (PROBLEM.X, np.full(80, 1j), "[Cc]omplex"),
    "one-hot labels": (PROBLEM.X, np.eye(3)[GOOD_Y], "1d array"),
    "labels beyond int64": (PROBLEM.X, np.full(80, 2**63, dtype=np.uint64), "int64"),
    "labels beyond all integers of NumPy": (PROBLEM.X, [2**70] * 80, "int64"),
}


@pytest.mark.parametrize("solver", ["gram", "recursive"])
@pytest.mark.parametrize("case", BAD_SAMPLES)
def test_bad_samples_are_refused_and_change_nothing(case, solver):
    X, y, words = BAD_SAMPLES[case]
    model = fitted(solver=solver)
    with Unchanged(model, PROBLEM.held_out), pytest.raises(InputError, match=words) as caught:
        model.partial_fit(X, y)
    assert isinstance(caught.value, ACILError)
    assert isinstance(caught.value, ValueError)
    with Unchanged(model, PROBLEM.held_out), pytest.raises(InputError):
        model.forget(X, y)
    model.partial_fit(PROBLEM.X, PROBLEM.y)
    assert model.n_samples_ == 160


#: Bad only because of what was learnt before.
BAD_LATER = ("too wide", "too wide a tensor", "too narrow", "labels of another type")
BAD_LATER += ("float labels after int", "bool labels after int")


@pytest.mark.parametrize("case", [case for case in BAD_SAMPLES if case not in BAD_LATER])
def test_bad_first_samples_leave_a_model_that_can_learn(case):
    X, y, words = BAD_SAMPLES[case]
    model = ACILClassifier(scores="ridge", expansion_size=20)
    with pytest.raises(InputError, match=words):
        model.fit(X, y)
    assert not hasattr(model, "n_features_in_")
    assert not hasattr(model, "classes_")
    assert model.fit(PROBLEM.X, PROBLEM.y).n_features_in_ == 5


BAD_QUERIES = [case for case, (X, y, _) in BAD_SAMPLES.items() if X is not PROBLEM.X and y is GOOD_Y]
BAD_QUERIES.remove("too many labels")


@pytest.mark.parametrize("case", BAD_QUERIES)
@pytest.mark.parametrize("method", ["predict", "decision_function", "predict_proba", "novelty"])
def test_bad_queries_are_refused_and_change_nothing(method, case):
    X, _, words = BAD_SAMPLES[case]
    model = fitted()
    with Unchanged(model, PROBLEM.held_out), pytest.raises(InputError, match=words):
        getattr(model, method)(X)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.full(80, -1.0), "[Nn]egative"),
        (np.where(np.arange(80) == 70, -1e-9, 1.0), "[Nn]egative"),
        (np.full(80, np.nan), "NaN"),
        (np.full(80, np.inf), "infinity"),
        (np.ones(79), "sample_weight"),
        (np.ones((80, 2)), "1D"),
        (["heavy"] * 80, "heavy"),
        (np.zeros(80), "non-zero"),
        (torch.full((80,), -1.0), "[Nn]egative"),
    ],
    ids=["negative", "one negative", "NaN", "inf", "short", "2-D", "text", "zero", "tensor"],
)
def test_bad_weights_are_refused_and_change_nothing(weights, words):
    model = fitted()
    with Unchanged(model, PROBLEM.held_out), pytest.raises(InputError, match=words):
        model.partial_fit(PROBLEM.X, PROBLEM.y, sample_weight=weights)


BAD_PARAMETERS = [
    *(("gamma", value) for value in (-0.1, np.nan, np.inf, "small", None, True)),
    *(("expansion_size", value) for value in (0, -3, 2.5, True)),
    *(("device", value) for value in ("toaster", None)),
    *(("random_state", value) for value in (-1, "lucky")),
    *((name, "no") for name in ("activation", "solver", "fit_intercept", "class_balance")),
    ("dtype", np.float64),
    ("clip_norm", 10**400),
    # More bytes than any machine has
    ("expansion_size", 10**16),
]


@pytest.mark.parametrize(("name", "value"), BAD_PARAMETERS)
def test_bad_parameters_are_stored_and_refused_by_fit(name, value):
    model = ACILClassifier(**({"scores": "ridge"} | {name: value}))
    assert getattr(model, name) is value
    words = "lucky" if value == "lucky" else name
    with pytest.raises(InputError, match=words):
        model.fit(PROBLEM.X, PROBLEM.y)
    assert not hasattr(model, "n_features_in_")


@pytest.mark.parametrize(
    "options", [{"gamma": "auto"}, {"fit_intercept": True}, {"dtype": "mixed"}], ids=str
)
def test_the_recursion_refuses_what_needs_the_sums(options):
    with pytest.raises(UnsupportedError, match='solver="gram"'):
        ACILClassifier(solver="recursive", **({"scores": "ridge"} | options)).fit(PROBLEM.X, PROBLEM.y)


def test_a_fitted_recursion_refuses_what_needs_the_sums():
    model = fitted(solver="recursive")
    for use in (
        lambda: model.merge(fitted(solver="recursive")),
        model.select_gamma,
        lambda: model.gamma_relative_,
    ):
        with Unchanged(model, PROBLEM.held_out), pytest.raises(UnsupportedError, match="sums"):
            use()


@pytest.mark.parametrize("dtype", ["float64", "float32", "mixed"])
def test_gamma_zero_on_a_singular_matrix_is_a_clear_error(dtype):
    model = ACILClassifier(scores="ridge", expansion_size=200, gamma=0.0, dtype=dtype).fit(
        PROBLEM.X, PROBLEM.y
    )
    for _ in range(2):
        with pytest.raises(SingularMatrixError, match="γ = 0") as caught:
            model.predict(PROBLEM.X)
        assert isinstance(caught.value, ValueError)
    # The sums are sound: a γ makes them usable.
    assert model.select_gamma([50.0]) == 50.0
    assert model.score(PROBLEM.X, PROBLEM.y) > 0.5


def test_a_singular_first_phase_of_the_recursion_leaves_an_earlier_model_as_it_was():
    model = fitted(solver="recursive")
    model.set_params(gamma=0.0, expansion_size=None)
    with Unchanged(model, PROBLEM.held_out), pytest.raises(SingularMatrixError, match="γ = 0"):
        model.fit(np.ones((10, 7)), np.arange(10) % 2)


def test_errors_say_what_is_wrong_what_we_got_and_what_to_do():
    model = fitted()
    model.backbone_ = {"name": "resnet18"}
    with pytest.raises(InputError, match=r"6 features.*resnet18"):
        model.predict(np.ones((1, 6)))
    with pytest.raises(InputTypeError, match="to_dense"):
        model.predict(torch.eye(5).to_sparse())


def test_one_bad_value_far_down_is_found_before_anything_is_learnt(monkeypatch):
    import acil.core.inputs

    monkeypatch.setattr(acil.core.inputs, "_CHECK_BYTES", 8 * 5 * 4)  # blocks of four rows
    model = fitted()
    with Unchanged(model, PROBLEM.held_out), pytest.raises(InputError, match="NaN"):
        model.partial_fit(with_value(np.nan, row=79), PROBLEM.y)


def test_values_that_are_too_large_only_together_are_refused():
    X = np.full((80, 5), 3e17)  # each square fits into float32 easily, the sum of all does not
    with pytest.raises(InputError, match=r'too large.*dtype="float64"'):
        ACILClassifier(scores="ridge", expansion_size=20, dtype="float32").fit(X, PROBLEM.y)
    assert ACILClassifier(scores="ridge", expansion_size=20).fit(X, PROBLEM.y).n_samples_ == 80


@pytest.mark.parametrize("scores", ["ridge", "discriminant"])
@pytest.mark.parametrize("size", [None, 20])
@pytest.mark.parametrize(
    ("dtype", "tiny", "small"), [("float64", 1e-150, 1e-140), ("float32", 1e-18, 1e-14)]
)
def test_first_values_too_small_to_square_are_refused(scores, size, dtype, tiny, small):
    # By default discriminants scale such features; a bias would hide them.
    options = {"expansion_size": size, "scores": scores, "standardize": False, "expansion_bias": 0}
    model = ACILClassifier(dtype=dtype, **options)
    for scale in (tiny, tiny * 1e-10, tiny * 1e-150):
        with pytest.raises(InputError, match="too small"):
            model.fit(PROBLEM.X * scale, PROBLEM.y)
    expected = ACILClassifier(**options).fit(PROBLEM.X, PROBLEM.y)
    found = model.fit(PROBLEM.X * small, PROBLEM.y).predict_proba(PROBLEM.held_out * small)
    assert np.abs(found - expected.predict_proba(PROBLEM.held_out)).max() < 1e-2
    # Beside others that are large enough they are zeros.
    assert model.partial_fit(PROBLEM.X[:1] * tiny * 1e-150, PROBLEM.y[:1]).n_samples_ == 81


@pytest.mark.parametrize("scale", [1e-140, 1e-10, 1e-3, 1e6])
def test_the_unit_of_features_hardly_matters_by_default(scale):
    one, other = (ACILClassifier(expansion_size=60).fit(PROBLEM.X * k, PROBLEM.y) for k in (1, scale))
    truth = one.predict(PROBLEM.held_out)
    assert np.mean(other.predict(PROBLEM.held_out * scale) == truth) > 0.9
    assert np.mean(other.relative_novelty(PROBLEM.X * scale) > 1) < 0.2


def test_units_of_standardized_features_may_be_small_in_float32():
    options = {"expansion_size": 20, "standardize": True}
    model = ACILClassifier(dtype="float32", **options).fit(PROBLEM.X * 1e-30, PROBLEM.y)
    expected = ACILClassifier(**options).fit(PROBLEM.X, PROBLEM.y).predict(PROBLEM.held_out)
    assert (model.predict(PROBLEM.held_out * 1e-30) == expected).all()
    assert ACILClassifier().fit(np.zeros((3, 2)), [0, 1, 1]).n_samples_ == 3


def test_rows_for_another_device_travel_together_and_arrive_in_blocks():
    # No values are on the device "meta", but copies to it are made as to any other.
    rows = Rows(torch.ones(2_500_000, 4, dtype=torch.float32))
    blocks = list(rows.blocks(1_000_000, torch.float64, torch.device("meta")))
    assert [len(block) for block in blocks] == [1_000_000, 1_000_000, 500_000]
    assert blocks[0]._base is blocks[1]._base
    assert blocks[0]._base is not blocks[2]._base


def test_rows_on_their_own_device_are_read_block_by_block():
    rows = Rows(torch.arange(10.0).unsqueeze(1))
    blocks = list(rows.blocks(4, torch.float64, torch.device("cpu")))
    assert [block.flatten().tolist() for block in blocks] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
