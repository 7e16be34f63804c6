"""What happens at the same time: writing deliveries, sending them, and ending subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from parcel_post import SendParcels, sent
from receivers import Answer, Receiver
from sqlalchemy import delete, select

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.journal.queries import entries
from penstock.outbox import claiming, retention, service
from penstock.outbox.claiming import WORKER
from penstock.outbox.storing import Writer, subscribe
from penstock.outbox.subscribing import handler_row
from penstock.outbox.tables import deliveries, subscriptions
from penstock.testing import Engine

# Others get so long to go ahead of us. Where they must wait for us, it is the time that a test takes.
AHEAD_S = 0.5

on_servers = pytest.mark.databases("postgresql", "mariadb")  # SQLite has one writer


class Beside:
    """Work that is begun in the middle of something else, and may have to wait for its end."""

    def __init__(self, work: Callable[[], Awaitable[Any]]) -> None:
        self._work = work
        self._task: asyncio.Task[Any] | None = None

    async def begin(self) -> None:
        if self._task is None:
            self._task = asyncio.ensure_future(self._work())
            await asyncio.wait([self._task], timeout=AHEAD_S)

    async def end(self) -> Any:
        assert self._task is not None
        return await self._task


def after_writing(monkeypatch: pytest.MonkeyPatch, beside: Beside) -> None:
    """Begin something when deliveries are written and not committed."""
    write = Writer.write

    async def writing(self: Writer, *given: Any) -> int:
        many = await write(self, *given)
        await beside.begin()
        return many

    monkeypatch.setattr(Writer, "write", writing)


@on_servers
@pytest.mark.parametrize("ends", ["disable", "remove"])
async def test_who_ends_a_subscription_also_cancels_what_is_being_written_for_it(
    e: Engine, hook: Receiver, monkeypatch: pytest.MonkeyPatch, ends: str
):
    hooks = e.penstock.webhooks
    added = (await hooks.add(hook.url)).subscription
    await sent(e)
    beside = Beside(lambda: getattr(hooks, ends)(added.id))
    after_writing(monkeypatch, beside)
    await e.penstock.events.writer.follow_log()
    await beside.end()
    counts = await hooks.counts()
    assert (counts["Pending"], counts["Cancelled"]) == (0, 4)


@on_servers
async def test_what_is_erased_is_not_in_events_that_are_being_written(
    e: Engine, hook: Receiver, monkeypatch: pytest.MonkeyPatch
):
    await e.penstock.webhooks.add(hook.url)
    made = await e.create(SendParcels, [{"name": "a"}])
    await e.operations.cancel(made.id, cause="canary")
    beside = Beside(lambda: e.operations.erase(made.id))
    after_writing(monkeypatch, beside)
    await e.penstock.events.writer.follow_log()
    await beside.end()
    async with e.penstock.db.read() as tx:
        bodies = (await tx.execute(select(deliveries.c.body))).scalars().all()
    assert len(bodies) == 2
    assert "canary" not in repr(bodies)


class Interrupted:
    """A connection on which something else is begun before the first UPDATE."""

    def __init__(self, tx: Connection, beside: Beside) -> None:
        self._tx, self._beside = tx, beside

    async def execute(self, statement: Any, parameters: Any = None) -> Any:
        if statement.is_update:
            await self._beside.begin()
        return await self._tx.execute(statement, parameters)


@on_servers
async def test_the_log_says_of_each_delivery_what_became_of_it_when_it_is_sent_and_cancelled_at_once(
    e: Engine, hook: Receiver
):
    db, hooks = e.penstock.db, e.penstock.webhooks
    added = (await hooks.add(hook.url)).subscription
    await sent(e)
    await e.penstock.events.writer.follow_log()
    beside = Beside(e.penstock.events.sender.send_due)

    async def cancel(tx: Connection) -> int:
        between: Any = Interrupted(tx, beside)
        mine = deliveries.c.subscription == added.id
        return await claiming.cancel_open(db, between, mine, cause="no more", actor=WORKER)

    await db.transaction(cancel)
    await beside.end()
    for each in (await hooks.deliveries()).items:
        async with db.read() as tx:
            logged = await entries(tx, machine="delivery", subject=each.id)
        assert [line.target for line in logged] == [each.state]


@on_servers
async def test_a_delivery_that_is_sent_again_while_old_ones_are_removed_is_sent_or_gone(
    e: Engine, hook: Receiver, monkeypatch: pytest.MonkeyPatch
):
    hooks = e.penstock.webhooks
    added = (await hooks.add(hook.url)).subscription
    hook.answer = lambda request: Answer(500)
    assert (await hooks.test(added.id)).state == "Failed"
    e.clock.advance(31 * 86_400)
    beside = Beside(lambda: hooks.resend(failed=True))
    start_counter = retention.start_counter

    async def starting(db: Database, tx: Connection) -> None:
        await beside.begin()
        await start_counter(db, tx)

    monkeypatch.setattr(retention, "start_counter", starting)
    removed = await retention.remove_old(e.penstock.db, days=30)
    assert removed + await beside.end() == 1


async def test_a_delivery_without_a_subscription_is_cancelled_by_the_next_pass(e: Engine, hook: Receiver):
    hooks = e.penstock.webhooks
    gone, stays = [(await hooks.add(hook.url, types="penstock.operation.created")).subscription.id for _ in range(2)]
    await e.create(SendParcels, [{"name": "a"}])
    await e.penstock.events.writer.follow_log()

    async def lose(tx: Connection) -> None:
        await tx.execute(delete(subscriptions).where(subscriptions.c.id == gone))

    await e.penstock.db.transaction(lose)
    assert [each.rule for each in await e.penstock.events.verify()] == ["delivery_receiver"]
    await e.penstock.events.tick()
    await e.penstock.events.sender.wait()
    states = {each.subscription: each.state for each in (await hooks.deliveries()).items}
    assert states == {gone: "Cancelled", stays: "Processed"}
    assert await e.penstock.events.verify() == []


@on_servers
async def test_all_handlers_are_subscribed_when_another_process_subscribes_one_of_them_at_once(
    e: Engine, monkeypatch: pytest.MonkeyPatch
):
    db = e.penstock.db

    async def after_another(to: Database, tx: Connection, rows: Any, **same: Any) -> None:
        async def another(theirs: Connection) -> None:
            await subscribe(to, theirs, [handler_row("one", ["penstock.operation.*"], None)])

        monkeypatch.setattr(service, "subscribe", subscribe)
        await to.transaction(another)
        await subscribe(to, tx, rows, **same)

    monkeypatch.setattr(service, "subscribe", after_another)
    wanted = {name: (["penstock.operation.*"], None) for name in ("one", "two")}
    await e.penstock.webhooks.have_handlers(wanted)
    async with db.read() as tx:
        assert sorted((await tx.execute(select(subscriptions.c.id))).scalars()) == ["handler:one", "handler:two"]
