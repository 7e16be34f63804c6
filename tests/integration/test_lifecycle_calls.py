"""Functions of users that hang, block or are slow: each call has a time limit, and stops nobody else."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from orders import opened
from patience import HANG_S

from penstock.clock import ManualClock
from penstock.lifecycles import Delivery

ORDERS = json.dumps(
    {
        "definition": {"name": "Order", "version": "1.0.0"},
        "states": [
            {"name": "New", "is_initial": True, "on_entry": [{"effect": "mail"}]},
            {"name": "Paid", "is_final": True},
        ],
        "transitions": [{"from": "New", "event": "pay", "to": "Paid", "guard": "covered"}],
    }
)


async def hangs(_: object) -> None:
    await asyncio.Event().wait()


def blocks(is_over: threading.Event) -> Callable[[object], None]:
    def block(_: object) -> None:
        is_over.wait(HANG_S)

    return block


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_an_effect_or_a_guard_that_hangs_has_failed_when_its_time_is_over(
    database_url: str, tmp_path: Path, clock: ManualClock, kind: str
):
    is_over = threading.Event()
    function: Any = hangs if kind == "async" else blocks(is_over)
    given: Any = ({"covered": function}, {"mail": function})
    async with opened(database_url, tmp_path, clock, *given, handler_timeout_s=0.05) as penstock:
        await penstock.lifecycles.import_text(ORDERS)
        order = await penstock.lifecycles.start("order")
        async with asyncio.timeout(HANG_S):
            assert (await penstock.lifecycles.tick()).failed == 1
            outcome = await penstock.lifecycles.trigger(order.guid, "pay")
        is_over.set()
        (failed,) = (await penstock.deliveries.list()).items
    assert failed.error == "TimeoutError: it took longer than 0.05 s"
    assert (outcome.kind, outcome.reason) == (
        "guard_denied", "guard 'covered' raised TimeoutError: it took longer than 0.05 s",
    )  # fmt: skip


async def test_a_handler_that_hangs_has_failed_when_its_time_is_over(
    database_url: str, tmp_path: Path, clock: ManualClock
):
    guards: Any = {"covered": lambda _: True}
    async with opened(database_url, tmp_path, clock, guards, handler_timeout_s=0.05) as penstock:
        await penstock.lifecycles.import_text(ORDERS)
        await penstock.deliveries.register("billing", handler=hangs)
        await penstock.lifecycles.trigger((await penstock.lifecycles.start("order")).guid, "pay")
        async with asyncio.timeout(HANG_S):
            assert (await penstock.lifecycles.tick()).failed == 1


async def test_plain_functions_do_not_block_the_event_loop(database_url: str, tmp_path: Path, clock: ManualClock):
    """The functions wait for something that the loop does: on the loop itself they would wait in vain."""
    loop = asyncio.get_running_loop()
    answers = []

    def waits(_: object) -> bool:
        is_answered = threading.Event()
        loop.call_soon_threadsafe(is_answered.set)
        answers.append(is_answered.wait(30))
        return True

    given: Any = ({"covered": waits}, {"mail": waits})
    async with opened(database_url, tmp_path, clock, *given) as penstock:
        await penstock.lifecycles.import_text(ORDERS)
        order = await penstock.lifecycles.start("order")
        await penstock.lifecycles.tick()
        assert (await penstock.lifecycles.trigger(order.guid, "pay")).applied
    assert answers == [True, True]


async def test_slow_effects_that_were_claimed_together_are_done_once_each(
    database_url: str, tmp_path: Path, clock: ManualClock
):
    done: list[str] = []

    async def slow(delivery: Delivery) -> None:
        done.append(delivery.entry.guid)
        clock.advance(25)
        await other.lifecycles.tick()

    async def quick(delivery: Delivery) -> None:
        done.append(delivery.entry.guid)

    async with (
        opened(database_url, tmp_path, clock, {}, {"mail": slow}) as penstock,
        opened(database_url, tmp_path, clock, {}, {"mail": quick}) as other,
    ):
        await penstock.lifecycles.import_text(ORDERS)
        started = await penstock.lifecycles.start_many("order", (str(n) for n in range(6)))
        assert (await penstock.lifecycles.tick()).processed == 6
    assert sorted(done) == sorted(each.guid for each in started)


async def test_an_effect_that_was_lost_to_another_process_is_not_done_again(
    database_url: str, tmp_path: Path, clock: ManualClock
):
    done: list[str] = []

    async def stalls(delivery: Delivery) -> None:
        done.append(delivery.entry.guid)
        if len(done) == 1:
            clock.advance(100)  # longer than the lease
            await other.lifecycles.tick()

    async def quick(delivery: Delivery) -> None:
        done.append(delivery.entry.guid)

    async with (
        opened(database_url, tmp_path, clock, {}, {"mail": stalls}) as penstock,
        opened(database_url, tmp_path, clock, {}, {"mail": quick}) as other,
    ):
        await penstock.lifecycles.import_text(ORDERS)
        _, second = await penstock.lifecycles.start_many("order", ["A-1", "A-2"])
        await penstock.lifecycles.tick()
    assert done.count(second.guid) == 1
