"""Count the files of src/acil that a reader enters with one call: five walks, warm, the second call.

    python -m benchmarks.walks [--files]

A file counts as entered if a function of it runs: not if it is only imported, or did its work before.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from PIL import Image
from typer.testing import CliRunner

import acil
from acil import ACILClassifier
from acil.bench import run
from acil.cli import app

ROOM = Path(acil.__file__).parent


class Counter:
    """Collects files while it is on, in all threads that start meanwhile."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self.names.add(frame.f_code.co_filename)

    def start(self) -> None:
        """Begin to count."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def stop(self) -> None:
        """End."""
        sys.setprofile(None)
        threading.setprofile(None)

    def files(self) -> list[str]:
        """Return the files of the package, as paths inside it."""
        inside = (Path(name) for name in self.names)
        return sorted(str(path.relative_to(ROOM)) for path in inside if path.is_relative_to(ROOM))


@contextmanager
def counting() -> Iterator[Counter]:
    """Count the files entered in a block."""
    counter = Counter()
    counter.start()
    try:
        yield counter
    finally:
        counter.stop()


def second(call: Callable[[int], Any]) -> list[str]:
    """Return the files that the second of two calls enters."""
    call(0)
    with counting() as counter:
        call(1)
    return counter.files()


def learner() -> dict[str, list[str]]:
    """Walk through `partial_fit` and `predict`."""
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(40, 8)), np.arange(40) % 4
    clf = ACILClassifier(expansion_size=32, scores="ridge")
    found = {"partial_fit": second(lambda turn: clf.partial_fit(X + turn, y))}
    clf.predict(X)
    return {**found, "predict": second(lambda turn: clf.predict(X))}


def commands(folder: Path) -> dict[str, list[str]]:
    """Walk through `acil learn` and `acil predict`, of images."""
    generator = np.random.default_rng(0)
    for group in ("first", "second"):
        for name, shade in (("dark", 60), ("light", 190)):
            for number in range(4):
                place = folder / group / name / f"{number}.png"
                place.parent.mkdir(parents=True, exist_ok=True)
                pixels = generator.normal(shade, 30, (32, 32, 3)).clip(0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(place)
    model = folder / "model.acil"

    def command(*arguments: Any) -> None:
        result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
        if result.exit_code:
            raise SystemExit(result.output)

    learn = second(lambda turn: command("learn", folder / ("first", "second")[turn], "--model", model))
    return {
        "acil learn": learn,
        "acil predict": second(lambda turn: command("predict", model, folder / "first")),
    }


def phase(method: str) -> list[str]:
    """Walk through the second increment of a method."""
    counter = Counter()

    def told(event: Any) -> None:
        # Of the base phase and the first increment all is warm; the last phase is followed by a summary.
        match getattr(event, "phase", None):
            case 1:
                counter.start()
            case 2:
                counter.stop()

    epochs = {"recipe.training.epochs": 1, "settings.increment.epochs": 1}
    run(
        dataset="digits",
        method=method,
        phases=5,
        seeds=0,
        set=epochs if method != "acil" else {"recipe.training.epochs": 1},
        progress=told,
    )
    return counter.files()


def main() -> None:
    """Print how many files each walk enters, and with --files which."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", action="store_true", help="print the files, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        walks = {**learner(), **commands(Path(folder))}
    walks |= {"a phase of acil": phase("acil"), "a phase of icarl": phase("icarl")}
    for name, files in walks.items():
        print(f"{name:18} {len(files):3}")
        if arguments.files:
            print(*(f"    {file}" for file in files), sep="\n")


if __name__ == "__main__":
    main()
