"""Erasing what is personal: of a whole operation that has ended, or of some of its rows. Its counters and states stay.

Each transaction is short and can be repeated: what a crash leaves, the next call erases. The audit log says who erased
what; its entries about a whole operation lose their details, and the chain still holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Row, case, select, update

from penstock.access.audit import erase_details
from penstock.blobs.storage import Storage
from penstock.blobs.tables import rows as blobs
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import Conflict, NotFound
from penstock.idempotency.sql import SqlStore
from penstock.journal.tables import transitions
from penstock.operations.auditing import log_act, some_rows
from penstock.operations.chunk.ledger import Ledger
from penstock.operations.chunk.packing import pack_rows, unpack_rows
from penstock.operations.chunk.records import SIGNAL_KEY_MAX
from penstock.operations.model import Pruned
from penstock.operations.moves import touch
from penstock.operations.pruning.applying import remove_parts_now
from penstock.operations.pruning.removal import IS_OVER, require_over
from penstock.operations.states import OPERATION
from penstock.operations.tables import chunk_rows, chunks, history, operations, requests, row_records, signals
from penstock.outbox.retention import erase_texts
from penstock.pipeline import KeyTemplate
from penstock.pipeline.rows import RowType

__all__ = ["erase", "erase_rows"]

ERASED = "erased"
ROWS_EACH = 500  # named in one statement
CHUNKS_EACH = 10  # written anew in one transaction

# What of a step's record, and of what led to it, may name or describe somebody.
_RECORD = {
    "row_key": None,
    # A record keeps saying that it waited for a signal, and the signal that it was for this key.
    "signal_key": case((row_records.c.signal_key.is_not(None), ERASED)),
    "error_group": None,
    "message": None,
    "faults": None,
    "data": None,
    "output": None,
}
_HISTORY = {"message": None, "data": None}
_SIGNAL = {"key": ERASED, "payload": None, "message": None, "dedupe_id": None}


async def erase(db: Database, files: Storage, number: int, *, actor: str) -> Pruned:
    """Erase rows, outputs, histories, texts, metadata and file of an operation; `Conflict` while it is held or runs."""
    await db.transaction(partial(_begin, db, number, actor, None), "erase")
    done = await remove_parts_now(db, files, number, ("rows", "outputs", "history", "files"))
    await db.transaction(partial(_forget, db, number, actor), "erase")
    await _forget_answers(db, number)
    return done


async def erase_rows(
    db: Database, files: Storage, number: int, rows: Collection[int], *, row_type: RowType | None, actor: str
) -> Pruned:
    """Erase some rows: their data, outputs, histories and texts; and the file, because they stand in it too.

    A `row_type`, where it is known, tells which field has which alias.
    """
    named = sorted(set(rows))
    await db.transaction(partial(_begin, db, number, actor, named), "erase")
    async with db.read() as tx:
        query = select(chunks.c.first_row).where(chunks.c.operation == number).order_by(chunks.c.first_row)
        first_rows = (await tx.execute(query)).scalars().all()
    for part in _parts(named, first_rows):
        await db.transaction(partial(_forget_rows, number, part, row_type), "erase")
    done = await remove_parts_now(db, files, number, ("files",))
    await _forget_answers(db, number)
    done.rows = len(named)
    return done


def _parts(rows: Sequence[int], first_rows: Sequence[int]) -> Iterator[Mapping[int, list[int]]]:
    """The rows, by the first row of their chunk, in parts of not too many rows in not too many chunks."""
    part: dict[int, list[int]] = {}
    for many, row in enumerate(rows):
        first = first_rows[bisect_right(first_rows, row) - 1]
        if part and (many % ROWS_EACH == 0 or (first not in part and len(part) == CHUNKS_EACH)):
            yield part
            part = {}
        part.setdefault(first, []).append(row)
    yield part


async def _forget_answers(db: Database, number: int) -> None:
    """Erase what is kept for repeats of requests about this operation: its metadata, its file's name, signals."""

    async def id_of(tx: Connection) -> str:
        return str((await tx.execute(select(operations.c.id).where(operations.c.number == number))).scalar_one())

    await SqlStore(db).erase_about(await db.look(id_of))


async def _begin(db: Database, number: int, actor: str, rows: list[int] | None, tx: Connection) -> None:
    """Lock the operation, see that it is over and has these rows, and say in the audit log what happens now."""
    head = await touch(tx, number, IS_OVER, operations.c.hold.is_(None))
    row = (await tx.execute(select(operations).where(operations.c.number == number))).one()
    if head is None:
        require_over(row)
        raise Conflict(f"operation {row.id} was changed meanwhile; look at it again")
    wrong = [n for n in rows or () if not 1 <= n <= row.rows_read]
    if wrong:
        raise NotFound(f"operation {row.id} has {row.rows_read} rows; there is no row {wrong[0]}")
    await log_act(db, tx, number, "erase", actor=actor, details=None if rows is None else some_rows(rows))


async def _forget(db: Database, number: int, actor: str, tx: Connection) -> None:
    """Erase the texts of a whole operation, and the details of what the audit log says of it."""
    found = {"metadata": None, "encrypted_metadata": None, "file_name": ERASED, "error": None, "trouble": None}
    if await touch(tx, number, IS_OVER, **found) is None:
        raise Conflict("the operation was retried meanwhile")
    await _forget_texts(tx, number, ())
    of = (await tx.execute(select(operations).where(operations.c.number == number))).one()
    own = (blobs.c.id == of.blob, blobs.c.is_temporary == 1)
    await tx.execute(update(blobs).where(*own).values(file_name=ERASED, revision=blobs.c.revision + 1))
    is_mine = (transitions.c.machine == OPERATION.name, transitions.c.subject == of.id)
    await tx.execute(update(transitions).where(*is_mine).values(cause=None))
    await erase_texts(db, tx, [of.id, *([] if of.blob is None else [of.blob])], actor=actor)
    await erase_details(db, tx, tenant=of.tenant or "", subject=of.id, actor=actor)


