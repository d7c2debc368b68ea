"""Read records and group their runs: by what is compared, by method and settings, by seed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from acil.bench.config import METHOD_SETTINGS
from acil.bench.methods.base import Planning
from acil.bench.methods.registry import HOSTS, WRAPPERS, available, resolve
from acil.bench.records import FILE_NAME, Record, Records, canonical, key
from acil.bench.report.rows import Cell, Comparison, Row, Run, differing, label, sort_key
from acil.errors import InputError

#: The table of runs that differ in the number of base classes, and the setting they differ in.
BASE = "base"
#: Suites with a table of their own; all other runs are in the main table.
SPECIAL_SUITES = ("ablation", "width", "memory")
#: Protocols with a table of their own, whatever the suite.
PROTOCOLS = ("long-tailed", "si-blurry")
#: A course over base sizes needs at least so many.
LEAST_SIZES = 3
#: A setting that may differ between the seeds of a row: the file of each seed's network.
_NETWORK = "backbone"
_NETWORK_FILE = ".safetensors"
#: What differs each time a run is made.
_PASSING = ("suite", "job", "ended", "seconds", "peak_rss")


@dataclass(frozen=True)
class Collection:
    """Everything that the records of some runs hold."""

    #: ``main``, ``base``, protocols, ``ablation``, ``width``, ``memory`` → finished and failed runs.
    suites: Mapping[str, tuple[Comparison, ...]]
    #: Interrupted runs: they have neither a summary nor a failure.
    unfinished: tuple[Run, ...]
    environments: tuple[Mapping[str, Any], ...] = ()
    #: Runs found several times, with different numbers (the last one counts) and with the same.
    replaced: int = 0
    repeated: int = 0


def collect(run_dirs: Sequence[str | os.PathLike[str]]) -> Collection:
    """Read the records of run directories, files of records, or folders of such files; group them.

    If two have the same run, the later one counts.
    """
    merged: dict[tuple[Any, ...], Run] = {}
    environments: list[Record] = []
    replaced = repeated = 0
    for file in [file for folder in run_dirs for file in _files(Path(folder))]:
        records = _shared_out([_with_own_settings(record) for record in Records(file).read()])
        environments += [r for r in records if r["kind"] == "environment" and r not in environments]
        for (suite, *name), run in _runs(records).items():
            # Suites that share a table share its runs. Other classes make another run.
            merge_key = (_table_of(suite), *name, run.classes)
            if merge_key in merged:
                same = _results(merged[merge_key]) == _results(run)
                repeated, replaced = repeated + same, replaced + (not same)
            merged[merge_key] = run
    done = [run for run in merged.values() if run.summary is not None]
    # A run unfinished in one directory may be finished in another. Before its first phase it may not
    # know its base classes.
    known = {(key(run.identity), base) for run in done for base in (run.classes[0], None)}
    unfinished_runs = [
        run
        for run in merged.values()
        if run.summary is None and (key(run.identity), run.classes[0]) not in known
    ]
    suites: dict[str, list[Run]] = {name: [] for name in ("main", *PROTOCOLS, *SPECIAL_SUITES)}
    # A failure is a result, too.
    for run in [*done, *(run for run in unfinished_runs if run.failure is not None)]:
        suites[run.protocol or _table_of(run.identity["suite"])].append(run)
    # Accuracy against bytes is shown for every method.
    suites["memory"] = [*suites["main"], *suites["memory"]]
    compared = {suite: _comparisons(runs) for suite, runs in suites.items()}
    main = compared.pop("main")
    unfinished = [run for run in unfinished_runs if run.failure is None]
    return Collection(
        {"main": main, BASE: against_base(main), **compared},
        tuple(sorted(unfinished, key=lambda run: key(run.identity))),
        tuple(environments),
        replaced,
        repeated,
    )


def against_base(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return comparisons of runs that differ only in the number of base classes.

    There is one if three sizes are found. Each row is one size, at every K that three sizes have.
    A network read from a file counts like one trained in the run; if a size has both, the one with
    more seeds is taken.
    """
    grouped: dict[tuple[Any, ...], list[Comparison]] = {}
    for comparison in comparisons:
        if comparison.base_classes is not None and comparison.classes is not None:
            name = (comparison.dataset, comparison.order, comparison.recipe, comparison.classes)
            grouped.setdefault(name, []).append(comparison)
    comparisons_of_sizes = [
        Comparison(dataset, order, recipe, None, classes, _sizes(alike))
        for (dataset, order, recipe, classes), alike in grouped.items()
    ]
    return tuple(comparison for comparison in comparisons_of_sizes if comparison.rows)


def _table_of(suite: str) -> str:
    return suite if suite in SPECIAL_SUITES else "main"


