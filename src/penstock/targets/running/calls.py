"""One call to the target: in a slot of the pool, after a look at the throttles; the pool is told how it went."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import TypeVar

from penstock.targets.model import ErrorKind, TargetError, Verdict
from penstock.targets.pool import Pool, PoolExhausted
from penstock.targets.request_count import RequestCounter
from penstock.targets.rules.batch_size import BatchSize
from penstock.targets.rules.retry import RetryPolicy
from penstock.targets.running.batch import CallSpec, PendingBatch, SendMode
from penstock.targets.running.waiters import CallQueue, Priority
from penstock.targets.target import Answer, Target

__all__ = ["SWAPS_MAX", "CallPostponed", "Sender", "SlotCaller"]

log = logging.getLogger("penstock.targets")

SWAPS_MAX = 10
EXHAUSTED_WAIT_MAX_S = 32.0

Told = TypeVar("Told")


class CallPostponed(Exception):
    """Raised by who is asked to call: the slot came too late, nothing was sent."""


class SlotCaller:
    """Makes the calls of one bulk call."""

    def __init__(self, target: Target, pool: Pool, queue: CallQueue, policy: RetryPolicy) -> None:
        self._target, self.pool, self.queue, self.policy = target, pool, queue, policy
        self._counter = RequestCounter()
        self._calls = 0
        pool.enter()

    @property
    def requests(self) -> int:
        """Requests so far; a target that does not count them makes one in each call."""
        return max(self._counter.count, self._calls)

    def count_requests(self) -> None:
        """Count the requests of this task and of those it starts."""
        self._counter.begin()

    async def call(self, ask: Callable[[str], Awaitable[Told]], priority: Priority = Priority.NEW) -> Told:
        """Ask when there is a slot, on its source; whatever goes wrong is raised as a `TargetError`."""
        source = await self._slot(priority)
        generation = self.pool.source_refresh.generation(self._target, source)
        self._calls += 1
        try:
            told = await self._asked(ask, source)
            self.pool.answered(source, told.width_hint if isinstance(told, Answer) else None)
            return told
        except TargetError as error:
            self.pool.refused(source, error, self.policy)
            if error.kind in (ErrorKind.TOKEN, ErrorKind.CONNECTION):
                await self.pool.source_refresh.renew(self._target, source, generation)
            raise
        finally:
            # Whoever waits for this slot runs only after the caller has acted on what was told.
            self.pool.release(self.queue, source)

    async def _asked(self, ask: Callable[[str], Awaitable[Told]], source: str) -> Told:
        try:
            return await ask(source)
        except (TargetError, CallPostponed):
            raise
        except Exception as error:
            log.warning("%s raised what is no TargetError", self._target.name, exc_info=error)
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


class Sender:
    """Makes the calls of one bulk call, and knows which of them are under way."""

    def __init__(
        self, spec: CallSpec, caller: SlotCaller, size: BatchSize, is_held: Callable[[PendingBatch], bool]
    ) -> None:
        self._spec, self._caller, self._size, self._is_held = spec, caller, size, is_held
        self._clock = caller.pool.clock
        self.in_flight: set[PendingBatch] = set()
        self.calls = 0

    async def send(self, work: PendingBatch) -> Answer:
        """Send the batch as its `send_mode` says; `CallPostponed` when it must wait although it had a slot."""
        return await self._caller.call(lambda source: self._send(work, source), work.priority)

    async def ask(self, work: PendingBatch) -> Sequence[Verdict | None]:
        """Ask what became of the next records of the work, those that it has no answers for."""
        return await self._caller.call(lambda source: self._question(work, source), work.priority)

    async def _send(self, work: PendingBatch, source: str) -> Answer:
        if self._is_held(work):
            raise CallPostponed
        target = self._spec.target
        work.source = source
        self.calls += 1
        self.in_flight.add(work)
        began_s = self._clock.monotonic()
        try:
            send = target.send_each if work.send_mode is SendMode.EACH else target.send
            answer = await send(self._spec.batch(work.records, work.key, work.indexes), source)
        except BaseException as error:
            # Set here and not where it is acted on: the call may be stopped before anyone acts.
            if (unresolved := _lost_call(error)) is not None:
                work.lose(unresolved)
            raise
        finally:
            self.in_flight.discard(work)
        if len(answer.verdicts) != len(work):
            raise _wrong_count(answer.verdicts, len(work), maybe_applied=True)
        if work.send_mode is SendMode.SEND:
            self._size.answered(len(work), self._clock.monotonic() - began_s)
        return answer

    async def _question(self, work: PendingBatch, source: str) -> Sequence[Verdict | None]:
        work.source = source
        self.calls += 1
        self.in_flight.add(work)
        first, asked_max = len(work.answers), self._spec.capabilities.asked_records_max or len(work)
        asked = slice(first, first + asked_max)
        batch = self._spec.batch(work.records[asked], work.key, work.indexes[asked])
        try:
            known = await self._spec.target.reconcile(batch, source)
        finally:
            self.in_flight.discard(work)
        if len(known) != len(batch):
            raise _wrong_count(known, len(batch), maybe_applied=False)
        return known


def _lost_call(error: BaseException) -> TargetError | None:
    """Why a call that ended so may have taken effect; None when it surely did not."""
    if isinstance(error, TargetError):
        return error if error.maybe_applied else None
    if isinstance(error, asyncio.CancelledError):
        return TargetError("stopped before the remote answered", kind=ErrorKind.CONNECTION, maybe_applied=True)
    return TargetError(f"{type(error).__name__}: {error}", maybe_applied=True)


def _wrong_count(verdicts: Sequence[object], records: int, *, maybe_applied: bool) -> TargetError:
    message = f"{len(verdicts)} verdicts came for {records} records"
    return TargetError(message, code="BadAnswer", maybe_applied=maybe_applied)
