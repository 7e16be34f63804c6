"""What the document of bulk operations rules out, which parts it has, and what its native calls are worth."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from dataverse_remote import Remote, executor, opened
from scripted import Remote as Scripted
from scripted import executor as scripted_executor
from scripted import in_virtual_time, numbered, trouble

from penstock.targets import (
    BulkError,
    BulkExecutor,
    BulkOptions,
    BulkResult,
    Diagnostic,
    ErrorKind,
    Mode,
    Pool,
    Progress,
    SqliteTarget,
    tables_in_waves,
)


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
        bad=lambda n: trouble(ErrorKind.DATA, "a required field is missing", field="name") if n == 3 else None
    )
    used = scripted_executor(remote)
    result = await used.create_multiple("thing", numbered(10), BulkOptions(batch_size=5), seen.append)
    assert isinstance(used, BulkExecutor)
    assert isinstance(used.pool, Pool)
    assert isinstance(result, BulkResult)
    (error,) = result.errors
    assert isinstance(error, BulkError)
    assert error.index == 3
    assert error.diagnostics
    assert all(isinstance(found, Diagnostic) for found in error.diagnostics)
    assert (seen[-1].succeeded, seen[-1].failed) == (9, 1)


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
