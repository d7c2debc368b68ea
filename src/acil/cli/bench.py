"""`acil bench`: run the benchmark, report on it, list what there is."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from acil.cli.shared import assignment, echo_json, is_rank_zero, progress_bars, stop_on_sigterm, tell
from acil.errors import InputError, ModelFileError, ProcessLostError

app = typer.Typer(help="Reproduce and compare class-incremental learning.", no_args_is_help=True)


@app.command("run")
def run(
    dataset: Annotated[
        str | None, typer.Option(help="digits (default), cifar100, imagefolder:DIR, features:FILE …")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Methods, comma-separated; HOST+WRAPPER and package.module:Class too (default: acil; "
            "compare: all without wrappers)."
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="class-incremental (default), long-tailed or si-blurry (K tasks)."),
    ] = None,
    phases: Annotated[
        str | None, typer.Option(help="Numbers K of phases, comma-separated (default: 5).")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, comma-separated (default: 0,1,2).")] = None,
    recipe: Annotated[str | None, typer.Option(help="Base training, features, width and γ.")] = None,
    order: Annotated[
        str | None, typer.Option(help="natural (default), seed1993, podnet1..3 or a seed.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run directory (default: runs/DATASET-SUITE).")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summaries as JSON.")] = False,
    config: Annotated[Path | None, typer.Option(help="TOML file with these settings.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value, e.g. recipe.training.epochs=3 or data.size=64"),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            help="main (default), compare, table1 (the paper's table, CIFAR-100 alone), ablation, width "
            "or memory."
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="Trained network instead of base training: a .safetensors file, timm:NAME, onnx:FILE, "
            "torchvision:NAME, efficientnet-lite0 or package.module:Class."
        ),
    ] = None,
    base: Annotated[
        int | None, typer.Option(help="Classes of the base phase (default: half); 0: from zero.")
    ] = None,
    classes: Annotated[int | None, typer.Option(help="Only the first classes of the order.")] = None,
    expansion_size: Annotated[str | None, typer.Option(help="Width of the expansion, or none.")] = None,
    gamma: Annotated[str | None, typer.Option(help="Ridge strength, or auto.")] = None,
    solver: Annotated[str | None, typer.Option(help="gram or recursive.")] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Exemplars of methods that keep some: '20 per class', '2000 in total', or strict: what "
            "the images of a phase leave of a fixed total."
        ),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float64, float32 or mixed.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda …")] = None,
    root: Annotated[Path | None, typer.Option(help="Folder of the data (default: ACIL_DATA).")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out unreadable images.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Processes that work at the same time.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and stop.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a run that is there.")] = False,
) -> None:
    """Run methods class by class, and record what comes out.

    Started by torchrun, several processes share out the work of methods that can (acil).
    """
    from acil.bench.config import make_config, read_config

    _import_from_here()
    values: dict[str, Any] = {} if config is None else read_config(config)
    flags = {
        "dataset": dataset, "methods": method, "protocol": protocol, "phases": phases, "seeds": seeds,
        "recipe": recipe, "order": order, "suite": suite, "backbone": backbone, "base": base,
        "classes": classes, "expansion_size": expansion_size, "gamma": gamma, "solver": solver,
        "dtype": dtype, "device": device, "root": root, "skip_bad": skip_bad or None, "jobs": jobs,
        "memory": memory,
    }  # fmt: skip
    values |= {name: value for name, value in flags.items() if value is not None}
    values |= dict(assignment(text) for text in set_ or [])
    settings = make_config(values)
    from acil.bench.prepare import dataset_name

    folder = out or Path("runs") / f"{dataset_name(settings.dataset).replace(':', '-')}-{settings.suite}"
    if dry_run:
        if is_rank_zero():
            from acil.bench.estimate import plan_of

            text, error = plan_of(settings, folder if resume else None, folder)
            typer.echo(text)
            if error is not None:
                raise error
        return
    from acil.bench.records import FILE_NAME, Records
    from acil.bench.report import write_report
    from acil.bench.runner import RunFailedError
    from acil.bench.runner import run as run_benchmark

    stop_on_sigterm()
    if not is_rank_zero():
        # It prints nothing and writes nothing.
        run_benchmark(settings, folder, resume=resume, force=force)
        return
    failed: RunFailedError | None = None
    with _saying_how_to_resume(folder):
        try:
            with run_progress() as progress:
                run_benchmark(settings, folder, resume=resume, force=force, progress=progress)
        except RunFailedError as error:
            failed = error
        # Report what the other jobs found.
        report = write_report(folder)
    recorded = Records(folder / FILE_NAME).read()
    summaries = [record for record in recorded if record["kind"] == "summary"]
    if as_json:
        echo_json(summaries)
    else:
        typer.echo(report.markdown)
        typer.echo("Ā: mean accuracy of all phases. A_K: of the last. F: loss of the base classes.")
        typer.echo(f"Report: {folder / 'report'}")
        for path in report.plots[:1]:
            typer.echo(f"Plot:   {path}")
        _show_checks(summaries)
    if failed is not None:
        raise failed


def _import_from_here() -> None:
    """Let Python find a user's own methods, data sets and backbones in the current folder.

    Behind all others: a file here takes the place of no package.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


