"""Rows of one chunk on their way through one segment: awaited, on threads, or in batches.

Outcomes go straight into the chunk's ledger and records in memory, always on the loop's thread; nothing here
touches the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.operations.execution import Execution
from penstock.operations.ledger import COMPLETED, SKIPPED
from penstock.operations.outcomes import Desk, WrongLength
from penstock.operations.spans import Segment
from penstock.pipeline import BatchContext, Context

__all__ = ["AwaitJob", "BatchJob", "ThreadJob", "make_job"]

SLICE_US = 20_000  # how long a hand keeps the loop, or a thread its rows, before others get a turn


class LeaseOver(Exception):
    """No time is left in our lease: user code may not start."""


class _Rows:
    """What the three kinds of job share: which rows are still to be taken, and when all are finished."""

    def __init__(self, execution: Execution, desk: Desk, segment: Segment, rows: Sequence[int]) -> None:
        self.execution, self.desk, self.segment = execution, desk, segment
        self.todo: Iterator[int] = iter(rows)
        self.left = len(rows)
        self.done = asyncio.Event()
        if not rows:
            self.done.set()

    def units(self) -> int:
        return self.left

    def finished(self, rows: int) -> None:
        self.left -= rows
        if not self.left:
            self.done.set()

    def context(self, i: int) -> Context[Any]:
        desk = self.desk
        return Context(
            self.execution.run, desk.held.first_row + i, desk.keys[i], desk.ledger.generation[i], desk.outputs(i)
        )


class AwaitJob(_Rows):
    """Each row is awaited through the segment's steps on the loop."""

    async def pull(self) -> bool:
        now = self.execution.clock.now_us
        until = now() + SLICE_US
        took_any = False
        for i in self.todo:
            took_any = True
            try:
                await self._row(i)
            finally:
                self.finished(1)
            if now() > until:
                break
        return took_any

    async def _row(self, i: int) -> None:
        execution, desk = self.execution, self.desk
        if not execution.may_start():
            return
        ledger, row, now = desk.ledger, desk.rows[i], execution.clock.now_us
        tracks, base, stop = ledger.tracks, ledger.base, self.segment.stop
        ctx = self.context(i)
        place = ledger.at[i]
        began = now()
        while True:
            step, track = execution.steps[place - 1], tracks[place]
            ctx.step, ctx.attempt = step.plan, track.attempt[i]
            try:
                if step.when is not None and not await step.when(row, ctx):
                    state = SKIPPED
                else:
                    output = await step.call(row, ctx)
                    state = COMPLETED
                    if output is not None:
                        desk.keep_output(i, place, ctx, step.encode(output))
            except BaseException as error:
                if _is_ours(error):
                    raise
                desk.raised(i, place, error, began)
                return
            ended = now()
            track.began[i], track.took[i] = began - base, ended - began or 1
            track.state[i] = state
            place += 1
            ledger.at[i] = place
            if place >= stop:
                desk.left_segment(i, place)
                return
            tracks[place].attempt[i] += 1
            began = ended


class ThreadJob(_Rows):
    """Rows run through the segment's sync steps on a thread, as many to a hop as fit into a slice."""

    async def pull(self) -> bool:
        loop = asyncio.get_running_loop()
        results = await loop.run_in_executor(self.execution.threads, self._hop)
        for i, steps, error, began in results:
            self._apply(i, steps, error, began)
        self.finished(len(results))
        return bool(results)

    def _hop(self) -> list[tuple[int, list[tuple[int, int, int, bytes | None]], BaseException | None, int]]:
        now = self.execution.clock.now_us
        until = now() + SLICE_US
        results = []
        for i in self.todo:
            results.append(self._row(i))
            if now() > until:
                break
        return results

    def _row(self, i: int) -> tuple[int, list[tuple[int, int, int, bytes | None]], BaseException | None, int]:
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
                    if output is not None:
                        encoded = step.encode(output)
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
                track.outputs[i] = output
            place += 1
            ledger.at[i] = place
            if place < self.segment.stop:
                ledger.tracks[place].attempt[i] += 1
        if error is None:
            self.desk.left_segment(i, place)
        elif not isinstance(error, LeaseOver):
            self.desk.raised(i, place, error, began)


