"""API keys: made, listed, revoked, and told from others when somebody comes with one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, Update, bindparam, insert, select, update

from penstock.access import key_text
from penstock.access.audit import Act, note, record
from penstock.access.model import ApiKey, Principal, require_grant
from penstock.access.tables import api_keys
from penstock.clock import Clock, Entropy, from_micros
from penstock.db.connection import Connection
from penstock.db.database import CommitUnknown, Database
from penstock.errors import InvalidInput, NotFound, Unavailable

__all__ = ["CACHE_S", "ApiKeys"]

CACHE_S = 3.0  # how long a key that was revoked elsewhere may still be taken
CACHED_MAX = 1000
USE_NOTED_S = 600.0  # the last use is written down this often
MICROS = 1_000_000
SHOWN = tuple(ApiKey.__dataclass_fields__)


class ApiKeys:
    """The API keys of one database. What a key may do is read again every few seconds."""

    def __init__(self, db: Database, *, clock: Clock, entropy: Entropy, actor: str) -> None:
        self._db, self._clock, self._entropy, self._actor = db, clock, entropy, actor
        self._cache: OrderedDict[str, tuple[float, str, ApiKey]] = OrderedDict()

    async def create(
        self,
        name: str,
        *,
        role: str = "read",
        operations: Iterable[str] | None = None,
        tenant: str = "",
        lasts: timedelta | None = None,
        actor: str | None = None,
    ) -> tuple[ApiKey, str]:
        """A new key and its text, which cannot be shown again. Durable when this returns."""
        names = None if operations is None else frozenset(operation.casefold() for operation in operations)
        require_grant(name, role, tenant, names)
        if lasts is not None and lasts <= timedelta():
            raise InvalidInput(f"a key lasts for a while, such as timedelta(days=90); found {lasts}")
        id, text = key_text.new_key(self._entropy)
        _, secret = key_text.parse(text) or ("", "")
        columns = {
            "id": id,
            "digest": key_text.digest(id, secret),
            "name": name,
            "role": role,
            "operations": None if names is None else sorted(names),
            "tenant": tenant,
            "created_by": actor or self._actor,
        }

        async def work(tx: Connection) -> None:
            now_us = int((await tx.execute(select(self._db.now()))).scalar_one())
            ends = None if lasts is None else now_us + round(lasts.total_seconds() * MICROS)
            await tx.execute(insert(api_keys).values(**columns, created_at=now_us, expires_at=ends))
            details = {"name": name, "role": role, "operations": columns["operations"]}
            if ends is not None:
                details["expiresAt"] = from_micros(ends).isoformat()
            await record(self._db, tx, Act(tenant, actor or self._actor, "key.create", id, details))

        try:
            await self._db.transaction(work, "api_key_create")
        except CommitUnknown:
            if await self._read(id) is None:
                raise
        return await self.get(id), text

    async def get(self, id: str) -> ApiKey:
        """The key with this id."""
        found = await self._read(id)
        if found is None:
            raise _not_found(id)
        return found[1]

    async def list(self, *, tenant: str | None = None, after: str | None = None, limit: int = 100) -> Sequence[ApiKey]:
        """Keys, oldest first; of one tenant, or of all. `after` goes on behind the key with this id."""
        query = select(*_COLUMNS).order_by(api_keys.c.created_at, api_keys.c.id).limit(limit)
        if tenant is not None:
            query = query.where(api_keys.c.tenant == tenant)

        async def work(tx: Connection) -> Sequence[ApiKey]:
            wanted = query
            if after is not None:
                mine = () if tenant is None else (api_keys.c.tenant == tenant,)
                place = select(api_keys.c.created_at).where(api_keys.c.id == after, *mine)
                last = (await tx.execute(place)).scalar()
                if last is None:
                    raise InvalidInput(f"{after!r} is not a cursor of this list")
                is_later = (api_keys.c.created_at == last) & (api_keys.c.id > after)
                wanted = query.where((api_keys.c.created_at > last) | is_later)
            return [_key(row) for row in await tx.execute(wanted)]

        return await self._db.look(work)

    async def revoke(self, id: str, *, tenant: str | None = None, actor: str | None = None) -> ApiKey:
        """Take a key back: other processes refuse it within `CACHE_S` seconds, this one at once. Twice is once."""
        given = self._parsed_id(id)
        mine = () if tenant is None else (api_keys.c.tenant == tenant,)

        async def work(tx: Connection) -> bool:
            done = await tx.execute(
                update(api_keys)
                .where(api_keys.c.id == given, api_keys.c.revoked_at.is_(None), *mine)
                .values(revoked_at=self._db.now(), revoked_by=actor or self._actor)
            )
            if done.rowcount == 1:
                of = (await tx.execute(select(api_keys.c.tenant).where(api_keys.c.id == given))).scalar_one()
                await record(self._db, tx, Act(of, actor or self._actor, "key.revoke", given))
            return done.rowcount == 1

        while True:
            try:
                await self._db.transaction(work, "api_key_revoke")
                break
            except CommitUnknown:
                continue
        self._cache.pop(given, None)
        found = await self._read(given)
        if found is None or tenant not in (None, found[1].tenant):
            raise _not_found(id)
        return found[1]

    @staticmethod
    def _parsed_id(given: str) -> str:
        """The id of a key that is named by its id or, by somebody who has it at hand, by its whole text."""
        parsed = key_text.parse(given)
        return parsed[0] if parsed else given

    async def principal(self, text: str) -> Principal | None:
        """Who asks with this key; None when it is none of ours, is wrong, has expired or was revoked."""
        parsed = key_text.parse(text)
        if parsed is None:
            return None
        id, secret = parsed
        found = await self._cached(id)
        if found is None or not key_text.fits(id, secret, found[0]):
            return None
        return found[1].principal if self._is_active(found[1]) else None

    async def owner(self, id: str) -> Principal | None:
        """Who asks in a session that was opened with the key of this id; None once it may not be used any more."""
        found = await self._cached(id)
        return found[1].principal if found is not None and self._is_active(found[1]) else None

    async def note_login(self, id: str, principal: Principal) -> None:
        """Note in the audit log that somebody has logged in with the key of this id."""
        await note(self._db, Act(principal.tenant, principal.name, "session.open", id))

    def is_at_hand(self, text: str) -> bool:
        """Whether this key was accepted a moment ago, so that nobody has to be asked about it."""
        parsed = key_text.parse(text)
        held = None if parsed is None else self._cache.get(parsed[0])
        return parsed is not None and held is not None and key_text.fits(*parsed, held[1])

    def _is_active(self, key: ApiKey) -> bool:
        return key.state_at(from_micros(self._clock.now_us())) == "Active"

    async def _cached(self, id: str) -> tuple[str, ApiKey] | None:
        """A key as it was a moment ago. Only keys that exist are kept: nobody fills the cache with made-up ones."""
        now_s = self._clock.monotonic()
        held = self._cache.get(id)
        if held is not None and now_s < held[0]:
            return held[1], held[2]
        found = await self._read(id)
        if found is None:
            self._cache.pop(id, None)
            return None
        self._cache[id] = (now_s + CACHE_S, *found)
        self._cache.move_to_end(id)
        if len(self._cache) > CACHED_MAX:
            self._cache.popitem(last=False)
        await self._note_use(found[1])
        return found

    async def _note_use(self, key: ApiKey) -> None:
        last_us = self._clock.now_us() - round(USE_NOTED_S * MICROS)
        if self._is_active(key) and (key.last_used_at is None or key.last_used_at <= from_micros(last_us)):
            try:
                await self._db.single(self._db.prepared(_used), {"of": key.id, "before": last_us}, "api_key_used")
            except Unavailable:
                return  # nobody is refused because this could not be written down

    async def _read(self, id: str) -> tuple[str, ApiKey] | None:
        async with self._db.connection() as connection:
            row = (await connection.execute(self._db.prepared(_by_id), {"of": id})).one_or_none()
        return None if row is None else (row.digest, _key(row))


_COLUMNS = [api_keys.c[name] for name in SHOWN]


def _by_id(db: Database) -> Select[*tuple[Any, ...]]:
    return select(api_keys.c.digest, *_COLUMNS).where(api_keys.c.id == bindparam("of"))


def _used(db: Database) -> Update:
    is_due = api_keys.c.last_used_at.is_(None) | (api_keys.c.last_used_at <= bindparam("before"))
    return update(api_keys).where(api_keys.c.id == bindparam("of"), is_due).values(last_used_at=db.now())


def _key(row: Any) -> ApiKey:
    found = {name: getattr(row, name) for name in SHOWN}
    instants = {name: _instant(found[name]) for name in SHOWN if name.endswith("_at")}
    operations = None if row.operations is None else frozenset(row.operations)
    return ApiKey(**{**found, **instants, "operations": operations})


def _instant(value: int | None) -> datetime | None:
    return None if value is None else from_micros(value)


def _not_found(id: str) -> NotFound:
    return NotFound(f"API key not found: {id!r:.40}; `penstock keys list` lists them")
