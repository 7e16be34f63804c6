"""Rows that really kill their process, which is started again, as a supervisor would, until they are isolated."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import forked
import pytest
from patience import HANG_S, UNHURRIED

APP = """
import ctypes, os, time
from pydantic import BaseModel
from penstock import Context, Pipeline, operation, step

class Row(BaseModel):
    n: int
    fate: str = ""

def meet(fate: str) -> None:
    match fate:
        case "exit":
            os._exit(9)
        case "segfault":
            ctypes.string_at(0)
        case "spin":
            while True:
                pass
        case "hoard":
            hoard = []
            while True:
                hoard.append(b"x" * (8 << 20))
                time.sleep(0.002)
        case "greed":
            b"x" * (1 << 62)

@operation("fatal")
class Fatal(Pipeline[Row]):
    async def validate_row(self, row: Row, meta: None, /) -> None:
        place, _, fate = row.fate.rpartition(" ")
        if place in ("checked:", "checked on a thread:"):
            meet(fate)

    @step(retries=1, backoff=0.01)
    async def work(self, row: Row, ctx: Context) -> int:
        meet(row.fate)
        return row.n
"""

QUICK = UNHURRIED | {
    "PENSTOCK_HEARTBEAT_S": "0.3",
    "PENSTOCK_CONTROL_POLL_S": "0.1",
    "PENSTOCK_WAKE_POLL_S": "0.05",
}
# Only where a row spins: one that hoards takes its time on a busy machine. Nothing else blocks the loop for long.
STALL_SOON = {"PENSTOCK_STALL_S": "3"}
STARTS_MAX = 8
MEMORY_BYTES = 500 << 20
LOOK_S = 0.01


def penstock(folder: Path, *arguments: str, env: Mapping[str, str] = QUICK) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; like the kernel out of memory, we kill it when it has taken too much."""
    words = ["-m", "penstock", *arguments, "--db", "sqlite:///fatal.db", "--json"]
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        process = forked.start(*words, cwd=folder, env={**os.environ, **env}, stdout=out, stderr=err)
        try:
            wait(process)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, process.wait(), out.read(), err.read())


def wait(process: forked.Forked) -> None:
    ends = time.monotonic() + HANG_S
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        while process.poll() is None:
            assert time.monotonic() < ends
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            if pages * resource.getpagesize() > MEMORY_BYTES:
                process.kill()
            time.sleep(LOOK_S)


def rows_of_which_one(folder: Path, fate: str) -> None:
    """Sixty rows; one of them has a fate."""
    on_thread = fate.startswith("checked on a thread:")
    (folder / "app.py").write_text(APP.replace("async def validate_row", "def validate_row") if on_thread else APP)
    lines = [f"{n},{fate if n == 30 else ''}" for n in range(1, 61)]
    (folder / "rows.csv").write_text("\n".join(["n,fate", *lines]) + "\n")


def errors(folder: Path, operation: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(penstock(folder, "ops", "errors", operation).stdout)["items"]
    return found


@pytest.mark.covers("I-10")
@pytest.mark.parametrize(
    "fate, code",
    [
        ("exit", 9),
        ("spin", os.EX_TEMPFAIL),
        ("hoard", -signal.SIGKILL),
        ("checked: hoard", -signal.SIGKILL),
        ("checked on a thread: segfault", -signal.SIGSEGV),
    ],
)
def test_a_row_that_kills_its_process_fails_alone_and_its_neighbours_complete(tmp_path: Path, fate: str, code: int):
    rows_of_which_one(tmp_path, fate)
    env = {**QUICK, **STALL_SOON} if fate == "spin" else QUICK
    starts = [penstock(tmp_path, "run", "fatal", "rows.csv", "--app", "app.py", env=env)]
    (made,) = json.loads(penstock(tmp_path, "ops", "list").stdout)["items"]
    while starts[-1].returncode not in (0, 3) and len(starts) < STARTS_MAX:
        starts.append(penstock(tmp_path, "run", "--continue", made["id"], "--app", "app.py", env=env))
    codes = [start.returncode for start in starts]
    assert codes == [code] * 4 + [3], starts[-1].stderr[-500:]
    done = json.loads(starts[-1].stdout)
    assert (done["successfulRows"], done["failedRows"]) == (59, 1)
    (error,) = errors(tmp_path, made["id"])
    assert (error["rowNumber"], error["errorType"]) == (30, "Poison")
    assert penstock(tmp_path, "verify").returncode == 0


@pytest.mark.parametrize(
    "fate, error_type, attempts",
    [("greed", "StepFailure", 2), ("checked: greed", "Processing", 1), ("checked on a thread: greed", "Processing", 1)],
)
def test_a_row_for_which_there_is_not_enough_memory_fails_like_any_other(
    tmp_path: Path, fate: str, error_type: str, attempts: int
):
    rows_of_which_one(tmp_path, fate)
    done = penstock(tmp_path, "run", "fatal", "rows.csv", "--app", "app.py")
    assert done.returncode == 3, done.stderr[-500:]
    found = json.loads(done.stdout)
    assert (found["successfulRows"], found["failedRows"]) == (59, 1)
    (error,) = errors(tmp_path, found["id"])
    assert (error["rowNumber"], error["errorType"], error["stepAttempts"]) == (30, error_type, attempts)
    assert "MemoryError" in error["errorMessage"]
