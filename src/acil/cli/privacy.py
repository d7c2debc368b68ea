"""`acil audit`: attack a model file, and say what came out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acil.cli.given import given
from acil.cli.shared import (
    AsJson,
    Backbone,
    Model,
    counted,
    echo_json,
    plain,
    shown_progress,
)

if TYPE_CHECKING:
    from acil.privacy import Audit

#: Classes that a report names.
_NAMED = 8
_WAYS = {"leverage": "from gram", "score": "from the score of its class"}


def audit(
    model: Model,
    previous: Annotated[
        Path | None,
        typer.Option(help="Another state of the same model: before learning, or before forgetting."),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            help="Images that were learnt (between the states), to compare with the attack: one folder "
            "for each class, CSV of path,label, or images without labels. Or texts, with the labels of "
            "their table, or a file of features."
        ),
    ] = None,
    others: Annotated[
        Path | None,
        typer.Option(
            help="Samples that were not learnt, given like --images: can the two be told apart?"
        ),
    ] = None,
    as_json: AsJson = False,
    backbone: Backbone = None,
) -> None:
    """Attack a model file: find samples in it that were learnt.

    Tries what whoever has the file can try: small classes, samples between two states, membership. That
    the attack finds nothing does not prove that nothing can be found.
    """
    from acil.core.files import load
    from acil.privacy import audit as attack

    loaded = load(model)
    facts: dict[str, Any] = {}
    with shown_progress() as begin:
        names = (images, "features", "labels"), (others, "others", "other_labels")
        for place, rows, labels in names:
            if place is not None:
                from acil.growing import reader_of

                source = given([place], model=model, labelled=None)
                reader = None if source.kind == "features" else reader_of(model, backbone)
                samples = source.prepared(reader, begin)
                facts |= {rows: samples.rows_for(loaded), labels: samples.labels}
        begin("attacking")
        audited = attack(loaded, None if previous is None else load(previous), **facts)
    if as_json:
        files = {"model": str(model), "previous": None if previous is None else str(previous)}
        echo_json({**files, **audited.to_dict()})
        return
    typer.echo(report(audited, plain(model), None if previous is None else plain(previous)))


def report(findings: Audit, model: str, previous: str | None) -> str:
    """Return one page about an attack on files of these names."""
    lines = [f"Attack on {model}" + ("" if previous is None else f" and {previous}"), ""]
    if findings.private:
        lines.append("The model is a differentially private release.")
    if findings.kind == "weights":
        lines.append("The file can only predict: the attack has weights, and no sums over samples.")
    if findings.few:
        named = ", ".join(f"{plain(name)} ({n})" for name, n in list(findings.few.items())[:_NAMED])
        more = " …" if len(findings.few) > _NAMED else ""
        lines.append(f"Classes of few samples: {named}{more}.")
        if 1 in findings.few.values() and findings.kind == "sums" and not findings.private:
            lines.append("The sum of a class of one sample is the features of that sample.")
    what = f"Samples {findings.direction} between the states" if previous is not None else "Samples"
    lines.append(f"{what}: {findings.learnt:,}")
    if findings.rank is None:
        why = "there are too many" if findings.learnt else "both states have as many"
        if findings.kind == "weights":
            why = "one file of weights does not tell them apart"
        lines.append(f"Groups of samples were not looked for: {why}.")
    rank = "" if findings.rank is None else f" (rank {findings.rank:,})"
    lines.append(f"Recovered, with their classes: {findings.recovered:,}{rank}")
    if findings.recovered:
        back = "follow" if findings.features_recovered else "do not follow"
        lines.append(f"The features of the backbone {back} from them.")
    if findings.cosines:
        close = sum(cosine >= 0.999 for cosine in findings.cosines)
        lines.append(
            f"Found of {counted(len(findings.cosines), 'sample')} given (cosine ≥ 0.999): {close:,}; "
            f"mean cosine {sum(findings.cosines) / len(findings.cosines):.4f}"
        )
    for way, result in findings.membership.items():
        lines.append(
            f"Membership {_WAYS[way]}: area under the ROC curve {result.area:.3f} (chance 0.5), "
            f"{result.found:.1%} found at 0.1 % false positives"
        )
    from acil.privacy import SCOPE

    lines += ["", SCOPE, "An attack that fails proves nothing. See docs/privacy.md."]
    return "\n".join(lines)
