"""Microsoft's own Python client works against the test remote: the proof that the remote speaks its language."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import pytest
from dataverse import Column, DataverseServer, Drop, Lookup, Table, deadlock, plugin_aborted, throttled
from PowerPlatform.Dataverse.client import DataverseClient
from PowerPlatform.Dataverse.core.config import DataverseConfig
from PowerPlatform.Dataverse.core.errors import HttpError, MetadataError
from PowerPlatform.Dataverse.models.filters import col

Result = TypeVar("Result")
Use = Callable[[Callable[[DataverseClient], Any]], Any]

SIZES = Column("size", "Picklist", options={1: "Small", 2: "Large"})
TABLES = (
    Table("account", "accounts", columns=(Column("name", length_max=20), "code", SIZES), keys={"by_code": ("code",)}),
    Table("contact", "contacts", columns=("name",), lookups=(Lookup("parentid", "account", "parentid_account"),)),
)


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DataverseServer]:
    async with DataverseServer(TABLES, runs_jobs_at_once=False) as server:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(server.certificate))
        yield server


@pytest.fixture
def use(server: DataverseServer) -> Use:
    """Run something with a client, which blocks, on a thread."""

    def run(work: Callable[[DataverseClient], Result]) -> Result:
        with DataverseClient(server.secure_url, server.credential()) as client:
            return work(client)

    return lambda work: asyncio.to_thread(run, work)


async def test_it_creates_one_record_and_gets_its_id(server: DataverseServer, use: Use):
    id = await use(lambda client: client.records.create("account", {"name": "Ada"}))
    assert [(row["accountid"], row["name"]) for row in server.rows("account")] == [(id, "Ada")]


async def test_it_creates_many_and_gets_their_ids_in_order(server: DataverseServer, use: Use):
    names = [f"record {n}" for n in range(20)]
    ids = await use(lambda client: client.records.create("account", [{"name": name} for name in names]))
    assert {row["accountid"]: row["name"] for row in server.rows("account")} == dict(zip(ids, names, strict=True))
    assert [call.rows for call in server.ledger.calls("CreateMultiple")] == [20]


async def test_it_turns_the_labels_of_a_picklist_into_values(server: DataverseServer, use: Use):
    await use(lambda client: client.records.create("account", {"name": "Ada", "size": "large"}))
    assert server.rows("account")[0]["size"] == 2


async def test_it_updates_one_and_many(server: DataverseServer, use: Use):
    def work(client: DataverseClient) -> None:
        ids = client.records.create("account", [{"name": "a"}, {"name": "b"}, {"name": "c"}])
        client.records.update("account", ids[0], {"name": "A"})
        client.records.update("account", ids[1:], [{"name": "B"}, {"name": "C"}])

    await use(work)
    assert [row["name"] for row in server.rows("account")] == ["A", "B", "C"]


async def test_it_updates_nothing_that_is_not_there(use: Use):
    absent = "00000000-0000-0000-0000-000000000001"
    with pytest.raises(HttpError, match=f"With Id = {absent} Does Not Exist") as caught:
        await use(lambda client: client.records.update("account", absent, {"name": "x"}))
    assert caught.value.status_code == 404


async def test_it_upserts_one_and_many_by_an_alternate_key(server: DataverseServer, use: Use):
    def item(code: str, name: str) -> dict[str, Any]:
        return {"alternate_key": {"code": code}, "record": {"name": name}}

    def work(client: DataverseClient) -> None:
        client.records.upsert("account", [item("A-1", "first")])
        client.records.upsert("account", [item("A-1", "again"), item("it's", "new")])

    await use(work)
    assert [(row["code"], row["name"]) for row in server.rows("account")] == [("A-1", "again"), ("it's", "new")]
    assert [entry.what for entry in server.ledger.entries] == ["create", "update", "create"]


async def test_it_gets_lists_and_pages_records(use: Use):
    def work(client: DataverseClient) -> tuple[Any, Any, Any]:
        ids = client.records.create("account", [{"name": f"n{n}", "code": str(n)} for n in range(5)])
        one = client.records.retrieve("account", ids[3], select=["name"])
        some = client.records.list("account", filter="code eq '1' or code eq '4'", orderby=["name desc"])
        pages = client.records.list_pages("account", select=["name"], page_size=2)
        return one["name"], [row["name"] for row in some], [len(list(page)) for page in pages]

    assert await use(work) == ("n3", ["n4", "n1"], [2, 2, 1])


async def test_its_query_builder_is_understood(use: Use):
    def work(client: DataverseClient) -> list[str]:
        client.records.create("account", [{"name": "apple"}, {"name": "apricot"}, {"name": "pear"}])
        rows = client.query.builder("account").select("name").where(col("name").startswith("ap")).execute()
        return sorted(row["name"] for row in rows)

    assert await use(work) == ["apple", "apricot"]


async def test_it_deletes_one_at_once_and_many_by_a_job(server: DataverseServer, use: Use):
    def work(client: DataverseClient) -> str:
        ids = client.records.create("account", [{"name": "a"}, {"name": "b"}, {"name": "c"}])
        client.records.delete("account", ids[0])
        return client.records.delete("account", ids[1:])

    assert await use(work)
    assert [row["name"] for row in server.rows("account")] == ["b", "c"]
    server.run_jobs()
    assert server.rows("account") == []


async def test_it_deletes_many_without_a_job(server: DataverseServer, use: Use):
    def work(client: DataverseClient) -> None:
        ids = client.records.create("account", [{"name": "a"}, {"name": "b"}])
        client.records.delete("account", ids, use_bulk_delete=False)

    await use(work)
    assert server.rows("account") == []


async def test_its_batch_answers_every_request_in_order(server: DataverseServer, use: Use):
    def work(client: DataverseClient) -> list[int]:
        id = client.records.create("account", {"name": "here"})
        batch = client.batch.new()
        batch.records.create("account", [{"name": "x"}, {"name": "y"}])
        batch.records.update("account", id, {"name": "changed"})
        batch.records.upsert("account", [{"alternate_key": {"code": "u"}, "record": {"name": "upserted"}}])
        batch.records.retrieve("account", id, select=["name"])
        batch.tables.get("account")
        batch.records.delete("account", id)
        return [answer.status_code for answer in batch.execute().responses]

    assert await use(work) == [200, 204, 204, 200, 200, 204]
    assert [row["name"] for row in server.rows("account")] == ["x", "y", "upserted"]


async def test_its_batch_goes_on_after_an_error_when_told(use: Use):
    def work(client: DataverseClient) -> tuple[list[int], list[int]]:
        told = []
        for goes_on in (False, True):
            batch = client.batch.new()
            batch.records.create("account", {"name": "much too long for this column"})
            batch.records.create("account", {"name": "after"})
            told.append([answer.status_code for answer in batch.execute(continue_on_error=goes_on).responses])
        return told[0], told[1]

    assert await use(work) == ([400], [400, 204])


async def test_its_change_sets_refer_to_what_they_make(server: DataverseServer, use: Use):
    def work(client: DataverseClient) -> None:
        batch = client.batch.new()
        with batch.changeset() as changes:
            account = changes.records.create("account", {"name": "parent"})
            changes.records.create("contact", {"name": "child", "parentid_account@odata.bind": account})
            changes.records.update("account", account, {"name": "renamed"})
        assert not batch.execute().has_errors

    await use(work)
    (account,), (contact,) = server.rows("account"), server.rows("contact")
    assert (account["name"], contact["_parentid_value"]) == ("renamed", account["accountid"])


async def test_its_change_sets_fail_as_one(server: DataverseServer, use: Use):
    server.faults.add(plugin_aborted("no such names"), row=lambda row: row.get("name") == "bad")

    def work(client: DataverseClient) -> list[str | None]:
        batch = client.batch.new()
        with batch.changeset() as changes:
            changes.records.create("account", {"name": "good"})
            changes.records.create("account", {"name": "bad"})
        return [answer.error_message for answer in batch.execute(continue_on_error=True).responses]

    assert await use(work) == ["no such names"]
    assert server.rows("account") == []
    assert server.ledger.entries == []


async def test_it_hears_of_throttling_as_its_own_error(server: DataverseServer, use: Use):
    server.faults.add(throttled("time", retry_after_s=17), table="account")
    with pytest.raises(HttpError) as caught:
        await use(lambda client: client.records.create("account", [{"name": "a"}, {"name": "b"}]))
    error = caught.value
    assert (error.status_code, error.is_transient) == (429, True)
    assert (error.details["service_error_code"], error.details["retry_after"]) == ("0x80072321", 17)


async def test_its_blind_resend_after_a_lost_answer_shows_in_the_ledger(server: DataverseServer):
    server.faults.add(Drop(is_applied=True), action="CreateMultiple", times=1)
    hasty = DataverseConfig(http_backoff=0.0)

    def work() -> list[str]:
        with DataverseClient(server.secure_url, server.credential(), hasty) as client:
            return client.records.create("account", [{"name": "once"}])

    assert len(await asyncio.to_thread(work)) == 1
    assert server.ledger.doubled("account", "name") == {"once": 2}


async def test_it_hears_the_code_and_the_message_of_other_errors(server: DataverseServer, use: Use):
    server.faults.add(deadlock(), table="account")
    with pytest.raises(HttpError, match="Sql Number: 1205") as caught:
        await use(lambda client: client.records.create("account", {"name": "a"}))
    assert caught.value.details["service_error_code"] == "0x80044150"


async def test_it_does_not_know_tables_that_are_not_there(use: Use):
    with pytest.raises(MetadataError):
        await use(lambda client: client.records.create("lead", {"name": "a"}))


async def test_it_reads_what_the_tables_are(use: Use):
    def work(client: DataverseClient) -> tuple[Any, ...]:
        tables = [table["LogicalName"] for table in client.tables.list()]
        columns = [column["LogicalName"] for column in client.tables.list_columns("account", select=["LogicalName"])]
        keys = [key.key_attributes for key in client.tables.get_alternate_keys("account")]
        return tables, columns, keys

    assert await use(work) == (["account", "contact"], ["accountid", "name", "code", "size"], [["code"]])


async def test_it_keeps_the_cookie_that_pins_it_to_a_web_server(server: DataverseServer, use: Use):
    await use(lambda client: [client.records.create("account", {"name": str(n)}) for n in range(3)])
    cookies = ["cookie" in call.headers for call in server.ledger.arrivals]
    assert cookies == [False] + [True] * (len(cookies) - 1)
