"""`Idempotency`: who may carry a request out, who gets its kept answer, and who is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from penstock.clock import Clock, Entropy, SystemClock, from_micros
from penstock.db.database import Database
from penstock.errors import Conflict, KeyRefused, SettingsInvalid, Unavailable
from penstock.idempotency.claim import Claim, Observe
from penstock.idempotency.model import LABEL_CHARACTERS_MAX, Address, KeyRecord, Seen, Wish, digest, scope_of
from penstock.idempotency.redis import RedisStore
from penstock.idempotency.rules import judge, retry_after_s, state_at
from penstock.idempotency.sql import SqlStore
from penstock.idempotency.store import Store

__all__ = ["Attempt", "Idempotency", "Replay"]

Seconds = float | timedelta

LEASE_S = 30
RETENTION_S = 86_400
# Each try that finds a key in another state than a moment ago is a race that somebody else has won.
TRIES_MAX = 20
SWEEP_KEYS = 500


@dataclass(frozen=True, slots=True)
class Replay:
    """The request was carried out before; `answer` is what was kept then, None if it was erased."""

    answer: bytes | None


class Attempt:
    """What the body of a `guard` block holds: either it is to do the work, or it has the answer of who did.

    Put the answer into `answer` before the block ends; it is kept when the block ends well.
    """

    def __init__(self, claim: Claim | None, answer: bytes | None = None) -> None:
        self.claim, self.answer = claim, answer

    @property
    def is_replay(self) -> bool:
        """Whether the work was done before."""
        return self.claim is None


class Idempotency:
    """Idempotency keys in one store."""

    def __init__(
        self,
        store: Store,
        *,
        lease: Seconds = LEASE_S,
        retention: Seconds = RETENTION_S,
        entropy: Entropy | None = None,
        observe: Callable[[str], None] | None = None,
    ) -> None:
        self.store = store
        self._lease_us, self._retention_us = _micros("lease", lease), _micros("retention", retention)
        self._entropy = entropy or Entropy()
        self._observe = Observe(observe)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        *,
        lease: Seconds = LEASE_S,
        retention: Seconds = RETENTION_S,
        observe: Callable[[str], None] | None = None,
        clock: Clock | None = None,
    ) -> AsyncIterator[Idempotency]:
        """Keys in the database or Redis at this URL.

        A SQLite database is made and upgraded when needed; a server refuses until `penstock db upgrade` was run.
        """
        clock = clock or SystemClock()
        if url.startswith(("redis://", "rediss://", "unix://")):
            redis = RedisStore.connect(url, clock=clock)
            try:
                yield cls(redis, lease=lease, retention=retention, observe=observe)
            finally:
                await redis.close()
            return
        db = await Database.open(url, clock=clock)
        try:
            yield cls(SqlStore(db), lease=lease, retention=retention, observe=observe)
        finally:
            await db.close()

    # --- for those who carry requests out

    async def claim(
        self,
        address: Address,
        fingerprint: str,
        *,
        label: str = "",
        may_take_over: bool = False,
        retention: Seconds | None = None,
    ) -> Claim | Replay:
        """The right to carry a request out, or the answer it was given; `KeyRefused` says why neither.

        `may_take_over` lets an attempt follow one whose lease ran out, for work that is safe to do again.
        """
        wish = Wish(
            f"{self._entropy.bits(128):032x}",
            fingerprint,
            "".join(sign if sign.isprintable() else "?" for sign in label[:LABEL_CHARACTERS_MAX]),
            self._lease_us,
            self._retention_us if retention is None else _micros("retention", retention),
        )
        try:
            return await self._claim(address, wish, may_take_over=may_take_over)
        except KeyRefused:
            raise
        except BaseException:
            # It may be ours all the same: cancelled, or its answer lost.
            await self._forgo(address, wish)
            raise

    async def _claim(self, address: Address, wish: Wish, *, may_take_over: bool) -> Claim | Replay:
        for _ in range(TRIES_MAX):
            seen = await self.store.insert(address, wish)
            if seen is None:
                return self._started(address, wish, 1)
            entry = seen.entry
            if entry is None:
                continue
            if entry.owner == wish.owner:  # a try whose answer was lost
                return self._started(address, wish, entry.attempt)
            match judge(seen, wish.fingerprint, may_take_over=may_take_over):
                case "claim":
                    await self._clear(address, seen)
                case "take_over":
                    if await self.store.take_over(address, entry, wish):
                        return self._started(address, wish, entry.attempt + 1)
                case "replay":
                    self._observe("replayed")
                    return Replay(entry.answer)
                case "in_flight":
                    raise self._refused("in_flight", address, "is in use by a request that is still running", seen)
                case "mismatch":
                    raise self._refused("mismatch", address, "was used before with another request", seen)
                case "indeterminate":
                    if entry.state == "Indeterminate" or await self._mark_lapsed(address, seen):
                        reason = "belongs to a request that was cut off; nobody knows whether it was carried out"
                        raise self._refused("indeterminate", address, reason, seen)
        raise Unavailable(f"idempotency key {address.key!r} changed hands {TRIES_MAX} times")

    def _started(self, address: Address, wish: Wish, attempt: int) -> Claim:
        claim = Claim(self.store, address, wish, attempt=attempt, observe=self._observe)
        claim.start()
        self._observe("claimed" if attempt == 1 else "taken_over")
        return claim

    async def _forgo(self, address: Address, wish: Wish) -> None:
        try:
            await self.store.move(address, "released", owner=wish.owner)
        except Unavailable:
            return  # its lease will run out

    async def _mark_lapsed(self, address: Address, seen: Seen) -> bool:
        """Write down that a lease ran out, so that its owner renews it no more."""
        assert seen.entry is not None
        return await self.store.move(address, "lease_expired", owner=seen.entry.owner, only_due=True)

    async def _clear(self, address: Address, seen: Seen) -> None:
        """Remove an entry whose time is over."""
        assert seen.entry is not None
        if seen.entry.state == "InProgress":
            await self._mark_lapsed(address, seen)
        event = "expired" if seen.entry.state == "Completed" else "released"
        await self.store.move(address, event, owner=seen.entry.owner, only_due=True)

    def _refused(self, reason: str, address: Address, why: str, seen: Seen) -> KeyRefused:
        self._observe(reason)
        retry_s = retry_after_s(seen) if reason == "in_flight" else None
        return KeyRefused(reason, f"idempotency key {address.key!r} {why}", key=address.key, retry_after_s=retry_s)

    @asynccontextmanager
    async def guard(
        self,
        key: str,
        fingerprint: str | bytes = "",
        *,
        scope: Sequence[str] = (),
        label: str = "",
        may_take_over: bool = False,
        retention: Seconds | None = None,
    ) -> AsyncIterator[Attempt]:
        """Do the work of a block once for each key, for consumers of queues, commands and the like.

        `fingerprint` is what the work depends on, a message's bytes for instance. The block's answer is kept when it
        ends well; an exception gives the key back; a cancelled block leaves the key indeterminate.
        """
        found = await self.claim(
            Address.of(key, scope), digest(("guard", fingerprint)), label=label, may_take_over=may_take_over,
            retention=retention,
        )  # fmt: skip
        if isinstance(found, Replay):
            yield Attempt(None, found.answer)
            return
        attempt = Attempt(found)
        try:
            yield attempt
        except Exception:
            await found.release()
            raise
        except BaseException:
            await found.abandon()
            raise
        has_transaction = found.has_transaction
        try:
            await found.complete(attempt.answer)
        except BaseException:
            if has_transaction:  # nothing of it has happened
                await found.release()
            raise

    # --- for those who look after keys

    async def get(self, key: str, *, scope: Sequence[str] = ()) -> KeyRecord | None:
        """A caller's key as it is now, None when it is free."""
        return _record_of(await self.store.read(Address.of(key, scope)))

    async def unsettled(self, limit: int = 100) -> list[KeyRecord]:
        """Keys whose request was cut off: somebody has to find out what became of it, and `forget` them."""
        found = [_record_of(Seen(entry, entry.lease_until)) for entry in await self.store.unsettled(limit)]
        return [record for record in found if record is not None]

    async def forget(self, key: str, *, scope: Sequence[str] = ()) -> bool:
        """Make a key free, so that its request can be carried out again; False when it was.

        `Conflict` while a request with it is running.
        """
        address = Address.of(key, scope)
        for _ in range(TRIES_MAX):
            seen = await self.store.read(address)
            entry, state = seen.entry, state_at(seen.entry, seen.now_us)
            if entry is None:
                return False
            if state == "InProgress":
                raise Conflict(f"idempotency key {key!r} is in use by a request that is still running")
            if entry.state == "InProgress" and not await self._mark_lapsed(address, seen):
                continue
            event = "expired" if entry.state == "Completed" else "released"
            if await self.store.move(address, event, owner=entry.owner):
                return state != "Absent"
        raise Unavailable(f"idempotency key {key!r} changed hands {TRIES_MAX} times")

    async def erase(self, *, scope: Sequence[str], limit: int = SWEEP_KEYS) -> int:
        """Remove the kept answers of a caller, at most `limit`, and say how many; call it until it says 0.

        The keys stay: a repeated request is told that its answer is gone, and is not carried out again.
        """
        return await self.store.erase(scope_of(scope), limit)

    async def sweep(self, limit: int = SWEEP_KEYS) -> int:
        """Remove keys that were kept for long enough, at most `limit`, and say how many."""
        return await self.store.sweep(limit)


def _micros(name: str, duration: Seconds) -> int:
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not 0 < seconds <= 10 * 366 * 86_400:
        raise SettingsInvalid(f"{name} is a time above 0 and below ten years; found {duration!r}")
    return round(seconds * 1e6)


def _record_of(seen: Seen) -> KeyRecord | None:
    """A key as it is shown, None when it is absent."""
    entry, state = seen.entry, state_at(seen.entry, seen.now_us)
    if entry is None or state == "Absent":
        return None
    return KeyRecord(
        entry.key,
        entry.label,
        state,
        entry.attempt,
        created_at=from_micros(entry.created_at),
        lease_until=from_micros(entry.lease_until) if state == "InProgress" else None,
        finished_at=None if entry.finished_at is None else from_micros(entry.finished_at),
        expires_at=from_micros(entry.expires_at),
        has_answer=entry.answer is not None,
    )
