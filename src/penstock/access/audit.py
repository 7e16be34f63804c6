"""The audit log: written in the transaction of the change it tells of, chained for each tenant, and checked.

Whoever writes an entry locks the end of the tenant's chain until the transaction ends: so this comes last in it.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Insert, Select, bindparam, insert, select, update

from penstock.access.chain import ERASED, START, ChainCheck, Entry, details_digest, digest_of
from penstock.access.model import NAME_CHARS
from penstock.access.tables import SUBJECT_CHARS
from penstock.access.tables import audit_chains as chains
from penstock.access.tables import audit_entries as entries
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.db.types import shortened
from penstock.db.unit import unit_of
from penstock.errors import Conflict, InvalidInput
from penstock.listing import Page, parse_number_cursor

__all__ = ["Act", "Audit", "erase_details", "note", "record"]

READ_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Act:
    """What somebody did to a thing of a tenant."""

    tenant: str
    actor: str
    action: str
    subject: str
    details: Mapping[str, Any] | None = None


async def record(db: Database, tx: Connection, *acts: Act) -> None:
    """Add entries to the log, in the transaction that makes the change; the last thing that it does.

    Where that is a caller's own transaction, they are added when it is committed.
    """
    unit = unit_of(tx)
    if unit is not None:
        unit.before_commit(lambda last: _record(db, last, acts), is_last=True)
    else:
        await _record(db, tx, acts)


async def note(db: Database, act: Act) -> None:
    """Add an entry for an act that has no transaction of its own in this database."""
    await db.transaction(lambda tx: record(db, tx, act), "audit")


async def _record(db: Database, tx: Connection, acts: Sequence[Act]) -> None:
    for tenant in sorted({act.tenant for act in acts}):
        await _extend(db, tx, tenant, [act for act in acts if act.tenant == tenant])


async def _extend(db: Database, tx: Connection, tenant: str, acts: Sequence[Act]) -> None:
    last, before, now = await _locked_end(db, tx, tenant)
    made, digest = list[Mapping[str, Any]](), before
    for sequence, act in enumerate(acts, last + 1):
        entry = _entry(act, sequence, now, digest)
        digest = entry.digest
        made.append({name: getattr(entry, name) for name in Entry.__dataclass_fields__})
    await tx.send(_NEW_ENTRIES, made)
    end = {"of_tenant": tenant, "last": last, "sequence": last + len(acts), "digest": digest}
    if (await tx.send(_EXTENDED, end)).matched != 1:
        raise Conflict(f"the audit log of tenant {tenant!r} was extended by another at the same time")


async def _locked_end(db: Database, tx: Connection, tenant: str) -> tuple[int, str, int]:
    """The last number and digest of a chain, locked, and the time."""
    query = db.prepared(_end)
    found = (await tx.send(query, {"of_tenant": tenant})).rows
    if not found:
        await tx.send(db.prepared(_begun), [{"tenant": tenant, "sequence": 0, "digest": START}])
        found = (await tx.send(query, {"of_tenant": tenant})).rows
    ((sequence, digest, now),) = found
    return int(sequence), str(digest), int(now)


_NEW_ENTRIES = insert(entries)
# The columns that are sent along (sequence, digest) are set.
_EXTENDED = update(chains).where(chains.c.tenant == bindparam("of_tenant"), chains.c.sequence == bindparam("last"))


def _end(db: Database) -> Select[Any]:
    locked = select(chains.c.sequence, chains.c.digest, db.now()).with_for_update()
    return locked.where(chains.c.tenant == bindparam("of_tenant"))


def _begun(db: Database) -> Insert:
    return db.dialect.upsert(chains, key=["tenant"], update=[])


def _entry(act: Act, sequence: int, at: int, before: str) -> Entry:
    salt = None if act.details is None else secrets.token_hex(16)
    covered = None if act.details is None or salt is None else details_digest(act.details, salt)
    actor, subject = shortened(act.actor, NAME_CHARS), shortened(act.subject, SUBJECT_CHARS)
    made = Entry(act.tenant, sequence, at, actor, act.action, subject, act.details, salt, covered, "")
    return replace(made, digest=digest_of(made, before))


async def erase_details(db: Database, tx: Connection, *, tenant: str, subject: str, actor: str) -> None:
    """Forget the details of all entries about a thing; an entry says so, and the chain still holds."""
    mine = (entries.c.tenant == tenant, entries.c.subject == subject, entries.c.details.is_not(None))
    await tx.execute(update(entries).where(*mine).values(details=None, salt=None))
    await record(db, tx, Act(tenant, actor, ERASED, subject))


class Audit:
    """Reads and checks the log; of one tenant, or of all."""

    def __init__(self, db: Database, *, tenant: str | None = None, page_max: int) -> None:
        self._db, self._tenant, self._page_max = db, tenant, page_max

    def seen_by(self, tenant: str) -> Audit:
        """The log of one tenant."""
        return Audit(self._db, tenant=tenant, page_max=self._page_max)

    async def list(
        self,
        *,
        tenant: str = "",
        subject: str | None = None,
        actor: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Entry]:
        """Entries of a tenant, newest first."""
        if limit < 1:
            raise InvalidInput(f"limit is {limit}; a page has at least 1 entry")
        limit = min(limit, self._page_max)
        query = (
            select(entries)
            .where(entries.c.tenant == self._mine(tenant))
            .order_by(entries.c.sequence.desc())
            .limit(limit + 1)
        )
        if subject is not None:
            query = query.where(entries.c.subject == shortened(subject, SUBJECT_CHARS))
        if actor is not None:
            query = query.where(entries.c.actor == actor)
        if cursor is not None:
            query = query.where(entries.c.sequence < parse_number_cursor(cursor))
        async with self._db.read() as tx:
            found = [Entry(**row._mapping) for row in await tx.execute(query)]
        shown = found[:limit]
        return Page(shown, str(shown[-1].sequence) if len(found) > limit else None)

    async def note(self, act: Act) -> None:
        """Add an entry for an act that has no transaction of its own in this database."""
        await note(self._db, act)

    async def faults(self) -> AsyncIterator[str]:
        """Everything that is wrong with the chains."""
        async with self._db.read() as tx:
            async for fault in self.faults_in(tx):
                yield fault

    async def faults_in(self, tx: Connection) -> AsyncIterator[str]:
        """The same, as a transaction sees it."""
        query = select(chains).order_by(chains.c.tenant)
        query = query if self._tenant is None else query.where(chains.c.tenant == self._tenant)
        ends = {end.tenant: (end.sequence, end.digest) for end in await tx.execute(query)}
        orphans = select(entries.c.tenant).distinct().where(entries.c.tenant.not_in(ends))
        orphans = orphans if self._tenant is None else orphans.where(entries.c.tenant == self._tenant)
        ends |= dict.fromkeys((await tx.execute(orphans)).scalars(), (0, START))
        for tenant, end in ends.items():
            async for sequence, fault in _faults(tx, tenant, end):
                yield f"audit log of tenant {tenant!r}, entry {sequence}: {fault}"

    async def end(self, tenant: str = "") -> tuple[int, str]:
        """The last number and digest of a chain: kept elsewhere, they show later that nothing before was changed."""
        async with self._db.read() as tx:
            query = select(chains.c.sequence, chains.c.digest).where(chains.c.tenant == self._mine(tenant))
            found = (await tx.execute(query)).one_or_none()
        return (0, START) if found is None else (int(found[0]), str(found[1]))

    async def has(self, sequence: int, digest: str, tenant: str = "") -> bool:
        """Whether the chain, which may have grown, still has this end of an earlier day."""
        mine = entries.c.tenant == self._mine(tenant)
        query = select(entries.c.digest).where(mine, entries.c.sequence == sequence)
        async with self._db.read() as tx:
            return sequence == 0 or (await tx.execute(query)).scalar() == digest

    def _mine(self, tenant: str) -> str:
        """The tenant whose log this is, else the one that is asked for."""
        return tenant if self._tenant is None else self._tenant


async def _faults(tx: Connection, tenant: str, end: tuple[int, str]) -> AsyncIterator[tuple[int, str]]:
    check = ChainCheck()
    async for entry in _chain(tx, tenant):
        for fault in check.next(entry):
            yield fault
    for fault in check.end(*end):
        yield fault


async def _chain(tx: Connection, tenant: str) -> AsyncIterator[Entry]:
    last = 0
    while True:
        query = select(entries).where(entries.c.tenant == tenant, entries.c.sequence > last)
        some = (await tx.execute(query.order_by(entries.c.sequence).limit(READ_AT_ONCE))).all()
        for row in some:
            yield Entry(**row._mapping)
        if len(some) < READ_AT_ONCE:
            return
        last = some[-1].sequence