@contextmanager
def run_progress() -> Iterator[Callable[[Any], None]]:
    """Show trainings and phases of a run on stderr."""
    with progress_bars("loading data and computing features") as show:
        yield lambda event: show(*_described(event))


def _described(event: Any) -> tuple[str, int, int, str]:
    """Return what an event is about, how far that is, and a note: an epoch, or a finished phase."""
    if hasattr(event, "total"):
        pace = f"{event.per_second:,.0f}/s  {event.seconds_left:.0f} s left"
        return event.what, event.done, event.total, pace
    if not hasattr(event, "epochs"):
        name = f"{event.method}, seed {event.seed}"
        return name, event.phase + 1, event.phases + 1, f"accuracy {event.accuracy:.2f} %"
    # A generator of images has no accuracy.
    accuracy = "" if event.accuracy is None else f"accuracy {event.accuracy:.1f} %  "
    speed = f"{event.images_per_second:,.0f} images/s  {event.seconds_left:.0f} s left"
    return "training", event.epoch, event.epochs, f"loss {event.loss:.3f}  {accuracy}{speed}"


@contextmanager
def _saying_how_to_resume(folder: Path) -> Iterator[None]:
    """After an interruption, a full disk or a lost process, print the command that goes on."""
    places = shlex.join(["--config", str(folder / "config.toml"), "--out", str(folder)])
    again = f"Go on with: acil bench run --resume {places}"
    try:
        yield
    except KeyboardInterrupt:
        tell(f"Stopped. {again}")
        raise
    except (ModelFileError, ProcessLostError):
        if (folder / "config.toml").exists():
            tell(again)
        raise


def _show_checks(summaries: list[dict[str, Any]]) -> None:
    compared = [summary for summary in summaries if "joint_difference" in summary]
    if compared:
        typer.echo(
            "Incremental against joint learning: test scores differ by at most "
            f"{max(summary['joint_difference'] for summary in compared):.1e} (relative; condition "
            f"number up to {max(summary['condition'] for summary in compared):.1e})."
        )
    skipped = max((summary["settings"].get("data.skipped", 0) for summary in summaries), default=0)
    if skipped:
        typer.echo(f"Left out: {skipped} images that could not be read.")


