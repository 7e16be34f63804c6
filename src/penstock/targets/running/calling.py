"""One call to the target: in a slot of the pool, after a look at the throttles, with word to the pool how it went."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar

from penstock.targets.model import TargetError, Trouble
from penstock.targets.pool import Pool, PoolExhausted
from penstock.targets.running.party import Party, Turn
from penstock.targets.target import Answer, Target

__all__ = ["SWAPS_MAX", "Caller", "NotNow"]

log = logging.getLogger("penstock.targets")

SWAPS_MAX = 10
EXHAUSTED_WAIT_MAX_S = 32.0

Told = TypeVar("Told")


class NotNow(Exception):
    """Raised by who is asked to call: the slot came too late, nothing was sent."""


class Caller:
    """Makes the calls of one bulk call."""

    def __init__(self, target: Target, pool: Pool, party: Party) -> None:
        self._target, self.pool, self.party = target, pool, party
        pool.enter()

    async def call(self, ask: Callable[[str], Awaitable[Told]], turn: Turn = Turn.NEW) -> Told:
        """Ask when there is a slot, on its source; whatever goes wrong is raised as a `TargetError`."""
        source = await self._slot(turn)
        generation = self.pool.refreshes.generation(source)
        try:
            told = await self._asked(ask, source)
            self.pool.answered(source, told.width_hint if isinstance(told, Answer) else None)
            return told
        except TargetError as error:
            self.pool.refused(source, error)
            if error.kind in (Trouble.TOKEN, Trouble.CONNECTION):
                await self.pool.refreshes.renew(source, generation, self._target.refresh)
            raise
        finally:
            # Whoever waits for this slot runs only after the caller has acted on what was told.
            self.pool.release(self.party, source)

    async def _asked(self, ask: Callable[[str], Awaitable[Told]], source: str) -> Told:
        try:
            return await ask(source)
        except (TargetError, NotNow):
            raise
        except Exception as error:
            log.warning("%s raised what is no TargetError", self._target.name, exc_info=error)
            # Nobody knows how far it came, so this is never simply sent again.
            raise TargetError(f"{type(error).__name__}: {error}", maybe_applied=True) from error

    async def _slot(self, turn: Turn) -> str:
        """A slot on a source that is not throttled; after ten swaps whichever comes, so that the call goes on."""
        source = await self._acquired(turn)
        for _ in range(SWAPS_MAX):
            if not self.pool.is_throttled(source):
                return source
            self.pool.release(self.party, source)
            source = await self._acquired(turn)
        if self.pool.is_throttled(source):
            log.warning("%d sources in a row were throttled; calling on %r all the same", SWAPS_MAX, source)
        return source

    async def _acquired(self, turn: Turn) -> str:
        for attempt in count():
            try:
                return await self.pool.acquire(self.party, turn)
            except PoolExhausted as error:
                pause_s = min(2.0**attempt, EXHAUSTED_WAIT_MAX_S)
                log.warning("%s; trying again in %g s", error, pause_s)
                await self.pool.sleep(pause_s)
        raise AssertionError("count() never ends")
