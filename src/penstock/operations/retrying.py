"""Running failed rows again: all of them, some of them, or one with its data corrected.

A caller only stores requests, one per chunk or per row, which the chunk's owner applies. The same transaction opens the
chunks, so an accepted retry survives any crash.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from penstock.db.connection import Connection
from penstock.db.database import CommitUnknown, Database
from penstock.errors import Conflict, Fault, NotFound, RowInvalid
from penstock.operations.auditing import log_act, some_rows
from penstock.operations.chunk import store
from penstock.operations.chunk.owned import OwnedChunk
from penstock.operations.inbox.applying import refusal
from penstock.operations.model import RowView
from penstock.operations.moves import Head, move, touch
from penstock.operations.tables import REMOVED, chunks, operations, requests
from penstock.pipeline.rows import RowType

__all__ = ["Eligibility", "NothingToRetry", "Retry", "can_retry", "edited", "retry_all", "retry_rows"]

CHUNKS_READ_MAX = 4  # with all their records in memory
CHUNKS_OPENED_EACH = 1000  # by one statement
SKIPPED_SHOWN_MAX = 1000
_ENDED = ("CompletedWithErrors", "Failed", "Cancelled")
_RUNNING = ("Running", "Retrying", "Paused")
_Asked = tuple[int, int | None, Any, int]  # the chunk, its row or None for all, its new data, its generation


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Whether an operation can be retried, and if not, why."""

    is_eligible: bool
    reasons: tuple[str, ...] = ()
    rows: int = 0


@dataclass(slots=True)
class Retry:
    """What a retry request came to: rows that will run again, and those that will not, with the reason."""

    submitted: int = 0
    skipped: int = 0
    reasons: dict[int, str] = field(default_factory=dict)  # by row, the first of them

    def skip(self, row: int, reason: str) -> None:
        self.skipped += 1
        if len(self.reasons) < SKIPPED_SHOWN_MAX:
            self.reasons[row] = reason


class NothingToRetry(Conflict):
    """No row of the operation can run again; `retry` says why each was left out."""

    def __init__(self, message: str, retry: Retry) -> None:
        super().__init__(message)
        self.retry = retry


async def can_retry(db: Database, number: int) -> Eligibility:
    """Whether all failed rows could be retried now; every reason against it."""
    async with db.read() as tx:
        reasons = _objections(await _operation(tx, number))
        retry, _ = await _judge(tx, number)
    if not retry.submitted:
        why = f", {retry.skipped} cannot be: {next(iter(retry.reasons.values()))}" if retry.skipped else ""
        reasons.append(f"no failed row can be run again{why}")
    return Eligibility(not reasons, tuple(reasons), retry.submitted)


async def _operation(tx: Connection, number: int) -> RowMapping:
    row = (await tx.execute(select(operations).where(operations.c.number == number))).one_or_none()
    if row is None or row.stop_outcome == REMOVED:
        raise NotFound("the operation has been removed")
    return row._mapping


def _objections(row: RowMapping) -> list[str]:
    """Every reason why not all rows of an operation can be retried now."""
    reasons = list[str]()
    if row["state"] not in _ENDED:
        reasons.append(f"the operation is {row['state']}; all rows can be retried once it is {', '.join(_ENDED)}")
    elif row["reading"] != "complete":
        reasons.append("its file was not read to the end; create it again")
    return reasons + _objections_to_any(row, retries=row["retry_count"])


def _objections_to_any(row: RowMapping, *, retries: int) -> list[str]:
    """Every reason why no row of an operation can be retried that was retried so often before."""
    options = row["plan"]["options"]
    needed = ("rows" if options["track_row_data"] else "files", "outputs")
    gone = [part for part in needed if part in (row["pruned"] or {})]
    reasons = [f"its {' and '.join(gone)} were removed (see `keep`)"] if gone else []
    if not options["retryable"]:
        reasons.append("the operation is declared as not retryable")
    limit = options["max_retry_attempts"]
    if limit and retries >= limit:
        reasons.append(f"it was retried {retries} times; max_retry_attempts is {limit}")
    return reasons


