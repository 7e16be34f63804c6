"""Quotas shared by all processes on one Penstock database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any

from sqlalchemy import delete, select

from penstock.db.connection import Connection
from penstock.db.database import CommitUnknown, Database
from penstock.targets.quotas import RENEW_S
from penstock.targets.rules.limits import Share
from penstock.targets.tables import quota_members as members

__all__ = ["LEASE_S", "SqlQuotas"]

LEASE_S = 15 * RENEW_S
"""A member that has not renewed for so long has ended, or uses the remote no more."""


class SqlQuotas:
    """Members hold leases on quotas; whoever holds one gets an equal share."""

    def __init__(self, db: Database, new_id: Callable[[], str]) -> None:
        self._db, self._new_id = db, new_id
        self._loop = asyncio.get_running_loop()
        """Whose connections the database has; bulk calls may be made in others, on threads."""
        self._is_closed = False

    @cached_property
    def _member(self) -> str:
        return self._new_id().replace("-", "")[:32]

    async def renew(self, remote: str, throttled_s: Mapping[str, float]) -> Mapping[str, Share]:
        """Renew our leases, drop those that ran out, and count the members."""
        if self._is_closed or asyncio.get_running_loop() is self._loop:
            return await self._renew(remote, throttled_s)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._renew(remote, throttled_s), self._loop))

    async def _renew(self, remote: str, throttled_s: Mapping[str, float]) -> Mapping[str, Share]:
        if self._is_closed:
            return {source: Share() for source in throttled_s}
        quotas = {sha256(f"{remote}\n{source}".encode()).hexdigest(): source for source in throttled_s}

        async def work(tx: Connection) -> Mapping[str, Share]:
            now_us = (await tx.execute(select(self._db.now()))).scalar_one()
            rows = [
                {
                    "quota": quota,
                    "member": self._member,
                    "lease_until": now_us + round(LEASE_S * 1e6),
                    "throttled_until": now_us + round(throttled_s[source] * 1e6),
                }
                for quota, source in sorted(quotas.items())
            ]
            update = ("lease_until", "throttled_until")
            await tx.execute(self._db.dialect.upsert(members, key=("quota", "member"), update=update), rows)
            await tx.execute(delete(members).where(members.c.quota.in_(quotas), members.c.lease_until < now_us))
            found = select(members.c.quota, members.c.member, members.c.throttled_until)
            told = (await tx.execute(found.where(members.c.quota.in_(quotas)))).all()
            return {source: self._share(told, quota, now_us) for quota, source in quotas.items()}

        try:
            return await self._db.transaction(work, "quota_renew")
        except CommitUnknown:
            return await self._renew(remote, throttled_s)

    def close(self) -> None:
        """The database is gone; whoever asks from now on has the whole of every quota."""
        self._is_closed = True

    def _share(self, told: Sequence[Any], quota: str, now_us: int) -> Share:
        here = sorted((member, until_us) for of, member, until_us in told if of == quota)
        names = [member for member, _ in here]
        others_us = max((until_us for member, until_us in here if member != self._member), default=0)
        return Share(names.index(self._member), len(names), max(0.0, (others_us - now_us) / 1e6))
