"""One job of a run: phase after phase with one method. Killed at any moment, it goes on exactly.

What is measured after each phase, in percent: A_k is the accuracy after phase k over all test images of
all classes seen; a_kj is the accuracy after phase k on the test images of the classes that came in phase
j, predicting over all classes seen.
"""

from __future__ import annotations

import json
import logging
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from acil.bench.methods import MemoryUse, Method, resolve
from acil.bench.methods.base import SHARED_BASE
from acil.bench.plan import Grouping, Job, ends
from acil.bench.prepare import PreparedRun, digest
from acil.bench.protocols import Tests
from acil.bench.records import finished, key
from acil.bench.rundir import RunDirectory
from acil.bench.training.loop import DivergedError
from acil.core.files.reading import TensorFile
from acil.core.files.writing import locked, write_tensors
from acil.errors import ACILError, InputError, ModelFileError, ProcessLostError, SingularMatrixError
from acil.scale import Group, share

logger = logging.getLogger(__name__)

#: How often the state of a method is written: learning a few phases again is cheaper.
STATE_SECONDS = 60.0
#: Seconds of gathering and writing it from which on that is done less often, in proportion.
_LONG = 6.0
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
    """A job that could not be finished."""

    job: Job
    text: str
    #: Whether this is how the method behaves (a matrix that cannot be solved, a training that
    #: diverges), and nothing to mend.
    is_result: bool = False
    #: As it was raised, if it was in this process.
    error: Exception | None = None
    #: Whether a file could not be written, which stops the whole run.
    stops_all: bool = False


def attempt(prepared: PreparedRun, job: Job, directory: RunDirectory | None) -> Failure | None:
    """Run a job and record it if it fails: that is no reason to stop the others.

    A method that a group cannot share out runs on rank 0 alone. A file that cannot be written, however,
    would stop all jobs, and so would a process of the group that is lost: these are raised.
    """
    if prepared.group.size > 1 and not resolve(job.method).takes_shards(job.settings):
        with prepared.group.together():
            if directory is None:
                return None
            logger.warning("%s runs on rank 0 alone: it cannot be shared out.", job.title)
            return attempt(replace(prepared, group=Group(prepared.device)), job, directory)
    try:
        run_job(prepared, job, directory)
    except (ModelFileError, ProcessLostError):
        raise
    except Exception as error:
        # With its traceback if it is a fault of the method's code
        trace = None if isinstance(error, ACILError) else error
        text = f"{type(error).__name__}: {error}" if trace else str(error)
        if directory is None:
            # All processes of the group have heard of it, and rank 0 records it.
            logger.info("%s failed.", job.title)
            return None
        record_failure(prepared, job, directory, text)
        logger.warning("%s failed: %s", job.title, text, exc_info=trace)
        return Failure(job, text, isinstance(error, SingularMatrixError | DivergedError), error)
    return None


def record_failure(prepared: PreparedRun, job: Job, directory: RunDirectory, text: str) -> None:
    """Record why a job failed, for each number of phases that it covers."""
    for k in job.covers:
        directory.records.append({"kind": "failure", **prepared.labels(job, k), "error": text})


def run_job(prepared: PreparedRun, job: Job, directory: RunDirectory | None) -> None:
    """Learn and test every phase after the last saved state.

    A process of a group that is not rank 0 has no directory: it makes the same calls and leaves the
    files to rank 0.
    """
    with _together(prepared.group):
        base_folder = None if directory is None else directory.base_folder
        planning = resolve(job.method)
        context = prepared.context(job, base_folder)
        method = planning(context)
        own_base = planning.base_training(context)[0] != SHARED_BASE
        recorder = None if directory is None else Recorder(prepared, job, directory)
        protocol, title = prepared.protocol, job.title
        tasks = protocol.tasks(prepared.data, job)
        learnt = _restore(prepared, method, None if recorder is None else recorder.saved_state())
    for index, n_seen in list(enumerate(ends(job.grouping)))[learnt + 1 :]:
        with _together(prepared.group):
            started = time.perf_counter()
            course = []
            # A run without base classes begins with its first increment.
            number = index if prepared.base else index + 1
            for part in protocol.parts(prepared.data, tasks, index, number):
                with _base_training(prepared, job, None if own_base else directory, index):
                    method.learn(part.phase)
                tested = torch.nonzero(torch.isin(prepared.data.test_labels, part.seen)).flatten()
                answers = prepared.data.test_labels[tested]
                predictions = method.predict(prepared.data.test.subset(tested))
                share = accuracy(predictions, answers)
                course.append((part.samples, share))
            seconds = time.perf_counter() - started
            if recorder is not None:
                tests = Tests(predictions, answers, course)
                recorder.phase(index, tests, method.memory(), seconds)
                recorder.state.save_if_due(index, method.state_dict)
        if prepared.progress is not None:
            prepared.progress(PhaseDone(job.method, job.seed, index, len(job.grouping) - 1, share))
        logger.info("%s, phase %d: %d classes seen", title, index, n_seen)
    with _together(prepared.group):
        data, joint = prepared.data, {}
        if prepared.config.joint_check:
            rows = torch.cat(tasks).sort().values
            whole = len(rows) == len(data.train)
            train = data.train if whole else data.train.subset(rows)
            joint = planning.compare_with_joint(method, train, data.train_labels[rows], data.test)
        if recorder is not None:
            recorder.summaries(joint)
            recorder.state.path.unlink(missing_ok=True)