async def retry_all(db: Database, number: int, *, actor: str, token: str) -> Retry:
    """Ask for every eligible failed row of an ended operation to run again; `Conflict` says why it cannot.

    The rows are judged in a snapshot, which blocks no other. The write after it is short, and is made only if the
    operation is still as in the snapshot; otherwise we look again.
    """
    while True:
        async with db.read() as tx:
            row = await _operation(tx, number)
            if reasons := _objections(row):
                raise Conflict(f"operation {row['id']} cannot be retried: {'; '.join(reasons)}")
            retry, found = await _judge(tx, number)
        if not found:
            raise NothingToRetry(
                f"operation {row['id']} has no failed row that can be run again: {_first(retry)}", retry
            )
        ask = partial(_ask_for_all, db, number, found, row["revision"], actor=actor, token=token)
        if await _stored(db, ask, "retry", token):
            return retry


async def _stored(db: Database, ask: Callable[[Connection], Awaitable[bool]], point: str, token: str) -> bool:
    """Store requests, once also when the answer to a COMMIT is lost; False when the operation has changed since."""

    async def are_there(tx: Connection) -> bool:
        return (await tx.execute(select(requests.c.id).where(requests.c.token == token).limit(1))).first() is not None

    was_unknown = False
    while True:
        try:
            is_stored = await db.transaction(ask, point)
        except CommitUnknown:
            was_unknown = True
            continue
        except IntegrityError:
            if was_unknown and await db.look(are_there):
                return True
            raise
        return is_stored or (was_unknown and await db.look(are_there))


async def _ask_for_all(
    db: Database, number: int, found: Sequence[int], revision: int, tx: Connection, *, actor: str, token: str
) -> bool:
    """Open these chunks for a retry of all their rows; False when the operation has changed since that revision.

    A row of an ended operation changes only when its chunk is opened, and that raises the operation's revision.
    """
    head = await _begin_retry(db, tx, number, operations.c.revision == revision, actor=actor, open_chunks=len(found))
    if head is None:
        return False
    await _prune_again(tx, await _operation(tx, number))
    await _request(db, tx, head, [(chunk, None, None, head.generation) for chunk in found], token=token, actor=actor)
    await log_act(db, tx, number, "retry", actor=actor)
    return True


async def _begin_retry(
    db: Database, tx: Connection, number: int, *guards: ColumnElement[bool], actor: str, **values: Any
) -> Head | None:
    """Move an operation that has ended, and whose file was read, to Retrying; None when it is not one."""
    return await move(
        db,
        tx,
        number,
        "retry_requested",
        operations.c.reading == "complete",
        *guards,
        actor=actor,
        generation=operations.c.generation + 1,
        retry_count=operations.c.retry_count + 1,
        stop_outcome=None,
        error=None,
        **values,
    )


async def retry_rows(
    db: Database,
    number: int,
    rows: Sequence[int],
    *,
    actor: str,
    token: str,
    data: Mapping[int, Any] | None = None,
    generations: Mapping[int, int] | None = None,
    confirm_doubt: bool = False,
) -> Retry:
    """Ask for named failed rows to run again, with new data where given; also while other rows still run.

    `generations` are those in which the caller has seen the rows: `Conflict` when one has been run again since.

    The rows are judged in a snapshot, like those of a retry of all. Other rows may run meanwhile. The verdict of a row
    that has failed changes only by a request: by one that names the row too, which the unique key of requests refuses,
    or by a retry of all, which raises the operation's generation; then we look again.
    """
    data, named = data or {}, sorted(set(rows))
    while True:
        async with db.read() as tx:
            row = await _operation(tx, number)
            _refuse_unfit(row)
            retry, asked = Retry(), list[_Asked]()
            async for owned, has_all in _chunks_of(tx, number, named):
                _refuse_changed(owned, generations or {})
                for n in [n for n in named if n in owned.rows]:
                    i = n - owned.first_row
                    reason = refusal(owned, i, is_named=True, confirms_doubt=confirm_doubt, has_data=n in data)
                    if has_all:
                        reason = "a retry of all failed rows is on its way"
                    if reason is not None:
                        retry.skip(n, reason)
                    else:
                        asked.append((owned.id, n, data.get(n), owned.ledger.generation[i]))
        if not asked:
            raise NothingToRetry(f"operation {row['id']}: none of the rows can be run again: {_first(retry)}", retry)
        retry.submitted = len(asked)
        ask = partial(
            _ask_for_rows,
            db,
            number,
            asked,
            row["generation"],
            actor=actor,
            token=token,
            action="edit" if data else "retry",
            confirm_doubt=confirm_doubt,
        )
        try:
            if await _stored(db, ask, "retry_rows", token):
                return retry
        except IntegrityError:
            raise Conflict(f"a retry or edit of one of the rows {named[:10]} is on its way already") from None