def _files(path: Path) -> list[Path]:
    """Return the files of records under a path."""
    if path.is_file():
        return [path]
    if (path / FILE_NAME).is_file():
        return [path / FILE_NAME]
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else []
    if not files:
        raise InputError(
            f"There are no records in {path}. Give the directory of a run (`acil bench run --out DIR`), "
            "a file of records, or a folder of such files."
        )
    return files


def _with_own_settings(record: Record) -> Record:
    """Return a record without settings that its method ignores: they make no row of their own."""
    if record["kind"] not in ("phase", "summary", "failure"):
        return record
    ignored = _ignored(record["method"])
    settings = {k: v for k, v in record["settings"].items() if not {k, k.partition(".")[0]} & ignored}
    return {**record, "settings": settings}


@cache
def _ignored(method: str) -> frozenset[str]:
    """Return the names of settings that are of other methods; none for a method that is not ours."""
    planning = known_method(method)
    known_settings = None if planning is None else planning.setting_names()
    if planning is None or known_settings is None:
        return frozenset()
    others = [*available(), *(f"{HOSTS[0]}+{wrapper}" for wrapper in WRAPPERS)]
    names = {name for other in others for name in resolve(other).setting_names() or ()}
    names |= set() if planning.trains_network else {"increment"}
    if not planning.analytic_heads:
        names |= {*METHOD_SETTINGS, *(f"recipe.{name}" for name in METHOD_SETTINGS)}
    # A width may be its own, without an analytic head.
    return frozenset(names) - known_settings - set(planning.recorded_settings({}))


def known_method(name: str) -> Planning | None:
    """Return a method of ours; nothing else that a file of records names is imported."""
    with suppress(InputError):
        return None if ":" in name else resolve(name)
    return None


def _shared_out(records: list[Record]) -> list[Record]:
    """Return records in which seconds that several jobs of a run had together are divided among them.

    Those of all jobs then add up to the time that the machine was busy. Earlier records do not say when
    a phase ended: they keep their seconds.
    """
    timed = [record for record in records if "ended" in record]
    if not timed:
        return records
    # Phases of coarser K that the same pass served are no jobs of their own.
    finest: dict[str, int] = {}
    for record in timed:
        finest[record["job"]] = max(record["phases"], finest.get(record["job"], 0))
    # A phase that is there twice, as in files put together, was learnt once.
    passes = {(r["job"], r["phase"]): r for r in timed if r["phases"] == finest[r["job"]]}.values()
    starts = np.sort([record["ended"] - record["seconds"] for record in passes])
    ends = np.sort([record["ended"] for record in passes])
    edges = np.unique(np.concatenate([starts, ends]))
    # share(t) = ∫ 1 / (jobs at work) up to t
    working = [np.searchsorted(times, edges[:-1], side="right") for times in (starts, ends)]
    share = np.cumsum([0.0, *np.diff(edges) / np.maximum(1, working[0] - working[1])])

    def own(record: Record) -> Record:
        if "ended" not in record:
            return record
        begun, ended = np.interp([record["ended"] - record["seconds"], record["ended"]], edges, share)
        return {**record, "seconds": float(ended - begun)}

    return [own(record) for record in records]


def _results(run: Run) -> str:
    """Return the results of a run as text."""
    records = [run.summary or {}, *run.phases]
    return canonical({"": [{k: v for k, v in r.items() if k not in _PASSING} for r in records]})


def _runs(records: list[Record]) -> dict[tuple[Any, ...], Run]:
    """Group records by run; of two for the same phase, or two summaries, the later one counts."""
    grouped: dict[tuple[Any, ...], dict[tuple[str, int | None], Record]] = {}
    for record in records:
        if record["kind"] in ("phase", "summary", "failure"):
            by_place = grouped.setdefault(key(record), {})
            place = (record["kind"], record.get("phase"))
            # Behind all others, where the last record is looked for.
            by_place.pop(place, None)
            by_place[place] = record
    runs = {}
    for name, by_place in grouped.items():
        ordered = list(by_place.values())
        last = ordered[-1]
        phases = sorted((r for r in ordered if r["kind"] == "phase"), key=lambda r: r["phase"])
        # A run resumed after a failure has records behind it.
        failure = last if last["kind"] == "failure" else None
        runs[name] = Run(ordered[0], tuple(phases), by_place.get(("summary", None)), failure)
    return runs


