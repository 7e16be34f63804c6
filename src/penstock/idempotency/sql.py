"""Keys in our database, on SQLite, PostgreSQL and MariaDB. All SQL of the capability is here.

The state guards of the statements come from the machine's table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Delete, Select, Update, and_, bindparam, delete, or_, select, update
from sqlalchemy.sql.dml import ReturningInsert

from penstock.db.connection import Connection
from penstock.db.database import CommitUnknown, Database
from penstock.idempotency.answers import names
from penstock.idempotency.model import Address, Entry, Seen, Wish
from penstock.idempotency.states import IDEMPOTENCY_KEY
from penstock.idempotency.tables import idempotency_keys as keys

__all__ = ["SqlStore", "hold_in", "move_in"]

T = TypeVar("T")

KEPT_PAGE = 50  # of answers that may be long
ID_BEGINNING = 8  # characters of an id that are enough to name it
FIELDS = tuple(Entry.__dataclass_fields__)
# What becomes due when: the lease of a key in progress, else the retention of its entry.
DUE = {"lease_expired": keys.c.lease_until}


class SqlStore:
    """Keys in one database."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def insert(self, address: Address, wish: Wish) -> Seen | None:
        try:
            added = await self.db.single(self.db.prepared(_insert), _columns(address, wish), "key_claim")
        except CommitUnknown:
            return await self.read(address)
        return None if added.rows == [(wish.owner,)] else await self.read(address)

    async def take_over(self, address: Address, seen: Entry, wish: Wish) -> bool:
        async def work(tx: Connection) -> bool:
            if seen.state == "InProgress" and not await move_in(
                self.db, tx, address, "lease_expired", owner=seen.owner, only_due=True
            ):
                return False
            sent = {"of": address.id, "before": seen.owner, "lease_us": wish.lease_us, "owner": wish.owner}
            return (await tx.send(self.db.prepared(_take_over), sent)).matched == 1

        try:
            return await self.db.transaction(work, "key_take_over")
        except CommitUnknown:
            found = (await self.read(address)).entry
            return found is not None and found.owner == wish.owner

    async def renew(self, address: Address, owner: str, lease_us: int) -> bool:
        try:
            sent = {"of": address.id, "before": owner, "lease_us": lease_us}
            return (await self.db.single(self.db.prepared(_renew), sent, "key_renew")).matched == 1
        except CommitUnknown:
            return await self.renew(address, owner, lease_us)

    async def move(
        self,
        address: Address,
        event: str,
        *,
        owner: str,
        only_due: bool = False,
        answer: bytes | None = None,
        retention_us: int = 0,
    ) -> bool:
        statement = self.db.prepared(_move, event, only_due)
        sent = _moving(address, event, owner, answer, retention_us)
        return (await self.db.single(statement, sent, f"key_{event}")).matched == 1

    async def read(self, address: Address) -> Seen:
        async with self.db.connection() as connection:
            found = (await connection.send(self.db.prepared(_select), {"of": address.id})).rows
            if not found:
                return Seen(None, (await connection.send(self.db.prepared(_time))).one()[0])
        *values, now_us = found[0]
        return Seen(Entry(*values), now_us)

    async def sweep(self, limit: int) -> int:
        async def work(tx: Connection) -> int:
            gone = await _ids(tx, select(keys.c.id).where(_is_gone(self.db)).limit(limit))
            if not gone:
                return 0
            return (await tx.execute(delete(keys).where(keys.c.id.in_(gone), _is_gone(self.db)))).rowcount

        return await self._repeatable(work, "key_sweep")

    async def erase(self, scope: str, limit: int) -> int:
        async def work(tx: Connection) -> int:
            is_kept = and_(keys.c.scope == scope, keys.c.answer.is_not(None))
            found = await _ids(tx, select(keys.c.id).where(is_kept).limit(limit))
            if not found:
                return 0
            return (await tx.execute(update(keys).where(keys.c.id.in_(found), is_kept).values(answer=None))).rowcount

        return await self._repeatable(work, "key_erase")

    async def erase_about(self, subject: str) -> int:
        """Remove the answers that name this id, or whose request was for it; how many they were.

        The path of a request may have the beginning of an id. There is no index for this: all kept answers are read.
        """
        after, erased = "", 0
        while True:
            page = await self.db.look(partial(_kept_page, after))
            about = [id for id, label, answer in page if _is_for(label, subject) or names(answer, subject)]
            if about:
                erased += await self._repeatable(partial(_forget_answers, about), "key_erase")
            if len(page) < KEPT_PAGE:
                return erased
            after = page[-1][0]

    async def unsettled(self, limit: int) -> list[Entry]:
        is_late = or_(keys.c.state == "Indeterminate", _is_due(self.db, "lease_expired"))
        wanted = select(*(keys.c[name] for name in FIELDS)).where(is_late).order_by(keys.c.created_at).limit(limit)

        async def work(tx: Connection) -> list[Entry]:
            return [Entry(*row) for row in (await tx.execute(wanted)).all()]

        return await self.db.look(work)

    async def close(self) -> None:
        """The database belongs to who opened it."""

    async def _repeatable(self, work: Callable[[Connection], Awaitable[T]], point: str) -> T:
        """Run a transaction that may be repeated when nobody knows whether it happened."""
        while True:
            try:
                return await self.db.transaction(work, point)
            except CommitUnknown:
                continue


async def _kept_page(after: str, tx: Connection) -> list[tuple[str, str, bytes]]:
    is_kept = and_(keys.c.id > after, keys.c.state == "Completed", keys.c.answer.is_not(None))
    wanted = select(keys.c.id, keys.c.label, keys.c.answer).where(is_kept).order_by(keys.c.id).limit(KEPT_PAGE)
    return [(row.id, row.label, row.answer) for row in (await tx.execute(wanted)).all()]


