"""Models inside something else."""

import json

import numpy as np

from acil import ACILClassifier
from acil.modelfile import pack, unpack


def data(n=40, n_features=4):
    rng = np.random.default_rng(0)
    columns = np.concatenate([np.arange(3), rng.integers(0, 3, n - 3)])
    return rng.normal(size=(n, n_features)) + columns[:, None], columns


def test_packing_measures_nothing_and_the_model_made_of_it_measures_for_itself(monkeypatch):
    X, y = data()
    model = ACILClassifier(expansion_size=8).fit(X, y)
    expected = model.copy().predict_proba(X)

    def refuse(self):
        raise AssertionError("packing must not factorize")

    with monkeypatch.context() as context:
        context.setattr("acil.analytic.Ridge.degrees_of_freedom", refuse)
        context.setattr("acil.analytic.Ridge.condition", refuse)
        content = pack(model)
    header = json.loads(content["header"])
    assert header["temperature"] is None
    assert header["condition"] is None
    assert np.array_equal(unpack(content).predict_proba(X), expected)
