"""Report pages: all tables and plots, and the commands that made them."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acil.bench.config import METHOD_SETTINGS
from acil.bench.plan import MEMORY_RULE
from acil.bench.published import PAPER_NOTES
from acil.bench.report.collect import BASE, PROTOCOLS, Collection, known_method
from acil.bench.report.paired import paired_table
from acil.bench.report.render import Table, escape_markdown, to_csv, to_latex, to_markdown
from acil.bench.report.rows import Comparison, Row, Run, differing, label
from acil.bench.report.tables import described, overview_table, suite_table
from acil.bench.training.recipes import RECIPES

#: Suite → its heading.
SECTIONS = {
    "main": "Comparison",
    "long-tailed": "Long tail",
    "si-blurry": "Si-Blurry",
    BASE: "Size of the base",
    "ablation": "Ablation",
    "width": "Expansion size",
    "memory": "Accuracy against memory",
}
#: Settings that follow from others.
_FOLLOWING = ("protocol", "base", "classes", "taps", "backbone", "data.identity", "data.skipped")
#: Settings that a suite varies itself.
_VARIED = {
    "ablation": ("expansion_size", "gamma"),
    "width": ("expansion_size",),
    "memory": ("expansion_size", MEMORY_RULE),
}


@dataclass(frozen=True)
class Image:
    """A plot: of which suite and comparison, its caption, and its files by name."""

    suite: str
    slug: str
    caption: str
    files: Mapping[str, bytes]


def table_files(collection: Collection) -> dict[str, str]:
    """Return name → content of the files of all tables."""
    files = {}
    for suite in SECTIONS:
        tables = [
            table for comparison in collection.suites[suite] for table in _tables(suite, comparison)
        ]
        if tables:
            files[f"{suite}.md"] = "\n".join(map(to_markdown, tables))
            # The overview has nothing that the full table has not: a file to compute with needs one.
            files[f"{suite}.csv"] = to_csv([table for table in tables if table.name == suite])
            if pairs := [table for table in tables if table.name == "paired"]:
                files[f"{suite}-paired.csv"] = to_csv(pairs)
            files[f"{suite}.tex"] = "\n".join(map(to_latex, _distinct(tables)))
    return files


def short_page(collection: Collection) -> str:
    """Return the tables of the suites that were run, and what a reader must know about them."""
    tables = [
        table
        for suite, comparisons in collection.suites.items()
        for comparison in comparisons
        # The page about memory has every method on it; here it would repeat the main table.
        if suite in ("main", BASE, *PROTOCOLS)
        or any(r.identity["suite"] == suite for r in _tried(comparison.rows))
        if not repeats_base(suite, comparison, collection)
        for table in _tables(suite, comparison)
    ]
    return "\n".join([*map(to_markdown, tables), *_remarks(collection)])


def full_page(collection: Collection, images: Sequence[Image], title: str, folder: str) -> str:
    """Return the page that shows all tables and plots; `folder` is where it finds the plots."""
    beside = f"{folder}/" if folder else ""
    parts = [f"# {escape_markdown(title)}\n", *_remarks(collection)]
    for suite, heading in SECTIONS.items():
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
    """Return comparisons by a name that file names can have."""
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

    A comparison with published numbers, or with several cells, has more to show.
    """
    cells = [cell for _, _, cell in comparison.cells()]
    if suite not in ("main", "memory") or comparison.is_published_protocol or len(cells) != 1:
        return False
    return any(cells[0] == shown for other in collection.suites[BASE] for _, _, shown in other.cells())


def _tables(suite: str, comparison: Comparison) -> list[Table]:
    overview = overview_table(comparison) if suite == "main" else None
    paired = paired_table(suite, comparison)
    return [table for table in (overview, suite_table(suite, comparison), paired) if table is not None]


def _made_by(suite: str, comparison: Comparison) -> str:
    """Return the commands that make these rows, and the recorded time."""
    lines, took = "\n".join(commands(comparison, suite)), seconds_taken(comparison)
    time = "" if took is None else f"\nTime recorded: {took:.0f} s, all rows, seeds and K together."
    return f"Made by:\n\n```console\n{lines}\n```\n{time}\n"


def _distinct(tables: Sequence[Table]) -> list[Table]:
    """Give each table its own LaTeX label."""
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
    if collection.unfinished:
        heading = "Unfinished, and therefore neither in tables nor in plots:"
        remarks.append(_list(heading, _unfinished(collection)))
    for results, count, counts in (
        ("the same", collection.repeated, "each counts once"),
        ("different", collection.replaced, "the one given last counts"),
    ):
        if count:
            remarks.append(f"Runs found more than once with {results} results: {count}; {counts}.\n")
    return remarks


def _unfinished(collection: Collection) -> list[str]:
    """Return a line for each interrupted run."""
    rows = [row for comparisons in collection.suites.values() for c in comparisons for row in c.rows]
    every = [*(run.identity for run in collection.unfinished), *map(vars, rows)]
    lines = []
    for run in collection.unfinished:
        what = run.identity
        names = differing([o["settings"] for o in every if o["method"] == what["method"]])
        where = f"suite {what['suite']}, order {what['order']}, recipe {what['recipe']}"
        state = "no phase is finished"
        if run.phases:
            state = f"its last phase is {run.phases[-1]['phase']} of {what['phases']}"
        lines.append(
            f"{label(what['method'], what['settings'], names)}, K = {what['phases']}, seed "
            f"{what['seed']}, on {what['dataset']} ({where}): {state}"
        )
    return lines


