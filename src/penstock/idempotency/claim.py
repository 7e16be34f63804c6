"""A claim on a key: one attempt to carry a request out, its lease, and how it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from penstock.db.database import CommitUnknown
from penstock.db.unit import UnitOfWork
from penstock.errors import Conflict, KeyRefused, SettingsInvalid, Unavailable
from penstock.idempotency.model import Address, Wish
from penstock.idempotency.sql import SqlStore, hold_in, move_in
from penstock.idempotency.store import Store

__all__ = ["Claim", "Observe"]

log = logging.getLogger("penstock.idempotency")

# Renewed this often within a lease, so that one or two lost heartbeats do no harm.
BEATS = 3


class Observe:
    """Tells whoever counts what happened to a key. What that raises is logged and stops nothing."""

    def __init__(self, listener: Callable[[str], None] | None = None) -> None:
        self._listener = listener

    def __call__(self, happening: str) -> None:
        if self._listener is None:
            return
        try:
            self._listener(happening)
        except Exception:
            log.exception("the observer of idempotency keys failed on %r", happening)


class Claim:
    """This attempt owns the key until `complete`, `release` or `abandon`, or until its lease runs out unrenewed.

    `effect_key` is the same in every attempt: send it along to others who honour one. `attempt` is above 1 when
    earlier attempts were cut off; what they did outside is unknown.
    """

    def __init__(self, store: Store, address: Address, wish: Wish, *, attempt: int, observe: Observe) -> None:
        self._store, self._address, self._wish, self._observe = store, address, wish, observe
        self.attempt = attempt
        self.is_over = False
        self._unit: UnitOfWork | None = None
        self._beats: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def key(self) -> str:
        """The key as the caller gave it."""
        return self._address.key

    @property
    def effect_key(self) -> str:
        """64 characters that stand for caller and key in every attempt."""
        return self._address.id

    @property
    def has_transaction(self) -> bool:
        """Whether statements wait to be committed with the answer."""
        return self._unit is not None

    # --- the lease

    def start(self) -> None:
        """Renew the lease from now on, as long as the attempt lasts."""
        self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._start_beats)

    @property
    def _pause_s(self) -> float:
        return self._wish.lease_us / 1e6 / BEATS

    def _start_beats(self) -> None:
        # Not before the first beat is due: most attempts end sooner, and a task for each would be waste.
        self._beats = asyncio.create_task(self._beat(), name=f"lease of idempotency key {self._address.id[:12]}")

    async def _beat(self) -> None:
        while True:
            try:
                if not await self._store.renew(self._address, self._wish.owner, self._wish.lease_us):
                    log.warning("the lease of idempotency key %s is lost", self._address.id[:12])
                    return
            except Exception as error:  # whatever it is, the attempt goes on, and may still complete
                log.warning("the lease of idempotency key %s was not renewed: %s", self._address.id[:12], error)
            await asyncio.sleep(self._pause_s)

    async def _stop_beats(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._beats is not None:
            beats, self._beats = self._beats, None
            beats.cancel()
            await asyncio.wait({beats})

    # --- the user's own statements

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[UnitOfWork]:
        """Statements that are committed together with the answer, or not at all.

        The transaction stays open behind the block until the attempt ends. An error in the block undoes it at once.
        `KeyRefused` when another attempt has taken the key over meanwhile: then nothing of this one counts.
        """
        if self._unit is not None:
            raise Conflict("this attempt has its transaction already; one is all it gets")
        if not isinstance(self._store, SqlStore):
            raise SettingsInvalid("a transaction needs the keys in a database; these are in Redis")
        try:
            yield await self._begin(self._store)
        except BaseException:
            await self._undo()
            self.start()  # the attempt may go on without it
            raise

    async def _begin(self, store: SqlStore) -> UnitOfWork:
        # A full lease first. Then none is renewed, for the transaction has the entry locked: others wait for its end.
        await self._stop_beats()
        await store.renew(self._address, self._wish.owner, self._wish.lease_us)
        unit = store.db.unit()
        await unit.begin()
        self._unit = unit
        if not await hold_in(store.db, unit.connection, self._address, self._wish.owner, self._wish.lease_us):
            raise self._lost()
        return unit

    async def _undo(self) -> None:
        unit, self._unit = self._unit, None
        if unit is not None and unit.is_open:
            await unit.roll_back()

    # --- how it ends

    async def complete(self, answer: bytes | None) -> None:
        """Keep the answer; everything that asks for the key from now on gets it.

        `KeyRefused` when the key was taken over, `Unavailable` when the answer could not be kept. After either,
        nothing of the attempt's own transaction has happened.
        """
        await self._stop_beats()
        unit = self._unit
        is_kept = await (self._complete_with(unit, answer) if unit is not None else self._complete(answer))
        self.is_over = True
        if not is_kept:
            self._observe("lost")
            raise self._lost()
        self._observe("completed")

    async def _complete(self, answer: bytes | None) -> bool:
        for _ in range(BEATS):
            try:
                if await self._store.move(
                    self._address,
                    "completed",
                    owner=self._wish.owner,
                    answer=answer,
                    retention_us=self._wish.retention_us,
                ):
                    return True
                return await self._is_completed()
            except CommitUnknown:
                continue
        raise Unavailable("nobody knows whether the answer was kept")

    async def _complete_with(self, unit: UnitOfWork, answer: bytes | None) -> bool:
        assert isinstance(self._store, SqlStore)
        try:
            is_ours = await move_in(
                self._store.db,
                unit.connection,
                self._address,
                "completed",
                owner=self._wish.owner,
                answer=answer,
                retention_us=self._wish.retention_us,
            )
            if not is_ours:
                await self._undo()
                return False
            await unit.commit()
        except CommitUnknown as error:
            # Who releases the key waits for the lost transaction's end, if it is still under way.
            await self._store.move(self._address, "released", owner=self._wish.owner)
            if not await self._is_completed():
                raise Unavailable(f"the transaction was lost with its connection: {error}") from error
        except BaseException:
            await self._undo()
            raise
        return True

    async def _is_completed(self) -> bool:
        entry = (await self._store.read(self._address)).entry
        return entry is not None and entry.owner == self._wish.owner and entry.state == "Completed"

    async def release(self) -> None:
        """Give the key back: the attempt failed, and the same request may be tried again."""
        await self._end("released")

    async def abandon(self) -> None:
        """Give the lease up: the attempt was cut off, and nobody knows what it did."""
        # What a transaction holds was not done, so its key can simply be given back.
        await self._end("lease_expired" if self._unit is None else "released")

    async def _end(self, event: str) -> None:
        if self.is_over:
            return
        self.is_over = True
        await self._stop_beats()
        await self._undo()
        self._observe("released" if event == "released" else "abandoned")
        try:
            await self._store.move(self._address, event, owner=self._wish.owner)
        except Unavailable as error:
            log.warning("idempotency key %s was not %s: %s", self._address.id[:12], event, error)

    def _lost(self) -> KeyRefused:
        return KeyRefused("lost", f"another attempt has taken idempotency key {self.key!r} over", key=self.key)
