"""`verify` finds deliveries that are missing or not as they were logged; `doctor` says what is not told, and why."""

from __future__ import annotations

from datetime import timedelta

import pytest
from parcel_post import sent
from receivers import Answer, Receiver
from sqlalchemy import delete, select, update

from penstock.operations.proof.doctor import collect
from penstock.operations.proof.symptoms import examine
from penstock.outbox.retention import remove_old
from penstock.outbox.tables import deliveries, subscriptions
from penstock.testing import Engine


async def test_what_was_delivered_is_as_it_should_be(e: Engine, hook: Receiver):
    await e.penstock.webhooks.add(hook.url)
    e.clock.advance(1)
    await sent(e)
    assert await e.penstock.events.verify() == []
    await e.deliver()
    assert await e.penstock.events.verify() == []
    (first, *_) = (await e.penstock.webhooks.list()).items
    e.clock.advance(1)
    await e.penstock.webhooks.change(first.id, types="penstock.*")
    assert await e.penstock.events.verify() == []


async def test_differences_are_found(e: Engine, hook: Receiver):
    added = (await e.penstock.webhooks.add(hook.url)).subscription
    e.clock.advance(1)
    await sent(e)
    await e.deliver()
    e.clock.advance(1)
    await e.create("send-parcels", [{"name": "a"}])
    await e.penstock.events.writer.follow_log()
    shown = (await e.penstock.webhooks.deliveries()).items

    async def damage(tx):
        await tx.execute(delete(deliveries).where(deliveries.c.id == shown[0].id))
        await tx.execute(update(deliveries).where(deliveries.c.id == shown[1].id).values(state="Failed"))

    await e.penstock.db.transaction(damage)
    found = await e.penstock.events.verify()
    assert [each.rule for each in found] == ["delivery_log", "delivery_written"]
    assert shown[1].id in found[0].message
    assert shown[0].event_id in found[1].message

    async def unsubscribe(tx):
        await tx.execute(delete(subscriptions).where(subscriptions.c.id == added.id))

    await e.penstock.db.transaction(unsubscribe)
    assert [each.rule for each in await e.penstock.events.verify()] == ["delivery_receiver", "delivery_log"]


@pytest.mark.databases("sqlite")
async def test_doctor_says_what_is_not_told_and_why(e: Engine, hook: Receiver):
    async def seen() -> list[str]:
        found = examine(await collect(e.penstock.settings, e.clock))
        return [each.what for each in found.symptoms if each.check == "events_are_told"]

    hooks = e.penstock.webhooks
    added = (await hooks.add(hook.url, types="penstock.operation.finished")).subscription
    await hooks.add("mailto:ana@example.com", types="penstock.operation.created")
    assert await seen() == []
    await sent(e)
    hook.answer = lambda request: Answer(410)
    await e.deliver()
    e.clock.advance(3600)
    assert await seen() == [
        "1 delivery was given up",
        "1 delivery by email should be sent, and nobody does it",
        f"1 webhook disabled: {added.id}",
    ]
    other = e.penstock.settings.model_copy(update={"secret_key": None})
    locked = examine(await collect(other, e.clock)).symptoms
    assert any("the secrets of 1 webhook cannot be decrypted here" in each.what for each in locked)


@pytest.mark.databases("sqlite")
async def test_doctor_does_not_complain_of_a_receiver_that_asked_for_a_pause(e: Engine, hook: Receiver):
    await e.penstock.webhooks.add(hook.url, types="penstock.operation.created")
    hook.answer = lambda request: Answer(503, {"Retry-After": "7200"})
    await e.create("send-parcels", [{"name": "a"}])
    assert await e.deliver() == 1
    await e.create("send-parcels", [{"name": "b"}])
    assert await e.deliver() == 0
    e.clock.advance(3600)
    found = examine(await collect(e.penstock.settings, e.clock))
    assert [each.what for each in found.symptoms if each.check == "events_are_told"] == []


async def test_settled_deliveries_are_removed_after_a_while_and_open_ones_stay(e: Engine, hook: Receiver):
    await e.penstock.webhooks.add(hook.url)
    await sent(e)
    await e.deliver()
    await e.create("send-parcels", [{"name": "a"}])
    await e.penstock.events.writer.follow_log()
    e.clock.advance(timedelta(days=31).total_seconds())
    db = e.penstock.db
    assert await remove_old(db, days=40) == 0
    assert await remove_old(db, days=30) == 4
    async with db.read() as tx:
        assert (await tx.execute(select(deliveries.c.state))).scalars().all() == ["Pending"]
    assert await e.penstock.events.verify() == []
    assert await e.deliver() == 1
