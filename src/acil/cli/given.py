"""What a command is given: images, texts or features; which of them, and with which labels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from acil.cli.shared import counted, plain, tell
from acil.errors import InputError

Labelled = Annotated[
    list[Path],
    typer.Argument(
        help="Images: folders with one folder for each class, or CSV of path,label; several folders of "
        "images, each a class of its name; with --class: images. Texts: tables (CSV, TSV, JSON lines, "
        "parquet) with columns text and label, or folders of .txt files like those of images. Or a file "
        "of features (npz, parquet, csv).",
        metavar="SAMPLES",
    ),
]
ClassName = Annotated[
    str | None, typer.Option("--class", help="Class of all these samples.", metavar="NAME")
]
#: Where one bad file, or line, should not hold up the others.
SkipBad = Annotated[
    bool,
    typer.Option("--skip-bad/--strict", help="Leave out unreadable images and bad lines, or fail."),
]
TextColumn = Annotated[
    str | None, typer.Option(help="Column of the texts in a table (default: text).", metavar="NAME")
]
LabelColumn = Annotated[
    str | None, typer.Option(help="Column of their classes (default: label).", metavar="NAME")
]
#: Names of the columns of texts and of labels, if they were given.
Columns = tuple[str | None, str | None]


@dataclass(frozen=True)
class Given:
    """What the arguments of a command name."""

    kind: Literal["images", "text", "features"]
    """In words of a model file."""
    sources: Any
    """Paths of images, or texts, or `Samples` of features."""
    labels: list[str] | None = None
    """Class of each; None of features, and if they were not asked for."""
    skipped: tuple[str, ...] = ()
    """Messages about lines of tables that were left out."""
    places: tuple[str, ...] = ()
    """Where each text stands."""

    @property
    def things(self) -> str:
        """What these samples are called, in the plural."""
        return {"images": "images", "text": "texts", "features": "samples"}[self.kind]

    def prepared(
        self, reader: Any, begin: Any, skip_bad: bool | None = None, then: str = "", what: str = ""
    ) -> Any:
        """Return samples, of which ``reader`` (`ModelFile` or `Classifier`) makes the features.

        ``skip_bad`` is None for commands that cannot leave out bad ones.
        """
        if self.kind == "features":
            return self.sources
        progress = begin(what or self.things, then)
        skips = bool(skip_bad)
        read = partial(reader.prepare, self.sources, self.labels, skip_bad=skips, progress=progress)
        found = _with_hint(read, skip_bad)
        return replace(found, skipped=(*self.skipped, *found.skipped))


def _with_hint(read: Callable[[], Any], skip_bad: bool | None) -> Any:
    """Read samples; if only some of them are bad, say how to leave these out, if that is possible."""
    from acil.encoders.images.embedder import UnreadableError

    try:
        return read()
    except UnreadableError as error:
        can = error.others and skip_bad is not None
        hint = " Or leave them out with --skip-bad." if can else ""
        raise InputError(f"{error}{hint}") from error


def given_or_typed(
    places: list[Path] | None, typed: list[str] | None, model: Path, columns: Columns, skip_bad: bool
) -> Given:
    """Return samples without labels: of places, or texts that were typed; "-" stands for typed lines."""
    piped = places == [Path("-")] or typed == ["-"]
    if bool(places) == bool(typed):
        raise typer.BadParameter(
            "Give images, tables or a file of features; or texts (--text TEXT, or - for a text a line).",
            param_hint="SAMPLES",
        )
    if places and not piped:
        return given(places, model=model, columns=columns, skip_bad=skip_bad, labelled=False)
    _require_kind("text", _encoder_of(model), model, "what is typed")
    if typed and not piped:
        return Given("text", typed)
    # Not splitlines, which also divides at characters that are part of a text.
    lines = sys.stdin.buffer.read().decode("utf-8-sig", errors="surrogateescape").split("\n")
    texts = [line.removesuffix("\r") for line in lines if line.strip()]
    if not texts:
        raise InputError("Standard input has no texts. Give one on each line.")
    return Given("text", texts)


def given(
    places: list[Path],
    class_name: str | None = None,
    *,
    model: Path | None = None,
    columns: Columns = (None, None),
    skip_bad: bool | None = None,
    labelled: bool | None = True,
) -> Given:
    """Return what these places hold, and say on stderr what was taken of tables.

    Parameters
    ----------
    places : list of Path
    class_name : str, optional
        Class of all.
    model : Path, optional
        A model file that says what it takes, if it is there.
    columns : tuple
        Of texts and of labels: these say that tables are of texts.
    skip_bad : bool, optional
        Leave out lines of tables that cannot be used; None if the command has no such option.
    labelled : bool or None, default=True
        Whether classes are asked for, by folders, tables or ``class_name``; None takes those there are.
    """
    from acil.encoders.images.listing import existing

    for place in places:
        existing(place)
    encoder = _encoder_of(model)
    kind = _kind_of(places, encoder, columns)
    if kind != "features":
        _require_kind(kind, encoder, model, str(places[0]))
    if kind == "features":
        from acil.encoders.tables import read_features

        if len(places) > 1:
            raise InputError("Give one file of features at a time, and nothing else with it.")
        return Given("features", read_features(places[0], class_name))
    if kind == "text":
        return _texts(places, class_name, columns, skip_bad, labelled)
    if labelled is None:
        labelled = class_name is not None or _has_classes(places)
    if not labelled:
        from acil.encoders.images.listing import list_files

        return Given("images", list_files(places))
    return Given("images", *_images(places, class_name))


def _require_kind(kind: str, encoder: str | None, model: Path | None, place: str) -> None:
    """Raise if a model, which takes what ``encoder`` says, is given something else."""
    if encoder == "features":
        from acil.encoders.stored import FromFeaturesError

        raise FromFeaturesError(plain(model))
    if encoder not in (kind, None):
        shown = {"images": "images", "text": "texts"}
        takes = shown[str(encoder)]
        raise InputError(
            f"{plain(model)} is a model of {takes}, and {plain(place)} is {shown[kind]}. Give {takes}, "
            "or another model."
        )


def _encoder_of(model: Path | None) -> str | None:
    if model is None or not model.exists():
        return None
    from acil.core.files import describe

    return str(describe(model)["encoder"])


def _kind_of(
    places: list[Path], encoder: str | None, columns: Columns
) -> Literal["images", "text", "features"]:
    """Say what these places hold: by flags, by what is in them, and for tables by the model."""
    from acil.encoders.images.listing import LISTS, holds_features, holds_images
    from acil.encoders.text.tables import is_text_table

    if any(columns) or any(is_text_table(place) for place in places if not holds_images(place)):
        return "text"
    if encoder == "text":
        # A table without the column, and a folder of nothing, are told by whoever reads them.
        tables = (*LISTS, ".parquet")
        unclear = all(
            not any(place.iterdir()) if place.is_dir() else place.suffix.lower() in tables
            for place in places
        )
        return "text" if unclear else "features" if any(map(holds_features, places)) else "images"
    return "features" if any(map(holds_features, places)) else "images"


def _texts(
    places: list[Path],
    class_name: str | None,
    columns: Columns,
    skip_bad: bool | None,
    labelled: bool | None,
) -> Given:
    from acil.encoders.text.tables import read_texts, where

    texts: list[str] = []
    labels: list[str] = []
    wanted = labelled is not False
    skipped: list[str] = []
    found: list[str] = []
    for place in places:
        read = partial(read_texts, place, *columns, skip_bad=bool(skip_bad), labelled=wanted)
        table = _with_hint(read, skip_bad)
        tell(f"taken: {plain(table.taken)}")
        if table.labels is not None and class_name is not None:
            raise InputError(f"{place} names the classes itself: leave out --class.")
        by_name = len(places) > 1 and place.is_dir()
        name = class_name or (place.resolve().name if by_name else None)
        if labelled and table.labels is None and name is None:
            raise InputError(
                f"{place} has no column of labels. Name it (--label-column NAME), or give one class for "
                "all (--class NAME)."
            )
        texts += table.texts
        labels += table.labels or ([] if name is None else [name] * len(table.texts))
        skipped += [f"{place}, {where(at)}: {reason}" for at, reason in table.bad]
        found += [f"{place.name}: {where(at)}" for at in table.places]
    known = labels if len(labels) == len(texts) and wanted else None
    return Given("text", texts, known, tuple(skipped), tuple(found))


def _has_classes(places: list[Path]) -> bool:
    """Say whether places of images name classes: folders in folders, lists, or several folders."""
    from acil.encoders.images.listing import LISTS

    several = len(places) > 1 and all(place.is_dir() for place in places)
    return several or any(has_folders(place) or place.suffix.lower() in LISTS for place in places)


def has_folders(place: Path) -> bool:
    """Say whether a path is a folder with folders in it, such as those of classes."""
    return place.is_dir() and any(path.is_dir() for path in place.glob("[!.]*"))


def _images(images: list[Path], class_name: str | None) -> tuple[list[Path], list[str]]:
    """Return images and labels as `ImageClassifier` takes them, from the arguments of a command.

    Of several folders, those without folders inside are classes of their name.
    """
    from acil.encoders.images.listing import first_of, list_images

    def label(place: Path) -> str | None:
        by_name = len(images) > 1 and place.is_dir() and not has_folders(place)
        return (place if place.is_symlink() else place.resolve()).name if by_name else None

    listings = [list_images(place, class_name or label(place)) for place in images]
    for listing in listings:
        if listing.ignored:
            names = plain(first_of([path.name for path in listing.ignored]))
            what = counted(len(listing.ignored), "entry", "entries")
            tell(f"ignored {what}, no image or in no class folder: {names}")
    paths = [path for listing in listings for path in listing.paths]
    return paths, [label for listing in listings for label in listing.labels]
