"""An operation's runtime: all that stays the same while it runs in this process."""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, nullcontext
from datetime import datetime
from functools import partial
from typing import Any, BinaryIO

import msgspec

from penstock.blobs.model import StoredBytes
from penstock.clock import Clock, from_micros
from penstock.db.types import NotStorable, storable
from penstock.errors import PenstockError, SecretsUnreadable, StepFailed
from penstock.formats import Limits, Reader, open_reader
from penstock.operations.chunk.records import SIGNAL_KEY_MAX
from penstock.operations.rows.gates import Gate, Limiter, Pace, RuntimeLimit, StartLimit
from penstock.operations.rows.segments import Span, cut_spans
from penstock.operations.rows.step_threads import StepThreads
from penstock.operations.rows.task_pool import TaskPool
from penstock.operations.rows.verdicts import AttemptTimedOut, OutputLost, error_text
from penstock.pipeline import BatchContext, BoundStep, Definition, Done, Hook, Run, StepPlan
from penstock.pipeline.outputs import OUTPUT_BYTES_MAX
from penstock.pipeline.secret_values import mask_texts
from penstock.pipeline.signatures import is_async
from penstock.pipeline.tracing import traced
from penstock.secret_keys import SecretKeys

__all__ = ["Broken", "CannotRun", "DoesNotFit", "NoOutput", "OperationRuntime", "StepRuntime", "load_metadata"]

Call = Callable[[Any, Any], Any]


class NoOutput(enum.Enum):
    """What a step may return instead of an output."""

    SKIPPED = enum.auto()
    WAITING = enum.auto()


