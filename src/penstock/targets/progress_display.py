"""Shows the progress of a bulk call: a live line in a terminal, now and then a plain one elsewhere.

with ProgressDisplay("accounts") as display:
    await executor.create_multiple("account", records, progress=display)
"""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.targets.progress import Phase, Progress

__all__ = ["ProgressDisplay", "sentence"]

PLAIN_EVERY_S = 5.0
BAR_COLUMNS = 30


class ProgressDisplay:
    """A progress callback that draws; writes to stderr unless given a console."""

    def __init__(
        self, label: str = "", *, console: Console | None = None, every_s: float = PLAIN_EVERY_S, is_quiet: bool = False
    ) -> None:
        self._label = label
        self._console = Console(quiet=True) if is_quiet else console or Console(stderr=True)
        self._every_s = every_s
        self._next_s = every_s
        self._live = Live(console=self._console, refresh_per_second=8) if self._console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Show a snapshot, or keep quiet when it is not yet time for another line."""
        if self._live:
            self._live.update(_drawn(self._label, progress))
        elif progress.phase is Phase.DONE or progress.elapsed_s >= self._next_s:
            self._next_s = progress.elapsed_s + self._every_s
            label = f"{self._label}: " if self._label else ""
            self._console.print(Text(label + sentence(progress)), soft_wrap=True)


def sentence(progress: Progress) -> str:
    """A snapshot in one line of text."""
    share = f"{progress.processed:,} records"
    if progress.total is not None:
        share = f"{progress.processed:,} of {progress.total:,} records ({progress.percent_complete:.0f} %)"
    counts = {"failed": progress.failed, "unknown": progress.unknown, "not run": progress.not_run}
    troubles = [f"{count:,} {name}" for name, count in counts.items() if count]
    return ", ".join((share, *troubles, *_pace(progress)))


def _pace(progress: Progress) -> list[str]:
    if progress.phase is Phase.DONE:
        return [f"{progress.overall_rate_per_second:,.0f}/s", f"done in {duration(progress.elapsed_s)}"]
    parts = [f"{progress.instant_rate_per_second:,.0f}/s"]
    if progress.phase is Phase.THROTTLED and progress.throttled_until_s is not None:
        parts.append(f"throttled for {duration(max(0.0, progress.throttled_until_s - progress.elapsed_s))}")
    elif progress.phase is not Phase.RUNNING:
        parts.append(progress.phase.value)
    if progress.estimated_remaining_s is not None:
        parts.append(f"{duration(progress.estimated_remaining_s)} left")
    return parts


def duration(seconds: float) -> str:
    """Seconds as a person would say them: `45 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _drawn(label: str, progress: Progress) -> Table:
    line = Table.grid(padding=(0, 1))
    total = None if progress.total is None else max(1, progress.total)
    completed = total if progress.percent_complete == 100 else progress.processed
    bar = ProgressBar(total=total, completed=completed or 0, width=BAR_COLUMNS, pulse=total is None)
    line.add_row(*([Text(label)] if label else []), bar, Text(sentence(progress)))
    return line
