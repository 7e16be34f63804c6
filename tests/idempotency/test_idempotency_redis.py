"""Redis itself: a server that dies, a script cache that is emptied, and entries that leave by themselves."""

from __future__ import annotations

import pytest
import servers
from redis.asyncio import Redis
from shop import Shop, application, client_of

from penstock.clock import SystemClock
from penstock.errors import Unavailable
from penstock.idempotency import Address, Idempotency
from penstock.idempotency.model import Wish
from penstock.idempotency.redis import RedisStore

KEY = {"Idempotency-Key": "key"}


async def test_keys_outlive_a_power_cut_and_nothing_runs_while_redis_is_away():
    shop = Shop()
    with servers.private("redis") as server:
        async with Idempotency.open(server.url) as keys, client_of(application(shop, keys)) as client:
            first = await client.post("/orders", content=b"x", headers=KEY)
            server.kill()
            away = await client.post("/orders", content=b"x", headers=KEY)
            assert (away.status_code, away.json()["code"]) == (503, "idempotency-unavailable")
            with pytest.raises(Unavailable, match="Redis cannot be used now"):
                await keys.get("key")
            server.start()
            again = await client.post("/orders", content=b"x", headers=KEY)
    assert (first.content, again.content) == (b"order 1: x",) * 2
    assert shop.effects == {"order": 1}


@pytest.mark.databases("redis")
async def test_scripts_that_the_server_forgot_are_sent_again(store_url: str, store_kind: str):
    async with Idempotency.open(store_url) as keys:
        async with keys.guard("first"), Redis.from_url(store_url) as client:
            await client.script_flush()
        assert (await keys.get("first")).state == "Completed"


@pytest.mark.databases("redis")
async def test_entries_leave_by_themselves_and_never_before_their_lease(store_url: str, store_kind: str):
    store = RedisStore.connect(store_url, prefix="shop", clock=SystemClock())
    async with Redis.from_url(store_url) as client:
        for number, (lease_s, retention_s, least_ms) in enumerate([(30, 86_400, 86_000_000), (600, 1, 590_000)]):
            address = Address.of(f"key-{number}")
            await store.insert(address, Wish("owner", "f", "", lease_s * 1_000_000, retention_s * 1_000_000))
            assert await client.pttl(f"shop:{address.scope}:{address.id}") > least_ms
        await store.renew(address, "owner", 3600 * 1_000_000)
        assert await client.pttl(f"shop:{address.scope}:{address.id}") > 3_590_000
        await store.move(address, "completed", owner="owner", answer=b"", retention_us=60_000_000)
        assert 0 < await client.pttl(f"shop:{address.scope}:{address.id}") <= 61_000
    await store.close()
