"""A process that dies at any point loses no delivery, and events of one operation stay in their order."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from parcel_post import post_office, told
from patience import HANG_S
from receivers import Answer, Receiver

from penstock import failpoints
from penstock.secret_keys import new_key
from penstock.testing import Engine

POINTS = [
    f"{name}:{when}={hit}"
    for name, hits in (("number_events", 1), ("outbox", 2), ("delivery_claim", 2), ("delivery_settle", 3))
    for when in ("before", "after")
    for hit in range(1, hits + 1)
]


class Died(BaseException):
    """A process ended here."""


def dying_at(point: str, died: list[str]) -> AbstractContextManager[None]:
    name, _, number = point.partition("=")
    hits: Counter[str] = Counter()

    def act(reached: str) -> None:
        hits[reached] += 1
        if reached == name and hits[reached] == int(number):
            died.append(point)
            raise Died(point)

    return failpoints.armed(act)


def in_order(hook: Receiver, operation: str) -> list[str]:
    """The moves that a receiver has heard of, each when it came first."""
    first = {event["id"]: event["data"]["event"] for event in reversed(told(hook)) if event["subject"] == operation}
    return list(reversed(first.values()))


@pytest.mark.covers("I-30")
@pytest.mark.databases("sqlite")
async def test_nothing_is_lost_or_out_of_order_wherever_a_sender_dies(
    database_url: str, tmp_path: Path, hook: Receiver
):
    """One engine for all points, each with operations of its own: that is cheaper than an engine for each."""
    died: list[str] = []
    async with post_office(database_url, tmp_path) as e:
        await e.penstock.webhooks.add(hook.url)
        for point in POINTS:
            made = [(await e.create("send-parcels", [{"name": "a"}])).id for _ in range(2)]
            for operation in made:
                await e.operations.cancel(operation)
            with dying_at(point, died):
                await _deliver_and_die(e)
            e.clock.advance(3600)
            await e.deliver()
            assert {operation: in_order(hook, operation) for operation in made} == {
                operation: ["created", "cancelled"] for operation in made
            }, point
        counts = await e.penstock.webhooks.counts()
    assert died == POINTS
    assert counts["Processed"] == 4 * len(POINTS) == sum(counts.values())


async def _deliver_and_die(e: Engine) -> None:
    """Deliver until death; what was under way ends with it."""
    try:
        await e.deliver()
    except Died:
        pass
    finally:
        await e.penstock.events.stop()


@pytest.mark.covers("I-30")
@pytest.mark.databases("sqlite")
async def test_a_killed_process_is_succeeded_and_each_event_comes_at_least_once(
    database_url: str, tmp_path: Path, hook: Receiver
):
    key = new_key()
    async with post_office(database_url, tmp_path, secret_key=key) as e:
        await e.penstock.webhooks.add(hook.url)
        made = [(await e.create("send-parcels", [{"name": "a"}])).id for _ in range(3)]
        for operation in made:
            await e.operations.cancel(operation)
        environment = {
            **os.environ, "PENSTOCK_TEST_FAILPOINT": "delivery_settle:before=3", "PENSTOCK_DATABASE_URL": database_url,
            "PENSTOCK_SECRET_KEY": key, "PENSTOCK_WEBHOOK_NETWORKS": "127.0.0.0/8",
        }  # fmt: skip
        script = Path(__file__).with_name("sender_main.py")
        process = await asyncio.create_subprocess_exec(sys.executable, str(script), env=environment)
        assert await asyncio.wait_for(process.wait(), HANG_S) == -9
        assert len(hook.requests) >= 3
        hook.answer = lambda request: Answer()
        e.clock.advance(24 * 3600)
        await e.deliver()
        assert [in_order(hook, operation) for operation in made] == [["created", "cancelled"]] * 3
        assert (await e.penstock.webhooks.counts())["Processed"] == 6
