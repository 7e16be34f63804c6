"""Acknowledgements: every move reaches every consumer at least once, in order, or is given up with a record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from orders import opened, text
from sqlalchemy import delete, select

from penstock import Penstock
from penstock.clock import ManualClock
from penstock.db.connection import Connection
from penstock.errors import Conflict, IllegalMove, InvalidInput, NotFound
from penstock.failpoints import armed
from penstock.journal.tables import transitions
from penstock.lifecycles import Delivery, GuardContext, InstanceFlag, Lifecycles
from penstock.lifecycles.tables import consumers

START = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
async def penstock(database_url: str, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Penstock]:
    async with opened(database_url, tmp_path, clock) as made:
        await made.lifecycles.import_text(text())
        yield made


@pytest.fixture
def lifecycles(penstock: Penstock) -> Lifecycles:
    return penstock.lifecycles


async def moved(lifecycles: Lifecycles, *events: str) -> str:
    guid = (await lifecycles.start("order")).guid
    for event in events:
        assert (await lifecycles.trigger(guid, event)).applied
    return guid


@pytest.mark.covers("I-30")
async def test_each_consumer_hears_of_the_moves_of_an_instance_in_their_order(penstock: Penstock, clock: ManualClock):
    deliveries = penstock.deliveries
    for name in ("billing", "audit"):
        await deliveries.register(name)
    guid = await moved(penstock.lifecycles, "pay", "hold", "release")
    for expected in ("pay", "hold", "release"):
        (got,) = await deliveries.claim("billing")
        assert (got.entry.guid, got.entry.event, got.state, got.attempts) == (guid, expected, "Delivered", 1)
        assert await deliveries.claim("billing") == []
        await deliveries.acknowledge(got.message_id, claim=got.claim)
    assert len((await deliveries.list(consumer="audit", state="Pending")).items) == 3


@pytest.mark.covers("LC-050", "I-31")
async def test_a_claim_that_is_not_answered_goes_to_the_next_who_asks(penstock: Penstock, clock: ManualClock):
    deliveries = penstock.deliveries
    await deliveries.register("billing")
    await moved(penstock.lifecycles, "pay")
    (first,) = await deliveries.claim("billing", lease=30)
    clock.advance(29)
    assert await deliveries.claim("billing") == []
    assert (await deliveries.list(overdue=True)).items == []
    clock.advance(1)
    assert len((await deliveries.list(overdue=True)).items) == 1
    (second,) = await deliveries.claim("billing", lease=30)
    assert (second.message_id, second.attempts) == (first.message_id, 2)
    with pytest.raises(Conflict, match="was handed to somebody else since"):
        await deliveries.acknowledge(first.message_id, claim=first.claim)
    with pytest.raises(Conflict, match="was handed to somebody else since"):
        await deliveries.fail(first.message_id, "late", claim=first.claim)
    assert (await deliveries.acknowledge(second.message_id, claim=second.claim)).state == "Processed"
    with pytest.raises(IllegalMove, match="is Processed, and 'failed' is not possible"):
        await deliveries.fail(second.message_id, "no")
    assert (await penstock.lifecycles.metrics())["delivery_retries_total"] == {"billing": 1}


async def test_claims_at_once_share_what_is_due(
    database_url: str, tmp_path: Path, penstock: Penstock, clock: ManualClock
):
    await penstock.deliveries.register("billing")
    started = await penstock.lifecycles.start_many("order", (f"A-{n}" for n in range(40)))
    await penstock.lifecycles.trigger_many([each.guid for each in started], "pay")
    async with opened(database_url, tmp_path, clock) as second:
        both = (penstock.deliveries, second.deliveries)
        claims = await asyncio.gather(*(both[n % 2].claim("billing", limit=15) for n in range(6)))
    got = [each.message_id for some in claims for each in some]
    rest = await penstock.deliveries.claim("billing", limit=100)
    assert sorted([*got, *(each.message_id for each in rest)]) == sorted({*got, *(each.message_id for each in rest)})
    assert len(got) + len(rest) == 40


@pytest.mark.covers("I-30")
async def test_a_failed_attempt_is_repeated_later_and_later_until_the_budget_is_spent(
    penstock: Penstock, clock: ManualClock
):
    deliveries, lifecycles = penstock.deliveries, penstock.lifecycles
    await deliveries.register("billing", attempts_max=3, retry_after=10, retry_after_max=15, suspends=True)
    guid = await moved(lifecycles, "pay")
    waits = []
    for attempt in (1, 2):
        (got,) = await deliveries.claim("billing")
        failed = await deliveries.fail(got.message_id, "no paper", claim=got.claim)
        assert (failed.state, failed.attempts, failed.error) == ("Pending", attempt, "no paper")
        assert failed.due_at is not None
        waits.append((failed.due_at - failed.modified_at).total_seconds())
        assert await deliveries.claim("billing") == []
        clock.advance(20)
    assert 10 <= waits[0] <= 12
    assert 15 <= waits[1] <= 18
    (got,) = await deliveries.claim("billing")
    failed = await deliveries.fail(got.message_id, "still no paper")
    assert (failed.state, failed.attempts, failed.due_at) == ("Failed", 3, None)
    now = await lifecycles.get(guid)
    assert InstanceFlag.SUSPENDED in now.flags
    last = await lifecycles.latest(guid)
    assert last is not None
    assert (last.kind, last.actor, last.cause) == (
        "suspended", "consumer billing", f"delivery {failed.message_id} failed",
    )  # fmt: skip
    assert [each.message_id for each in (await deliveries.list(state="Failed")).items] == [failed.message_id]
    assert await deliveries.resend(failed=True) == 1
    (again,) = await deliveries.claim("billing")
    assert (again.attempts, again.attempts_max) == (4, 6)
    assert (await lifecycles.verify())[1] == []


async def test_the_monitor_gives_up_what_was_never_answered(penstock: Penstock, clock: ManualClock):
    deliveries, lifecycles = penstock.deliveries, penstock.lifecycles
    await deliveries.register("billing", attempts_max=1, suspends=True)
    guid = await moved(lifecycles, "pay")
    assert (await lifecycles.tick()).is_idle
    await deliveries.claim("billing", lease=5)
    clock.advance(5)
    assert (await lifecycles.tick()).given_up == 1
    (failed,) = (await deliveries.list()).items
    assert (failed.state, failed.error) == ("Failed", "it was not acknowledged, and its attempts are used up")
    assert InstanceFlag.SUSPENDED in (await lifecycles.get(guid)).flags
    assert (await lifecycles.tick()).is_idle


async def test_a_handler_in_this_process_is_called_until_it_succeeds(penstock: Penstock, clock: ManualClock):
    seen: list[str] = []

    async def handler(delivery: Delivery) -> None:
        seen.append(f"{delivery.entry.event} {delivery.attempts}")
        if delivery.attempts == 1 and delivery.entry.event == "pay":
            raise ConnectionError("the line broke")

    await penstock.deliveries.register("billing", handler=handler, retry_after=10)
    await penstock.deliveries.register("audit", handler=lambda delivery: seen.append("audit"))
    await moved(penstock.lifecycles, "pay", "hold")
    first = await penstock.lifecycles.tick()
    assert (first.processed, first.failed) == (1, 1)
    assert (await penstock.lifecycles.tick()).processed == 1
    clock.advance(60)
    for _ in range(2):
        await penstock.lifecycles.tick()
    assert seen == ["pay 1", "audit", "audit", "pay 2", "hold 1"]
    assert {each.state for each in (await penstock.deliveries.list()).items} == {"Processed"}


@pytest.mark.parametrize("which", ["one", "old"])
async def test_a_delivery_in_its_last_attempt_is_sent_again_on_request(penstock: Penstock, which: str):
    deliveries = penstock.deliveries
    await deliveries.register("billing", attempts_max=2)
    await moved(penstock.lifecycles, "pay")
    for _ in range(2):
        (got,) = await deliveries.claim("billing")
        assert await (deliveries.resend(got.message_id) if which == "one" else deliveries.resend(older_than=0)) == 1
        assert (await penstock.lifecycles.tick()).given_up == 0
    (again,) = await deliveries.claim("billing")
    assert (again.attempts, again.attempts_max, again.state) == (3, 4, "Delivered")


async def test_deliveries_of_some_age_are_made_due_again(penstock: Penstock, clock: ManualClock):
    deliveries = penstock.deliveries
    await deliveries.register("billing", retry_after=3600)
    await moved(penstock.lifecycles, "pay")
    (got,) = await deliveries.claim("billing")
    await deliveries.fail(got.message_id, "later")
    clock.advance(60)
    assert await deliveries.claim("billing") == []
    assert await deliveries.resend(older_than=61) == 0
    assert await deliveries.resend(older_than=60, consumer="billing") == 1
    assert [each.attempts for each in await deliveries.claim("billing")] == [2]
    with pytest.raises(InvalidInput, match="say which"):
        await deliveries.resend()
    with pytest.raises(NotFound):
        await deliveries.resend("nobody")


@pytest.mark.covers("LC-109")
async def test_yes_and_no_come_back_from_every_database(penstock: Penstock):
    for name, suspends in (("strict", True), ("lenient", False)):
        await penstock.deliveries.register(name, suspends=suspends)
    found = {each.name: each.suspends for each in await penstock.deliveries.consumers()}
    assert found == {"strict": True, "lenient": False}
    guid = (await penstock.lifecycles.start("order", data={"yes": True, "no": False, "one": 1})).guid
    stored = (await penstock.lifecycles.get(guid)).data
    assert [(name, type(value)) for name, value in stored.items()] == [("yes", bool), ("no", bool), ("one", int)]


async def test_a_consumer_that_leaves_has_its_deliveries_cancelled(penstock: Penstock):
    deliveries = penstock.deliveries
    await deliveries.register("billing", attempts_max=4)
    await moved(penstock.lifecycles, "pay", "hold")
    assert [(each.name, each.attempts_max) for each in await deliveries.consumers()] == [("billing", 4)]
    assert await deliveries.unregister("billing") == 2
    assert {each.state for each in (await deliveries.list()).items} == {"Cancelled"}
    assert await deliveries.consumers() == []
    with pytest.raises(NotFound, match="no consumer is called 'billing'"):
        await deliveries.unregister("billing")
    await moved(penstock.lifecycles, "pay")
    assert len((await deliveries.list()).items) == 2


async def test_wrong_questions_about_deliveries_are_named(penstock: Penstock):
    deliveries = penstock.deliveries
    with pytest.raises(InvalidInput, match="they are: Pending, Delivered"):
        await deliveries.list(state="Lost")
    with pytest.raises(InvalidInput, match="an outcome is 'processed' or 'delivered'; found 'done'"):
        await deliveries.acknowledge("x", "done")
    with pytest.raises(InvalidInput, match="attempts_max is 0"):
        await deliveries.register("billing", attempts_max=0)
    with pytest.raises(InvalidInput, match="printable text"):
        await deliveries.register("")
    with pytest.raises(InvalidInput, match="not negative"):
        await deliveries.register("billing", retry_after=-1)
    with pytest.raises(InvalidInput, match="longer than nothing"):
        await deliveries.claim("billing", lease=0)


async def test_a_move_is_acknowledged_together_with_the_callers_own_work(penstock: Penstock):
    await penstock.deliveries.register("billing")
    await moved(penstock.lifecycles, "pay")
    (got,) = await penstock.deliveries.claim("billing")

    async def given_up() -> None:
        async with penstock.transaction() as tx:
            await penstock.deliveries.acknowledge(got.message_id, tx=tx)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await given_up()
    assert (await penstock.deliveries.list()).items[0].state == "Delivered"
    async with penstock.transaction() as tx:
        await penstock.deliveries.acknowledge(got.message_id, tx=tx)
    assert (await penstock.deliveries.list()).items[0].state == "Processed"


@pytest.mark.covers("I-29", "I-30")
async def test_every_move_of_a_delivery_is_in_the_one_transition_log_with_its_actor_and_cause(
    penstock: Penstock, clock: ManualClock
):
    deliveries = penstock.deliveries
    await deliveries.register("billing", attempts_max=2)
    await moved(penstock.lifecycles, "pay")
    (first,) = await deliveries.claim("billing")
    await deliveries.fail(first.message_id, "no line", claim=first.claim)
    clock.advance(61)
    (again,) = await deliveries.claim("billing", lease=30)
    clock.advance(31)
    assert (await penstock.lifecycles.tick()).given_up == 1
    assert await deliveries.resend(failed=True) == 1
    (third,) = await deliveries.claim("billing", lease=30)
    clock.advance(31)
    (taken_over,) = await deliveries.claim("billing")  # the same state again is no move
    await deliveries.acknowledge(third.message_id, claim=taken_over.claim)
    await deliveries.acknowledge(third.message_id)
    history = await deliveries.history(first.message_id)
    assert [(move.source, move.event, move.target) for move in history] == [
        ("Pending", "delivered", "Delivered"),
        ("Delivered", "failed", "Failed"),
        ("Failed", "resent", "Pending"),
        ("Pending", "delivered", "Delivered"),
        ("Delivered", "failed", "Failed"),
        ("Failed", "resent", "Pending"),
        ("Pending", "delivered", "Delivered"),
        ("Delivered", "processed", "Processed"),
    ]
    assert [move.actor for move in history[:4]] == ["billing", "billing", "retry", "billing"]
    assert [move.cause for move in history[1:3]] == ["no line", None]
    assert (again.attempts, history[0].at) == (2, START)
    with pytest.raises(NotFound):
        await deliveries.history("nobody")


async def test_what_is_left_to_a_consumer_that_is_unregistered_is_cancelled_in_the_log(penstock: Penstock):
    deliveries = penstock.deliveries
    name = "a consumer with a rather long name " * 2  # its message ids are longer than a subject of the log
    await deliveries.register(name)
    await moved(penstock.lifecycles, "pay", "hold")
    (claimed,) = await deliveries.claim(name)
    assert await deliveries.unregister(name) == 2
    moves = await deliveries.history(claimed.message_id)
    assert [(move.event, move.target) for move in moves] == [("delivered", "Delivered"), ("cancelled", "Cancelled")]
    assert moves[1].cause == "its consumer was unregistered"


async def test_a_delivery_that_was_left_beside_the_end_of_its_consumer_is_cancelled(penstock: Penstock):
    deliveries = penstock.deliveries
    for name in ("billing", "audit"):
        await deliveries.register(name)
    guid = await moved(penstock.lifecycles, "pay")

    async def left_behind(tx: Connection) -> None:
        await tx.execute(delete(consumers).where(consumers.c.name == "billing"))

    await penstock.db.transaction(left_behind)
    assert (await penstock.lifecycles.tick()).given_up == 1
    found = {each.consumer: each.state for each in (await deliveries.list(instance=guid)).items}
    assert found == {"audit": "Pending", "billing": "Cancelled"}
    assert [move.event for move in await deliveries.history(f"{guid}:2:billing")] == ["cancelled"]
    assert (await penstock.lifecycles.tick()).is_idle


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
async def test_a_consumer_that_is_registered_while_guards_are_asked_hears_of_the_move(
    database_url: str, tmp_path: Path, clock: ManualClock, many: bool
):
    async def registers(_: GuardContext) -> bool:
        await penstock.deliveries.register("billing")
        return True

    async with opened(database_url, tmp_path, clock, {"in_stock": registers}) as penstock:
        lifecycles = penstock.lifecycles
        await lifecycles.import_text(text())
        guid = await moved(lifecycles, "pay")
        if many:
            (outcome,) = await lifecycles.trigger_many([guid], "ship")
        else:
            outcome = await lifecycles.trigger(guid, "ship", retries=1)
        assert outcome.applied
        assert [each.entry.event for each in (await penstock.deliveries.list()).items] == ["ship"]


async def test_a_definition_is_not_deleted_while_it_has_consumers_of_its_own(penstock: Penstock):
    await penstock.deliveries.register("billing", definition="order")
    await penstock.deliveries.register("audit")
    with pytest.raises(Conflict, match=r"'Order' has the consumer\(s\) billing; unregister them first"):
        await penstock.lifecycles.delete_definition("order")
    await penstock.deliveries.unregister("billing")
    await penstock.lifecycles.delete_definition("order")


async def test_the_moves_of_a_delivery_go_with_it(penstock: Penstock, clock: ManualClock):
    lifecycles, deliveries = penstock.lifecycles, penstock.deliveries
    await deliveries.register("billing")
    kept, purged = await moved(lifecycles, "pay"), await moved(lifecycles, "pay")
    for claimed in await deliveries.claim("billing"):
        await deliveries.acknowledge(claimed.message_id)
    await lifecycles.delete(purged, force=True)
    assert {subject.partition(":")[0] for subject in await _logged(penstock)} == {kept}
    clock.advance(86_400)
    assert await lifecycles.purge(START + timedelta(days=1)) == 2
    assert await _logged(penstock) == []


async def _logged(penstock: Penstock) -> list[str]:
    async with penstock.db.read() as tx:
        query = select(transitions.c.subject).where(transitions.c.machine == "delivery")
        return list((await tx.execute(query)).scalars())


async def test_a_crash_leaves_a_delivery_and_its_log_as_they_were(penstock: Penstock):
    deliveries = penstock.deliveries
    await deliveries.register("billing")
    await moved(penstock.lifecycles, "pay")

    def crash(point: str) -> None:
        if point in ("lifecycle_claim:before", "lifecycle_acknowledge:before"):
            raise OSError("cut off")

    with armed(crash), pytest.raises(OSError, match="cut off"):
        await deliveries.claim("billing")
    (listed,) = (await deliveries.list()).items
    assert (listed.state, await deliveries.history(listed.message_id)) == ("Pending", [])
    await deliveries.claim("billing")
    with armed(crash), pytest.raises(OSError, match="cut off"):
        await deliveries.acknowledge(listed.message_id)
    assert [move.event for move in await deliveries.history(listed.message_id)] == ["delivered"]
