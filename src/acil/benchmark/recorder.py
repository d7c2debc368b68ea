"""From predictions to records, for every grouping of classes that a job covers."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from acil.benchmark import metrics
from acil.benchmark.plan import Job, ends
from acil.benchmark.records import Records, finished, key
from acil.methods import MemoryUse


class Recorder:
    """Writes the records of one job; what a resumed job had written stays as it is.

    Parameters
    ----------
    job : Job
    labels : Mapping of int to dict
        Number of phases K → what identifies its records.
    records : Records
    """

    def __init__(self, job: Job, labels: Mapping[int, dict[str, Any]], records: Records) -> None:
        self.job, self.labels, self.records = job, labels, records
        before = records.read()
        self.written = {
            (key(record), record["phase"]): record for record in before if record["kind"] == "phase"
        }
        self.finished = finished(before)
        self.seconds = dict.fromkeys(job.covers, 0.0)

    def phase(
        self, n_seen: int, predictions: Tensor, labels: Tensor, memory: MemoryUse, seconds: float
    ) -> float:
        """Record one evaluation for each grouping that has a phase ending here; return accuracy.

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
        return accuracy

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
