"""From the id that users see to the number that tables use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select

from penstock.clock import from_micros
from penstock.db.connection import Connection
from penstock.errors import NotFound
from penstock.operations.tables import REMOVED, operations
from penstock.operations.visibility import EVERYTHING, Visible

__all__ = ["IS_THERE", "number_of"]

PREFIX_CHARS = 8  # the fewest characters of an id that can be given for it
NEAR_LISTED_MAX = 10
# An operation whose removal has begun is gone for callers.
IS_THERE = operations.c.stop_outcome.is_distinct_from(REMOVED)


async def number_of(tx: Connection, operation: str, visible: Visible = EVERYTHING) -> int:
    """The inner number of an operation, by its id or an unambiguous beginning of it (8 characters or more)."""
    exact = select(operations.c.number).where(operations.c.id == operation, IS_THERE, *visible.conditions)
    found = (await tx.execute(exact)).scalar()
    if found is not None:
        return int(found)
    if len(operation) < PREFIX_CHARS:
        raise NotFound(
            f"operation not found: {operation!r}; the beginning of an id has {PREFIX_CHARS} characters or more"
        )
    near = await _beginning_with(tx, operation, visible) if len(operation) < 36 else []
    if not near:
        raise NotFound(f"operation not found: {operation!r}")
    if len(near) > 1:
        raise NotFound(f"several operations have ids that begin with {operation!r}; give more of it:\n{_listed(near)}")
    return int(near[0].number)


async def _beginning_with(tx: Connection, beginning: str, visible: Visible) -> Sequence[Any]:
    """The newest operations whose ids begin so, one more than are listed."""
    columns = (operations.c[name] for name in ("number", "id", "name", "state", "created_at"))
    is_near = (operations.c.id >= beginning, operations.c.id < beginning + "\x7f", IS_THERE, *visible.conditions)
    query = select(*columns).where(*is_near).order_by(operations.c.id.desc()).limit(NEAR_LISTED_MAX + 1)
    return (await tx.execute(query)).all()


def _listed(near: Sequence[Any]) -> str:
    lines = [
        f"  {found.id}  {found.name}  {found.state}  created {from_micros(found.created_at):%Y-%m-%d %H:%M:%S} UTC"
        for found in near[:NEAR_LISTED_MAX]
    ]
    return "\n".join(lines + ["  and others"] * (len(near) > NEAR_LISTED_MAX))
