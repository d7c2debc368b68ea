"""The table of parameters: what the classifier, its docstring, files and commands have of it."""

import inspect
import json
import math
import re
from fractions import Fraction

import numpy as np
import pytest
import torch

from acil import ACILClassifier, save
from acil.core.expansion import ACTIVATIONS
from acil.core.files import describe
from acil.core.files.header import parse_header
from acil.core.parameters import MAX_GAMMA, PARAMETERS, check_parameters, plain
from acil.core.sums import PRECISIONS
from acil.errors import InputError, UnsupportedError
from support.modelfiles import header_of

SCALING = [[0.0, 1.0], [1.0, 2.0]]
#: Of each parameter: values that it takes, and values that it does not.
VALUES = {
    "expansion_size": ([None, 1, np.int32(7)], [0, -1, 2.0, True, "auto", 2**63]),
    "gamma": (["auto", 0, 2.5, np.float32(2), Fraction(1, 3), 1e305], [-1, math.nan, 10**400, True]),
    "activation": (["relu", np.str_("tanh")], ["sigmoid", None, 1]),
    "solver": (["gram"], ["svd", None]),
    "dtype": (["float64", "mixed"], ["float16", torch.float64]),
    "random_state": ([0, None, np.random.RandomState(0)], []),
    "device": (["cpu", torch.device("cpu")], []),
    "fit_intercept": ([True, np.bool_(False)], [1, None, "yes"]),
    "class_balance": ([0, 1, 0.5, True, np.bool_(True)], [-0.1, 1.1, math.nan, None]),
    "clip_norm": ([None, 1, 1e30], [0, 1e31, math.inf, True]),
    "min_class_samples": ([1, 20], [0, 1.0, None, True]),
    "scores": (["auto", "ridge"], ["best", None]),
    "standardize": (
        [True, "auto", np.bool_(False), SCALING, np.array(SCALING), torch.tensor(SCALING)],
        [[[0.0], [0.0]], [[0.0, math.nan], [1.0, 1.0]], [[0.0], [1.0], [1.0]], "yes", 1, None],
    ),
    "expansion_bias": (["auto", 0, 0.5], [-1, 1e7, True, "none"]),
}


def test_the_classifier_has_the_parameters_of_the_table():
    arguments = inspect.signature(ACILClassifier).parameters
    assert {name: a.default for name, a in arguments.items()} == {
        name: parameter.default for name, parameter in PARAMETERS.items()
    }
    described = re.findall(r"^    (\w+) : .*", ACILClassifier.__doc__.split("Attributes")[0], re.M)
    assert described == list(PARAMETERS)


def test_every_default_is_a_value_and_every_parameter_is_tried_here():
    check_parameters(ACILClassifier())
    assert VALUES.keys() == PARAMETERS.keys()


@pytest.mark.parametrize("name", PARAMETERS)
def test_values_of_a_parameter(name):
    good, bad = VALUES[name]
    for value in good:
        others = {"gamma": 1.0} if name == "solver" and value == "recursive" else {}
        settings = check_parameters(ACILClassifier(**(others | {name: value})))
        if PARAMETERS[name].stored is None:
            assert json.loads(json.dumps(settings[name])) == settings[name]
    for value in bad:
        with pytest.raises(InputError, match=f"'{name}' parameter"):
            check_parameters(ACILClassifier(**{name: value}))


@pytest.mark.parametrize("name", PARAMETERS)
def test_files_have_the_same_rule(name, tmp_path):
    save(ACILClassifier(expansion_size=4).fit([[0.0], [1.0]], [0, 1]), tmp_path / "m.acil")
    header = header_of(tmp_path / "m.acil")
    for value in VALUES[name][1]:
        if isinstance(value, int | float | str | list | None) and value == value and value != math.inf:
            changed = {**header, "parameters": {**header["parameters"], name: value}}
            with pytest.raises(ValueError, match=r"parameters|JSON"):
                parse_header(json.dumps(changed))


def test_a_file_has_plain_values_of_what_was_given(tmp_path):
    given = {"gamma": Fraction(1, 2), "clip_norm": np.float32(2), "standardize": np.array(SCALING)}
    model = ACILClassifier(expansion_size=np.int64(4), random_state=None, **given)
    save(model.fit(np.eye(2), ["a", "b"]), tmp_path / "m.acil")
    stored = describe(tmp_path / "m.acil")["parameters"]
    assert stored["gamma"] == 0.5
    assert stored["clip_norm"] == 2.0
    assert stored["standardize"] == SCALING
    assert stored["expansion_size"] == 4
    assert type(stored["random_state"]) is int


def test_numbers_that_are_no_numbers_of_json_become_some():
    assert plain(10**30) == 1e30
    assert type(plain(np.float64(1.5))) is float
    assert plain((np.int8(1), [torch.tensor(2)])) == [1, [2]]


def test_gamma_is_bounded_by_the_precision():
    assert MAX_GAMMA.keys() == PRECISIONS.keys()
    for name, precision in PRECISIONS.items():
        assert MAX_GAMMA[name] < torch.finfo(precision.products).max / 1e3
    with pytest.raises(InputError, match=r"1e\+35"):
        check_parameters(ACILClassifier(dtype="float32", gamma=1e36))


def test_activations_of_the_table_are_those_there_are():
    for name in ACTIVATIONS:
        check_parameters(ACILClassifier(activation=name))
    for name in ACTIVATIONS:
        assert repr(name) in PARAMETERS["activation"].values.words


@pytest.mark.parametrize(
    "settings",
    [
        {"solver": "recursive"},
        {"solver": "recursive", "gamma": 1.0, "fit_intercept": True},
        {"solver": "recursive", "gamma": 1.0, "class_balance": 0.5},
        {"solver": "recursive", "gamma": 1.0, "dtype": "mixed"},
        {"solver": "recursive", "gamma": 1.0, "scores": "discriminant"},
    ],
)
def test_what_needs_the_sums_does_not_go_with_the_recursion(settings):
    with pytest.raises(UnsupportedError, match="sums"):
        check_parameters(ACILClassifier(**settings))


def test_commands_have_the_options_of_the_table(tmp_path):
    from typer.testing import CliRunner

    from acil.cli import app

    shown = CliRunner().invoke(app, ["learn", "--help"], env={"COLUMNS": "300"}).output
    for parameter in PARAMETERS.values():
        if parameter.option is not None:
            assert f"--{parameter.option}" in shown
            assert parameter.help in " ".join(shown.split())
    wrong = ["learn", str(tmp_path), "--model", str(tmp_path / "m.acil"), "--at-least", "0"]
    refused = CliRunner().invoke(app, wrong, env={"COLUMNS": "300"})
    assert refused.exit_code == 2
    assert "'0' is not a positive int" in refused.output