class BatchJob(_Rows):
    """The step gets many rows at once and answers for each."""

    def __init__(self, execution: Execution, desk: Desk, segment: Segment, rows: Sequence[int]) -> None:
        super().__init__(execution, desk, segment, rows)
        self.step = execution.steps[segment.first - 1]
        self.batches = iter(self._batches(rows))

    def _batches(self, rows: Sequence[int]) -> list[list[int]]:
        """Rows that share a number of errors go together; past the retries each error halves their batch."""
        options = self.step.plan.options
        by_errors: dict[int, list[int]] = {}
        for i in rows:
            by_errors.setdefault(self.desk.errors(i, self.segment.first), []).append(i)
        batches = []
        for errors, group in sorted(by_errors.items()):
            size = max(1, options.size >> max(0, errors - options.retries))
            batches += [group[k : k + size] for k in range(0, len(group), size)]
        return batches

    async def pull(self) -> bool:
        batch = next(self.batches, None)
        if batch is None:
            return False
        try:
            await self._batch(batch)
        finally:
            self.finished(len(batch))
        return True

    async def _batch(self, batch: list[int]) -> None:
        execution, desk, step, place = self.execution, self.desk, self.step, self.segment.first
        if not execution.may_start():
            return
        now = execution.clock.now_us
        contexts, chosen = [], []
        track = desk.ledger.tracks[place]
        began = now()
        for i in batch:
            ctx = self.context(i)
            ctx.step, ctx.attempt = step.plan, track.attempt[i]
            try:
                wanted = step.when is None or await step.when(desk.rows[i], ctx)
            except BaseException as error:
                if _is_ours(error):
                    raise
                desk.raised(i, place, error, began)
                continue
            if wanted:
                contexts.append(ctx)
                chosen.append(i)
            else:
                self._end(i, SKIPPED, began, now())
        if not chosen:
            return
        try:
            answers = await step.call([desk.rows[i] for i in chosen], BatchContext(execution.run, step.plan, contexts))
            answers = _per_row(answers, len(chosen))
        except BaseException as error:
            if _is_ours(error):
                raise
            desk.raised_by_batch(chosen, place, error, began)
            return
        ended = now()
        for i, ctx, answer in zip(chosen, contexts, answers, strict=True):
            try:
                if isinstance(answer, BaseException):
                    raise answer
                if answer is not None:
                    desk.keep_output(i, place, ctx, step.encode(answer))
            except BaseException as error:
                desk.raised(i, place, error, began)
            else:
                self._end(i, COMPLETED, began, ended)

    def _end(self, i: int, state: int, began: int, ended: int) -> None:
        ledger, place = self.desk.ledger, self.segment.first
        track = ledger.tracks[place]
        track.began[i], track.took[i], track.state[i] = began - ledger.base, ended - began or 1, state
        ledger.at[i] = place + 1
        self.desk.left_segment(i, place + 1)


def _per_row(answers: Any, rows: int) -> Sequence[Any]:
    if answers is None:
        return [None] * rows
    if not isinstance(answers, Sequence) or isinstance(answers, str | bytes):
        raise WrongLength(f"the batch step returned {type(answers).__name__}; it must return None or a sequence")
    if len(answers) != rows:
        raise WrongLength(f"the batch step returned {len(answers)} answers for {rows} rows")
    return answers


def _is_ours(error: BaseException) -> bool:
    """Whether the hand itself is being cancelled; a step may leak a CancelledError of its own."""
    if isinstance(error, GeneratorExit):
        return True
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def make_job(
    execution: Execution, desk: Desk, segment: Segment, rows: Sequence[int]
) -> AwaitJob | ThreadJob | BatchJob:
    """The job that suits a segment."""
    kind = {"await": AwaitJob, "thread": ThreadJob, "batch": BatchJob}[segment.manner]
    return kind(execution, desk, segment, rows)
