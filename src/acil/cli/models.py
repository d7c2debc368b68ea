"""`acil inspect`, `acil verify`, `acil merge` and `acil export`: model files."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from acil.cli.gate import HeldOut, MaxDrop, gate_of, require_gate, tell_measured
from acil.cli.shared import (
    AsJson,
    Backbone,
    Force,
    Model,
    counted,
    echo_json,
    plain,
    require_free,
    shown_progress,
    table,
    tell,
    tell_recoverable,
)
from acil.core.parameters import PARAMETERS
from acil.errors import InputError

#: Parameters that are not among the options: other lines say them.
_OTHER_LINES = (
    *("expansion_size", "gamma", "activation", "solver", "dtype", "random_state", "device", "scores"),
    "standardize",
)
#: Classes shown to people; machines get all.
_MOST_CLASSES = 30
#: The parts that grow with the square of the width and let a model learn.
_SUMS = ("gram", "moment", "total", "rfaum")

_REVEALS = {
    "gram": "Stores no sample; gram and moment are sums over samples and can reveal information about "
    "them (with one sample they are that sample).",
    "recursive": "Stores no sample; rfaum and coef are computed from sums over samples and can reveal "
    "information about them (with one sample they determine it).",
    "inference": "Stores no sample, no sums over samples and no γ. It has the names and counts of the "
    "classes, the name and hash of the network, and weights. With no more samples than features, "
    "weights can give back the features of single samples but for one number (γ), which can be guessed.",
}
_FEW = " This is so here: treat the file like the samples."
_SCALED = " It has the mean and the deviation of each feature over the samples learnt first."


def inspect(model: Model, as_json: AsJson = False) -> None:
    """Show what a model knows and stores, and how it was made."""
    from acil.core.files import describe

    report = describe(model)
    inference = report["kind"] == "inference"
    report["privacy"] = _REVEALS["inference" if inference else report["solver"]]
    if inference and report["n_samples"] <= report["size"]:
        report["privacy"] += _FEW
    if inference and report["standardize"]:
        report["privacy"] += _SCALED
    if report["release"] is not None and report["release"]["private"]:
        report["privacy"] = _guaranteed(report["release"])
    report["embeddings"] = _embeddings(report)
    if report["images"] is not None:
        # How many hashes there are, instead of the hashes
        report["images"]["tracked"] = sum(len(group["hashes"]) for group in report["images"]["tracked"])
    if as_json:
        echo_json(report)
    else:
        _show(report)


def verify(model: Model, as_json: AsJson = False) -> None:
    """Check that a model file is whole and fits together.

    Header, checksums, values; of a full model also whether its sums can be sums over samples, fit the
    counts of the classes, and give its weights and scores. Exit code 1 if anything is wrong.
    """
    from acil.core.files import verify as checked

    with shown_progress() as begin:
        begin("checking")
        checks = checked(model)
    passed = all(check.ok for check in checks)
    if as_json:
        echo_json({"model": str(model), "ok": passed, "checks": [check._asdict() for check in checks]})
    else:
        for check in checks:
            typer.echo(f"{'ok' if check.ok else 'FAILED':7}{check.name}: {plain(check.detail)}")
    if not passed:
        raise typer.Exit(1)


def _guaranteed(release: dict[str, Any]) -> str:
    from acil.privacy import SCOPE, UNIT

    return (
        f"Differentially private release: ε = {release['epsilon']:.4g}, δ = {release['delta']:g}, for "
        f"{UNIT}. {SCOPE}"
    )


def _show(report: dict[str, Any]) -> None:
    typer.echo(table(_facts(report)) + "\n")
    from acil.core.files.header import in_order

    counts = dict(zip(map(str, report["classes"]), report["counts"], strict=True))
    names = in_order(counts)
    rows = [("class", "samples"), *((name, f"{counts[name]:,}") for name in names[:_MOST_CLASSES])]
    if rest := names[_MOST_CLASSES:]:
        rows.append((f"... and {len(rest)} more", f"{sum(counts[name] for name in rest):,}"))
    typer.echo(table(rows, right=(1,)) + "\n")
    parts = [("part", "shape", "type", "bytes")]
    for name, part in sorted(report["tensors"].items()):
        shape = " x ".join(str(length) for length in part["shape"])
        parts.append((name, shape, part["dtype"], f"{part['bytes']:,}"))
    stored = sum(part["bytes"] for part in report["tensors"].values())
    parts.append(("header", "", "", f"{report['file_bytes'] - stored:,}"))
    parts.append(("total", "", "", f"{report['file_bytes']:,}"))
    typer.echo(table(parts, right=(3,)) + "\n")
    sizes = report["embeddings"]
    if sizes is not None and sizes["smaller"]:
        typer.echo(
            f"Keeping the features of all samples themselves would take fewer bytes "
            f"({sizes['embeddings_bytes']:,}) than these sums ({sizes['sums_bytes']:,}). The sums do "
            "not grow with the samples."
        )
    typer.echo(report["privacy"])


def _embeddings(report: dict[str, Any]) -> dict[str, Any] | None:
    """Compare the bytes of the sums with those of the samples' features, in float32."""
    parts = [report["tensors"][name]["bytes"] for name in _SUMS if name in report["tensors"]]
    if not parts:
        return None
    embeddings_bytes = 4 * report["n_samples"] * report["n_features"]
    return {
        "sums_bytes": sum(parts),
        "embeddings_bytes": embeddings_bytes,
        "smaller": embeddings_bytes < sum(parts),
    }


