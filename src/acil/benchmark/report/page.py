"""The pages of a report: tables in three formats, and one page that shows everything."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acil.benchmark.published import PAPER_NOTES
from acil.benchmark.report.bases import is_shown_by
from acil.benchmark.report.captions import described, unfinished_notes
from acil.benchmark.report.collect import BASE, Collection
from acil.benchmark.report.commands import commands, seconds_taken
from acil.benchmark.report.render import Table, escape_markdown, to_csv, to_latex, to_markdown
from acil.benchmark.report.rows import Comparison
from acil.benchmark.report.tables import (
    ablation_table,
    base_table,
    main_table,
    memory_table,
    overview_table,
    width_table,
)

#: Suite → its heading and the table that has all its numbers.
SECTIONS: dict[str, tuple[str, Callable[[Comparison], Table]]] = {
    "main": ("Comparison", main_table),
    BASE: ("Size of the base", base_table),
    "ablation": ("Ablation", ablation_table),
    "width": ("Expansion size", width_table),
    "memory": ("Accuracy against memory", memory_table),
}


@dataclass(frozen=True)
class Image:
    """A plot: of which suite and comparison, its caption, and its files by name."""

    suite: str
    slug: str
    caption: str
    files: Mapping[str, bytes]


def table_files(collection: Collection) -> dict[str, str]:
    """Return name → content of the files of all tables.

    Parameters
    ----------
    collection : Collection
    """
    files = {}
    for suite, (_, make) in SECTIONS.items():
        comparisons = collection.suites[suite]
        if comparisons:
            readable = [table for comparison in comparisons for table in _tables(suite, comparison)]
            files[f"{suite}.md"] = "\n".join(map(to_markdown, readable))
            # The overview has nothing that the full table has not: a file to compute with needs one.
            files[f"{suite}.csv"] = to_csv([make(comparison) for comparison in comparisons])
            files[f"{suite}.tex"] = "\n".join(map(to_latex, _distinct(readable)))
    return files


def short_page(collection: Collection) -> str:
    """Return the tables of the suites that were run, and what a reader must know about them.

    Parameters
    ----------
    collection : Collection
    """
    tables = [
        table
        for suite, comparisons in collection.suites.items()
        for comparison in comparisons
        # The page about memory has every method on it; here it would repeat the main table.
        if suite in ("main", BASE) or _was_run(suite, comparison)
        if not repeats_base(suite, comparison, collection)
        for table in _tables(suite, comparison)
    ]
    return "\n".join([*map(to_markdown, tables), *_remarks(collection)])


def full_page(
    collection: Collection, images: Sequence[Image], title: str = "Report", folder: str = ""
) -> str:
    """Return the page that shows all tables and plots.

    Parameters
    ----------
    collection : Collection
    images : sequence of Image
    title : str
    folder : str
        Where the plots are, seen from the page.
    """
    beside = f"{folder}/" if folder else ""
    parts = [f"# {escape_markdown(title)}\n", *_remarks(collection)]
    for suite, (heading, _) in SECTIONS.items():
        shown = []
        for slug, comparison in slugs(collection.suites[suite]).items():
            pictures = [image for image in images if (image.suite, image.slug) == (suite, slug)]
            if not pictures and repeats_base(suite, comparison, collection):
                continue
            shown += [*map(to_markdown, _tables(suite, comparison)), _made_by(suite, comparison)]
            for image in pictures:
                file = next(name for name in image.files if name.endswith(".png"))
                shown.append(f"![{image.caption}, {described(comparison)}]({beside}{file})\n")
        parts += [f"## {heading}\n", *shown] if shown else []
    if any(comparison.is_published_protocol for comparison in collection.suites["main"]):
        parts.append(_list("## About the published numbers", PAPER_NOTES))
    if collection.environments:
        parts.append(_list("## Where it ran", [_environment(e) for e in collection.environments]))
    return "\n".join(parts)


def slugs(comparisons: Sequence[Comparison]) -> dict[str, Comparison]:
    """Return a name that may be part of a file name for each comparison.

    Parameters
    ----------
    comparisons : sequence of Comparison
    """
    result: dict[str, Comparison] = {}
    for comparison in comparisons:
        parts = [comparison.dataset, comparison.order, comparison.recipe]
        if comparison.base_classes is None and comparison.classes is not None:
            parts.append(f"{comparison.classes} classes")
        else:
            parts.append(f"{comparison.base_classes}of{comparison.classes}")
        slug = re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")
        while slug in result:
            slug += "-x"
        result[slug] = comparison
    return result


def repeats_base(suite: str, comparison: Comparison, collection: Collection) -> bool:
    """Say whether the table against the size of the base shows a comparison already.

    Parameters
    ----------
    suite : str
    comparison : Comparison
    collection : Collection
    """
    return suite in ("main", "memory") and is_shown_by(comparison, collection.suites[BASE])


def _was_run(suite: str, comparison: Comparison) -> bool:
    return any(run.identity["suite"] == suite for _, _, cell in comparison.cells() for run in cell.tried)


def _tables(suite: str, comparison: Comparison) -> list[Table]:
    table = SECTIONS[suite][1](comparison)
    overview = overview_table(comparison) if suite == "main" else None
    return [overview, table] if overview else [table]


def _made_by(suite: str, comparison: Comparison) -> str:
    """Return the commands that give these rows, and the time they took as the records have it."""
    lines = "\n".join(commands(comparison, suite))
    took = seconds_taken(comparison)
    time = "" if took is None else f" Time recorded: {took:.0f} s, all seeds, the longest K of each row."
    return f"Made by:\n\n```console\n{lines}\n```\n{time}\n".replace("\n Time", "\n\nTime")


def _distinct(tables: Sequence[Table]) -> list[Table]:
    """Give each table a label of its own, as LaTeX wants it."""
    seen: dict[str, int] = {}
    result = []
    for table in tables:
        seen[table.name] = n = seen.get(table.name, 0) + 1
        result.append(dataclasses.replace(table, name=table.name if n == 1 else f"{table.name}-{n}"))
    return result


def _remarks(collection: Collection) -> list[str]:
    remarks = []
    if not any(collection.suites.values()):
        remarks.append("No run has finished yet.\n")
    unfinished = unfinished_notes(collection)
    if unfinished:
        remarks.append(_list("Unfinished, and therefore neither in tables nor in plots:", unfinished))
    if collection.repeated:
        remarks.append(
            f"Runs found more than once with the same results: {collection.repeated}; each counts "
            "once.\n"
        )
    if collection.replaced:
        remarks.append(
            f"Runs found more than once with different results: {collection.replaced}; the one given "
            "last counts.\n"
        )
    return remarks


def _environment(record: Mapping[str, Any]) -> str:
    device, torch = record["device"].get("name", "an unknown device"), record["packages"].get("torch")
    return f"acil {record['acil']}, Python {record['python']}, torch {torch}, on {device}"


def _list(heading: str, lines: Sequence[str]) -> str:
    return f"{heading}\n\n" + "".join(f"- {escape_markdown(line)}\n" for line in lines)
