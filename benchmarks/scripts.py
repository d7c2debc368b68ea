"""Benchmarks that are programs of their own, run by the suite where they exist."""

from __future__ import annotations

import importlib
import json
import tempfile
from pathlib import Path
from typing import Any

#: Name → arguments of a quick run. Those on GPUs alone are run by hand.
SCRIPTS: dict[str, tuple[str, ...]] = {"limit": ("--quick",), "stream": ("--quick",)}


def available() -> list[str]:
    """Return the names of those that are there."""
    return [name for name in SCRIPTS if (Path(__file__).parent / f"{name}.py").exists()]


def run(name: str, quick: bool) -> list[dict[str, Any]]:
    """Run one with ``--out`` and return what it has written, as rows of name and value."""
    module = importlib.import_module(f"benchmarks.{name}")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "out.json"
        module.main([*(SCRIPTS[name] if quick else ()), "--out", str(target)])
        return list(flattened(json.loads(target.read_text(encoding="utf-8"))))


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
