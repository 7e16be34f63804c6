"""`penstock worker`: real processes that claim, run, stop, die and are succeeded."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import servers
from town import APP, Town, town_at

ROWS = 400


@pytest.fixture
def town(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    with town_at(database_url, tmp_path, monkeypatch) as found:
        yield found


on_both = pytest.mark.databases("sqlite", "postgresql")
on_sqlite = pytest.mark.databases("sqlite")


@on_both
@pytest.mark.covers("SM-003", "SM-012")
def test_a_worker_finishes_what_another_process_has_made(town: Town):
    before = town.create("visit")
    process = town.start_worker()
    after = town.create("visit")
    for operation in (before, after):
        assert town.until_settled(operation)["status"] == "Completed"
    assert town.end(process, signal.SIGTERM) == 0
    first, *_ = town.said(process).splitlines()
    assert re.match(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO penstock\.worker: worker \S+ \(process \d+\) runs ", first
    )
    assert "runs linger, permit, stroll, travel, visit on " in first
    assert "Traceback" not in town.said(process)
    assert town.ask("doctor")["workers"] == []


@on_both
@pytest.mark.covers("SM-019")
def test_a_worker_told_to_stop_lets_go_and_another_finishes_with_nothing_lost(town: Town):
    operation = town.create("stroll", rows=ROWS)
    town.close_gate(20)
    first = town.start_worker()
    town.until_begun(operation)
    town.halt(first, signal.SIGTERM)
    town.open_gate()
    assert town.await_end(first) == 0
    halted = town.ask("ops", "show", operation)
    assert halted["status"] == "Running"
    assert 0 < halted["processedRows"] < ROWS
    assert (halted["failedRows"], halted["cancelledRows"]) == (0, 0)
    town.start_worker()
    finished = town.until_settled(operation)
    assert (finished["status"], finished["successfulRows"]) == ("Completed", ROWS)
    # Rows in hand had time to end, so nothing ran twice.
    assert town.ask("ops", "history", operation)["items"] == []
    assert town.ask("verify")["isClean"]


@on_both
def test_a_worker_that_is_killed_is_succeeded(town: Town):
    operation = town.create("stroll", rows=ROWS)
    first = town.start_worker(PENSTOCK_TEST_FAILPOINT="flush:after=2")
    assert town.await_end(first) == -signal.SIGKILL
    town.start_worker()
    finished = town.until_settled(operation)
    assert (finished["status"], finished["successfulRows"]) == ("Completed", ROWS)
    assert town.ask("verify")["isClean"]


@on_sqlite
def test_a_second_signal_ends_a_worker_at_once(town: Town):
    town.create("linger", rows=1)
    process = town.start_worker()
    town.until((town.folder / "lingering").exists, "the row runs")
    town.halt(process, signal.SIGTERM)
    assert town.end(process, signal.SIGINT) == -signal.SIGINT


@on_sqlite
def test_a_step_that_does_not_end_holds_up_a_stop_only_so_long(town: Town):
    operation = town.create("linger", rows=1)
    process = town.start_worker(PENSTOCK_SHUTDOWN_S="0.2")
    town.until((town.folder / "lingering").exists, "the row runs")
    assert town.end(process, signal.SIGTERM) == 0
    row = town.ask("ops", "show", operation, "--row", "1")
    assert row["state"] == "Pending"
    assert town.ask("ops", "show", operation)["status"] == "Running"


BLOCKING = """
import threading
from pydantic import BaseModel
from penstock import Context, operation

class Citizen(BaseModel):
    name: str

@operation("block")
async def block(row: Citizen, ctx: Context) -> None:
    threading.Event().wait()
