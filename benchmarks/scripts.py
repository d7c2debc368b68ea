"""Benchmarks that are programs of their own, which the suite runs when they are named."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.timing import run_python

#: They write their figures with ``--out``. Some need a GPU, or longer than the rest of the suite.
SCRIPTS = ("limit", "stream", "training", "convolution")
_FOLDER = Path(__file__).parent


def available() -> list[str]:
    """Return the names of those that are there."""
    return [name for name in SCRIPTS if (_FOLDER / f"{name}.py").exists()]


def run(name: str) -> list[dict[str, Any]]:
    """Run one and return what it has written, as rows of figure and value."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "out.json"
        run_python(str(_FOLDER / f"{name}.py"), "--out", str(target))
        return flattened(json.loads(target.read_text(encoding="utf-8")))


def flattened(value: Any, prefix: str = "") -> list[dict[str, Any]]:
    """Return the numbers and texts of nested JSON, each with the path that leads to it.

    Examples
    --------
    >>> flattened({"a": {"b": 1}, "c": [2]})
    [{'figure': 'a, b', 'value': 1}, {'figure': 'c, 0', 'value': 2}]
    """
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return [{"figure": prefix, "value": value}]
    names = ((f"{prefix}, {name}" if prefix else str(name), item) for name, item in value.items())
    return [row for name, item in names for row in flattened(item, name)]
