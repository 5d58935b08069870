"""How far a run is: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpt.predict.inputs import Source

LINE_EVERY = 15.0
"""Seconds between lines where there is no terminal."""


class ProgressMeter:
    """Counts pictures and frames, and keeps what failed.

    Attributes:
        done: pictures and frames predicted.
        failed: the inputs that were not, with the reason.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.failed: list[tuple[Source, str]] = []
        self._start = self._said = time.monotonic()
        self._bar: Progress | None = None
        console = Console()
        if console.is_terminal:
            self._bar = Progress(
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[speed]:.3g} images/s"),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=total, speed=0.0)

    def __enter__(self) -> ProgressMeter:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    @property
    def speed(self) -> float:
        """Images a second so far."""
        return self.done / max(self.seconds, 1e-9)

    def expect(self, more: int) -> None:
        """A video begins, of so many frames; it counted as one so far."""
        self.total += max(more, 1) - 1

    def advance(self, count: int = 1) -> None:
        self.done += count
        self._show()

    def fail(self, source: Source, reason: str) -> None:
        self.failed.append((source, " ".join(reason.split())))
        self._show()

    def _show(self) -> None:
        completed = self.done + len(self.failed)
        if self._bar is not None:
            self._bar.update(self._task, completed=completed, total=self.total, speed=self.speed)
        elif time.monotonic() - self._said > LINE_EVERY:
            self._said = time.monotonic()
            print(f"{completed}/{self.total}, {self.speed:.3g} images/s", flush=True)
