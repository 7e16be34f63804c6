"""Timers of states: set by the move that enters, cancelled by the move that leaves, fired once each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from orders import opened, text
from sqlalchemy import func, select

from penstock import Penstock
from penstock.clock import ManualClock
from penstock.failpoints import armed
from penstock.lifecycles import GuardContext, Lifecycles, LogFlag
from penstock.lifecycles.tables import timers

STATES = [
    {"name": "Open", "is_initial": True, "timeout": "PT1H", "timeout_event": "expire"},
    {"name": "Asked", "timeout": "PT10M", "timeout_mode": "repeat", "timeout_event": "remind"},
    {"name": "Noted", "timeout": "PT10M", "timeout_event": "remind"},
    {"name": "Closed", "is_final": True},
]
LINES = [
    {"from": "Open", "event": "expire", "to": "Closed", "guard": "may_expire"},
    {"from": "Open", "event": "ask", "to": "Asked"},
    {"from": "Open", "event": "note", "to": "Noted"},
    {"from": "Asked", "event": "remind", "to": "Asked"},
    {"from": "Asked", "event": "answer", "to": "Closed"},
    {"from": "Noted", "event": "remind", "to": "Noted"},
]

CLAIMS = text(definition={"name": "Claim"}, states=STATES, transitions=LINES)

may_expire = {"answer": True}


@pytest.fixture
async def penstock(database_url: str, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Penstock]:
    may_expire["answer"] = True

    def guard(_: GuardContext) -> bool:
        return may_expire["answer"]

    async with opened(database_url, tmp_path, clock, {"may_expire": guard}) as made:
        await made.lifecycles.import_text(CLAIMS)
        yield made


@pytest.fixture
def lifecycles(penstock: Penstock) -> Lifecycles:
    return penstock.lifecycles


async def count_timers(penstock: Penstock) -> int:
    async with penstock.db.read() as tx:
        return int((await tx.execute(select(func.count()).select_from(timers))).scalar_one())


async def events(lifecycles: Lifecycles, guid: str) -> list[Any]:
    return [entry.event for entry in (await lifecycles.log(guid)).items][1:]


@pytest.mark.covers("I-32")
async def test_a_timer_fires_its_event_once_when_its_time_has_come(lifecycles: Lifecycles, clock: ManualClock):
    guid = (await lifecycles.start("claim")).guid
    clock.advance(3599)
    assert (await lifecycles.tick()).is_idle
    clock.advance(1)
    assert (await lifecycles.tick()).timers_fired == 1
    last = await lifecycles.latest(guid)
    assert last is not None
    assert (last.event, last.target, last.actor, last.cause, last.flags) == (
        "expire", "Closed", "timer", "PT1H in Open", LogFlag.SYSTEM,
    )  # fmt: skip
    assert (await lifecycles.tick()).is_idle


async def test_leaving_a_state_cancels_its_timer(penstock: Penstock, clock: ManualClock):
    lifecycles = penstock.lifecycles
    guid = (await lifecycles.start("claim")).guid
    await lifecycles.trigger(guid, "ask")
    await lifecycles.trigger(guid, "answer")
    assert await count_timers(penstock) == 0
    clock.advance(100_000)
    assert (await lifecycles.tick()).is_idle


async def test_a_repeating_timer_fires_again_and_again_and_one_that_fires_once_does_not(
    lifecycles: Lifecycles, clock: ManualClock
):
    asked, noted = [(await lifecycles.start("claim")).guid for _ in range(2)]
    await lifecycles.trigger(asked, "ask")
    await lifecycles.trigger(noted, "note")
    for _ in range(3):
        clock.advance(600)
        await lifecycles.tick()
    assert await events(lifecycles, asked) == ["ask", "remind", "remind", "remind"]
    assert await events(lifecycles, noted) == ["note", "remind"]
    assert (await lifecycles.verify())[1] == []


async def test_a_timer_that_is_refused_comes_again_later(lifecycles: Lifecycles, clock: ManualClock):
    guid = (await lifecycles.start("claim")).guid
    may_expire["answer"] = False
    clock.advance(3600)
    assert (await lifecycles.tick()).timers_refused == 1
    assert (await lifecycles.tick()).is_idle
    clock.advance(60)
    assert (await lifecycles.tick()).timers_refused == 1
    may_expire["answer"] = True
    clock.advance(60)
    assert (await lifecycles.tick()).is_idle, "it waits twice as long each time"
    clock.advance(60)
    assert (await lifecycles.tick()).timers_fired == 1
    assert (await lifecycles.get(guid)).state == "Closed"


async def test_a_process_without_its_guard_leaves_a_timer_to_those_that_have_it(
    lifecycles: Lifecycles, clock: ManualClock, database_url: str, tmp_path: Path
):
    await lifecycles.start("claim")
    clock.advance(1)
    asked = await lifecycles.start("claim")
    await lifecycles.trigger(asked.guid, "ask")
    clock.advance(3600)
    async with opened(database_url, tmp_path, clock, {}) as other:
        assert (await other.lifecycles.tick(limit=1)).timers_fired == 1, "the older one is in nobody's way"
    assert await events(lifecycles, asked.guid) == ["ask", "remind"]
    assert (await lifecycles.tick(limit=1)).timers_fired == 1


async def test_a_worker_fires_timers(lifecycles: Lifecycles, penstock: Penstock, clock: ManualClock):
    acme = lifecycles.tenant("acme")
    await acme.import_text(CLAIMS)
    guid = (await acme.start("claim")).guid
    clock.advance(3600)
    async with penstock.worker() as worker:
        await next(service for service in worker.services if service.name == "lifecycles").tick()
    assert (await acme.get(guid)).state == "Closed"


async def test_a_suspended_instance_keeps_its_deadline_and_meets_it_when_it_goes_on(
    lifecycles: Lifecycles, clock: ManualClock
):
    guid = (await lifecycles.start("claim")).guid
    await lifecycles.suspend(guid)
    clock.advance(7200)
    assert (await lifecycles.tick()).is_idle
    await lifecycles.resume(guid)
    assert (await lifecycles.tick()).timers_fired == 1


@pytest.mark.covers("I-32", "I-33")
async def test_monitors_at_once_fire_each_timer_once(
    database_url: str, tmp_path: Path, penstock: Penstock, clock: ManualClock
):
    started = await penstock.lifecycles.start_many("claim", (str(n) for n in range(30)))
    await penstock.lifecycles.trigger_many([each.guid for each in started], "ask")
    clock.advance(600)
    guards = {"may_expire": lambda context: True}
    async with opened(database_url, tmp_path, clock, guards) as second:
        ticks = await asyncio.gather(*(each.lifecycles.tick() for each in (penstock, second, penstock)))
    assert sum(tick.timers_fired for tick in ticks) == 30
    assert (await penstock.lifecycles.tick()).is_idle
    assert await penstock.lifecycles.verify() == (30, [])


@pytest.mark.covers("I-32")
@pytest.mark.parametrize("point", ["before", "after"])
async def test_a_timer_is_not_lost_and_not_repeated_when_its_process_dies(
    lifecycles: Lifecycles, clock: ManualClock, point: str
):
    guid = (await lifecycles.start("claim")).guid
    await lifecycles.trigger(guid, "note")
    clock.advance(600)

    class Crash(BaseException):
        pass

    def crash(name: str) -> None:
        if name == f"lifecycle_trigger:{point}":
            raise Crash

    with armed(crash), pytest.raises(Crash):
        await lifecycles.tick()
    await lifecycles.tick()
    clock.advance(6000)
    await lifecycles.tick()
    assert await events(lifecycles, guid) == ["note", "remind"]


async def test_forcing_a_state_sets_its_timer_and_cancels_the_other(penstock: Penstock, clock: ManualClock):
    lifecycles = penstock.lifecycles
    guid = (await lifecycles.start("claim")).guid
    await lifecycles.force(guid, "Asked", cause="skip it")
    assert await count_timers(penstock) == 1
    clock.advance(600)
    assert (await lifecycles.tick()).timers_fired == 1
    await lifecycles.force(guid, "Closed", cause="enough")
    assert await count_timers(penstock) == 0


async def test_a_timer_that_is_cancelled_after_it_was_found_due_does_not_fire_in_the_next_state(
    database_url: str, tmp_path: Path, clock: ManualClock
):
    states = [
        {"name": "New", "is_initial": True, "timeout": "PT1H", "timeout_event": "expire"},
        {"name": "Paid"},
        {"name": "Dropped", "is_final": True},
        {"name": "Refunded", "is_final": True},
    ]
    lines = [
        {"from": "New", "event": "expire", "to": "Dropped", "guard": "meanwhile"},
        {"from": "New", "event": "pay", "to": "Paid"},
        {"from": "Paid", "event": "expire", "to": "Refunded"},
    ]

    async def meanwhile(context: GuardContext) -> bool:
        if context.instance.guid == first.guid:
            await lifecycles.trigger(second.guid, "pay")
        return True

    async with opened(database_url, tmp_path, clock, {"meanwhile": meanwhile}) as penstock:
        lifecycles = penstock.lifecycles
        await lifecycles.import_text(text(states=states, transitions=lines))
        first = await lifecycles.start("order")
        clock.advance(1)
        second = await lifecycles.start("order")
        clock.advance(3600)
        assert (await lifecycles.tick()).timers_fired == 1
        found = [(await lifecycles.get(each.guid)).state for each in (first, second)]
    assert found == ["Dropped", "Paid"]


def newer(number: int, **states: dict[str, Any]) -> str:
    """A later version of the claims, with other values for some of its states."""
    changed = [each | states.get(str(each["name"]), {}) for each in STATES]
    return text(definition={"name": "Claim", "version": f"{number}.0.0"}, states=changed, transitions=LINES)


async def test_migrations_do_not_put_off_a_timer(lifecycles: Lifecycles, clock: ManualClock):
    guid = (await lifecycles.start("claim")).guid
    entered_at = (await lifecycles.get(guid)).entered_at
    for number in (2, 3):
        clock.advance(1200)
        await lifecycles.import_text(newer(number))
        await lifecycles.migrate("claim", source=(number - 1) * 10000)
    assert (await lifecycles.get(guid)).entered_at == entered_at
    assert [each.guid for each in (await lifecycles.instances(in_state_for=2399)).items] == [guid]
    clock.advance(1199)
    assert (await lifecycles.tick()).is_idle
    clock.advance(1)
    assert (await lifecycles.tick()).timers_fired == 1


async def test_a_migration_sets_the_timer_of_the_new_version_from_when_the_state_was_entered(
    lifecycles: Lifecycles, clock: ManualClock
):
    guid = (await lifecycles.start("claim")).guid
    clock.advance(1200)
    await lifecycles.import_text(newer(2, Open={"timeout": None, "timeout_event": None}))
    await lifecycles.migrate("claim", source=10000)
    clock.advance(7200)
    assert (await lifecycles.tick()).is_idle
    await lifecycles.import_text(newer(3, Open={"timeout": "PT3H"}))
    await lifecycles.migrate("claim", source=20000)
    clock.advance(2399)
    assert (await lifecycles.tick()).is_idle
    clock.advance(1)
    assert (await lifecycles.tick()).timers_fired == 1
    assert (await lifecycles.get(guid)).state == "Closed"


async def test_a_timer_that_has_fired_once_is_not_set_again_by_a_migration_unless_it_repeats_now(
    lifecycles: Lifecycles, clock: ManualClock
):
    guid = (await lifecycles.start("claim")).guid
    await lifecycles.trigger(guid, "note")
    clock.advance(600)
    await lifecycles.tick()
    await lifecycles.import_text(newer(2))
    await lifecycles.migrate("claim", source=10000)
    clock.advance(6000)
    assert (await lifecycles.tick()).is_idle
    await lifecycles.import_text(newer(3, Noted={"timeout_mode": "repeat"}))
    await lifecycles.migrate("claim", source=20000)
    assert await lifecycles.verify() == (1, [])
    assert (await lifecycles.tick()).timers_fired == 1
