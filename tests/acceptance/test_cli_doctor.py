"""`penstock doctor` on real installations, healthy and ill."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table, update
from town import APP, Town, town_at

from penstock.clock import SystemClock
from penstock.db.database import Database
from penstock.operations.tables import chunks, operations, row_records, signals, workers

LONG_AGO = 1_000_000


@pytest.fixture
def town(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    with town_at(database_url, tmp_path, monkeypatch) as found:
        yield found


on_both = pytest.mark.databases("sqlite", "postgresql")
on_sqlite = pytest.mark.databases("sqlite")


def problems(town: Town) -> dict[str, str]:
    """What the doctor calls a problem, by check."""
    found = town.ask("doctor")
    wrong = {finding["check"]: finding["what"] for finding in found["findings"] if finding["isProblem"]}
    assert found["isHealthy"] is not bool(wrong)
    return wrong


def tamper(town: Town, table: Table, **values: Any) -> None:
    """Write into every row of a table what no worker would."""

    async def write() -> None:
        database = Database.connect(town.url, clock=SystemClock(), pool_size=1)
        async with database.write() as tx:
            await tx.execute(update(table).values(**values))
        await database.close()

    asyncio.run(write())


def test_an_empty_database_is_well(town: Town, database_kind: str):
    code, out, _ = town.call("doctor")
    assert code == 0
    assert out.splitlines()[0].startswith(f"Database         {database_kind} ")
    assert out.endswith("\nNo problems found.\n")
    document = town.ask("doctor")
    assert (document["isHealthy"], document["workers"], document["openOperations"]) == (True, [], 0)
    assert abs(document["clockAheadSeconds"]) < 1


@on_both
def test_work_beside_a_live_worker_is_well_and_without_one_it_is_a_problem(town: Town):
    operation = town.create("permit")
    assert problems(town) == {
        "open_operations_have_workers": f"1 operation with open work, and no live worker: {operation}",
    }
    process = town.start_worker()
    town.until(lambda: len(town.ask("ops", "waits", operation)["items"]) == 3, "all rows wait")
    assert problems(town) == {}
    (worker,) = town.ask("doctor")["workers"]
    assert (worker["process"], worker["state"]) == (process.pid, "live")
    town.end(process, signal.SIGTERM)
    assert set(problems(town)) == {"open_operations_have_workers"}
    code, out, _ = town.call("doctor")
    assert code == 1
    assert "do:   start one: `penstock worker --app MODULE`" in out
    assert out.endswith("\n1 problem found.\n")


@on_both
def test_a_worker_that_was_killed_is_seen_at_once_and_what_it_held_when_its_lease_is_over(town: Town):
    operation = town.create("linger", rows=1)
    process = town.start_worker()
    town.until((town.folder / "lingering").exists, "the row runs")
    town.end(process, signal.SIGKILL)
    assert [worker["state"] for worker in town.ask("doctor")["workers"]] == ["dead"]
    tamper(town, workers, lease_until=LONG_AGO)
    found = problems(town)
    assert found["chunks_have_live_owners"] == f"1 chunk is held by workers that are dead: {operation}"
    assert set(found) == {"chunks_have_live_owners", "open_operations_have_workers"}


@on_both
def test_rows_that_wait_beside_their_signal_or_past_their_deadline_are_found(town: Town):
    operation = town.create("permit", rows=2)
    process = town.start_worker()
    town.until(lambda: len(town.ask("ops", "waits", operation)["items"]) == 2, "all rows wait")
    town.end(process, signal.SIGTERM)
    town.call("signal", operation, "permit-p2")
    assert set(problems(town)) == {"open_operations_have_workers"}
    tamper(town, signals, accepted_at=LONG_AGO)
    assert problems(town)["signals_are_applied"] == f"1 row waits beside a stored signal: {operation}"
    tamper(town, row_records, deadline=LONG_AGO)
    assert problems(town)["waits_end_at_their_deadlines"] == f"2 rows wait past the deadline: {operation}"
    town.call("ops", "pause", operation)
    assert problems(town) == {}


@on_both
def test_an_operation_that_no_worker_can_go_on_with_says_why(town: Town):
    operation = town.create("visit")
    (file,) = town.stored_files()
    content = file.read_bytes()
    file.unlink()
    file.mkdir()
    process = town.start_worker()
    town.until(lambda: town.ask("ops", "show", operation)["trouble"] is not None, "the worker has set it aside")
    trouble = f"the stored file {file.name[:36]}… cannot be read: Is a directory"
    assert town.ask("ops", "show", operation)["trouble"] == trouble
    assert trouble in " ".join(town.call("ops", "show", operation)[1].split())
    assert problems(town)["no_operation_is_set_aside"] == f"1 operation set aside by a worker: {trouble}: {operation}"
    file.rmdir()
    file.write_bytes(content)
    town.until(lambda: town.ask("ops", "show", operation)["status"] == "Completed", "it goes on by itself")
    assert town.ask("ops", "show", operation)["trouble"] is None
    town.end(process, signal.SIGTERM)
    assert problems(town) == {}


@on_both
def test_work_that_no_live_worker_knows_is_found(town: Town):
    operation = town.create("visit")
    tamper(town, operations, name="forgotten", created_at=LONG_AGO)
    town.start_worker()
    assert problems(town) == {
        "workers_have_the_code": f"work of forgotten is due, but the live workers are idle: {operation}",
    }


@on_sqlite
def test_an_overdue_chunk_that_nobody_knows_is_found_too(town: Town):
    operation = town.create("permit")
    assert town.call("run", "--continue", operation, "--app", APP, "--no-wait")[0] == 5
    tamper(town, operations, name="forgotten")
    tamper(town, chunks, due_at=LONG_AGO)
    town.start_worker()
    assert set(problems(town)) == {"workers_have_the_code"}


@on_sqlite
def test_an_old_sqlite_is_named_and_no_problem_for_two_workers(town: Town, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.operations.proof.symptoms.WAL_RESET_FIXED", (99, 0, 0))
    town.start_worker()
    town.start_worker()
    assert problems(town) == {}
    assert f"this is SQLite {sqlite3.sqlite_version}" in town.call("doctor")[1]


@on_sqlite
def test_a_file_that_is_gone_and_a_folder_that_is_none_are_found(town: Town, monkeypatch: pytest.MonkeyPatch):
    operation = town.create("visit")
    tamper(town, operations, state="Paused")
    assert problems(town) == {}
    for file in town.stored_files():
        file.unlink()
    assert problems(town) == {
        "files_are_there": f"1 open operation without a file in {town.folder / 'blobs'}: {operation}"
    }
    (town.folder / "taken").touch()
    monkeypatch.setenv("PENSTOCK_STORAGE_URL", f"file:{town.folder / 'taken'}")
    assert set(problems(town)) == {"files_are_there", "storage_is_writable"}


@on_sqlite
def test_a_database_that_is_away_or_missing_is_a_problem_and_not_a_crash(town: Town):
    code, out, _ = town.call("doctor", "--db", "postgresql://penstock@127.0.0.1:9/penstock")
    assert code == 1
    assert "Problem: postgresql cannot be reached" in out
    code, _, err = town.call("doctor", "--db", "sqlite:///elsewhere.db")
    assert code == 1
    assert "database not found: elsewhere.db" in err
    assert not (town.folder / "elsewhere.db").exists()


@on_both
def test_a_schema_that_is_missing_is_a_problem_with_the_command_to_run(
    fresh_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with town_at(fresh_url, tmp_path, monkeypatch) as town:
        (tmp_path / "fresh.db").touch()
        (finding,) = [finding for finding in town.ask("doctor")["findings"] if finding["isProblem"]]
    assert finding["check"] == "schema_is_current"
    assert finding["remedy"] == "run `penstock db upgrade`"