def _together(group: Group) -> AbstractContextManager[None]:
    """Let processes that work together fail together; one alone has nobody to tell."""
    return group.together() if group.size > 1 else nullcontext()


def _restore(prepared: PreparedRun, method: Method, saved: tuple[int, dict[str, Any]] | None) -> int:
    """Load the last state of an interrupted job; return the last phase learnt, -1 if none.

    In a group, what rank 0 has found counts.
    """
    content = share(None if saved is None else {**saved[1], _PHASE: saved[0]}, prepared.group)
    if content is None:
        return -1
    learnt = int(content.pop(_PHASE))
    method.load_state_dict(content)
    return learnt


@contextmanager
def _base_training(
    prepared: PreparedRun, job: Job, directory: RunDirectory | None, index: int
) -> Iterator[None]:
    """Let one process at a time train the base network that all jobs of a seed share.

    The others wait, and find it trained. Methods that train a network of their own do so side by side.
    """
    shared = prepared.backbone is None and prepared.data.train.has_pixels
    with ExitStack() as lock:
        if directory is not None and prepared.config.jobs > 1 and index == 0 and shared:
            folder = directory.base_folder(digest(prepared.base_identity(job.seed)))
            lock.enter_context(locked(folder / "backbone.safetensors"))
            if (folder / "backbone.safetensors").exists():
                lock.close()
        yield


