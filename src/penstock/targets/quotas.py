"""Quotas that processes have in common: who uses one at the moment, and how pools hear of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Protocol

from penstock.targets.pool import Pool
from penstock.targets.rules.limits import Share

__all__ = ["RENEW_S", "Quotas", "current_quotas", "keep_share", "use_quotas"]

log = logging.getLogger("penstock.targets")

RENEW_S = 1.0
"""How often a process that uses a quota says so, and hears of the others; also at each throttle, and before it ends.

A remote may lengthen a throttle for each call that comes too early, whoever makes it.
"""


class Quotas(Protocol):
    """Keeps who uses which quota."""

    async def renew(self, remote: str, throttled_s: Mapping[str, float]) -> Mapping[str, Share]:
        """Say that this process uses the quotas of these sources of a remote, and for how long each is throttled.

        Returns our share of each; a member that has not renewed for a while is none any more.
        """


_current: ContextVar[Quotas | None] = ContextVar("penstock_quotas", default=None)


def use_quotas(quotas: Quotas | None) -> None:
    """Share quotas through these from now on, in this task and in those it starts."""
    _current.set(quotas)


def current_quotas() -> Quotas | None:
    """What quotas are shared through here; None when this process is taken to be alone."""
    return _current.get()


async def keep_share(pool: Pool, remote: str | None) -> bool:
    """Renew our share unless that was done a moment ago; False when nothing is shared here.

    While a share cannot be renewed, the last one holds.
    """
    quotas = current_quotas()
    if remote is None or quotas is None:
        return False
    now_s = pool.clock.monotonic()
    if now_s >= pool.shared_until_s:
        pool.plan_sharing(now_s, RENEW_S)
        try:
            async with asyncio.timeout(RENEW_S):
                pool.set_shares(await quotas.renew(remote, pool.throttled_s()))
        except Exception as error:
            log.warning("the quotas of %s cannot be shared at the moment: %s", remote, error)
    return True