def _facts(report: dict[str, Any]) -> list[tuple[str, Any]]:
    known = counted(len(report["classes"]), "class", "classes")
    width, expansion = f"{report['n_features']} features", "none"
    if "projection" in report["tensors"]:
        seed = report["parameters"]["random_state"]
        expansion = f"{report['size']} ({report['activation']}), seed {seed}"
    relative, condition = report["gamma_relative"], report["condition"]
    gamma = "not stored"
    if report["gamma"] is not None:
        how, behind = "fixed", report["gamma_samples"]
        if report["gamma_chosen"]:
            how = "chosen from the sums (auto)"
        if 0 < behind < report["n_samples"]:
            how += f", kept since {counted(behind, 'sample')}"
        gamma = f"{report['gamma']:g}, {how}"
    options = []
    for name, parameter in PARAMETERS.items():
        value = report[name] if parameter.learnt else report["parameters"][name]
        if name not in _OTHER_LINES and value != parameter.default:
            number = f"{value:g}" if isinstance(value, float) else value
            options.append(name if value is True else f"{name} {number}")
    backbone, images = report["backbone"] or {}, report["images"] or {}
    names = {"tracked": "calls tracked"} if report["encoder"] == "text" else {}
    return [
        ("file", report["path"]),
        ("kind", f"{report['kind']} (format version {report['format_version']})"),
        ("knows", f"{known} from {counted(report['n_samples'], 'sample')}"),
        ("solver", report["solver"]),
        ("dtype", report["dtype"]),
        ("input", width + (", with names" if report["feature_names"] else "")),
        ("expansion", expansion),
        ("options", ", ".join(options) or "none"),
        ("γ", gamma),
        ("γ, relative", "not stored" if relative is None else f"{relative:.3g} of trace(gram) / d"),
        ("condition κ", "not stored" if condition is None else f"{condition:.2g}"),
        ("scores", report["scores"] + (", of standardized features" if report["standardize"] else "")),
        (
            "temperature",
            f"{report['temperature']:.3g}, {_calibrated(report['calibration'], report['scores'])}",
        ),
        ("fingerprint", report["fingerprint"]),
        ("backbone", ", ".join(f"{key}: {value}" for key, value in backbone.items()) or "none"),
        (
            "texts" if report["encoder"] == "text" else "images",
            ", ".join(f"{names.get(key, key)}: {value}" for key, value in images.items()) or "none",
        ),
        ("versions", ", ".join(f"{name} {number}" for name, number in report["versions"].items())),
    ]


def _calibrated(calibration: dict[str, Any] | None, scores: str) -> str:
    if calibration is None and scores == "discriminant":
        return "estimated: put together without calibration, so it cannot tell what is unknown"
    if calibration is None:
        return "estimated from the sums"
    if not calibration["samples"]:
        return "not measured"
    forgot = "; approximate, because others came or went" if calibration["approximate"] else ""
    # Those of small classes count for less.
    return f"measured on samples that count as {calibration['samples']:.0f}, each left out{forgot}"