class Recorder:
    """Writes the records of one job; what a resumed job had written stays as it is."""

    def __init__(self, prepared: PreparedRun, job: Job, directory: RunDirectory) -> None:
        self.records, self.data, self.protocol = directory.records, prepared.data, prepared.protocol
        #: K → its grouping, and which phases of the job are the last ones of its phases.
        self.covers = {k: (grouping, _last_phases(grouping, job)) for k, grouping in job.covers.items()}
        #: K → classes seen after each of its phases.
        self.seen = {k: ends(grouping) for k, grouping in job.covers.items()}
        self.labels = {k: prepared.labels(job, k) for k in job.covers}
        self.name = digest({"labels": list(self.labels.values())})
        self.state = StateFile(directory.checkpoint() / f"state-{self.name}.safetensors")
        before = self.records.read()
        self.written = {(key(r), r["phase"]): r for r in before if r["kind"] == "phase"}
        self.finished = finished(before)
        finest = key(self.labels[max(job.covers, key=lambda k: len(job.covers[k]))])
        #: Phase of the job → its seconds, those before an interruption too.
        self.seconds = {
            phase: r["seconds"] for (name, phase), r in self.written.items() if name == finest
        }

    def saved_state(self) -> tuple[int, dict[str, Any]] | None:
        """Return the last phase learnt and the state after it, if all phases up to it are recorded."""
        saved = self.state.load()
        learnt = -1 if saved is None else saved[0]
        # A user may have removed a damaged line: what it recorded is learnt again.
        complete = all(
            (key(self.labels[k]), index) in self.written
            for k, (_, lasts) in self.covers.items()
            for index, phase in enumerate(lasts)
            if phase <= learnt
        )
        return saved if complete else None

    def phase(self, phase: int, tests: Tests, memory: MemoryUse, seconds: float) -> None:
        """Record what one phase of the job gave, for each grouping that has a phase ending here."""
        ended, more = time.time(), self.protocol.measured(self.data, tests)
        self.seconds.setdefault(phase, seconds)
        for k, (grouping, lasts) in self.covers.items():
            if phase not in lasts:
                continue
            index = lasts.index(phase)
            begun = lasts[index - 1] if index else -1
            by_origin = accuracy_by_origin(tests.predictions, tests.answers, grouping[: index + 1])
            record = {
                "kind": "phase",
                **self.labels[k],
                "phase": index,
                "classes_seen": self.seen[k][index],
                "accuracy": accuracy(tests.predictions, tests.answers),
                "base_accuracy": by_origin[0],
                "accuracy_by_origin": list(by_origin),
                **more,
                "memory": asdict(memory),
                # With the seconds, what tells a report which jobs had the machine together
                "job": self.name,
                "ended": ended,
                "seconds": sum(t for n, t in self.seconds.items() if begun < n <= phase),
                "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
            # A resumed job learns again what it had recorded but not saved: the same record.
            if (key(record), index) not in self.written:
                self.records.append(record)
                self.written[key(record), index] = record

    def summaries(self, joint: Mapping[str, float]) -> None:
        """Record the summary of each grouping, with what the comparison to joint learning gave."""
        for k, (grouping, _) in self.covers.items():
            label = self.labels[k]
            if key(label) in self.finished:
                continue
            rows = [self.written[key(label), index] for index in range(len(grouping))]
            accuracies, base = ([row[name] for row in rows] for name in ("accuracy", "base_accuracy"))
            self.records.append(
                {
                    "kind": "summary",
                    **label,
                    # Ā = (A_0 + … + A_K) / (K + 1), the base phase included
                    "average_accuracy": fmean(accuracies),
                    "last_accuracy": accuracies[-1],
                    # F = a_00 - a_K0; the paper's formula has the other sign, its tables do not
                    "forgetting": base[0] - base[-1],
                    "memory": rows[-1]["memory"],
                    "seconds": sum(row["seconds"] for row in rows),
                    **self.protocol.summarised(self.data, rows),
                    **joint,
                }
            )


def _last_phases(grouping: Grouping, job: Job) -> list[int]:
    """Return the phases of a job with which those of a coarser grouping end."""
    if len(grouping) == len(job.grouping):
        return list(range(len(grouping)))
    learnt = ends(job.grouping)
    return [learnt.index(n_seen) for n_seen in ends(grouping)]


def accuracy(predictions: Tensor, labels: Tensor) -> float:
    """Return the share of right predictions (n,) in percent: every image counts the same.

    Examples
    --------
    >>> accuracy(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, 1, 2]))
    75.0
    """
    if predictions.shape != labels.shape or labels.ndim != 1:
        raise InputError(
            "predictions and labels must be one-dimensional and of equal length, got shapes "
            f"{tuple(predictions.shape)} and {tuple(labels.shape)}."
        )
    if labels.numel() == 0:
        raise InputError("There is no test image, so the accuracy is undefined.")
    # The count is exact, so the same predictions give the same bits on every machine.
    return 100.0 * int((predictions == labels).sum()) / labels.numel()


def accuracy_by_origin(
    predictions: Tensor, labels: Tensor, phases: Sequence[Sequence[int]]
) -> tuple[float | None, ...]:
    """Return the accuracy on the classes of each phase so far: one row a_k0 … a_kk of the matrix.

    ``phases`` has the labels that came in each phase 0 … k, each of which has test images; without
    labels there is no accuracy, None. Predictions are over all classes seen.

    Examples
    --------
    >>> accuracy_by_origin(torch.tensor([0, 1, 0, 2]), torch.tensor([0, 1, 2, 2]), [(0, 1), (2,)])
    (100.0, 50.0)
    """
    row: list[float | None] = []
    for classes in phases:
        here = torch.isin(labels, torch.tensor(classes, dtype=labels.dtype, device=labels.device))
        row.append(accuracy(predictions[here], labels[here]) if classes else None)
    return tuple(row)


class StateFile:
    """The state of a method between phases, written at most once a minute and in a tenth of the time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._due = time.monotonic() + STATE_SECONDS

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """Return the last phase learnt and the state after it; None if there is none that is whole."""
        try:
            file = TensorFile(self.path)
            values = file.facts("acil_state")
            return int(values["phase"]), {**file.tensors(), **values["state"]}
        except (OSError, KeyError, TypeError, ValueError):
            # Learning again gives the same state; a file that cannot be read is no reason to stop.
            return None

    def save_if_due(self, phase: int, gather: Callable[[], Mapping[str, Any]]) -> None:
        """Write the state after a phase, if it is time to write again."""
        started = time.monotonic()
        if started < self._due:
            return
        self.save(phase, gather())
        ended = time.monotonic()
        self._due = ended + STATE_SECONDS * max(1.0, (ended - started) / _LONG)

    def save(self, phase: int, state: Mapping[str, Any]) -> None:
        """Write the state after a phase now."""
        tensors = {k: v for k, v in state.items() if isinstance(v, Tensor)}
        others = {k: v for k, v in state.items() if not isinstance(v, Tensor)}
        text = json.dumps({"phase": phase, "state": others})
        write_tensors(self.path, tensors, {"acil_state": text})
