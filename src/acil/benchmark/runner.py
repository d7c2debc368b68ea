"""The runner: protocol, data and methods in; records out. Killed at any moment, it goes on exactly."""

from __future__ import annotations

import hashlib
import json
import logging
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acil.benchmark import metrics
from acil.benchmark.config import RunConfig
from acil.benchmark.datasets import Dataset, load, restrict
from acil.benchmark.environment import environment_record
from acil.benchmark.plan import Job, ends, plan_jobs
from acil.benchmark.protocol import class_order
from acil.benchmark.records import finished, key
from acil.benchmark.rundir import RunDirectory, StateFile, open_run
from acil.benchmark.suites import variants
from acil.errors import ACILError, InputError, SingularMatrixError
from acil.methods import Context, Phase, resolve
from acil.methods.pretrain import stored_classifier
from acil.parameters import resolve_device
from acil.training.loop import DivergedError
from acil.training.recipes import Recipe, override, recipe, to_dict
from acil.vision.backbones import Backbone, load_backbone
from acil.vision.cache import FeatureCache

logger = logging.getLogger(__name__)

Progress = Callable[[Any], None]


@dataclass(frozen=True)
class PhaseDone:
    """Told to the progress callback after each phase."""

    method: str
    seed: int
    phase: int
    phases: int
    accuracy: float


@dataclass(frozen=True)
class _Task:
    """Everything that the jobs of one run share."""

    config: RunConfig
    recipe: Recipe
    data: Dataset
    train_labels: Tensor
    test_labels: Tensor
    base: int
    n_classes: int
    device: torch.device
    backbone: Backbone | None
    classifier: Mapping[str, Tensor] | None
    cache: FeatureCache
    progress: Progress | None


