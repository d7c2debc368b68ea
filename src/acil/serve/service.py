"""Everything that a server does with images or texts, without HTTP."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from acil.core.files.header import in_order
from acil.encoders.images.embedder import decode_all
from acil.errors import InputError
from acil.growing import Gate, ModelFile, Prediction, Samples
from acil.growing.modelfile import Change
from acil.growing.snapshot import Snapshot
from acil.serve.kinds import Kind, kind_of
from acil.serve.line import BusyError, Line, Waiting
from acil.serve.metrics import Metrics
from acil.serve.settings import Settings
from acil.serve.store import Served, Store
from acil.serve.uploads import Item, RefusedError, TooLargeError, check_name, refusals

logger = logging.getLogger(__name__)
#: Changes that the page can show.
_HISTORY = 20
#: Changes that are made or wait, with their samples in memory.
_MAX_CHANGES = 4
#: What is wrong with samples of a request, by their places in it.
Faults = dict[int, InputError]
#: A change of the model.
Action = Literal["learn", "forget", "rename", "merge"]
Result = TypeVar("Result")


class Service:
    """A model that predicts for many at a time and changes for one at a time."""

    def __init__(self, settings: Settings) -> None:
        self.store = Store(settings)
        self.kind = kind_of(settings, self.store.embedder)
        self.settings = self.kind.settings
        #: Of an upload, of which three times as many are held; a request with texts may have fewer.
        self.max_bytes = settings.max_bytes
        self._held_out: Samples | None = None
        if settings.held_out is not None:
            self._held_out = samples = self.store.reader.prepare(settings.held_out)
            if settings.max_drop is not None:
                self.store.file.gate = functools.partial(self._gate, samples, settings.max_drop)
        self._measured: Measured | None = None
        self._history: deque[dict[str, Any]] = deque(maxlen=_HISTORY)
        self.metrics = metrics = Metrics(self.kind.many)
        metrics.show("acil_classes", "Classes that the model knows.", lambda: len(self._totals))
        metrics.show(
            f"acil_model_{self.kind.many}",
            f"{self.kind.many.capitalize()} that the model has learnt.",
            lambda: sum(self._totals.values()),
        )
        if self._held_out is not None:
            about = "Accuracy on the held-out folder when it was last measured, percent."
            metrics.show("acil_held_out_accuracy", about, self._last_accuracy)
        self._line = Line(
            self.kind.embed,
            max_pixels=settings.max_pixels,
            limit=self.kind.largest_cost,
            max_images=self.kind.batch,
            batch_cost=self.kind.batch_cost,
            max_decoded=self.kind.decoded,
            decoders=self.kind.decoders,
            on_batch=self.metrics.batch,
        )
        self._checkers = ThreadPoolExecutor(2, thread_name_prefix="acil-check")
        # One thread: changes are made one after another.
        self._changes = ThreadPoolExecutor(1, thread_name_prefix="acil-change")
        self._turns = asyncio.Semaphore(_MAX_CHANGES)

    async def predict(
        self, client: str, items: Sequence[Item], top: int, unknown_above: float | None
    ) -> dict[str, Any]:
        """Return what the model says of samples; cancelled, it takes no more time.

        A sample that cannot be used has an error instead; if none can, raise.
        """
        question = Question(self.kind, items)
        answer = functools.partial(self._classified, question, top=top, unknown_above=unknown_above)
        return await self._in_line(client, question, answer)

    async def suggest(self, client: str, items: Sequence[Item], number: int) -> dict[str, Any]:
        """Return what the model says of the samples whose class would teach it most, the best first.

        Those that have been learnt are left out and counted: who asks can tell which they are.
        """
        question = Question(self.kind, items, told_apart=True)
        return await self._in_line(
            client, question, functools.partial(self._suggested, question, number)
        )

    async def _in_line(
        self, client: str, question: Question, answer: Callable[[Tensor], dict[str, Any]]
    ) -> dict[str, Any]:
        costs, question.faults = await self._checked(question.items)
        question.places = list(costs)
        waiting = [Waiting(functools.partial(question.read, place), *costs[place]) for place in costs]
        found: dict[str, Any] = await asyncio.wrap_future(self._line.submit(client, waiting, answer))
        self.metrics.used("predict", len(question.items) - len(question.faults))
        return found

    async def change(
        self, action: Literal["learn", "forget"], name: str, items: Sequence[Item]
    ) -> dict[str, Any]:
        """Teach or forget samples of a class, save, serve the new state; or raise and change nothing.

        Teaching leaves out samples that cannot be used, unless none can; forgetting refuses all.
        Return the report, the new revision, and the comparison on held-out samples if there are any.
        """
        check_name(name)
        if action == "forget":
            self.store.require()
        async with self._turn():
            _, faults = await self._checked(items)
            return await self._in_turn(self._changed, action, name, items, faults)

    async def rename(self, action: Literal["rename", "merge"], name: str, to: str) -> dict[str, Any]:
        """Give a class another name, or make it part of another class; return the description then."""
        check_name(name)
        check_name(to)
        self.store.require()
        async with self._turn():
            await self._in_turn(self._renamed, action, name, to)
        return await asyncio.to_thread(self.describe)

    async def undo(self) -> dict[str, Any]:
        """Take the last change of the file back; return the description of the state before it."""
        async with self._turn():
            await self._in_turn(self._undone)
        return await asyncio.to_thread(self.describe)

    async def _in_turn(self, work: Callable[..., Result], *given: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._changes, work, *given)

    def _turn(self) -> asyncio.Semaphore:
        """Return what counts a change that is made or waits; refuse if there are many."""
        if self._turns.locked():
            raise BusyError(503)
        return self._turns

    def describe(self) -> dict[str, Any]:
        """Return what the page and other clients need to know of the model."""
        published, settings = self.store.published, self.settings
        measured = self._measure(published)
        totals = {} if published is None else published.snapshot.totals
        many = self.kind.many
        return {
            "name": settings.model.name,
            "revision": None if published is None else published.revision,
            "kind": many,
            "classes": [{"name": name, many: count} for name, count in totals.items()],
            many: sum(totals.values()),
            "network": self.store.embedder.name,
            "can_learn": published is None or published.snapshot.can_learn,
            "tells_unknown": published is None or published.snapshot.knows_novelty,
            "undo_left": self.store.undo_left,
            "protected": settings.token is not None,
            "max_drop": settings.max_drop,
            "limits": {"bytes": settings.max_bytes, **self.kind.limits},
            "held_out": None if measured is None else measured.to_dict(),
            "history": list(self._history),
        }

    @property
    def _totals(self) -> dict[str, int]:
        published = self.store.published
        return {} if published is None else published.snapshot.totals

    def _last_accuracy(self) -> float:
        accuracy = None if self._measured is None else self._measured.to_dict()["accuracy"]
        return math.nan if accuracy is None else accuracy

    def close(self) -> None:
        """Finish open work and stop the threads."""
        self._changes.shutdown()
        self._checkers.shutdown()
        self._line.close()

    async def _checked(self, items: Sequence[Item]) -> tuple[dict[int, tuple[int, int]], Faults]:
        """Return pixels and cost of samples by place, and what is wrong with the others."""

        def check() -> tuple[dict[int, tuple[int, int]], Faults]:
            costs: dict[int, tuple[int, int]] = {}
            faults: Faults = {}
            for place, item in enumerate(items):
                try:
                    costs[place] = self.kind.check(item.content)
                except InputError as error:
                    faults[place] = error
            if not costs:
                raise RefusedError(items, faults, self.kind.many)
            pixels = sum(pixels for pixels, _ in costs.values())
            if pixels > self.settings.request_pixels:
                raise TooLargeError(
                    f"The images have {pixels:,} pixels in all, more than "
                    f"{self.settings.request_pixels:,}. Send fewer or smaller ones."
                )
            return costs, faults

        return await asyncio.get_running_loop().run_in_executor(self._checkers, check)

    def _classified(
        self, question: Question, features: Tensor, top: int, unknown_above: float | None
    ) -> dict[str, Any]:
        """Classify the samples of a request, all by one state of the model."""
        places, rows = question.usable(features)
        published = self.store.require()
        items = question.items
        names = [items[place].name for place in places]
        answers = published.snapshot.classify(rows, names, top, unknown_above)
        found = dict(zip(places, answers, strict=True))
        for place, fault in question.faults.items():
            found[place] = Prediction("", "", False, (), None, str(fault))
        predictions = [_told(items[place], found[place]) for place in range(len(items))]
        return {"revision": published.revision, "predictions": predictions}

    def _suggested(self, question: Question, number: int, features: Tensor) -> dict[str, Any]:
        places, rows = question.usable(features)
        published = self.store.require()
        samples = Samples(
            rows,
            np.full(len(places), ""),
            tuple(question.digests[place] for place in places),
            tuple(map(str, places)),
            (),
            self.store.embedder.identity,
            None,
            0.0,
        )
        found = published.snapshot.suggest(samples)
        items = question.items
        suggestions = [
            {"place": place, "closeness": one.closeness, **_told(items[place], one)}
            for one in found[:number]
            for place in [int(one.image)]
        ]
        return {
            "revision": published.revision,
            "suggestions": suggestions,
            "known": len(places) - len(found),
            "refused": refusals(items, question.faults),
        }

    def _samples(self, action: Action, name: str, items: Sequence[Item], faults: Faults) -> Samples:
        """Turn the items without a fault into samples of a class, and add the faults seen then."""
        places = [place for place in range(len(items)) if place not in faults]
        read = []
        for place, sample in zip(
            places, decode_all([items[place].content for place in places], self.kind.read), strict=True
        ):
            if isinstance(sample, InputError):
                faults[place] = sample
            else:
                read.append(sample)
        if not read or (faults and action == "forget"):
            raise RefusedError(items, faults, self.kind.many)
        names = tuple(items[place].name for place in places if place not in faults)
        return replace(self.store.reader.prepare(self.kind.given(read), name), images=names)

    def _changed(
        self, action: Action, name: str, items: Sequence[Item], faults: Faults
    ) -> dict[str, Any]:
        start = time.perf_counter()
        samples = self._samples(action, name, items, faults)

        def work(file: ModelFile) -> Change:
            return file.learn(samples) if action == "learn" else file.forget(samples)

        done, state_before, state_after = self.store.change(work)
        report = done.report
        number = sum(report.counts.values())
        self.metrics.used(action, number)
        entry = self._entry(action, name, number, state_before, state_after)
        if number:
            self._history.append(entry)
        seconds = time.perf_counter() - start
        verb = "learnt" if action == "learn" else "forgot"
        what = self.kind.counted(number)
        saved = ", saved" if number else ": all were learnt before"
        logger.info("%s %s of %r in %.2f s%s", verb, what, name, seconds, saved)
        return {
            **entry,
            "totals": report.totals,
            "repeated": len(report.repeated),
            "misplaced": len(report.misplaced),
            "duplicates": len(report.duplicates),
            "refused": refusals(items, faults),
            "seconds": seconds,
        }

    def _renamed(self, action: Literal["rename", "merge"], name: str, to: str) -> None:
        names = {name: to}

        def work(file: ModelFile) -> Change:
            return file.rename_classes(names) if action == "rename" else file.merge_classes(names)

        done, before, after = self.store.change(work, renamed=names)
        if after is not before:
            number = sum(done.report.counts.values())
            self._history.append({**self._entry(action, name, number, before, after), "to": to})
            logger.info("%s %r: now %r", "renamed" if action == "rename" else "merged", name, to)

    def _gate(
        self, samples: Samples, max_drop: float, before: Snapshot | None, after: Snapshot
    ) -> Mapping[str, float]:
        return Gate(_called(samples, self.store.published), max_drop)(before, after)

    def _entry(
        self, action: Action, name: str, number: int, before: Served | None, after: Served
    ) -> dict[str, Any]:
        """Return what the history has of a change."""
        earlier, now = self._measure(before), self._measure(after)
        return {
            "action": action,
            "class": name,
            self.kind.many: number,
            "revision": after.revision,
            "held_out": compared(earlier, now) if earlier and now else None,
        }

    def _undone(self) -> None:
        undone = self.store.undo()
        # Another process may have made the change.
        if self._history and undone is not None and self._history[-1]["revision"] == undone.revision:
            self._history.pop()
        logger.info("took the last change back")

    def _measure(self, published: Served | None) -> Measured | None:
        """Return how a state does on the held-out samples, if there are any; the last is remembered."""
        if self._held_out is None:
            return None
        measured, revision = self._measured, None if published is None else published.revision
        if measured is None or measured.revision != revision:
            self._measured = measured = Measured.of(self._held_out, published, self.kind.many)
        return measured


@dataclass
class Question:
    """Samples of a request that waits in the line."""

    kind: Kind
    items: Sequence[Item]
    told_apart: bool = False  # whether `digests` are wanted
    places: list[int] = field(default_factory=list)  # of those that go through the line
    faults: Faults = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)

    def read(self, place: int) -> Any:
        """Return a sample as the network takes it."""
        try:
            found = self.kind.read(self.items[place].content)
        except InputError as error:
            self.faults[place] = error
            # The others go on, and the line needs something for each, whose answer is not used.
            return self.kind.blank
        if self.told_apart:
            self.digests[place] = self.kind.digest(found)
        return found

    def usable(self, features: Tensor) -> tuple[list[int], npt.NDArray[np.float32]]:
        """Return the places and the features of the samples that can be used, or raise if none can."""
        rows = [row for row, place in enumerate(self.places) if place not in self.faults]
        if not rows:
            raise RefusedError(self.items, self.faults, self.kind.many)
        return [self.places[row] for row in rows], features[rows].numpy()


@dataclass(frozen=True)
class Measured:
    """How one state of the model does on the held-out samples."""

    many: str  # what the samples are
    revision: str | None  # None before anything was taught
    names: npt.NDArray[np.str_]  # true class of each sample
    known: npt.NDArray[np.bool_]  # whether the model has learnt that class
    right: npt.NDArray[np.bool_]  # whether it is the likeliest

    @classmethod
    def of(cls, samples: Samples, published: Served | None, many: str) -> Measured:
        """Measure a state; None is a model that knows nothing yet."""
        names = _called(samples, published).labels
        if published is None:
            nothing = np.zeros(len(names), dtype=np.bool_)
            return cls(many, None, names, nothing, nothing)
        head = published.snapshot.head
        right = names == head.predict(samples.features)
        return cls(many, published.revision, names, np.isin(names, head.classes_), right)

    def to_dict(self) -> dict[str, Any]:
        """Return accuracy in percent over the classes learnt, the number of samples, and each class."""
        classes = in_order(set(self.names[self.known].tolist()))
        return {
            "accuracy": _percent(self.right, self.known),
            self.many: int(self.known.sum()),
            "per_class": {name: _percent(self.right, self.names == name) for name in classes},
        }


def _told(item: Item, prediction: Prediction) -> dict[str, Any]:
    """Return an answer to a sample, with what answers call it."""
    values = prediction.to_dict()
    del values[prediction.thing]
    return {**item.named, **values}


def _called(samples: Samples, published: Served | None) -> Samples:
    """Return held-out samples, each with the name that its class has in a state of the model."""
    names = {} if published is None else published.names
    return replace(samples, labels=np.array([names.get(name, name) for name in samples.names]))


def compared(before: Measured, after: Measured) -> dict[str, Any]:
    """Return accuracies before and after a change, each over the classes known then.

    ``kept`` is over the classes known at both times; ``lost`` of these samples were right before only.
    """
    both = before.known & after.known
    return {
        "before": before.to_dict(),
        "after": after.to_dict(),
        "kept": {
            "accuracy_before": _percent(before.right, both),
            "accuracy_after": _percent(after.right, both),
            before.many: int(both.sum()),
            "lost": int((both & before.right & ~after.right).sum()),
        },
    }


def _percent(right: npt.NDArray[np.bool_], among: npt.NDArray[np.bool_]) -> float | None:
    return None if not among.any() else 100.0 * float((right & among).sum()) / float(among.sum())