def _comparisons(runs: list[Run]) -> tuple[Comparison, ...]:
    grouped: dict[tuple[str, str, str, int | None, int | None], list[Run]] = {}
    for run in runs:
        what = run.identity
        base, classes = run.classes
        # A failed run has not seen all classes: take the number from its settings.
        # In a stream, some may never come.
        total = what["settings"].get("classes") if classes is None or run.protocol else classes
        name = (what["dataset"], what["order"], what["recipe"], base, total)
        grouped.setdefault(name, []).append(run)
    order = sorted(grouped, key=lambda name: tuple(sort_key(part) for part in name))
    return tuple(Comparison(*name, _rows(_with_settings(grouped[name]))) for name in order)


def _with_settings(runs: list[Run]) -> Iterator[tuple[dict[str, Any], Run]]:
    """Yield runs with the settings that tell their rows apart."""
    by_method: dict[str, list[Run]] = {}
    for run in runs:
        by_method.setdefault(run.identity["method"], []).append(run)
    for of_method in by_method.values():
        ignored = _NETWORK if _each_seed_has_its_network(of_method) else None
        for run in of_method:
            yield {k: v for k, v in run.identity["settings"].items() if k != ignored}, run


def _rows(runs: Iterable[tuple[dict[str, Any], Run]]) -> tuple[Row, ...]:
    """Return a row for each method and settings, named and sorted by what differs."""
    variants: dict[tuple[str, str], dict[str, Any]] = {}
    grouped: dict[tuple[str, str], dict[int, dict[int, Run]]] = {}
    for settings, run in runs:
        name = (run.identity["method"], canonical(settings))
        variants.setdefault(name, settings)
        by_seed = grouped.setdefault(name, {}).setdefault(run.identity["phases"], {})
        by_seed[run.identity["seed"]] = run
    rows = []
    for name, by_phases in grouped.items():
        method, settings = name[0], variants[name]
        names = differing([variants[other] for other in variants if other[0] == method])
        values = [sort_key(settings.get(name)) for name in sorted(names, key=lambda n: n == BASE)]
        cells = {k: _cell(by_seed) for k, by_seed in by_phases.items()}
        rows.append(((method, values), Row(method, settings, label(method, settings, names), cells)))
    return tuple(row for _, row in sorted(rows, key=lambda pair: pair[0]))


def _cell(by_seed: Mapping[int, Run]) -> Cell:
    ordered = [by_seed[seed] for seed in sorted(by_seed)]
    done = tuple(run for run in ordered if run.summary is not None)
    return Cell(done, tuple(run for run in ordered if run.summary is None))


def _each_seed_has_its_network(runs: list[Run]) -> bool:
    """Say whether each seed came with one network file: then the file is no variant of the method."""
    files: dict[int, set[str]] = {}
    for run in runs:
        file = run.identity["settings"].get(_NETWORK)
        if not isinstance(file, str) or _NETWORK_FILE not in file:
            return False
        files.setdefault(run.identity["seed"], set()).add(file)
    return all(len(of_seed) == 1 for of_seed in files.values())


def _sizes(comparisons: Sequence[Comparison]) -> tuple[Row, ...]:
    """Return a row for each base size of each method and its settings, if there are enough sizes."""
    sized_rows = [(c.base_classes or 0, row) for c in comparisons for row in c.rows]
    networks = {str(row.settings[_NETWORK]) for _, row in sized_rows if not _is_from_file(row)}
    variants: dict[str, dict[str, Any]] = {}
    # Method, settings and K → size → whether networks are from files → seed → run
    grouped: dict[tuple[str, str, int], dict[int, dict[bool, dict[int, Run]]]] = {}
    for size, row in sized_rows:
        from_file = _is_from_file(row)
        settings = {k: v for k, v in row.settings.items() if k not in (BASE, _NETWORK)}
        if not from_file:
            settings[_NETWORK] = row.settings[_NETWORK]
        elif len(networks) == 1:
            # A file does not name its architecture: take the only one there is.
            settings[_NETWORK] = next(iter(networks))
        variants[canonical(settings)] = settings
        for k, cell in row.cells.items():
            sizes = grouped.setdefault((row.method, canonical(settings), k), {})
            runs = sizes.setdefault(size, {}).setdefault(from_file, {})
            runs |= {run.identity["seed"]: run for run in cell.tried}
    chosen: list[tuple[dict[str, Any], Run]] = []
    for (_, variant, _), sizes in grouped.items():
        for size, ways in sizes.items() if len(sizes) >= LEAST_SIZES else ():
            most = max(ways.values(), key=lambda runs: sum(r.summary is not None for r in runs.values()))
            chosen += [({**variants[variant], BASE: size}, run) for run in most.values()]
    return _rows(chosen)


def _is_from_file(row: Row) -> bool:
    """Say whether the network is from a file; if each seed has its own, the row names none."""
    return _NETWORK not in row.settings or _NETWORK_FILE in str(row.settings[_NETWORK])
