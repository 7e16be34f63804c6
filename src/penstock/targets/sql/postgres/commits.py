"""Transactions whose commit was never answered, and what PostgreSQL says became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.targets.model import ErrorKind, TargetError, Verdict
from penstock.targets.sql.row_groups import RowGroup

__all__ = ["Commits", "Pending"]

BATCHES_MAX = 1000
"""Batches remembered: more are not in flight, so the oldest were given up by their caller."""
ASKED_MAX = 50
PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Pending:
    """What a transaction will have done if it committed."""

    xid: str
    groups: Sequence[RowGroup]
    verdicts: Sequence[Sequence[Verdict]]


class Commits:
    """What was asked to commit, by batch, until the answer is known."""

    def __init__(self, sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep) -> None:
        self._sleep = sleep
        self._pending: dict[str, list[Pending]] = {}

    def note(self, batch_key: str, pending: Pending) -> None:
        """A commit is about to be sent."""
        self._pending.setdefault(batch_key, []).append(pending)
        while len(self._pending) > BATCHES_MAX:
            del self._pending[next(iter(self._pending))]

    def forget(self, batch_key: str) -> None:
        """The batch was answered, or is sent anew."""
        self._pending.pop(batch_key, None)

    def has(self, batch_key: str) -> bool:
        """Whether something of this batch may have been committed."""
        return batch_key in self._pending

    def drop_last(self, batch_key: str) -> None:
        """The server refused the last commit."""
        self._pending[batch_key].pop()
        if not self._pending[batch_key]:
            self.forget(batch_key)

    async def settle(self, connection: Any, batch_key: str, count: int) -> list[Verdict | None]:
        """Ask about every commit of a batch; None for a record that none of them wrote."""
        verdicts: list[Verdict | None] = [None] * count
        for pending in self._pending.get(batch_key, ()):
            if await self._is_committed(connection, pending.xid):
                for group, told in zip(pending.groups, pending.verdicts, strict=True):
                    for position, verdict in zip(group.positions, told, strict=True):
                        verdicts[position] = verdict
        self.forget(batch_key)
        return verdicts

    async def _is_committed(self, connection: Any, xid: str) -> bool:
        status = None
        for _ in range(ASKED_MAX):
            status = await connection.fetchval("SELECT pg_xact_status($1::text::xid8)", xid)
            if status in ("committed", "aborted"):
                return bool(status == "committed")
            if status is None:
                break
            await self._sleep(PAUSE_S)  # the server has not noticed yet that its client is gone
        raise TargetError(
            f"transaction {xid} is {status or 'too old to ask about'}; whether it committed is not known",
            kind=ErrorKind.CONNECTION,
            maybe_applied=True,
        )
