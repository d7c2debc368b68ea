"""One job of a run: phase after phase with one method. Killed at any moment, it goes on exactly."""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acil.benchmark import metrics
from acil.benchmark.plan import Job, ends
from acil.benchmark.prepare import PreparedRun, base_identity, context, digest, labels
from acil.benchmark.records import finished, key
from acil.benchmark.rundir import RunDirectory
from acil.distributed import share
from acil.errors import ACILError, ModelFileError, ProcessLostError, SingularMatrixError
from acil.methods import MemoryUse, Method, Phase, resolve
from acil.modelfile.writing import locked
from acil.training.loop import DivergedError
from acil.vision.imageset import ImageSet

logger = logging.getLogger(__name__)

#: Name of the phase beside the parts of a state, none of which has a space in its name.
_PHASE = "last phase"


@dataclass(frozen=True)
class PhaseDone:
    """Told to the progress callback after each phase."""

    method: str
    seed: int
    phase: int
    phases: int
    accuracy: float


@dataclass(frozen=True)
class Failure:
    """A job that could not be finished.

    Attributes
    ----------
    job : Job
    text : str
        What happened.
    is_result : bool
        Whether this is how the method behaves (a matrix that cannot be solved, a training that
        diverges), and nothing to mend.
    error : ACILError or None
        As it was raised, if it was in this process.
    """

    job: Job
    text: str
    is_result: bool = False
    error: ACILError | None = None


def attempt(prepared: PreparedRun, job: Job, directory: RunDirectory | None) -> Failure | None:
    """Run a job and record it if it fails: that is no reason to stop the others.

    A file that cannot be written, however, would stop them all, and so would a process of the group that
    is lost: these are raised.
    """
    try:
        run_job(prepared, job, directory)
    except (ModelFileError, ProcessLostError):
        raise
    except ACILError as error:
        if directory is None:
            # All processes of the group have heard of it, and rank 0 records it.
            logger.info("%s failed.", job.title)
            return None
        for k in job.covers:
            record = {"kind": "failure", **labels(prepared, job, k), "error": str(error)}
            directory.records.append(record)
        logger.warning("%s failed: %s", job.title, error)
        return Failure(job, str(error), isinstance(error, SingularMatrixError | DivergedError), error)
    return None


def is_finished(prepared: PreparedRun, job: Job, directory: RunDirectory) -> bool:
    """Say whether everything that a job would record is there."""
    done = finished(directory.records.read())
    return all(key(labels(prepared, job, k)) in done for k in job.covers)


def run_job(prepared: PreparedRun, job: Job, directory: RunDirectory | None) -> None:
    """Learn and test every phase that has not been recorded yet.

    Parameters
    ----------
    prepared : PreparedRun
    job : Job
    directory : RunDirectory or None
        None for a process of a group that makes the same calls and leaves the files to rank 0.
    """
    with prepared.together():
        base_folder = None if directory is None else directory.base_folder
        method = resolve(job.method)(context(prepared, job, base_folder))
        recorder = None if directory is None else Recorder(prepared, job, directory)
        learnt = restore(prepared, job, method, None if recorder is None else recorder.state.load())
    for index in range(learnt + 1, len(job.grouping)):
        n_seen = ends(job.grouping)[index]
        with prepared.together():
            started = time.perf_counter()
            with _base_training(prepared, job, directory, index):
                method.learn(phase_of(prepared, job, index))
            images, answers = test_set(prepared, n_seen)
            predictions = method.predict(images)
            seconds = time.perf_counter() - started
            accuracy = metrics.accuracy(predictions, answers)
            if recorder is not None:
                recorder.phase(n_seen, predictions, answers, method.memory(), seconds)
                if recorder.state.due():
                    recorder.state.save(index, method.state_dict())
        if prepared.progress is not None:
            prepared.progress(PhaseDone(job.method, job.seed, index, len(job.grouping) - 1, accuracy))
        logger.info(
            "%s seed %d phase %d: %d classes", job.method, job.seed, index, len(job.grouping[index])
        )
    with prepared.together():
        joint = compared_with_joint(prepared, method)
        if recorder is not None:
            recorder.summaries(joint)
            recorder.state.remove()


