"""Limits of steps over all workers: each worker that runs rows of an operation holds some units of its limits.

The units are records, and changing them is one transaction that begins with the operation's row: so whoever changes
them sees what the one before left, and they never add up to more than a limit. In between, each worker's gates let
through what its units allow, and no call costs a statement.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from sqlalchemy import delete, insert, select, update

from penstock.clock import Clock
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.operations.chunk.store import is_dead
from penstock.operations.moves import touch
from penstock.operations.rows.runtime import OperationRuntime
from penstock.operations.tables import limit_shares
from penstock.operations.worker.shares import Share, Units, fair_part, next_units

__all__ = ["LimitShares", "remove_dead_shares"]

LINGER_LOOKS = 3  # a worker that finds nothing to run keeps its units for so many looks round


@dataclass(slots=True)
class Seen:
    """The shares in one operation's limits: of live workers and of us, and which workers are dead."""

    shares: list[Share] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)

    def of(self, worker: str) -> Share | None:
        """The share of one worker."""
        return next((share for share in self.shares if share.worker == worker), None)

    def has_others(self, worker: str) -> bool:
        """Whether another worker takes part, or did until it died."""
        return bool(self.dead) or any(share.worker != worker for share in self.shares)


@dataclass(slots=True)
class _Part:
    """An operation whose limits we share."""

    runtime: OperationRuntime
    wanted_at: float  # when we last wanted to run rows of it

    @property
    def limits(self) -> dict[str, int]:
        return {name: limiter.limit for name, limiter in self.runtime.limiters.items()}

    @property
    def has_units(self) -> bool:
        return all(limiter.units for limiter in self.runtime.limiters.values())

    def lower(self, fair: Units) -> dict[str, int]:
        """Let no more calls begin than is fair; returns the units that are in use all the same."""
        for name, limiter in self.runtime.limiters.items():
            if limiter.units > fair[name]:
                limiter.hold(fair[name], rests=False)
        return {name: limiter.in_use for name, limiter in self.runtime.limiters.items()}

    def hold(self, units: Units, fair: Units, *, rests: bool) -> None:
        """Use the units that are ours, as far as it is fair."""
        for name, limiter in self.runtime.limiters.items():
            limiter.hold(min(units[name], fair[name]), rests=rests)


