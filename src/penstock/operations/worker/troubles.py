"""Operations that a worker cannot go on with: set aside for a while, taken up again, or stopped for good."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import NotFound, Unavailable
from penstock.operations.messages import cut
from penstock.operations.moves import Head, head_of, move
from penstock.operations.worker.set_aside import SetAside, clear_trouble, write_trouble

__all__ = ["Troubles"]

log = logging.getLogger("penstock.worker")


class Troubles:
    """What one worker does about such operations; it says so in the log and on the operation's record."""

    def __init__(self, db: Database, set_aside: SetAside, *, owner: str) -> None:
        self._db, self._set_aside, self._owner = db, set_aside, owner

    async def put_aside(self, number: int, error: Exception) -> None:
        """Leave an operation alone for a while: this worker cannot go on with it, others may."""
        pause_s = self._set_aside.for_trouble(number)
        trouble = cut(f"its stored file cannot be read: {error}" if isinstance(error, OSError) else str(error))

        async def write(tx: Connection) -> tuple[Head, bool]:
            is_new = await write_trouble(tx, number, trouble)
            return await head_of(tx, number), is_new

        with contextlib.suppress(NotFound):  # it was purged
            head, is_new = await self._db.transaction(write, "trouble")
            # The same trouble is an error once, though it is met again after each pause.
            level = logging.ERROR if is_new else logging.DEBUG
            log.log(level, "%s is set aside for %g s: %s", _named(head), pause_s, trouble, extra=_fields(head))

    async def take_up(self, number: int, *, had_trouble: bool) -> None:
        """Go on with an operation, and remove its trouble."""
        self._set_aside.take_up(number)
        if had_trouble:
            with contextlib.suppress(Unavailable):
                head = await self._db.transaction(lambda tx: clear_trouble(tx, number), "trouble")
                if head is not None:
                    log.info("%s goes on", _named(head), extra=_fields(head))

    async def break_operation(self, number: int, reason: str) -> None:
        """Stop an operation that no worker can go on with."""
        head = await self._db.transaction(
            lambda tx: move(
                self._db, tx, number, "broke", actor=self._owner, cause=reason, stop_outcome="Failed", error=reason
            ),
            "broke",
        )
        if head is not None:
            log.error("%s broke: %s", _named(head), reason, extra=_fields(head))


def _named(head: Head) -> str:
    return f"operation {head.name} ({head.id})"


def _fields(head: Head) -> dict[str, Any]:
    return {"operation_id": head.id, "operation_name": head.name}