async def _forget_rows(number: int, part: Mapping[int, list[int]], row_type: RowType | None, tx: Connection) -> None:
    """Erase rows, given by the first row of their chunk."""
    if await touch(tx, number, IS_OVER) is None:
        raise Conflict("the operation was retried meanwhile")
    named = [row for rows in part.values() for row in rows]
    mine = (row_records.c.operation == number, row_records.c.row.in_(named), row_records.c.data.is_not(None))
    raws = [*await tx.execute(select(row_records.c.row, row_records.c.data).where(*mine))]  # as they were edited
    for first_row, rows in part.items():
        raws += await _blank(tx, number, first_row, rows)
    of = (await tx.execute(select(operations).where(operations.c.number == number))).one()
    await _forget_unclaimed(tx, number, named, {key for row, raw in raws for key in _keys(of, row_type, row, raw)})
    await _forget_texts(tx, number, named)


def _keys(of: Row[Any], row_type: RowType | None, row: int, raw: Any) -> Iterator[str]:
    """The keys on which a row would have waited for signals, as far as its data tells; it may not have come so far."""
    record = dict(zip(of.columns or (), raw, strict=False)) if isinstance(raw, list) else raw

    def value_of(place: str) -> Any:
        source, _, name = place.partition(".")
        if not name:
            return {"row_number": row, "operation_id": of.id}[place]
        if source == "meta":
            return (of.metadata or {})[name]
        return record[name if row_type is None else row_type.key_among(record, name)]

    for step in of.plan["steps"]:
        if step["kind"] == "signal" and step["options"]["key"] is not None:
            with suppress(KeyError, TypeError, ValueError):  # it lacks a value, or is no record
                yield KeyTemplate.parse(step["options"]["key"]).render(value_of)


async def _forget_unclaimed(tx: Connection, number: int, rows: list[int], keys: set[str]) -> None:
    """Erase signals that no row has taken and that were sent to a key of these rows; `keys` are known to be theirs."""
    waited = select(row_records.c.signal_key).where(row_records.c.operation == number, row_records.c.row.in_(rows))
    taken = select(signals.c.key).where(
        signals.c.operation == number, signals.c.row.in_(rows) | signals.c.consumed_row.in_(rows)
    )
    found = {*(await tx.execute(waited)).scalars(), *(await tx.execute(taken)).scalars()} - {None, ERASED}
    named = sorted(found | {key for key in keys if len(key) <= SIGNAL_KEY_MAX and "\0" not in key})
    for first in range(0, len(named), ROWS_EACH):
        of_them = (signals.c.key.in_(named[first : first + ROWS_EACH]), signals.c.consumed_row.is_(None))
        await tx.execute(update(signals).where(signals.c.operation == number, *of_them).values(_SIGNAL))


async def _blank(tx: Connection, number: int, first_row: int, rows: list[int]) -> list[tuple[int, Any]]:
    """Write a chunk anew without the data and the outputs of these rows; returns the rows with the data they had."""
    mine = (chunks.c.operation == number, chunks.c.first_row == first_row)
    chunk = (await tx.execute(select(chunks.c.id, chunks.c.row_count, chunks.c.ledger).where(*mine))).one()
    places = {row - first_row for row in rows}
    if chunk.ledger:
        ledger = Ledger.decode(chunk.ledger, rows=chunk.row_count, steps=0, base=0)
        for track in ledger.tracks:
            track.outputs = {i: output for i, output in track.outputs.items() if i not in places}
        values = {"ledger": ledger.encode(), "version": chunks.c.version + 1}
        await tx.execute(update(chunks).where(chunks.c.id == chunk.id).values(values))
    data = (await tx.execute(select(chunk_rows.c.data).where(chunk_rows.c.chunk == chunk.id))).scalar()
    if data is None:
        return []
    raws = list(unpack_rows(data))
    had = [(row, raws[row - first_row]) for row in rows]
    for i in places:
        raws[i] = None
    await tx.execute(update(chunk_rows).where(chunk_rows.c.chunk == chunk.id).values(data=pack_rows(raws)))
    return had


async def _forget_texts(tx: Connection, number: int, rows: Collection[int]) -> None:
    """Erase what records, history, signals and requests say of these rows, or of all."""

    def mine(operation: ColumnElement[Any], *of_row: ColumnElement[Any]) -> list[ColumnElement[bool]]:
        if not rows:
            return [operation == number]
        named = of_row[0].in_(rows)
        return [operation == number, named if len(of_row) == 1 else named | of_row[1].in_(rows)]

    for table, values, conditions in (
        (row_records, _RECORD, mine(row_records.c.operation, row_records.c.row)),
        (history, _HISTORY, mine(history.c.operation, history.c.row)),
        (signals, _SIGNAL, mine(signals.c.operation, signals.c.row, signals.c.consumed_row)),
        (requests, {"data": None}, mine(requests.c.operation, requests.c.row)),
    ):
        await tx.execute(update(table).where(*conditions).values(values))
