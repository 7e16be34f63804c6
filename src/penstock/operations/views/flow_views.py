"""Where the rows of an operation are, how many ended when, and who works on what: counted from records and ledgers.

Records tell where rows failed or wait, counters how many there are. Only chunks with rows that have neither are opened,
and of very many only some, evenly spread.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, case, func, select

from penstock.clock import from_micros
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import InvalidInput
from penstock.operations.chunk.ledger import CANCELLED, PENDING, RUNNING, Ledger
from penstock.operations.model import Flow, LimitUse, StepFlow, Throughput, WorkerLoad, Workload
from penstock.operations.tables import chunks, limit_shares, operations, row_records, workers
from penstock.operations.views.chunk_view import RowLayout

__all__ = ["flow", "throughput", "workload"]

CHUNKS_OPENED_MAX = 32
SPAN_US_MIN = 250_000  # rows end in bursts: shorter spans would show these, and not how fast it goes
_RECORDED = {"Failed": "failed", "TimedOut": "timed_out", "WaitingForCompletion": "waiting"}
_IN_LEDGER = {PENDING: "pending", RUNNING: "running", CANCELLED: "cancelled"}
AnyRow = Row[*tuple[Any, ...]]
Places = Counter[tuple[int, str]]  # rows by step and the name of what they are there


async def flow(tx: Connection, layout: RowLayout) -> Flow:
    """How many rows stand at each step, and how many are through."""
    at = await _recorded(tx, layout)
    settled = chunks.c.succeeded + chunks.c.invalid + chunks.c.failed + chunks.c.timed_out + chunks.c.waiting
    mine = chunks.c.operation == layout.number
    total = int((await tx.execute(select(func.coalesce(func.sum(chunks.c.row_count), 0)).where(mine))).scalar_one())
    columns = (chunks.c.id, chunks.c.row_count, (chunks.c.row_count - settled).label("others"))
    rest = select(*columns, chunks.c.is_raw, chunks.c.steps_done, chunks.c.is_open).where(
        mine, chunks.c.row_count > settled
    )
    found = (await tx.execute(rest.order_by(chunks.c.first_row))).all()
    # Of a chunk that nothing has begun in, all rows are at the same step.
    for chunk in found:
        if _is_untouched(chunk):
            at[-1 if chunk.is_raw else 0, "pending"] += chunk.others
    begun = [chunk for chunk in found if not _is_untouched(chunk)]
    opened = _spread(begun)
    if opened:
        ledgers = await _ledgers(tx, layout, opened)
        counted = await asyncio.to_thread(_in_ledgers, ledgers)
        share = sum(chunk.others for chunk in begun) / max(1, sum(counted.values()))
        at.update({place: round(rows * share) for place, rows in counted.items()})
    return Flow(total, tuple(_steps(layout, at, total)), is_exact=len(opened) == len(begun))


def _is_untouched(chunk: AnyRow) -> bool:
    return bool(chunk.is_raw) or (bool(chunk.is_open) and not chunk.steps_done)


def _steps(layout: RowLayout, at: Places, total: int) -> Iterable[StepFlow]:
    left = total
    for index in range(-1, layout.steps):
        here = {name: at[index, name] for name in (*_RECORDED.values(), *_IN_LEDGER.values())}
        left -= sum(here.values())
        yield StepFlow(index, layout.step_name(index), max(0, left), **here)


async def _recorded(tx: Connection, layout: RowLayout) -> Places:
    query = (
        select(row_records.c.step, row_records.c.state, func.count().label("rows"))
        .where(row_records.c.operation == layout.number, row_records.c.state.in_(tuple(_RECORDED)))
        .group_by(row_records.c.step, row_records.c.state)
    )
    return Counter({(line.step, _RECORDED[line.state]): int(line.rows) for line in await tx.execute(query)})


def _in_ledgers(ledgers: Sequence[Ledger]) -> Places:
    found: Places = Counter()
    for ledger in ledgers:
        states = Counter((min(ledger.at[i], ledger.steps) - 1, ledger.state(i)) for i in range(ledger.rows))
        for (step, state), rows in states.items():
            if state in _IN_LEDGER:
                found[step, _IN_LEDGER[state]] += rows
    return found


async def throughput(tx: Connection, layout: RowLayout, *, spans: int) -> Throughput | None:
    """How many rows ended in each of several parts of the time from the first to the last, no shorter than a moment."""
    if spans < 1:
        raise InvalidInput(f"spans is {spans}; time has at least 1 part")
    has_ended = chunks.c.succeeded + chunks.c.failed + chunks.c.timed_out > 0
    query = select(chunks.c.id).where(chunks.c.operation == layout.number, has_ended).order_by(chunks.c.first_row)
    found = (await tx.execute(query)).all()
    opened = _spread(found)
    ledgers = await _ledgers(tx, layout, opened)
    ends = await asyncio.to_thread(lambda: sorted(end for ledger in ledgers for end in _ends(ledger)))
    if not ends:
        return None
    first, width = ends[0], ends[-1] - ends[0] + 1
    spans = min(spans, max(1, width // SPAN_US_MIN))
    share = len(found) / len(opened)
    counts = Counter((end - first) * spans // width for end in ends)
    rows = tuple(round(counts[span] * share) for span in range(spans))
    return Throughput(from_micros(first), width / spans / 1e6, rows, is_sample=len(opened) < len(found))


def _ends(ledger: Ledger) -> Iterable[int]:
    """When the last attempt of each row with a verdict ended; validation is not timed."""
    for i in range(ledger.rows):
        if ledger.is_terminal(i):
            for track in ledger.tracks[min(ledger.at[i], ledger.steps) : 0 : -1]:
                if track.took[i]:
                    yield ledger.base + track.began[i] + track.took[i]
                    break


async def _ledgers(tx: Connection, layout: RowLayout, found: Sequence[AnyRow]) -> list[Ledger]:
    ids = [chunk.id for chunk in found]
    stored = (await tx.execute(select(chunks.c.row_count, chunks.c.ledger).where(chunks.c.id.in_(ids)))).all()
    return await asyncio.to_thread(
        lambda: [Ledger.decode(each.ledger, rows=each.row_count, steps=layout.steps, base=0) for each in stored]
    )


def _spread(found: Sequence[AnyRow]) -> Sequence[AnyRow]:
    """As many of them as may be opened, evenly spread."""
    limit = min(len(found), CHUNKS_OPENED_MAX)
    return [found[place * len(found) // limit] for place in range(limit)]


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
