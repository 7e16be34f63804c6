"""Applying policies: which operations have something that is due, and removing it, all at once or bit by bit.

A part of an operation that stays is noted on its record before anything of it goes, and once more when all of it is
gone; so what a crash has left is found and removed later. Each slice of it is found by what is still there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import Any

from sqlalchemy import ColumnElement, Delete, Select, Update, bindparam, delete, exists, func, or_, select, update

from penstock.blobs.storage import Storage
from penstock.blobs.tables import rows as blobs
from penstock.clock import Clock
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import Conflict, Unavailable
from penstock.operations.chunk.store import ledgers_of
from penstock.operations.model import Pruned
from penstock.operations.moves import touch
from penstock.operations.operation_ids import IS_THERE
from penstock.operations.pruning.removal import DUE, IS_BEGUN, IS_OVER, Due, Removal, require_over
from penstock.operations.tables import REMOVED, chunk_rows, chunks, history, operations, row_records
from penstock.retention import Keep, due_parts

__all__ = [
    "LOOK_AGAIN_S",
    "Policy",
    "Retention",
    "delete_operation",
    "due_operations",
    "prune",
    "remove_parts_now",
    "would_prune",
]

LOOKED_AT = 1000  # operations in one read
FILES_EACH = 500  # in one statement
CHUNKS_EACH = 10  # in one transaction, of an operation of which a part is removed
RECORDS_EACH = 1000  # the same for other records
OPERATIONS_EACH = 100  # emptied before their files are looked at and their rows go
PASS_OPERATIONS = 10  # by a worker at a time, for it has more to do
PASS_TRANSACTIONS = 10
LOOK_AGAIN_S = 3600.0
TRIES_MAX = 20

log = logging.getLogger("penstock.retention")


@dataclass(frozen=True, slots=True)
class Policy:
    """How long what is kept: by the deployment, for operations without a word of their own; or all the same for all.

    `all_before` names an instant: whatever has ended before it goes as a whole, and nothing else.
    """

    keep: Keep = field(default_factory=dict)
    all_before: int | None = None

    def due(self, row: Any, now_us: int) -> tuple[str, ...]:
        """What of an operation is due."""
        if row.stop_outcome == REMOVED:
            return ("operations",)
        if self.all_before is not None:
            return ("operations",) if row.finished_at < self.all_before else ()
        keep = {**self.keep, **(row.keep or {})}
        return due_parts(keep, ended_us=row.finished_at, now_us=now_us, pruned=row.pruned or {})

    def latest_end(self, now_us: int) -> int:
        """Of operations without a policy of their own, only those that ended before this can be due."""
        shortest = min((kept for kept in self.keep.values() if kept is not None), default=None)
        return self.all_before or (0 if shortest is None else now_us - round(shortest * 1e6))


async def due_operations(db: Database, policy: Policy, now_us: int, *, after: int = 0) -> AsyncIterator[Due]:
    """The operations of which something is due, by number; those that are held are left out."""
    may_be_due = or_(
        operations.c.finished_at < policy.latest_end(now_us),
        operations.c.keep.is_not(None),
        operations.c.pruned.is_not(None),  # begun under an earlier policy, or by an erasure that was cut off
    )
    is_due = or_(IS_OVER & operations.c.hold.is_(None) & may_be_due, IS_BEGUN)
    query = select(*DUE, operations.c.keep).where(is_due).order_by(operations.c.number)
    while True:
        async with db.read() as tx:
            found = (await tx.execute(query.where(operations.c.number > after).limit(LOOKED_AT))).all()
        for row in found:
            if parts := policy.due(row, now_us):
                yield Due.of(row, parts)
        if len(found) < LOOKED_AT:
            return
        after = found[-1].number


async def prune(db: Database, files: Storage, policy: Policy, now_us: int, *, actor: str | None) -> Pruned:
    """Remove all that is due, the oldest operations first. A retry or a hold that comes before its removal wins."""
    removal = Removal(db, files, actor)
    found: list[Due] = []
    async for due in due_operations(db, policy, now_us):
        found.append(due)
        if len(found) == OPERATIONS_EACH:
            await _remove(removal, found, repeat(None))
            found = []
    await _remove(removal, found, repeat(None))
    await asyncio.to_thread(files.remove_stale)
    return removal.done


async def _remove(removal: Removal, found: Sequence[Due], budget: Iterator[None]) -> int:
    """Remove what is due while the budget of transactions lasts; the number of the last one dealt with, or 0."""
    last = 0
    for due in found:
        is_whole = due.parts == ("operations",)
        if not await (removal.empty(due, budget) if is_whole else _remove_parts(removal, due, budget)):
            break
        last = due.number
    await removal.end()
    return last


async def _remove_parts(removal: Removal, due: Due, budget: Iterator[None]) -> bool:
    """Remove parts of an operation; False when the budget is spent before that."""
    db, pruned, revision = removal.db, dict(due.pruned or {}), due.revision
    for part in due.parts:
        if part not in pruned:
            pruned = pruned | {part: False}
            if not await db.transaction(partial(_begin_part, due, pruned, revision), "prune_part"):
                return True  # it was retried, held or changed meanwhile; the next look sees it as it is
            revision += 1
        if part == "files":
            if not await removal.remove_file(due):
                continue
        elif not await _remove_part(db, due.number, part, budget):
            return False
        if not await db.transaction(partial(_end_part, due.number, part), "prune_part"):
            return True  # as above
        pruned, revision = pruned | {part: True}, revision + 2
        removal.done.parts[part] += 1
    return True


async def _begin_part(due: Due, pruned: Mapping[str, bool], revision: int, tx: Connection) -> bool:
    """Note that a part goes; False when the operation was retried, held or changed since it was looked at."""
    as_seen = (operations.c.revision == revision, operations.c.finished_at == due.finished_at)
    return await touch(tx, due.number, IS_OVER, *as_seen, operations.c.hold.is_(None), pruned=pruned) is not None


async def _end_part(number: int, part: str, tx: Connection) -> bool:
    """Note that all of a part is gone; False when a retry has taken back the note that it goes."""
    await touch(tx, number)  # whoever ends another part does so after us
    pruned = (await tx.execute(_PRUNED, {"number": number})).scalar() or {}
    return part in pruned and await touch(tx, number, pruned={**pruned, part: True}) is not None


async def _remove_part(db: Database, number: int, part: str, budget: Iterator[None]) -> bool:
    """Remove a part that has been begun, slice by slice; False when the budget is spent before that."""
    for remove_slice in _slices(number, part):
        for _ in budget:
            if not await db.transaction(partial(_while_noted, number, part, remove_slice), "prune_part"):
                break
        else:
            return False
    return True


async def _while_noted(
    number: int, part: str, remove_slice: Callable[[Connection], Awaitable[bool]], tx: Connection
) -> bool:
    """Remove a slice of a part; False when nothing of it is left, or a retry has taken back the note that it goes."""
    pruned = (await tx.execute(_PRUNED.with_for_update(read=True), {"number": number})).scalar() or {}
    return part in pruned and await remove_slice(tx)


_PRUNED = select(operations.c.pruned).where(operations.c.number == bindparam("number"))


def _slices(number: int, part: str) -> Iterator[partial[Coroutine[Any, Any, bool]]]:
    """What removes a little of a part each time, as long as anything of it is left."""
    mine, of_history, of_chunk = chunks.c.operation == number, history.c.operation == number, row_records.c.chunk
    records = select(history.c.id).limit(RECORDS_EACH)
    if part == "history":
        yield partial(_change, records.where(of_history), delete(history), history.c.id)
        return
    if part == "outputs":
        yield partial(_drop_outputs, number)
        yield partial(
            _change, _with_records(mine, row_records.c.output), update(row_records).values(output=None), of_chunk
        )
        return
    stored = select(chunk_rows.c.chunk).join(chunks, chunks.c.id == chunk_rows.c.chunk).where(mine)
    yield partial(_change, stored.limit(CHUNKS_EACH), delete(chunk_rows), chunk_rows.c.chunk)
    # What was typed in for rows is row data as well.
    yield partial(_change, _with_records(mine, row_records.c.data), update(row_records).values(data=None), of_chunk)
    kept = records.where(of_history, history.c.data.is_not(None))
    yield partial(_change, kept, update(history).values(data=None), history.c.id)


def _with_records(mine: ColumnElement[bool], column: ColumnElement[Any]) -> Select[*tuple[int]]:
    """Some chunks in which a record has something in this column."""
    has_some = exists().where(row_records.c.chunk == chunks.c.id, column.is_not(None))
    return select(chunks.c.id).where(mine, has_some).limit(CHUNKS_EACH)


async def _change(query: Select[*tuple[int]], change: Delete | Update, key: ColumnElement[int], tx: Connection) -> bool:
    """Change the records with the keys that are found; False when there are none."""
    found = (await tx.execute(query)).scalars().all()
    await tx.execute(change.where(key.in_(found)))
    return bool(found)


async def _drop_outputs(number: int, tx: Connection) -> bool:
    """Ledgers that have outputs are written anew without them; False when none has any."""
    written = 0
    async with aclosing(ledgers_of(tx, number, steps=0, each=CHUNKS_EACH)) as ledgers:
        async for chunk, ledger in ledgers:
            if ledger.drop_outputs():
                values = {"ledger": ledger.encode(), "version": chunks.c.version + 1}
                await tx.execute(update(chunks).where(chunks.c.id == chunk).values(values))
                written += 1
            if written == CHUNKS_EACH:
                break
    return written > 0


async def would_prune(db: Database, policy: Policy, now_us: int) -> Pruned:
    """What `prune` would remove now."""
    found, uses, sizes = Pruned(), Counter[str](), {}
    async for due in due_operations(db, policy, now_us):
        file = due.blob or due.file_sha256
        if due.parts == ("operations",):
            found.operations += 1
            found.rows += due.rows_read
        else:
            found.parts.update(due.parts)
        if due.parts == ("operations",) or "files" in due.parts:
            uses[file] += 1
            sizes[file] = due.file_bytes
    async with db.read() as tx:
        names = list(uses)
        for first in range(0, len(names), FILES_EACH):
            counted = await _used(tx, names[first : first + FILES_EACH])
            found.file_bytes += sum(sizes[file] for file, count in counted if uses[file] == count)
    return found


async def _used(tx: Connection, files: Sequence[str]) -> list[tuple[str, int]]:
    """How many operations use each of these files; those that were uploaded to stay are left out."""
    file = func.coalesce(operations.c.blob, operations.c.file_sha256)
    query = (
        select(file, func.count())
        .outerjoin(blobs, blobs.c.id == operations.c.blob)
        .where(file.in_(files), operations.c.blob.is_(None) | (blobs.c.is_temporary == 1))
        .group_by(file)
    )
    return [(name, count) for name, count in await tx.execute(query)]


async def _ended(db: Database, number: int, *parts: str) -> Due:
    """An operation that has ended, and of which these parts are due; `Conflict` while it is held or not over."""
    async with db.read() as tx:
        columns = (*DUE, operations.c.state, operations.c.hold)
        row = (await tx.execute(select(*columns).where(operations.c.number == number, IS_THERE))).one()
    require_over(row)
    return Due.of(row, parts)


async def remove_parts_now(db: Database, files: Storage, number: int, parts: tuple[str, ...]) -> Pruned:
    """Remove these parts of an operation that has ended, whatever any policy says.

    When others change it meanwhile, what is left is removed again. `files_left` says that its file cannot be removed
    now: retention does so later.
    """
    removal = Removal(db, files)
    for _ in range(TRIES_MAX):
        due = await _ended(db, number)
        left = tuple(part for part in parts if not (due.pruned or {}).get(part))
        if not left or (left == ("files",) and removal.done.files_left):
            return removal.done
        await _remove(removal, [replace(due, parts=left)], repeat(None))
    raise Conflict(f"operation {due.id} was changed by others again and again; try again")


async def delete_operation(db: Database, files: Storage, number: int, *, actor: str) -> Pruned:
    """Remove one operation that has ended, whatever any policy says; `Conflict` while it is held or not over."""
    due, removal = await _ended(db, number, "operations"), Removal(db, files, actor)
    await _remove(removal, [due], repeat(None))
    if not removal.done.operations:
        raise Conflict(f"operation {due.id} was changed meanwhile; look at it again")
    return removal.done


class Retention:
    """Policies as a worker applies them: small passes, one after the other; then it looks again after a while."""

    def __init__(self, db: Database, files: Storage, clock: Clock, *, keep: Keep) -> None:
        self._db, self._files, self._clock, self._policy = db, files, clock, Policy(keep)
        self._last, self._next_look = 0, 0.0

    async def tick(self) -> None:
        """Remove some of what is due; when nothing more is, look again after a while."""
        if self._clock.monotonic() < self._next_look:
            return
        found: list[Due] = []
        async for due in due_operations(self._db, self._policy, self._clock.now_us(), after=self._last):
            found.append(due)
            if len(found) == PASS_OPERATIONS:
                break
        if found:
            await self._remove(found)
            return
        self._last, self._next_look = 0, self._clock.monotonic() + LOOK_AGAIN_S
        await asyncio.to_thread(self._files.remove_stale)

    async def _remove(self, found: Sequence[Due]) -> None:
        """Remove what is due; an operation with which that fails keeps no other from its turn."""
        budget = repeat(None, PASS_TRANSACTIONS)
        for due in found:
            try:
                last = await _remove(Removal(self._db, self._files), [due], budget)
            except Unavailable:
                raise
            except Exception:
                log.exception("what is due of operation %s cannot be removed", due.id)
                last = due.number
            if not last:
                return
            self._last = last
