"""What the document of bulk operations rules out, which parts it has, and what its native calls are worth."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from dataverse import plugin_aborted
from dataverse_remote import Remote, executor, opened
from scripted import Lose, Refuse, in_virtual_time, numbered, pool_of, trouble
from scripted import Remote as Scripted
from scripted import executor as scripted_executor

from penstock.targets import (
    Batch,
    BulkExecutor,
    BulkOptions,
    BulkResult,
    Cause,
    DataverseOptions,
    ErrorKind,
    Mode,
    Outcome,
    Progress,
    SqliteTarget,
    tables_in_waves,
)
from penstock.targets.results import Outcomes


@pytest.mark.covers("BX-004", "BX-080")
async def test_a_table_that_takes_no_bulk_calls_is_not_sent_to_record_by_record():
    async with opened() as remote:
        result = await executor(remote).create_multiple("unlisted", [{"name": f"n{n}"} for n in range(5)])
        assert (result.stopped_reason, result.failure_count) == ("systemic", 5)
        assert {error.kind for error in result.errors} == {ErrorKind.UNSUPPORTED}
        assert not remote.server.rows("unlisted")
        assert not [call for call in remote.server.ledger.arrivals if call.method == "POST" and call.table]


@pytest.mark.covers("BX-004")
async def test_what_one_table_took_stays_when_another_table_refuses():
    async with opened() as remote:
        tables = {"contact": [{"fullname": "Ana"}], "account": [{"name": "one", "part": "not a number"}]}
        results = await tables_in_waves(executor(remote), tables)
        assert (results["contact"].is_success, results["account"].failure_count) == (True, 1)
        assert [row["fullname"] for row in remote.server.rows("contact")] == ["Ana"]


@pytest.mark.covers("BX-004")
async def test_deleting_a_record_deletes_nothing_that_refers_to_it(tmp_path: Path):
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as shop:
        shop.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
        shop.execute("CREATE TABLE lines (id integer PRIMARY KEY, order_id integer REFERENCES orders)")
        shop.execute("INSERT INTO orders VALUES (1), (2)")
        shop.execute("INSERT INTO lines VALUES (10, 1)")
    target = SqliteTarget(tmp_path / "shop.db")
    result = await BulkExecutor(target).delete_multiple("orders", [1, 2])
    await target.aclose()
    assert [error.index for error in result.errors] == [0]
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as shop:
        assert shop.execute("SELECT id FROM orders").fetchall() == [(1,)]
        assert shop.execute("SELECT id FROM lines").fetchall() == [(10,)]


@in_virtual_time
@pytest.mark.covers("BX-017")
async def test_executor_options_result_error_coordinator_diagnostic_and_progress_work_together():
    seen: list[Progress] = []
    remote = Scripted(
        width=2, bad=lambda n: trouble(ErrorKind.DATA, "a required field is missing", field="name") if n == 3 else None
    )
    used = scripted_executor(remote)
    result = await used.create_multiple("thing", numbered(10), BulkOptions(batch_size=5), seen.append)
    assert remote.sizes[:2] == [5, 5]  # the options
    assert (remote.total_max, used.pool.in_flight) == (2, 0)  # the coordinator
    assert (result.success_count, result.failure_count, result.outcome(3)) == (9, 1, Outcome.FAILED)
    (error,) = result.errors
    assert (error.index, error.field, error.message) == (3, "name", "a required field is missing")
    (found,) = error.diagnostics
    assert (found.code, found.index, found.suggestion) == (Cause.REQUIRED_MISSING, 3, "give the field a value")
    assert (seen[-1].succeeded, seen[-1].failed, seen[-1].percent_complete) == (9, 1, 100)


@in_virtual_time
@pytest.mark.covers("BX-009")
async def test_every_call_holds_one_slot_while_it_lasts_and_gives_it_back_however_it_ends():
    faults = {2: Refuse(trouble(ErrorKind.DEADLOCK)), 3: Refuse(trouble(ErrorKind.DATA)), 5: Lose()}
    remote = Scripted(width=3, script=faults)
    pool = pool_of(remote)
    taken: list[tuple[int, int]] = []

    def look(batch: Batch, source: str) -> None:
        taken.append((pool.in_flight, remote.in_flight.total()))

    remote.decide = look
    result = await scripted_executor(remote, pool=pool).create_multiple(
        "thing", numbered(40), BulkOptions(batch_size=2)
    )
    assert len(taken) >= 15
    assert all(calls <= slots <= 3 for slots, calls in taken)
    assert pool.in_flight == 0
    assert result.not_run_count == 0


@pytest.mark.covers("BX-047")
@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("reason", [None, "deadline"])
def test_a_result_is_a_success_when_nothing_failed_is_unknown_or_was_not_run(outcome: Outcome, reason: Any):
    codes = bytes([list(Outcome).index(Outcome.CREATED), list(Outcome).index(outcome)])
    result = BulkResult(mode=Mode.CREATE, outcomes=Outcomes(codes), stopped_reason=reason)
    is_bad = outcome in (Outcome.FAILED, Outcome.UNKNOWN, Outcome.NOT_RUN)
    assert result.is_success is (reason is None and not is_bad)


@pytest.mark.covers("BX-087")
async def test_nobody_need_say_that_a_table_is_elastic():
    async with opened() as remote:
        remote.server.faults.add(plugin_aborted("no"), table="reading", row=lambda row: row["name"] == "n7")
        records = [{"name": f"n{n}"} for n in range(250)]
        result = await executor(remote).create_multiple("reading", records, BulkOptions(batch_size=1000))
        assert [error.index for error in result.errors] == [7]
        assert result.success_count == 249
        assert result.statistics.calls == 3  # at most a hundred rows each, and no search for the bad one
        said = DataverseOptions(batch_size=250, elastic_table=False, suppress_duplicate_detection=True)
        wrong = await executor(remote).create_multiple("reading", [{"name": f"m{n}"} for n in range(250)], said)
        assert wrong.statistics.batch_size_max == 250  # what the caller says wins


RECORDS = [{"name": f"n{n}"} for n in range(400)]


async def sent_singly(remote: Remote) -> None:
    for record in RECORDS:
        await remote.target.send_each(remote.batch(Mode.CREATE, [record]), "app-1")


async def sent_in_parts(remote: Remote) -> None:
    for start in range(0, len(RECORDS), 100):
        await remote.target.send_each(remote.batch(Mode.CREATE, RECORDS[start : start + 100]), "app-1")


async def sent_in_bulk(remote: Remote) -> None:
    assert (await executor(remote).create_multiple("account", RECORDS)).success_count == 400


@pytest.mark.covers("BX-108")
@pytest.mark.parametrize(
    "way, requests, operations", [(sent_singly, 400, 400), (sent_in_parts, 4, 400), (sent_in_bulk, 4, 4)]
)
async def test_a_bulk_call_is_one_request_and_one_operation_for_many_records(way: Any, requests: int, operations: int):
    async with opened() as remote:
        await way(remote)
        assert len(remote.server.rows("account")) == 400
        asked = [call for call in remote.server.ledger.arrivals if call.table == "account" or call.parts]
    assert len(asked) == requests
    assert sum(len(call.parts) or 1 for call in asked) == operations
