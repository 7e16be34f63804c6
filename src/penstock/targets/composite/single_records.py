"""A function that sends one record, driven like any target: under the executor's limits, retries and cancellation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Any, TypeAlias

from penstock.targets.model import DONE, BulkOptions, ErrorKind, Mode, TargetError, Verdict
from penstock.targets.target import Answer, Batch, Capabilities, Reference, Target

__all__ = ["Fallback", "SingleTarget"]

Fallback: TypeAlias = Callable[[str, Any, str], Awaitable[Any]]
"""Takes a table, a record (or an id to delete) and a source; returns a `Verdict`, or the record's id, or None."""


class SingleTarget(Target):
    """Sends every record by a function, in the name of another target's sources."""

    def __init__(self, target: Target, send_one: Fallback) -> None:
        self.name = f"{target.name}, one by one"
        self.sources = target.sources
        self.width, self.width_max = target.width, target.width_max
        self.options_type, self.rate_limit, self.quota = target.options_type, target.rate_limit, target.quota
        self._target, self._send_one = target, send_one

    async def send(self, batch: Batch, source: str) -> Answer:
        try:
            told = await self._send_one(batch.table, batch.records[0], source)
        except OSError as error:  # timeouts are among them
            raise TargetError(
                f"no answer: {type(error).__name__}", kind=ErrorKind.CONNECTION, maybe_applied=True
            ) from error
        is_told = isinstance(told, Verdict)
        verdict = told if is_told else Verdict(DONE[batch.mode], told)
        return Answer([verdict], counts_exact=is_told or batch.mode is not Mode.UPSERT)

    async def describe(self, table: str, mode: Mode, options: BulkOptions, source: str) -> Capabilities:
        return Capabilities(is_idempotent=mode in (Mode.UPDATE, Mode.UPSERT), records_max=1)

    async def refresh(self, source: str) -> None:
        await self._target.refresh(source)

    def identifier(self, table: str, mode: Mode, options: BulkOptions) -> Callable[[Any], Hashable | None] | None:
        return self._target.identifier(table, mode, options)

    def references(self, table: str, record: Any, options: BulkOptions) -> Iterable[Reference]:
        return self._target.references(table, record, options)
