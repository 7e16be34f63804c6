"""The bulk actions of the test remote follow the wire facts of the Web API."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from dataverse import Column, DataverseServer, Lookup, Table, plugin_aborted, throttled
from dataverse.caller import Caller

DETAILS = "@Microsoft.PowerApps.CDS.ErrorDetails.Plugin.BulkApiErrorDetails"
ANNOTATED = {"Prefer": 'odata.include-annotations="*"'}
TABLES = (
    Table(
        "account",
        "accounts",
        columns=(Column("name", length_max=20), "code", Column("size", "Integer")),
        keys={"by_code": ("code",)},
        lookups=(Lookup("parentid", "account", "ParentAccount"),),
        duplicate_rules=(("name",),),
    ),
    Table("reading", "readings", columns=("name", Column("value", "Decimal")), elastic=True),
    Table("team", "teams", has_bulk=False),
)


@pytest.fixture
async def server() -> AsyncIterator[DataverseServer]:
    async with DataverseServer(TABLES) as server:
        yield server


@pytest.fixture
async def caller(server: DataverseServer) -> AsyncIterator[Caller]:
    async with Caller(server) as caller:
        yield caller


def names(server: DataverseServer, table: str = "account") -> list[str]:
    return [row["name"] for row in server.rows(table)]


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_created_ids_come_back_in_the_order_of_the_targets(server: DataverseServer, caller: Caller):
    answer = await caller.act("accounts", "CreateMultiple", [{"name": "a"}, {"name": "b"}, {"name": "c"}])
    assert answer.status_code == 200
    assert answer.json()["Ids"] == [row["accountid"] for row in server.rows("account")]
    assert names(server) == ["a", "b", "c"]


async def test_a_client_may_bring_its_own_ids_once(server: DataverseServer, caller: Caller):
    row = {"accountid": str(uuid.uuid4()).upper(), "name": "mine"}
    first = await caller.act("accounts", "CreateMultiple", [row])
    assert first.json()["Ids"] == [row["accountid"].lower()]
    assert code(await caller.act("accounts", "CreateMultiple", [row])) == (412, "0x80040237")
    assert len(server.ledger.of("account", "create")) == 1


async def test_one_bad_row_leaves_a_standard_table_as_it_was(server: DataverseServer, caller: Caller):
    server.faults.add(plugin_aborted("not this one"), row=lambda row: row["name"] == "bad")
    answer = await caller.act("accounts", "CreateMultiple", [{"name": "good"}, {"name": "bad"}])
    assert code(answer) == (400, "0x80040265")
    assert server.rows("account") == []
    assert server.ledger.entries == []


@pytest.mark.parametrize(
    "row, expected",
    [
        ({"name": "a name that is far too long"}, (400, "0x80044331")),
        ({"size": "big"}, (400, "0x80048d19")),
        ({"size": True}, (400, "0x80048d19")),
        ({"nmae": "x"}, (400, "0x80048d19")),
        ({"accountid": "no-guid"}, (400, "0x80048d19")),
        ({"@odata.type": "Microsoft.Dynamics.CRM.contact"}, (400, "0x80048d19")),
        ({"parentaccount@odata.bind": "/accounts(00000000-0000-0000-0000-000000000001)"}, (400, "0x80048d19")),
        ({"ParentAccount@odata.bind": "/accounts(00000000-0000-0000-0000-000000000001)"}, (404, "0x80040217")),
    ],
)
async def test_wrong_rows_are_refused_with_the_code_for_it(
    server: DataverseServer, caller: Caller, row: dict[str, Any], expected: tuple[int, str]
):
    assert code(await caller.act("accounts", "CreateMultiple", [{"name": "fine"}, row])) == expected
    assert server.rows("account") == []


async def test_required_columns_and_picklists_are_checked():
    sizes = Column("size", "Picklist", options={1: "Small", 2: "Large"})
    table = Table("order", "orders", columns=(Column("name", is_required=True), sizes))
    async with DataverseServer([table]) as server, Caller(server) as caller:
        answers = [await caller.act("orders", "CreateMultiple", [row]) for row in ({}, {"name": "a", "size": 3})]
        assert [code(answer)[1] for answer in answers] == ["0x80040200", "0x8004431a"]
        assert "Accepted Values: 1,2" in answers[1].json()["error"]["message"]
        assert (await caller.act("orders", "CreateMultiple", [{"name": "a", "size": 2}])).status_code == 200
        assert len(server.rows("order")) == 1


async def test_rows_of_one_call_cannot_refer_to_each_other(server: DataverseServer, caller: Caller):
    parents = [str(uuid.uuid4()) for _ in range(2)]
    rows = [{"accountid": id, "name": "parent"} for id in parents]
    rows += [{"name": "child", "ParentAccount@odata.bind": f"/accounts({id})"} for id in parents]
    answer = await caller.act("accounts", "CreateMultiple", rows)
    assert answer.json()["error"]["message"] == f"Entity 'account' With Ids = {', '.join(parents)} Do Not Exist"
    await caller.act("accounts", "CreateMultiple", rows[:2])
    assert (await caller.act("accounts", "CreateMultiple", rows[2:])).status_code == 200
    assert [row["_parentid_value"] for row in server.rows("account")[2:]] == parents


async def test_updates_answer_nothing_and_change_only_what_they_name(server: DataverseServer, caller: Caller):
    ids = (await caller.act("accounts", "CreateMultiple", [{"name": "a", "code": "1"}])).json()["Ids"]
    answer = await caller.act("accounts", "UpdateMultiple", [{"accountid": ids[0], "name": "A"}])
    assert (answer.status_code, answer.content) == (204, b"")
    assert [(row["name"], row["code"]) for row in server.rows("account")] == [("A", "1")]


async def test_of_several_updates_of_one_record_only_the_first_is_applied(server: DataverseServer, caller: Caller):
    (id,) = (await caller.act("accounts", "CreateMultiple", [{"name": "a"}])).json()["Ids"]
    rows = [{"accountid": id, "name": "first"}, {"accountid": id, "name": "second"}]
    assert (await caller.act("accounts", "UpdateMultiple", rows)).status_code == 204
    assert names(server) == ["first"]
    assert len(server.ledger.of("account", "update")) == 1


async def test_updates_of_missing_records_name_them_all_and_change_nothing(server: DataverseServer, caller: Caller):
    (id,) = (await caller.act("accounts", "CreateMultiple", [{"name": "a"}])).json()["Ids"]
    absent = [str(uuid.uuid4()), str(uuid.uuid4())]
    answer = await caller.act("accounts", "UpdateMultiple", [{"accountid": key, "name": "x"} for key in [id, *absent]])
    assert code(answer) == (404, "0x80040217")
    assert f"With Ids = {', '.join(absent)} Do Not Exist" in answer.json()["error"]["message"]
    assert names(server) == ["a"]


@pytest.mark.parametrize("row", [{"name": "x"}, {"@odata.id": "accounts(code='1')", "name": "x"}])
async def test_updates_take_primary_ids_only(caller: Caller, row: dict[str, Any]):
    assert (await caller.act("accounts", "UpdateMultiple", [row])).status_code == 400


async def test_upserts_find_rows_by_key_and_answer_nothing(server: DataverseServer, caller: Caller):
    await caller.act("accounts", "CreateMultiple", [{"name": "old", "code": "it's"}])
    rows = [
        {"@odata.id": "accounts(code='IT''S ')", "name": "found"},
        {"@odata.id": "accounts(code='b')", "name": "made"},
    ]
    answer = await caller.act("accounts", "UpsertMultiple", rows)
    assert (answer.status_code, answer.content) == (204, b"")
    assert [(row["name"], row["code"]) for row in server.rows("account")] == [("found", "it's"), ("made", "b")]
    assert [entry.what for entry in server.ledger.entries] == ["create", "update", "create"]


async def test_upserts_of_one_key_twice_are_an_error(server: DataverseServer, caller: Caller):
    rows = [{"@odata.id": "accounts(code='a')", "name": "1"}, {"@odata.id": "accounts(code='A')", "name": "2"}]
    assert (await caller.act("accounts", "UpsertMultiple", rows)).status_code == 400
    assert server.rows("account") == []


async def test_the_key_in_the_body_must_agree_with_that_in_the_id(caller: Caller):
    row = {"@odata.id": "accounts(code='a')", "code": "b"}
    assert code(await caller.act("accounts", "UpsertMultiple", [row])) == (400, "0x80048d19")


async def test_a_used_alternate_key_is_refused(server: DataverseServer, caller: Caller):
    await caller.act("accounts", "CreateMultiple", [{"code": "a"}])
    assert code(await caller.act("accounts", "CreateMultiple", [{"code": "b"}, {"code": "A"}])) == (412, "0x80060892")
    assert [row["code"] for row in server.rows("account")] == ["a"]


async def test_standard_tables_have_no_bulk_delete(caller: Caller):
    answer = await caller.act("accounts", "DeleteMultiple", [{"accountid": str(uuid.uuid4())}])
    assert answer.json()["error"]["message"] == "DeleteMultiple has not yet been implemented."


async def test_some_tables_take_no_bulk_actions(caller: Caller):
    answer = await caller.act("teams", "CreateMultiple", [{"name": "a"}])
    assert "is not enabled on the entity" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "body", [{}, {"Targets": []}, {"Targets": {"name": "x"}}, {"Targets": [7]}, {"Targets": 7}, [], "x"]
)
async def test_bodies_without_targets_are_refused(caller: Caller, body: Any):
    answer = await caller.send("POST", "accounts/Microsoft.Dynamics.CRM.CreateMultiple", body)
    assert answer.status_code == 400


async def test_duplicates_are_detected_only_when_asked_for(server: DataverseServer, caller: Caller):
    await caller.act("accounts", "CreateMultiple", [{"name": "Ada"}])
    for headers in ({}, {"MSCRM.SuppressDuplicateDetection": "true"}):
        assert (await caller.act("accounts", "CreateMultiple", [{"name": "ada"}], headers)).status_code == 200
    asked = {"MSCRM.SuppressDuplicateDetection": "false"}
    answer = await caller.act("accounts", "CreateMultiple", [{"name": "other"}, {"name": "ada"}], asked)
    assert code(answer) == (412, "0x80040333")
    assert names(server) == ["Ada", "ada", "ada"]


async def test_elastic_rows_succeed_and_fail_one_by_one(server: DataverseServer, caller: Caller):
    server.faults.add(throttled("requests"), row=lambda row: row["name"] == "b")
    server.faults.add(plugin_aborted(), row=lambda row: row["name"] == "d")
    rows = [{"readingid": str(uuid.uuid4()), "name": name} for name in "abcd"]
    answer = await caller.act("readings", "CreateMultiple", rows, ANNOTATED)
    assert json.loads(answer.json()["error"][DETAILS]) == [
        {"RequestIndex": 1, "Id": rows[1]["readingid"], "StatusCode": 429},
        {"RequestIndex": 3, "Id": rows[3]["readingid"], "StatusCode": 400},
    ]
    assert names(server, "reading") == ["a", "c"]


@pytest.mark.parametrize(
    "prefer, is_told",
    [
        (None, False),
        ("return=representation", False),
        ("odata.include-annotations=Microsoft.PowerApps.CDS.ErrorDetails.*", True),
        ('odata.include-annotations="OData.Community.*,Microsoft.PowerApps.CDS.*"', True),
        ('odata.include-annotations="OData.Community.*"', False),
    ],
)
async def test_which_elastic_rows_failed_is_told_only_when_asked(
    server: DataverseServer, caller: Caller, prefer: str | None, is_told: bool
):
    server.faults.add(plugin_aborted(), row=lambda row: row["name"] == "b")
    headers = {"Prefer": prefer} if prefer else {}
    answer = await caller.act("readings", "CreateMultiple", [{"name": "a"}, {"name": "b"}], headers)
    assert (DETAILS in answer.json()["error"]) is is_told


async def test_elastic_upserts_replace_the_whole_row(server: DataverseServer, caller: Caller):
    id = str(uuid.uuid4())
    rows = [{"readingid": id, "partitionid": "p", "name": "a", "value": 1.5}]
    await caller.act("readings", "UpsertMultiple", rows)
    await caller.act("readings", "UpsertMultiple", [{"readingid": id, "partitionid": "p", "name": "b"}])
    assert [(row["name"], row["value"], row["partitionid"]) for row in server.rows("reading")] == [("b", None, "p")]


async def test_elastic_rows_are_deleted_within_their_partition(server: DataverseServer, caller: Caller):
    ids = [str(uuid.uuid4()) for _ in range(3)]
    await caller.act("readings", "CreateMultiple", [{"readingid": id, "partitionid": "p", "name": id} for id in ids])
    wanted = [
        {"readingid": ids[0], "partitionid": "p"},
        {"readingid": ids[1], "partitionid": "other"},
        {"readingid": ids[2]},
    ]
    answer = await caller.act("readings", "DeleteMultiple", wanted, ANNOTATED)
    failed = json.loads(answer.json()["error"][DETAILS])
    assert [(row["RequestIndex"], row["StatusCode"]) for row in failed] == [(1, 404), (2, 404)]
    assert names(server, "reading") == ids[1:]


async def test_elastic_deletes_that_all_succeed_answer_nothing(server: DataverseServer, caller: Caller):
    (id,) = (await caller.act("readings", "CreateMultiple", [{"name": "a"}])).json()["Ids"]
    answer = await caller.act("readings", "DeleteMultiple", [{"readingid": id}])
    assert (answer.status_code, server.rows("reading")) == (204, [])
    assert "x-ms-session-token" in answer.headers


async def test_an_elastic_row_that_is_there_already_is_a_conflict(server: DataverseServer, caller: Caller):
    (id,) = (await caller.act("readings", "CreateMultiple", [{"name": "a"}])).json()["Ids"]
    answer = await caller.act("readings", "CreateMultiple", [{"name": "b"}, {"readingid": id}], ANNOTATED)
    assert json.loads(answer.json()["error"][DETAILS]) == [{"RequestIndex": 1, "Id": id, "StatusCode": 409}]
    assert names(server, "reading") == ["a", "b"]


async def test_elastic_updates_of_missing_rows_fail_alone(server: DataverseServer, caller: Caller):
    (id,) = (await caller.act("readings", "CreateMultiple", [{"name": "a"}])).json()["Ids"]
    rows = [{"readingid": str(uuid.uuid4()), "name": "x"}, {"readingid": id, "name": "b"}]
    assert code(await caller.act("readings", "UpdateMultiple", rows)) == (400, "0x80040265")
    assert names(server, "reading") == ["b"]
