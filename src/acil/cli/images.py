"""What the commands for own images share: options, progress, and how results are shown."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from acil.cli.ranks import follows
from acil.errors import InputError

Model = Annotated[Path, typer.Argument(help="Model file.", metavar="MODEL")]
Backbone = Annotated[
    str | None,
    typer.Option(
        help="Network: efficientnet-lite0, timm:NAME, torchvision:NAME, onnx:FILE, "
        "module:PACKAGE.MODULE.NAME or a .safetensors file (default: that of the model).",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there.")]
ClassName = Annotated[
    str | None, typer.Option("--class", help="Class of all these images.", metavar="NAME")
]
#: Names that a message lists.
_SHOWN = 3


def require_free(path: Path, force: bool) -> None:
    """Raise if a file would be overwritten that nobody asked to replace."""
    if path.exists() and not force:
        raise InputError(f"{path} exists. Replace it with --force, or give another name.")


def plain(value: Any) -> str:
    """Return text without the control characters by which a file could rule a terminal."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(value)
    )


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number of things, as in "1 class" and "3 classes"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


@contextmanager
def shown_progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar on stderr while images are read; nothing when that is not a terminal."""
    with _shown_log():
        if not sys.stderr.isatty():
            yield None
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task(what, total=None)
            yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def _shown_log() -> Iterator[None]:
    """Show what the library logs, such as that a network is exported for the first time."""
    logger, handler = logging.getLogger("acil"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def given_images(images: list[Path], class_name: str | None) -> tuple[Any, Any]:
    """Return images and labels as `ImageClassifier` takes them, from the arguments of a command."""
    from acil.vision.listing import list_images

    if class_name is None and len(images) != 1:
        raise InputError(
            "Give one folder with a folder for each class, or one CSV file; or several images, or "
            "folders of images, with --class NAME."
        )
    listings = [list_images(image, class_name) for image in images]
    for listing in listings:
        if listing.ignored and not follows():
            shown = ", ".join(plain(path.name) for path in listing.ignored[:_SHOWN])
            more = " …" if len(listing.ignored) > _SHOWN else ""
            what = counted(len(listing.ignored), "entry that is no image", "entries that are no images")
            typer.echo(f"ignored {what}: {shown}{more}", err=True)
    paths = [path for listing in listings for path in listing.paths]
    return paths, [label for listing in listings for label in listing.labels]


def aligned(texts: Iterable[Any]) -> list[str]:
    """Return texts as a terminal can show them, filled up to the width of the widest.

    Letters of some scripts are two columns wide there, and accents none.
    """
    from rich.cells import cell_len

    shown = [plain(text) for text in texts]
    width = max(map(cell_len, shown), default=0)
    return [text + " " * (width - cell_len(text)) for text in shown]


def show_counts(counts: dict[str, int], totals: dict[str, int]) -> None:
    """Print a table of classes: images of this call, and images in the model."""
    heading, *names = aligned(["class", *counts])
    typer.echo(f"{heading}  {'images':>7}  {'in model':>8}")
    for shown, (name, count) in zip(names, counts.items(), strict=True):
        typer.echo(f"{shown}  {count:>7}  {totals.get(name, 0):>8}")
