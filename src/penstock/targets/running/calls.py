"""What a bulk call is about, a batch on its way, and who makes the calls, each in a slot of the pool."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property, partial
from itertools import count
from typing import Any, TypeVar

from penstock.targets.model import BulkOptions, ErrorKind, Mode, RecordId, TargetError, Verdict
from penstock.targets.pool import CallQueue, Pool, PoolExhausted, Priority
from penstock.targets.rules.batch_size import BatchSize
from penstock.targets.rules.isolation import Isolation
from penstock.targets.rules.retry import Act, RetryPolicy, after_lost_question
from penstock.targets.running.input import is_cancelled
from penstock.targets.target import Answer, Batch, Capabilities, RequestCounter, Target

__all__ = ["CallPostponed", "CallSpec", "Caller", "PendingBatch", "SendMode"]

log = logging.getLogger("penstock.targets")

SWAPS_MAX = 10
EXHAUSTED_WAIT_MAX_S = 32.0

Told = TypeVar("Told")


@dataclass
class CallSpec:
    """The subject of a bulk call; `capabilities` are set once the target has described the table."""

    target: Target
    table: str
    mode: Mode
    options: BulkOptions
    call_id: str = ""
    capabilities: Capabilities = field(default_factory=Capabilities)

    def batch(self, records: Sequence[Any], key: str, indexes: Sequence[int] = ()) -> Batch:
        return Batch(self.table, self.mode, records, self.options, key, self.call_id, indexes)

    @cached_property
    def identity(self) -> Callable[[Any], Hashable | None] | None:
        """What makes two records the same one, asked once the table is described; None when the target does not say."""
        return self.target.identifier(self.table, self.mode, self.options)

    @property
    def size(self) -> Callable[[Any], int] | None:
        """What a record weighs; None when the target does not say."""
        return None if type(self.target).size is Target.size else self.target.size

    def own_id(self, record: Any) -> RecordId:
        """The id a record already had, for reports."""
        if self.mode is Mode.DELETE:
            return record
        field = self.capabilities.id_field
        return record.get(field) if field is not None and hasattr(record, "get") else None


class SendMode(Enum):
    """What the next call for a batch does."""

    SEND = auto()  # all records as one batch
    EACH = auto()  # every record on its own
    ASK = auto()  # find out what became of them


@dataclass(slots=True, eq=False)
class PendingBatch:
    """Records that go to the remote in one call. Pieces of it inherit what it went through."""

    indexes: Sequence[int]
    """Their positions in the input; a range when nothing was held back."""
    records: Sequence[Any]
    key: str
    identities: Sequence[Hashable | None] | None = None
    send_mode: SendMode = SendMode.SEND
    priority: Priority = Priority.NEW
    wait_s: float = 0.0
    """How long to wait before the next call."""
    tries: Counter[ErrorKind] = field(default_factory=Counter)
    """Refusals so far, by class."""
    lost_questions: Counter[ErrorKind] = field(default_factory=Counter)
    """Refusals of the question what became of it."""
    silent_since_s: float | None = None
    """Since when this work, and nobody else either, got an answer."""
    is_outage: bool = False
    """The remote answers nobody: the work waits for it."""
    lost: TargetError | None = None
    """Why an earlier call was not answered; it may have taken effect, or do so late."""
    is_asked: bool = False
    """The remote was asked since, and did not know these records."""
    refusal: TargetError | None = None
    """What the remote said to a later call; believed once it was asked what became of the lost one."""
    verdicts: Sequence[Verdict] | None = None
    """The same, where it spoke of each record."""
    answers: list[Verdict | None] = field(default_factory=list)
    """What it said so far to the question what became of the first records."""
    isolation: Isolation | None = None
    source: str = ""
    """The source of the last call."""

    def __len__(self) -> int:
        return len(self.records)

    @property
    def unresolved(self) -> TargetError | None:
        """Set while a call may have taken effect and nobody has asked."""
        return None if self.is_asked else self.lost

    def lose(self, error: TargetError) -> None:
        """A call was not answered."""
        self.lost, self.is_asked, self.refusal, self.verdicts = error, False, None, None

    def believe(self) -> None:
        """What was said last holds: no earlier call took effect."""
        self.lost, self.is_asked, self.refusal, self.verdicts = None, False, None, None

    def part(self, positions: Sequence[int], key: str, send_mode: SendMode = SendMode.SEND) -> PendingBatch:
        """Some of its records as work of their own; the same work when they are all."""
        if len(positions) == len(self.records):
            self.key, self.send_mode = key, send_mode
            return self
        return PendingBatch(
            indexes=_chosen(self.indexes, positions),
            records=_chosen(self.records, positions),
            key=key,
            identities=None if self.identities is None else _chosen(self.identities, positions),
            send_mode=send_mode,
            priority=Priority.PIECE,
            tries=self.tries.copy(),
            lost=self.lost,
            is_asked=self.is_asked,
            isolation=self.isolation,
            source=self.source,
        )


def _chosen(values: Sequence[Any], positions: Sequence[int]) -> Sequence[Any]:
    if isinstance(positions, range):
        return values[positions.start : positions.stop]
    return [values[position] for position in positions]


class CallPostponed(Exception):
    """Raised by who is asked to call: the slot came too late, nothing was sent."""


class Caller:
    """Makes the calls of one bulk call, and knows which of them are under way.

    `is_held` is asked once a batch has its slot; a batch that must wait after all is not sent.
    """

    def __init__(
        self,
        spec: CallSpec,
        pool: Pool,
        policy: RetryPolicy,
        is_held: Callable[[PendingBatch], bool] = lambda work: False,
    ) -> None:
        self._spec, self.pool, self.policy, self._is_held = spec, pool, policy, is_held
        self.queue = CallQueue(spec.options.max_parallel_batches)
        self.size = BatchSize(spec.options, spec.capabilities)
        self.in_flight: set[PendingBatch] = set()
        self.calls = 0
        """Calls for records."""
        self.counter = RequestCounter()
        self._calls = 0
        pool.enter()

    @property
    def requests(self) -> int:
        """Requests so far; a target that does not count them makes one in each call."""
        return max(self.counter.count, self._calls)

    async def describe(self) -> None:
        """Learn what the table can do; raises the `TargetError` that no retry could avoid."""
        spec, pool, policy = self._spec, self.pool, self.policy
        tries: Counter[ErrorKind] = Counter()
        while True:
            try:
                spec.capabilities = await self.call(partial(spec.target.describe, spec.table, spec.mode, spec.options))
                self.size = BatchSize(spec.options, spec.capabilities)
                return
            except TargetError as error:
                tries[error.kind] += 1
                move = after_lost_question(error, tries, policy)
                if move.act is Act.AGAIN and move.retry:
                    await pool.sleep(policy.wait_s(move.retry, pool.entropy.jitter))
                elif move.act is not Act.AGAIN:
                    if error.kind is not ErrorKind.CONNECTION or not 0 < pool.silent_s < policy.outage_s:
                        raise
                    await pool.sleep(policy.outage_wait_s(pool.silent_s))

    async def send(self, work: PendingBatch) -> Answer:
        """Send the batch as its `send_mode` says; `CallPostponed` when it must wait although it had a slot."""
        return await self.call(partial(self._send, work), work.priority)

    async def ask(self, work: PendingBatch) -> Sequence[Verdict | None]:
        """Ask what became of the next records of the work, those that it has no answers for."""
        return await self.call(partial(self._ask, work), work.priority)

    async def call(self, ask: Callable[[str], Awaitable[Told]], priority: Priority = Priority.NEW) -> Told:
        """Ask when there is a slot, on its source; whatever goes wrong is raised as a `TargetError`."""
        target, source = self._spec.target, await self._slot(priority)
        generation = self.pool.source_refresh.generation(target, source)
        self._calls += 1
        try:
            told = await self._asked(ask, source)
            self.pool.answered(source, told.width_hint if isinstance(told, Answer) else None)
            return told
        except TargetError as error:
            self.pool.refused(source, error, self.policy)
            if error.kind in (ErrorKind.TOKEN, ErrorKind.CONNECTION):
                await self.pool.source_refresh.renew(target, source, generation)
            raise
        finally:
            # Whoever waits for this slot runs only after the caller has acted on what was told.
            self.pool.release(self.queue, source)

    async def _asked(self, ask: Callable[[str], Awaitable[Told]], source: str) -> Told:
        try:
            return await ask(source)
        except (TargetError, CallPostponed):
            raise
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled() and isinstance(error, asyncio.CancelledError):
                raise
            log.warning("%s raised what is no TargetError", self._spec.target.name, exc_info=error)
            # Nobody knows how far it came, so this is never simply sent again.
            raise TargetError(f"{type(error).__name__}: {error}", maybe_applied=True) from error

    async def _slot(self, priority: Priority) -> str:
        """A slot on a source that is not throttled; after ten swaps whichever comes, so that the call goes on."""
        source = await self._acquired(priority)
        for _ in range(SWAPS_MAX):
            if not self.pool.is_throttled(source):
                return source
            self.pool.release(self.queue, source)
            source = await self._acquired(priority)
        if self.pool.is_throttled(source):
            log.warning("%d sources in a row were throttled; calling on %r all the same", SWAPS_MAX, source)
        return source

    async def _acquired(self, priority: Priority) -> str:
        for attempt in count():
            try:
                return await self.pool.acquire(self.queue, priority, self.policy)
            except PoolExhausted as error:
                pause_s = min(2.0**attempt, EXHAUSTED_WAIT_MAX_S)
                log.warning("%s; trying again in %g s", error, pause_s)
                await self.pool.sleep(pause_s)
        raise AssertionError("count() never ends")

    @contextmanager
    def _under_way(self, work: PendingBatch, source: str) -> Iterator[None]:
        work.source = source
        self.calls += 1
        self.in_flight.add(work)
        try:
            yield
        finally:
            self.in_flight.discard(work)

    async def _send(self, work: PendingBatch, source: str) -> Answer:
        if self._is_held(work):
            raise CallPostponed
        target, clock = self._spec.target, self.pool.clock
        send = target.send_each if work.send_mode is SendMode.EACH else target.send
        began_s = clock.monotonic()
        with self._under_way(work, source):
            try:
                answer = await send(self._spec.batch(work.records, work.key, work.indexes), source)
            except BaseException as error:
                # Set here and not where it is acted on: the call may be stopped before anyone acts.
                if (unresolved := _lost_call(error)) is not None:
                    work.lose(unresolved)
                raise
        _check_count(answer.verdicts, len(work), maybe_applied=True)
        if work.send_mode is SendMode.SEND:
            self.size.answered(len(work), clock.monotonic() - began_s)
        return answer

    async def _ask(self, work: PendingBatch, source: str) -> Sequence[Verdict | None]:
        first, asked_max = len(work.answers), self._spec.capabilities.asked_records_max or len(work)
        asked = slice(first, first + asked_max)
        batch = self._spec.batch(work.records[asked], work.key, work.indexes[asked])
        with self._under_way(work, source):
            known = await self._spec.target.reconcile(batch, source)
        _check_count(known, len(batch), maybe_applied=False)
        return known


def _lost_call(error: BaseException) -> TargetError | None:
    """Why a call that ended so may have taken effect; None when it surely did not.

    A target whose call is cancelled may give a `TargetError` as the cause, if it knows.
    """
    if isinstance(error, asyncio.CancelledError) and isinstance(error.__cause__, TargetError):
        error = error.__cause__
    if isinstance(error, TargetError):
        return error if error.maybe_applied else None
    if isinstance(error, asyncio.CancelledError):
        return TargetError("stopped before the remote answered", kind=ErrorKind.CONNECTION, maybe_applied=True)
    return TargetError(f"{type(error).__name__}: {error}", maybe_applied=True)


def _check_count(verdicts: Sequence[object], records: int, *, maybe_applied: bool) -> None:
    if len(verdicts) != records:
        message = f"{len(verdicts)} verdicts came for {records} records"
        raise TargetError(message, code="BadAnswer", maybe_applied=maybe_applied)