def _environment(record: Mapping[str, Any]) -> str:
    device, torch = record["device"].get("name", "an unknown device"), record["packages"].get("torch")
    return f"acil {record['acil']}, Python {record['python']}, torch {torch}, on {device}"


def _list(heading: str, lines: Sequence[str]) -> str:
    return f"{heading}\n\n" + "".join(f"- {escape_markdown(line)}\n" for line in lines)


def commands(comparison: Comparison, suite: str) -> list[str]:
    """Return the commands that make these rows; rows that differ only in the method share one."""
    grouped: dict[tuple[tuple[str, ...], ...], list[Row]] = {}
    for row in comparison.rows:
        seeds = sorted({run.identity["seed"] for run in _tried([row])})
        lists = ("--phases", ",".join(map(str, sorted(row.cells))), "--seeds", ",".join(map(str, seeds)))
        grouped.setdefault((lists, tuple(_settings(comparison, row, suite))), []).append(row)
    return [_command(comparison, rows, suite, *flags) for flags, rows in grouped.items()]


def seconds_taken(comparison: Comparison) -> float | None:
    """Return the time of all rows, seeds and K; of K that one pass serves, which have one time, once."""
    passes: dict[tuple[Any, ...], float] = {}
    for _, row, cell in comparison.cells():
        for run in cell.tried:
            seconds = sum(record["seconds"] for record in run.phases)
            # Earlier records do not name their job.
            job = run.identity.get("job", round(seconds, 3))
            passes[id(row), run.identity["seed"], job] = seconds
    return sum(passes.values()) or None


def _command(
    comparison: Comparison,
    rows: list[Row],
    suite: str,
    lists: tuple[str, ...],
    settings: tuple[str, ...],
) -> str:
    parts = ["acil", "bench", "run", "--dataset", comparison.dataset]
    parts += ["--method", ",".join(dict.fromkeys(row.method for row in rows))]
    parts += ["--protocol", comparison.protocol] if comparison.protocol else []
    parts += ["--recipe", comparison.recipe, "--order", comparison.order, *lists]
    if suite != "main" and _is_of(rows, suite):
        parts += ["--suite", suite, *_steps(rows, suite)]
    return "$ " + " ".join(map(shlex.quote, [*parts, *settings]))


def _steps(rows: list[Row], suite: str) -> list[str]:
    """Return the widths and numbers of exemplars that rows of a suite vary."""
    if suite not in ("width", "memory"):
        return []
    rules = [str(row.settings[MEMORY_RULE]).split() for row in rows if MEMORY_RULE in row.settings]
    widths = [row.settings.get("expansion_size") for row in rows if MEMORY_RULE not in row.settings]
    lists = {
        "widths": sorted({width for width in widths if isinstance(width, int)}),
        "budgets": sorted({int(rule[0]) for rule in rules if rule[0].isdecimal()}),
    }
    return [p for n, values in lists.items() if values for p in ("--set", f"settings.{n}={values}")]


#: Classes of the data sets that are the same everywhere; half of them are the base by default.
_ALL_CLASSES = {"cifar100": 100, "digits": 10}


def _settings(comparison: Comparison, row: Row, suite: str) -> list[str]:
    """Return the flags of what differs from the recipe, and of classes not split by default."""
    flags = []
    # In a table of base sizes each row has its own.
    base, classes = row.settings.get(BASE, comparison.base_classes), comparison.classes
    usual_classes = _ALL_CLASSES.get(comparison.dataset)
    # What its network was trained on is no part of a stream.
    stream = comparison.protocol == "si-blurry"
    if classes is not None and classes != usual_classes and not stream:
        flags += ["--classes", str(classes)]
    usual_base = 0 if stream else None if usual_classes is None or classes is None else classes // 2
    if base is not None and classes is not None and base != usual_base:
        flags += ["--base", str(base)]
    # A network that was given has its fingerprint behind the name.
    names = {str(run.identity["settings"].get("backbone", "")) for run in _tried([row])}
    networks = [name for name in names if "@" in name or ".safetensors" in name]
    files = {name.partition("@")[0].rpartition("/")[2] for name in networks}
    if files:
        flags += ["--backbone", next(iter(files)) if len(files) == 1 else "FILE"]
    varied = _VARIED.get(suite, ()) if _is_of([row], suite) else ()
    usual: dict[str, Any] = {"solver": "gram"}
    if recipe := RECIPES.get(comparison.recipe):
        usual |= {name: getattr(recipe, name) for name in ("expansion_size", "gamma", "dtype")}
    if method := known_method(row.method):
        usual |= method.recorded_settings({})
    for name, value in row.settings.items():
        if name in _FOLLOWING or name in varied or usual.get(name, ...) == value:
            continue
        if name in METHOD_SETTINGS:
            flags += [f"--{name.replace('_', '-')}", _written(value)]
        else:
            dotted = name if name.startswith(("recipe.", "data.")) else f"settings.{name}"
            flags += ["--set", f"{dotted}={_written(value)}"]
    return flags


def _tried(rows: Sequence[Row]) -> list[Run]:
    return [run for row in rows for cell in row.cells.values() for run in cell.tried]


def _is_of(rows: Sequence[Row], suite: str) -> bool:
    """Say whether rows were run for a suite; the page about memory shows others, too."""
    return all(run.identity["suite"] == suite for run in _tried(rows))


def _written(value: Any) -> str:
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)
