"""acil.light: the scores of a file, with NumPy alone."""

import subprocess
import sys

import numpy as np
import pandas
import pytest
from sklearn.datasets import load_iris

from acil import ACILClassifier, light, load, save
from acil.errors import InputError, ModelFileError
from test_golden import GOLDEN, SCORES

X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]
#: Of scores of the order 1: both sum a few hundred products in float64, in another order.
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def same(path, rows=X, temperature=True):
    """Compare what both readers make of a file, and probabilities if they have the same temperature."""
    small, whole = light.load(path), load(path)
    assert small.classes_.dtype == whole.classes_.dtype
    assert small.predict(rows).tolist() == whole.predict(rows).tolist()
    found, expected = small.decision_function(rows), whole.decision_function(rows)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, **CLOSE)
    if temperature:
        np.testing.assert_allclose(small.predict_proba(rows), whole.predict_proba(rows), **CLOSE)


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        *({"activation": name} for name in ("relu", "tanh", "gelu", "identity")),
        {"expansion_size": None, "standardize": True},
        {"clip_norm": 2.0},
        {"scores": "ridge", "fit_intercept": True},
        {"class_balance": 0.5},
        {"solver": "recursive", "gamma": 1.0, "expansion_bias": 0.5},
    ],
    ids=str,
)
def test_scores_are_those_of_the_classifier(tmp_path, options, inference):
    clf = ACILClassifier(**{"expansion_size": 40, "gamma": 1e-2} | options)
    save(
        clf.partial_fit(X, NAMES, classes=[*np.unique(NAMES), "zebra"]),
        tmp_path / "m.acil",
        inference=inference,
    )
    same(tmp_path / "m.acil")


def test_two_classes_have_one_score_and_whole_numbers_stay_whole(tmp_path):
    save(ACILClassifier(expansion_size=40).fit(X[:100], Y[:100]), tmp_path / "m.acil", inference=True)
    same(tmp_path / "m.acil")


@pytest.mark.parametrize("name", SCORES)
def test_files_of_format_5_are_read(name):
    # A full model chooses its temperature anew, among more of them by now; a file has what was chosen.
    same(GOLDEN / f"{name}-5.acil", temperature=name != "discriminant")


def test_of_images_the_features_are_given(tmp_path):
    model = light.load(GOLDEN / "images-6.acil")
    rows = np.random.default_rng(0).random((5, model.n_features_in_))
    same(GOLDEN / "images-6.acil", rows)
    assert model.backbone_ == load(GOLDEN / "images-6.acil").backbone_


@pytest.mark.parametrize(
    ("rows", "noun"),
    [
        (X[:, :3], "4 features"),
        (X[0], "4 features"),
        (X[:0], "at least one"),
        (X * np.nan, "NaN"),
        (X * 2e307, "overflow"),
    ],
)
def test_rows_that_are_no_features_are_refused(tmp_path, rows, noun):
    save(ACILClassifier(expansion_size=40).fit(X, Y), tmp_path / "m.acil", inference=True)
    with np.errstate(all="ignore"), pytest.raises(InputError, match=noun):
        light.load(tmp_path / "m.acil").predict(rows)


def test_names_of_features_are_compared(tmp_path):
    table = pandas.DataFrame(X, columns=[*"abcd"])
    save(ACILClassifier(expansion_size=40).fit(table, Y), tmp_path / "m.acil", inference=True)
    model = light.load(tmp_path / "m.acil")
    assert model.predict(table).tolist() == model.predict(X).tolist()
    with pytest.raises(InputError, match="other names"):
        model.predict(table[[*"abdc"]])


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "m.acil"
    save(ACILClassifier(expansion_size=40).fit(X, Y), path, inference=True)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="checksum"):
        light.load(path)


def test_numpy_is_all_that_is_imported(tmp_path):
    path = tmp_path / "m.acil"
    save(ACILClassifier(expansion_size=40).fit(X, NAMES), path, inference=True)
    code = """
import sys
for name in ("torch", "sklearn", "scipy", "safetensors", "typer", "PIL", "pandas"):
    sys.modules[name] = None  # importing it raises
from acil.light import load
print(*load(sys.argv[1]).predict([[5.1, 3.5, 1.4, 0.2], [5.9, 3.0, 5.1, 1.8]]))
"""
    run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["setosa", "virginica"], run.stderr
