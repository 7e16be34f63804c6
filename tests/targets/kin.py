"""A remote whose tables refer to each other, and which takes no reference to a record that is not there yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from scripted import trouble

from penstock.targets import (
    Answer,
    Batch,
    BulkOptions,
    Capabilities,
    ErrorKind,
    Mode,
    Outcome,
    Target,
    TargetError,
    Verdict,
)

__all__ = ["Kin"]

LATENCY_S = 0.01


class Kin(Target):
    """Every table has the key `id`; columns `up` and `side` refer to the same table, `firm` to the table of firms."""

    def __init__(self, *, refuse: Callable[[Batch], TargetError | None] = lambda _: None) -> None:
        self.rows: dict[tuple[str, Any], dict[str, Any]] = {}
        self.log: list[tuple[str, str, tuple[Any, ...]]] = []
        self._refuse = refuse

    async def describe(self, table: str, mode: Mode, options: BulkOptions, source: str) -> Capabilities:
        return Capabilities(id_field="id", is_idempotent=mode is Mode.UPSERT)

    async def send(self, batch: Batch, source: str) -> Answer:
        self.log.append((batch.mode.value, batch.table, tuple(record["id"] for record in batch.records)))
        error = self._refuse(batch)
        if error is not None:
            raise error
        await asyncio.sleep(LATENCY_S)
        for record in batch.records:
            self._check(batch, record)
        for record in batch.records:
            self.rows.setdefault((batch.table, record["id"]), {}).update(record)
        outcome = Outcome.UPDATED if batch.mode is Mode.UPDATE else Outcome.CREATED
        return Answer([Verdict(outcome, record["id"]) for record in batch.records])

    def identity(self, table: str, mode: Mode, record: Any) -> Any:
        return record["id"]

    def _check(self, batch: Batch, record: dict[str, Any]) -> None:
        if record.get("bad"):
            raise trouble(ErrorKind.DATA, "the field 'bad' is wrong", code="bad")
        if batch.mode is Mode.UPDATE and (batch.table, record["id"]) not in self.rows:
            raise trouble(ErrorKind.DATA, "no such record", code="404")
        for name, table in self.tables_of(batch.table).items():
            if record.get(name) is not None and (table, record[name]) not in self.rows:
                raise trouble(ErrorKind.DATA, f"Key ({name})=({record[name]}) is not present in table", code="23503")

    def tables_of(self, table: str) -> dict[str, str]:
        return {"up": table, "side": table, "firm": "firm", "boss": "person"}

    def references(self, table: str, record: Any, options: BulkOptions) -> Any:
        return Target.references(self, table, record, BulkOptions(references=self.tables_of(table)))
