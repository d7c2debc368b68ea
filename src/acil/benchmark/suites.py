"""Suites: the variants of a method that a table or figure of the paper compares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acil.errors import InputError

#: Suite → settings of each variant. "main", "compare" and "table1" run the methods as they are.
_VARIANTS: dict[str, list[dict[str, Any]]] = {
    "main": [{}],
    "compare": [{}],
    "table1": [{}],
    # The paper's ablation: no expansion; then γ from 1e-1 to 0
    "ablation": [
        {"expansion_size": None, "gamma": 0.1},
        {"gamma": 0.1},
        {"gamma": 0.01},
        {"gamma": 0.001},
        {"gamma": 0.0},
    ],
    # Ā against the expansion size, and accuracy against the bytes that each width costs
    "width": [{"expansion_size": width} for width in (512, 1024, 2048, 4096, 8192, 16384, 32768)],
    "memory": [{"expansion_size": width} for width in (256, 512, 1024, 2048, 4096, 8192)],
}

SUITES = tuple(_VARIANTS)
#: Suite → settings of a run that hold where the user names no others. The paper's main table for
#: CIFAR-100: its rows, in the class order that such tables use.
DEFAULTS: dict[str, dict[str, Any]] = {
    "table1": {
        "dataset": "cifar100",
        "recipe": "paper",
        "order": "seed1993",
        "phases": (5, 10, 25, 50),
        "seeds": (0,),
        "methods": (
            "lwf-exemplars",
            "icarl",
            "bic",
            "lucir",
            "lucir+mnemonics",
            "podnet",
            "podnet+aanets",
            "podnet+aanets+rmm",
            "acil",
        ),
    },
}
#: The rows of the paper's table that have a column for K = 50.
_TO_FIFTY = ("acil", "podnet")
#: Exemplars of each class that a method with a memory of samples keeps, in the suite "memory".
_BUDGETS = (5, 10, 20, 50)
#: The setting that says how many samples a method keeps.
MEMORY_RULE = "memory_rule"
#: Registered methods with an expansion, whose width and γ suites vary. A user's own may have one, too.
_EXPANDING = ("acil", "ds-al")


def variants(
    suite: str,
    settings: Mapping[str, Any],
    own: Mapping[str, Any] | None = None,
    method: str = "acil",
) -> list[dict[str, Any]]:
    """Return the settings of each variant; what the user set stays, except what the suite varies.

    Parameters
    ----------
    suite : str
    settings : Mapping
        Method settings of the user. ``widths`` replaces the list of the width and memory suites,
        ``budgets`` that of exemplars per class in the memory suite.
    own : Mapping, optional
        The method's own settings, defaults included. One that keeps samples (it has a ``memory_rule``)
        varies their number in the memory suite, any other its width.
    method : str
        Its name. One that is registered and has neither samples nor an expansion runs once.
    """
    if suite not in _VARIANTS:
        raise InputError(f"There is no suite {suite!r}. Known: {', '.join(SUITES)}.")
    fixed = {name: value for name, value in settings.items() if name not in ("widths", "budgets")}
    varied = _VARIANTS[suite]
    if suite == "memory" and MEMORY_RULE in (own or {}):
        budgets = _numbers("budgets", settings.get("budgets", _BUDGETS))
        varied = [{MEMORY_RULE: f"{budget} per class"} for budget in budgets]
    elif method not in _EXPANDING and ":" not in method:
        varied = [{}]
    elif suite in ("width", "memory") and "widths" in settings:
        varied = [{"expansion_size": width} for width in _numbers("widths", settings["widths"])]
    return [{**fixed, **variant} for variant in varied]


def has_column(suite: str, method: str, phases: int) -> bool:
    """Say whether a suite has a result of a method for K phases: the paper's table leaves out some.

    Examples
    --------
    >>> has_column("table1", "bic", 50), has_column("table1", "bic", 25), has_column("main", "bic", 50)
    (False, True, True)
    """
    return suite != "table1" or phases != 50 or method in _TO_FIFTY


def _numbers(name: str, values: Any) -> list[int]:
    if isinstance(values, str):
        # As on the command line: 5,10,50
        parts = [part.strip() for part in values.split(",")]
        values = [int(part) for part in parts] if all(part.isdecimal() for part in parts) else values
    found = values if isinstance(values, list | tuple) else [values]
    if not found or any(isinstance(v, bool) or not isinstance(v, int) or v < 1 for v in found):
        raise InputError(f"settings.{name} must be whole numbers of at least 1, got {values!r}.")
    return list(found)
