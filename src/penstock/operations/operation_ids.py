"""From the id that users see to the number that tables use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Select, bindparam, select

from penstock.clock import from_micros
from penstock.db.connection import Connection
from penstock.errors import NotFound
from penstock.operations.tables import REMOVED, operations
from penstock.operations.visibility import EVERYTHING, Visible

__all__ = ["IS_THERE", "find", "number_of"]

PREFIX_CHARS = 8  # the fewest characters of an id that can be given for it
NEAR_LISTED_MAX = 10
STATEMENTS_KEPT = 1000  # some for each set of operations that somebody may see
# An operation whose removal has begun is gone for callers.
IS_THERE = operations.c.stop_outcome.is_distinct_from(REMOVED)


async def number_of(tx: Connection, operation: str, visible: Visible = EVERYTHING) -> int:
    """The inner number of an operation, by its id or an unambiguous beginning of it (8 characters or more)."""
    return int((await find(tx, _NUMBER, operation, visible))["number"])


async def find(tx: Connection, query: Select[Any], operation: str, visible: Visible = EVERYTHING) -> Mapping[str, Any]:
    """What a query, which is kept to be sent again, asks of the operation with this id; `NotFound` if there is none."""
    by_id, by_number, names = _by_id(query, visible)
    found = (await tx.send(by_id, {"id": operation})).rows
    if not found:
        found = (await tx.send(by_number, {"number": await _number_near(tx, operation, visible)})).rows
    return dict(zip(names, found[0], strict=True))


_NUMBER = select(operations.c.number)


@lru_cache(STATEMENTS_KEPT)
def _by_id(query: Select[Any], visible: Visible) -> tuple[Select[Any], Select[Any], Sequence[str]]:
    """The query for one operation, by its id and by its number, and the names of its columns."""
    by_id = query.where(operations.c.id == bindparam("id"), IS_THERE, *visible.conditions)
    return by_id, query.where(operations.c.number == bindparam("number")), query.selected_columns.keys()


async def _number_near(tx: Connection, operation: str, visible: Visible) -> int:
    """The number of the only operation whose id begins so."""
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
