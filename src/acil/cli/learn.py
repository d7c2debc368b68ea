"""`acil learn` and `acil forget`: add images to a model, and remove them exactly."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from acil.cli.gate import HeldOut, MaxDrop, gate_of, require_gate, tell_measured
from acil.cli.shared import (
    HEAD,
    AsJson,
    Backbone,
    ClassName,
    LabelledImages,
    Model,
    Undo,
    counted,
    echo_json,
    given,
    plain,
    shown_progress,
    table,
    tell,
    tell_recoverable,
    tell_skipped,
    with_parameters,
)
from acil.core.parameters import PARAMETERS
from acil.errors import InputError


@with_parameters
def learn(
    images: LabelledImages,
    model: Annotated[Path, typer.Option("--model", help="Model file, made or added to.")],
    class_name: ClassName = None,
    backbone: Backbone = None,
    track: Annotated[
        bool | None,
        typer.Option(
            "--track/--no-track",
            help="Keep salted hashes of the images in the file, and leave out those learnt before. "
            "Whoever has the file and an image can then tell whether it was learnt (default: track in "
            "new models, and in others as before).",
        ),
    ] = None,
    undo: Undo = True,
    gate: HeldOut = None,
    max_drop: MaxDrop = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out unreadable images.")] = False,
    as_json: AsJson = False,
    **chosen: Any,
) -> None:
    """Learn images of new classes, or more of known ones.

    Makes the model file or extends it; nothing learnt before is lost. The images are not stored.
    """
    from acil.core.files.header import in_order
    from acil.encoders.images.embedder import UnreadableError
    from acil.encoders.images.listing import first_of
    from acil.growing import ImageClassifier, ModelFile
    from acil.scale import launched

    start = time.perf_counter()
    if launched():
        raise InputError(
            "torchrun does not go with acil learn. Let processes learn shares of the images into files "
            "of their own, and add these up with acil merge."
        )
    if not model.absolute().parent.is_dir():
        raise InputError(f"There is no folder {model.absolute().parent}. Create it first.")
    _require_new(model, chosen)
    require_gate(gate, max_drop)
    new = ImageClassifier(backbone, track=track is not False, **chosen)
    file = ModelFile(model, new=lambda: new, backbone=backbone, track=track, undo=undo)

    def work(classifier: Any) -> Any:
        _require_new(model, chosen)  # another process may have made it
        return classifier.learn(samples)

    with shown_progress() as begin:
        samples, labels = given(images, class_name)
        if labels is not None:
            # Before the lock: features take longest, and other processes may change the model meanwhile.
            try:
                progress = begin("images", HEAD)
                samples = file.prepare(samples, labels, skip_bad=skip_bad, progress=progress)
            except UnreadableError as error:
                hint = " Or leave them out with --skip-bad." if error.others else ""
                raise InputError(f"{error}{hint}") from error
        elif track and samples.identity is None:
            raise InputError("--track needs images, or features that acil embed has made.")
        elif backbone is not None:
            raise InputError("--backbone is for images: features have been made by a network already.")
        else:
            begin(HEAD)
        file.gate = gate_of(gate, max_drop, file, begin)
        change = file.change("learn", work)
    report = change.report
    tell_skipped(report.skipped)
    pairs = dict(report.twins)
    if before := [image for image in report.repeated if image not in pairs]:
        tell(f"left out: {counted(len(before), 'image')} learnt already ({plain(first_of(before))})")
    if pairs:
        same = first_of([f"{image} is {twin}" for image, twin in pairs.items()])
        tell(f"left out: {counted(len(pairs), 'image')} given twice ({plain(same)})")
    if report.repeated:
        if report.misplaced:
            some = counted(len(report.misplaced), "of them was", "of them were")
            again = "it" if len(report.misplaced) == 1 else "them"
            tell(
                f"{some} learnt as another class: to correct that, acil forget "
                f"{shlex.quote(str(model))} IMAGE --class OLD first, then learn {again} again"
            )
        missing = in_order({*samples.names} - {*report.totals})
        if missing:
            tell(
                f"nothing learnt of {plain(', '.join(missing))}: all its images were learnt under "
                "another class"
            )
    seconds = time.perf_counter() - start
    n_images = sum(report.counts.values())
    rate = len(samples.digests) / samples.seconds if samples.seconds else None
    if as_json:
        facts = {"model": str(model), "seconds": seconds, "images_per_second": rate}
        echo_json({**report.to_dict(), **facts, "held_out": change.measured})
        return
    if not report.counts:
        typer.echo(f"nothing new: {model} is unchanged")
        return
    show_counts(report.counts, report.totals)
    learnt_now, known = counted(n_images, "sample"), counted(len(report.totals), "class", "classes")
    speed = "" if rate is None else f"features {rate:.0f} images/s, "
    typer.echo(
        f"{learnt_now} in {seconds:.1f} s ({speed}head {report.head_seconds:.2f} s); "
        f"{model} knows {known}"
    )
    tell_measured(change.measured)
    states = file.undo_left
    if states:
        tell(
            f"acil undo {shlex.quote(str(model))} takes this back; the state before is kept for it "
            "(--no-undo)"
        )
    if states == 1:  # once is enough
        tell_recoverable(model, n_images, f"{model} as it was and as it is")
    if n_images == sum(report.totals.values()) and track is not False and samples.identity:
        tell(
            f"{model} keeps a salted hash of each image, and no image: none is learnt twice. With "
            "--no-track it keeps none."
        )


def _require_new(model: Path, chosen: dict[str, Any]) -> None:
    """Raise if options for a new model are given for one that exists."""
    if chosen and model.exists():
        flags = ", ".join(f"--{PARAMETERS[name].option}" for name in chosen)
        raise InputError(
            f"{model} exists, and {', '.join(chosen)} was chosen when it was made. Leave out {flags}, "
            "or make a new model."
        )


def forget(
    model: Model,
    images: LabelledImages,
    class_name: ClassName = None,
    undo: Undo = True,
    gate: HeldOut = None,
    max_drop: MaxDrop = None,
    as_json: AsJson = False,
    backbone: Backbone = None,
) -> None:
    """Remove images, as if they had never been learnt.

    Give the same files, under the same class. A class of which all images are given disappears. This is
    exact for the head, which is all that learns here; a network that was trained on these images still
    knows them. Earlier states, which have the images, stay for `acil undo` unless --no-undo is given.
    """
    from acil.growing import ModelFile

    require_gate(gate, max_drop)
    samples, labels = given(images, class_name)
    file = ModelFile(model, backbone=backbone, undo=undo)
    with shown_progress() as begin:
        if labels is not None:
            samples = file.prepare(samples, labels, progress=begin("images"))
        file.gate = gate_of(gate, max_drop, file, begin)
        begin(HEAD)
        change = file.forget(samples)
    report, tracker = change.report, change.after.tracker
    receipts, receipt = change.receipt or (None, None)
    if as_json:
        facts = {"model": str(model), "receipt": receipt, "undo_left": file.undo_left}
        echo_json({**report.to_dict(), **facts, "held_out": change.measured})
        return
    show_counts(report.counts, report.totals)
    gone = [name for name in report.counts if name not in report.totals]
    if gone:
        typer.echo(f"no longer known: {', '.join(gone)}")
    number = len(samples.labels)
    them = "it" if number == 1 else "them"
    now = f"the head of {model} is now the one that never learnt {them}"
    if tracker.known(samples.digests):
        now = f"{model} still has what another model had learnt of {them} before they were merged"
    typer.echo(f"forgot {counted(number, 'sample')}: {now}. The network in front of it forgets nothing.")
    tell_measured(change.measured)
    tell(
        f"Receipt: {receipts}. Whoever has a copy of the file from before can recover {them}: delete "
        "all copies."
    )
    if len(tracker) < sum(report.totals.values()):
        which = "a model that does not track all its images (acil learn --track)"
        which = "a model of features" if samples.identity is None else which
        tell(
            f"This holds if {them if number == 1 else 'they'} had been learnt under the class given: "
            f"{which} cannot always tell."
        )
    if file.undo_left:
        undone = f"acil undo {shlex.quote(str(model))}"
        tell(
            f"{undone} takes this back: the states before this change are kept, and they still have "
            f"{'this image' if number == 1 else 'these images'}. To delete them: {undone} --remove"
        )


def show_counts(counts: dict[str, int], totals: dict[str, int]) -> None:
    """Print a table of classes: samples of this call, and samples in the model."""
    rows = [(name, count, totals.get(name, 0)) for name, count in counts.items()]
    typer.echo(table([("class", "samples", "in model"), *rows], right=(1, 2)))
