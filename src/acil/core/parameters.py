"""The parameters of `ACILClassifier`, one entry each: what its checks, files and commands say of them.

A new parameter is an entry of `PARAMETERS`, an argument of ``ACILClassifier.__init__``, which
scikit-learn reads, and a line in its docstring. This module needs no torch, and NumPy only for arrays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from acil.errors import ACILError, InputError, UnsupportedError

#: Largest γ, by dtype: it is added to the diagonal of a matrix, in the precision of products.
MAX_GAMMA = {"float64": 1e305, "float32": 1e35, "mixed": 1e35}
#: Largest seed, and length of anything that is counted.
_MOST = 2**63 - 1
#: Activations whose expansion is made from the first samples: `acil.core.expansion`.
FITTED = ("fourier", "gaussian")
_DEVICES = re.compile("auto|(cpu|cuda|mps|xpu)(:[0-9]{1,3})?")


@dataclass(frozen=True)
class Values:
    """Which values are valid, and how to say so."""

    accepts: Callable[[Any], bool]
    words: str


def is_number(value: Any, kind: type) -> bool:
    """Say whether a value is a number of a kind; True and False are none."""
    return isinstance(value, kind) and not _is_truth(value)


def number(least: float, most: float) -> Values:
    """Return numbers of a range."""
    words = f"a number from {least:g} to {most:g}"
    return Values(lambda value: is_number(value, Real) and least <= _exact(value) <= most, words)


def _exact(value: Any) -> int | float:
    """Return a number of NumPy or of fractions as Python's; an int may be beyond all floats."""
    return int(value) if isinstance(value, Integral) else float(value)


def integer(least: int, words: str) -> Values:
    """Return whole numbers from ``least`` on."""
    return Values(lambda value: is_number(value, Integral) and least <= int(value) <= _MOST, words)


def one_of(*options: str) -> Values:
    """Return some words."""
    words = ", ".join(map(repr, options))
    return Values(
        lambda value: isinstance(value, str) and value in options,
        words if len(options) == 1 else f"one of {words}",
    )


def either(*parts: Values) -> Values:
    """Return the values of all of these."""
    *first, last = (part.words for part in parts)
    return Values(
        lambda value: any(part.accepts(value) for part in parts), f"{', '.join(first)} or {last}"
    )


def _is_truth(value: Any) -> bool:
    # Without importing NumPy, whose bool is none to Python
    kind = type(value)
    return kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"))


def _is_scaling(value: Any) -> bool:
    import numpy as np

    try:
        scaling = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    finite = scaling.ndim == 2 and len(scaling) == 2 and np.isfinite(scaling).all()
    return bool(finite and (scaling[1] > 0).all())


NONE = Values(lambda value: value is None, "None")
TRUTH = Values(_is_truth, "a bool")
AUTO = one_of("auto")
ANYTHING = Values(lambda value: True, "anything")


@dataclass(frozen=True)
class Parameter:
    """One parameter: its values, and who has to know of it."""

    name: str
    default: Any
    values: Values
    #: One line for the commands that take it.
    help: str
    #: What a file has, where that is not the value as it was given.
    stored: Values | None = None
    #: Whether the sums depend on it: a file also has the one in force when they were made.
    learnt: bool = False
    #: Whether processes that learn together must have the same.
    common: bool = True
    #: Option of commands that make a model, and what stands for its value in their help.
    option: str | None = None
    metavar: str | None = None


