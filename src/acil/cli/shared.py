"""What several commands share: options, progress on stderr, text for terminals, torchrun."""

from __future__ import annotations

import inspect
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from acil.core.parameters import PARAMETERS, Parameter
from acil.errors import InputError, ModelFileError

#: Seconds between two lines about work that takes long, without a terminal.
PAUSE = 10.0
#: The stage after the last image.
HEAD = "computing the head"


def _existing(model: Path) -> Path:
    """Raise if there is no such model: before torch is imported, which takes seconds."""
    if not model.exists():
        raise ModelFileError(f"There is no model {model}. Check the path, or make it with acil learn.")
    return model


Model = Annotated[Path, typer.Argument(help="Model file.", metavar="MODEL", callback=_existing)]
Backbone = Annotated[
    str | None,
    typer.Option(
        "--network",
        "--backbone",
        help="Network. For images: efficientnet-lite0, timm:NAME, torchvision:NAME, onnx:FILE, "
        "module:PACKAGE.MODULE.NAME or a .safetensors file. For texts: minilm, which was trained on "
        "English, sentence-transformers:NAME_OR_FOLDER, onnx:FOLDER or module:PACKAGE.MODULE.NAME "
        "(default: that of the model; of a new one, the first of these).",
        metavar="NETWORK",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there.")]
Undo = Annotated[
    bool,
    typer.Option(
        "--undo/--no-undo",
        help="Keep the state before a change, for `acil undo` and the page of `acil serve`, or remove "
        "all such states. Whoever has the states before and after can recover the images in between.",
    ),
]


def _read(text: str, parameter: Parameter) -> Any:
    """Return the value of a parameter that the text of its option says."""
    value: Any = text
    for kind in (float, int):
        with suppress(ValueError):
            value = kind(text)
    if not parameter.values.accepts(value):
        raise typer.BadParameter(f"{text!r} is not {parameter.values.words}.")
    return value


def with_parameters(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each parameter that has one; it gets those that were chosen."""
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                Any,
                typer.Option(
                    f"--{parameter.option}",
                    help=f"{parameter.help} For a new model.",
                    metavar=parameter.metavar,
                    parser=partial(_read, parameter=parameter),
                ),
            ],
        )
        for name, parameter in PARAMETERS.items()
        if parameter.option is not None
    ]

    @wraps(command)
    def called(**values: Any) -> None:
        unset = {option.name for option in options if values[option.name] is None}
        command(**{name: value for name, value in values.items() if name not in unset})

    hints = get_type_hints(command, include_extras=True)
    *parameters, _ = inspect.signature(command).parameters.values()  # but **chosen
    parameters = [part.replace(annotation=hints[part.name]) for part in parameters]
    # What typer makes options of
    called.__signature__ = inspect.Signature([*parameters, *options])  # type: ignore[attr-defined]
    called.__annotations__ = {part.name: part.annotation for part in (*parameters, *options)}
    return called


def process_count() -> int:
    """Return how many processes torchrun has started, this one among them."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def is_rank_zero() -> bool:
    """Say whether this process prints and writes: the only one, or the first of several."""
    return process_count() == 1 or os.environ["RANK"] == "0"


def stop_on_sigterm() -> None:
    """Under torchrun, stop like on Ctrl-C when it ends this process because another one died."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def require_free(path: Path, force: bool) -> None:
    """Raise if a file exists and may not be replaced, or has no folder to be in."""
    if path.exists() and not force:
        raise InputError(f"{path} exists. Replace it with --force, or give another name.")
    if not path.absolute().parent.is_dir():
        raise InputError(f"There is no folder {path.absolute().parent}. Create it first.")


def assignment(text: str) -> tuple[str, str]:
    """Return name and value of a text such as "key=value"."""
    name, separator, value = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"Values are given as key=value, got {text!r}.")
    return name.strip(), value.strip()


def tell(text: str) -> None:
    """Say something on stderr: stdout is for results."""
    typer.echo(text, err=True)


def echo_json(value: Any) -> None:
    """Print a value as JSON, for machines."""
    typer.echo(json.dumps(value, indent=2))


def tell_recoverable(model: Path, number: int, files: str) -> None:
    """Say that these files, this model the last of them, give away so many samples, if these are few."""
    from acil.core.files import describe

    if 0 < number < describe(model)["size"]:
        what = counted(number, "sample")
        tell(f"Whoever has {files} can recover the features of {what}: docs/privacy.md#guards")


def tell_skipped(messages: Iterable[str]) -> None:
    """Name on stderr the files that could not be read."""
    for message in messages:
        tell(f"left out: {plain(message)}")


@contextmanager
def progress_bars(beginning: str = "") -> Iterator[Callable[..., None]]:
    """Yield what shows how far each thing is: bars on stderr, or without a terminal a line now and then.

    ``beginning`` is being done until something else is shown.
    """
    if not sys.stderr.isatty():
        with _lines(beginning) as show:
            yield show
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    columns = (*Progress.get_default_columns(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int | None, note: str = "") -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, note=note)
            bars.update(tasks[what], completed=done, total=total, note=note)

        yield show


@contextmanager
def _lines(latest: str) -> Iterator[Callable[..., None]]:
    started, ended = time.monotonic(), threading.Event()
    begun: dict[str, float] = {}

    def show(what: str, done: int, total: int | None, note: str = "") -> None:
        nonlocal latest
        seconds = time.monotonic() - begun.setdefault(what, time.monotonic())
        counted = "" if total is None else f"{done:,} of {total:,}"
        left = f"about {seconds / done * (total - done):.0f} s left" if total and done else ""
        latest = ", ".join(filter(None, (what, counted, note or left)))

    def print_lines() -> None:
        while not ended.wait(PAUSE):
            tell(f"{time.monotonic() - started:.0f} s: {latest}")

    lines = threading.Thread(target=print_lines, daemon=True)
    lines.start()
    try:
        yield show
    finally:
        ended.set()
        lines.join()


@contextmanager
def shown_progress() -> Iterator[Callable[..., Callable[[int, int], None]]]:
    """Show what is being done, and what the library logs, such as the first export of a network.

    Yields a function that begins a stage and returns what takes its progress; after the last of its
    things the stage ``then`` begins.
    """
    # What saving advises would come before the result: see `tell_recoverable`.
    levels = {"acil": logging.INFO, "acil.core.files.saving": logging.ERROR}
    with shown_log("%(message)s", levels), progress_bars() as show:

        def begin(what: str, then: str = "") -> Callable[[int, int], None]:
            def progress(done: int, total: int) -> None:
                show(what, done, total)
                if then and done == total:
                    show(then, 0, None)

            show(what, 0, None)
            return progress

        yield begin


@contextmanager
def shown_log(form: str, levels: Mapping[str, int]) -> Iterator[None]:
    """Log to stderr what these loggers have to say, from these levels on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(form))
    before = {name: logging.getLogger(name).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).removeHandler(handler)
            logging.getLogger(name).setLevel(level)


def plain(value: Any) -> str:
    """Return text without control characters: a file must not control the terminal."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(value)
    )


def short(text: Any, length: int = 60) -> str:
    """Return text on one line, of a bounded length, without control characters."""
    words = plain(" ".join(str(text)[: 4 * length].split()))
    return words if len(words) <= length and len(str(text)) <= 4 * length else f"{words[: length - 1]}…"


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number of things, as in "1 class" and "3 classes"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def table(rows: Iterable[Sequence[Any]], right: Sequence[int] = ()) -> str:
    """Return rows as lines of aligned cells, without control characters; ``right`` has numbers.

    Widths are those of a terminal: letters of some scripts are two columns wide, and accents none.
    """
    from rich.cells import cell_len

    shown = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*shown, strict=True)]
    lines = []
    for row in shown:
        line = []
        for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
            padding = " " * (width - cell_len(cell))
            line.append(padding + cell if place in right else cell + padding)
        lines.append("  ".join(line).rstrip())
    return "\n".join(lines)
