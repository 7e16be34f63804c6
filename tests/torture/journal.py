"""What really happened, written by the processes themselves: a line a fact, appended to one file a process.

A line is one `write` of less than a page to a file opened for appending, so it survives the SIGKILL that follows it.
Times are seconds on the host's monotonic clock, which all processes share.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from penstock import Context

from .clocks import TRUE_NS

__all__ = ["Began", "Cut", "Effect", "FileJournal", "Hit", "How", "Journal", "Line", "Said", "What", "read_all"]

LINE_BYTES_MAX = 4096

What = Literal["start", "end", "check"]
How = Literal["unsent", "unanswered", "late", "slow"]


class Began(msgspec.Struct, frozen=True, tag="began"):
    """A worker is ready under this lease id."""

    t: float
    who: str
    lease: str


class Effect(msgspec.Struct, frozen=True, tag="effect", kw_only=True):
    """User code of one row's step began or ended; `check` is a poll's question."""

    t: float
    who: str
    what: What
    operation: str
    row: int
    step: str
    generation: int
    attempt: int
    key: str


class Hit(msgspec.Struct, frozen=True, tag="hit"):
    """A process passed a failpoint; `kills` when it died there."""

    t: float
    who: str
    point: str
    kills: bool = False


class Said(msgspec.Struct, frozen=True, tag="said", kw_only=True):
    """A client's call and what it was told: `answer` is None before the answer, then the result or the refusal.

    `at` is the wall clock in microseconds, to be compared with what the database stored.
    """

    t: float
    at: int
    who: str
    call: int
    verb: str
    operation: str | None = None
    detail: dict[str, Any] = {}
    answer: Any = None
    refusal: str | None = None

    @property
    def is_acknowledged(self) -> bool:
        """Whether the caller was told that it is done."""
        return self.answer is not None


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """The proxy meddled with a COMMIT: it was never sent, or sent (at once or late) and never answered, or slowly."""

    t: float
    who: str
    how: How


Line = Began | Cut | Effect | Hit | Said


class Journal(ABC):
    """One process's witness."""

    def __init__(self, who: str) -> None:
        self.who = who

    @abstractmethod
    def write(self, line: Line) -> None:
        """Append one fact."""

    def moment(self) -> float:
        """Now, on the clock of the journals."""
        return time.monotonic()

    def wall_us(self) -> int:
        """Now, on the clock of the database, which is right."""
        return TRUE_NS() // 1000

    def hit(self, point: str, *, kills: bool = False) -> None:
        """Note that a failpoint was passed."""
        self.write(Hit(self.moment(), self.who, point, kills))

    def note(self, what: What, ctx: Context[Any]) -> None:
        """Note what a step does."""
        self.write(
            Effect(
                t=self.moment(),
                who=self.who,
                what=what,
                operation=ctx.operation_id,
                row=ctx.row_number,
                step=ctx.step_name,
                generation=ctx.generation,
                attempt=ctx.attempt,
                key=ctx.effect_key,
            )
        )


class FileJournal(Journal):
    """A journal that survives the death of its process."""

    def __init__(self, folder: Path, who: str) -> None:
        super().__init__(who)
        self._file = os.open(folder / f"{who}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, line: Line) -> None:
        data = msgspec.json.encode(line) + b"\n"
        assert len(data) < LINE_BYTES_MAX, f"a line of {len(data)} bytes may be torn"
        os.write(self._file, data)


def read_all(folder: Path) -> list[Line]:
    """Every line of every process, in the order of time."""
    return sorted((line for file in folder.glob("*.jsonl") for line in _read(file)), key=lambda line: line.t)


def _read(file: Path) -> Iterator[Line]:
    decoder = msgspec.json.Decoder(Line)
    *whole, _ = file.read_bytes().split(b"\n")  # of the last one, part may be there while it is being written
    for text in whole:
        yield decoder.decode(text)
