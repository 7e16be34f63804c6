"""The log explains every instance: folded it is the present, purged it still is, and verify finds what is not so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from orders import opened, text
from sqlalchemy import delete, insert, select, update

from penstock import Penstock
from penstock.clock import ManualClock, micros
from penstock.db.connection import Connection
from penstock.errors import InvalidInput
from penstock.lifecycles import Lifecycles, Trigger
from penstock.lifecycles.purging import _purge_some
from penstock.lifecycles.tables import instances, logs, timers

START = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
async def penstock(database_url: str, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Penstock]:
    async with opened(database_url, tmp_path, clock) as made:
        await made.lifecycles.import_text(text())
        yield made


@pytest.fixture
def lifecycles(penstock: Penstock) -> Lifecycles:
    return penstock.lifecycles


async def busy(lifecycles: Lifecycles, clock: ManualClock) -> str:
    """An instance with an entry for each day."""
    guid = (await lifecycles.start("order", "A-1")).guid
    for event in ("pay", "hold", "remind", "release"):
        clock.advance(86_400)
        await lifecycles.trigger(guid, event, request_key=f"key of {event}")
    await lifecycles.suspend(guid)
    await lifecycles.change_data(guid, {"a": 1})
    await lifecycles.resume(guid)
    return guid


@pytest.mark.covers("LC-060", "LC-115", "I-27")
async def test_old_entries_are_purged_and_the_rest_still_explains_the_instance(
    lifecycles: Lifecycles, clock: ManualClock
):
    guid = await busy(lifecycles, clock)
    before = START + timedelta(days=3)
    assert await lifecycles.purge(before, dry_run=True) == 3
    assert await lifecycles.purge(before) == 3
    assert [entry.sequence for entry in (await lifecycles.log(guid)).items] == [4, 5, 6, 7, 8]
    assert await lifecycles.verify() == (1, [])
    assert await lifecycles.purge(before) == 0
    assert (await lifecycles.trigger(guid, "ship")).applied
    assert await lifecycles.purge(START + timedelta(days=10)) == 6
    assert await lifecycles.latest(guid) is None
    assert await lifecycles.verify() == (1, [])
    await lifecycles.reopen(guid)
    assert await lifecycles.verify() == (1, [])
    assert [entry.sequence for entry in (await lifecycles.log(guid)).items] == [10]
    with pytest.raises(InvalidInput, match="time zone"):
        await lifecycles.purge(datetime(2030, 1, 1))


@pytest.mark.covers("LC-062")
async def test_indexes_are_rebuilt_and_everything_is_found_as_before(lifecycles: Lifecycles, clock: ManualClock):
    guid = await busy(lifecycles, clock)
    await lifecycles.rebuild_indexes()
    assert [each.guid for each in (await lifecycles.instances(state="paid")).items] == [guid]
    assert await lifecycles.verify() == (1, [])


@pytest.mark.databases("postgresql")
async def test_indexes_are_rebuilt_though_somebody_reads_for_long(penstock: Penstock, clock: ManualClock):
    """PostgreSQL waits for all who began to read before: here for longer than our transactions wait for locks."""
    await busy(penstock.lifecycles, clock)
    async with penstock.db.connection() as reader:
        await reader.exec_driver_sql("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await reader.exec_driver_sql("SELECT COUNT(*) FROM penstock_lifecycle_instance")
        rebuilding = asyncio.create_task(penstock.lifecycles.rebuild_indexes())
        await asyncio.wait({rebuilding}, timeout=2)
        await reader.exec_driver_sql("ROLLBACK")
    await rebuilding


async def test_a_purge_in_slices_counts_every_entry(lifecycles: Lifecycles, clock: ManualClock):
    started = await lifecycles.start_many("order", (f"A-{n}" for n in range(1200)))
    clock.advance(10)
    await lifecycles.trigger_many([each.guid for each in started], "pay")
    assert await lifecycles.purge(START + timedelta(seconds=5)) == 1200
    assert await lifecycles.verify() == (1200, [])


@pytest.mark.databases("postgresql", "mariadb")
async def test_a_purge_of_less_that_comes_later_leaves_the_checkpoint_of_a_purge_of_more(
    penstock: Penstock, clock: ManualClock
):
    lifecycles = penstock.lifecycles
    guid = await busy(lifecycles, clock)
    ids = [(await lifecycles.get(guid)).id]
    async with penstock.db.write() as tx:
        assert await _purge_some(lifecycles._scope, micros(START + timedelta(days=3, hours=1)), ids, tx) == 4
        less = asyncio.create_task(lifecycles.purge(START + timedelta(days=1, hours=1)))
        await asyncio.wait({less}, timeout=0.3)  # it waits for us, or has not begun
    assert await less == 0
    assert await lifecycles.verify() == (1, [])


async def test_an_entry_whose_delivery_has_failed_is_kept_until_it_is_dealt_with(
    penstock: Penstock, clock: ManualClock
):
    lifecycles, deliveries = penstock.lifecycles, penstock.deliveries
    for name in ("billing", "audit"):
        await deliveries.register(name, attempts_max=1)
    guid = (await lifecycles.start("order")).guid
    await lifecycles.trigger(guid, "pay")
    for name in ("billing", "audit"):
        await deliveries.claim(name)
        assert (await deliveries.fail(f"{guid}:2:{name}", "no")).state == "Failed"
    await deliveries.unregister("audit")
    clock.advance(60)
    before = START + timedelta(seconds=30)
    assert await lifecycles.purge(before, dry_run=True) == 1
    assert await lifecycles.purge(before) == 1
    assert await lifecycles.purge(before, dry_run=True) == 0
    await deliveries.resend(f"{guid}:2:billing")
    await deliveries.acknowledge(f"{guid}:2:billing")
    assert await lifecycles.purge(before, dry_run=True) == 1
    assert await lifecycles.purge(before) == 1, "the other consumer is gone"
    assert await lifecycles.verify() == (1, [])


async def test_what_a_consumer_has_not_heard_of_is_not_purged(penstock: Penstock, clock: ManualClock):
    lifecycles = penstock.lifecycles
    await penstock.deliveries.register("billing")
    guid = (await lifecycles.start("order", "A-1")).guid
    for event in ("pay", "hold"):
        await lifecycles.trigger(guid, event)
    clock.advance(60)
    assert await lifecycles.purge(START + timedelta(seconds=30)) == 1
    (first,) = await penstock.deliveries.claim("billing")
    await penstock.deliveries.acknowledge(first.message_id)
    assert await lifecycles.purge(START + timedelta(seconds=30)) == 1
    (second,) = await penstock.deliveries.claim("billing")
    assert second.entry.event == "hold"
    assert await lifecycles.verify() == (1, [])


async def test_lists_are_read_page_by_page_without_gaps(lifecycles: Lifecycles):
    started = await lifecycles.start_many("order", (f"A-{n}" for n in range(25)))
    await lifecycles.trigger_many([each.guid for each in started], "pay")

    async def pages(ask: Any, **filters: Any) -> list[Any]:
        found, cursor = [], None
        while True:
            page = await ask(cursor=cursor, limit=7, **filters)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                return found

    assert [each.guid for each in await pages(lifecycles.instances, state="paid")] == [each.guid for each in started]
    entries = await pages(lifecycles.log, source="New", target="Paid")
    assert sorted(entry.guid for entry in entries) == sorted(each.guid for each in started)
    assert len(await pages(lifecycles.log, newest_first=True)) == 50
    for ask in (lifecycles.instances, lifecycles.log, lifecycles.deliveries.list):
        for wrong in ("x", "²", "-1", "9" * 20, "1.²", "1.2.3.4"):
            with pytest.raises(InvalidInput, match="is not a cursor of this list"):
                await ask(cursor=wrong)
    with pytest.raises(InvalidInput, match="at least 1 entry"):
        await lifecycles.instances(limit=0)


async def test_instances_that_are_long_in_their_state_are_found(lifecycles: Lifecycles, clock: ManualClock):
    old = (await lifecycles.start("order", "old")).guid
    clock.advance(3600)
    await lifecycles.change_data(old, {"touched": True})
    await lifecycles.start("order", "young")
    found = await lifecycles.instances(definition="order", in_state_for=timedelta(hours=1) - timedelta(seconds=1))
    assert [each.guid for each in found.items] == [old]


PLANTED = {
    "log_has_no_gaps": lambda i: delete(logs).where(logs.c.sequence == 3),
    "moves_are_joined": lambda i: update(logs).where(logs.c.sequence == 3).values(source=i.state + 1000),
    "moves_are_in_the_table": lambda i: update(logs).where(logs.c.sequence == 2).values(event=10**9),
    "flags_follow": lambda i: update(logs).where(logs.c.sequence == 3).values(instance_flags=9),
    "only_moves_move": lambda i: update(logs).where(logs.c.sequence == 6).values(target=i.state + 1),
    "log_explains_the_instance": lambda i: update(instances).values(flags=5),
    "log_has_a_start": lambda i: delete(logs),
    "timers_fit_states": lambda i: insert(timers).values(tenant="", instance=i.id, sequence=1, due_at=0, firings=0),
    "no_stray_records": lambda i: insert(timers).values(tenant="", instance=10**9, sequence=1, due_at=0, firings=0),
}


@pytest.mark.covers("I-27", "I-28")
@pytest.mark.parametrize("rule", list(PLANTED))
async def test_verify_finds_what_does_not_follow_from_the_log(penstock: Penstock, clock: ManualClock, rule: str):
    from types import SimpleNamespace

    lifecycles = penstock.lifecycles
    guid = await busy(lifecycles, clock)
    assert await lifecycles.verify() == (1, [])
    graph = await lifecycles.graph("order")
    found = await lifecycles.get(guid)
    now = SimpleNamespace(id=found.id, state=graph.state(found.state).id, version=found.version_id)
    async with penstock.db.write() as tx:
        await tx.execute(PLANTED[rule](now))
    _, wrong = await lifecycles.verify()
    assert rule in {difference.rule for difference in wrong}


HOSTILE = 'x\'; DROP TABLE penstock_lifecycle_log; -- "%s" :name {0} \\ `é`'


@pytest.mark.covers("LC-006")
async def test_text_of_users_is_only_ever_a_value_in_a_statement(penstock: Penstock):
    lifecycles = penstock.lifecycles.tenant(f"t {HOSTILE}"[:64])
    document = {
        "definition": {"name": HOSTILE, "description": HOSTILE},
        "states": [{"name": f"{HOSTILE} 1", "category": HOSTILE}, {"name": f"{HOSTILE} 2", "is_final": True}],
        "transitions": [{"from": f"{HOSTILE} 1", "event": HOSTILE, "to": f"{HOSTILE} 2"}],
    }
    await lifecycles.import_text(json.dumps(document))
    await lifecycles.deliveries.register(HOSTILE)
    order = await lifecycles.start(HOSTILE, HOSTILE, data={HOSTILE: HOSTILE})
    (moved,) = await lifecycles.trigger_many(
        [Trigger(order.guid, HOSTILE, HOSTILE, {HOSTILE: HOSTILE})], actor=HOSTILE, correlation=HOSTILE
    )
    assert moved.target == f"{HOSTILE} 2"
    (found,) = (await lifecycles.instances(definition=HOSTILE, state=moved.target, reference=HOSTILE)).items
    assert (found.last_event, found.data) == (HOSTILE, {HOSTILE: HOSTILE})
    (entry,) = (await lifecycles.log(target=moved.target, correlation=HOSTILE)).items
    assert (entry.request_key, entry.actor, entry.metadata) == (HOSTILE, HOSTILE, {HOSTILE: HOSTILE})
    (delivery,) = await lifecycles.deliveries.claim(HOSTILE)
    assert (await lifecycles.deliveries.acknowledge(delivery.message_id)).state == "Processed"
    assert await lifecycles.verify() == (1, [])


@pytest.mark.covers("LC-114")
async def test_a_restore_that_mixes_two_moments_is_found_out(penstock: Penstock):
    lifecycles, db = penstock.lifecycles, penstock.db
    order = await lifecycles.start("order", "A-1")
    async with db.read() as tx:
        backup = (await tx.execute(select(instances).where(instances.c.guid == order.guid))).one()._asdict()
    await lifecycles.trigger(order.guid, "pay")
    assert await lifecycles.verify() == (1, [])

    async def restore_one_table(tx: Connection) -> None:
        await tx.execute(update(instances).where(instances.c.guid == order.guid).values(**backup))

    await db.transaction(restore_one_table)
    _, found = await lifecycles.verify()
    assert [each.rule for each in found] == ["log_explains_the_instance"]
