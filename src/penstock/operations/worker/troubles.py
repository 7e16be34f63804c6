"""What keeps a worker from going on: its database is away, or it cannot go on with an operation now, or for good."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import or_, select

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import DiskFull, NotFound, Unavailable
from penstock.operations.messages import cut
from penstock.operations.moves import Head, break_operation, head_of, touch
from penstock.operations.rows.runtime import DoesNotFit
from penstock.operations.tables import operations
from penstock.operations.worker_records import code_of_live_workers, misfits

__all__ = ["Outage", "SetAside", "Troubles"]

log = logging.getLogger("penstock.worker")

PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 60.0
MISFIT_PAUSE_MAX_S = 10.0  # it may be migrated to the code that is here
FORGOTTEN_S = 600.0


@dataclass(slots=True)
class _Pause:
    until: float
    pause_s: float  # the next one, if trouble comes again


class SetAside:
    """Which operations are set aside, and until when."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._pauses: dict[int, _Pause] = {}

    @property
    def numbers(self) -> tuple[int, ...]:
        """The operations that are set aside now."""
        now = self._monotonic()
        return tuple(sorted(number for number, pause in self._pauses.items() if pause.until > now))

    def __contains__(self, number: int) -> bool:
        pause = self._pauses.get(number)
        return pause is not None and pause.until > self._monotonic()

    def for_a_moment(self, number: int, seconds: float) -> None:
        """Set it aside for a short time: we need units that other workers will give back."""
        self._pause(number, seconds, PAUSE_FIRST_S)

    def for_trouble(self, number: int, *, pause_max_s: float = PAUSE_MAX_S) -> float:
        """Set it aside because of trouble; each time in a row the pause doubles. Returns how long it is."""
        before = self._pauses.get(number)
        pause_s = PAUSE_FIRST_S if before is None else min(before.pause_s, pause_max_s)
        self._pause(number, pause_s, min(2 * pause_s, PAUSE_MAX_S))
        return pause_s

    def _pause(self, number: int, pause_s: float, next_s: float) -> None:
        """Set it aside; what was aside long ago is forgotten, because others may have ended it."""
        now = self._monotonic()
        self._pauses = {other: pause for other, pause in self._pauses.items() if now - pause.until < FORGOTTEN_S}
        self._pauses[number] = _Pause(now + pause_s, next_s)

    def take_up(self, number: int) -> None:
        """Set it aside no longer."""
        self._pauses.pop(number, None)


class Outage:
    """What the parts of one worker, on several threads, know about its database."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._failing: set[str] = set()
        self._since = 0.0

    def failed(self, part: str, error: Exception) -> None:
        """This part of the worker could not reach the database. A full disk is logged where it is met."""
        if isinstance(error, DiskFull):
            return
        with self._lock:
            if not self._failing:
                self._since = self._monotonic()
                log.warning("the database is away: %s; this is tried again until it is back", error)
            else:
                log.debug("the database is away for %s: %s", part, error)
            self._failing.add(part)

    def worked(self, part: str) -> None:
        """This part of the worker has reached the database."""
        if not self._failing:
            return
        with self._lock:
            if part in self._failing:
                self._failing.discard(part)
                if not self._failing:
                    log.warning("the database is back after %.1f s", self._monotonic() - self._since)


class Troubles:
    """What one worker does about such operations; it says so in the log and on the operation's record."""

    def __init__(self, db: Database, set_aside: SetAside, *, owner: str) -> None:
        self._db, self._set_aside, self._owner = db, set_aside, owner

    async def put_aside(self, number: int, error: Exception) -> None:
        """Leave an operation alone for a while: this worker cannot go on with it, others may."""
        if isinstance(error, DoesNotFit):
            await self._leave_to_others(number, error)
            return
        pause_s = self._set_aside.for_trouble(number)
        trouble = cut(f"its stored file cannot be read: {error}" if isinstance(error, OSError) else str(error))
        await self._write(number, trouble, pause_s)

    async def _leave_to_others(self, number: int, error: DoesNotFit) -> None:
        """Leave an operation to workers whose code fits it; that there is none is trouble."""
        pause_s = self._set_aside.for_trouble(number, pause_max_s=MISFIT_PAUSE_MAX_S)
        async with self._db.read() as tx:
            query = select(operations.c.name, operations.c.plan).where(operations.c.number == number)
            found = (await tx.execute(query)).one_or_none()
            live = await code_of_live_workers(self._db, tx)
        if found is None:
            return
        _, is_fitted = misfits(found.name, found.plan, live)
        if is_fitted:
            log.info("operation %s (%d) is left to others: %s", found.name, number, error)
        else:
            await self._write(number, cut(f"no live worker has code that fits it: {error}"), pause_s)

    async def _write(self, number: int, trouble: str, pause_s: float) -> None:
        async def write(tx: Connection) -> tuple[Head, bool]:
            is_new = or_(operations.c.trouble.is_(None), operations.c.trouble != trouble)
            head = await touch(tx, number, is_new, trouble=trouble)
            return head or await head_of(tx, number), head is not None

        with contextlib.suppress(NotFound):  # it was removed
            head, is_new = await self._db.transaction(write, "trouble")
            # The same trouble is an error once, though it is met again after each pause.
            level = logging.ERROR if is_new else logging.DEBUG
            log.log(level, "%s is set aside for %g s: %s", _named(head), pause_s, trouble, extra=_fields(head))

    async def take_up(self, number: int, *, had_trouble: bool) -> None:
        """Go on with an operation, and remove its trouble."""
        self._set_aside.take_up(number)
        if had_trouble:
            with contextlib.suppress(Unavailable):
                has_trouble = operations.c.trouble.is_not(None)
                head = await self._db.transaction(lambda tx: touch(tx, number, has_trouble, trouble=None), "trouble")
                if head is not None:
                    log.info("%s goes on", _named(head), extra=_fields(head))

    async def break_operation(self, number: int, reason: str) -> None:
        """Stop an operation that no worker can go on with."""
        head = await self._db.transaction(
            lambda tx: break_operation(self._db, tx, number, reason, actor=self._owner), "broke"
        )
        if head is not None:
            log.error("%s broke: %s", _named(head), reason, extra=_fields(head))


def _named(head: Head) -> str:
    return f"operation {head.name} ({head.id})"


def _fields(head: Head) -> dict[str, Any]:
    return {"operation_id": head.id, "operation_name": head.name}