class LimitShares:
    """What this worker holds of the limits of operations, on record and at its gates.

    The gates never let through more than is on record: units are lowered here first, and raised there first.
    """

    def __init__(self, db: Database, *, worker: str, clock: Clock, look_s: float) -> None:
        self._db, self._worker, self._clock = db, worker, clock
        self._linger_s = LINGER_LOOKS * look_s
        self._parts: dict[int, _Part] = {}
        self._claims: Counter[int] = Counter()  # chunks that are being claimed, by operation
        self._lock = asyncio.Lock()

    async def take_part(self, runtime: OperationRuntime) -> bool:
        """Take part in running the operation; False while one of its limits leaves us nothing."""
        if not runtime.limiters:
            return True
        async with self._lock:
            number, now = runtime.number, self._clock.monotonic()
            part = self._parts.setdefault(number, _Part(runtime, now))
            part.runtime, part.wanted_at = runtime, now
            if not part.has_units:
                await self._settle(number, part, (await self._look([number]))[number])
            return part.has_units

    @contextmanager
    def claiming(self, number: int) -> Iterator[None]:
        """Count the operation as running while a chunk of it is claimed: reading its rows may take long."""
        self._claims[number] += 1
        try:
            yield
        finally:
            self._claims[number] -= 1
            if not self._claims[number]:
                del self._claims[number]

    async def look_round(self, running: Collection[int], *, has_lapsed: bool) -> None:
        """Bring our units up or down to our fair parts, and leave operations of which we are running nothing.

        When our lease `has_lapsed`, others may have taken our units: nothing is ours that we have not seen since.
        """
        if not self._parts:
            return
        async with self._lock:
            now = self._clock.monotonic()
            for number, part in list(self._parts.items()):
                is_running = number in running or number in self._claims
                if not is_running and now - part.wanted_at >= self._linger_s:
                    await self._leave(number)
            seen = await self._look(self._parts)
            for number, part in self._parts.items():
                await self._settle(number, part, seen[number], is_sure=not has_lapsed)

    async def leave(self) -> None:
        """Give back all we hold; nothing of ours may be running any more."""
        async with self._lock:
            for number in list(self._parts):
                await self._leave(number)

    async def _look(self, numbers: Collection[int]) -> dict[int, Seen]:
        async with self._db.read() as tx:
            return await _shares_in(self._db, tx, numbers, self._worker)

    async def _settle(self, number: int, part: _Part, seen: Seen, *, is_sure: bool = True) -> None:
        """Hold what we should; writes only when something changes, or to be sure."""
        limits, mine = part.limits, seen.of(self._worker)
        in_use = dict.fromkeys(limits, 0)
        if mine is not None:
            fair = fair_part(limits, seen.shares, self._worker)
            in_use = part.lower(fair)
            if is_sure and next_units(limits, seen.shares, self._worker, in_use) == mine.units:
                part.hold(mine.units, fair, rests=seen.has_others(self._worker))
                return
        change = partial(self._change, number, limits, in_use)
        units, fair, rests = await self._db.transaction(change, "limit_shares")
        part.hold(units, fair, rests=rests)

    async def _change(
        self, number: int, limits: Units, in_use: Units, tx: Connection
    ) -> tuple[dict[str, int], dict[str, int], bool]:
        """Write the units that are ours from now on; returns them, our fair part, and whether others take part."""
        db, worker = self._db, self._worker
        # The operation's row first: whoever changes its shares does so after the other, and sees what that one wrote.
        await touch(tx, number)
        seen = (await _shares_in(db, tx, [number], worker))[number]
        if seen.dead:
            await tx.execute(
                delete(limit_shares).where(limit_shares.c.operation == number, limit_shares.c.worker.in_(seen.dead))
            )
        mine = seen.of(worker)
        is_new = mine is None
        if mine is None:
            now = (await tx.execute(select(db.now()))).scalar_one()
            # Behind everybody who is there, whatever the clock says.
            mine = Share(worker, max([now, *(share.joined_at + 1 for share in seen.shares)]), {})
            seen.shares.append(mine)
        units = next_units(limits, seen.shares, worker, in_use)
        if is_new:
            values = {"operation": number, "worker": worker, "joined_at": mine.joined_at, "units": units}
            await tx.execute(insert(limit_shares).values(values))
        elif units != mine.units:
            is_mine = (limit_shares.c.operation == number, limit_shares.c.worker == worker)
            await tx.execute(update(limit_shares).where(*is_mine).values(units=units))
        return units, fair_part(limits, seen.shares, worker), seen.has_others(worker)

    async def _leave(self, number: int) -> None:
        part = self._parts[number]
        part.lower(dict.fromkeys(part.limits, 0))

        async def leave(tx: Connection) -> None:
            mine = (limit_shares.c.operation == number, limit_shares.c.worker == self._worker)
            await tx.execute(delete(limit_shares).where(*mine))

        await self._db.transaction(leave, "limit_shares")
        del self._parts[number]  # only now: what may still be on record is given back at the next look


async def remove_dead_shares(db: Database) -> None:
    """Remove the shares of dead workers in operations that nobody else changes."""
    is_theirs = is_dead(db, limit_shares.c.worker)
    async with db.connection() as tx:
        found = await tx.execute(select(limit_shares.c.operation).where(is_theirs).distinct())
        numbers = sorted(found.scalars())

    async def remove(number: int, tx: Connection) -> None:
        await touch(tx, number)
        await tx.execute(delete(limit_shares).where(limit_shares.c.operation == number, is_theirs))

    for number in numbers:
        await db.transaction(partial(remove, number), "limit_shares")


async def _shares_in(db: Database, tx: Connection, numbers: Collection[int], worker: str) -> dict[int, Seen]:
    """The shares in the limits of these operations, as `worker` sees them: it counts itself as alive."""
    seen = {number: Seen() for number in numbers}
    query = select(limit_shares, is_dead(db, limit_shares.c.worker).label("is_dead"))
    for row in await tx.execute(query.where(limit_shares.c.operation.in_(numbers))):
        if row.is_dead and row.worker != worker:
            seen[row.operation].dead.append(row.worker)
        else:
            seen[row.operation].shares.append(Share(row.worker, row.joined_at, row.units))
    return seen
