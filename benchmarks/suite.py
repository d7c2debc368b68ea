"""Every measurement, by one command: figures as JSON and as tables of a page.

    python -m benchmarks                            # everything, about 15 minutes on two cores
    python -m benchmarks --quick                    # tiny sizes: does it all still run?
    python -m benchmarks --only ceilings,latency    # some; others in the file stay as they are
    python -m benchmarks --from FILE --page PAGE    # no measurement, only the tables of a page

Every ratio is of two things measured in the same run. Machines are noisy: compare the ratios, not the
seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ceilings, growth, heads, recursion, refits, scripts, usage
from benchmarks.page import fill, table
from benchmarks.timing import environment

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Measurement:
    """One measurement and how its rows are shown: key → heading and format (see `page.table`)."""

    run: Callable[[bool], Rows]
    columns: dict[str, tuple[str, str]]
    #: What a page shows instead of the rows themselves
    shown: Callable[[Rows], Rows] = lambda rows: rows


_SECONDS = ("seconds", ".2f")
_D = ("d", "d")

MEASUREMENTS: dict[str, Measurement] = {
    "ceilings": Measurement(
        ceilings.measure,
        {"operation": ("operation", ""), "dtype": ("numbers", ""), "size": ("d = n", "d")}
        | {"speed": ("GFLOP/s, GB/s", ".1f"), "ratio": ("of a matrix product", ".2f")},
    ),
    "heads": Measurement(
        heads.measure,
        {"width": _D, "phases": ("phases", "d"), "head": ("head", ""), "seconds": _SECONDS}
        | {"bare": ("bare calls, s", ".2f"), "ratio": ("times the bare calls", ".2f")},
    ),
    "published": Measurement(
        recursion.measure,
        {"head": ("head", ""), "width": _D, "seconds": _SECONDS}
        | {"ratio": ("times as fast as published", ".1f")}
        | {"difference": ("scores differ from the first row by", ".1e"), "condition": ("κ", ".0e")},
    ),
    "refits": Measurement(
        refits.measure,
        {"width": _D, "learner": ("learner", ""), "phases": ("phases", "d"), "seconds": _SECONDS}
        | {"ratio": ("times the time of acil", ".1f"), "difference": ("scores differ by", ".1e")},
    ),
    "samples": Measurement(
        recursion.measure_samples,
        {"width": _D, "seconds": ("one sample, ms", "ms"), "recursion": ("recursion, ms", "ms")}
        | {"anew": ("solved anew, ms", "ms"), "ratio": ("times as fast as the recursion", ".1f")},
    ),
    "features": Measurement(
        usage.measure_features,
        {"what": ("ResNet-32", ""), "speed": ("images/s", ",.0f")}
        | {"ratio": ("of the fastest bare forward", ".2f")},
    ),
    "latency": Measurement(
        usage.measure_latency,
        {"width": _D, "rows": ("rows", "d"), "call": ("call", ""), "seconds": ("ms", "ms")}
        | {"ratio": ("times the bare product", ".2f")},
    ),
    "memory": Measurement(
        usage.measure_memory,
        {"width": _D, "head": ("head", ""), "gigabytes": ("GB", ".2f")}
        | {"ratio": ("in units of d² · 8 bytes", ".2f")},
    ),
    "start": Measurement(
        usage.measure_start,
        {"what": ("process", ""), "seconds": _SECONDS, "ratio": ("of importing the libraries", ".2f")},
    ),
    "growth": Measurement(
        growth.measure,
        {"varied": ("varied", ""), "range": ("range", ""), "fixed": ("the others", "")}
        | {"first": ("first, s", ".2f"), "last": ("last, s", ".2f"), "exponent": ("exponent", ".2f")}
        | {"end": ("of the last two", ".2f")},
        growth.summary,
    ),
}
#: Run only when they are named, and always in full.
SCRIPTS: dict[str, Measurement] = {
    name: Measurement(
        lambda _, name=name: scripts.run(name),
        {"figure": ("figure", ""), "value": ("value", "auto")},
    )
    for name in scripts.available()
}


def parts(figures: dict[str, Any]) -> dict[str, str]:
    """Return the generated parts of a page: a table for each measurement, and where it was measured."""
    found = {}
    for name, entry in figures.items():
        chosen = (MEASUREMENTS | SCRIPTS).get(name)
        if chosen is not None:
            where = entry["environment"]
            line = (
                f"`{name}`: {where['machine']}, {where['cores']} cores, {where['threads']} threads, "
                f"torch {where['torch']}, {where['date']}" + (" (quick sizes)" if entry["quick"] else "")
            )
            found[name] = f"\n{table(chosen.shown(entry['rows']), chosen.columns)}\n\n*{line}*\n"
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, write, print."""
    known = MEASUREMENTS | SCRIPTS
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME,…", help=f"some of {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, under a minute")
    parser.add_argument("--out", type=Path, default=Path("benchmarks.json"), help="file of figures")
    parser.add_argument("--from", dest="source", type=Path, help="measure nothing, read this file")
    parser.add_argument("--page", type=Path, help="Markdown page whose marked parts are filled")
    arguments = parser.parse_args(argv)
    names = list(MEASUREMENTS) if arguments.only is None else arguments.only.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"there is no measurement {unknown[0]!r}; choose among {', '.join(known)}")
    figures: dict[str, Any] = {}
    kept = arguments.source or (arguments.out if arguments.only else None)
    if kept is not None and (arguments.source or kept.exists()):
        figures = json.loads(kept.read_text(encoding="utf-8"))
    for name in names if arguments.source is None else ():
        start = time.perf_counter()
        rows = known[name].run(arguments.quick)
        figures[name] = {"environment": environment(), "quick": arguments.quick, "rows": rows}
        figures[name]["seconds"] = time.perf_counter() - start
        # After each, so that what was measured is not lost
        arguments.out.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", "utf-8")
        print(f"## {name} ({figures[name]['seconds']:.0f} s)\n{parts(figures)[name]}", flush=True)
    if arguments.page is not None:
        fill(arguments.page, parts(figures))
        if "growth" in figures:
            growth.draw(figures["growth"]["rows"], arguments.page.parent / arguments.page.stem)


if __name__ == "__main__":
    main()