async def _forget_answers(ids: list[str], tx: Connection) -> int:
    return (await tx.execute(update(keys).where(keys.c.id.in_(ids)).values(answer=None))).rowcount


def _is_for(label: str, subject: str) -> bool:
    return any(len(part) >= ID_BEGINNING and subject.startswith(part) for part in label.split("/"))


async def move_in(
    db: Database,
    tx: Connection,
    address: Address,
    event: str,
    *,
    owner: str,
    only_due: bool = False,
    answer: bytes | None = None,
    retention_us: int = 0,
) -> bool:
    """`Store.move` inside a transaction, perhaps one that is somebody else's."""
    sent = _moving(address, event, owner, answer, retention_us)
    return (await tx.send(db.prepared(_move, event, only_due), sent)).matched == 1


async def hold_in(db: Database, tx: Connection, address: Address, owner: str, lease_us: int) -> bool:
    """Lock an entry that its owner may still complete, until the transaction ends; False when it may not."""
    sent = {"of": address.id, "before": owner, "lease_us": lease_us}
    return (await tx.send(db.prepared(_hold), sent)).matched == 1


async def _ids(tx: Connection, statement: Select[str]) -> Sequence[str]:
    return (await tx.execute(statement)).scalars().all()


# --- statements


def _columns(address: Address, wish: Wish) -> dict[str, Any]:
    own = {"id": address.id, "scope": address.scope, "key": address.key, "label": wish.label, "owner": wish.owner}
    return {**own, "fingerprint": wish.fingerprint, "lease_us": wish.lease_us, "retention_us": wish.retention_us}


def _moving(address: Address, event: str, owner: str, answer: bytes | None, retention_us: int) -> dict[str, Any]:
    """What is sent with a move."""
    sent: dict[str, Any] = {"of": address.id, "before": owner}
    return {**sent, "answer": answer, "retention_us": retention_us} if event == "completed" else sent


def _insert(db: Database) -> ReturningInsert[str]:
    """Answers with the owner of the new entry; where there was one, with nothing, or on MariaDB with its owner."""
    adding = db.dialect.upsert(keys, key=["id"], update=[])
    return adding.values(
        {
            **{name: bindparam(name) for name in ("id", "scope", "key", "label", "owner", "fingerprint")},
            "state": IDEMPOTENCY_KEY.after("Absent", "claimed"),
            "attempt": 1,
            "created_at": db.now(),
            "lease_until": db.now() + bindparam("lease_us", type_=keys.c.lease_until.type),
            "expires_at": db.now() + bindparam("retention_us", type_=keys.c.expires_at.type),
        }
    ).returning(keys.c.owner)


def _select(db: Database) -> Select[*tuple[Any, ...]]:
    return select(*(keys.c[name] for name in FIELDS), db.now()).where(keys.c.id == bindparam("of"))


def _time(db: Database) -> Select[int]:
    return select(db.now())


def _owned(event: str) -> ColumnElement[bool]:
    return and_(keys.c.id == bindparam("of"), keys.c.owner == bindparam("before"), _admits(event))


def _admits(event: str) -> ColumnElement[bool]:
    return or_(*(keys.c.state == state for state in IDEMPOTENCY_KEY.sources(event)))


def _is_due(db: Database, event: str) -> ColumnElement[bool]:
    return and_(_admits(event), DUE.get(event, keys.c.expires_at) <= db.now())


def _is_gone(db: Database) -> ColumnElement[bool]:
    """Nobody has a lease, and it was kept for as long as was promised: expired, or released by its age."""
    is_at_rest = or_(keys.c.state != "InProgress", keys.c.lease_until <= db.now())
    return and_(keys.c.expires_at <= db.now(), is_at_rest)


def _move(db: Database, event: str, only_due: bool) -> Update | Delete:
    (target,) = set(IDEMPOTENCY_KEY.targets(event).values())
    guard = and_(_owned(event), _is_due(db, event)) if only_due else _owned(event)
    if target == IDEMPOTENCY_KEY.initial:
        return delete(keys).where(guard)
    values: dict[str, Any] = {"state": target}
    if event == "completed":
        lasts = bindparam("retention_us", type_=keys.c.expires_at.type)
        values |= {"answer": bindparam("answer"), "finished_at": db.now(), "expires_at": db.now() + lasts}
    return update(keys).where(guard).values(values)


def _take_over(db: Database) -> Update:
    """Released and claimed in one statement."""
    state = IDEMPOTENCY_KEY.after(IDEMPOTENCY_KEY.after("Indeterminate", "released"), "claimed")
    return (
        update(keys)
        .where(keys.c.id == bindparam("of"), keys.c.owner == bindparam("before"), keys.c.state == "Indeterminate")
        .values(
            state=state,
            owner=bindparam("owner"),
            attempt=keys.c.attempt + 1,
            lease_until=db.now() + bindparam("lease_us", type_=keys.c.lease_until.type),
        )
    )


def _renew(db: Database) -> Update:
    return _leased(db).where(keys.c.state == "InProgress")


def _hold(db: Database) -> Update:
    return _leased(db).where(_admits("completed"))


def _leased(db: Database) -> Update:
    lease_until = db.now() + bindparam("lease_us", type_=keys.c.lease_until.type)
    is_ours = and_(keys.c.id == bindparam("of"), keys.c.owner == bindparam("before"))
    return update(keys).where(is_ours).values(lease_until=lease_until)
