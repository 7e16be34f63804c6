"""The test remote protects itself as the platform does: windows for each user and web server, tokens, privileges."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from dataverse import DataverseServer, Held, Pace, Quota, Table
from dataverse.caller import Caller
from dataverse.limits import Limits, Window, affinity
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import ManualClock

TABLE = Table("account", "accounts", columns=("name",))
SMALL = Quota(requests=3, window_s=60, execution_s=1000)
BYPASS = {"MSCRM.BypassBusinessLogicExecution": "CustomSync,CustomAsync"}


@asynccontextmanager
async def serving(quota: Quota, **options: Any) -> AsyncIterator[tuple[DataverseServer, Caller]]:
    async with (
        DataverseServer([TABLE], {"app-1": quota, "app-2": quota}, **options) as server,
        Caller(server) as caller,
    ):
        yield server, caller


async def test_too_many_requests_in_a_window_are_refused_until_it_has_moved_on(clock: ManualClock):
    async with serving(SMALL, clock=clock) as (_, caller):
        for _ in range(3):
            assert (await caller.send("GET", "WhoAmI")).status_code == 200
            clock.advance(10)
        refused = await caller.send("GET", "WhoAmI")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "0x80072322")
        assert refused.headers["Retry-After"] == "30"
        clock.advance(30)
        assert (await caller.send("GET", "WhoAmI")).status_code == 200


async def test_calls_before_the_wait_is_over_lengthen_it(clock: ManualClock):
    async with serving(Quota(requests=1, window_s=60, growth_s=5), clock=clock) as (_, caller):
        waits = [(await caller.send("GET", "WhoAmI")).headers.get("Retry-After") for _ in range(4)]
        assert waits == [None, "60", "60", "60"]
        clock.advance(30)
        assert [(await caller.send("GET", "WhoAmI")).headers["Retry-After"] for _ in range(2)] == ["35", "40"]
        clock.advance(40)
        assert (await caller.send("GET", "WhoAmI")).status_code == 200


async def test_the_time_spent_on_a_user_is_limited(clock: ManualClock):
    quota = Quota(execution_s=2, window_s=60)
    async with serving(quota, clock=clock, pace=Pace(call_s=0.5, row_s=0.1)) as (server, caller):
        rows = [{"name": str(n)} for n in range(16)]
        assert (await caller.act("accounts", "CreateMultiple", rows)).status_code == 200
        refused = await caller.act("accounts", "CreateMultiple", rows)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "0x80072321")
        assert len(server.rows("account")) == 16
        clock.advance(60)
        assert (await caller.act("accounts", "CreateMultiple", rows)).status_code == 200


async def test_too_many_calls_at_once_are_refused():
    held = Held()
    async with serving(Quota(concurrency=1)) as (server, caller):
        server.faults.add(held, action="WhoAmI", call=1)
        first = asyncio.ensure_future(caller.send("GET", "WhoAmI"))
        await held.arrived.wait()
        refused = [await caller.send("GET", "accounts") for _ in range(2)]
        assert [answer.json()["error"]["code"] for answer in refused] == ["0x80072326"] * 2
        assert [answer.headers["Retry-After"] for answer in refused] == ["1", "2"]
        held.gate.set()
        assert (await first).status_code == 200
        assert (await caller.send("GET", "accounts")).status_code == 200
        assert server.ledger.concurrency_max["app-1"] == 2


async def test_users_do_not_share_their_limits(clock: ManualClock):
    async with serving(Quota(requests=1), clock=clock) as (server, caller), Caller(server, "app-2") as other:
        assert (await caller.send("GET", "WhoAmI")).status_code == 200
        assert (await caller.send("GET", "WhoAmI")).status_code == 429
        assert (await other.send("GET", "WhoAmI")).status_code == 200


async def test_each_web_server_counts_for_itself_and_a_cookie_pins_one(clock: ManualClock):
    async with serving(Quota(requests=1), clock=clock, web_servers=3) as (server, caller):
        free = [await caller.send("GET", "WhoAmI") for _ in range(3)]
        assert [answer.status_code for answer in free] == [200, 200, 200]
        assert {call.web_server for call in server.ledger.arrivals} == {0, 1, 2}
        clock.advance(300)
        cookie = {"Cookie": free[0].headers["Set-Cookie"].partition(";")[0]}
        pinned = [await caller.send("GET", "WhoAmI", headers=cookie) for _ in range(2)]
        assert [answer.status_code for answer in pinned] == [200, 429]
        assert "Set-Cookie" not in pinned[0].headers


async def test_the_recommended_parallelism_changes_live():
    async with serving(Quota(dop_hint=8)) as (server, caller):
        assert (await caller.send("GET", "WhoAmI")).headers["x-ms-dop-hint"] == "8"
        server.dop_hints["app-1"] = 2
        assert (await caller.send("GET", "WhoAmI")).headers["x-ms-dop-hint"] == "2"


async def test_answers_say_what_is_left_of_the_window(clock: ManualClock):
    async with serving(Quota(requests=10, execution_s=100), clock=clock, pace=Pace(single_s=1)) as (_, caller):
        for _ in range(2):
            answer = await caller.send("GET", "WhoAmI")
        assert answer.headers["x-ms-ratelimit-burst-remaining-xrm-requests"] == "8"
        assert answer.headers["x-ms-ratelimit-time-remaining-xrm-requests"] == "98.00"


async def test_tokens_expire_by_time_and_by_hand(clock: ManualClock):
    async with serving(Quota(), clock=clock, token_life_s=100) as (server, caller):
        assert (await caller.send("GET", "WhoAmI")).status_code == 200
        clock.advance(100)
        refused = await caller.send("GET", "WhoAmI")
        assert (refused.status_code, refused.content) == (401, b"")
        assert "invalid_token" in refused.headers["WWW-Authenticate"]
        caller.token = server.credential().get_token(f"{server.url}/.default").token
        assert (await caller.send("GET", "WhoAmI")).status_code == 200
        server.expire_tokens("app-2")
        assert (await caller.send("GET", "WhoAmI")).status_code == 200
        server.expire_tokens("app-1")
        assert (await caller.send("GET", "WhoAmI")).status_code == 401


async def test_a_token_is_good_for_the_address_it_was_asked_for():
    async with serving(Quota()) as (server, caller):
        caller.token = (await server.async_credential().get_token("https://elsewhere/.default")).token
        assert (await caller.send("GET", "WhoAmI")).status_code == 401
        with pytest.raises(ValueError, match=r"followed by /\.default"):
            server.credential().get_token(server.url)


async def test_bypassing_custom_logic_needs_its_privilege():
    async with serving(Quota()) as (server, caller):
        assert (await caller.act("accounts", "CreateMultiple", [{"name": "a"}], BYPASS)).status_code == 200
        server.revoke("app-1", "prvBypassCustomBusinessLogic")
        refused = await caller.act("accounts", "CreateMultiple", [{"name": "b"}], BYPASS)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "0x80040220")
        assert "prvBypassCustomBusinessLogic" in refused.json()["error"]["message"]
        assert (await caller.act("accounts", "CreateMultiple", [{"name": "c"}])).status_code == 200


@pytest.mark.parametrize(
    "privilege, method, path",
    [
        ("prvCreateaccount", "POST", "accounts"),
        ("prvReadaccount", "GET", "accounts"),
        ("prvWriteaccount", "POST", "accounts/Microsoft.Dynamics.CRM.UpdateMultiple"),
        ("prvDeleteaccount", "DELETE", "accounts(00000000-0000-0000-0000-000000000001)"),
    ],
)
async def test_every_operation_needs_the_privilege_for_its_table(privilege: str, method: str, path: str):
    async with serving(Quota()) as (server, caller):
        server.revoke("app-1", privilege)
        refused = await caller.send(method, path, {} if method == "POST" else None)
        assert refused.status_code == 403
        assert privilege in refused.json()["error"]["message"]


@given(steps=st.lists(st.tuples(st.floats(0, 20), st.booleans()), max_size=60))
def test_no_window_ever_admits_more_than_its_quota(steps: list[tuple[float, bool]]):
    window, now, admitted = Window(Quota(requests=5, window_s=30, concurrency=3)), 0.0, []
    for wait_s, ends in steps:
        now += wait_s
        if ends and window.in_flight:
            window.leave(now, 0)
        if window.admit(now) is None:
            admitted.append(now)
        assert len([at for at in admitted if at > now - 30]) <= 5
        assert window.in_flight <= 3


@given(uses=st.lists(st.floats(0.1, 40), min_size=1, max_size=30))
def test_whoever_waits_as_told_is_admitted(uses: list[float]):
    window, now = Window(Quota(requests=4, window_s=30, execution_s=50)), 0.0
    for spent_s in uses:
        refusal = window.admit(now)
        if refusal is not None:
            now += int(refusal.headers["Retry-After"])
            assert window.admit(now) is None
        window.leave(now, spent_s)


def test_without_a_cookie_web_servers_take_turns():
    limits = Limits({"app-1": Quota()}, web_servers=3)
    turns = [limits.choose(None) for _ in range(6)]
    assert turns[:3] == turns[3:]
    assert sorted(turns[:3]) == [0, 1, 2]
    assert [limits.choose(affinity(2)) for _ in range(3)] == [2, 2, 2]
