"""Who works on what: workers and their leases, chunks that are open, limits that are shared."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, case, func, select

from penstock.clock import from_micros
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.operations.model import LimitUse, WorkerLoad, Workload
from penstock.operations.tables import chunks, limit_shares, operations, workers

__all__ = ["workload"]

SHARES_MAX = 200


async def workload(db: Database, tx: Connection) -> Workload:
    """The workload as of now, on the database's clock."""
    now = int((await tx.execute(select(db.now()))).scalar_one())
    is_at_rest = chunks.c.operation.in_(select(operations.c.number).where(operations.c.state == "Paused"))
    is_due = chunks.c.owner.is_(None) & (chunks.c.due_at <= now) & ~is_at_rest
    sums = (
        await tx.execute(
            select(
                func.count(),
                func.count(chunks.c.owner),
                func.sum(case((is_due, 1), else_=0)),
                func.min(case((is_due, chunks.c.due_at), else_=None)),
            ).where(chunks.c.is_open == 1)
        )
    ).one()
    total, owned, due, oldest = (int(value or 0) for value in sums)
    held = await _by_owner(tx, chunks.c.owner, chunks.c.is_open == 1)
    readers = await _by_owner(tx, operations.c.owner)
    known = await tx.execute(select(workers).order_by(workers.c.started_at))
    return Workload(
        chunks_open=total,
        chunks_owned=owned,
        chunks_due=due,
        chunks_parked=total - owned - due,
        oldest_due_s=(now - oldest) / 1e6 if oldest else None,
        workers=tuple(_load(row, now, held, readers) for row in known),
        limits=await _limits(tx),
    )


async def _by_owner(tx: Connection, owner: ColumnElement[str], *fits: ColumnElement[bool]) -> dict[str, int]:
    """How many records each owner has."""
    query = select(owner, func.count()).where(owner.is_not(None), *fits).group_by(owner)
    return {name: int(number) for name, number in await tx.execute(query)}


def _load(row: Any, now: int, held: dict[str, int], readers: dict[str, int]) -> WorkerLoad:
    return WorkerLoad(
        id=row.id,
        host=row.host.partition("/")[0],
        process=row.process,
        started_at=from_micros(row.started_at),
        lease_s=(row.lease_until - now) / 1e6,
        chunks=held.get(row.id, 0),
        files=readers.get(row.id, 0),
    )


async def _limits(tx: Connection) -> tuple[LimitUse, ...]:
    query = (
        select(operations.c.id, operations.c.name, limit_shares.c.worker, limit_shares.c.units)
        .join(operations, operations.c.number == limit_shares.c.operation)
        .order_by(limit_shares.c.operation.desc(), limit_shares.c.joined_at)
        .limit(SHARES_MAX)
    )
    return tuple(LimitUse(row.id, row.name, row.worker, row.units) for row in await tx.execute(query))
