"""Running the benchmark in tests: commands, and what their records have in common."""

import numpy as np
from typer.testing import CliRunner

from acil.bench.records import Records
from acil.cli import app

#: What two runs of the same thing may differ in.
TIMES = ("job", "ended", "seconds", "peak_rss")
#: A whole run with a network in about two seconds.
DIGITS = ("--dataset", "digits", "--seeds", "0,1", "--phases", "5", "--set", "recipe.training.epochs=1")


def command(*arguments):
    """Run `acil bench run` in this process; a traceback of ours is an error of the test."""
    result = CliRunner().invoke(app, ["bench", "run", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def write_features(path, classes=12, width=16, each=(20, 5), spread=2.0, noise=1.0, scale=1.0):
    """Write features scattered around a centre for each class, training and test, and return them."""
    rng = np.random.default_rng(0)
    centres = rng.normal(scale=spread, size=(classes, width))
    arrays = {}
    for split, count in zip(("train", "test"), each, strict=True):
        labels = np.repeat(np.arange(classes), count)
        rows = scale * (centres[labels] + noise * rng.normal(size=(len(labels), width)))
        arrays |= {f"{split}_features": rows.astype(np.float32), f"{split}_labels": labels}
    np.savez(path, **arrays)
    return arrays


def records(folder, kind=None):
    found = Records(folder / "records.jsonl").read()
    return [record for record in found if kind in (None, record["kind"])]


def without_times(found):
    """Return records without those of environments and without times."""
    return [
        {k: v for k, v in record.items() if k not in TIMES}
        for record in found
        if record["kind"] != "environment"
    ]


def timeless(folder):
    """Return what a run has recorded, without what two runs of the same thing may differ in."""
    return without_times(records(folder))
