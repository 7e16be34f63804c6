"""A chunk is an actor: one owner, one ledger. It runs its rows group by group until each has its verdict.

Each commit writes what the last group brought and the intent of the next one, so user code never runs for a row
that is not in flight on disk, and a crash re-runs at most one unflushed group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.db.database import CommitUnknown, Database
from penstock.errors import Unavailable
from penstock.operations import chunks as store
from penstock.operations.chunks import Lost
from penstock.operations.execution import Execution
from penstock.operations.held import Held, cancel_unfinished
from penstock.operations.jobs import make_job
from penstock.operations.ledger import PENDING
from penstock.operations.outcomes import Desk
from penstock.operations.referee import Head, move, sum_counts
from penstock.operations.spans import Span
from penstock.operations.tables import chunks, operations
from penstock.operations.thresholds import breach

__all__ = ["ChunkActor", "Group", "next_due", "next_group"]

# Rows that come due within this time of each other are run together, so that a chunk is not claimed once a row.
COALESCE_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that run under one intent, through one span."""

    span: Span
    rows: Sequence[int]


class Stopped(Exception):
    """The operation is no longer Running."""

    def __init__(self, state: str) -> None:
        super().__init__(state)
        self.state = state


def next_group(desk: Desk, *, now: int, limit: int) -> Group | None:
    """The rows to run next: those that are due, of the earliest span any of them stands in."""
    ledger, execution, stories = desk.ledger, desk.execution, desk.held.stories
    first = desk.held.first_row
    ready = [
        i
        for i in desk.unfinished()
        if ledger.state(i) == PENDING
        and (not stories or (story := stories.get((first + i, ledger.at[i] - 1))) is None or (story.due_at or 0) <= now)
    ]
    if not ready:
        return None
    span = execution.span_at(min(ledger.at[i] for i in ready))
    rows = [i for i in ready if ledger.at[i] < span.stop]
    return Group(span, rows[:limit])


def next_due(desk: Desk) -> int | None:
    """When a postponed row is due again, or None; rows that come due close together count as one moment."""
    ledger, first = desk.ledger, desk.held.first_row
    dues = sorted(
        story.due_at
        for (row, step), story in desk.held.stories.items()
        if story.due_at is not None and ledger.at[row - first] == step + 1 and not ledger.is_terminal(row - first)
    )
    if not dues:
        return None
    return max(due for due in dues if due <= dues[0] + COALESCE_US)


class ChunkActor:
    """Works one claimed chunk until it is closed, released or lost."""

    def __init__(
        self,
        db: Database,
        desk: Desk,
        *,
        owner: str,
        group: Group | None,
        flush_s: float,
        flush_rows: int,
        patience_s: float,
    ) -> None:
        self.db, self.desk, self.owner = db, desk, owner
        self.held: Held = desk.held
        self.execution: Execution = desk.execution
        self.group = group
        self.flush_s, self.flush_rows, self.patience_s = flush_s, flush_rows, patience_s

    async def run(self) -> None:
        """Work until nothing is left to do now; returns quietly when the chunk has another owner."""
        try:
            while True:
                if self.group is not None:
                    await self._work(self.group)
                if self.held.ledger.is_over:
                    await self._close()
                    return
                if not await self._go_on():
                    return
        except Lost:
            return
        except Stopped as stopped:
            await self._stop(stopped.state)

    # --- running

    async def _work(self, group: Group) -> None:
        ledger = self.held.ledger
        for segment in group.span.segments:
            rows = [i for i in group.rows if ledger.in_flight[i] and segment.first <= ledger.at[i] < segment.stop]
            job = make_job(self.execution, self.desk, segment, rows)
            self.execution.crew.put(job)
            while not await _within(job.done, self.flush_s):
                await self._commit(self._flush)
        if not self.execution.may_start():
            raise Lost("the lease is over")

    # --- writing

    async def _go_on(self) -> bool:
        """Write what is known together with the intent of the next group; False when the chunk was let go."""
        now = self.execution.clock.now_us()
        self.group = next_group(self.desk, now=now, limit=self.flush_rows)
        if self.group is not None:
            self.held.ledger.start(self.group.rows)
            await self._commit(self._flush_and_intend)
            await self._check_thresholds()
            return True
        await self._commit(self._flush)
        await self._check_thresholds()
        due = next_due(self.desk)
        assert due is not None, "a chunk with unfinished rows has one that runs, waits or is due"
        return not await self._commit(lambda tx: store.release(self.db, tx, self.held, due_at=due))

    async def _close(self) -> None:
        head = await self._commit(self._end)
        if head is not None and head.state == "Running":
            await self._check_thresholds()

    async def _flush(self, tx: AsyncConnection) -> None:
        await store.flush(self.db, tx, self.held)

    async def _flush_and_intend(self, tx: AsyncConnection) -> None:
        await store.flush(self.db, tx, self.held)
        state = (
            await tx.execute(select(operations.c.state).where(operations.c.number == self.held.operation))
        ).scalar_one()
        if state != "Running":
            raise Stopped(state)

    async def _end(self, tx: AsyncConnection) -> Head | None:
        return await store.close(self.db, tx, self.held, actor=self.owner)

    async def _stop(self, state: str) -> None:
        """The operation was stopped or paused before our next group began: those rows have not started."""
        if self.group is not None:
            self.held.ledger.stand_down(self.group.rows)
        if state == "Stopping":
            cancel_unfinished(self.held, self.execution.clock.now_us())
            await self._commit(lambda tx: store.close(self.db, tx, self.held, actor=self.owner, draining=True))
        else:
            await self._commit(lambda tx: store.flush(self.db, tx, self.held, owner=None, due_at=self.db.now()))

    async def _commit(self, work: Callable[[AsyncConnection], Awaitable[Any]]) -> Any:
        """Commit once, whatever the connection does: an unknown outcome is looked up by the chunk's version."""
        until = self.execution.clock.monotonic() + self.patience_s
        while True:
            try:
                answer = await self.db.transaction(work)
                break
            except CommitUnknown:
                answer = None
                if await self._is_written():
                    break
            except Unavailable:
                if self.execution.clock.monotonic() > until:
                    raise Lost("the database was away for longer than our lease") from None
                await asyncio.sleep(0.2)
        self.held.version += 1
        self.held.changed.clear()
        self.held.lines.clear()
        return answer

    async def _is_written(self) -> bool:
        while True:
            try:
                async with self.db.read() as tx:
                    found = (
                        await tx.execute(select(chunks.c.fence, chunks.c.version).where(chunks.c.id == self.held.id))
                    ).one()
            except Unavailable:
                await asyncio.sleep(0.2)
                continue
            if found.fence != self.held.fence:
                raise Lost("taken over")
            return bool(found.version > self.held.version)

    async def _check_thresholds(self) -> None:
        """Stop the operation when it has too many errors."""
        options = self.execution.definition.options
        if (
            options.max_errors is None and options.max_error_rate is None
        ) or not self.held.ledger.counts().unsuccessful:
            return

        async def stop(tx: AsyncConnection) -> None:
            counts = await sum_counts(tx, self.held.operation)
            reason = breach(options, failed=counts.unsuccessful, processed=counts.processed)
            if reason:
                await move(
                    self.db, tx, self.held.operation, "broke",
                    actor=self.owner, cause=reason, stop_outcome="Failed", error=reason,
                )  # fmt: skip

        await self.db.transaction(stop)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
