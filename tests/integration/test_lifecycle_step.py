"""Rows of an operation move their entities' lifecycles in bulk, and a crash moves nothing twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from orders import GUARDS, text
from pydantic import BaseModel

from penstock import Context, Pipeline, failpoints, operation, step
from penstock.access.model import Principal
from penstock.errors import Unavailable
from penstock.lifecycles import LifecycleStep, LogEntry
from penstock.settings import Settings
from penstock.testing import Engine, batch_context, engine, json_lines


class Payment(BaseModel):
    order: str
    event: str = "pay"
    amount: int = 1


seen: list[str] = []


@operation("book-payments")
class BookPayments(Pipeline[Payment]):
    book = LifecycleStep(
        "order",
        lambda row: row.event,
        reference="order",
        starts=True,
        data=lambda row: {"stock": row.amount},
        metadata=lambda row: {"amount": row.amount},
    )

    @step
    async def check(self, row: Payment, ctx: Context) -> None:
        seen.append(ctx.output_of(BookPayments.book))


@operation("pay-known-orders")
class PayKnownOrders(Pipeline[Payment]):
    book = LifecycleStep("order", "pay", reference=lambda row: row.order.strip())


@operation("acme-payments")
class AcmePayments(Pipeline[Payment]):
    book = LifecycleStep("order", "pay", reference="order", tenant="acme", starts=True)


class Killed(Exception):
    pass


@pytest.fixture
async def e(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    kinds = [BookPayments, PayKnownOrders, AcmePayments]
    settings = Settings(chunk_rows=20)
    async with engine(kinds, url=database_url, tmp_path=tmp_path, settings=settings, guards=GUARDS) as made:
        await made.penstock.lifecycles.import_text(text())
        yield made


def payments(*orders: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"order": order, **fields} for order in orders]


async def moves(e: Engine) -> list[LogEntry]:
    log = await e.penstock.lifecycles.log(limit=1000)
    return [entry for entry in log.items if entry.kind == "moved"]


async def messages(e: Engine, id: str) -> dict[int, str]:
    return {error.row: error.message for error in (await e.operations.errors(id)).items}


async def test_each_row_moves_its_entity_and_the_guid_is_the_steps_output(e: Engine):
    done = await e.run(BookPayments, payments(*(f"A-{n}" for n in range(45)), amount=7))
    assert (done.status, done.successful_rows) == ("Completed", 45)
    entries = await moves(e)
    assert [entry.target for entry in entries] == ["Paid"] * 45
    (first,) = (entry for entry in entries if entry.request_key == f"{done.id}:1:book")
    assert (first.actor, first.correlation, first.metadata) == ("book-payments", done.id, {"amount": 7})
    assert sorted(seen[-45:]) == sorted(entry.guid for entry in entries)
    order = await e.penstock.lifecycles.get(first.guid)
    assert (order.reference, order.data) == ("A-0", {"stock": 7})


async def test_a_row_whose_move_is_refused_fails_alone_with_the_reason(e: Engine):
    rows = [*payments("A-1", "A-2", "A-1"), {"order": "A-3", "event": "vanish"}, *payments(" ", "x" * 201)]
    done = await e.run(BookPayments, rows)
    assert (done.status, done.successful_rows, done.failed_rows) == ("CompletedWithErrors", 2, 4)
    found = await messages(e, done.id)
    assert sorted(found) == [3, 4, 5, 6]
    assert "not allowed; it can take: ship, hold" in found[3]
    assert "unknown event" in found[4]
    assert found[5] == "it names no order: its reference is ' '"
    assert found[6].startswith("its reference has 201 characters where 200 fit")


async def test_rows_of_one_entity_move_it_in_their_order_and_guards_are_asked(e: Engine):
    events = ["pay", "hold", "release", "ship"]
    rows = [{"order": "A-1", "event": event} for event in events]
    rows += [{"order": "A-2", "event": "pay", "amount": 0}, {"order": "A-2", "event": "ship", "amount": 0}]
    done = await e.run(BookPayments, rows)
    assert [entry.event for entry in await moves(e) if entry.guid == (await moves(e))[0].guid] == events
    assert "nothing in stock" in (await messages(e, done.id))[6]


async def test_an_entity_that_is_not_there_is_started_only_on_request(e: Engine):
    await e.penstock.lifecycles.start("order", "A-1")
    done = await e.run(PayKnownOrders, payments(" A-1 ", "A-2"))
    assert (done.successful_rows, await messages(e, done.id)) == (1, {2: "no order has the reference 'A-2'"})
    assert await e.penstock.lifecycles.count() == 1


async def test_the_instance_of_an_older_version_is_moved_and_no_second_one_started(e: Engine):
    lifecycles = e.penstock.lifecycles
    old = await lifecycles.start("order", "A-1")
    await lifecycles.import_text(text(definition={"name": "Order", "version": "2.0.0"}))
    await e.run(BookPayments, payments("A-1", "A-2"))
    found = {order.reference: order for order in (await lifecycles.instances()).items}
    assert {key: (order.version, order.state) for key, order in found.items()} == {
        "A-1": (10000, "Paid"),
        "A-2": (20000, "Paid"),
    }
    assert found["A-1"].guid == old.guid
    both = await lifecycles.start("order", "A-1")
    assert await lifecycles.guids("order", ["A-1", "nobody"]) == {"A-1": both.guid}


async def test_a_tenants_step_sees_its_tenant_only(e: Engine):
    acme = e.penstock.lifecycles.tenant("acme")
    await acme.import_text(text())
    await e.run(AcmePayments, payments("A-1"))
    assert [order.state for order in (await acme.instances()).items] == ["Paid"]
    assert await e.penstock.lifecycles.count() == 0


async def test_an_operation_of_a_tenant_moves_the_entities_of_its_tenant(e: Engine):
    lifecycles = e.penstock.lifecycles
    acme = lifecycles.tenant("acme")
    await acme.import_text(text())
    order, nobodys = await acme.start("order", "A-1"), await lifecycles.start("order", "A-1")
    seen_by_acme = e.penstock.seen_by(Principal("ana", frozenset({"admin"}), tenant="acme"))
    made = await seen_by_acme.operations.create(
        PayKnownOrders, file=json_lines(payments("A-1")), file_name="rows.jsonl"
    )
    await e.work_until_idle()
    assert (await seen_by_acme.operations.get(made.id)).status == "Completed"
    assert (await acme.get(order.guid)).state == "Paid"
    assert (await lifecycles.get(nobodys.guid)).state == "New"


class Death:
    """From a point on, once, nothing more is noted of the chunk: its worker is gone."""

    def __init__(self, point: str) -> None:
        self.point, self.is_over, self.is_dead = point, False, False

    def __call__(self, point: str) -> None:
        if point == self.point and not self.is_over:
            self.is_dead = True
            raise Killed(point)
        if self.is_dead and point.partition(":")[0] in ("intent", "flush", "close"):
            raise Killed(point)


@pytest.mark.covers("I-29", "I-40")
@pytest.mark.parametrize(
    "point", ["lifecycle_start:after", "lifecycle_trigger_many:before", "lifecycle_trigger_many:after"]
)
async def test_a_worker_that_dies_around_a_move_moves_nothing_twice(e: Engine, point: str):
    made = await e.create(BookPayments, payments(*(f"A-{n}" for n in range(15))))
    death = Death(point)
    with failpoints.armed(death):
        with pytest.raises(Killed):
            await e.work_until_idle()
        death.is_dead, death.is_over = False, True
        assert len(await moves(e)) == (15 if point == "lifecycle_trigger_many:after" else 0)
        await e.crash()
        await e.work_until_idle()
    done = await e.operations.get(made.id)
    assert (done.status, done.successful_rows) == ("Completed", 15)
    assert len(await moves(e)) == 15
    assert await e.penstock.lifecycles.verify() == (15, [])


async def test_a_row_that_fails_is_retried_and_moves_once_the_way_is_free(e: Engine):
    lifecycles = e.penstock.lifecycles
    order = await lifecycles.start("order", "A-1")
    await lifecycles.suspend(order.guid)
    done = await e.run(PayKnownOrders, payments("A-1"))
    assert done.status == "CompletedWithErrors"
    await lifecycles.resume(order.guid)
    await e.operations.retry(done.id)
    await e.work_until_idle()
    assert (await e.operations.get(done.id)).status == "Completed"
    assert (await lifecycles.get(order.guid)).state == "Paid"


async def test_a_step_outside_an_engine_says_what_it_needs():
    with pytest.raises(Unavailable, match="outside an engine, which has Lifecycles"):
        await BookPayments.book.run([Payment(order="A-1")], batch_context(BookPayments, "book", size=1))
