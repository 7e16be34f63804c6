"""`penstock run --workers N`: the processes beside it are replaced when they end, and end when it does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
from patience import HANG_S, UNHURRIED
from test_cli_processes import APP

from penstock.cli.worker_processes import QUICK_ENDS_MAX, QUICK_S, Restarts

ROWS = 60
LOOK_S = 0.02


class Party:
    """A folder with guests, and one run with two processes that stays as long as there is a gate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "met").mkdir()
        (folder / "gate").touch()
        (folder / "guests.csv").write_text("name,age\n" + "Ann,30\n" * ROWS)
        self.host: forked.Forked | None = None

    def start(self, *words: str, app: str = APP, **environment: str) -> forked.Forked:
        with (self.folder / "out").open("w") as out, (self.folder / "err").open("w") as err:
            self.host = forked.start(
                "-m", "penstock", "run", *words, "--app", app, "--workers", "2",
                cwd=self.folder, stdout=out, stderr=err, env=os.environ | environment,
            )  # fmt: skip
        return self.host

    def said(self) -> str:
        return (self.folder / "err").read_text()

    def until(self, look: Callable[[], Any], what: str) -> Any:
        ends = time.monotonic() + HANG_S
        while not (found := look()):
            assert time.monotonic() < ends, f"not within {HANG_S:g} s: {what}\n{self.said()}"
            time.sleep(LOOK_S)
        return found

    def others(self, number: int) -> set[int]:
        """The processes beside the host that have begun rows, once there are so many."""
        assert self.host is not None

        def look() -> set[int] | None:
            seen = {int(path.name) for path in (self.folder / "met").iterdir()}
            is_complete = self.host is not None and self.host.pid in seen and len(seen) == number + 1
            return seen if is_complete else None

        found: set[int] = self.until(look, f"{number} other processes begin")
        return found - {self.host.pid}

    def ask(self, *words: str) -> Any:
        done = subprocess.run(
            [*forked.python(), "-m", "penstock", *words, "--json"],
            cwd=self.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout, done.stderr
        return json.loads(done.stdout)


def has_ended(process: int) -> bool:
    """Whether a process that is not ours has ended; nobody may have asked for its exit code."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return state.stdout.strip() == "" or state.stdout.startswith("Z")


@pytest.fixture
def party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Party]:
    for name, value in UNHURRIED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PENSTOCK_CHUNK_ROWS", "1")
    monkeypatch.setenv("PENSTOCK_SHUTDOWN_S", "0")
    found = Party(tmp_path)
    try:
        yield found
    finally:
        (tmp_path / "gate").unlink(missing_ok=True)
        if found.host is not None:
            found.host.kill()
            found.host.wait()


def test_worker_processes_end_when_the_run_that_started_them_is_killed(party: Party):
    host = party.start("mingle", "guests.csv")
    [other] = party.others(1)
    host.kill()
    host.wait()
    party.until(lambda: has_ended(other), "the other process ends too")
    left = party.ask("ops", "list")["items"][0]
    assert (left["status"], left["processedRows"]) == ("Running", 0)
    (party.folder / "gate").unlink()
    finished = party.ask("run", "--continue", left["id"], "--app", APP)
    assert (finished["status"], finished["successfulRows"]) == ("Completed", ROWS)


def test_worker_processes_end_with_a_run_that_is_interrupted_and_nothing_is_said_of_them(party: Party):
    host = party.start("mingle", "guests.csv")
    [other] = party.others(1)
    host.send_signal(signal.SIGINT)
    assert host.wait(HANG_S) == 130
    assert has_ended(other)
    assert "worker process" not in party.said()
    assert "penstock: interrupted. Operation " in party.said()


def test_a_worker_process_that_is_killed_is_reported_at_once_and_replaced(party: Party):
    host = party.start("mingle", "guests.csv")
    [other] = party.others(1)
    os.kill(other, signal.SIGKILL)
    party.until(lambda: f"worker process 2 (pid {other}) was killed by SIGKILL" in party.said(), "its end is told")
    party.others(2)
    (party.folder / "gate").unlink()
    assert host.wait(HANG_S) == 0, party.said()
    assert party.ask("ops", "list")["items"][0]["successfulRows"] == ROWS


def test_worker_processes_that_always_end_stop_the_run_with_a_message(party: Party):
    host = party.start("mingle", "guests.csv", "--json", PENSTOCK_TEST_FAILPOINT="register_worker:after=1")
    assert host.wait(HANG_S) == 1
    assert party.said().count("was killed by SIGKILL") == QUICK_ENDS_MAX
    problem = json.loads((party.folder / "out").read_text())
    left = party.ask("ops", "list")["items"][0]
    assert left["status"] == "Running"
    assert f"worker process 2 ended {QUICK_ENDS_MAX} times" in problem["detail"]
    assert f"--continue {left['id']}" in problem["detail"]


def test_the_last_output_of_a_worker_process_is_shown(party: Party):
    (party.folder / "app.py").write_text(
        "import os, sys\n"
        "sys.path.insert(0, os.path.dirname(os.environ['TEST_APP']))\n"
        "from cli_app import mingle\n"
        "if 'PENSTOCK_APP' in os.environ:\n"  # only the processes beside the run find it there
        "    os.write(2, b'no licence for a second process')\n"
        "    os._exit(9)\n"
    )
    host = party.start("mingle", "guests.csv", app="app.py", TEST_APP=APP)
    assert host.wait(HANG_S) == 1
    assert re.search(r"worker process 2 \(pid \d+\) ended with exit code 9\. Its last output:\n", party.said())
    assert "    no licence for a second process" in party.said()


def test_a_process_is_restarted_after_a_longer_pause_each_time_and_not_for_ever():
    restarts = Restarts()
    pauses = [restarts.pause_s(0.1) for _ in range(QUICK_ENDS_MAX)]
    assert pauses == [0.2, 0.4, 0.8, 1.6, None]


def test_a_process_that_worked_for_a_while_may_end_again_and_again():
    restarts = Restarts()
    assert [restarts.pause_s(QUICK_S) for _ in range(3 * QUICK_ENDS_MAX)] == [0.2] * 3 * QUICK_ENDS_MAX
