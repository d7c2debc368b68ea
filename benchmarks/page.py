"""Tables of figures as Markdown, and pages of which only the marked parts are generated."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, tuple[str, str]]) -> str:
    """Return rows as a Markdown table.

    Parameters
    ----------
    rows : sequence of mapping
    columns : mapping of str to (str, str)
        Key in the rows → heading, and format ("" for text; "ms" for seconds shown as milliseconds).

    Examples
    --------
    >>> print(table([{"a": "x", "b": 0.5}], {"a": ("name", ""), "b": ("time, ms", "ms")}))
    | name | time, ms |
    | --- | ---: |
    | x | 500.00 |
    """
    lines = ["| " + " | ".join(heading for heading, _ in columns.values()) + " |"]
    lines.append("| " + " | ".join("---:" if form else "---" for _, form in columns.values()) + " |")
    for row in rows:
        cells = [_cell(row.get(key), form) for key, (_, form) in columns.items()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(value: Any, form: str) -> str:
    if value is None:
        return "–"
    if form == "ms":
        return f"{1e3 * value:,.2f}"
    if form == "auto":
        return f"{value:,.4g}" if isinstance(value, float) else str(value)
    return format(value, form) if form else str(value)


def fill(path: Path, parts: Mapping[str, str]) -> list[str]:
    """Replace the marked parts of a page, and return the names of those that were filled.

    A part stands between ``<!-- generated: NAME -->`` and ``<!-- end: NAME -->``. Parts that the page
    does not have are left out, parts of the page that are not given stay as they are.

    Parameters
    ----------
    path : Path
    parts : mapping of str to str
    """
    text, filled = path.read_text(encoding="utf-8"), []
    for name, content in parts.items():
        pattern = re.compile(
            rf"(<!-- generated: {re.escape(name)} -->\n).*?(<!-- end: {re.escape(name)} -->)", re.DOTALL
        )
        text, count = pattern.subn(lambda match, c=content: f"{match[1]}{c}\n{match[2]}", text)
        filled += [name] * bool(count)
    path.write_text(text, encoding="utf-8")
    return filled
