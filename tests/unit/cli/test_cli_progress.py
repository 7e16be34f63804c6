"""Progress without waiting: rates, time left, and when a plain line is due."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from penstock.cli.progress import LiveProgress, PlainProgress
from penstock.operations.model import Misfit, Operation
from penstock.operations.pace import Look, Pace, sentence

NOW = datetime(2030, 1, 1, tzinfo=UTC)
FRESH = Operation(
    id="01900000-0000-7000-8000-000000000000", name="invite", status="Pending", total_rows=0, rows_read=0,
    successful_rows=0, failed_rows=0, invalid_rows=0, timed_out_rows=0, cancelled_rows=0, waiting_rows=0, generation=0,
    retry_count=0, error=None, metadata=None, file_name="guests.csv", file_bytes=1, file_sha256="0" * 64,
    created_by="ann", created_at=NOW, started_at=None, finished_at=None, steps=("find",), options={},
)  # fmt: skip
RUNNING = replace(FRESH, status="Running", total_rows=1000, rows_read=1000)


class Stopwatch:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def watch() -> Stopwatch:
    return Stopwatch()


def at(done: int, **changes: Any) -> Operation:
    return replace(RUNNING, successful_rows=done, **{"steps_done": done + changes.get("failed_rows", 0), **changes})


def test_a_rate_needs_two_looks():
    pace = Pace()
    pace.note(Look.at(at(0)), 0)
    assert pace.rate is None
    pace.note(Look.at(at(100)), 2)
    assert pace.rate == 50


def test_the_rate_is_that_of_the_last_seconds():
    pace = Pace(window_s=10)
    for second, done in ((0, 0), (10, 100), (20, 900)):
        pace.note(Look.at(at(done)), second)
    assert pace.rate == 80


def test_the_time_left_counts_rows_that_somebody_else_must_wake_as_done():
    pace = Pace()
    pace.note(Look.at(at(0)), 0)
    look = Look.at(at(100, waiting_rows=400))
    pace.note(look, 1)
    assert pace.left_s(look) == 5


def test_a_new_phase_starts_anew():
    pace = Pace()
    pace.note(Look.at(replace(FRESH, status="Validating", rows_read=5000)), 0)
    pace.note(Look.at(at(0)), 1)
    assert pace.rate is None


def test_a_line_says_how_far_it_is_how_fast_and_what_failed():
    pace = Pace()
    pace.note(Look.at(at(0)), 0)
    look = Look.at(at(240, failed_rows=10))
    pace.note(look, 1)
    assert sentence(look, pace) == "Running: 250 of 1,000 rows (25 %), 10 failed, 250 rows/s, 3.0 s left"


def test_plain_lines_come_with_each_phase_and_every_few_seconds(watch: Stopwatch):
    lines: list[str] = []
    show = PlainProgress(lines.append, now=watch, every_s=5)
    for second, operation in enumerate(
        [FRESH, replace(FRESH, status="Validating"), at(0), at(1), at(2), at(3), at(4), at(5)]
    ):
        watch.seconds = second
        show(operation)
    show(replace(RUNNING, status="Completed", successful_rows=1000))
    assert [line.split(",")[0] for line in lines] == [
        "Pending: 0 rows read",
        "Validating: 0 rows read",
        "Running: 0 of 1",
        "Running: 5 of 1",
    ]


def final_frame(written: str) -> list[str]:
    """What is left on the screen: the lines after the last erasure, without control codes."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.rpartition("\x1b[2K")[2]).splitlines()


@pytest.mark.parametrize("columns", [60, 80, 160])
def test_the_live_display_keeps_a_finished_bar_for_each_phase(watch: Stopwatch, columns: int):
    terminal = io.StringIO()
    console = Console(force_terminal=True, no_color=True, width=columns, file=terminal)
    with LiveProgress(console, now=watch) as show:
        show(replace(FRESH, status="Validating", rows_read=500))
        watch.seconds = 1
        show(at(0))
        watch.seconds = 2
        show(at(500, failed_rows=7))
        show(replace(RUNNING, status="Completed", successful_rows=1000))
    last = final_frame(terminal.getvalue())
    assert [line.split()[1] for line in last] == ["Validating", "Running"]
    assert "1,000 rows" in last[0]
    assert "1,000 of 1,000" in last[1]
    assert max(map(len, last)) <= columns


@pytest.mark.parametrize("status", ["Paused", "Stopping"])
def test_an_operation_at_rest_says_so_without_a_rate_or_a_time_left(watch: Stopwatch, status: str):
    terminal = io.StringIO()
    console = Console(force_terminal=True, no_color=True, width=100, file=terminal)
    lines: list[str] = []
    plain = PlainProgress(lines.append, now=watch, every_s=0)
    with LiveProgress(console, now=watch) as live:
        for second, now in enumerate([at(0), at(100), at(101, status=status), at(103, status=status)]):
            watch.seconds = second
            plain(now)
            live(now)
    [last] = final_frame(terminal.getvalue())
    assert last.split()[1] == status
    assert "103 of 1,000" in last
    assert lines[-1] == f"{status}: 103 of 1,000 rows (10 %)"
    assert not [line for line in (last, *lines[2:]) if "left" in line or "/s" in line]


def test_an_operation_that_is_paused_while_its_file_is_read_shows_the_rows_read(watch: Stopwatch):
    paused = replace(FRESH, status="Paused", rows_read=500)
    assert sentence(Look.at(paused), Pace()) == "Paused: 500 rows read"


def test_what_keeps_an_operation_from_going_on_is_told_once(watch: Stopwatch):
    terminal, lines = io.StringIO(), list[str]()
    console = Console(force_terminal=True, no_color=True, width=60, file=terminal)
    plain = PlainProgress(lines.append, now=watch, every_s=1000)
    other_code = at(0, waiting_rows=5, misfits=(Misfit("w-1", ("step 'notify' is gone",)),))
    with LiveProgress(console, now=watch) as live:
        for now in (at(0), other_code, other_code, at(0, trouble="the vault\x1b[2J is closed"), at(0)):
            plain(now)
            live(now)
    told = [
        "It is left alone by worker w-1: step 'notify' is gone",
        "It does not go on: the vault\\x1b[2J is closed",
    ]
    assert lines == ["Running: 0 of 1,000 rows (0 %)", *told]
    seen = [line.strip() for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue()).splitlines()]
    assert [line for line in seen if line.startswith("It ")] == told
