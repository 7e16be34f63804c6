"""What the database says about one operation at the end, and what the journals say about it: the oracle's evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select

from penstock import Penstock
from penstock.operations.chunk.ledger import Ledger
from penstock.operations.model import Event, HistoryEntry, Operation, RowView
from penstock.operations.operation_ids import number_of
from penstock.operations.tables import chunks, operations, requests, row_records, signals

from .journal import Effect, Said
from .observer import Sightings

__all__ = ["Evidence", "StoredSignal", "gather"]


@dataclass(frozen=True)
class StoredSignal:
    """A signal as it lies in the database."""

    token: str
    key: str
    outcome: str
    payload: Any
    accepted_at: int
    row: int | None
    step: int | None
    generation: int | None
    consumed_at: int | None

    @property
    def is_consumed(self) -> bool:
        """Whether a row took it."""
        return self.row is not None


@dataclass(frozen=True)
class StoredRequest:
    """A retry or an edit as it lies in the database; `values` are the cells that an edit asks for."""

    row: int | None
    values: Sequence[Any]
    outcome: str | None


@dataclass(frozen=True)
class Wait:
    """How a row's wait for a signal ended, or that it goes on."""

    row: int
    key: str
    state: str
    generation: int
    since: int
    at: int


@dataclass(frozen=True)
class Evidence:
    """Everything known about one operation."""

    operation: Operation
    rows: Mapping[int, RowView]
    lost: Mapping[int, int]
    signals: Sequence[StoredSignal]
    waits: Sequence[Wait]
    requests: Sequence[StoredRequest]
    history: Sequence[HistoryEntry]
    events: Sequence[Event]
    effects: Sequence[Effect] = ()
    said: Sequence[Said] = ()
    sightings: Sightings = field(default_factory=Sightings)
    thawed: Mapping[str, Sequence[float]] = field(default_factory=dict)  # by process, when it was thawed
    quiet_since: float | None = None  # when interference ended, if nobody died and no sweep covered up
    patience: float = 1.0  # how many times slower than usual everything may be

    def acknowledged(self, *verbs: str) -> list[Said]:
        """The calls of these kinds that were answered with yes."""
        return [line for line in self.said if line.verb in verbs and line.is_acknowledged]

    def had(self, *names: str) -> bool:
        """Whether the operation went through one of these events."""
        return any(event.event in names for event in self.events)


async def gather(penstock: Penstock, operation: str, **journals: Any) -> Evidence:
    """Read what is stored of an operation."""
    found = penstock.operations
    rows = (await found.rows(operation, limit=1000, data=True)).items
    lines: list[HistoryEntry] = []
    cursor = None
    while True:
        page = await found.history(operation, limit=1000, cursor=cursor)
        lines += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    async with penstock.db.read() as tx:
        number = await number_of(tx, operation)
        steps = len(
            (await tx.execute(select(operations.c.plan).where(operations.c.number == number))).scalar_one()["steps"]
        )
        stored = await tx.execute(select(chunks).where(chunks.c.operation == number))
        lost: dict[int, int] = {}
        for chunk in stored:
            ledger = Ledger.decode(chunk.ledger, rows=chunk.row_count, steps=steps, base=0)
            lost |= {chunk.first_row + i: ledger.lost[i] for i in range(ledger.rows)}
        posted = await tx.execute(select(signals).where(signals.c.operation == number).order_by(signals.c.id))
        waits = await tx.execute(
            select(row_records).where(row_records.c.operation == number, row_records.c.signal_key.is_not(None))
        )
        asked = await tx.execute(select(requests).where(requests.c.operation == number).order_by(requests.c.id))
        return Evidence(
            await found.get(operation),
            {row.number: row for row in rows},
            lost,
            [
                StoredSignal(
                    s.token,
                    s.key,
                    s.outcome,
                    s.payload,
                    s.accepted_at,
                    s.consumed_row,
                    s.consumed_step,
                    s.consumed_generation,
                    s.consumed_at,
                )
                for s in posted
            ],
            [Wait(w.row, w.signal_key, w.state, w.generation, w.since or 0, w.at) for w in waits],
            [StoredRequest(r.row, _cells(r.data), r.outcome) for r in asked],
            lines,
            await found.events(operation, limit=1000),
            **journals,
        )


def _cells(data: Any) -> Sequence[Any]:
    """The values of an edited row: cells where the file has columns, else those of a record."""
    match data:
        case None:
            return ()
        case dict():
            return list(data.values())
    return list(data)
