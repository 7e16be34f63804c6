"""Sends what is due: claims it, makes an attempt for each in a task of its own, and writes what came of it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from typing import Any

from sqlalchemy import Row, Select, select

from penstock.clock import Clock, Entropy, operation_id
from penstock.db.database import Database
from penstock.errors import Unavailable
from penstock.outbox import claiming
from penstock.outbox.channels import Channels
from penstock.outbox.claiming import Claimed
from penstock.outbox.states import DELIVERY
from penstock.outbox.tables import deliveries, subscriptions
from penstock.outbox.verdicts import judge

__all__ = ["Sender"]

log = logging.getLogger("penstock.outbox")

AT_ONCE = 20
AT_ONCE_EACH = 4  # to one subscription, so that one that hangs holds up no other
LEASE_MARGIN_S = 10.0  # for claiming, and for writing what came of it
LOOK_S = 0.5  # at a delivery that another process sends
OTHERS_S = 5.0  # within which a process that can send begins


class Sender:
    """The attempts of one process. A receiver that hangs keeps only its own tasks."""

    def __init__(self, db: Database, channels: Channels, *, clock: Clock, entropy: Entropy, longest_s: float) -> None:
        self._db, self._channels, self._clock, self._entropy = db, channels, clock, entropy
        self._lease_us = round((longest_s + LEASE_MARGIN_S) * 1e6)
        self._tasks: dict[asyncio.Task[None], Claimed] = {}
        self._claims: set[asyncio.Task[int]] = set()

    async def start_due(self, only: str | None = None) -> int:
        """Begin to send what is due, as far as there is room; how many that were. `only` names one delivery.

        Who is cancelled meanwhile cancels no claim: it would be nobody's until its lease is over.
        """
        task = asyncio.create_task(self._start_due(only), name="claim deliveries")
        self._claims.add(task)
        task.add_done_callback(self._claimed)
        return await asyncio.shield(task)

    async def _start_due(self, only: str | None) -> int:
        at_work = Counter(each.subscription for each in self._tasks.values())
        room = AT_ONCE - len(self._tasks)
        if only is None and (room <= 0 or not await self._is_any_due()):
            return 0
        claimed = await claiming.claim(
            self._db,
            token=operation_id(self._clock, self._entropy),
            channels=self._channels.names,
            handlers=self._channels.handlers,
            at_work={} if only is not None else at_work,
            limit=1 if only is not None else room,
            each_max=AT_ONCE_EACH,
            lease_us=self._lease_us,
            only=only,
        )
        for each in claimed:
            task = asyncio.create_task(self._attempt(each), name=f"deliver {each.id}")
            self._tasks[task] = each
            task.add_done_callback(self._ended)
        return len(claimed)

    async def _is_any_due(self) -> bool:
        """A look that locks nothing: mostly nothing is due."""
        async with self._db.connection() as tx:
            return bool((await tx.send(self._db.prepared(_some_due))).rows)

    async def send_due(self) -> int:
        """Send until nothing is due any more; how many attempts that took."""
        total = 0
        while some := await self.start_due():
            total += some
            await self.wait()
        return total

    async def send_one(self, delivery: str) -> None:
        """Send one delivery that is due, or wait until another process has; until a lease is over at most.

        `Unavailable` when this process cannot, and no other begins soon.
        """
        for look in range(round(self._lease_us / 1e6 / LOOK_S) + 1):
            await self.start_due(delivery)
            mine = [task for task, claimed in self._tasks.items() if claimed.id == delivery]
            if mine:
                await asyncio.wait(mine)
            found = await self._stands(delivery)
            if found is None or DELIVERY.is_settled(found.state):
                return
            lacks = self._channels.lacks(found.channel)
            if lacks is not None and not found.attempts and look * LOOK_S >= OTHERS_S:
                raise Unavailable(f"nobody has sent it: {lacks} here, and no worker took it; it waits for one that can")
            await asyncio.sleep(LOOK_S)

    async def _stands(self, delivery: str) -> Row[Any, Any, Any] | None:
        query = (
            select(deliveries.c.state, deliveries.c.attempts, subscriptions.c.channel)
            .join(subscriptions, subscriptions.c.id == deliveries.c.subscription)
            .where(deliveries.c.id == delivery)
        )
        async with self._db.connection() as tx:
            return (await tx.execute(query)).one_or_none()

    async def wait(self) -> None:
        """Until every attempt that was begun is over."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def close(self, grace_s: float = 0) -> None:
        """Give up the attempts that are under way, after a while: others can make them at once."""
        if self._claims:
            await asyncio.wait(list(self._claims))
        if self._tasks and grace_s:
            await asyncio.wait(list(self._tasks), timeout=grace_s)
        under_way = dict(self._tasks)
        for task in under_way:
            task.cancel()
        await self.wait()
        cut_off = [claimed for task, claimed in under_way.items() if task.cancelled()]
        if cut_off:
            with suppress(Unavailable):  # else when their leases are over
                await claiming.give_back(self._db, cut_off)

    def _claimed(self, task: asyncio.Task[int]) -> None:
        self._claims.discard(task)
        if not task.cancelled():
            task.exception()  # it is raised where somebody waits for it

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("an attempt to deliver could not be recorded: %s", error, exc_info=error)

    async def _attempt(self, claimed: Claimed) -> None:
        began_us, ticks = self._clock.now_us(), self._clock.monotonic()
        answer = await self._channels.send(claimed)
        verdict = judge(
            answer,
            attempts=claimed.attempts,
            attempts_max=claimed.attempts_max,
            chance=self._entropy.jitter.random(),
        )
        duration_ms = round((self._clock.monotonic() - ticks) * 1000)
        attempt = {"at": began_us, "ms": duration_ms, "status": answer.status, "error": verdict.reason}
        try:
            is_ours = await claiming.settle(self._db, claimed, verdict, attempt)
        except Unavailable as error:
            log.warning("what came of delivery %s is not recorded; it is sent again: %s", claimed.id, error)
            return
        if not is_ours:
            log.warning("delivery %s was settled by somebody else meanwhile", claimed.id)
        elif verdict.reason is not None:
            again = "" if verdict.event == "failed" else f", and is tried again in {verdict.wait_s:.0f} s"
            log.warning("delivery %s to %s failed%s: %s", claimed.id, claimed.subscription, again, verdict.reason)


def _some_due(db: Database) -> Select[Any]:
    return select(deliveries.c.number).where(deliveries.c.due_at <= db.now()).limit(1)
