"""Suites: the variants of a method that a table or figure of the paper compares."""

from __future__ import annotations

from typing import Any

from acil.errors import InputError

#: Suite → settings of each variant. "main" and "compare" run the methods as they are.
_VARIANTS: dict[str, list[dict[str, Any]]] = {
    "main": [{}],
    "compare": [{}],
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


def variants(suite: str, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the settings of each variant; what the user set stays, except what the suite varies.

    Parameters
    ----------
    suite : str
    settings : dict
        Method settings of the user. ``widths`` replaces the list of the width and memory suites.
    """
    if suite not in _VARIANTS:
        raise InputError(f"There is no suite {suite!r}. Known: {', '.join(SUITES)}.")
    fixed = {name: value for name, value in settings.items() if name != "widths"}
    varied = _VARIANTS[suite]
    if suite in ("width", "memory") and "widths" in settings:
        varied = [{"expansion_size": int(width)} for width in settings["widths"]]
    return [{**fixed, **variant} for variant in varied]
