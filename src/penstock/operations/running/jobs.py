"""Rows of one chunk on their way through one segment: awaited, on threads, in batches, or asked whether they are done.

Outcomes go straight to the desk, always on the loop's thread; nothing here touches the database.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.operations.ledger import COMPLETED, SKIPPED, WAITING
from penstock.operations.rules.spans import Segment
from penstock.operations.running.execution import Execution, LiveStep
from penstock.operations.running.outcomes import Desk, WrongLength
from penstock.operations.validation import validate
from penstock.pipeline import BatchContext, Context, Done

__all__ = ["AwaitJob", "BatchJob", "CheckJob", "RowsJob", "ThreadJob", "ValidateJob", "job_for"]

SLICE_NS = 20_000_000  # how long a hand keeps the loop, or a thread its rows, before others get a turn


class RowsJob(ABC):
    """What all jobs share: which rows are still to be taken, and when all are through: then the bell is rung."""

    def __init__(
        self, execution: Execution, desk: Desk, segment: Segment, rows: Sequence[int], bell: asyncio.Event
    ) -> None:
        self.execution, self.desk, self.segment = execution, desk, segment
        self.todo: Iterator[int] = iter(rows)
        self.left = len(rows)
        self.is_cut_off = False
        self._bell = bell
        self._hands: set[asyncio.Task[Any]] = set()

    async def pull(self) -> bool:
        """Take and finish some of the rows; False when none was left to take."""
        hand = asyncio.current_task()
        assert hand is not None
        self._hands.add(hand)
        try:
            return await self.take()
        finally:
            self._hands.discard(hand)

    @abstractmethod
    async def take(self) -> bool:
        """Take and finish some of the rows; False when none was left to take."""

    def finished(self, rows: int) -> None:
        """So many rows more are through."""
        self.left -= rows
        if not self.left:
            self._bell.set()

    def withdraw(self) -> list[int]:
        """Rows that no hand has taken; they will not begin."""
        rest = list(self.todo)
        self.finished(len(rest))
        return rest

    def cut_off(self) -> None:
        """Cancel the calls that still run; their rows stay in flight."""
        self.is_cut_off = True
        for hand in self._hands:
            hand.cancel()
        self.left = 0
        self._bell.set()

    def context(self, i: int) -> Context[Any]:
        """What the steps of row i are told."""
        desk = self.desk
        return Context(
            self.execution.run,
            desk.held.first_row + i,
            desk.ledger.generation[i],
            desk.outputs(i),
            desk.rows[i],
        )


class AwaitJob(RowsJob):
    """Each row is awaited through the segment's steps on the loop.

    This is the innermost loop of the engine, run once for every row: what does not change is looked up before it.
    """

    async def take(self) -> bool:
        execution, desk, stop = self.execution, self.desk, self.segment.stop
        if not execution.may_start():
            rest = list(self.todo)
            desk.refuse(rest)
            self.finished(len(rest))
            return bool(rest)
        ledger, now, base = desk.ledger, execution.clock.now_ns, desk.ledger.base * 1000
        at, rows, steps, tracks = ledger.at, desk.rows, execution.steps, ledger.tracks
        run, first_row, generation, outputs = execution.run, desk.held.first_row, ledger.generation, desk.outputs
        until = now() - base + SLICE_NS
        for i in self.todo:
            try:
                row, place = rows[i], at[i]
                ctx = Context(run, first_row + i, generation[i], outputs(i), row)
                began = ended = now() - base
                while True:
                    step, track = steps[place - 1], tracks[place]
                    ctx.step, ctx.attempt = step.plan, track.attempt[i]
                    state = COMPLETED
                    try:
                        if step.is_bare:
                            output = await step.call(row, ctx)
                        else:
                            state, output = await self._ask(step, row, ctx, ledger.base + began // 1000)
                            if state == WAITING:
                                desk.park(i, place, ledger.base + began // 1000, ctx.signal_key)
                                break
                        if output is not None:
                            desk.keep_output(i, place, ctx, step.encode(output))
                    except BaseException as error:
                        if is_ours(error):
                            raise
                        desk.raised(i, place, error, ledger.base + began // 1000)
                        break
                    ended = now() - base
                    track.began[i], track.took[i], track.state[i] = began // 1000, (ended - began) // 1000 or 1, state
                    place += 1
                    at[i] = place
                    if place >= stop:
                        desk.left_segment(i, place)
                        break
                    tracks[place].attempt[i] += 1
                    began = ended
            finally:
                self.finished(1)
            if ended > until:  # others get a turn, and the lease is looked at again
                return True
        return False

    async def _ask(self, step: LiveStep, row: Any, ctx: Context[Any], began: int) -> tuple[int, Any]:
        """Call a step that has a condition, a time limit or a wait; the state it leads to, and what it returned."""
        if step.plan.options.timeout is not None:
            ctx.deadline = step.deadline(began)
        if step.when is not None and not await step.when(row, ctx):
            return SKIPPED, None
        if step.key is not None:
            ctx.signal_key = await step.key(row, ctx)
        output = await step.call(row, ctx)
        if not step.waits:
            return COMPLETED, output
        return (COMPLETED, output.output) if isinstance(output, Done) else (WAITING, None)


class CheckJob(RowsJob):
    """Rows that wait for a polled step are asked whether it is done."""

    async def take(self) -> bool:
        i = next(self.todo, None)
        if i is None:
            return False
        try:
            await self._ask(i)
        finally:
            self.finished(1)
        return True

    async def _ask(self, i: int) -> None:
        desk, place = self.desk, self.segment.first
        if not self.execution.may_start():
            desk.refuse((i,))
            return
        step = self.execution.steps[place - 1]
        assert step.check is not None
        ctx = self.context(i)
        ctx.step, ctx.attempt = step.plan, desk.ledger.tracks[place].attempt[i]
        try:
            answer = await step.check(desk.rows[i], ctx)
            output = step.encode(answer.output) if isinstance(answer, Done) else None
        except BaseException as error:
            if is_ours(error):
                raise
            desk.check_raised(i, place, error)
            return
        if isinstance(answer, Done) or answer is True:
            desk.check_passed(i, place, output)
        elif answer is False:
            desk.ask_again(i, place)
        else:
            desk.check_raised(i, place, TypeError(f"a check returns True, False or Done(…), not {answer!r}"))


class ValidateJob(RowsJob):
    """Rows that nobody has looked at yet, or that were edited, are validated before they run."""

    async def take(self) -> bool:
        now = self.execution.clock.now_ns
        until = now() + SLICE_NS
        for i in self.todo:
            try:
                if self.execution.may_start():
                    await self._row(i)
                else:
                    self.desk.refuse((i,))
            finally:
                self.finished(1)
            if now() > until:
                return True
        return False

    async def _row(self, i: int) -> None:
        row, objection = await validate(self.execution, self.desk.raw(i))
        if objection is None:
            self.desk.validated(i, row)
        else:
            self.desk.rejected(i, objection)


Ran = tuple[int, list[tuple[int, int, int, bytes | None]], BaseException | None, int]


class ThreadJob(RowsJob):
    """Rows run through the segment's sync steps on a thread, as many to a hop as fit into a slice."""

    async def take(self) -> bool:
        loop = asyncio.get_running_loop()
        results = await loop.run_in_executor(self.execution.threads, self._hop)
        for i, steps, error, began in results:
            self._apply(i, steps, error, began)
        self.finished(len(results))
        return bool(results)

    def _hop(self) -> list[Ran]:
        now = self.execution.clock.now_ns
        until = now() + SLICE_NS
        results = []
        for i in self.todo:
            results.append(self._row(i))
            if now() > until:
                break
        return results

    def _row(self, i: int) -> Ran:
        execution, desk = self.execution, self.desk
        now, row = execution.clock.now_us, desk.rows[i]
        steps: list[tuple[int, int, int, bytes | None]] = []
        began = now()
        if not execution.may_start():
            return i, steps, LeaseOver(), began
        ctx = self.context(i)
        for place in range(desk.ledger.at[i], self.segment.stop):
            step = execution.steps[place - 1]
            ctx.step, ctx.attempt = step.plan, desk.ledger.tracks[place].attempt[i] + (1 if steps else 0)
            encoded = None
            try:
                if step.bound.when is not None and not step.bound.when(row, ctx):
                    state = SKIPPED
                else:
                    output = step.bound.call(row, ctx)
                    state = COMPLETED
                    if output is not None and (encoded := step.encode(output)) is not None:
                        ctx.stored[place - 1] = encoded
            except BaseException as error:  # a step may raise anything; it is this row's alone
                return i, steps, error, began
            ended = now()
            steps.append((state, began, ended - began or 1, encoded))
            began = ended
        return i, steps, None, began

    def _apply(
        self, i: int, steps: list[tuple[int, int, int, bytes | None]], error: BaseException | None, began: int
    ) -> None:
        ledger = self.desk.ledger
        place = ledger.at[i]
        for state, start, took, output in steps:
            track = ledger.tracks[place]
            track.began[i], track.took[i], track.state[i] = start - ledger.base, took, state
            if output is not None:
                self.desk.store_output(i, place, output)
            place += 1
            ledger.at[i] = place
            if place < self.segment.stop:
                ledger.tracks[place].attempt[i] += 1
        if error is None:
            self.desk.left_segment(i, place)
        elif isinstance(error, LeaseOver):
            self.desk.refuse((i,))
        else:
            self.desk.raised(i, place, error, began)