@app.command("choose")
def choose(
    dataset: Annotated[str, typer.Option(help="digits, cifar100, imagefolder:DIR")] = "digits",
    recipe: Annotated[str | None, typer.Option(help="What candidates are compared with.")] = None,
    try_: Annotated[
        list[str] | None,
        typer.Option("--try", help="A candidate: NAME key=value …, e.g. training.auxiliary.copies=1"),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value of the recipe, or data.size=64.")
    ] = None,
    splits: Annotated[str, typer.Option(help="Splits of the base classes.")] = "0,1,2,3",
    gammas: Annotated[str | None, typer.Option(help="Values of γ, relative to trace(gram)/d.")] = None,
    order: Annotated[str, typer.Option(help="natural, seed1993, podnet1..3 or a seed.")] = "natural",
    base: Annotated[int | None, typer.Option(help="Classes of the base phase (default: half).")] = None,
    split_base: Annotated[
        int | None, typer.Option(help="Classes of a split's own base (default: half or four fifths).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder (default: runs/DATASET-choice).")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda …")] = "auto",
    root: Annotated[Path | None, typer.Option(help="Folder of the data (default: ACIL_DATA).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
    only_table: Annotated[
        bool, typer.Option("--table", help="Show what is recorded, and train nothing.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be trained, and stop.")
    ] = False,
) -> None:
    """Compare recipes by the base classes' training images alone.

    The base classes are split into a smaller base and classes that arrive later; no test image and no
    new class is looked at. The same command goes on where it was stopped, and several of them at a time
    share out the work.
    """
    from acil.bench.choice import DEFAULTS, GAMMAS, Search, table
    from acil.bench.prepare import dataset_name
    from acil.bench.runner import RunFailedError
    from acil.bench.training.settings import convert

    _import_from_here()
    tried = [_candidate(text) for text in try_ or []]
    twice = [name for name, _ in tried if [other for other, _ in tried].count(name) > 1]
    if twice:
        raise InputError(f"Two candidates are called {twice[0]!r}. Give each a name of its own.")
    search = Search(
        out or Path("runs") / f"{dataset_name(dataset).replace(':', '-')}-choice",
        dataset,
        recipe=recipe,
        changes=dict(assignment(text) for text in set_ or []),
        candidates=dict(tried) or DEFAULTS,
        splits=convert(splits, tuple[int, ...], "--splits"),
        gammas=GAMMAS if gammas is None else convert(gammas, tuple[float, ...], "--gammas"),
        order=order,
        base=base,
        split_base=split_base,
        device=device,
        root=None if root is None else str(root),
    )
    if dry_run:
        typer.echo(search.plan())
        return
    failed: RunFailedError | None = None
    if not only_table:
        try:
            with run_progress() as progress:
                search.run(progress)
        except RunFailedError as error:
            failed = error
    rows = search.rows()
    if only_table and not rows:
        raise InputError(f"Nothing is recorded of these candidates in {search.folder}.")
    if as_json:
        echo_json(rows)
    else:
        typer.echo(table(rows))
    if failed is not None:
        raise failed


def _candidate(text: str) -> tuple[str, dict[str, str]]:
    """Return name and changes of a candidate; without a name of its own, the changes are its name."""
    words = text.split()
    changes = [word for word in words if "=" in word]
    if not changes:
        raise InputError(f"A candidate is NAME key=value …, and {text!r} changes nothing.")
    name = " ".join(words[: words.index(changes[0])]) or text
    return name, dict(assignment(word) for word in words[words.index(changes[0]) :])


@app.command("report")
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run directories or files of records.", metavar="DIR")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where to write (default: report/ in the only run).")
    ] = None,
    title: Annotated[str, typer.Option(help="Title of report.md.")] = "Report",
    plots: Annotated[
        str,
        typer.Option(
            help="Kinds of plots: all, none, or accuracy,phases,origin,base,width,memory (any of them)."
        ),
    ] = "all",
    page: Annotated[
        Path | None, typer.Option(help="Write report.md under this name; it shows the plots of --out.")
    ] = None,
) -> None:
    """Write tables and plots from the records of one or more runs.

    Where the same run is in several of them, the one given last counts.
    """
    from acil.bench.report import write_report

    kinds: bool | list[str] = plots.split(",") if plots not in ("all", "none") else plots == "all"
    result = write_report(runs, out, kinds, title, page)
    typer.echo(result.markdown)
    for path in result.files:
        tell(str(path))


@app.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show data sets, methods, recipes, class orders and suites."""
    from acil.bench.datasets import DATASETS
    from acil.bench.methods import available
    from acil.bench.methods.registry import HOSTS, WRAPPERS
    from acil.bench.orders import PODNET_ORDERS
    from acil.bench.plan import SUITES
    from acil.bench.training.recipes import RECIPES

    names = {
        "datasets": sorted(DATASETS),
        "methods": list(available()),
        "wrappers": [f"{'|'.join(HOSTS)}+{wrapper}" for wrapper in WRAPPERS],
        "recipes": sorted(RECIPES),
        "orders": ["natural", "seed1993", *PODNET_ORDERS, "any seed"],
        "suites": list(SUITES),
    }
    if as_json:
        echo_json(names)
        return
    for name, items in names.items():
        typer.echo(f"{name:9} {', '.join(items)}")
