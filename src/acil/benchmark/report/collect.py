"""From records to rows: runs, grouped by what they compare and by seeds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acil.benchmark.records import FILE_NAME, Record, Records, canonical, key, latest
from acil.benchmark.report.bases import against_base
from acil.benchmark.report.labels import differing, label, sort_key
from acil.benchmark.report.rows import Cell, Comparison, Row, Run
from acil.errors import InputError

#: The table of runs that differ in the number of base classes; its rows are from the main table.
BASE = "base"
#: Suites with a table of their own; runs of all others are in the main table.
SPECIAL_SUITES = ("ablation", "width", "memory")
#: A setting that may differ between the seeds of a row: the file of the network that belongs to each.
_PER_SEED = "backbone"
_NETWORK_FILE = ".safetensors"
_TIMES = ("seconds", "peak_rss")


@dataclass(frozen=True)
class Collection:
    """Everything that the records of some runs hold.

    Attributes
    ----------
    suites : dict
        ``main``, ``base``, ``ablation``, ``width`` and ``memory`` → comparisons, of runs that were
        finished or failed.
    unfinished : tuple of Run
        Runs that were interrupted: they have neither a summary nor a failure.
    environments : tuple of dict
    replaced : int
        Runs of which there were several with other numbers; the last one given counts.
    repeated : int
        Runs of which there were several with the same numbers.
    """

    suites: Mapping[str, tuple[Comparison, ...]]
    unfinished: tuple[Run, ...]
    environments: tuple[Mapping[str, Any], ...] = ()
    replaced: int = 0
    repeated: int = 0


def collect(run_dirs: Sequence[str | os.PathLike[str]]) -> Collection:
    """Read the records of run directories and group them.

    Parameters
    ----------
    run_dirs : sequence of path-like
        Run directories, files of records (``*.jsonl``), or folders of such files. Where two have the
        same run, the later one counts.

    Raises
    ------
    InputError
        If one of them has no records, or damaged ones.
    """
    merged: dict[tuple[Any, ...], Run] = {}
    environments: list[Record] = []
    replaced = repeated = 0
    for file in [file for given in run_dirs for file in _files(Path(given))]:
        records = Records(file).read()
        environments += [r for r in records if r["kind"] == "environment" and r not in environments]
        for name, run in _runs(records).items():
            # With other classes it is another run, even if its settings do not tell.
            found = (name, run.classes)
            if found in merged:
                same = _results(merged[found]) == _results(run)
                repeated, replaced = repeated + same, replaced + (not same)
            merged[found] = run
    done = [run for run in merged.values() if run.summary is not None]
    # What is unfinished in one directory may be finished in another; before its first phase a run may
    # not tell its base classes.
    known = {(key(run.identity), base) for run in done for base in (run.classes[0], None)}
    left = [
        run
        for run in merged.values()
        if run.summary is None and (key(run.identity), run.classes[0]) not in known
    ]
    suites: dict[str, list[Run]] = {"main": [], **{suite: [] for suite in SPECIAL_SUITES}}
    # A failure is a result: how a method behaves with these settings.
    for run in [*done, *(run for run in left if run.failure is not None)]:
        suite = run.identity["suite"]
        suites[suite if suite in SPECIAL_SUITES else "main"].append(run)
    # Accuracy against bytes is worth knowing of every method, not only of the suite that varies it.
    suites["memory"] = [*suites["main"], *suites["memory"]]
    compared = {suite: _comparisons(runs) for suite, runs in suites.items()}
    main = compared.pop("main")
    unfinished = [run for run in left if run.failure is None]
    return Collection(
        {"main": main, BASE: against_base(main), **compared},
        tuple(sorted(unfinished, key=lambda run: _text_key(run.identity))),
        tuple(environments),
        replaced,
        repeated,
    )


def _files(path: Path) -> list[Path]:
    """Return the files of records that a path means."""
    if path.is_file():
        return [path]
    if (path / FILE_NAME).is_file():
        return [path / FILE_NAME]
    found = sorted(path.glob("*.jsonl")) if path.is_dir() else []
    if not found:
        raise InputError(
            f"There are no records in {path}. Give the directory of a run (`acil bench run --out DIR`), "
            "a file of records, or a folder of such files."
        )
    return found


def _results(run: Run) -> str:
    """Return what a run found, without what it took: times differ from one occasion to the next."""
    summary = {k: v for k, v in (run.summary or {}).items() if k not in _TIMES}
    phases = [{k: v for k, v in phase.items() if k not in _TIMES} for phase in run.phases]
    return canonical({"summary": summary, "phases": phases})


def _runs(records: list[Record]) -> dict[tuple[Any, ...], Run]:
    grouped: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for record in latest(records):
        if record["kind"] != "environment":
            grouped.setdefault(key(record), []).append(record)
    runs = {}
    for name, found in grouped.items():
        phases = sorted((r for r in found if r["kind"] == "phase"), key=lambda r: r["phase"])
        summary = next((r for r in found if r["kind"] == "summary"), None)
        # A run that was taken up again after it failed has records behind the failure.
        failure = found[-1] if found[-1]["kind"] == "failure" else None
        runs[name] = Run(found[0], tuple(phases), summary, failure)
    return runs


def _comparisons(runs: list[Run]) -> tuple[Comparison, ...]:
    grouped: dict[tuple[str, str, str, int | None, int | None], list[Run]] = {}
    for run in runs:
        what = run.identity
        base, classes = run.classes
        # A run that failed did not see all classes: its settings have their number.
        total = what["settings"].get("classes") if classes is None else classes
        name = (what["dataset"], what["order"], what["recipe"], base, total)
        grouped.setdefault(name, []).append(run)
    order = sorted(grouped, key=lambda name: tuple(sort_key(part) for part in name))
    return tuple(Comparison(*name, _rows(grouped[name])) for name in order)


def _rows(runs: list[Run]) -> tuple[Row, ...]:
    by_method: dict[str, list[Run]] = {}
    for run in runs:
        by_method.setdefault(run.identity["method"], []).append(run)
    rows = []
    for method, found in sorted(by_method.items()):
        ignored = _PER_SEED if _has_a_network_for_each_seed(found) else None
        variants: dict[str, tuple[dict[str, Any], dict[int, dict[int, Run]]]] = {}
        for run in found:
            settings = {k: v for k, v in run.identity["settings"].items() if k != ignored}
            name = canonical(settings)
            cells = variants.setdefault(name, (settings, {}))[1]
            cells.setdefault(run.identity["phases"], {})[run.identity["seed"]] = run
        names = differing([settings for settings, _ in variants.values()])
        for settings, cells in variants.values():
            averaged = {k: _cell([run for _, run in sorted(c.items())]) for k, c in cells.items()}
            rows.append(Row(method, settings, label(method, settings, names), averaged))
    return tuple(sorted(rows, key=lambda row: (row.method, *_settings_key(row, rows))))


def _cell(runs: list[Run]) -> Cell:
    done = tuple(run for run in runs if run.summary is not None)
    return Cell(done, tuple(run for run in runs if run.summary is None))


def _settings_key(row: Row, rows: list[Row]) -> list[tuple[Any, ...]]:
    names = differing([other.settings for other in rows if other.method == row.method])
    return [sort_key(row.settings.get(name)) for name in names]


def _has_a_network_for_each_seed(runs: list[Run]) -> bool:
    """Say whether each seed came with one network file: then the file is no variant of the method."""
    files: dict[int, set[str]] = {}
    for run in runs:
        file = run.identity["settings"].get(_PER_SEED)
        if not isinstance(file, str) or _NETWORK_FILE not in file:
            return False
        files.setdefault(run.identity["seed"], set()).add(file)
    return all(len(found) == 1 for found in files.values())


def _text_key(identity: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(str(part) if not isinstance(part, int) else f"{part:012d}" for part in key(identity))