def merge(
    models: Annotated[list[Path], typer.Argument(help="Two or more model files.", metavar="MODEL")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Model file to write.")],
    force: Force = False,
    gate: HeldOut = None,
    max_drop: MaxDrop = None,
    as_json: AsJson = False,
) -> None:
    """Merge models of the same network, without their samples.

    Exact: the model becomes the one that would have learnt the samples of all. A sample that two of them
    have learnt counts twice. The settings of the first model stay, and --gate compares with it.
    """
    if len(models) < 2:
        raise InputError("merge needs at least two models.")
    from acil.growing import ModelFile

    require_free(out, force)
    if gate is not None or max_drop is not None:
        require_gate(gate, max_drop)
    file = ModelFile(out)
    with shown_progress() as begin:
        if gate is not None:
            file.gate = gate_of(gate, max_drop, ModelFile(models[0]), begin)
        begin("merging")
        change = file.merge(models, force=force)
    totals = change.after.totals
    if as_json:
        echo_json({"model": str(out), "totals": totals, "held_out": change.measured})
        return
    typer.echo(table(totals.items(), right=(1,)))
    known, learnt = counted(len(totals), "class", "classes"), counted(sum(totals.values()), "sample")
    typer.echo(f"{out} knows {known} from {learnt}")
    if change.measured is not None:
        tell_measured(change.measured)
    tell_recoverable(out, sum(change.report.counts.values()), f"{models[0]} and {out}")


def export(
    model: Model,
    onnx: Annotated[
        Path | None, typer.Option(help="Write network and head as one ONNX file here.")
    ] = None,
    inference: Annotated[
        Path | None, typer.Option(help="Write a small model file here that predicts but cannot learn.")
    ] = None,
    private: Annotated[
        Path | None, typer.Option(help="Write a differentially private release here; needs --epsilon.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε of the private release.")] = None,
    delta: Annotated[
        float, typer.Option(help="δ of the private release, well below 1 / number of samples.")
    ] = 1e-6,
    force: Force = False,
    as_json: AsJson = False,
    backbone: Backbone = None,
) -> None:
    """Write a model as ONNX, a small file or a private release.

    The ONNX graph takes pixels (uint8, RGB), or ids of tokens and a mask, and gives scores and
    probabilities; it is compared with PyTorch in onnxruntime before it is written. A script beside it
    makes these of image files or of texts.
    A private release protects the samples that the head has learnt and the network never saw. The model
    remembers it: ε of further ones adds up. Its earlier states, for `acil undo`, are removed.
    """
    files = [path for path in (onnx, inference, private) if path is not None]
    if not files:
        raise InputError("Say what to write: --onnx FILE, --inference FILE or --private FILE.")
    if (private is None) != (epsilon is None):
        raise InputError("--private FILE and --epsilon belong together. Give both.")
    if private is not None and len(files) > 1:
        raise InputError(
            "Only the file of --private is private; the others would have the model as it is. Write the "
            f"release alone, and then export it: acil export {shlex.quote(str(private))} "
            "--onnx FILE."
        )
    for path in files:
        require_free(path, force)
        if path.resolve() == model.resolve():
            raise InputError(f"{path} is the model itself. Give another name.")
    from acil.encoders.stored import require_network
    from acil.growing import load_classifier
    from acil.growing.export import export_onnx

    if onnx is not None:
        require_free(Path(f"{onnx}.py"), force)
        require_network(model)

    written: dict[str, Any] = {}
    with shown_progress() as begin:
        begin("exporting")
        if inference is not None:
            load_classifier(model).save(inference, inference=True, undo=False)
            written["inference"] = {"path": str(inference), "bytes": inference.stat().st_size}
        if private is not None:
            written["private"] = _private(model, private, epsilon, delta)
        if onnx is not None:
            loaded = load_classifier(model, backbone=backbone)
            done = export_onnx(loaded.snapshot.solved(), loaded.embedder, onnx, force)
            compared = {f"{loaded.thing}s": done.compared}
            facts = {"bytes": done.bytes, **compared, "difference": done.difference}
            written["onnx"] = {"path": str(onnx), **facts}
    if as_json:
        echo_json(written)
        return
    for path in files:
        typer.echo(f"{path}  {path.stat().st_size:,} bytes")
    if private is not None:
        typer.echo(written["private"]["privacy"])
        tell("Its probabilities are not calibrated: that would tell of the samples.")
    if onnx is not None:
        shown = "image files" if loaded.thing == "image" else "texts"
        typer.echo(f"{onnx}.py  names the class of {shown} with it, without acil")
        typer.echo(
            f"ONNX and PyTorch agree on {counted(done.compared, loaded.thing)}: scores within "
            f"{done.difference:.1e}"
        )


def _private(model: Path, path: Path, epsilon: float | None, delta: float) -> dict[str, Any]:
    from acil.core.files import describe, save
    from acil.growing import ModelFile
    from acil.growing.history import remove_states

    # First the model, which then knows of the release even if that cannot be written.
    release = ModelFile(model).release(epsilon or 0.0, delta)
    # The exact sums of an earlier file of that name must not lie beside it.
    remove_states(path)
    save(release, path)
    stated = describe(path)["release"]
    facts = {"path": str(path), "bytes": path.stat().st_size, "privacy": _guaranteed(stated)}
    return {**facts, "epsilon": stated["epsilon"], "delta": stated["delta"]}
