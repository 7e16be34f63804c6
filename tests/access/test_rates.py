"""How much and how often: requests of a caller, wrong credentials of an address, files of a tenant."""

from __future__ import annotations

import httpx
import pytest
from pydantic import BaseModel

from penstock import Context, Pipeline, operation, step
from penstock.access.model import Principal
from penstock.access.rates import TokenBuckets
from penstock.api import Credentials, create_app
from penstock.api.credentials import FAILURES_AT_ONCE
from penstock.clock import ManualClock
from penstock.errors import Throttled
from penstock.settings import Settings
from penstock.testing import engine


def test_a_bucket_gives_its_burst_and_then_what_flows_in():
    clock = ManualClock()
    buckets = TokenBuckets(per_s=2, burst=3, clock=clock)
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert buckets.take("b") == 0
    clock.advance(0.5)
    assert (buckets.take("a"), buckets.wait_s("a")) == (0, 0.5)
    clock.advance(1000)
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]


def test_without_a_pace_there_is_no_limit():
    buckets = TokenBuckets(per_s=0, burst=1, clock=ManualClock())
    assert {buckets.take("a") for _ in range(100)} == {0}


def test_of_very_many_callers_the_ones_that_were_quiet_longest_are_forgotten():
    buckets = TokenBuckets(per_s=1, burst=1, clock=ManualClock())
    for n in range(20_000):
        buckets.take(n)
    assert len(buckets._buckets) <= 10_000


@pytest.mark.databases("sqlite")
async def test_a_caller_who_asks_too_often_is_told_when_to_come_again(database_url, tmp_path, clock):
    settings = Settings(rate_per_s=1, rate_burst=3)
    async with engine([], url=database_url, tmp_path=tmp_path, clock=clock, settings=settings) as e:
        keys = [(await e.penstock.keys.create(name))[1] for name in ("ana", "ben")]
        app = create_app(e.penstock, access=Credentials(e.penstock))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://p.test") as client:
            ana, ben = ({"authorization": f"Bearer {key}"} for key in keys)
            answers = [await client.get("/api/session", headers=ana) for _ in range(4)]
            assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
            assert (answers[-1].headers["retry-after"], answers[-1].json()["code"]) == ("1", "throttled")
            assert (await client.get("/api/session", headers=ben)).status_code == 200
            clock.advance(1)
            assert (await client.get("/api/session", headers=ana)).status_code == 200
            assert (await client.get("/health/live")).status_code == 200


@pytest.mark.databases("sqlite")
async def test_an_address_that_sends_many_wrong_credentials_is_heard_only_with_a_known_good_one(e, clock):
    key, late = [(await e.penstock.keys.create(name))[1] for name in ("ana", "ben")]
    app = create_app(e.penstock, access=Credentials(e.penstock))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://p.test") as client:

        async def status(text):
            return (await client.get("/api/session", headers={"authorization": f"Bearer {text}"})).status_code

        assert await status(key) == 200
        assert {await status(f"psk_{n:012x}_{'0' * 64}") for n in range(FAILURES_AT_ONCE)} == {401}
        assert await status(f"psk_{1:012x}_{'0' * 64}") == 429
        login = await client.post("/api/session", json={"key": "x"}, headers={"origin": "http://p.test"})
        assert login.status_code == 429
        assert (await status(key), await status(late)) == (200, 429)
        clock.advance(60)
        assert await status(late) == 200


class Paper(BaseModel):
    name: str


@operation("papers", row_key="name")
class Papers(Pipeline[Paper, None]):
    @step
    async def read(self, paper: Paper, ctx: Context[None]) -> None:
        """It is read."""


FILE = b"name\n" + b"x" * 95 + b"\n"


async def submit(penstock):
    return await penstock.operations.create("papers", file=FILE, file_name="p.csv")


async def test_a_tenant_that_submitted_enough_for_a_day_waits_and_others_do_not(database_url, tmp_path, clock):
    settings = Settings(tenant_bytes_per_day=150, tenant_open_operations_max=0)
    async with engine([Papers], url=database_url, tmp_path=tmp_path, clock=clock, settings=settings) as e:
        acme = e.penstock.seen_by(Principal("ana", frozenset({"admin"}), tenant="acme"))
        await submit(acme)
        await submit(acme)
        with pytest.raises(Throttled, match="202 bytes were submitted within a day; the limit is 150"):
            await submit(acme)
        await submit(e.penstock.seen_by(Principal("ben", frozenset({"admin"}))))
        await submit(e.penstock)  # on this machine, nobody is limited
        clock.advance(86_401)
        await submit(acme)


async def test_a_tenant_with_too_many_operations_under_way_waits_until_one_ends(database_url, tmp_path):
    settings = Settings(tenant_open_operations_max=1)
    async with engine([Papers], url=database_url, tmp_path=tmp_path, settings=settings) as e:
        acme = e.penstock.seen_by(Principal("ana", frozenset({"admin"}), tenant="acme"))
        await submit(acme)
        with pytest.raises(Throttled, match="1 operations are under way"):
            await submit(acme)
        await e.work_until_idle()
        await submit(acme)