"""


@on_sqlite
@pytest.mark.parametrize("command", ["worker", "run"])
def test_a_process_of_ours_whose_step_never_yields_ends_and_names_it(town: Town, command: str):
    (town.folder / "blocking.py").write_text(BLOCKING)
    (town.folder / "citizens.csv").write_text("name\nAda\n")
    words = {"worker": ["worker"], "run": ["run", "block", "citizens.csv"]}[command]
    if command == "worker":
        town.create("block", rows=1, app=str(town.folder / "blocking.py"))
    process = town.start(*words, "--app", "blocking.py", PENSTOCK_STALL_S="0.5")
    assert town.await_end(process) == 75
    assert re.search(
        r"CRITICAL .*block of row 1 of operation block \(\S+\), at \S+blocking.py:11, has blocked", town.said(process)
    )


@on_sqlite
def test_a_worker_ends_with_one_document_for_machines(town: Town):
    process = town.start_worker("--json")
    assert town.end(process, signal.SIGINT) == 0
    document = json.loads(town.said(process, "out"))
    assert document == {
        "process": process.pid,
        "operations": ["linger", "permit", "stroll", "travel", "visit"],
        "starts": 1,
    }


@on_sqlite
@pytest.mark.covers("SG-046")
def test_a_worker_waits_for_a_database_that_is_away_and_can_be_stopped_meanwhile(town: Town):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"postgresql://penstock@127.0.0.1:{held.getsockname()[1]}/penstock"
        process = town.start("worker", "--app", APP, "--db", url)
        town.until(lambda: town.said(process).count("WARNING") >= 2, "it warns again", process)
        assert town.end(process, signal.SIGTERM) == 0
    waits = re.findall(r"trying again in (\S+) s", town.said(process))
    assert waits[:2] == ["0.5", "1.0"]


@pytest.mark.covers("SG-046")
def test_a_worker_outlives_the_death_of_its_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with servers.private("postgresql") as server, town_at(server.url, tmp_path, monkeypatch) as town:
        assert town.call("db", "upgrade")[0] == 0
        operation = town.create("stroll", rows=ROWS)
        town.close_gate(20)
        process = town.start_worker()
        town.until_begun(operation)
        server.kill()
        town.until(lambda: "is away" in town.said(process), "the worker notices", process)
        server.start()
        town.open_gate()
        finished = town.until_settled(operation)
        assert (finished["status"], finished["successfulRows"]) == ("Completed", ROWS)
        assert town.ask("verify")["isClean"]
        assert town.end(process, signal.SIGTERM) == 0
        warnings = [line for line in town.said(process).splitlines() if " WARNING " in line]
        assert len(warnings) == 2
        assert "the database is away: postgresql" in warnings[0]
        assert re.search(r"the database is back after \d+\.\d s", warnings[1])


@pytest.mark.databases("postgresql")
@pytest.mark.covers("SG-046")
def test_a_schema_that_needs_an_upgrade_ends_a_worker_with_the_command_to_run(
    fresh_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with town_at(fresh_url, tmp_path, monkeypatch) as town:
        code, out, err = town.call("worker", "--app", APP)
    assert (code, out) == (1, "")
    assert "run `penstock db upgrade`" in err


@on_sqlite
def test_a_worker_without_an_application_is_wrong_usage(town: Town):
    code, _, err = town.call("worker")
    assert code == 2
    assert "add --app" in err


@on_both
@pytest.mark.covers("SM-031", "SM-032")
def test_a_run_that_does_not_wait_leaves_the_waits_to_a_worker(town: Town):
    (town.folder / "citizens.csv").write_text("name,age\nAnn,30\n,40\n")
    code, out, err = town.call("run", "permit", "citizens.csv", "--app", APP, "--no-wait", "--json")
    assert code == 5, err
    left = json.loads(out)
    assert (left["status"], left["waitingRows"], left["invalidRows"]) == ("Running", 1, 1)
    assert "all remaining rows wait for signals (1 row)" in err
    assert f"--continue {left['id']}" in err
    town.start_worker()
    assert town.ask("signal", left["id"], "permit-Ann")["outcome"] == "delivered"
    assert town.until_settled(left["id"])["status"] == "CompletedWithErrors"


@on_sqlite
def test_a_run_that_does_not_wait_ends_as_usual_where_nothing_waits(town: Town):
    (town.folder / "citizens.csv").write_text("name,age\nAnn,30\n")
    assert town.call("run", "visit", "citizens.csv", "--app", APP, "--no-wait")[0] == 0


@on_sqlite
@pytest.mark.parametrize("age, code, status", [(7, 0, "Completed"), (30, 5, "Running")])
def test_a_run_that_does_not_wait_asks_polled_steps_to_their_end(town: Town, age: int, code: int, status: str):
    (town.folder / "citizens.csv").write_text(f"name,age\nAnn,{age}\n")
    found, out, err = town.call("run", "travel", "citizens.csv", "--app", APP, "--no-wait", "--json")
    assert found == code, err
    assert json.loads(out)["status"] == status
    steps = town.ask("ops", "show", json.loads(out)["id"], "--row", "1")["steps"]
    assert [(step["stepName"], step["state"]) for step in steps[1:]] == [
        ("train", "Completed"),
        ("visa", "Skipped" if age < 20 else "WaitingForCompletion"),
    ]


@on_sqlite
def test_a_run_that_does_not_wait_stays_for_a_signal_that_was_sent_before(town: Town):
    operation = town.create("permit", rows=1)
    town.ask("signal", operation, "permit-p1")
    assert town.call("run", "--continue", operation, "--app", APP, "--no-wait")[0] == 0
