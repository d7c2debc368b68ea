"""`acil learn` and `acil forget`: add samples to a model, and remove them exactly."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from acil.cli.gate import HeldOut, MaxDrop, gate_of, require_gate, tell_measured
from acil.cli.given import ClassName, Given, LabelColumn, Labelled, TextColumn, given
from acil.cli.shared import (
    HEAD,
    AsJson,
    Backbone,
    Model,
    Undo,
    counted,
    echo_json,
    plain,
    process_count,
    short,
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
    samples: Labelled,
    model: Annotated[Path, typer.Option("--model", help="Model file, made or added to.")],
    class_name: ClassName = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    backbone: Backbone = None,
    track: Annotated[
        bool | None,
        typer.Option(
            "--track/--no-track",
            help="Keep salted hashes of the images in the file, and leave out those learnt before; of "
            "texts, a digest of each call of ten or more. Whoever has the file and an image, or all "
            "texts of a call, can then tell whether they were learnt (default: track in new models, and "
            "in others as before).",
        ),
    ] = None,
    undo: Undo = True,
    gate: HeldOut = None,
    max_drop: MaxDrop = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out unreadable images, and bad lines of tables.")
    ] = False,
    as_json: AsJson = False,
    **chosen: Any,
) -> None:
    """Learn images or texts, of new classes or known ones.

    Makes the model file or extends it; nothing learnt before is lost. No sample is stored. A model is
    bound to its network: with another one (--network), and all files that were learnt, it is learnt
    anew.
    """
    from acil.growing import ModelFile

    start = time.perf_counter()
    if process_count() > 1:
        raise InputError(
            "torchrun does not go with acil learn. Let processes learn shares of the samples into files "
            "of their own, and add these up with acil merge."
        )
    if not model.absolute().parent.is_dir():
        raise InputError(f"There is no folder {model.absolute().parent}. Create it first.")
    _require_new(model, chosen)
    if gate is not None or max_drop is not None:
        require_gate(gate, max_drop)
    columns, asked = (text_column, label_column), dict(chosen)

    def work(classifier: Any) -> Any:
        _require_new(model, asked)  # another process may have made it
        return classifier.learn(learnt)

    with shown_progress() as begin:
        found = given(samples, class_name, model=model, columns=columns, skip_bad=skip_bad)
        if found.kind == "features":
            if track and found.sources.identity is None:
                raise InputError("--track needs images, or features that acil embed has made.")
            if backbone is not None:
                raise InputError(
                    "--network is for images and texts: features have been made by a network already."
                )
        network, anew, tracks = None, False, track is not False
        if backbone is not None and model.exists():
            chosen, tracked = _settings_of(model)
            tracks = tracked if track is None else track
        new = _new(found, backbone, tracks, chosen)
        if backbone is not None and model.exists():
            network, anew = new.embedder, _another_network(model, new.embedder)
        if anew and gate is not None:
            raise InputError("--gate compares two states of one network. Leave it out.")
        file = ModelFile(model, new=lambda: new, backbone=network, track=track, undo=undo)
        # Before the lock: features take longest, and other processes may change the model meanwhile.
        learnt = found.prepared(new if anew else file, begin, skip_bad, HEAD)
        if gate is not None:
            file.gate = gate_of(gate, max_drop, file, begin, columns)
        begin(HEAD)
        change = file.learn_anew(learnt) if anew else file.change("learn", work)
    report, thing = change.report, change.after.thing
    tell_skipped(report.skipped)
    _tell_repeated(model, report, learnt, thing)
    seconds = time.perf_counter() - start
    n_samples = sum(report.counts.values())
    rate = len(learnt.digests) / learnt.seconds if learnt.seconds else None
    if as_json:
        facts = {"model": str(model), "seconds": seconds, f"{thing}s_per_second": rate}
        echo_json({**report.to_dict(), **facts, "held_out": change.measured})
        return
    if not report.counts:
        typer.echo(f"nothing new: {model} is unchanged")
        return
    show_counts(report.counts, report.totals)
    learnt_now, known = counted(n_samples, "sample"), counted(len(report.totals), "class", "classes")
    speed = "" if rate is None else f"features {rate:.0f} {thing}s/s, "
    typer.echo(
        f"{learnt_now} in {seconds:.1f} s ({speed}head {report.head_seconds:.2f} s); "
        f"{model} knows {known}"
    )
    if anew:
        tell(f"learnt anew with the network {change.after.source}; the model before had another")
    if change.measured is not None:
        tell_measured(change.measured)
    _tell_gamma(model)
    states = file.undo_left
    if states:
        tell(
            f"acil undo {shlex.quote(str(model))} takes this back; the state before is kept for it "
            "(--no-undo)"
        )
    if states == 1:  # once is enough
        tell_recoverable(model, n_samples, f"{model} as it was and as it is")
    if n_samples == sum(report.totals.values()) and change.after.tracker.active:
        kept = "a salted hash of each image, and no image: none is learnt twice"
        if thing == "text":
            kept = (
                "no text, and a digest of each call of ten texts or more: the same file is not learnt "
                "twice"
            )
        tell(f"{model} keeps {kept}. With --no-track it keeps none.")


def _new(found: Given, network: Any, track: bool, settings: dict[str, Any]) -> Any:
    """Return a classifier that has learnt nothing, for what was given."""
    from acil.growing import ImageClassifier, TextClassifier

    of_text = found.kind == "text" or getattr(found.sources, "encoder", None) == "text"
    return (TextClassifier if of_text else ImageClassifier)(network, track=track, **settings)


def _settings_of(model: Path) -> tuple[dict[str, Any], bool]:
    """Return what was chosen when a model was made, and whether it tracks samples."""
    from acil.core.files import describe

    header = describe(model)
    names = ("expansion_size", "gamma", "random_state", "clip_norm", "min_class_samples")
    tracks = bool((header["images"] or {}).get("tracked"))
    return {name: header["parameters"][name] for name in names}, tracks


def _another_network(model: Path, network: Any) -> bool:
    """Say whether a model file was learnt with another network than this one."""
    from acil.core.files import describe

    learnt = describe(model)["backbone"]
    return learnt is not None and not network.predicts_for(learnt)


def _tell_gamma(model: Path) -> None:
    """Say if γ was not chosen again, because few samples came."""
    from acil.core.files import describe

    header = describe(model)
    if 0 < header["gamma_samples"] < header["n_samples"]:
        tell(
            f"γ was kept as chosen from {counted(header['gamma_samples'], 'sample')}: it is chosen anew "
            "when there are twice as many, or when many come at once"
        )


def _tell_repeated(model: Path, report: Any, learnt: Any, thing: str) -> None:
    """Say on stderr which samples came before, or twice."""
    from acil.core.files.header import in_order
    from acil.encoders.images.listing import first_of

    for several, how, each in (
        (report.duplicates, "more than once", "each time"),
        (report.contradictions, "under several classes", "for each"),
    ):
        if several:
            one, more = (
                f"{thing} comes {how}, and counts {each}",
                f"{thing}s come {how}, and count {each}",
            )
            named = plain(first_of([short(text) for text in several]))
            tell(f"{counted(len(several), one, more)} ({named})")
    if not report.repeated:
        return
    if thing == "text":
        tell(
            f"left out: {counted(len(report.repeated), thing)}: they were learnt together before. To "
            f"give them other classes, acil forget {shlex.quote(str(model))} them first; to learn them "
            "once more, add --no-track, which drops the digests of all calls"
        )
        return
    pairs = dict(report.twins)
    if before := [image for image in report.repeated if image not in pairs]:
        tell(f"left out: {counted(len(before), 'image')} learnt already ({plain(first_of(before))})")
    if pairs:
        same = first_of([f"{image} is {twin}" for image, twin in pairs.items()])
        tell(f"left out: {counted(len(pairs), 'image')} given twice ({plain(same)})")
    if report.misplaced:
        some = counted(len(report.misplaced), "of them was", "of them were")
        again = "it" if len(report.misplaced) == 1 else "them"
        tell(
            f"{some} learnt as another class: to correct that, acil forget "
            f"{shlex.quote(str(model))} IMAGE --class OLD first, then learn {again} again"
        )
    if missing := in_order({*learnt.names} - {*report.totals}):
        tell(
            f"nothing learnt of {plain(', '.join(missing))}: all its images were learnt under "
            "another class"
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
    samples: Labelled,
    class_name: ClassName = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    undo: Undo = True,
    gate: HeldOut = None,
    max_drop: MaxDrop = None,
    as_json: AsJson = False,
    backbone: Backbone = None,
) -> None:
    """Remove images or texts, as if they had never been learnt.

    Give the same files, under the same class. A class of which all samples are given disappears. This is
    exact for the head, which is all that learns here; a network that was trained on these samples still
    knows them. Earlier states, which have the samples, stay for `acil undo` unless --no-undo is given.
    Single texts are not tracked: only you know that they had been learnt, and under this class.
    """
    from acil.growing import ModelFile

    if gate is not None or max_drop is not None:
        require_gate(gate, max_drop)
    columns = text_column, label_column
    found = given(samples, class_name, model=model, columns=columns)
    file = ModelFile(model, backbone=backbone, undo=undo)
    with shown_progress() as begin:
        gone = found.prepared(file, begin)
        if gate is not None:
            file.gate = gate_of(gate, max_drop, file, begin, columns)
        begin(HEAD)
        change = file.forget(gone)
    report, tracker = change.report, change.after.tracker
    receipts, receipt = change.receipt or (None, None)
    if as_json:
        facts = {"model": str(model), "receipt": receipt, "undo_left": file.undo_left}
        echo_json({**report.to_dict(), **facts, "held_out": change.measured})
        return
    show_counts(report.counts, report.totals)
    lost = [name for name in report.counts if name not in report.totals]
    if lost:
        typer.echo(f"no longer known: {', '.join(lost)}")
    number = len(gone.labels)
    them = "it" if number == 1 else "them"
    now = f"the head of {model} is now the one that never learnt {them}"
    if tracker.known(gone.digests):
        now = f"{model} still has what another model had learnt of {them} before they were merged"
    typer.echo(f"forgot {counted(number, 'sample')}: {now}. The network in front of it forgets nothing.")
    if change.measured is not None:
        tell_measured(change.measured)
    tell(
        f"Receipt: {receipts}. Whoever has a copy of the file from before can recover {them}: delete "
        "all copies."
    )
    thing = change.after.thing
    if thing == "text" or len(tracker) < sum(report.totals.values()):
        which = "a model that does not track all its images (acil learn --track)"
        which = "a model of texts, which does not track each of them," if thing == "text" else which
        which = "a model of features" if gone.identity is None else which
        tell(
            f"This holds if {them if number == 1 else 'they'} had been learnt under the class given: "
            f"{which} cannot always tell."
        )
    if file.undo_left:
        undone = f"acil undo {shlex.quote(str(model))}"
        tell(
            f"{undone} takes this back: the states before this change are kept, and they still have "
            f"{f'this {thing}' if number == 1 else f'these {thing}s'}. To delete them: {undone} --remove"
        )


def show_counts(counts: dict[str, int], totals: dict[str, int]) -> None:
    """Print a table of classes: samples of this call, and samples in the model."""
    rows = [(name, count, totals.get(name, 0)) for name, count in counts.items()]
    typer.echo(table([("class", "samples", "in model"), *rows], right=(1, 2)))
