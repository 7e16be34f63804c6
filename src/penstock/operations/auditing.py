"""What callers did to operations, for the audit log: noted in the transaction of the change, at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select

from penstock.access.audit import Act, record
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.operations.tables import operations

__all__ = ["log_act", "some_rows"]

ROWS_LISTED_MAX = 1000


async def log_act(
    db: Database,
    tx: Connection,
    number: int,
    action: str,
    *,
    actor: str,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Note what was done to an operation, in the transaction that does it."""
    query = select(operations.c.id, operations.c.tenant).where(operations.c.number == number)
    found = (await tx.execute(query)).one()
    await record(db, tx, Act(found.tenant or "", actor, f"operation.{action}", found.id, details))


def some_rows(rows: Sequence[int]) -> dict[str, Any]:
    """Rows by number, as details of an act: how many, and which, unless they are very many."""
    listed = sorted(rows)[:ROWS_LISTED_MAX]
    return {"count": len(rows), "rows": listed}
