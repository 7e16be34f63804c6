"""Rows that really kill their process, which is started again, as a supervisor would, until they are isolated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

APP = """
import ctypes, os
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

@operation("fatal")
class Fatal(Pipeline[Row]):
    @step
    async def work(self, row: Row, ctx: Context) -> int:
        meet(row.fate)
        return row.n
"""

QUICK = {
    "PENSTOCK_LEASE_S": "1.5",
    "PENSTOCK_HEARTBEAT_S": "0.3",
    "PENSTOCK_LEASE_MARGIN_S": "0.3",
    "PENSTOCK_CONTROL_POLL_S": "0.1",
    "PENSTOCK_WAKE_POLL_S": "0.05",
    "PENSTOCK_STALL_S": "1.5",
}
STARTS_MAX = 8


def penstock(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments, "--db", "sqlite:///fatal.db", "--json"],
        cwd=folder,
        env={**os.environ, **QUICK},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.covers("I-10")
@pytest.mark.parametrize("fate", ["exit", "segfault", "spin"])
def test_a_row_that_kills_its_process_fails_alone_and_its_neighbours_complete(tmp_path: Path, fate: str):
    (tmp_path / "app.py").write_text(APP)
    lines = [f"{n},{fate if n == 30 else ''}" for n in range(1, 61)]
    (tmp_path / "rows.csv").write_text("\n".join(["n,fate", *lines]) + "\n")
    starts = [penstock(tmp_path, "run", "fatal", "rows.csv", "--app", "app.py")]
    (made,) = json.loads(penstock(tmp_path, "ops", "list").stdout)["items"]
    while starts[-1].returncode not in (0, 3) and len(starts) < STARTS_MAX:
        starts.append(penstock(tmp_path, "run", "--resume", made["id"], "--app", "app.py"))
    codes = [start.returncode for start in starts]
    assert codes[-1] == 3, (codes, starts[-1].stderr[-500:])
    assert len(starts) == 5, f"four processes die, the fifth gets through: {codes}"
    done = json.loads(starts[-1].stdout)
    assert (done["successfulRows"], done["failedRows"]) == (59, 1)
    (error,) = json.loads(penstock(tmp_path, "ops", "errors", made["id"]).stdout)["items"]
    assert (error["rowNumber"], error["errorType"]) == (30, "Poison")
    assert penstock(tmp_path, "verify").returncode == 0
