"""`acil predict`, `acil evaluate` and `acil embed`: classes of samples, accuracy, and features."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from acil.cli.given import (
    ClassName,
    LabelColumn,
    Labelled,
    SkipBad,
    TextColumn,
    given,
    given_or_typed,
)
from acil.cli.shared import (
    HEAD,
    AsJson,
    Backbone,
    Force,
    Model,
    counted,
    echo_json,
    plain,
    require_free,
    short,
    shown_progress,
    table,
    tell,
    tell_skipped,
)
from acil.errors import InputError, MissingExtraError
from acil.extras import install

#: With so many classes numbers fit into the cells of a confusion matrix; so many cells and names into it
#: at its largest, and so many pairs and letters of a name beside it.
_MOST_NUMBERS, _MOST_CELLS, _MOST_NAMES, _MOST_PAIRS, _LONGEST_NAME = 25, 600, 80, 45, 24
#: Right images of a smaller probability are doubtful.
_SURE = 0.9
_CANNOT_TELL = (
    "This model cannot tell what is unknown: it has no exact sums, or was put together without "
    "calibration."
)


class Format(StrEnum):
    """How predictions are printed."""

    table = "table"
    csv = "csv"
    json = "json"


def predict(
    model: Model,
    samples: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Images, folders, CSV of path,label; tables or folders of texts, or - for a text a "
            "line of standard input (empty ones are left out); or a file of features (npz, parquet, "
            "csv).",
            metavar="SAMPLES",
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="A text, instead of files; may be given again. - for a text a line of standard input."
        ),
    ] = None,
    text_column: TextColumn = None,
    top: Annotated[int, typer.Option(min=1, help="Number of classes to name.")] = 3,
    unknown_above: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Call a sample unknown when its novelty is beyond this (default: 1, beyond which are "
            "5 % of samples of the classes learnt). 0 calls none unknown.",
        ),
    ] = None,
    skip_bad: SkipBad = True,
    format_: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.table,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write them here instead (.csv, .jsonl or .parquet)."),
    ] = None,
    sort: Annotated[
        Path | None,
        typer.Option(
            "--sort-into",
            help="Make a new folder here, with links to the images in a folder for each class, and for "
            "unknown ones.",
            metavar="FOLDER",
        ),
    ] = None,
    copies: Annotated[bool, typer.Option("--copy", help="Copies instead of links.")] = False,
    force: Force = False,
    as_json: AsJson = False,
    backbone: Backbone = None,
) -> None:
    """Name the class of images or texts, or "unknown".

    A file or line that cannot be read is reported on stderr, and the others are named; only if none can
    be read, the command fails. With --strict it fails at any such file. In CSV, a name that begins with
    =, +, - or @, which a spreadsheet would run as a formula, has an apostrophe before it.
    """
    if as_json and format_ is Format.csv:
        raise typer.BadParameter("It contradicts --format csv: give one.", param_hint="--json")
    if copies and sort is None:
        raise typer.BadParameter("It belongs to --sort-into FOLDER: give both.", param_hint="--copy")
    from acil.growing import UNKNOWN_ABOVE, load_classifier
    from acil.growing.outputs import (
        require_new_folder,
        require_table,
        sort_into,
        write_csv,
        write_predictions,
    )

    if output is not None:
        require_free(output, force)
        require_table(output)
    if sort is not None:
        require_new_folder(sort)
    asked = given_or_typed(samples, text, model, (text_column, None), skip_bad)
    if sort is not None and asked.kind != "images":
        raise InputError("--sort-into needs images: texts, and rows of features, are no files.")
    threshold = UNKNOWN_ABOVE if unknown_above is None else unknown_above or None
    with shown_progress() as begin:
        progress = begin(HEAD if asked.kind == "features" else asked.things, HEAD)
        classifier = load_classifier(model, backbone=backbone, inference=threshold is None)
        answers = classifier.classify(asked.sources, top, threshold, progress, skip_bad=skip_bad)
        if output is not None:
            write_predictions(answers, output)
        sorted_ = None if sort is None else sort_into(sort, answers, copies)
    tell_skipped(asked.skipped)
    predictions = [prediction for prediction in answers if prediction.error is None]
    tell_skipped(prediction.error for prediction in answers if prediction.error is not None)
    if threshold is not None and predictions[0].novelty is None:
        tell(_CANNOT_TELL)
    if as_json or format_ is Format.json:
        echo_json([prediction.to_dict() for prediction in answers])
    elif format_ is Format.csv:
        write_csv(predictions, sys.stdout)
    elif output is None and sort is None:
        _show(predictions)
    if output is not None:
        tell(f"{output}  {counted(len(predictions), 'sample')}")
    if sorted_ is not None:
        typer.echo(table([("folder", "images"), *sorted_.items()], right=(1,)))
        tell(f"{sort}  {'copies' if copies else 'links'} in {counted(len(sorted_), 'folder')}")


def _show(predictions: list[Any]) -> None:
    rows = []
    for prediction in predictions:
        novelty = [] if prediction.novelty is None else [f"novelty {prediction.novelty:4.2f}"]
        top = "  ".join(f"{name} {share:.0%}" for name, share in prediction.top)
        rows.append([_name(prediction), prediction.label, *novelty, top])
    typer.echo(table(rows))


def _name(prediction: Any) -> str:
    """Return what a sample is called, of a length for people."""
    found: str = prediction.image
    return short(found) if prediction.thing == "text" else found


def evaluate(
    model: Model,
    samples: Labelled,
    class_name: ClassName = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Write a page here (.html) that one looks at, with samples in it: one file."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write the confusion matrix alone as PNG here.")
    ] = None,
    show: Annotated[
        int, typer.Option(min=0, help="Number of wrong samples, and of doubtful ones, to name.")
    ] = 5,
    skip_bad: SkipBad = True,
    force: Force = False,
    as_json: AsJson = False,
    backbone: Backbone = None,
) -> None:
    """Compare predictions with the true classes of samples.

    Accuracies are in percent and count the likeliest class, also of samples that are called unknown. A
    file or line that cannot be read is reported on stderr and counts nowhere; with --strict the command
    fails. Wrong samples are named, those first of which the model is surest that they are of another
    class, and right ones that it gives less than 90 %. The page of --report shows them, and what is
    confused with what; it has samples in it, and only you may read it.
    """
    for path in (report, plot):
        if path is not None:
            require_free(path, force)
    if report is not None and report.suffix.lower() not in (".html", ".htm"):
        raise typer.BadParameter("Give a name that ends with .html.", param_hint="--report")
    columns = text_column, label_column
    asked = given(samples, class_name, model=model, columns=columns, skip_bad=skip_bad)
    from acil.growing import load_classifier

    with shown_progress() as begin:
        progress = begin(HEAD if asked.kind == "features" else asked.things, HEAD)
        classifier = load_classifier(model, backbone=backbone)
        evaluation = classifier.evaluate(
            asked.sources, asked.labels, skip_bad=skip_bad, progress=progress
        )
        if report is not None:
            begin("writing the report")
            evaluation.to_html(report, model.name)
    skipped = (*asked.skipped, *evaluation.skipped)
    tell_skipped(skipped)
    if plot is not None:
        _draw(evaluation, plot)
    tells = (*evaluation.right, *evaluation.wrong)[0][1].novelty is not None
    if not tells:
        tell(_CANNOT_TELL)
    if evaluation.not_learnt:
        called = f"; {evaluation.not_learnt_unknown} called unknown" if tells else ""
        tell(
            f"left out: {counted(sum(evaluation.not_learnt.values()), 'sample')} of classes not learnt "
            f"({', '.join(map(plain, evaluation.not_learnt))}){called}"
        )
    if as_json:
        echo_json({**evaluation.to_dict(), "skipped": skipped})
        return
    # What matters most comes last: it stays in sight.
    rows = [(name, f"{accuracy:.2f} %") for name, accuracy in evaluation.per_class.items()]
    typer.echo(table(rows, right=(1,)))
    _show_samples("wrong", evaluation.wrong, show)
    doubtful = [
        (name, prediction) for name, prediction in evaluation.right if prediction.top[0][1] < _SURE
    ]
    _show_samples("doubtful", doubtful, show)
    called = f"; {sum(evaluation.unknown.values())} called unknown" if tells else ""
    low, high = evaluation.interval
    typer.echo(
        f"accuracy {evaluation.accuracy:.2f} % of {counted(evaluation.images, 'sample')} "
        f"(95 % interval {low:.1f} to {high:.1f}){called}"
    )
    if report is not None:
        tell(f"{report}  contains samples; only you may read it")
    if plot is not None:
        tell(str(plot))


def _show_samples(what: str, pairs: Sequence[tuple[str, Any]], show: int) -> None:
    """Print a line for each of the first samples: its class, and the one that the model names."""
    rows = []
    for name, prediction in pairs[:show]:
        likeliest, share = prediction.top[0]
        instead = f"taken for {likeliest} " if what == "wrong" else ""
        rows.append((what, _name(prediction), name, f"{instead}{share:.0%}"))
    if rows:
        typer.echo(table(rows))
    if what == "wrong" and 0 < show < len(pairs):
        typer.echo(f"… and {len(pairs) - show:,} more wrong")


def _draw(evaluation: Any, path: Path) -> None:
    """Draw the confusion matrix, in percent of each true class; the image does not grow with classes.

    Of more than a few classes cells have no numbers, names stand where there is room, and the pairs that
    are most often confused stand beside the matrix.
    """
    import numpy as np

    try:
        from matplotlib.colors import Normalize, PowerNorm
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            f"Drawing needs the package matplotlib, which is not installed. Install it with: "
            f"{install('bench')}"
        ) from error

    from acil.core.files.writing import replacing

    n = len(evaluation.classes)
    few = n <= _MOST_NUMBERS
    side = 2.5 + 0.45 * min(n, _MOST_NUMBERS)
    figure = Figure(figsize=(side + (1 if few else 5), side), layout="constrained")
    # There are no more of these than images; a copy of the matrix could be large.
    rows, columns = np.nonzero(evaluation.confusion)
    percent = 100 * evaluation.confusion[rows, columns] / evaluation.confusion.sum(axis=1)[rows]
    step = -(-n // _MOST_CELLS)
    shares = np.zeros((-(-n // step),) * 2)
    # The largest where a cell stands for several classes: in a mean, rare confusions would fade away.
    np.maximum.at(shares, (rows // step, columns // step), percent)
    if few:
        axes = figure.subplots()
    else:
        axes, beside = figure.subplots(1, 2, width_ratios=(side - 1, 4))
        beside.axis("off")
        text = _confused(evaluation, rows, columns)
        beside.text(0, 1, text, va="top", fontsize=10, linespacing=1.4, parse_math=False)
    image = axes.imshow(
        shares,
        cmap="Blues",
        # Where there is no room for numbers, small ones have to be seen, too.
        norm=Normalize(0, 100) if few else PowerNorm(0.5, 0, 100),
        extent=(-0.5, n - 0.5, n - 0.5, -0.5),
        interpolation="nearest",
    )
    figure.colorbar(image, ax=axes, label="% of the true class", shrink=0.6, aspect=30)
    named = range(0, n, -(-n // _MOST_NAMES))
    names = [_short(evaluation.classes[i]) for i in named]
    size = 10 if few else 7
    axes.set_yticks(named, names, fontsize=size, parse_math=False)
    axes.set_xticks(
        named, names, fontsize=size, parse_math=False, rotation=45 if few else 90,
        ha="right" if few else "center", rotation_mode="anchor" if few else "default",
    )  # fmt: skip
    several = f"; a cell shows the largest share of {step} x {step} classes" if step > 1 else ""
    axes.set_title(f"accuracy {evaluation.accuracy:.1f} %{several}")
    axes.set(xlabel="predicted class", ylabel="true class")
    for (i, j), share in np.ndenumerate(shares) if few else ():
        axes.text(j, i, f"{share:.0f}", ha="center", va="center", color="w" if share > 50 else "k")
    with replacing(path) as draft, warnings.catch_warnings(record=True) as said:
        warnings.filterwarnings("always", message=r"Glyph .* missing from font")
        figure.savefig(draft, format="png", dpi=120)
    if any("missing from font" in str(warning.message) for warning in said):
        tell(f"{path} shows boxes where its font lacks a letter of a class name. The table has all.")


def _confused(evaluation: Any, rows: Any, columns: Any) -> str:
    """Return lines about the pairs of classes most often confused, of cells that are not empty."""
    counts, totals = evaluation.confusion[rows, columns], evaluation.confusion.sum(axis=1)
    order = (-counts).argsort(kind="stable")
    wrong = order[rows[order] != columns[order]]
    lines = ["Most often taken for another class:", ""]
    for k in wrong[:_MOST_PAIRS]:
        pair = " → ".join(_short(evaluation.classes[i]) for i in (rows[k], columns[k]))
        lines.append(f"{counts[k]:,} of {totals[rows[k]]:,}   {pair}")
    if len(wrong) > _MOST_PAIRS:
        lines.append(f"… and {len(wrong) - _MOST_PAIRS:,} more pairs")
    return "\n".join(lines)


def _short(name: str) -> str:
    shown = plain(name)
    return shown if len(shown) <= _LONGEST_NAME else f"{shown[: _LONGEST_NAME - 1]}…"


def embed(
    samples: Annotated[
        list[Path],
        typer.Argument(
            help="Images, or folders: of images, or one for each class. Or tables or folders of texts.",
            metavar="SAMPLES",
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="File of features to write (.npz).")],
    class_name: ClassName = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    backbone: Backbone = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out unreadable images, and bad lines of tables.")
    ] = False,
    force: Force = False,
) -> None:
    """Write the features of images or texts to a file.

    `acil learn`, `predict` and `evaluate` take it instead of the samples. Labels are those of class
    folders and tables, or that of --class; others have none. The file has no text.
    """
    require_free(out, force)
    if out.suffix.lower() != ".npz":
        raise typer.BadParameter("Give a name that ends with .npz.", param_hint="--out")
    from acil.encoders.tables import write_features
    from acil.growing import ImageClassifier, TextClassifier

    columns = text_column, label_column
    found = given(samples, class_name, columns=columns, skip_bad=skip_bad, labelled=None)
    if found.kind == "features":
        raise InputError(f"{samples[0]} has features already. Give images or texts.")
    with shown_progress() as begin:
        reader = (TextClassifier if found.kind == "text" else ImageClassifier)(backbone)
        made = found.prepared(reader, begin, skip_bad)
    tell_skipped(made.skipped)
    write_features(out, replace(made, images=found.places) if found.places else made)
    rows, width = made.features.shape
    labelled = "no " if found.labels is None else ""
    typer.echo(f"{out}  {counted(rows, 'row')} of {width} features, {labelled}labels")
