"""`verify`: re-derive every counter and state from the records and compare.

Each operation is read in one snapshot, a few chunks at a time, so that work may go on meanwhile and the memory it
takes does not depend on the operation's size. The facts are read here; the rules are in `invariants`
and `message_invariants`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Row, Select, bindparam, exists, select

from penstock.blobs.storage import Storage, digest_of
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import DatabaseDamaged, FileUnreadable, NotFound
from penstock.journal import queries as journal
from penstock.operations.chunk.ledger import Ledger
from penstock.operations.chunk.packing import unpack_rows
from penstock.operations.chunk.records import StepRecord
from penstock.operations.counts import Counts
from penstock.operations.model import Difference, VerifyReport
from penstock.operations.moves import Head
from penstock.operations.operation_ids import number_of
from penstock.operations.proof.invariants import (
    CHUNK_RULES,
    OPERATION_RULES,
    ChunkFacts,
    Finding,
    OperationFacts,
    ledger_matches_chunk,
)
from penstock.operations.proof.message_invariants import (
    MESSAGE_RULES,
    OVERLOOKED_US,
    MessageReader,
    Messages,
    generations_have_history,
)
from penstock.operations.states import OPERATION
from penstock.operations.tables import REMOVED, chunk_rows, chunks, operations, requests, row_records, signals, workers
from penstock.operations.views.row_views import records_by_chunk
from penstock.operations.visibility import EVERYTHING, Visible

__all__ = ["verify"]

BATCH_CHUNKS = 16
OPERATIONS_READ = 100
LOG_READ = 1000
LISTED_MAX = 10_000

_UNREADABLE = (DatabaseDamaged, msgspec.DecodeError, ValueError, TypeError, KeyError, IndexError, AttributeError)


@dataclass(slots=True)
class _Report:
    """The differences so far; beyond a limit they are only counted."""

    operations: int = 0
    chunks: int = 0
    rows: int = 0
    listed: list[Difference] = field(default_factory=list)
    unlisted: int = 0

    def add(self, rule: str, message: str, operation: str | None, chunk: int | None, row: int | None) -> None:
        if len(self.listed) == LISTED_MAX:
            self.unlisted += 1
            return
        places = (("operation", operation), ("chunk", chunk), ("row", row))
        where = ", ".join(f"{name} {value}" for name, value in places if value is not None)
        self.listed.append(Difference(rule, f"{where}: {message}", operation, chunk, row))

    def add_all(self, rule: str, found: Iterable[Finding], operation: str, chunk: int | None = None) -> bool:
        """Add what one rule found; returns whether it found anything."""
        some = False
        for row, message in found:
            self.add(rule, message, operation, chunk, row)
            some = True
        return some


async def verify(
    db: Database, files: Storage, operation: str | None, *, deep: bool, visible: Visible = EVERYTHING
) -> VerifyReport:
    """Check one operation or all of them; `deep` also reads every stored file and compares its digest."""
    report = _Report()
    if operation is not None:
        async with db.read() as tx:
            number = await number_of(tx, operation, visible)
        await _verify_operation(db, files, number, report, deep=deep)
    else:
        async for number in _numbers(db, visible):
            await _verify_operation(db, files, number, report, deep=deep)
        if visible is EVERYTHING:
            await _verify_belonging(db, report)
    return VerifyReport(report.operations, report.chunks, report.rows, tuple(report.listed), report.unlisted)


async def _numbers(db: Database, visible: Visible) -> AsyncIterator[int]:
    last = 0
    while True:
        async with db.read() as tx:
            query = select(operations.c.number).where(operations.c.number > last, *visible.conditions)
            found = (await tx.execute(query.order_by(operations.c.number).limit(OPERATIONS_READ))).scalars().all()
        for number in found:
            yield number
        if len(found) < OPERATIONS_READ:
            return
        last = found[-1]


async def _verify_operation(db: Database, files: Storage, number: int, report: _Report, *, deep: bool) -> None:
    async def read(tx: Connection) -> tuple[Row[Any], OperationFacts, list[Finding]] | None:
        row = (await tx.execute(_OPERATION, {"of": number})).one_or_none()
        if row is None or row.stop_outcome == REMOVED:
            return None  # it was removed, or its removal has begun
        facts = await _operation_facts(tx, row)
        reader = MessageReader(db, tx, number, now=await _swept_now(db, tx, row))
        async for batch in _chunk_batches(tx, number):
            records = await records_by_chunk(tx, [chunk.id for chunk in batch])
            messages = await reader.read(batch)
            await tx.compute(partial(_check_batch, row, batch, records, messages=messages, facts=facts, report=report))
        return row, facts, [*await _stray_records(tx, number), *await reader.strays()]

    found = await db.look(read)
    if found is None:
        return
    row, facts, strays = found
    report.operations += 1
    report.add_all("no_stray_records", strays, row.id)
    for rule in OPERATION_RULES:
        report.add_all(rule.__name__, rule(facts), row.id)
    if "files" in (row.pruned or {}):
        return
    report.add_all("file_is_stored", await asyncio.to_thread(_file_findings, files, row, deep), row.id)


async def _operation_facts(tx: Connection, row: Row[Any]) -> OperationFacts:
    head = Head(**{name: getattr(row, name) for name in Head.__dataclass_fields__})
    log: list[journal.Entry] = []
    while True:
        since = log[-1].sequence if log else 0
        more = await journal.entries(tx, machine=OPERATION.name, subject=row.id, since=since, limit=LOG_READ)
        log += more
        if len(more) < LOG_READ:
            break
    return OperationFacts(head, row.total_rows, row.finished_at, log, suspect_row=row.suspect_row)


async def _swept_now(db: Database, tx: Connection, operation: Row[Any]) -> int | None:
    """The time, if the operation runs and a worker has been there long enough to sweep; else None."""
    now: int = (await tx.execute(select(db.now()))).scalar_one()
    sweepers = exists().where(workers.c.lease_until >= now, workers.c.started_at <= now - OVERLOOKED_US)
    is_swept = operation.state == "Running" and (await tx.execute(select(sweepers))).scalar()
    return now if is_swept else None


# --- chunks


async def _chunk_batches(tx: Connection, number: int) -> AsyncIterator[Sequence[Row[Any]]]:
    last = -1
    while found := (await tx.execute(_CHUNKS_BEHIND, {"of": number, "last": last})).all():
        yield found
        if len(found) < BATCH_CHUNKS:
            return
        last = found[-1].first_row


def _check_batch(
    operation: Row[Any],
    batch: Sequence[Row[Any]],
    records: dict[int, dict[tuple[int, int], StepRecord]],
    *,
    messages: Messages,
    facts: OperationFacts,
    report: _Report,
) -> None:
    kinds = [step["kind"] for step in operation.plan["steps"]]
    for chunk in batch:
        report.chunks += 1
        report.rows += chunk.row_count
        if chunk.first_row != facts.last_row + 1:
            gap = f"it begins with row {chunk.first_row}, expected {facts.last_row + 1}"
            report.add("rows_are_contiguous", gap, operation.id, chunk.id, None)
        facts.add_chunk(chunk)
        try:
            known = _chunk_facts(operation, chunk, records.get(chunk.id, {}))
        except _Unreadable as error:
            report.add("chunk_is_readable", str(error), operation.id, chunk.id, None)
            continue
        if report.add_all("ledger_matches_chunk", ledger_matches_chunk(known), operation.id, chunk.id):
            continue
        facts.add_ledger(known.ledger)
        for rule in CHUNK_RULES:
            report.add_all(rule.__name__, rule(known), operation.id, chunk.id)
        told = messages.of(chunk, known, kinds)
        for message_rule in MESSAGE_RULES:
            if not (message_rule is generations_have_history and "history" in (operation.pruned or {})):
                report.add_all(message_rule.__name__, message_rule(told), operation.id, chunk.id)


class _Unreadable(Exception):
    """A block that cannot be decoded."""


def _chunk_facts(operation: Row[Any], chunk: Row[Any], records: dict[tuple[int, int], StepRecord]) -> ChunkFacts:
    steps, pruned = len(operation.plan["steps"]), operation.pruned or {}
    try:
        ledger = Ledger.decode(chunk.ledger, rows=chunk.row_count, steps=steps, base=0)
    except _UNREADABLE as error:
        raise _Unreadable(f"its ledger cannot be read: {error}") from error
    try:
        stored = None if chunk.data is None else len(list(unpack_rows(chunk.data)))
    except _UNREADABLE as error:
        raise _Unreadable(f"its row data cannot be read: {error}") from error
    return ChunkFacts(
        id=chunk.id,
        operation=chunk.operation,
        first_row=chunk.first_row,
        row_count=chunk.row_count,
        is_raw=bool(chunk.is_raw),
        is_open=bool(chunk.is_open),
        owner=chunk.owner,
        counts=Counts(**{name: getattr(chunk, name) for name in Counts.__dataclass_fields__}),
        ledger=ledger,
        records=records,
        steps=steps,
        tracks_rows=operation.plan["options"]["track_row_data"] and "rows" not in pruned,
        are_rows_pruned=pruned.get("rows") is False,
        stored_rows=stored,
    )


# --- what belongs to nothing, and files


async def _stray_records(tx: Connection, number: int) -> list[Finding]:
    """Records of this operation in chunks that are not its own."""
    return [
        (row, f"has a record of step {step} in chunk {chunk}, which is not the operation's")
        for chunk, row, step in (await tx.send(_STRAY_RECORDS, {"of": number})).rows
    ]


async def _verify_belonging(db: Database, report: _Report) -> None:
    """Records whose operation or chunk does not exist."""

    async def read(tx: Connection) -> list[str]:
        return [
            sentence.format(*found) for sentence, query in _ORPHANS.items() for found in (await tx.send(query)).rows
        ]

    for found in await db.look(read):
        report.add("nothing_is_orphaned", f"{found}, which does not exist", None, None, None)


def _orphans(name: ColumnElement[Any], belongs: ColumnElement[Any], to: ColumnElement[Any]) -> Select[Any]:
    return select(name, belongs).where(~exists().where(to == belongs)).limit(LISTED_MAX)


_ORPHANS = {
    "chunk {} belongs to operation number {}": _orphans(chunks.c.id, chunks.c.operation, operations.c.number),
    "the rows of chunk {} belong to chunk {}": _orphans(chunk_rows.c.chunk, chunk_rows.c.chunk, chunks.c.id),
    "a record of row {} belongs to operation number {}": _orphans(
        row_records.c.row, row_records.c.operation, operations.c.number
    ),
    "signal {} belongs to operation number {}": _orphans(signals.c.id, signals.c.operation, operations.c.number),
    "request {} belongs to operation number {}": _orphans(requests.c.id, requests.c.operation, operations.c.number),
}
_OPERATION = select(operations).where(operations.c.number == bindparam("of"))
_CHUNKS_BEHIND = (
    select(chunks, chunk_rows.c.data)
    .outerjoin(chunk_rows, chunk_rows.c.chunk == chunks.c.id)
    .where(chunks.c.operation == bindparam("of"), chunks.c.first_row > bindparam("last"))
    .order_by(chunks.c.first_row)
    .limit(BATCH_CHUNKS)
)
_STRAY_RECORDS = (
    select(row_records.c.chunk, row_records.c.row, row_records.c.step)
    .where(row_records.c.operation == bindparam("of"))
    .where(~exists().where(chunks.c.id == row_records.c.chunk, chunks.c.operation == bindparam("of")))
    .limit(LISTED_MAX)
)


def _file_findings(files: Storage, operation: Row[Any], deep: bool) -> list[Finding]:
    """The operation's file is there with its recorded size, and its digest where that is wanted."""
    try:
        opened = files.peek(operation.file_key)
        with opened.stream as stream:
            digest, size = digest_of(stream) if deep else "", opened.size_bytes
    except (NotFound, FileUnreadable) as error:
        return [(None, str(error))]
    found: list[Finding] = []
    if size != operation.file_bytes:
        found.append((None, f"its file has {size} bytes, expected {operation.file_bytes}"))
    if deep and digest != operation.file_sha256:
        found.append((None, f"its file has the digest {digest}, expected {operation.file_sha256}"))
    return found
