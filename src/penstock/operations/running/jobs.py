"""Jobs that run rows through a segment: awaited, on threads, in batches, or polled whether they are done.

Outcomes are noted in `ChunkProgress`, always on the loop's thread; nothing here touches the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.operations.chunk.ledger import COMPLETED, SKIPPED, WAITING
from penstock.operations.messages import shown
from penstock.operations.rows.gates import Refused
from penstock.operations.rows.runtime import NoOutput, StepRuntime
from penstock.operations.rows.segments import Segment
from penstock.operations.rows.task_pool import SLICE_NS, LoopSlice, is_ours
from penstock.operations.rows.verdicts import AttemptTimedOut, WrongLength
from penstock.operations.running.chunk_progress import ChunkProgress
from penstock.operations.running.job import RowsJob
from penstock.operations.running.validation_jobs import ReadJob, ValidateJob
from penstock.pipeline import BatchContext, Context, Done
from penstock.pipeline.rows import TOGETHER

__all__ = ["job_for"]


class AwaitJob(RowsJob):
    """Each row is awaited through the segment's steps on the loop.

    This is the innermost loop of the engine, run once for every row: what does not change is looked up before it.
    Rows are parsed shortly before they run and dropped when they are through, so that they stay in the cache.
    """

    def __init__(self, progress: ChunkProgress, segment: Segment, rows: Sequence[int], ended: asyncio.Event) -> None:
        super().__init__(progress, segment, rows, ended)
        self.todo = self._parsed(rows)

    def _parsed(self, rows: Sequence[int]) -> Iterator[int]:
        progress, in_flight = self.progress, self.progress.ledger.in_flight
        for k in range(0, len(rows), TOGETHER):
            block = rows[k : k + TOGETHER]
            if not self.is_withdrawn:
                progress.parse(block)
            for i in block:
                if in_flight[i]:
                    yield i
                else:  # it no longer fits its model
                    self.finished(1)

    async def take(self) -> bool:
        runtime, progress, stop = self.runtime, self.progress, self.segment.stop
        ledger, now, limit = progress.ledger, runtime.clock.ticks_ns, runtime.start_limit
        base = ledger.base * 1000 - runtime.clock.offset_ns
        at, rows, legs, has_outputs = ledger.at, progress.rows, self._legs(), progress.has_outputs
        run, first_row, generation = runtime.run, progress.owned.first_row, ledger.generation
        is_last = stop > ledger.steps
        until = now() + SLICE_NS
        for i in self.todo:
            row = rows[i]
            ctx = Context(run, first_row + i, generation[i], progress.outputs(i) if has_outputs else None, row)
            began, more = now(), 0
            try:
                for place, call, ctx.step, attempts, begans, tooks, states in legs[at[i]]:
                    attempts[i] = ctx.attempt = attempts[i] + more
                    if began >= limit.until_ns:
                        progress.refuse((i,))
                        break
                    state = COMPLETED
                    try:
                        output = await call(row, ctx)
                        if output is not None:
                            state = self._led_to(output, i, place, ctx, began - base)
                            if state == WAITING:
                                break
                    except BaseException as error:
                        if is_ours(error):
                            raise
                        progress.raised(i, place, error, ledger.base + (began - base) // 1000)
                        break
                    ended = now()
                    begans[i] = (began - base) // 1000
                    tooks[i] = (ended - began) // 1000 or 1
                    states[i] = state
                    at[i] = place + 1
                    began, more = ended, 1
                else:
                    progress.left_segment(i, stop)
                    if is_last:
                        rows[i] = None
            finally:
                self.left -= 1
                if not self.left:
                    self._ended.set()
            if began > until:  # other tasks run, and the lease is checked again
                return True
        return False

    def _legs(self) -> dict[int, list[Any]]:
        """By the place of a row: the steps it has to run, and the columns they are noted in."""
        steps, tracks = self.runtime.steps, self.progress.ledger.tracks
        first, stop = self.segment.first, self.segment.stop
        legs = [
            (place, steps[place - 1].run, steps[place - 1].plan, track.attempt, track.began, track.took, track.state)
            for place, track in enumerate(tracks[first:stop], first)
        ]
        return {place: legs[place - first :] for place in range(first, stop)}

    def _led_to(self, output: Any, i: int, place: int, ctx: Context[Any], began: int) -> int:
        """Note what a step returned, and return its state."""
        progress = self.progress
        if output is NoOutput.WAITING:
            progress.park(i, place, progress.ledger.base + began // 1000, ctx.signal_key)
            return WAITING
        if output is NoOutput.SKIPPED:
            return SKIPPED
        progress.keep_output(i, place, ctx, self.runtime.steps[place - 1].encode(output))
        return COMPLETED


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
        progress, place = self.progress, self.segment.first
        step = self.runtime.steps[place - 1]
        try:
            answer = await step.ask(progress.rows[i], self.context(i, place), progress.left_to_wait_s(i, place))
            output = step.encode(answer.output) if isinstance(answer, Done) else None
        except BaseException as error:
            if is_ours(error):
                raise
            if isinstance(error, Refused):
                progress.refuse((i,))
            elif isinstance(error, AttemptTimedOut):
                progress.owned.time_out(i, place, self.runtime.clock.now_us())
            else:
                progress.check_raised(i, place, error)
            return
        if isinstance(answer, Done) or answer is True:
            if output is not None:
                progress.store_output(i, place, output)
            progress.owned.end_wait(i, place, "poll_succeeded", self.runtime.clock.now_us())
        elif answer is False:
            progress.ask_again(i, place)
        else:
            progress.check_raised(i, place, TypeError(f"a check returns True, False or Done(…), not {shown(answer)}"))


Ran = tuple[int, list[tuple[int, int, int, bytes | None]], BaseException | None, int]


class ThreadJob(RowsJob):
    """Rows run through the segment's sync steps on a thread, as many to a hop as fit into a slice."""

    async def take(self) -> bool:
        results = await self.runtime.threads.run(self._hop)
        for i, steps, error, began in results:
            self._apply(i, steps, error, began)
        self.finished(len(results))
        return bool(results)

    def _hop(self) -> list[Ran]:
        now = self.runtime.clock.now_ns
        until = now() + SLICE_NS
        results = []
        for i in self.todo:
            results.append(self._row(i))
            if now() > until:
                break
        return results

    def _row(self, i: int) -> Ran:
        runtime, progress = self.runtime, self.progress
        now, row = runtime.clock.now_us, progress.rows[i]
        steps: list[tuple[int, int, int, bytes | None]] = []
        began = now()
        ctx = self.context(i, progress.ledger.at[i])
        for place in range(progress.ledger.at[i], self.segment.stop):
            step = runtime.steps[place - 1]
            ctx.step, ctx.attempt = step.plan, progress.ledger.tracks[place].attempt[i] + (1 if steps else 0)
            encoded = None
            try:
                self._check_start()
                if step.bound.when is not None and not step.bound.when(row, ctx):
                    state = SKIPPED
                else:
                    self._check_start()
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

    def _check_start(self) -> None:
        """Raise unless user code may start: who cuts a job off cannot cancel its threads."""
        if self.is_cut_off:
            raise Refused
        self.runtime.start_limit.check()

    def _apply(
        self, i: int, steps: list[tuple[int, int, int, bytes | None]], error: BaseException | None, began: int
    ) -> None:
        ledger = self.progress.ledger
        place = ledger.at[i]
        for state, start, took, output in steps:
            track = ledger.tracks[place]
            track.began[i], track.took[i], track.state[i] = start - ledger.base, took, state
            if output is not None:
                self.progress.store_output(i, place, output)
            place += 1
            ledger.at[i] = place
            if place < self.segment.stop:
                ledger.tracks[place].attempt[i] += 1
        if error is None:
            self.progress.left_segment(i, place)
        else:
            self.progress.raised(i, place, error, began)


