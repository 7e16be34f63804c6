"""The numbers that tell how an installation is doing, read from its database when somebody asks.

Workers need not be asked, and there may be any number of them. Nothing is told by operation, row or tenant: there are a
few dozen numbers, however much is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import case, func, select

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.operations.states import OPERATION
from penstock.operations.tables import chunks, limit_shares, operations, row_records, signals, workers

__all__ = ["Measure", "measures"]

MICROS = 1_000_000
OUTCOMES = ("succeeded", "invalid", "failed", "timed_out", "cancelled", "waiting")


@dataclass(frozen=True, slots=True)
class Measure:
    """One number, or one for each value of a label."""

    name: str
    help: str
    values: Mapping[str, float]  # by the value of the label; '' where there is none
    label: str = field(default="")


async def measures(db: Database) -> list[Measure]:
    """Every number, of one moment."""
    async with db.read() as tx:
        now = int((await tx.execute(select(db.now()))).scalar_one())
        return [
            await _operations(tx),
            *await _rows(tx),
            *await _chunks(tx, now),
            *await _waits(tx),
            *await _workers(tx, now),
        ]


_UNDER_WAY = operations.c.state.not_in(sorted(OPERATION.settled))
_OF_THESE = chunks.c.operation.in_(select(operations.c.number).where(_UNDER_WAY))


async def _operations(tx: Connection) -> Measure:
    found = await tx.execute(select(operations.c.state, func.count()).group_by(operations.c.state))
    by_state = dict.fromkeys(OPERATION.states, 0.0) | {state: float(many) for state, many in found}
    return Measure("penstock_operations", "Operations, by state.", by_state, "state")


async def _rows(tx: Connection) -> tuple[Measure, ...]:
    counted = [func.coalesce(func.sum(chunks.c[name]), 0) for name in (*OUTCOMES, "row_count", "steps_done")]
    *outcomes, total, steps = map(float, (await tx.execute(select(*counted).where(_OF_THESE))).one())
    by_outcome = dict(zip(OUTCOMES, outcomes, strict=True))
    by_outcome["unprocessed"] = total - sum(outcomes)
    return (
        Measure("penstock_rows", "Rows of operations that are under way, by outcome.", by_outcome, "outcome"),
        Measure("penstock_steps_done", "Steps that rows of open chunks have behind them.", {"": steps}),
    )


async def _chunks(tx: Connection, now: int) -> tuple[Measure, ...]:
    is_owned, is_due = chunks.c.owner.is_not(None), chunks.c.due_at <= now
    kind = case((is_owned, "owned"), (is_due, "ready"), else_="waiting")
    query = (
        select(kind.label("kind"), func.count(), func.min(chunks.c.due_at))
        .join(operations, operations.c.number == chunks.c.operation)
        .where(chunks.c.is_open == 1, operations.c.state.in_(("Validating", "Running", "Retrying")))
        .group_by(kind)
    )
    found: dict[str, Any] = {row[0]: (row[1], row[2]) for row in await tx.execute(query)}
    by_kind = {name: float(found.get(name, (0, 0))[0]) for name in ("owned", "ready", "waiting")}
    oldest = max(0, now - found["ready"][1]) / MICROS if "ready" in found else 0.0
    age = "How long the chunk that has been ready longest waits for a worker."
    return (
        Measure("penstock_chunks", "Open chunks of operations that run, by what they wait for.", by_kind, "kind"),
        Measure("penstock_oldest_ready_chunk_seconds", age, {"": oldest}),
    )


async def _waits(tx: Connection) -> tuple[Measure, ...]:
    is_signal, is_waiting = row_records.c.signal_key.is_not(None), row_records.c.state == "WaitingForCompletion"
    put_off = (row_records.c.state == "Pending") & (row_records.c.errors > 0)
    under_way = row_records.c.operation.in_(select(operations.c.number).where(_UNDER_WAY))
    counted = [func.coalesce(func.sum(case((what, 1), else_=0)), 0) for what in (is_signal, ~is_signal)]
    signal, poll = map(float, (await tx.execute(select(*counted).where(is_waiting, under_way))).one())
    retries = (await tx.execute(select(func.count()).select_from(row_records).where(put_off, under_way))).scalar_one()
    of_these = signals.c.operation.in_(select(operations.c.number).where(_UNDER_WAY))
    unclaimed = select(func.count()).select_from(signals).where(signals.c.consumed_at.is_(None), of_these)
    return (
        Measure("penstock_waits", "Rows that wait, by what they wait for.", {"signal": signal, "poll": poll}, "kind"),
        Measure("penstock_retries_pending", "Rows that failed and will be tried again.", {"": float(retries)}),
        Measure(
            "penstock_signals_unclaimed",
            "Signals that no row has taken, of operations that are under way.",
            {"": float((await tx.execute(unclaimed)).scalar_one())},
        ),
    )


async def _workers(tx: Connection, now: int) -> tuple[Measure, ...]:
    alive = case((workers.c.lease_until >= now, "live"), else_="lapsed")
    found = await tx.execute(select(alive.label("lease"), func.count()).group_by(alive))
    leases = {"live": 0.0, "lapsed": 0.0} | {name: float(many) for name, many in found}
    limited = select(func.count(func.distinct(limit_shares.c.operation)))
    throttled = float((await tx.execute(limited)).scalar_one())
    help = "Operations whose workers share a limit of calls at once or calls a second."
    return (
        Measure("penstock_leases", "Workers by the state of their lease.", leases, "lease"),
        Measure("penstock_throttled_operations", help, {"": throttled}),
    )
