"""The small gate of the fault harness: a short storm on each database, and as many seeded schedules as fit.

`make torture` runs the long ones.
"""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torture.faults import CLIENT_POINTS, WORKER_POINTS
from torture.journal import Line
from torture.planted import LATE, caught
from torture.schedules import play

ROOT = Path(__file__).parents[2]
STORM_S = 5
PATIENCE = 10  # how fast it is, is for `make torture` to say
SCHEDULES_S = 12


@pytest.mark.covers("I-01", "I-06", "I-07", "I-09", "I-13", "I-14", "I-18", "I-19", "I-21", "I-22", "I-25")
def test_nothing_is_lost_doubled_or_left_hanging_while_processes_die(database_kind: str, tmp_path: Path):
    faults = ("--kills=1000", "--freezes=3", "--restarts=1")
    limits = (f"--seconds={STORM_S}", f"--round-s={STORM_S}", f"--patience={PATIENCE}")
    options = ("--quiet", f"--db={database_kind}", f"--folder={tmp_path}", *faults, *limits)
    command = [sys.executable, "-m", "tests.torture", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.covers("I-06", "I-13", "I-15", "I-19", "I-22")
def test_seeded_schedules_leave_nothing_amiss(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.CRITICAL)
    end = time.monotonic() + SCHEDULES_S
    found = {}
    for seed in itertools.takewhile(lambda _: time.monotonic() < end, itertools.count(1)):
        found[seed] = [str(finding) for finding in play(seed)]
    assert {seed: findings for seed, findings in found.items() if findings} == {}
    assert found


@pytest.mark.covers("I-22")
@pytest.mark.parametrize("fault", LATE)
def test_a_wake_up_that_is_missed_does_not_hide_behind_the_sweep(fault: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.CRITICAL)
    assert caught(fault, range(2, 30, 2)) is not None


def test_a_seed_replays_exactly(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.CRITICAL)
    for seed in (2, 3):
        first: list[Line] = []
        second: list[Line] = []
        play(seed, first)
        play(seed, second)
        assert first
        assert first == second


def test_every_transaction_of_the_engine_is_a_point_the_harness_knows():
    sources = (ROOT / "src" / "penstock" / "operations").rglob("*.py")
    text = "".join(source.read_text() for source in sources)
    assert [name for name in (*WORKER_POINTS, *CLIENT_POINTS) if f'"{name}"' not in text] == []


@pytest.mark.databases("sqlite")
def test_every_operation_ends_by_code_that_fits_it_while_two_releases_are_deployed(tmp_path: Path):
    options = ("--db=sqlite", "--seconds=3", f"--folder={tmp_path}")
    command = [sys.executable, "-m", "tests.torture.rolling", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
