"""Processes on one database share the quotas of the remotes they use."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from penstock.clock import ManualClock
from penstock.db.database import Database
from penstock.engine import Penstock
from penstock.targets.quotas import current_quotas
from penstock.targets.rules.limits import Share
from penstock.targets.sql_quotas import LEASE_S, SqlQuotas

URL = "https://org.crm.dynamics.com"


async def test_whoever_uses_a_quota_gets_an_equal_share_of_it(manual_database: Database):
    one, two = (SqlQuotas(manual_database, lambda name=name: name) for name in ("a", "b"))
    assert await one.renew(URL, {"app": 0.0}) == {"app": Share(0, 1)}
    assert await two.renew(URL, {"app": 0.0}) == {"app": Share(1, 2)}
    assert await one.renew(URL, {"app": 0.0}) == {"app": Share(0, 2)}


async def test_other_users_and_other_remotes_are_other_quotas(manual_database: Database):
    one, two = (SqlQuotas(manual_database, lambda name=name: name) for name in ("a", "b"))
    await one.renew(URL, {"app-1": 0.0, "app-2": 0.0})
    assert await two.renew(URL, {"app-2": 0.0, "app-3": 0.0}) == {"app-2": Share(1, 2), "app-3": Share(0, 1)}
    assert await two.renew("https://other.example.org", {"app-1": 0.0}) == {"app-1": Share(0, 1)}


async def test_a_process_that_has_ended_leaves_its_share_to_the_others(manual_database: Database, clock: ManualClock):
    one, two = (SqlQuotas(manual_database, lambda name=name: name) for name in ("a", "b"))
    await one.renew(URL, {"app": 0.0})
    assert (await two.renew(URL, {"app": 0.0}))["app"].members == 2
    clock.advance(LEASE_S + 1)
    assert await two.renew(URL, {"app": 0.0}) == {"app": Share(0, 1)}


async def test_what_one_process_heard_of_a_throttle_the_others_hear_too(manual_database: Database, clock: ManualClock):
    one, two = (SqlQuotas(manual_database, lambda name=name: name) for name in ("a", "b"))
    await one.renew(URL, {"app": 9.0})
    clock.advance(2)
    assert (await two.renew(URL, {"app": 0.0}))["app"].throttled_s == pytest.approx(7)
    assert (await one.renew(URL, {"app": 7.0}))["app"].throttled_s == 0  # its own word is no news to it


async def test_a_thread_with_an_event_loop_of_its_own_hears_of_the_others_too(manual_database: Database):
    """The connections of a database are of one loop: another would take them away under its hands."""
    one, two = (SqlQuotas(manual_database, lambda name=name: name) for name in ("a", "b"))
    await one.renew(URL, {"app": 0.0})
    for _ in range(2):
        heard = await asyncio.to_thread(lambda: asyncio.run(_renewed(two)))
        assert heard == {"app": Share(1, 2)}


async def _renewed(quotas: SqlQuotas) -> Mapping[str, Share]:
    return await quotas.renew(URL, {"app": 0.0})


async def test_targets_that_are_used_while_a_database_is_open_share_through_it(database_url: str):
    async with Penstock.open(database_url) as penstock:
        assert current_quotas() is penstock.quotas
    assert await penstock.quotas.renew(URL, {"app": 0.0}) == {"app": Share()}
