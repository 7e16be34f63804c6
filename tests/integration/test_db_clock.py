"""The clock that the processes on one SQLite file share: begun by the wall clock, and from then on without it."""

from __future__ import annotations

import asyncio

import pytest
from approvals import Calls, approvals, papers
from sqlalchemy import make_url, select
from wrong_clocks import HOUR_S, Machine, at_work, instant, opened

from penstock import Penstock
from penstock.clock import ManualClock, SystemClock
from penstock.db.tables import clocks
from penstock.testing import engine, json_lines

pytestmark = pytest.mark.databases("sqlite")

CLOSE_S = 60.0  # what is compared is hours apart, or the same


async def stored(penstock: Penstock) -> dict[str, int]:
    async with penstock.db.read() as tx:
        return dict((await tx.execute(select(clocks.c.boot, clocks.c.ahead_us))).all())


async def wrong_by(penstock: Penstock) -> float:
    """By how many seconds the database's clock is off."""
    return await instant(penstock.db) - SystemClock().now_us() / 1e6


async def test_the_first_process_of_a_boot_begins_with_the_wall_clocks_time(database_url, tmp_path):
    async with opened(database_url, tmp_path, Machine(HOUR_S)) as penstock:
        assert abs(await wrong_by(penstock) - HOUR_S) < CLOSE_S
        assert list(await stored(penstock)) == ["this boot"]


async def test_processes_that_begin_at_once_agree(database_url, tmp_path):
    wrong = [0.0, HOUR_S, -HOUR_S, 0.0]

    async def begin(wrong_s: float) -> dict[str, int]:
        async with opened(database_url, tmp_path, Machine(wrong_s)) as penstock:
            await all_began.wait()
            return await stored(penstock)

    all_began = asyncio.Barrier(len(wrong))
    found = await asyncio.gather(*map(begin, wrong))
    assert all(each == found[0] for each in found)
    assert len(found[0]) == 1


async def test_after_the_next_boot_time_goes_on_from_the_last_thing_that_happened(database_url, tmp_path):
    kind = approvals(Calls())
    async with opened(database_url, tmp_path, Machine(HOUR_S, boot="first"), kind) as penstock:
        await penstock.operations.create(kind, file=json_lines(papers(1)), file_name="papers.jsonl")
        happened = await instant(penstock.db)
    async with opened(database_url, tmp_path, Machine(boot="second"), kind) as penstock:
        assert abs(await instant(penstock.db) - happened) < CLOSE_S
        assert list(await stored(penstock)) == ["second"]


async def test_after_the_next_boot_time_goes_on_from_the_last_beat_of_a_worker_that_died(database_url, tmp_path):
    async with opened(database_url, tmp_path, Machine(HOUR_S, boot="first")) as penstock:
        async with penstock.worker() as worker:
            await worker.vanish()
        died = await instant(penstock.db)
    async with opened(database_url, tmp_path, Machine(boot="second")) as penstock:
        assert abs(await instant(penstock.db) - died) < CLOSE_S


async def test_after_the_next_boot_a_wall_clock_that_is_later_is_right(database_url, tmp_path):
    async with opened(database_url, tmp_path, Machine(-HOUR_S, boot="first")) as penstock, penstock.worker():
        pass
    async with opened(database_url, tmp_path, Machine(boot="second")) as penstock:
        assert abs(await wrong_by(penstock)) < CLOSE_S


async def test_processes_that_count_from_different_moments_of_one_boot_leave_each_others_clock(database_url, tmp_path):
    async with (
        opened(database_url, tmp_path, Machine(boot="a boot/one")) as one,
        opened(database_url, tmp_path, Machine(boot="a boot/other")),
    ):
        assert list(await stored(one)) == ["a boot/one", "a boot/other"]


async def test_a_wall_clock_that_was_set_forward_is_followed_when_no_worker_is_there(database_url, tmp_path):
    async with opened(database_url, tmp_path, Machine()) as penstock:
        async with at_work(penstock), opened(database_url, tmp_path, Machine(HOUR_S)):
            assert abs(await wrong_by(penstock)) < CLOSE_S
        async with opened(database_url, tmp_path, Machine(HOUR_S)):
            assert abs(await wrong_by(penstock) - HOUR_S) < CLOSE_S


async def test_a_wall_clock_that_was_set_forward_ends_no_wait(database_url, tmp_path):
    desk = approvals(Calls())
    async with opened(database_url, tmp_path, Machine(), desk) as penstock:
        operation = await penstock.operations.create(desk, file=json_lines(papers(1)), file_name="papers.jsonl")
        async with opened(database_url, tmp_path, Machine(HOUR_S), desk):
            assert abs(await wrong_by(penstock)) < CLOSE_S
        await penstock.operations.cancel(operation.id)
        async with opened(database_url, tmp_path, Machine(HOUR_S), desk):
            assert abs(await wrong_by(penstock) - HOUR_S) < CLOSE_S


async def test_a_wall_clock_that_was_set_back_is_never_followed(database_url, tmp_path):
    async with opened(database_url, tmp_path, Machine()), opened(database_url, tmp_path, Machine(-HOUR_S)) as penstock:
        assert abs(await wrong_by(penstock)) < CLOSE_S


async def test_who_may_only_read_goes_by_the_wall_clock_until_another_has_written(database_url, tmp_path):
    reading = f"sqlite:///file:{make_url(database_url).database}?mode=ro&uri=true"
    async with opened(reading, tmp_path, Machine(HOUR_S)) as reader:
        assert (await reader.operations.list()).items == []
        assert abs(await wrong_by(reader) - HOUR_S) < CLOSE_S
        async with opened(database_url, tmp_path, Machine()):
            assert abs(await wrong_by(reader)) < CLOSE_S


async def test_where_the_boot_cannot_be_told_the_wall_clock_is_the_clock(database_url, tmp_path):
    machine = Machine(boot=None)
    async with opened(database_url, tmp_path, machine) as penstock:
        machine.wrong_s = HOUR_S
        assert abs(await wrong_by(penstock) - HOUR_S) < CLOSE_S
        assert await stored(penstock) == {}


async def test_a_manual_clock_leaves_none_behind(database_url, tmp_path):
    clock = ManualClock()
    async with engine([], url=database_url, tmp_path=tmp_path, clock=clock) as e:
        assert await instant(e.penstock.db) == clock.now_us() / 1e6
        assert await stored(e.penstock) == {}


def test_this_machine_tells_its_boot():
    assert SystemClock().boot == SystemClock().boot
    assert len(SystemClock().boot or "") <= clocks.c.boot.type.length