class StepRuntime:
    """One step bound to its pipeline, behind its gates.

    Its calls raise `Refused` when on the way to the user's code the lease has run out, or the runtime was over. The
    caller checks the limit before the call.
    """

    def __init__(
        self,
        plan: StepPlan,
        bound: BoundStep,
        *,
        clock: Clock,
        threads: StepThreads,
        start_limit: RuntimeLimit,
        output_bytes_max: int,
    ) -> None:
        self.plan, self.bound, self._start_limit, self._threads = plan, bound, start_limit, threads
        options = plan.options
        encode: Callable[[Any], bytes | None] = partial(plan.output.encode, bytes_max=output_bytes_max)
        self.encode = encode if options.delivery == "at_least_once" else _or_output_lost(encode)
        self._gate = Gate(options.concurrency) if options.concurrency else None
        self._pace = Pace(options.rate, clock.monotonic) if options.rate else None
        self.when = self._asked(bound.when, plan.functions.when)
        self.key = self._asked(bound.key, plan.functions.key)
        self.waits = plan.kind in ("poll", "signal")
        call: Call = bound.call if options.timeout is None else self._told_its_deadline(clock)
        seconds = options.timeout if plan.kind in ("plain", "batch") else None
        if not plan.is_async:
            call = self._on_thread(call, seconds)
        else:
            call = call if seconds is None else _timed(call, seconds)
            if self._gate is not None or self._pace is not None:
                call = self._gated(call)
        self.call: Callable[[Any, Any], Awaitable[Any]] = call
        is_bare = not (self.waits or self.when or self.key or options.timeout)
        self.run = call if is_bare else self._wrapped(clock)

    def _wrapped(self, clock: Clock) -> Call:
        """The call with its condition, time limit and wait; it returns `NoOutput` or an output."""

        async def wrapped(row: Any, ctx: Any) -> Any:
            if self.plan.options.timeout is not None:
                ctx.deadline = self.deadline(clock.now_us())
            try:
                if self.when is not None and not await self.when(row, ctx):
                    return NoOutput.SKIPPED
                key = None
                if self.key is not None:
                    self._start_limit.check()
                    key = ctx.signal_key = _signal_key(await self.key(row, ctx))
                self._start_limit.check()
                output = await self.call(row, ctx)
                ctx.signal_key = key  # the row waits for the key that it was given, whatever the step made of it
            finally:
                ctx.deadline = None  # the row's next step may have none, and shares this context
            if not self.waits:
                return output
            return output.output if isinstance(output, Done) else NoOutput.WAITING

        return wrapped

    def _told_its_deadline(self, clock: Clock) -> Call:
        """The user's function; when it must be over, its context says, however long it has waited for its limits."""

        def told(row: Any, ctx: Any) -> Any:
            deadline = self.deadline(clock.now_us())
            for each in ctx.rows if isinstance(ctx, BatchContext) else (ctx,):
                each.deadline = deadline
            return self.bound.call(row, ctx)

        return told

    def _gated(self, call: Call) -> Call:
        gate, pace = self._gate, self._pace

        async def gated(row: Any, ctx: Any) -> Any:
            async with gate.entered() if gate is not None else nullcontext():
                if pace is not None:
                    await pace.wait()
                self._start_limit.check()
                return await call(row, ctx)

        return gated

    def _on_thread(self, call: Call, seconds: float | None) -> Call:
        """The same for a plain function. Its rate lets it through when a thread is free for it, and not before: those
        that wait for one would begin together. But none holds a thread while it waits for its time.
        """
        gate, pace = self._gate, self._pace

        async def hop(row: Any, ctx: Any) -> Any:
            async with AsyncExitStack() as stack:
                if gate is not None:
                    await stack.enter_async_context(gate.entered())
                place = partial(stack.enter_async_context, self._threads.place())
                called = await (place() if pace is None else pace.wait(place))
                return await self._there(called, call, seconds)(row, ctx)

        return hop

    def _there(self, called: Callable[..., Awaitable[Any]], call: Call, seconds: float | None) -> Call:
        """A call at a place on a thread; its time limit is its own, not that of the wait for the place."""

        def there(row: Any, ctx: Any) -> Any:
            self._start_limit.check()  # all threads may have been busy for long
            return call(row, ctx)

        begun = partial(called, there)
        return begun if seconds is None else _timed(begun, seconds)

    def _asked(
        self, check: Call | None, declared: Callable[..., Any] | None
    ) -> Callable[[Any, Any], Awaitable[Any]] | None:
        """A condition or key; a plain function beside a step that is one may block as the step may."""
        if check is None:
            return None
        goes_there = declared is not None and not (self.plan.is_async or is_async(declared))

        async def asked(row: Any, ctx: Any) -> Any:
            if goes_there:
                async with self._threads.place() as called:
                    answer = await self._there(called, check, None)(row, ctx)
            else:
                answer = check(row, ctx)
            return await answer if inspect.isawaitable(answer) else answer

        return asked

    async def ask(self, row: Any, ctx: Any, seconds: float) -> Any:
        """What the step's check answers within this time."""
        check = self.bound.check
        assert check is not None
        if self.bound.check_is_async:
            return await _timed(check, seconds)(row, ctx)
        async with self._threads.place() as called:
            return await self._there(called, check, seconds)(row, ctx)

    def deadline(self, began: int) -> datetime:
        """When an attempt or a wait that begins now must be over."""
        assert self.plan.options.timeout is not None
        return from_micros(began + round(self.plan.options.timeout * 1e6))

    def limiters(self) -> Iterator[tuple[str, Limiter]]:
        """What its calls pass through, by the names of its limits."""
        if self._gate is not None:
            yield f"{self.plan.attribute}.concurrency", self._gate
        if self._pace is not None:
            yield f"{self.plan.attribute}.rate", self._pace


def _signal_key(key: Any) -> str:
    """The key that a row waits for, before its step begins; `StepFailed` when nothing could be sent to it."""
    if not isinstance(key, str) or not 0 < len(key) <= SIGNAL_KEY_MAX:
        found = f"one of {len(key)}" if isinstance(key, str) else type(key).__name__
        raise StepFailed(f"a signal key is text of 1 to {SIGNAL_KEY_MAX} characters, not {found}")
    try:
        return storable(key)
    except NotStorable as error:
        raise StepFailed(f"the signal key cannot be stored: {error}") from error


def _or_output_lost(encode: Callable[[Any], bytes | None]) -> Callable[[Any], bytes | None]:
    """The same for an at-most-once step: when its output cannot be stored, the call has not failed."""

    def encoded(output: Any) -> bytes | None:
        try:
            return encode(output)
        except Exception as error:
            raise OutputLost(error_text(error)) from error

    return encoded


def _timed(call: Call, seconds: float) -> Call:
    async def timed(row: Any, ctx: Any) -> Any:
        try:
            async with asyncio.timeout(seconds) as limit:
                return await call(row, ctx)
        except TimeoutError as error:
            # The step may raise a TimeoutError of its own; only ours ends the attempt as timed out.
            if limit.expired():
                raise AttemptTimedOut(seconds) from error
            raise

    return timed


