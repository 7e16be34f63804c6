"""Scripted misfortune happens to the calls it is about and to no others, and the ledger tells what took effect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from dataverse import (
    DataverseServer,
    Drop,
    Held,
    Pace,
    Problem,
    Quota,
    Slow,
    Table,
    Truncated,
    deadlock,
    plugin_aborted,
    privilege_missing,
    race,
    sql_timeout,
    throttled,
    token_refused,
    too_large,
)
from dataverse.caller import Caller
from patience import HANG_S

TABLES = (Table("account", "accounts"), Table("contact", "contacts"), Table("fresh", "freshes", is_new=True))
BYPASS = {"MSCRM.BypassBusinessLogicExecution": "CustomSync"}


class Naps:
    """A sleep that only remembers."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def naps() -> Naps:
    return Naps()


@pytest.fixture
async def server(naps: Naps) -> AsyncIterator[DataverseServer]:
    users = {"app-1": Quota(), "app-2": Quota()}
    async with DataverseServer(TABLES, users, sleep=naps, body_bytes_max=10_000) as server:
        yield server


@pytest.fixture
async def caller(server: DataverseServer) -> AsyncIterator[Caller]:
    async with Caller(server) as caller:
        yield caller


async def create(caller: Caller, *names: str, entity_set: str = "accounts", **options: Any) -> httpx.Response:
    return await caller.act(entity_set, "CreateMultiple", [{"name": name} for name in names], **options)


def names(server: DataverseServer) -> list[str]:
    return [row["name"] for row in server.rows("account")]


@pytest.mark.parametrize(
    "problem, status, code",
    [
        (throttled("requests"), 429, "0x80072322"),
        (throttled("time"), 429, "0x80072321"),
        (throttled("concurrency"), 429, "0x80072326"),
        (privilege_missing("someone", "prvCreateaccount"), 403, "0x80040220"),
        (deadlock(), 500, "0x80044150"),
        (race(2766), 500, "0x80044150"),
        (sql_timeout(), 500, "0x80044151"),
        (plugin_aborted("no"), 400, "0x80040265"),
        (too_large(), 413, ""),
        (Problem(503, "0x80048544", "busy"), 503, "0x80048544"),
    ],
)
async def test_a_refused_call_changes_nothing(
    server: DataverseServer, caller: Caller, problem: Problem, status: int, code: str
):
    server.faults.add(problem, times=1)
    answer = await create(caller, "a")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert server.rows("account") == []
    assert (await create(caller, "a")).status_code == 200


async def test_a_token_can_be_refused_once(server: DataverseServer, caller: Caller):
    server.faults.add(token_refused(), call=1)
    assert [(await create(caller, "a")).status_code for _ in range(2)] == [401, 200]


async def test_the_wait_may_be_told_as_a_date(server: DataverseServer, caller: Caller):
    server.faults.add(throttled("requests", retry_after="Wed, 21 Oct 2099 07:28:00 GMT"))
    assert (await create(caller, "a")).headers["Retry-After"] == "Wed, 21 Oct 2099 07:28:00 GMT"


async def test_a_fault_concerns_the_calls_it_names(server: DataverseServer, caller: Caller):
    server.faults.add(deadlock(), table="account", action="CreateMultiple", user="app-1", call={2, 3})
    async with Caller(server, "app-2") as other:
        assert (await create(other, "x")).status_code == 200
        assert (await create(caller, "x", entity_set="contacts")).status_code == 200
        assert (await caller.send("GET", "accounts")).status_code == 200
        assert [(await create(caller, "x")).status_code for _ in range(4)] == [200, 500, 500, 200]


async def test_a_fault_of_large_calls_spares_small_ones(server: DataverseServer, caller: Caller):
    server.faults.add(sql_timeout(), rows_over=2)
    assert [(await create(caller, *"abcd"[:size])).status_code for size in (1, 2, 3)] == [200, 200, 500]


async def test_a_fault_of_a_row_concerns_calls_that_hold_it(server: DataverseServer, caller: Caller):
    server.faults.add(plugin_aborted(), row=lambda row: row["name"] == "b", times=1)
    assert [(await create(caller, *batch)).status_code for batch in ("a", "bc", "b")] == [200, 400, 200]
    assert names(server) == ["a", "b"]


async def test_a_fault_of_a_row_must_be_a_refusal(server: DataverseServer):
    with pytest.raises(TypeError, match="a row can only be refused"):
        server.faults.add(Drop(), row=lambda row: True)


async def test_bypassed_custom_logic_does_not_fail(server: DataverseServer, caller: Caller):
    server.faults.add(plugin_aborted())
    assert [(await create(caller, "a", headers=headers)).status_code for headers in ({}, BYPASS)] == [400, 200]