class BatchJob(RowsJob):
    """The step gets many rows at once and answers for each."""

    def __init__(
        self, execution: Execution, desk: Desk, segment: Segment, rows: Sequence[int], bell: asyncio.Event
    ) -> None:
        super().__init__(execution, desk, segment, rows, bell)
        self.step: LiveStep = execution.steps[segment.first - 1]
        self.batches = self._batches(rows)

    def _batches(self, rows: Sequence[int]) -> Iterator[list[int]]:
        """Rows that share a number of errors go together; past the retries each error halves their batch."""
        options = self.step.plan.options
        by_errors: dict[int, list[int]] = {}
        for i in rows:
            by_errors.setdefault(self.desk.errors(i, self.segment.first), []).append(i)
        for errors, group in sorted(by_errors.items()):
            size = max(1, options.size >> max(0, errors - options.retries))
            yield from (group[k : k + size] for k in range(0, len(group), size))

    def withdraw(self) -> list[int]:
        rest = [i for batch in self.batches for i in batch]
        self.finished(len(rest))
        return rest

    async def take(self) -> bool:
        batch = next(self.batches, None)
        if batch is None:
            return False
        try:
            if self.execution.may_start():
                await self._batch(batch)
            else:
                self.desk.refuse(batch)
        finally:
            self.finished(len(batch))
        return True

    async def _batch(self, batch: list[int]) -> None:
        desk, step, place = self.desk, self.step, self.segment.first
        began = self.execution.clock.now_us()
        wanted = [(i, ctx) for i in batch if (ctx := await self._wanted(i, began)) is not None]
        if not wanted:
            return
        rows = [i for i, _ in wanted]
        contexts = [ctx for _, ctx in wanted]
        try:
            given = await step.call([desk.rows[i] for i in rows], BatchContext(self.execution.run, step.plan, contexts))
            answers = _per_row(given, len(rows))
        except BaseException as error:
            if is_ours(error):
                raise
            desk.raised_by_batch(rows, place, error, began)
            return
        for (i, ctx), answer in zip(wanted, answers, strict=True):
            self._answered(i, ctx, answer, began)

    async def _wanted(self, i: int, began: int) -> Context[Any] | None:
        """The row's context, or None when its condition said no or raised."""
        desk, step, place = self.desk, self.step, self.segment.first
        ctx = self.context(i)
        ctx.step, ctx.attempt = step.plan, desk.ledger.tracks[place].attempt[i]
        try:
            if step.when is None or await step.when(desk.rows[i], ctx):
                return ctx
        except BaseException as error:
            if is_ours(error):
                raise
            desk.raised(i, place, error, began)
            return None
        self._end(i, SKIPPED, began)
        return None

    def _answered(self, i: int, ctx: Context[Any], answer: Any, began: int) -> None:
        desk, place = self.desk, self.segment.first
        try:
            if isinstance(answer, BaseException):
                raise answer
            if answer is not None:
                desk.keep_output(i, place, ctx, self.step.encode(answer))
        except BaseException as error:  # an answer may be any exception
            desk.raised(i, place, error, began)
        else:
            self._end(i, COMPLETED, began)

    def _end(self, i: int, state: int, began: int) -> None:
        ledger, place = self.desk.ledger, self.segment.first
        track = ledger.tracks[place]
        track.began[i], track.took[i] = began - ledger.base, max(1, self.execution.clock.now_us() - began)
        track.state[i] = state
        ledger.at[i] = place + 1
        self.desk.left_segment(i, place + 1)


class LeaseOver(Exception):
    """No time is left in our lease: user code may not start."""


def _per_row(answers: Any, rows: int) -> Sequence[Any]:
    if answers is None:
        return [None] * rows
    if not isinstance(answers, Sequence) or isinstance(answers, str | bytes):
        raise WrongLength(f"the batch step returned {type(answers).__name__}; it must return None or a sequence")
    if len(answers) != rows:
        raise WrongLength(f"the batch step returned {len(answers)} answers for {rows} rows")
    return answers


def is_ours(error: BaseException) -> bool:
    """Whether the hand itself is being cancelled; a step may leak a CancelledError of its own."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


_JOBS: dict[str, type[RowsJob]] = {
    "await": AwaitJob,
    "thread": ThreadJob,
    "batch": BatchJob,
    "check": CheckJob,
    "validate": ValidateJob,
}


def job_for(
    execution: Execution, desk: Desk, segment: Segment, rows: Sequence[int], bell: asyncio.Event
) -> RowsJob:
    """The job that suits a segment; the bell is rung at its end."""
    return _JOBS[segment.manner](execution, desk, segment, rows, bell)
