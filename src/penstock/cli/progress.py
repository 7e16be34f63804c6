"""Progress on stderr: a live bar in a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.text import Text

from penstock.operations.model import Operation
from penstock.operations.pace import AT_REST, Look, Pace, sentence
from penstock.printable import duration, printable

__all__ = ["Display", "LiveProgress", "NoProgress", "PlainProgress", "display"]

PLAIN_EVERY_S = 5.0
WIDE_COLUMNS = 120


class Display(Protocol):
    """Is shown an operation again and again."""

    def __call__(self, operation: Operation) -> None: ...

    def say(self, line: str) -> None:
        """Print a line that stays; it is not wrapped, so that a command in it can be copied."""


class NoProgress:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None: ...

    def __call__(self, operation: Operation) -> None: ...

    def say(self, line: str) -> None: ...


class _Obstacles:
    """What keeps an operation from going on, as a line when it is new."""

    def __init__(self) -> None:
        self._told = ""

    def news(self, operation: Operation) -> str | None:
        if operation.trouble is not None:
            found = f"It does not go on: {operation.trouble}"
        else:
            found = f"It is left alone by {', by '.join(map(str, operation.misfits))}" if operation.misfits else ""
        is_new, self._told = found not in ("", self._told), found
        return printable(found) if is_new else None


class PlainProgress(NoProgress):
    """A line when the phase changes, and one every few seconds."""

    def __init__(
        self,
        write: Callable[[str], object] | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        every_s: float = PLAIN_EVERY_S,
    ) -> None:
        self._write = write or (lambda line: print(line, file=sys.stderr, flush=True))
        self._now, self._every_s = now, every_s
        self._pace = Pace()
        self._phase, self._next = "", 0.0
        self._obstacles = _Obstacles()

    def __call__(self, operation: Operation) -> None:
        look, now = Look.at(operation), self._now()
        self._pace.note(look, now)
        if line := self._obstacles.news(operation):
            self._write(line)
        if operation.is_settled or (look.phase == self._phase and now < self._next):
            return
        self._phase, self._next = look.phase, now + self._every_s
        self._write(sentence(look, self._pace))

    def say(self, line: str) -> None:
        self._write(line)


class LiveProgress(NoProgress):
    """A bar for each phase, kept on the screen when the phase is over."""

    def __init__(self, console: Console, *, now: Callable[[], float] = time.monotonic) -> None:
        is_wide = console.width >= WIDE_COLUMNS
        self._bars = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=40 if is_wide else None),
            TextColumn("{task.fields[rows]}", justify="right"),
            TextColumn("{task.fields[note]}", style="dim"),
            console=console,
            expand=not is_wide,
        )
        self._now, self._pace = now, Pace()
        self._tasks: dict[str, TaskID] = {}
        self._obstacles = _Obstacles()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bars.stop()

    def __call__(self, operation: Operation) -> None:
        look = Look.at(operation)
        self._pace.note(look, self._now())
        if line := self._obstacles.news(operation):
            self.say(line)
        phase = "Validating" if look.total is None else "Running"
        if phase == "Running":
            self._finish("Validating", f"{operation.total_rows:,} rows")
        if phase == "Validating" or operation.total_rows:
            self._show(phase, operation, look)
        if operation.is_settled:
            self._finish("Running", f"{look.done:,} of {look.total:,}")

    def say(self, line: str) -> None:
        self._bars.console.print(Text(line), soft_wrap=True)

    def _show(self, phase: str, operation: Operation, look: Look) -> None:
        task = self._task(phase)
        label = look.phase if look.phase in AT_REST else phase
        rows = f"{look.done:,} rows" if look.total is None else f"{look.done:,} of {look.total:,}"
        self._bars.update(
            task,
            description=label,
            total=None if look.total is None else 1,
            completed=look.share or 0,
            rows=rows,
            note=self._note(look),
        )

    def _task(self, phase: str) -> TaskID:
        if phase not in self._tasks:
            self._tasks[phase] = self._bars.add_task(phase, total=None, rows="", note="")
        return self._tasks[phase]

    def _finish(self, phase: str, rows: str) -> None:
        task = self._tasks.get(phase)
        if task is not None and not self._bars.tasks[task].finished:
            self._bars.update(task, description=phase, total=1, completed=1, rows=rows, note="")

    def _note(self, look: Look) -> str:
        parts = []
        if self._pace.rate is not None:
            parts.append(f"{self._pace.rate:,.0f}/s")
        if look.failed:
            parts.append(f"{look.failed:,} failed")
        if look.waiting:
            parts.append(f"{look.waiting:,} waiting")
        left = self._pace.left_s(look)
        if left:
            parts.append(f"{duration(left)} left")
        return " · ".join(parts)


def display(*, is_wanted: bool) -> AbstractContextManager[Display]:
    """The display that suits stderr."""
    if not is_wanted:
        return NoProgress()
    console = Console(stderr=True, highlight=False)
    return LiveProgress(console) if console.is_terminal else PlainProgress()