async def _ask_for_rows(
    db: Database,
    number: int,
    asked: Sequence[_Asked],
    generation: int,
    tx: Connection,
    *,
    actor: str,
    token: str,
    action: str,
    confirm_doubt: bool,
) -> bool:
    """Store requests for these rows; False when the operation is not in that generation any more, or cannot be retried.

    An operation that has ended begins to retry.
    """
    is_as_seen = operations.c.generation == generation
    head = await _begin_retry(db, tx, number, is_as_seen, actor=actor)
    if head is None:
        running = operations.c.state.in_(_RUNNING)
        head = await touch(tx, number, is_as_seen, operations.c.reading == "complete", running)
    if head is None:
        return False
    row = await _operation(tx, number)
    _refuse_unfit(row)
    await _prune_again(tx, row)
    reopened = await _closed_among(tx, sorted({chunk for chunk, *_ in asked}))
    await _request(db, tx, head, asked, token=token, actor=actor, confirm_doubt=confirm_doubt)
    await touch(tx, number, open_chunks=operations.c.open_chunks + reopened)
    await log_act(db, tx, number, action, actor=actor, details=some_rows([n for _, n, *_ in asked if n is not None]))
    return True


def _refuse_changed(owned: OwnedChunk, generations: Mapping[int, int]) -> None:
    for row, seen in generations.items():
        if row in owned.rows:
            now = owned.ledger.generation[row - owned.first_row]
            if now != seen:
                raise Conflict(f"row {row} was changed since (generation {now}, you saw {seen}); look at it again")


def _refuse_unfit(row: RowMapping) -> None:
    """`Conflict` when no named row of the operation can be retried; the same before and after it begins to retry."""
    if row["state"] not in (*_ENDED, *_RUNNING) or row["reading"] != "complete":
        raise Conflict(f"rows of an operation that is {row['state']} cannot be retried")
    retries = 0  # what is asked for while it runs is no retry of its own
    if row["state"] in _ENDED:
        retries = row["retry_count"]
    elif row["state"] == "Retrying" and row["previous_state"] in _ENDED:
        retries = row["retry_count"] - 1  # it has begun, and is counted already
    if reasons := _objections_to_any(row, retries=retries):
        raise Conflict(f"rows of operation {row['id']} cannot be retried: {'; '.join(reasons)}")


async def _prune_again(tx: Connection, row: RowMapping) -> None:
    """Forget which parts were removed, because the rows that run now make them anew; all but the file."""
    pruned = row["pruned"] or {}
    if pruned.keys() - {"files"}:
        kept = {part: is_done for part, is_done in pruned.items() if part == "files"}
        await touch(tx, row["number"], pruned=kept or None)


async def _request(
    db: Database,
    tx: Connection,
    head: Head,
    asked: Sequence[_Asked],
    *,
    token: str,
    actor: str,
    confirm_doubt: bool = False,
) -> None:
    """Store requests, and open the chunks of all."""
    accepted_at = (await tx.execute(select(db.now()))).scalar_one()
    await tx.execute(
        insert(requests),
        [
            {
                "token": token,
                "operation": head.number,
                "chunk": chunk,
                "row": row,
                "kind": "retry" if data is None else "edit",
                "generation": generation,
                "confirms_doubt": int(confirm_doubt),
                "data": data,
                "actor": actor,
                "accepted_at": accepted_at,
            }
            for chunk, row, data, generation in asked
        ],
    )
    await db.ring(tx)
    await _open(db, tx, sorted({chunk for chunk, *_ in asked}))


