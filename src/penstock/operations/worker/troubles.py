"""Operations that a worker cannot go on with: set aside for a while, taken up again, or stopped for good."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from sqlalchemy import or_, select

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import NotFound, Unavailable
from penstock.operations.messages import cut
from penstock.operations.moves import Head, break_operation, head_of, touch
from penstock.operations.rows.runtime import DoesNotFit
from penstock.operations.tables import operations
from penstock.operations.worker.set_aside import SetAside
from penstock.operations.worker_records import code_of_live_workers, misfits

__all__ = ["Troubles"]

log = logging.getLogger("penstock.worker")

MISFIT_PAUSE_MAX_S = 10.0  # it may be migrated to the code that is here


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