def test_set(prepared: PreparedRun, n_seen: int) -> tuple[ImageSet, Tensor]:
    """Return the test images of the classes seen, and their labels."""
    indices = torch.nonzero(prepared.test_labels < n_seen).flatten()
    return prepared.data.test.subset(indices), prepared.test_labels[indices]


def phase_of(prepared: PreparedRun, job: Job, index: int) -> Phase:
    """Return the training data of one phase and of no other."""
    classes = job.grouping[index]
    chosen = torch.isin(prepared.train_labels, torch.tensor(classes))
    indices = torch.nonzero(chosen).flatten()
    return Phase(
        # A run without base classes begins with its first increment.
        index=index if prepared.base else index + 1,
        classes=classes,
        images=prepared.data.train.subset(indices),
        labels=prepared.train_labels[indices],
        n_seen=ends(job.grouping)[index],
    )


def restore(
    prepared: PreparedRun, job: Job, method: Method, found: tuple[int, dict[str, Any]] | None
) -> int:
    """Load the last state of an interrupted job; return the last phase learnt, -1 if none.

    Parameters
    ----------
    prepared, job, method
    found : tuple or None
        Phase and state, as they were stored. In a group, those that rank 0 has found count.
    """
    if prepared.group is not None:
        content = share(None if found is None else {**found[1], _PHASE: found[0]}, prepared.group)
        found = None if content is None else (content.pop(_PHASE), content)
    if found is None:
        return -1
    learnt, content = found
    method.load_state_dict(content)
    method.resume(phase_of(prepared, job, 0))
    return learnt


def compared_with_joint(prepared: PreparedRun, method: Method) -> dict[str, float]:
    """Return how far a method is from joint learning, if that is asked for and the method can tell."""
    if not prepared.config.joint_check:
        return {}
    return method.compare_with_joint(prepared.data.train, prepared.train_labels, prepared.data.test)


@contextmanager
def _base_training(
    prepared: PreparedRun, job: Job, directory: RunDirectory | None, index: int
) -> Iterator[None]:
    """Let one process at a time train the base network that all jobs of a seed share.

    The others wait, and find it trained. Once it is there nobody waits: methods that train a network of
    their own do so side by side.
    """
    shared = prepared.backbone is None and prepared.data.train.has_pixels
    if directory is None or prepared.config.jobs == 1 or index or not shared:
        yield
        return
    network = directory.base_folder(digest(base_identity(prepared, job.seed))) / "backbone.safetensors"
    with locked(network):
        missing = not network.exists()
        if missing:
            yield
    if not missing:
        yield


class Recorder:
    """Writes the records of one job; what a resumed job had written stays as it is.

    Parameters
    ----------
    prepared : PreparedRun
    job : Job
    directory : RunDirectory

    Attributes
    ----------
    state : StateFile
        Of the method, from which a killed job goes on.
    """

    def __init__(self, prepared: PreparedRun, job: Job, directory: RunDirectory) -> None:
        self.job, self.records = job, directory.records
        self.labels = {k: labels(prepared, job, k) for k in job.covers}
        self.state = directory.state(digest({"labels": list(self.labels.values())}))
        before = self.records.read()
        self.written = {
            (key(record), record["phase"]): record for record in before if record["kind"] == "phase"
        }
        self.finished = finished(before)
        self.seconds = dict.fromkeys(job.covers, 0.0)

    def phase(
        self, n_seen: int, predictions: Tensor, labels: Tensor, memory: MemoryUse, seconds: float
    ) -> None:
        """Record one evaluation for each grouping that has a phase ending here.

        Parameters
        ----------
        n_seen : int
            Classes seen so far.
        predictions, labels : Tensor of shape (n,), int64
        memory : MemoryUse
        seconds : float
            Of learning and predicting.
        """
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

    def summaries(self, joint: Mapping[str, float]) -> None:
        """Record the summary of each grouping.

        Parameters
        ----------
        joint : Mapping
            What the comparison with joint learning gave.
        """
        for k, grouping in self.job.covers.items():
            label = self.labels[k]
            if key(label) in self.finished:
                continue
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