async def _open(db: Database, tx: Connection, found: Sequence[int]) -> None:
    """Open chunks, and count a new message for each, many in one statement."""
    for start in range(0, len(found), CHUNKS_OPENED_EACH):
        mine = chunks.c.id.in_(found[start : start + CHUNKS_OPENED_EACH])
        # An UPDATE of many would lock them in an order of its own.
        await tx.execute(select(chunks.c.id).where(mine).order_by(chunks.c.id).with_for_update())
        await tx.execute(
            update(chunks).where(mine).values(is_open=1, message_count=chunks.c.message_count + 1, due_at=db.now())
        )


async def _closed_among(tx: Connection, found: Sequence[int]) -> int:
    """How many of these chunks are closed; it stays so while the operation's row is locked."""
    closed = 0
    for start in range(0, len(found), CHUNKS_OPENED_EACH):
        mine = (chunks.c.id.in_(found[start : start + CHUNKS_OPENED_EACH]), chunks.c.is_open == 0)
        closed += (await tx.execute(select(func.count()).select_from(chunks).where(*mine))).scalar_one()
    return closed


async def _judge(tx: Connection, number: int) -> tuple[Retry, list[int]]:
    """How many rows of an operation can be run again and why the others cannot; the chunks that hold the first."""
    unsuccessful = chunks.c.invalid + chunks.c.failed + chunks.c.timed_out + chunks.c.cancelled > 0
    retry, found, last = Retry(), list[int](), 0
    while some := await store.load(tx, number, unsuccessful, chunks.c.id > last, limit=CHUNKS_READ_MAX):
        for owned in some:
            before = retry.submitted
            _judge_rows(owned, retry)
            if retry.submitted > before:
                found.append(owned.id)
        last = some[-1].id
    return retry, found


def _judge_rows(owned: OwnedChunk, retry: Retry) -> None:
    for i in range(owned.row_count):
        if owned.ledger.is_terminal(i) and owned.ledger.at[i] <= owned.ledger.steps:
            reason = refusal(owned, i, is_named=False, confirms_doubt=False, has_data=False)
            if reason is None:
                retry.submitted += 1
            else:
                retry.skip(owned.first_row + i, reason)


async def _chunks_of(tx: Connection, number: int, rows: Sequence[int]) -> AsyncGenerator[tuple[OwnedChunk, bool], None]:
    """The chunks of rows, one after the other, and whether a retry of all rows is still to be applied to each."""
    owned: OwnedChunk | None = None
    for row in rows:
        if owned is not None and row in owned.rows:
            continue
        found = await store.load(
            tx, number, chunks.c.first_row <= row, chunks.c.first_row + chunks.c.row_count > row, limit=1
        )
        if not found:
            raise NotFound(f"the operation has no row {row}")
        (owned,) = found
        is_for_all = (requests.c.chunk == owned.id, requests.c.row.is_(None), requests.c.outcome.is_(None))
        yield owned, (await tx.execute(select(requests.c.id).where(*is_for_all))).first() is not None


def _first(retry: Retry) -> str:
    return "; ".join(f"row {row}: {reason}" for row, reason in list(retry.reasons.items())[:5]) or "none has failed"


# --- correcting a row


def edited(row: RowView, changes: Mapping[str, Any], columns: tuple[str, ...] | None, row_type: RowType | None) -> Any:
    """The raw row with the changes in place: cells for a file with columns, otherwise a record.

    With its `row_type`, a field may go by its name or by an alias, whichever the row has. `Conflict` when the row's
    data is not there; `RowInvalid` names every change that fits no column.
    """
    if row.data is None:
        raise Conflict(
            f"row {row.number} cannot be edited, for its data is not there: it was removed or erased, its operation "
            "keeps no row data, or a cancel came before it was read"
        )
    # A row that could not be read as a record has nothing to keep: the changes must say it all.
    before = row.data if isinstance(row.data, Mapping) else {}
    if row_type is not None:
        there = before if columns is None else columns
        changes = {row_type.key_among(there, name): value for name, value in changes.items()}
    merged = {**before, **changes}
    if columns is None:
        return merged
    unknown = [name for name in changes if name not in columns]
    if unknown:
        known = ", ".join(columns)
        raise RowInvalid(faults=[Fault(f"no such column; there are: {known}", name) for name in unknown])
    return [_cell(merged.get(name)) for name in columns]


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case _:
            return str(value)