class OperationRuntime:
    """One operation in this process: its code, its metadata, its limits."""

    def __init__(
        self,
        *,
        number: int,
        file_format: str,
        file: StoredBytes,
        definition: Definition,
        pipeline: object,
        run: Run,
        columns: Sequence[str] | None,
        task_pool: TaskPool,
        clock: Clock,
        jitter: random.Random,
        threads: StepThreads,
        start_limit: StartLimit,
        output_bytes_max: int = OUTPUT_BYTES_MAX,
        trace_ratio: float = 0,
    ) -> None:
        self.log = logging.getLogger(f"penstock.operations.{run.operation_name}")
        self.number, self.file_format, self.file = number, file_format, file
        self.definition, self.pipeline, self.run, self.task_pool = definition, pipeline, run, task_pool
        self.clock, self.jitter, self.threads = clock, jitter, threads
        self.start_limit = RuntimeLimit(start_limit)
        self.may_start = self.start_limit.may_start
        self.spans: tuple[Span, ...] = cut_spans(definition.steps)
        self.boundaries = frozenset(span.stop for span in self.spans)
        self.steps = tuple(
            StepRuntime(
                step,
                traced(step.bind(pipeline), step, trace_ratio),
                clock=clock,
                threads=threads,
                start_limit=self.start_limit,
                output_bytes_max=output_bytes_max,
            )
            for step in definition.steps
        )
        self.limiters = dict(limiter for step in self.steps for limiter in step.limiters())
        self.validators = _validators(definition, pipeline)
        self.use_columns(columns)
        self._secrets = definition.meta.secrets(run.meta)
        self.has_secrets = bool(self._secrets or definition.row.secret_names)
        self.is_cancelled = False
        run.is_cancelled = lambda: self.is_cancelled

    def end(self) -> None:
        """Let nothing begin here any more, because the pipeline's lifespan has ended; rows that wait at a limit are put
        back at once.
        """
        self.start_limit.is_over = True
        for limiter in self.limiters.values():
            limiter.hold(0, rests=False)

    def without_secrets(self, text: str, raw: Any) -> str:
        """A text about a row, as it may be stored and shown: texts of user code may repeat a secret."""
        if not self.has_secrets:
            return text
        return mask_texts(text, [*self._secrets, *self.definition.row.secret_texts(raw, self.columns)])

    def open_reader(self, stream: BinaryIO, limits: Limits) -> Reader:
        """A reader of the operation's file, or of one like it."""
        return open_reader(stream, format=self.file_format, schema=self.definition.row.schema, limits=limits)

    def use_columns(self, columns: Sequence[str] | None) -> None:
        """Rows come as cells of these columns, or as records when there are none."""
        self.columns = None if columns is None else tuple(columns)
        row = self.definition.row
        self.parse, self.parse_many = row.parser(self.columns), row.parser_of_many(self.columns)
        self.check = row.checker(self.columns)


def _validators(definition: Definition, pipeline: object) -> tuple[Hook, ...]:
    """The operation's own checks of a row and the metadata, in the order in which they are asked."""
    own = definition.validate_row
    if own is None:
        return definition.validators
    return (*definition.validators, Hook(partial(own.call, pipeline), own.is_async))


def load_metadata(definition: Definition, operation: str, stored: Any, encrypted: str | None, keys: SecretKeys) -> Any:
    """The metadata of an operation, from its record; `SecretsUnreadable` when this process has not the key."""
    if encrypted is not None:
        try:
            stored = msgspec.json.decode(keys.decrypt(encrypted))
        except SecretsUnreadable as error:
            raise SecretsUnreadable(f"the secrets of operation {operation} cannot be decrypted: {error}") from error
    return definition.meta.load(stored)


class Broken(PenstockError):
    """The operation cannot go on with the code and files that are here now."""


class CannotRun(PenstockError):
    """The operation cannot be run by this worker now; later, or elsewhere, it may."""


class DoesNotFit(CannotRun):
    """The code of this worker is not the code that the operation was planned for."""

    def __init__(self, differences: Sequence[str]) -> None:
        super().__init__("; ".join(differences))
