"""Single records, queries and metadata of the test remote."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from dataverse import Column, DataverseServer, Lookup, Table
from dataverse.caller import Caller

TABLES = (
    Table(
        "account",
        "accounts",
        columns=("name", "code", Column("size", "Integer")),
        keys={"by_code": ("code",), "by_name_and_size": ("name", "size")},
        lookups=(Lookup("parentid", "account"),),
    ),
    Table("reading", "readings", columns=("name",), elastic=True),
)


@pytest.fixture
async def server() -> AsyncIterator[DataverseServer]:
    async with DataverseServer(TABLES) as server:
        yield server


@pytest.fixture
async def caller(server: DataverseServer) -> AsyncIterator[Caller]:
    async with Caller(server) as caller:
        yield caller


async def make(caller: Caller, *rows: dict[str, Any]) -> list[str]:
    ids: list[str] = (await caller.act("accounts", "CreateMultiple", rows)).json()["Ids"]
    return ids


async def test_a_created_record_is_named_by_a_header(server: DataverseServer, caller: Caller):
    answer = await caller.send("POST", "accounts", {"name": "a"})
    (row,) = server.rows("account")
    assert answer.status_code == 204
    assert answer.headers["OData-EntityId"] == f"{server.url}/api/data/v9.2/accounts({row['accountid']})"


async def test_a_representation_says_whether_an_upsert_created_or_updated(caller: Caller):
    wanted = {"Prefer": "return=representation"}
    for expected in (201, 200):
        answer = await caller.send("PATCH", "accounts(code='x')?$select=accountid", {"name": "a"}, wanted)
        assert answer.status_code == expected
        assert {name for name in answer.json() if not name.startswith("@")} == {"accountid"}


async def test_an_upsert_without_representation_does_not_say(caller: Caller):
    answers = [await caller.send("PATCH", "accounts(code='x')", {"name": "a"}) for _ in range(2)]
    assert [(answer.status_code, answer.content) for answer in answers] == [(204, b"")] * 2


async def test_conditions_allow_only_an_update_or_only_a_creation(server: DataverseServer, caller: Caller):
    (id,) = await make(caller, {"name": "a"})
    absent = uuid.uuid4()
    updates = [await caller.send("PATCH", f"accounts({key})", {"name": "b"}, {"If-Match": "*"}) for key in (id, absent)]
    assert [answer.status_code for answer in updates] == [204, 404]
    makes = [
        await caller.send("PATCH", f"accounts({key})", {"code": "c"}, {"If-None-Match": "*"}) for key in (id, absent)
    ]
    assert [answer.status_code for answer in makes] == [412, 204]
    assert [(row["name"], row["code"]) for row in server.rows("account")] == [("b", None), (None, "c")]


async def test_a_stale_version_is_refused(caller: Caller):
    (id,) = await make(caller, {"name": "a"})
    version = (await caller.send("GET", f"accounts({id})")).json()["@odata.etag"]
    tries = [await caller.send("PATCH", f"accounts({id})", {"name": "b"}, {"If-Match": version}) for _ in range(2)]
    assert [answer.status_code for answer in tries] == [204, 412]
    assert (await caller.send("DELETE", f"accounts({id})", headers={"If-Match": version})).status_code == 412


async def test_a_record_is_deleted_once(server: DataverseServer, caller: Caller):
    (id,) = await make(caller, {"name": "a"})
    answers = [await caller.send("DELETE", f"accounts({id})") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [204, 404]
    assert [entry.what for entry in server.ledger.entries] == ["create", "delete"]


async def test_a_deleted_record_is_referred_to_no_longer(server: DataverseServer, caller: Caller):
    (parent,) = await make(caller, {"name": "parent"})
    await make(caller, {"name": "child", "parentid@odata.bind": f"/accounts({parent})"})
    await caller.send("DELETE", f"accounts({parent})")
    assert [row["_parentid_value"] for row in server.rows("account")] == [None]


@pytest.mark.parametrize(
    "key, status",
    [
        ("code='it''s'", 200),
        ("name='a/b (c)',size=3", 200),
        ("size=3,name='A/B (C)'", 200),
        ("code='other'", 404),
        ("code=7", 400),
        ("size=3", 400),
        ("nonsense", 400),
    ],
)
async def test_records_are_found_by_whole_keys_of_the_right_type(caller: Caller, key: str, status: int):
    await make(caller, {"name": "a/b (c)", "size": 3, "code": "it's"})
    assert (await caller.send("GET", f"accounts({key})")).status_code == status


async def test_a_reference_by_key_is_looked_up(server: DataverseServer, caller: Caller):
    (parent,) = await make(caller, {"code": "top"})
    await caller.send("POST", "accounts", {"name": "child", "parentid@odata.bind": "/accounts(code='top')"})
    assert server.rows("account")[1]["_parentid_value"] == parent


@pytest.mark.parametrize(
    "text, expected",
    [
        ("name eq 'a'", "a"),
        ("name eq 'A'", "a"),
        ("code eq '1' or code eq '3'", "ac"),
        ("code eq 'it''s'", "d"),
        ("Microsoft.Dynamics.CRM.In(PropertyName='code',PropertyValues=['1','3','9'])", "ac"),
        ('Microsoft.Dynamics.CRM.In(PropertyName="code",PropertyValues=["2"])'.replace('"code"', "'code'"), "b"),
        ("(size ge 2 and size lt 4) and not (name eq 'b')", "c"),
        ("size ne null and contains(name,'d')", "d"),
        ("code eq null", ""),
        ("startswith(name,'b') or endswith(name,'a')", "ab"),
    ],
)
async def test_filters_find_what_they_say(caller: Caller, text: str, expected: str):
    codes = ("1", "2", "3", "it's")
    await make(
        caller, *({"name": n, "code": c, "size": s} for s, (n, c) in enumerate(zip("abcd", codes, strict=True), 1))
    )
    found = (await caller.send("GET", "accounts", query={"$filter": text, "$select": "name"})).json()["value"]
    assert "".join(row["name"] for row in found) == expected


@pytest.mark.parametrize(
    "query",
    [
        {"$filter": "nmae eq 'a'"},
        {"$filter": "size eq 'one'"},
        {"$filter": "name eq 7"},
        {"$filter": "name eq"},
        {"$filter": "name is 'a'"},
        {"$filter": "length(name) eq 1"},
        {"$filter": "Microsoft.Dynamics.CRM.In(PropertyName='size',PropertyValues=[1])"},
        {"$select": "nmae"},
        {"$orderby": "nmae"},
        {"$top": "many"},
        {"$expand": "parentid"},
    ],
)
async def test_queries_that_mean_nothing_are_refused(caller: Caller, query: dict[str, str]):
    await make(caller, {"name": "a", "size": 1})
    assert (await caller.send("GET", "accounts", query=query)).status_code == 400


async def test_long_answers_come_in_pages(caller: Caller):
    await make(caller, *({"name": f"{n:03}"} for n in range(25)))
    query = {"$filter": "name ne '007'", "$orderby": "name desc", "$count": "true"}
    page = (await caller.send("GET", "accounts", query=query, headers={"Prefer": "odata.maxpagesize=10"})).json()
    seen, pages = [row["name"] for row in page["value"]], 1
    assert page["@odata.count"] == 24
    while "@odata.nextLink" in page:
        page = (await caller.send("GET", page["@odata.nextLink"], headers={"Prefer": "odata.maxpagesize=10"})).json()
        seen += [row["name"] for row in page["value"]]
        pages += 1
    assert (seen, pages) == (sorted((f"{n:03}" for n in range(25) if n != 7), reverse=True), 3)


async def test_long_path_segments_and_addresses_are_refused(caller: Caller):
    assert (await caller.send("GET", f"accounts(code='{'x' * 300}')")).status_code == 400
    assert (await caller.send("GET", "accounts", query={"$filter": "name eq 'x'" + " " * 40_000})).status_code == 414


async def test_elastic_records_are_read_within_their_partition(caller: Caller):
    id = str(uuid.uuid4())
    await caller.act("readings", "CreateMultiple", [{"readingid": id, "partitionid": "p", "name": "a"}])
    paths = (f"readings({id})", f"readings({id})?partitionId=p", f"readings(readingid={id},partitionid='p')")
    assert [(await caller.send("GET", path)).status_code for path in paths] == [404, 200, 200]
    assert len((await caller.send("GET", "readings?partitionId=p")).json()["value"]) == 1
    assert (await caller.send("DELETE", f"readings({id})?partitionId=p")).status_code == 204


async def test_tables_say_whether_they_are_elastic(caller: Caller):
    paths = [f"EntityDefinitions(LogicalName='{name}')?$select=TableType" for name in ("account", "reading", "lead")]
    answers = [await caller.send("GET", path) for path in paths]
    assert [answer.json().get("TableType") for answer in answers] == ["Standard", "Elastic", None]
    assert answers[2].status_code == 404


@pytest.mark.parametrize(
    "message, table, is_listed",
    [
        ("CreateMultiple", "account", True),
        ("UpdateMultiple", "account", True),
        ("UpsertMultiple", "account", False),
        ("DeleteMultiple", "account", False),
        ("DeleteMultiple", "reading", True),
    ],
)
async def test_message_filters_list_what_a_table_takes(caller: Caller, message: str, table: str, is_listed: bool):
    query = {
        "$select": "sdkmessagefilterid",
        "$filter": "sdkmessageid/name eq @m and primaryobjecttypecode eq @t",
        "@m": f"'{message}'",
        "@t": f"'{table}'",
    }
    found = (await caller.send("GET", "sdkmessagefilters", query=query)).json()["value"]
    assert [list(row) for row in found] == [["sdkmessagefilterid"]] * is_listed


async def test_lookups_say_their_navigation_names(caller: Caller):
    path = "EntityDefinitions(LogicalName='account')/ManyToOneRelationships"
    (told,) = (await caller.send("GET", path)).json()["value"]
    assert (told["ReferencingAttribute"], told["ReferencedEntity"]) == ("parentid", "account")


async def test_who_am_i_tells_users_apart(server: DataverseServer, caller: Caller):
    told = (await caller.send("GET", "WhoAmI")).json()
    assert uuid.UUID(told["UserId"])
    assert (await caller.send("GET", "WhoAmI()")).json()["UserId"] == told["UserId"]


@pytest.mark.parametrize("path", ["leads", "leads(1)", "", "accounts/Microsoft.Dynamics.CRM.Explode"])
async def test_unknown_resources_are_not_found(caller: Caller, path: str):
    assert (await caller.send("POST", path, {})).status_code in {400, 404}


async def test_a_body_of_another_kind_is_refused(caller: Caller):
    answer = await caller.send("POST", "accounts", b"name=a", {"Content-Type": "application/x-www-form-urlencoded"})
    assert answer.status_code == 415
