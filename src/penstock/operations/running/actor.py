"""The actor of a claimed chunk: it runs the rows group by group until each has its verdict, and writes the outcomes.

Each commit writes the outcomes of the last group and the intent of the next one, so user code never runs for a row
that is not in flight on disk, and a crash re-runs at most one unflushed group.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Literal, TypeVar

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import Unavailable
from penstock.operations.chunk import store
from penstock.operations.chunk.owned import OwnedChunk, interrupt
from penstock.operations.chunk.persist import never, persist
from penstock.operations.chunk.store import Lost, NewMessages, Stopped
from penstock.operations.counts import breach_while_running
from penstock.operations.inbox import settling
from penstock.operations.inbox.payloads import signalled_steps
from penstock.operations.inbox.settling import Overtaken, Settlement
from penstock.operations.moves import break_operation, state_of, tally
from penstock.operations.rows.gates import happens_within
from penstock.operations.rows.task_pool import LoopSlice
from penstock.operations.running.chunk_progress import ChunkProgress
from penstock.operations.running.job import RowsJob
from penstock.operations.running.jobs import job_for
from penstock.operations.running.late_results import record_late_results
from penstock.operations.running.planning import Group, next_due, next_group
from penstock.pipeline.rows import TOGETHER
from penstock.settings import Settings

__all__ = ["ChunkActor", "Halt", "working_state"]

T = TypeVar("T")
Halt = Literal["Paused", "shutdown", "Stopping", "lost"]
HALTS: tuple[Halt, ...] = ("Paused", "shutdown", "Stopping", "lost")  # each overrules those before it


def working_state(owned: OwnedChunk) -> str:
    """The state of the operation in which this chunk is worked on."""
    return "Validating" if owned.is_raw else "Running"


class ChunkActor:
    """Works on one claimed chunk until it is closed, released or lost."""

    def __init__(
        self,
        db: Database,
        progress: ChunkProgress,
        group: Group | None,
        *,
        owner: str,
        settings: Settings,
        turn: Callable[[bool], AbstractAsyncContextManager[None]],
    ) -> None:
        self.db, self.progress, self.owner, self.settings = db, progress, owner, settings
        self.owned: OwnedChunk = progress.owned
        self.runtime = progress.runtime
        self._signalled = signalled_steps(self.runtime.definition, self.owned.plan)
        self._turn = turn
        self._group = group
        self._halt: Halt | None = None
        self._changed = asyncio.Event()  # set by a halt, by new messages, and at the end of a job
        self._waiting: asyncio.Timeout | None = None  # for a turn; a halt and new messages end it
        # A chunk that was owned before may have messages; a fresh one cannot.
        self._must_look = group is None
        self._failures = self.owned.unsuccessful

    # --- called by the worker

    def halt(self, why: Halt) -> None:
        """Begin nothing more; give the chunk up when the running rows have ended."""
        if self._halt is None or HALTS.index(why) > HALTS.index(self._halt):
            self._halt = why
            self._wake()

    def look(self, message_count: int) -> None:
        """Take note of how many messages the chunk has in the database; if it has grown, read the messages."""
        if message_count != self.owned.message_count:
            self._must_look = True
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())

    # --- the loop

    async def run(self) -> None:
        """Work until nothing is left to do now; returns quietly when the chunk has another owner."""
        try:
            try:
                await self._run()
            except Stopped as stopped:
                await self._leave("Stopping" if stopped.state == "Stopping" else "Paused")
        except Lost:
            await record_late_results(self.db, self.owned, owner=self.owner, now=self.runtime.clock.now_us())
        finally:
            self.progress.close()

    async def _run(self) -> None:
        if self._group is not None:
            await self._begin(self._group, is_written=True)
        while self._halt is None:
            if not await self._go_on():
                return
        await self._leave(self._halt)

    async def _go_on(self) -> bool:
        """Settle new messages, or begin the next group; False when the chunk was given up."""
        if self._must_look:
            await self._settle()
            if self._must_look:
                return True
        if self._is_ended():
            if self._has_new_failures():
                await self._flush()  # they may stop the operation before its last chunk ends it
            return not await self._close()
        now = self.runtime.clock.now_us()
        group = next_group(self.owned, self.runtime.spans, now=now, limit=self.settings.flush_rows)
        if group is not None:
            await self._begin(group)
            return True
        if self._is_unwritten:
            await self._flush()
            return True
        return not await self._release()

    @property
    def _is_unwritten(self) -> bool:
        return bool(self.owned.changed) or self.progress.has_parked or self.progress.has_moved

    async def _begin(self, group: Group, *, is_written: bool = False) -> None:
        """Have a turn, write the intent, unless it `is_written`, and run the group; or return for what comes first.

        Without a turn none of these rows is in flight: they are not lost with a worker that dies while they wait.
        """
        async with AsyncExitStack() as turn:
            if not await self._enter(turn, group, 0):
                if is_written:
                    self._take_back(group)
                    is_written = False
                if self._is_unwritten:
                    await self._flush()
                if self._halt is not None or self._must_look or not await self._enter(turn, group, None):
                    return
            if not is_written:
                self._group = group
                self.owned.ledger.start(group.rows)
                await self._flush(is_intent=True)
            await self._work(group)
        await self._have_worked()

    async def _enter(self, turn: AsyncExitStack, group: Group, limit_s: float | None) -> bool:
        """Have a turn; False when it does not come within the limit, or there is something else to do first."""
        try:
            async with asyncio.timeout(limit_s) as self._waiting:
                await turn.enter_async_context(self._turn(group.is_alone))
        except TimeoutError:
            return False
        finally:
            self._waiting = None
        return True

    def _take_back(self, group: Group) -> None:
        """Take back an intent that is on disk; it must be written."""
        self._group = None
        self.owned.ledger.undo_start(group.rows)
        self.progress.has_moved = True

    async def _work(self, group: Group) -> None:
        ledger = self.owned.ledger
        for segment in group.segments:
            # The other jobs parse their rows themselves.
            if self._halt is None and segment.manner in ("thread", "check"):
                await self._parse(group.rows)
            rows = ledger.in_flight_at(group.rows, segment.first, segment.stop)
            if self._halt is not None:
                ledger.undo_start(rows)
            elif rows:
                await self._run_job(job_for(self.progress, segment, rows, self._changed))
        self.progress.has_moved = True
        self._group = None

    async def _have_worked(self) -> None:
        if self._halt is None and any(self.owned.ledger.in_flight):
            # Somebody else cancelled the task that ran them, and nobody knows how far they came.
            interrupt(self.owned, self.runtime.clock.now_us())
        if (trouble := self.progress.trouble) is not None:
            broken = partial(break_operation, self.db, number=self.owned.operation, reason=trouble, actor=self.owner)
            await self._commit(broken, "broke", is_once=False)
        if self.progress.was_refused:
            self.halt("Paused")  # our lease was over: write what we have, if the chunk is still ours, and give it up

    async def _parse(self, rows: Sequence[int]) -> None:
        time = LoopSlice(self.runtime.clock.now_ns)
        for k in range(0, len(rows), TOGETHER):
            self.progress.parse(rows[k : k + TOGETHER])
            await time.share()

    async def _run_job(self, job: RowsJob) -> None:
        self._changed.clear()
        self.runtime.task_pool.put(job)
        try:
            await self._attend(job)
        except BaseException:  # the chunk is lost: its rows have another owner, and none may begin here
            job.withdraw()
            job.cut_off()
            raise

    async def _attend(self, job: RowsJob) -> None:
        """While a job runs, write its outcomes, settle new messages and obey a halt."""
        while job.left > 0:
            if self._halt is not None:
                await self._withdraw(job)
                return
            if self._must_look:
                await self._settle()
            left, places = job.left, self.owned.ledger.at[:]
            await happens_within(self._changed, self.settings.flush_s)
            self._changed.clear()
            has_moved = job.left != left or self.owned.changed or self.owned.ledger.at != places
            if job.left > 0 and has_moved:
                await self._flush()

    async def _withdraw(self, job: RowsJob) -> None:
        """Begin no more rows of a job; those that run get some time to end, then they are cut off."""
        self.owned.ledger.undo_start(job.withdraw())
        loop = asyncio.get_running_loop()
        while job.left > 0:
            why, began = self._halt, loop.time()
            limit = self._grace_s()
            self._changed.clear()
            await happens_within(self._changed, limit)
            if self._halt == why and limit is not None and loop.time() >= began + limit:
                job.cut_off()

    def _grace_s(self) -> float | None:
        """How long running rows may go on."""
        match self._halt:
            case "Paused":
                return None
            case "shutdown":
                return self.settings.shutdown_s
            case "lost":
                return 0.0
        return self.settings.cancel_grace_s

    # --- writing

    async def _flush(self, *, is_intent: bool = False) -> None:
        """Write the chunk; with an intent, only while the operation is in the state in which it is worked on."""
        writing = self.owned.writing()
        has_parked = self.progress.has_parked
        self.progress.has_moved = self.progress.has_parked = False

        async def write(tx: Connection) -> None:
            await store.flush(self.db, tx, self.owned, writing)
            if is_intent and (state := await state_of(tx, self.owned.operation)) != working_state(self.owned):
                raise Stopped(state)

        try:
            await self._commit(write, "intent" if is_intent else "flush")
        except Stopped:
            if self._group is not None:
                self.owned.ledger.undo_start(self._group.rows)
            raise
        self.owned.written(writing)
        self._must_look |= has_parked
        await self._check_thresholds()

    async def _settle(self) -> None:
        """Settle new messages in a transaction of its own; then wake the chunks whose rows wait on the same keys."""
        self._must_look = False
        now, owned = self.runtime.clock.now_us(), self.owned.copy()
        try:
            done: Settlement = await self._commit(
                lambda tx: settling.settle(self.db, tx, owned, self.progress.raw, now, steps=self._signalled), "settle"
            )
        except Overtaken:
            self._must_look = True
            return
        done.apply(self.owned, self.progress.raw)
        self.progress.refresh()
        keys = {found.signal.key for found in done.matches}
        if keys:
            await self._commit(partial(settling.wake, self.db, self.owned.operation, keys), "pass_on", is_once=False)

    def _is_ended(self) -> bool:
        """Whether nothing is left to do: every row has its verdict, or in a raw chunk is validated."""
        return self.owned.is_validated if self.owned.is_raw else self.owned.ledger.is_over

    async def _close(self) -> bool:
        """Close the chunk, or hand it over if it is raw; False when it has new messages."""
        writing, point = self.owned.writing(), "hand_over" if self.owned.is_raw else "close"
        end = store.hand_over if self.owned.is_raw else store.close
        return await self._give_up(lambda tx: end(self.db, tx, self.owned, writing, actor=self.owner), point)

    async def _release(self) -> bool:
        due = next_due(self.owned)
        assert due is not None, "a chunk with unfinished rows has one that runs, waits or is due"
        return await self._give_up(lambda tx: store.release(tx, self.owned, due_at=due), "release")

    async def _give_up(self, work: Callable[[Connection], Awaitable[None]], point: str) -> bool:
        """Commit a write that ends our ownership; False when the chunk has new messages, which are settled first."""
        try:
            await self._commit(work, point)
        except NewMessages:
            self._must_look = True
            return False
        return True

    async def _leave(self, why: Halt) -> None:
        if why == "lost":
            raise Lost("another worker has it")
        if why == "Stopping" and await self._drain():
            return
        with contextlib.suppress(Stopped):  # a raw chunk is handed over when the operation goes on
            if not self._must_look and self._is_ended() and await self._close():
                return
        interrupt(self.owned, self.runtime.clock.now_us())
        writing = self.owned.writing()
        await self._commit(
            lambda tx: store.flush(self.db, tx, self.owned, writing, owner=None, due_at=self.db.now()), "give_back"
        )

    async def _drain(self) -> bool:
        now = self.runtime.clock.now_us()
        while True:
            try:
                return await self._commit(
                    lambda tx: settling.drain(self.db, tx, self.owned, now, steps=self._signalled, actor=self.owner),
                    "drain",
                )
            except Overtaken:
                continue

    async def _commit(self, work: Callable[[Connection], Awaitable[T]], point: str, *, is_once: bool = True) -> T:
        """Write our chunk exactly once; or something else, which may be written twice without harm.

        `Lost` when the database was away for longer than our lease.
        """
        has_happened = partial(store.is_written, self.db, self.owned) if is_once else never
        clock, patience_s = self.runtime.clock, self.settings.lease_s
        try:
            return await persist(self.db, work, point, has_happened=has_happened, clock=clock, patience_s=patience_s)
        except Unavailable:
            raise Lost("the database was away for longer than our lease") from None

    async def _check_thresholds(self) -> None:
        """Stop the operation when it has too many errors, or too many rows that kill their workers."""
        if not self._has_new_failures():
            return
        self._failures = self.owned.ledger.counts().unsuccessful

        number, poison_rows_max = self.owned.operation, self.settings.poison_rows_max

        async def stop(tx: Connection) -> None:
            poison = await store.count_poison(tx, number)
            if poison > poison_rows_max:
                reason: str | None = f"{poison} rows killed their workers; poison_rows_max is {poison_rows_max}"
            else:
                reason = breach_while_running(self.runtime.definition.options, await tally(tx, number))
            if reason is not None:
                await break_operation(self.db, tx, number, reason, actor=self.owner)

        await self._commit(stop, "broke", is_once=False)

    def _has_new_failures(self) -> bool:
        """Whether rows have failed since we last looked, and that could stop the operation."""
        if self.owned.is_raw:  # then it is checked once all are validated
            return False
        options = self.runtime.definition.options
        # Only rows that were lost with a worker can be poison.
        has_limits = options.max_errors is not None or options.max_error_rate is not None or any(self.owned.ledger.lost)
        return has_limits and self.owned.ledger.counts().unsuccessful > self._failures