def run(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Run methods under a protocol and record what comes out.

    Parameters
    ----------
    config : RunConfig
    out : Path
        The run directory.
    resume : bool
        Go on with a run that was interrupted.
    force : bool
        Replace a run that is there.
    progress : callable, optional
        Receives `PhaseDone` and the progress of base training.

    Returns
    -------
    Path
        The run directory.
    """
    task = _prepare(config, out, progress)
    methods = [(name, resolve(name)) for name in config.methods]
    jobs = plan_jobs(
        methods,
        variants(config.suite, dict(config.settings)),
        config.seeds,
        config.phases,
        task.n_classes,
        task.base,
    )
    resolved = {
        "recipe": to_dict(task.recipe),
        "n_classes": task.n_classes,
        "base": task.base,
        "class_names": list(task.data.class_names),
    }
    with open_run(out, config, resolved, resume, force) as directory:
        directory.records.append(environment_record(task.device))
        failures = [failure for job in jobs if (failure := _attempt(task, job, directory))]
        if len(failures) == len(jobs):
            raise failures[0]
    return out


def describe_plan(config: RunConfig) -> str:
    """Return, in words, what a run with these settings would do."""
    task = _prepare(config, None, None)
    methods = [(name, resolve(name)) for name in config.methods]
    settings = variants(config.suite, dict(config.settings))
    jobs = plan_jobs(methods, settings, config.seeds, config.phases, task.n_classes, task.base)
    widths = {job.settings.get("expansion_size", task.recipe.expansion_size) for job in jobs}
    widest = max((width for width in widths if width is not None), default=0)
    lines = [
        f"{config.dataset}: {task.n_classes} classes, {len(task.data.train)} training and "
        f"{len(task.data.test)} test images, order {config.order}, base of {task.base} classes",
        f"recipe {task.recipe.name}, device {task.device}; widest expansion {widest}: the head takes "
        f"about {2 * widest * widest * 8 / 2**30:.2f} GiB while it solves",
    ]
    for job in jobs:
        counts = ", ".join(str(k) for k in job.covers)
        lines.append(f"{job.method}, seed {job.seed}, K = {counts}, {job.settings or 'as the recipe'}")
    return "\n".join(lines)


def _prepare(config: RunConfig, out: Path | None, progress: Progress | None) -> _Task:
    data = load(config.dataset, config.root, skip_bad=config.skip_bad)
    order = class_order(config.order, len(data.class_names))
    if config.classes is not None:
        if not 1 <= config.classes <= len(order):
            raise InputError(f"classes must be from 1 to {len(order)}, got {config.classes}.")
        order = order[: config.classes]
    data = restrict(data, order)
    default_base = data.default_base if config.classes is None else len(order) // 2
    base = default_base if config.base is None else config.base
    chosen = override(recipe(config.recipe or data.default_recipe), config.recipe_changes)
    device = resolve_device(config.device, "float64")
    backbone = classifier = None
    if config.backbone is not None:
        backbone, metadata = load_backbone(Path(config.backbone), device=device)
        classifier = stored_classifier(Path(config.backbone), backbone)
        _check_backbone(metadata, config, base)
    return _Task(
        config,
        chosen,
        data,
        data.train_labels,
        data.test_labels,
        base,
        len(order),
        device,
        backbone,
        classifier,
        FeatureCache(None if out is None else out / "checkpoint" / "features"),
        progress,
    )


def _check_backbone(metadata: Mapping[str, Any], config: RunConfig, base: int) -> None:
    """Refuse a network that has seen classes which this run calls new."""
    wanted = {"dataset": config.dataset, "order": config.order}
    for name, value in wanted.items():
        found = metadata.get(name)
        if found is not None and str(found) != value:
            raise InputError(
                f"The backbone {config.backbone} was trained with {name} = {found!r}, but this run "
                f"has {value!r}: it would have seen classes that are called new. Take another backbone "
                f"or set --{name} {found}."
            )
    seen = metadata.get("base_classes")
    if seen is not None and int(seen) > base:
        raise InputError(
            f"The backbone {config.backbone} was trained on {seen} classes, but the base of this run "
            f"has {base}: it would have seen classes that are called new. Set --base {seen}."
        )


def _attempt(task: _Task, job: Job, directory: RunDirectory) -> ACILError | None:
    """Run a job; a failure of the method itself is a result, and no reason to stop the others.

    Such are a matrix that cannot be solved and a training that diverges.
    """
    try:
        _run_job(task, job, directory)
    except (SingularMatrixError, DivergedError) as error:
        for k in job.covers:
            record = {"kind": "failure", **_labels(task, job, k), "error": str(error)}
            directory.records.append(record)
        logger.warning("%s, seed %d, %s: %s", job.method, job.seed, job.settings, error)
        return error
    return None


def _run_job(task: _Task, job: Job, directory: RunDirectory) -> None:
    done = finished(directory.records.read())
    labels = {k: _labels(task, job, k) for k in job.covers}
    if all(key(label) in done for label in labels.values()):
        return
    context = _context(task, job, directory)
    method = resolve(job.method)(context)
    state = directory.state(_digest({"labels": list(labels.values())}))
    learnt = _restore(task, job, method, state)
    recorder = _Recorder(task, job, labels, directory)
    for index, classes in enumerate(job.grouping):
        if index <= learnt:
            continue
        started = time.perf_counter()
        method.learn(_phase(task, job, index))
        n_seen = ends(job.grouping)[index]
        seen = task.test_labels < n_seen
        indices = torch.nonzero(seen).flatten()
        predictions = method.predict(task.data.test.subset(indices))
        seconds = time.perf_counter() - started
        accuracy = recorder.phase(
            n_seen, predictions, task.test_labels[indices], method.memory(), seconds
        )
        if state.due():
            state.save(index, method.state_dict())
        if task.progress is not None:
            task.progress(PhaseDone(job.method, job.seed, index, len(job.grouping) - 1, accuracy))
        logger.info("%s seed %d phase %d: %d classes", job.method, job.seed, index, len(classes))
    recorder.summaries(_joint(task, method))
    state.remove()


def _restore(task: _Task, job: Job, method: Any, state: StateFile) -> int:
    """Load the last state of an interrupted job; return the last phase learnt, -1 if none."""
    found = state.load()
    if found is None:
        return -1
    learnt, content = found
    method.load_state_dict(content)
    if hasattr(method, "resume"):
        method.resume(_phase(task, job, 0))
    return learnt


def _joint(task: _Task, method: Any) -> dict[str, float]:
    if not task.config.joint_check or not hasattr(method, "compare_with_joint"):
        return {}
    result: dict[str, float] = method.compare_with_joint(
        task.data.train, task.train_labels, task.data.test
    )
    return result


def _context(task: _Task, job: Job, directory: RunDirectory) -> Context:
    identity = {
        "dataset": task.config.dataset,
        "order": task.config.order,
        "classes": task.n_classes,
        "base_classes": task.base,
        "seed": job.seed,
        "recipe": task.recipe.name,
        "training": to_dict(task.recipe),
    }
    return Context(
        recipe=task.recipe,
        seed=job.seed,
        device=task.device,
        n_classes=task.n_classes,
        settings=job.settings,
        backbone=task.backbone,
        classifier=task.classifier,
        identity=identity,
        cache=task.cache,
        checkpoint=directory.base_folder(_digest(identity)),
        progress=task.progress,
    )


def _phase(task: _Task, job: Job, index: int) -> Phase:
    """Return the training data of one phase and of no other."""
    classes = job.grouping[index]
    chosen = torch.isin(task.train_labels, torch.tensor(classes))
    indices = torch.nonzero(chosen).flatten()
    return Phase(
        # A run without base classes begins with its first increment.
        index=index if task.base else index + 1,
        classes=classes,
        images=task.data.train.subset(indices),
        labels=task.train_labels[indices],
        n_seen=ends(job.grouping)[index],
    )


def _labels(task: _Task, job: Job, phases: int) -> dict[str, Any]:
    """Return what identifies the records of one job and one number of phases."""
    return {
        "suite": task.config.suite,
        "method": job.method,
        "dataset": task.config.dataset,
        "order": task.config.order,
        "recipe": task.recipe.name,
        "settings": _settings(task, job),
        "seed": job.seed,
        "phases": phases,
    }


def _settings(task: _Task, job: Job) -> dict[str, Any]:
    features = task.recipe.features
    # A method may name its own settings, such as the memory rule, where the user has not.
    own = getattr(resolve(job.method), "recorded_settings", None)
    return {
        "expansion_size": task.recipe.expansion_size,
        "gamma": task.recipe.gamma,
        "dtype": task.recipe.dtype,
        "solver": "gram",
        "taps": list(features.taps),
        "base": task.base,
        "classes": task.n_classes,
        "backbone": task.config.backbone or task.recipe.backbone,
        **{f"recipe.{name}": value for name, value in task.config.recipe_changes.items()},
        **job.settings,
        **({} if own is None else own(job.settings)),
    }


class _Recorder:
    """Turns predictions into records, for every grouping that a job covers."""

    def __init__(
        self, task: _Task, job: Job, labels: Mapping[int, dict[str, Any]], directory: RunDirectory
    ) -> None:
        self.task, self.job, self.labels, self.records = task, job, labels, directory.records
        self.written = {
            (key(record), record["phase"]): record
            for record in self.records.read()
            if record["kind"] == "phase"
        }
        self.seconds = dict.fromkeys(job.covers, 0.0)

    def phase(
        self, n_seen: int, predictions: Tensor, labels: Tensor, memory: Any, seconds: float
    ) -> float:
        """Record one evaluation for each grouping that has a phase ending here; return accuracy."""
        accuracy = metrics.accuracy(predictions, labels)
        for k, grouping in self.job.covers.items():
            self.seconds[k] += seconds
            if n_seen not in ends(grouping):
                continue
            index = ends(grouping).index(n_seen)
            by_origin = metrics.accuracy_by_origin(predictions, labels, grouping[: index + 1])
            record = {
                "kind": "phase",
                **self.labels[k],
                "phase": index,
                "classes_seen": n_seen,
                "accuracy": accuracy,
                "base_accuracy": by_origin[0],
                "accuracy_by_origin": list(by_origin),
                "memory": {
                    "samples": memory.samples,
                    "statistics": memory.statistics,
                    "weights": memory.weights,
                },
                "seconds": self.seconds[k],
                "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
            self.seconds[k] = 0.0
            # A resumed job learns again what it had recorded but not saved: the same record.
            if (key(record), index) not in self.written:
                self.records.append(record)
                self.written[key(record), index] = record
        return accuracy

    def summaries(self, joint: Mapping[str, float]) -> None:
        """Record the summary of each grouping."""
        for k, grouping in self.job.covers.items():
            label = self.labels[k]
            rows = [self.written[key(label), index] for index in range(len(grouping))]
            accuracies = [row["accuracy"] for row in rows]
            self.records.append(
                {
                    "kind": "summary",
                    **label,
                    "average_accuracy": metrics.average_accuracy(accuracies),
                    "last_accuracy": accuracies[-1],
                    "forgetting": metrics.forgetting([row["base_accuracy"] for row in rows]),
                    "memory": rows[-1]["memory"],
                    "seconds": sum(row["seconds"] for row in rows),
                    **joint,
                }
            )


def _digest(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
