"""Records as a run would write them, with numbers that are easy to check by hand."""

from pathlib import Path

from acil.bench.records import FILE_NAME, Records
from acil.bench.report.collect import collect

ENVIRONMENT = {
    "kind": "environment",
    "acil": "1.2.3",
    "python": "3.12.1",
    "packages": {"torch": "2.11.0"},
    "device": {"type": "cpu", "name": "Some CPU"},
    "threads": {"torch": 2},
}


def identity(**changes):
    return {
        "suite": "main",
        "method": "acil",
        "dataset": "cifar100",
        "order": "natural",
        "recipe": "paper",
        "settings": {"expansion_size": 8192, "gamma": 0.1},
        "seed": 0,
        "phases": 5,
        **changes,
    }


def phase_record(phase=0, accuracy=70.0, classes_seen=50, seconds=2.0, memory=None, **changes):
    return {
        "kind": "phase",
        **identity(**changes),
        "phase": phase,
        "classes_seen": classes_seen,
        "accuracy": accuracy,
        "base_accuracy": accuracy,
        "accuracy_by_origin": [accuracy] * (phase + 1),
        "memory": memory or {"samples": 0, "statistics": 536_870_912, "weights": 2_000_000},
        "seconds": seconds,
        "peak_rss": 1_000_000_000,
    }


def summary_record(average=66.0, last=57.0, forgetting=9.0, **changes):
    scores = {"average_accuracy": average, "last_accuracy": last, "forgetting": forgetting}
    return {"kind": "summary", **identity(**changes), **scores}


def run_records(average=66.0, base=50, classes=100, extra=None, memory=None, **changes):
    """Return all records of one run, its accuracy falling by a point a phase."""
    phases = identity(**changes)["phases"]
    step = (classes - base) // phases
    records = [
        phase_record(phase=k, accuracy=70.0 - k, classes_seen=base + step * k, memory=memory, **changes)
        for k in range(phases + 1)
    ]
    return [*records, {**summary_record(average=average, **changes), **(extra or {})}]


def write_run(folder: Path, records) -> Path:
    """Write records into a run directory, without waiting for the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    file = Records(folder / FILE_NAME)
    for record in records:
        file.append(record)
    return folder


def compared(folder: Path, records, suite="main"):
    """Return the only comparison of a suite that reports make of these records."""
    (comparison,) = collect([write_run(folder / "run", records)]).suites[suite]
    return comparison
