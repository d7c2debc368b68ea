"""Write a table as Markdown, CSV or LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from acil.bench.report.rows import Stat

Kind = Literal["text", "count", "percent", "difference", "bytes", "seconds", "scientific"]
Value = str | int | float | Stat | None
_MISSING = "–"
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    #: Name in CSV.
    key: str
    #: Heading for readers.
    title: str
    kind: Kind = "text"
    #: Heading in LaTeX, if the escaped title will not do.
    latex: str | None = None
    #: Hide it from readers if all values are the same: then the title says it.
    only_if_varied: bool = False
    only_in_csv: bool = False


@dataclass(frozen=True)
class Table:
    """A table with its caption and notes."""

    #: Used in file names and LaTeX labels.
    name: str
    title: str
    columns: Sequence[Column]
    #: One value for each column; None if there is none.
    rows: Sequence[Sequence[Value]]
    notes: Sequence[str] = ()
    #: What all rows have in common: additional columns in CSV.
    about: dict[str, str | int | None] = field(default_factory=dict)

    def readable(self) -> tuple[list[Column], list[list[str]]]:
        """Return the columns that readers see, and the text of each row in them."""
        columns, texts = [], []
        for position, column in enumerate(self.columns):
            values = [row[position] for row in self.rows]
            same = column.only_if_varied and len(set(values)) <= 1
            if not (same or column.only_in_csv) and any(value is not None for value in values):
                columns.append(column)
                texts.append([_written(value, column.kind) for value in values])
        return columns, [list(row) for row in zip(*texts, strict=True)]


def to_markdown(table: Table) -> str:
    """Return a table as GitHub's Markdown, its columns padded so that it also reads well as text."""
    columns, rows = table.readable()
    texts = [[column.title for column in columns], *rows]
    cells = [[escape_markdown(text) for text in line] for line in texts]
    widths = [max(3, *(len(line[i]) for line in cells)) for i in range(len(columns))]
    rule = [
        "-" * w if c.kind == "text" else "-" * (w - 1) + ":"
        for w, c in zip(widths, columns, strict=True)
    ]
    lines = [f"**{escape_markdown(table.title)}**", ""]
    for line in (cells[0], rule, *cells[1:]):
        padded = [
            cell.ljust(width) if column.kind == "text" else cell.rjust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        lines.append("| " + " | ".join(padded) + " |")
    if table.notes:
        lines += ["", *(f"- {escape_markdown(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def to_csv(tables: Sequence[Table]) -> str:
    """Return tables with the same columns as one CSV: all columns, numbers unrounded.

    A mean over seeds takes two columns: the mean, and ``_std``, empty for a single seed. Words in place
    of a percentage are left out: the column has numbers only.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    columns = list(dict.fromkeys(column for table in tables for column in table.columns))
    values = [dict(zip(table.columns, row, strict=True)) for table in tables for row in table.rows]
    spread = {column for row in values for column in row if isinstance(row[column], Stat)}
    header = [*tables[0].about]
    for column in columns:
        header += [column.key, f"{column.key}_std"] if column in spread else [column.key]
    writer.writerow(header)
    about = [table.about for table in tables for _ in table.rows]
    for facts, row in zip(about, values, strict=True):
        line: list[str | int | float | None] = [*facts.values()]
        for column in columns:
            value = row.get(column)
            word = column.kind == "percent" and isinstance(value, str)
            line.append(None if word else value.mean if isinstance(value, Stat) else value)
            if column in spread:
                line.append(value.std if isinstance(value, Stat) else None)
        writer.writerow(line)
    return stream.getvalue()


def to_latex(table: Table) -> str:
    r"""Return a table for LaTeX, with the rules of the package booktabs."""
    columns, rows = table.readable()
    # Where K changes, a rule divides the rows.
    phases = [i for i, column in enumerate(table.columns) if column.key == "phases"]
    groups = [[row[i] for i in phases] for row in table.rows]
    align = "".join("l" if column.kind == "text" else "r" for column in columns)
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "  \\centering",
        f"  \\caption{{{escape_latex(table.title)}}}",
        f"  \\label{{tab:{table.name}}}",
        f"  \\begin{{tabular}}{{{align}}}",
        "    \\toprule",
        "    " + " & ".join(c.latex or escape_latex(c.title) for c in columns) + " \\\\",
        "    \\midrule",
    ]
    for index, row in enumerate(rows):
        if index and groups[index] != groups[index - 1]:
            lines.append("    \\midrule")
        lines.append("    " + " & ".join(map(escape_latex, row)) + " \\\\")
    lines += ["    \\bottomrule", "  \\end{tabular}"]
    lines += [f"  \\par\\footnotesize {escape_latex(note)}" for note in table.notes]
    return "\n".join([*lines, "\\end{table}"]) + "\n"


_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "±": r"$\pm$",
    "−": "$-$",
    "≈": r"$\approx$",
    "γ": r"$\gamma$",
    "κ": r"$\kappa$",
    "Ā": r"$\bar{A}$",
    "–": "--",
    "…": r"\ldots{}",
    "\n": " ",
} | {symbol: f"\\{symbol}" for symbol in "&%$#_"}


def escape_latex(text: str) -> str:
    """Return text such that LaTeX prints it as it is."""
    return "".join(_LATEX.get(character, character) for character in text)


def escape_markdown(text: str) -> str:
    """Return text on one line, such that Markdown shows it as it is, also in a table."""
    text = re.sub(r"\s+", " ", text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|*])", r"\\\1", text)


def _written(value: Value, kind: Kind) -> str:
    if value is None:
        return _MISSING
    if isinstance(value, str):
        return value
    mean, std = (value.mean, value.std) if isinstance(value, Stat) else (value, None)
    if kind == "percent":
        return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"
    if kind == "difference":
        return signed(mean)
    if kind == "bytes":
        return nbytes(mean)
    if kind == "seconds":
        return three_digits(mean)
    return f"{mean:.1e}" if kind == "scientific" else f"{mean:g}"


def nbytes(value: float, short: bool = False) -> str:
    """Return bytes in decimal units: three digits, or as few as a round number needs (`short`)."""
    for unit in _UNITS:
        # 999.5 would be written as 1000, with three digits.
        if value < 999.5 or unit == _UNITS[-1]:
            break
        value /= 1000
    if short or unit == "B":
        return f"{value:g} {unit}"
    return f"{three_digits(value)} {unit}"


def three_digits(value: float) -> str:
    """Return a number with three digits, never with an exponent."""
    if value >= 99.95:
        return f"{value:.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.0995 or value == 0 else f"{value:.3f}"


def signed(value: float) -> str:
    """Return a difference with its sign and two decimals."""
    text = f"{value:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text.replace("-", "−")