class BatchJob(RowsJob):
    """The step gets many rows at once and answers for each."""

    def __init__(self, progress: ChunkProgress, segment: Segment, rows: Sequence[int], ended: asyncio.Event) -> None:
        super().__init__(progress, segment, rows, ended)
        self.step: StepRuntime = self.runtime.steps[segment.first - 1]
        self.batches = self._batches(rows)

    def _batches(self, rows: Sequence[int]) -> Iterator[list[int]]:
        """Rows that share a number of errors go together; past the retries each error halves their batch."""
        options = self.step.plan.options
        by_errors: dict[int, list[int]] = {}
        for i in rows:
            by_errors.setdefault(self.progress.errors(i, self.segment.first), []).append(i)
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
            await self._batch(batch)
        finally:
            self.finished(len(batch))
        return True

    async def _batch(self, batch: list[int]) -> None:
        progress, step, place, now = self.progress, self.step, self.segment.first, self.runtime.clock.now_us
        began, time = now(), LoopSlice(self.runtime.clock.now_ns)
        for k in range(0, len(batch), TOGETHER):
            progress.parse(batch[k : k + TOGETHER])
            await time.share()
        # Those that are no longer in flight failed to parse.
        wanted = [(i, self.context(i, place)) for i in batch if progress.ledger.in_flight[i]]
        if step.when is not None:
            wanted = [(i, ctx) for i, ctx in wanted if await self._is_wanted(i, ctx, began)]
        if not wanted:
            return
        rows = [i for i, _ in wanted]
        contexts = [ctx for _, ctx in wanted]
        together = BatchContext(self.runtime.run, step.plan, contexts, max(ctx.attempt for ctx in contexts))
        try:
            self.runtime.start_limit.check()
            given = await step.call([progress.rows[i] for i in rows], together)
            answers = _per_row(given, len(rows))
        except BaseException as error:
            if is_ours(error):
                raise
            progress.raised_by_batch(rows, place, error, began)
            return
        took = max(1, now() - began)
        for (i, ctx), answer in zip(wanted, answers, strict=True):
            if answer is None or self._is_kept(i, ctx, answer, began):
                self._end(i, COMPLETED, began, took)

    async def _is_wanted(self, i: int, ctx: Context[Any], began: int) -> bool:
        """Whether the row's `when` condition holds; otherwise its outcome is noted: skipped, or what was raised."""
        assert self.step.when is not None
        try:
            self.runtime.start_limit.check()
            if await self.step.when(self.progress.rows[i], ctx):
                return True
        except BaseException as error:
            if is_ours(error):
                raise
            self.progress.raised(i, self.segment.first, error, began)
            return False
        self._end(i, SKIPPED, began, max(1, self.runtime.clock.now_us() - began))
        return False

    def _is_kept(self, i: int, ctx: Context[Any], answer: Any, began: int) -> bool:
        """Whether the row's answer is an output and was stored; otherwise the attempt has failed."""
        try:
            if isinstance(answer, BaseException):
                raise answer
            self.progress.keep_output(i, self.segment.first, ctx, self.step.encode(answer))
        except BaseException as error:  # an answer may be any exception
            self.progress.raised(i, self.segment.first, error, began)
            return False
        return True

    def _end(self, i: int, state: int, began: int, took: int) -> None:
        ledger, stop = self.progress.ledger, self.segment.stop
        track = ledger.tracks[self.segment.first]
        track.began[i], track.took[i], track.state[i] = began - ledger.base, took, state
        ledger.at[i] = stop
        self.progress.left_segment(i, stop)
        if stop > ledger.steps:
            self.progress.rows[i] = None


def _per_row(answers: Any, rows: int) -> Sequence[Any]:
    if answers is None:
        return [None] * rows
    if not isinstance(answers, Sequence) or isinstance(answers, str | bytes):
        raise WrongLength(f"the batch step returned {type(answers).__name__}; it must return None or a sequence")
    made = list(answers)  # a user's sequence may make its items as they are read
    if len(made) != rows:
        raise WrongLength(f"the batch step returned {len(made)} answers for {rows} rows")
    return made


_JOBS: dict[str, type[RowsJob]] = {
    "await": AwaitJob,
    "thread": ThreadJob,
    "batch": BatchJob,
    "check": CheckJob,
    "validate": ValidateJob,
}


def job_for(progress: ChunkProgress, segment: Segment, rows: Sequence[int], ended: asyncio.Event) -> RowsJob:
    """The job for a segment; `ended` is set at its end."""
    if segment.manner == "validate" and progress.unread is not None:
        return ReadJob(progress, segment, rows, ended)
    return _JOBS[segment.manner](progress, segment, rows, ended)
