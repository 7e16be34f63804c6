"""Moves of lifecycle instances: Penstock one by one and in bulk, and a transaction written by hand.

By hand means what an application would write without Penstock: SQLAlchemy Core on the same tables, the row read with a
lock, its state changed, a log entry added, committed. It knows the ids and looks nothing else up. With the library
`transitions` it is the same, except that the library decides where a move leads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from transitions import Machine as TransitionsMachine

from bench.ours import opened
from penstock import Machine, Penstock
from penstock.db.address import parse
from penstock.lifecycles.model import Started
from penstock.lifecycles.rules.graph import Graph
from penstock.lifecycles.tables import instances, logs

__all__ = ["by_hand", "in_bulk", "one_by_one", "started_in_bulk", "with_transitions"]

ORDER = Machine.of("order", ("New", "pay", "Paid"), ("Paid", "ship", "Shipped"), settled=["Shipped"])

Moving = Callable[[Penstock, Sequence[Started]], Awaitable[None]]


def one_by_one(*, file: str, rows: int, url: str, folder: str) -> dict[str, Any]:
    """`trigger`, one after the other."""

    async def move(penstock: Penstock, started: Sequence[Started]) -> None:
        for each in started:
            await penstock.lifecycles.trigger(each.guid, "pay")

    return _measured(rows, url, folder, move)


def in_bulk(*, file: str, rows: int, url: str, folder: str) -> dict[str, Any]:
    """`trigger_many`, all in one call."""

    async def move(penstock: Penstock, started: Sequence[Started]) -> None:
        await penstock.lifecycles.trigger_many([each.guid for each in started], "pay")

    return _measured(rows, url, folder, move)


def started_in_bulk(*, file: str, rows: int, url: str, folder: str) -> dict[str, Any]:
    """`start_many`, all in one call."""

    async def go() -> float:
        async with opened(url, folder) as penstock:
            await penstock.lifecycles.import_machine(ORDER)
            began = time.perf_counter()
            await penstock.lifecycles.start_many("order", map(str, range(rows)))
            return time.perf_counter() - began

    return {"seconds": asyncio.run(go()), "rows": rows}


def by_hand(*, file: str, rows: int, url: str, folder: str) -> dict[str, Any]:
    """The same writes, one transaction after the other, without Penstock."""
    engine = create_async_engine(parse(url)[0])
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine.sync_engine, "connect", _make_durable)

    async def move(penstock: Penstock, started: Sequence[Started]) -> None:
        graph = await penstock.lifecycles.graph("order")
        pay = graph.transition("New", "pay")
        assert pay is not None
        for each in started:
            await _pay(engine, each.guid, graph.version.id, pay.source.id, pay.event.id, pay.target.id)
        await engine.dispose()

    return _measured(rows, url, folder, move)


async def _pay(engine: AsyncEngine, guid: str, version: int, source: int, event: int, target: int) -> None:  # noqa: PLR0917
    async with engine.begin() as connection:
        wanted = sa.select(instances).where(instances.c.tenant == "", instances.c.guid == guid).with_for_update()
        row = (await connection.execute(wanted)).one()
        if row.state != source:
            raise AssertionError("somebody was faster")
        now = time.time_ns() // 1000
        await connection.execute(
            sa.update(instances)
            .where(instances.c.id == row.id)
            .values(state=target, last_event=event, revision=row.revision + 1, modified_at=now, entered_at=now)
        )
        await connection.execute(
            sa.insert(logs).values(
                tenant="", instance=row.id, sequence=row.revision + 1, kind="moved", version=version, source=source,
                event=event, target=target, instance_flags=row.flags, flags=0, actor="bench", at=now,
            )
        )  # fmt: skip


class Order:
    """The model of the `transitions` library: it has a state, and the library gives it `pay()`."""

    state: str


def with_transitions(*, file: str, rows: int, url: str, folder: str) -> dict[str, Any]:
    """The `transitions` library decides, and the application keeps its state and a log, in the same tables."""
    engine = create_async_engine(parse(url)[0])
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine.sync_engine, "connect", _make_durable)
    lines = [{"trigger": line.event, "source": line.source, "dest": line.target} for line in ORDER.transitions]
    library = TransitionsMachine(model=None, states=list(ORDER.states), transitions=lines, initial=ORDER.initial)

    async def move(penstock: Penstock, started: Sequence[Started]) -> None:
        graph = await penstock.lifecycles.graph("order")
        for each in started:
            await _pay_by_library(engine, library, graph, each.guid)
        await engine.dispose()

    return _measured(rows, url, folder, move)


async def _pay_by_library(engine: AsyncEngine, library: TransitionsMachine, graph: Graph, guid: str) -> None:
    async with engine.begin() as connection:
        wanted = sa.select(instances).where(instances.c.tenant == "", instances.c.guid == guid).with_for_update()
        row = (await connection.execute(wanted)).one()
        order: Any = Order()
        library.add_model(order, initial=graph.by_id[row.state].name)
        order.pay()  # raises where it is not allowed
        library.remove_model(order)
        now, target = time.time_ns() // 1000, graph.state(order.state).id
        pay = graph.event("pay").id
        await connection.execute(
            sa.update(instances)
            .where(instances.c.id == row.id)
            .values(state=target, last_event=pay, revision=row.revision + 1, modified_at=now, entered_at=now)
        )
        await connection.execute(
            sa.insert(logs).values(
                tenant="", instance=row.id, sequence=row.revision + 1, kind="moved", version=row.version,
                source=row.state, event=pay, target=target, instance_flags=row.flags, flags=0, actor="bench", at=now,
            )
        )  # fmt: skip


def _measured(rows: int, url: str, folder: str, move: Moving) -> dict[str, Any]:
    async def go() -> float:
        async with opened(url, folder) as penstock:
            await penstock.lifecycles.import_machine(ORDER)
            started = await penstock.lifecycles.start_many("order", map(str, range(rows)))
            began = time.perf_counter()
            await move(penstock, started)
            seconds = time.perf_counter() - began
            looked, wrong = await penstock.lifecycles.verify()
            assert (looked, wrong) == (rows, []), f"{looked:,} instances, {len(wrong)} differences"
            assert (await penstock.lifecycles.counts())[0].state == "Paid"
            return seconds

    return {"seconds": asyncio.run(go()), "rows": rows}


def _make_durable(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    for setting in ("journal_mode=WAL", "synchronous=FULL"):
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()