_TABLE = (
    Parameter(
        "expansion_size",
        2048,
        either(integer(1, "a positive int"), NONE),
        "Width of a random expansion; without it, none.",
        option="expansion-size",
        metavar="INTEGER",
    ),
    Parameter(
        "gamma",
        "auto",
        either(number(0, MAX_GAMMA["float64"]), AUTO),
        "Ridge strength γ, or auto, the default: chosen from the sums.",
        option="gamma",
        metavar="auto|NUMBER",
    ),
    Parameter(
        "activation",
        "relu",
        one_of("relu", "tanh", "gelu", "identity", *FITTED),
        "Function applied to the expanded features.",
        learnt=True,
    ),
    Parameter(
        "solver", "gram", one_of("gram", "recursive"), "How weights follow from samples.", learnt=True
    ),
    Parameter("dtype", "float64", one_of(*MAX_GAMMA), "Precision of sums and products.", learnt=True),
    Parameter(
        "random_state",
        0,
        ANYTHING,  # what scikit-learn makes a seed of
        "Seed of the expansion.",
        stored=integer(0, "an int from 0 to 2**63 - 1"),
        common=False,
    ),
    Parameter(
        "device",
        "auto",
        ANYTHING,  # what torch takes
        "Where to compute.",
        stored=Values(
            lambda value: isinstance(value, str) and _DEVICES.fullmatch(value) is not None,
            "'auto', 'cpu', 'cuda', 'mps' or 'xpu'",
        ),
        common=False,
    ),
    Parameter("fit_intercept", False, TRUTH, "Centre features and targets.", learnt=True),
    Parameter(
        "class_balance",
        0.0,
        either(number(0, 1), TRUTH),
        "How far classes of few samples are lifted, from 0 to 1.",
        learnt=True,
    ),
    Parameter(
        "clip_norm",
        None,
        either(number(1e-30, 1e30), NONE),
        "Largest length of a feature row, for `acil export --private`.",
        learnt=True,
        option="clip-norm",
        metavar="NUMBER",
    ),
    Parameter(
        "min_class_samples",
        1,
        integer(1, "a positive int"),
        "Refuse classes of fewer images, now and later.",
        option="at-least",
        metavar="INTEGER",
    ),
    Parameter("scores", "auto", one_of("auto", "ridge", "discriminant"), "How classes are scored."),
    Parameter(
        "standardize",
        "auto",
        either(
            TRUTH, AUTO, Values(_is_scaling, "means and positive deviations of shape (2, n_features)")
        ),
        "Whether features are shifted and scaled.",
    ),
    Parameter(
        "expansion_bias",
        "auto",
        either(number(0, 1e6), AUTO),
        "Standard deviation of the bias of the expansion.",
    ),
)
#: All parameters, by name.
PARAMETERS = {parameter.name: parameter for parameter in _TABLE}


def check_parameters(estimator: Any) -> dict[str, Any]:
    """Return all arguments of an estimator as plain Python values; raise for the first that is wrong."""
    settings = {}
    for name, parameter in PARAMETERS.items():
        settings[name] = value = getattr(estimator, name)
        # Most have their default, and a stream asks again with every sample.
        if type(value) is not type(parameter.default) or value != parameter.default:
            if not parameter.values.accepts(value):
                raise invalid(name, parameter.values.words, value)
            settings[name] = plain(value)
    for conflict in _conflicts(settings):
        raise conflict
    return settings


def _conflicts(settings: Mapping[str, Any]) -> list[ACILError]:
    """Return what is wrong with values, each of them valid, that do not go together."""
    conflicts: list[ACILError] = []
    gamma, most = settings["gamma"], MAX_GAMMA[settings["dtype"]]
    automatic, discriminant = gamma == "auto", settings["scores"] == "discriminant"
    balance, intercept = settings["class_balance"], settings["fit_intercept"]
    if not automatic and gamma > most:
        conflicts.append(invalid("gamma", either(number(0, most), AUTO).words, gamma))
    needs_sums = automatic or intercept or settings["dtype"] == "mixed" or discriminant or balance
    if settings["solver"] == "recursive" and needs_sums:
        conflicts.append(
            UnsupportedError(
                'gamma="auto", fit_intercept=True, class_balance, dtype="mixed" and '
                'scores="discriminant" need the sums, which solver="recursive" does not keep. Use '
                'solver="gram", or give gamma a number.'
            )
        )
    if discriminant and (intercept or balance):
        conflicts.append(
            InputError(
                'scores="discriminant" has intercepts and balances classes by itself. Leave out '
                "fit_intercept and class_balance."
            )
        )
    fitted = settings["activation"] in FITTED and settings["expansion_size"] is not None
    if fitted and settings["expansion_bias"] != "auto":
        conflicts.append(
            InputError(
                f"activation={settings['activation']!r} has biases of its own. Leave out expansion_bias."
            )
        )
    if fitted and settings["clip_norm"] is not None:
        conflicts.append(
            UnsupportedError(
                f"activation={settings['activation']!r} looks at samples, and with clip_norm nothing "
                'may but the sums. Use activation="relu", or leave out clip_norm.'
            )
        )
    return conflicts


def plain(value: Any) -> Any:
    """Return a value as JSON has it, if JSON can have it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Real):
        number = _exact(value)
        return number if abs(number) <= _MOST else float(number)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "__array__"):
        import numpy as np

        return np.asarray(value).tolist()
    return value


def scores_of(settings: Mapping[str, Any]) -> str:
    """Return which scores checked arguments ask for, where it is left to them."""
    if settings["scores"] != "auto":
        return str(settings["scores"])
    for_ridge = settings["solver"] == "recursive" or settings["fit_intercept"]
    return "ridge" if for_ridge or settings["class_balance"] else "discriminant"


def invalid(name: str, expected: str, value: Any) -> InputError:
    """Return the error that says what a parameter must be."""
    return InputError(
        f"The '{name}' parameter of ACILClassifier must be {expected}. Got {value!r} instead."
    )
