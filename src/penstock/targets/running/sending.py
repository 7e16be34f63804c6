"""The calls that are made for a batch: send it, send its records one by one, ask what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from penstock.targets.model import TargetError, Trouble, Verdict
from penstock.targets.rules.sizing import BatchSize
from penstock.targets.running.calling import Caller, NotNow
from penstock.targets.running.job import Job
from penstock.targets.running.work import Manner, Work
from penstock.targets.target import Answer

__all__ = ["Sender"]


class Sender:
    """Makes the calls of one bulk call, and knows which of them are under way."""

    def __init__(self, job: Job, caller: Caller, size: BatchSize, is_held: Callable[[Work], bool]) -> None:
        self._job, self._caller, self._size, self._is_held = job, caller, size, is_held
        self._clock = caller.pool.clock
        self.in_flight: set[Work] = set()
        self.calls = 0

    async def send(self, work: Work) -> Answer:
        """Send the work in its manner; `NotNow` when it must wait although it had a slot."""
        return await self._caller.call(lambda source: self._send(work, source), work.turn)

    async def ask(self, work: Work) -> Sequence[Verdict | None]:
        """Ask what became of the work."""
        return await self._caller.call(lambda source: self._question(work, source), work.turn)

    async def _send(self, work: Work, source: str) -> Answer:
        if self._is_held(work):
            raise NotNow
        target = self._job.target
        work.source = source
        self.calls += 1
        self.in_flight.add(work)
        began_s = self._clock.monotonic()
        try:
            send = target.send_each if work.manner is Manner.EACH else target.send
            answer = await send(self._job.batch(work.records, work.key, work.indexes), source)
        except BaseException as error:
            # Set here and not where it is acted on: the call may be stopped before anyone acts.
            if (doubt := _doubt(error)) is not None:
                work.lose(doubt)
            raise
        finally:
            self.in_flight.discard(work)
        if len(answer.verdicts) != len(work):
            raise _wrong_count(answer.verdicts, work, maybe_applied=True)
        if work.manner is Manner.SEND:
            self._size.answered(len(work), self._clock.monotonic() - began_s)
        return answer

    async def _question(self, work: Work, source: str) -> Sequence[Verdict | None]:
        work.source = source
        self.calls += 1
        known = await self._job.target.reconcile(self._job.batch(work.records, work.key, work.indexes), source)
        if len(known) != len(work):
            raise _wrong_count(known, work, maybe_applied=False)
        return known


def _doubt(error: BaseException) -> TargetError | None:
    """Why a call that ended so may have taken effect; None when it surely did not."""
    if isinstance(error, TargetError):
        return error if error.maybe_applied else None
    if isinstance(error, asyncio.CancelledError):
        return TargetError("stopped before the remote answered", kind=Trouble.CONNECTION, maybe_applied=True)
    return TargetError(f"{type(error).__name__}: {error}", maybe_applied=True)


def _wrong_count(verdicts: Sequence[object], work: Work, *, maybe_applied: bool) -> TargetError:
    message = f"{len(verdicts)} verdicts came for {len(work)} records"
    return TargetError(message, code="BadAnswer", maybe_applied=maybe_applied)