async def test_faults_can_be_cleared(server: DataverseServer, caller: Caller):
    server.faults.add(deadlock())
    server.faults.clear()
    assert (await create(caller, "a")).status_code == 200


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("is_applied", [False, True])
async def test_a_dropped_connection_tells_nothing_of_what_took_effect(
    server: DataverseServer, caller: Caller, is_applied: bool, is_reset: bool
):
    server.faults.add(Drop(is_applied=is_applied, is_reset=is_reset), times=1)
    with pytest.raises(httpx.TransportError):
        await create(caller, "a")
    assert names(server) == ["a"] * is_applied
    assert server.ledger.arrivals[-1].status is None
    assert (await create(caller, "b")).status_code == 200


async def test_a_truncated_answer_breaks_off_after_the_call_took_effect(server: DataverseServer, caller: Caller):
    server.faults.add(Truncated(bytes=25), times=1)
    with pytest.raises(httpx.RemoteProtocolError):
        await create(caller, "a")
    assert names(server) == ["a"]


async def test_a_slow_answer_comes_after_the_call_took_effect(server: DataverseServer, caller: Caller, naps: Naps):
    server.faults.add(Slow(90))
    assert (await create(caller, "a")).status_code == 200
    assert naps.taken == [90]


async def test_a_held_answer_runs_into_the_patience_of_the_client(server: DataverseServer):
    held = Held(is_applied=True)
    server.faults.add(held, times=1)
    token = server.credential().get_token(f"{server.url}/.default").token
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(timeout=httpx.Timeout(HANG_S, read=0.05)) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(f"{server.url}/api/data/v9.2/accounts", json={"name": "a"}, headers=headers)
    await held.arrived.wait()
    assert names(server) == ["a"]


async def test_a_held_call_has_not_taken_effect_until_its_gate_opens(server: DataverseServer, caller: Caller):
    held = Held()
    server.faults.add(held, times=1)
    waiting = asyncio.ensure_future(create(caller, "a"))
    await held.arrived.wait()
    assert names(server) == []
    held.gate.set()
    assert (await waiting).status_code == 200
    assert names(server) == ["a"]


async def test_calls_beside_the_first_to_a_new_table_run_into_the_race(server: DataverseServer, caller: Caller):
    held = Held()
    server.faults.add(held, table="fresh", call=1)
    first = asyncio.ensure_future(create(caller, "a", entity_set="freshes"))
    await held.arrived.wait()
    beside = [await create(caller, "b", entity_set="freshes") for _ in range(3)]
    numbers = [answer.json()["error"]["message"].rpartition(" ")[2] for answer in beside]
    assert ([answer.status_code for answer in beside], numbers) == ([500] * 3, ["3732", "2766", "2812"])
    held.gate.set()
    assert (await first).status_code == 200
    assert (await create(caller, "b", entity_set="freshes")).status_code == 200


async def test_bodies_over_the_limit_are_too_large(server: DataverseServer, caller: Caller):
    assert (await create(caller, "x" * 10_000)).status_code == 413
    assert (await create(caller, "x" * 9_000)).status_code == 200


async def test_work_takes_the_time_the_pace_says(naps: Naps):
    pace = Pace(call_s=1, row_s=0.1, single_s=0.5)
    async with DataverseServer(TABLES, sleep=naps, pace=pace) as server, Caller(server) as caller:
        await create(caller, "a", "b")
        await caller.send("POST", "accounts", {"name": "c"})
        await caller.send("GET", "accounts")
    assert naps.taken == pytest.approx([1.2, 1.5, 1.5])


async def test_the_ledger_holds_what_every_request_brought_and_got(server: DataverseServer, caller: Caller):
    request = {"x-ms-client-request-id": "mine"}
    path = "accounts/Microsoft.Dynamics.CRM.CreateMultiple?tag=night%20load"
    rows = [{"@odata.type": "Microsoft.Dynamics.CRM.account", "name": name} for name in "ab"]
    await caller.send("POST", path, {"Targets": rows}, request)
    (call,) = server.ledger.calls("CreateMultiple", "account")
    assert (call.user, call.rows, call.status, call.tag, call.request_id) == ("app-1", 2, 200, "night load", "mine")
    entries = server.ledger.of("account", "create")
    assert [(entry.values["name"], entry.change.index, entry.request_id) for entry in entries] == [
        ("a", 0, "mine"),
        ("b", 1, "mine"),
    ]


async def test_the_ledger_tells_what_was_applied_twice(server: DataverseServer, caller: Caller):
    for batch in ("ab", "bc", "b"):
        await create(caller, *batch)
    assert server.ledger.doubled("account", "name") == {"b": 3}
    assert server.ledger.times("account", "name")["c"] == 1
    assert server.ledger.statuses() == {200: 3}


async def test_a_failure_of_the_remote_itself_is_not_hidden():
    server = await DataverseServer(TABLES).__aenter__()
    server.faults.add(deadlock(), row=lambda row: row["no such column"] == 1)
    async with Caller(server) as caller:
        with pytest.raises(httpx.TransportError):
            await create(caller, "a")
    with pytest.raises(ExceptionGroup, match="the remote itself failed"):
        await server.__aexit__(None, None, None)
