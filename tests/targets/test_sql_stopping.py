"""Bulk calls that must end while a database does not answer: on a lock, on a statement, on a commit."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

import pytest
from patience import HANG_S
from sql_places import Place, Wire, batch

from penstock.targets import BulkCall, BulkExecutor, BulkResult, Outcome, Pool, RetryPolicy
from penstock.targets.model import Mode
from penstock.targets.sql.server import CANCEL_S
from penstock.targets.sql.target import SqlTarget

pytestmark = pytest.mark.databases("postgresql", "mariadb")
ENDLESS = {"lock_timeout_s": 86_400, "statement_timeout_s": 86_400}
"""The server's own limits would not end a wait for longer than any test lasts."""
DEADLINE_S = 77.0
GRACE_S = RetryPolicy().grace_s
WAITING = {
    "postgresql": "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
    "mariadb": """SELECT 1 FROM information_schema.innodb_trx JOIN information_schema.processlist
        ON id = trx_mysql_thread_id WHERE trx_state = 'LOCK WAIT' AND db = DATABASE()""",
}
LOOK_S = 0.15
"""MariaDB tells what it told before to whoever asks again within a tenth of a second."""
SECONDS_OF_A_COMMIT = "penstock.targets.sql.server", "penstock.targets.sql.postgres.target"


def product(n: int, **more: object) -> dict[str, object]:
    return {"id": n, "name": f"product {n}", "price": n, **more}


async def until_a_lock_is_waited_for(place: Place) -> None:
    async with place.hand() as look:
        is_waited_for = False
        while not is_waited_for:  # a wait for a lock tells nobody
            await asyncio.sleep(LOOK_S)
            is_waited_for = bool(await look(WAITING[place.kind]))


class Timers:
    """Sleeps that are over when a test says so."""

    def __init__(self) -> None:
        self.begun: dict[float, asyncio.Event] = defaultdict(asyncio.Event)
        self.over: dict[float, asyncio.Event] = defaultdict(asyncio.Event)

    async def sleep(self, seconds: float) -> None:
        self.begun[seconds].set()
        await self.over[seconds].wait()


class Stoppable:
    """A bulk call that is stopped by its caller or at its deadline."""

    def __init__(self, target: SqlTarget, reason: str, mode: Mode, records: list[Any]) -> None:
        self.reason, self.timers = reason, Timers()
        executor = BulkExecutor(target, pool=Pool.of(target, sleep=self.timers.sleep))
        deadline_s = DEADLINE_S if reason == "deadline" else None
        self.call: BulkCall = executor.start(mode, "products", records, deadline_s=deadline_s)
        self.ending = asyncio.ensure_future(self._end())

    async def _end(self) -> BulkResult:
        return await self.call

    async def stop(self) -> None:
        """Stop it, and see that what is in flight has its grace."""
        if self.reason == "deadline":
            self.timers.over[DEADLINE_S].set()
        else:
            self.call.stop()
        await self.timers.begun[GRACE_S].wait()
        assert not self.ending.done()
        self.timers.over[GRACE_S].set()

    async def result(self) -> BulkResult:
        """What became of it."""
        async with asyncio.timeout(HANG_S):
            return await self.ending


@pytest.fixture
async def wire(place: Place) -> AsyncIterator[Wire]:
    await place.products()
    await place.send(Mode.CREATE, [product(1), product(2)])
    async with Wire(place.url) as wire:
        yield wire


@pytest.fixture
def commit_s(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> float:
    """How long a cancelled call waits for a commit or a rollback here: not at all, or for ever."""
    for module in SECONDS_OF_A_COMMIT:
        assert import_module(module).CANCEL_S == CANCEL_S
        monkeypatch.setattr(import_module(module), "CANCEL_S", request.param)
    return float(request.param)


def test_what_is_in_flight_has_the_seconds_that_the_reference_names():
    assert (GRACE_S, CANCEL_S) == (5, 2)


async def test_a_call_cancelled_while_it_waits_for_a_lock_ends_at_once_and_leaves_nothing_behind(place: Place):
    await place.products()
    await place.send(Mode.CREATE, [product(1), product(2)])
    target = place.new_target(**ENDLESS)
    async with place.hand() as execute:
        await execute("BEGIN")
        await execute("UPDATE products SET note = 'held' WHERE id = 2")
        given = batch(Mode.UPDATE, [product(1, note="x"), product(2, note="x")])
        sending = asyncio.ensure_future(target.send(given, "default"))
        await until_a_lock_is_waited_for(place)
        sending.cancel()
        await asyncio.wait([sending], timeout=HANG_S)
        assert sending.cancelled()
        await execute("COMMIT")
    assert await place.rows("SELECT note FROM products ORDER BY id") == [("none",), ("held",)]
    again = await target.send(batch(Mode.UPDATE, [product(1, note="y"), product(2, note="y")]), "default")
    assert [verdict.outcome for verdict in again.verdicts] == [Outcome.UPDATED] * 2


@pytest.mark.covers("BX-076")
@pytest.mark.parametrize("reason", ["cancelled", "deadline"])
async def test_a_bulk_call_that_waits_for_a_lock_ends_while_the_lock_is_held(place: Place, reason: str):
    await place.products()
    await place.send(Mode.CREATE, [product(1), product(2)])
    target = place.new_target(**ENDLESS)
    async with place.hand() as execute:
        await execute("BEGIN")
        await execute("UPDATE products SET note = 'held' WHERE id = 2")
        call = Stoppable(target, reason, Mode.UPDATE, [product(n, note="x") for n in (1, 2)])
        await until_a_lock_is_waited_for(place)
        await call.stop()
        result = await call.result()
        await execute("COMMIT")
    assert (result.stopped_reason, result.outcomes) == (reason, [Outcome.UNKNOWN] * 2)
    assert await place.rows("SELECT note FROM products ORDER BY id") == [("none",), ("held",)]


@pytest.mark.covers("BX-076")
@pytest.mark.parametrize("commit_s", [0.0], indirect=True)
@pytest.mark.parametrize("word", [b"COMMIT", b"FOR UPDATE"], ids=["commit", "statement"])
@pytest.mark.parametrize("reason", ["cancelled", "deadline"])
async def test_a_bulk_call_ends_though_the_server_never_answers(
    place: Place, wire: Wire, reason: str, word: bytes, commit_s: float
):
    target = place.new_target(wire.url, **ENDLESS)
    wire.word, wire.cut = word, "hold"
    call = Stoppable(target, reason, Mode.UPDATE, [product(1, note="x")])
    await wire.held.wait()
    await call.stop()
    result = await call.result()
    assert (result.stopped_reason, result.outcomes) == (reason, [Outcome.UNKNOWN])
    wire.released.set()


@pytest.mark.covers("BX-076")
@pytest.mark.parametrize("commit_s", [HANG_S], indirect=True)
@pytest.mark.parametrize("reason", ["cancelled", "deadline"])
async def test_a_bulk_call_that_is_stopped_while_it_commits_gets_an_answer_that_comes_soon(
    place: Place, wire: Wire, reason: str, commit_s: float
):
    target = place.new_target(wire.url, **ENDLESS)
    wire.cut = "hold"
    call = Stoppable(target, reason, Mode.CREATE, [product(5)])
    await wire.held.wait()
    await call.stop()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not call.ending.done()
    wire.released.set()
    result = await call.result()
    assert (result.stopped_reason, result.outcomes) == (reason, [Outcome.CREATED])
