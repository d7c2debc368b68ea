"""Reports: tables and plots made from the records of one or more runs, and from nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from acil.bench.report.collect import BASE, Collection, collect
from acil.bench.report.page import Image, full_page, repeats_base, short_page, slugs, table_files
from acil.bench.rundir import made
from acil.core.files.writing import replacing
from acil.errors import InputError

#: Name of a report's directory inside a run's.
FOLDER = "report"
#: Kinds of plots.
PLOTS = ("accuracy", "phases", "origin", BASE, "width", "memory")


@dataclass(frozen=True)
class ReportFiles:
    """What `write_report` wrote."""

    files: tuple[Path, ...]
    #: The main tables, and what is unfinished.
    markdown: str
    #: The PNG files; accuracy over the phases, if drawn, comes first.
    plots: tuple[Path, ...]


def write_report(
    run_dirs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    plots: bool | Sequence[str] = True,
    title: str = "Report",
    page: str | os.PathLike[str] | None = None,
) -> ReportFiles:
    """Write tables (Markdown, CSV, LaTeX) and plots (PNG, SVG) of what the runs recorded.

    Every file is replaced as a whole; the page that shows all others, ``report.md``, comes last.

    ``run_dirs`` are run directories, files of records or folders of such files; if two have the same
    run, the later one counts. ``out`` is the directory to write to, by default ``report`` in the only
    run directory. ``plots`` may be a list of the kinds to draw (`PLOTS`). ``page`` is where to write the
    page instead; it shows the plots of ``out``.
    """
    directories = [run_dirs] if isinstance(run_dirs, str | os.PathLike) else list(run_dirs)
    if not directories:
        raise InputError("There is nothing to report on. Give at least one run directory.")
    if out is None and len(directories) > 1:
        raise InputError(
            f"These are {len(directories)} runs. Say where to write their report, with --out DIR."
        )
    kinds = PLOTS if isinstance(plots, bool) else tuple(plots)
    if not set(kinds) <= set(PLOTS):
        raise InputError(f"Plots are of the kinds {', '.join(PLOTS)}. Got {', '.join(kinds)}.")
    collection = collect(directories)
    images = _draw(collection, kinds) if plots else []
    files = {name: text.encode() for name, text in table_files(collection).items()}
    for image in images:
        files |= image.files
    first = Path(directories[0])
    beside = (first if first.is_dir() else first.parent) / FOLDER
    folder = beside if out is None else Path(out)
    _write(folder, files)
    shown = folder / "report.md" if page is None else Path(page)
    # Plots seen from the page, which may be in another folder
    seen = "" if page is None else Path(os.path.relpath(folder, shown.parent)).as_posix()
    _write(shown.parent, {shown.name: full_page(collection, images, title, seen).encode()})
    paths = (*(folder / name for name in files), shown)
    return ReportFiles(
        paths, short_page(collection), tuple(path for path in paths if path.suffix == ".png")
    )


def _draw(collection: Collection, kinds: tuple[str, ...]) -> list[Image]:
    # matplotlib is slow to import, and tables do not need it.
    from acil.bench.report.plots import figures, image_bytes, styled

    images = []
    with styled():
        for suite, comparisons in collection.suites.items():
            for slug, comparison in slugs(comparisons).items():
                if BASE in kinds and repeats_base(suite, comparison, collection):
                    continue
                for name, figure in figures(suite, comparison):
                    if name.partition("-")[0] not in kinds:
                        continue
                    caption = figure.get_suptitle().splitlines()[0]
                    files = {f"{name}-{slug}.{kind}": data for kind, data in image_bytes(figure).items()}
                    images.append(Image(suite, slug, caption, files))
    return images


def _write(folder: Path, files: dict[str, bytes]) -> None:
    made(folder)
    for name, content in files.items():
        with replacing(folder / name) as draft:
            draft.write_bytes(content)
