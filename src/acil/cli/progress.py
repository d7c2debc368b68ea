"""Progress of long work on stderr: bars on a terminal, nothing elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Any


class RunProgress:
    """Shows trainings and phases of a benchmark run; call it with what the runner reports."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> RunProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def __call__(self, event: Any) -> None:
        """Show one event: a finished phase, or an epoch of training."""
        if hasattr(event, "epochs"):
            # A generator of images has no accuracy.
            accuracy = "" if event.accuracy is None else f"accuracy {event.accuracy:.1f} %  "
            note = (
                f"loss {event.loss:.3f}  {accuracy}"
                f"{event.images_per_second:,.0f} images/s  {event.seconds_left:.0f} s left"
            )
            self._show("training", event.epoch, event.epochs, note)
        else:
            name = f"{event.method}, seed {event.seed}"
            self._show(name, event.phase + 1, event.phases + 1, f"accuracy {event.accuracy:.2f} %")

    def _show(self, name: str, done: float, total: float, note: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total, note=note)
        self._bars.update(self._tasks[name], completed=done, total=total, note=note)
