"""Batches of the test remote: order, stopping, change sets, and what a sloppy client gets for it."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncIterator

import httpx
import pytest
from dataverse import DataverseServer, MissingParts, Table, plugin_aborted, throttled
from dataverse.caller import Caller, change_set, part

GOES_ON = {"Prefer": "odata.continue-on-error"}
ABSENT = uuid.UUID(int=1)


@pytest.fixture
async def server() -> AsyncIterator[DataverseServer]:
    async with DataverseServer([Table("account", "accounts"), Table("team", "teams")]) as server:
        yield server


@pytest.fixture
async def caller(server: DataverseServer) -> AsyncIterator[Caller]:
    async with Caller(server) as caller:
        yield caller


async def make(caller: Caller, *names: str) -> list[str]:
    ids: list[str] = (await caller.act("accounts", "CreateMultiple", [{"name": name} for name in names])).json()["Ids"]
    return ids


def statuses(answer: httpx.Response) -> list[int]:
    return [int(status) for status in re.findall(r"^HTTP/1\.1 (\d+) ", answer.text, re.MULTILINE)]


def deletion(id: object) -> bytes:
    return part("DELETE", f"/api/data/v9.2/accounts({id})")


async def test_a_batch_that_goes_on_answers_every_part_in_order(server: DataverseServer, caller: Caller):
    ids = await make(caller, "a", "b")
    answer = await caller.batch(deletion(ids[0]), deletion(ABSENT), deletion(ids[1]), headers=GOES_ON)
    assert (answer.status_code, statuses(answer)) == (200, [204, 404, 204])
    assert server.rows("account") == []


async def test_a_batch_that_stops_answers_with_the_failure_and_what_came_before(
    server: DataverseServer, caller: Caller
):
    ids = await make(caller, "a", "b")
    answer = await caller.batch(deletion(ids[0]), deletion(ABSENT), deletion(ids[1]))
    assert (answer.status_code, statuses(answer)) == (404, [204, 404])
    assert [row["name"] for row in server.rows("account")] == ["b"]


async def test_parts_may_be_addressed_in_full_or_from_the_root(server: DataverseServer, caller: Caller):
    ids = await make(caller, "a", "b", "c")
    addresses = (
        f"{server.url}/api/data/v9.2/accounts({ids[0]})",
        f"/api/data/v9.2/accounts({ids[1]})",
        f"accounts({ids[2]})",
    )
    answer = await caller.batch(*(part("DELETE", address) for address in addresses))
    assert statuses(answer) == [204, 204, 204]


async def test_a_boundary_that_is_not_used_runs_nothing_and_says_nothing(server: DataverseServer, caller: Caller):
    (id,) = await make(caller, "a")
    answer = await caller.batch(deletion(id), headers={"Content-Type": "multipart/mixed; boundary=other"})
    assert (answer.status_code, statuses(answer)) == (200, [])
    assert len(server.rows("account")) == 1


@pytest.mark.parametrize(
    "body",
    [
        deletion(ABSENT).replace(b"\r\n", b"\n").replace(b"--batch_1", b"--batch_1\r\n"),
        b"--batch_1\r\nContent-Type: text/plain\r\n\r\nDELETE accounts(1) HTTP/1.1\r\n\r\n",
        b"--batch_1\r\nContent-Type: application/http\r\n\r\nDELETE accounts(1)\r\n\r\n",
    ],
)
async def test_malformed_parts_fail_the_whole_batch(caller: Caller, body: bytes):
    answer = await caller.batch(body)
    assert answer.status_code == 400
    assert answer.headers["Content-Type"].startswith("application/json")


async def test_a_batch_needs_a_boundary(caller: Caller):
    assert (await caller.batch(headers={"Content-Type": "application/json"})).status_code == 400


async def test_a_batch_takes_a_thousand_parts_and_no_more(server: DataverseServer, caller: Caller):
    most = [part("POST", "accounts", {"name": str(n)}) for n in range(1000)]
    assert statuses(await caller.batch(*most)) == [204] * 1000
    assert (await caller.batch(*most, most[0])).status_code == 400
    assert len(server.rows("account")) == 1000


async def test_a_batch_holds_no_batch(caller: Caller):
    assert statuses(await caller.batch(part("POST", "$batch", {}))) == [400]


async def test_headers_of_the_batch_do_not_reach_its_parts(server: DataverseServer, caller: Caller):
    server.faults.add(plugin_aborted(), row=lambda row: row["name"] == "a")
    bypass = {"MSCRM.BypassBusinessLogicExecution": "CustomSync"}
    body = {"name": "a"}
    assert statuses(await caller.batch(part("POST", "accounts", body), headers=bypass)) == [400]
    assert statuses(await caller.batch(part("POST", "accounts", body, bypass))) == [204]
    sent = [inner.headers.get("mscrm.bypassbusinesslogicexecution") for inner in server.ledger.calls("$batch")[1].parts]
    assert sent == ["CustomSync"]


async def test_a_change_set_is_applied_as_one_and_may_refer_to_itself(server: DataverseServer, caller: Caller):
    changes = change_set(
        part("POST", "accounts", {"name": "made"}, content_id=1),
        part("PATCH", "$1", {"name": "changed"}, content_id=2),
    )
    answer = await caller.batch(changes)
    assert (answer.status_code, statuses(answer)) == (200, [204, 204])
    assert re.findall(r"Content-ID: (\d)", answer.text) == ["1", "2"]
    assert [row["name"] for row in server.rows("account")] == ["changed"]


async def test_a_change_set_that_fails_leaves_nothing_behind(server: DataverseServer, caller: Caller):
    (id,) = await make(caller, "a")
    changes = change_set(
        part("PATCH", f"accounts({id})", {"name": "b"}, content_id=1),
        part("POST", "accounts", {"name": "c"}, content_id=2),
        part("DELETE", f"accounts({ABSENT})", content_id=3),
    )
    answer = await caller.batch(changes, deletion(id), headers=GOES_ON)
    assert statuses(answer) == [404, 204]
    assert [entry.what for entry in server.ledger.entries] == ["create", "delete"]
    assert server.rows("account") == []


@pytest.mark.parametrize(
    "inner",
    [part("GET", "accounts", content_id=1), part("DELETE", f"accounts({ABSENT})").replace(b"--batch_1", b"--set_1")],
)
async def test_a_change_set_takes_only_changes_that_are_numbered(caller: Caller, inner: bytes):
    assert (await caller.batch(change_set(inner))).status_code == 400


async def test_a_row_can_be_throttled_inside_a_batch(server: DataverseServer, caller: Caller):
    ids = await make(caller, "a", "b")
    server.faults.add(throttled("time", retry_after_s=9), row=lambda row: row.get("accountid") == ids[0])
    answer = await caller.batch(deletion(ids[0]), deletion(ids[1]), headers=GOES_ON)
    assert statuses(answer) == [429, 204]
    assert "Retry-After: 9" in answer.text


async def test_an_answer_may_lack_parts_although_all_took_effect(server: DataverseServer, caller: Caller):
    ids = await make(caller, "a", "b", "c")
    server.faults.add(MissingParts(2), action="$batch", times=1)
    answer = await caller.batch(*map(deletion, ids), headers=GOES_ON)
    assert statuses(answer) == [204]
    assert server.rows("account") == []


async def test_a_batch_counts_as_one_call_to_the_table_all_its_parts_are_about(server: DataverseServer, caller: Caller):
    await caller.batch(part("POST", "accounts", {"name": "a"}), part("POST", "accounts", {"name": "b"}))
    await caller.batch(part("POST", "accounts", {"name": "c"}), part("POST", "teams", {"name": "d"}))
    assert [(call.table, call.rows) for call in server.ledger.calls("$batch")] == [("account", 2), (None, 2)]


async def test_actions_and_reads_work_inside_a_batch(caller: Caller):
    rows = [{"@odata.type": "Microsoft.Dynamics.CRM.account", "name": name} for name in "ab"]
    action = part("POST", "accounts/Microsoft.Dynamics.CRM.CreateMultiple", {"Targets": rows})
    answer = await caller.batch(action, part("GET", "accounts?$filter=name eq 'b'&$select=name"))
    bodies = [json.loads(line) for line in answer.text.splitlines() if line.startswith("{")]
    assert len(bodies[0]["Ids"]) == 2
    assert [row["accountid"] for row in bodies[1]["value"]] == bodies[0]["Ids"][1:]
