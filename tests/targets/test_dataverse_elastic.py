"""Elastic tables: found out, driven row by row, and corrected when they turn out otherwise."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import httpx
import pytest
from dataverse import DataverseServer, Problem, plugin_aborted
from dataverse_remote import TABLES, Remote, opened, outcomes

from penstock.clock import ManualClock
from penstock.targets.dataverse import DataverseOptions, DataverseTarget
from penstock.targets.model import BulkOptions, ErrorKind, Mode, TargetError
from penstock.targets.target import Batch

TOO_EARLY = Problem(429, "0x80072322", "request rate is large")


@pytest.fixture
async def remote() -> AsyncIterator[Remote]:
    async with opened() as found:
        yield found


@pytest.mark.covers("BX-034", "BX-087", "BX-109")
async def test_an_elastic_table_is_recognised_and_its_batches_are_capped(remote: Remote):
    capabilities = await remote.target.describe("reading", Mode.CREATE, BulkOptions(batch_size=1000), "app-1")
    assert (capabilities.is_atomic, capabilities.records_max, capabilities.can_reconcile) == (False, 100, True)


@pytest.mark.covers("BX-087", "BX-093")
@pytest.mark.parametrize("table, is_elastic", [("account", True), ("reading", False)])
async def test_what_the_caller_says_of_a_table_wins(remote: Remote, table: str, is_elastic: bool):
    options = DataverseOptions(elastic_table=is_elastic)
    assert (await remote.target.describe(table, Mode.UPDATE, options, "app-1")).is_atomic is not is_elastic


@pytest.mark.covers("BX-036", "BX-079")
async def test_a_bad_row_of_an_elastic_batch_fails_alone(remote: Remote):
    remote.server.faults.add(plugin_aborted("no"), table="reading", row=lambda row: row["name"] == "bad")
    answer = await remote.send(Mode.CREATE, [{"name": "a"}, {"name": "bad"}, {"name": "c"}], "reading")
    assert outcomes(answer) == ["created", "failed", "created"]
    rows = remote.named("reading")
    assert [answer.verdicts[0].id, answer.verdicts[2].id] == [rows["a"]["readingid"], rows["c"]["readingid"]]
    error = answer.verdicts[1].error
    assert error is not None
    assert (error.kind, error.code) == (ErrorKind.DATA, "400")


@pytest.mark.covers("BX-074")
async def test_all_rows_of_an_elastic_batch_can_fail_each_with_its_error(remote: Remote):
    remote.server.faults.add(plugin_aborted("no"), table="reading", row=lambda row: True)
    answer = await remote.send(Mode.CREATE, [{"name": "a"}, {"name": "b"}], "reading")
    assert outcomes(answer) == ["failed", "failed"]


@pytest.mark.covers("BX-036")
async def test_a_row_that_came_too_early_can_be_sent_again(remote: Remote):
    remote.server.faults.add(TOO_EARLY, table="reading", row=lambda row: row["name"] == "b")
    answer = await remote.send(Mode.CREATE, [{"name": "a"}, {"name": "b"}], "reading")
    error = answer.verdicts[1].error
    assert error is not None
    assert error.kind is ErrorKind.THROTTLED


@pytest.mark.covers("BX-032", "BX-103")
async def test_delete_on_an_elastic_table_is_one_native_call(remote: Remote):
    ids = await remote.create({"name": "a"}, {"name": "b"}, table="reading")
    answer = await remote.send(Mode.DELETE, [*ids, str(uuid4())], "reading")
    assert outcomes(answer) == ["deleted", "deleted", "failed"]
    assert remote.server.rows("reading") == []
    assert len(remote.server.ledger.calls("DeleteMultiple")) == 1
    assert remote.server.ledger.calls("$batch") == []


@pytest.mark.parametrize("is_exact", [False, True])
async def test_records_of_a_partition_are_addressed_in_it(remote: Remote, is_exact: bool):
    same = str(uuid4())
    records = [{"readingid": same, "partitionid": part, "name": part} for part in ("p", "q")]
    await remote.create(*records, table="reading")
    answer = await remote.send(
        Mode.UPSERT,
        [{**records[0], "value": 1}, {**records[1], "partitionid": "r", "name": "r"}],
        "reading",
        exact_counts=is_exact,
        tell_created=True,
    )
    assert outcomes(answer) == ["updated", "created"]
    answer = await remote.send(Mode.DELETE, [{"readingid": same, "partitionid": "q"}], "reading")
    assert outcomes(answer) == ["deleted"]
    assert sorted(remote.named("reading")) == ["p", "r"]


async def test_small_pieces_of_an_elastic_batch_go_the_same_way(remote: Remote):
    batch = remote.batch(Mode.CREATE, [{"name": "a"}], "reading")
    assert outcomes(await remote.target.send_each(batch, "app-1")) == ["created"]
    assert remote.server.ledger.calls("$batch") == []


class Misdescribing(httpx.AsyncHTTPTransport):
    """A connection that tells the wrong type of every table."""

    def __init__(self, told: str) -> None:
        super().__init__()
        self._told = told

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if "EntityDefinitions" not in request.url.path:
            return response
        facts = json.loads(await response.aread())
        return httpx.Response(response.status_code, json=facts | {"TableType": self._told})


@asynccontextmanager
async def misdescribed(server: DataverseServer, told: str) -> AsyncIterator[DataverseTarget]:
    target = DataverseTarget(
        server.url, server.credential(), client=lambda: httpx.AsyncClient(transport=Misdescribing(told))
    )
    yield target
    await target.aclose()


@pytest.mark.covers("BX-109")
async def test_a_table_that_does_not_know_bulk_delete_is_remembered_as_standard(remote: Remote):
    ids = await remote.create({"name": "a"}, {"name": "b"})
    async with misdescribed(remote.server, "Elastic") as target:
        for one in ids:
            answer = await target.send(Batch("account", Mode.DELETE, [one], BulkOptions(), one), "default")
            assert outcomes(answer) == ["deleted"]
    assert len(remote.server.ledger.calls("DeleteMultiple")) == 1
    assert len(remote.server.ledger.calls("$batch")) == 2


async def test_a_caller_who_insists_on_bulk_delete_hears_that_there_is_none(remote: Remote):
    (one,) = await remote.create({"name": "a"})
    with pytest.raises(TargetError, match="not yet been implemented") as caught:
        await remote.send(Mode.DELETE, [one], elastic_table=True)
    assert caught.value.kind is ErrorKind.UNSUPPORTED
    assert list(remote.named()) == ["a"]


@pytest.mark.covers("BX-109")
async def test_a_table_that_answers_row_by_row_is_remembered_as_elastic(remote: Remote):
    remote.server.faults.add(plugin_aborted("no"), table="reading", row=lambda row: row["name"] == "bad")
    records = [{"name": "a", "readingid": str(uuid4())}, {"name": "bad"}]
    async with misdescribed(remote.server, "Standard") as target:
        assert (await target.describe("reading", Mode.CREATE, BulkOptions(), "default")).is_atomic
        answer = await target.send(Batch("reading", Mode.CREATE, records, BulkOptions(), "k"), "default")
        assert outcomes(answer) == ["created", "failed"]
        assert not (await target.describe("reading", Mode.CREATE, BulkOptions(), "default")).is_atomic


@pytest.mark.covers("BX-109")
async def test_what_is_known_of_a_table_is_asked_again_after_a_while():
    clock = ManualClock()
    async with DataverseServer(TABLES) as server:
        target = DataverseTarget(server.url, server.credential(), clock=clock, metadata_ttl_s=60)
        asked = []
        for seconds in (0, 59, 1, 59):
            clock.advance(seconds)
            await target.describe("reading", Mode.DELETE, BulkOptions(), "default")
            asked.append(len(server.ledger.calls()))
        assert asked == [1, 1, 2, 2]
        await target.aclose()
