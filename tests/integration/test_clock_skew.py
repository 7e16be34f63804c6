"""Workers whose machine has a wrong wall clock, or whose wall clock is set while they work: time is the database's."""

from __future__ import annotations

import pytest
from approvals import Calls, Paper, approvals, papers
from sqlalchemy import select
from wrong_clocks import HOUR_S, Machine, at_work, instant, opened, until

from penstock import Context, Penstock, RetryLater, operation
from penstock.operations.model import Operation
from penstock.operations.tables import row_records, signals, workers
from penstock.testing import json_lines

CLOSE_S = 60.0  # the clocks of these tests are an hour off, or right
ahead_or_behind = pytest.mark.parametrize("wrong_s", [HOUR_S, -HOUR_S], ids=["ahead", "behind"])


def later(calls: list[float], *, after: float) -> object:
    """A step that asks for another try in so many seconds, once."""

    @operation("later", row_key="code")
    async def step(paper: Paper, ctx: Context) -> None:
        calls.append(ctx.attempt)
        if len(calls) == 1:
            raise RetryLater("not now", after=after)

    return step


async def made(penstock: Penstock, kind: str, rows: int = 1) -> Operation:
    return await penstock.operations.create(kind, file=json_lines(papers(rows)), file_name="papers.jsonl")


async def due_in(penstock: Penstock) -> float:
    """In how many seconds, on the database's clock, the only postponed row is due."""

    async def look() -> list[int]:
        async with penstock.db.read() as tx:
            query = select(row_records.c.due_at).where(row_records.c.state == "Pending")
            return list((await tx.execute(query)).scalars())

    (due_at,) = await until(look)
    return due_at / 1e6 - await instant(penstock.db)


async def ends_in(penstock: Penstock, operation: Operation) -> float:
    """In how many seconds, on the database's clock, the only wait of an operation times out."""
    (wait,) = await until(lambda: penstock.signals.waiting(operation.id))
    return wait.deadline.timestamp() - await instant(penstock.db)


async def settled(penstock: Penstock, operation: Operation) -> Operation:
    async def look() -> Operation | None:
        now = await penstock.operations.get(operation.id)
        return now if now.is_settled else None

    return await until(look)


async def living(penstock: Penstock) -> list[str]:
    async with penstock.db.read() as tx:
        query = select(workers.c.id).where(workers.c.lease_until >= penstock.db.now()).order_by(workers.c.id)
        return list((await tx.execute(query)).scalars())


@ahead_or_behind
async def test_a_wait_in_a_workers_first_second_has_its_deadline_on_the_databases_clock(
    database_url, tmp_path, wrong_s
):
    async with opened(database_url, tmp_path, Machine(wrong_s), approvals(Calls(), timeout=600)) as penstock:
        one = await made(penstock, "approvals")
        async with at_work(penstock):
            assert abs(await ends_in(penstock, one) - 600) < CLOSE_S


async def test_a_wait_lasts_its_time_though_the_first_looks_at_the_clock_took_long(
    database_url, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    slow = [1.0, 0.5]

    async with opened(database_url, tmp_path, Machine(), approvals(Calls(), timeout=600)) as penstock:
        look = penstock.db.clock_bounds

        async def look_long() -> tuple[int, int]:
            least, most = await look()
            return least - round((slow.pop() if slow else 0) * HOUR_S * 1e9), most

        monkeypatch.setattr(penstock.db, "clock_bounds", look_long)
        one = await made(penstock, "approvals")
        async with at_work(penstock):
            assert abs(await ends_in(penstock, one) - 600) < CLOSE_S


@ahead_or_behind
async def test_a_row_that_asks_for_a_later_try_in_a_workers_first_second_is_due_on_time(
    database_url, tmp_path, wrong_s
):
    async with opened(database_url, tmp_path, Machine(wrong_s), later([], after=600)) as penstock:
        await made(penstock, "later")
        async with at_work(penstock):
            assert abs(await due_in(penstock) - 600) < CLOSE_S


@ahead_or_behind
async def test_waits_end_and_rows_come_due_whatever_the_machine_thinks_of_the_time(database_url, tmp_path, wrong_s):
    kinds = approvals(Calls(), timeout=0.05), later([], after=0.05)
    async with opened(database_url, tmp_path, Machine(wrong_s), *kinds) as penstock:
        waits, tries = await made(penstock, "approvals"), await made(penstock, "later")
        async with at_work(penstock):
            assert (await settled(penstock, waits)).timed_out_rows == 1
            assert (await settled(penstock, tries)).successful_rows == 1


async def test_setting_the_wall_clock_under_a_worker_changes_neither_deadlines_nor_due_times(database_url, tmp_path):
    machine, calls = Machine(), []
    kinds = approvals(Calls(), timeout=600), later(calls, after=600)
    async with opened(database_url, tmp_path, machine, *kinds) as penstock, at_work(penstock):
        before = await made(penstock, "approvals")
        assert abs(await ends_in(penstock, before) - 600) < CLOSE_S
        for machine.wrong_s in (HOUR_S, -HOUR_S):
            after = await made(penstock, "approvals")
            assert abs(await ends_in(penstock, after) - 600) < CLOSE_S
            assert abs(await ends_in(penstock, before) - 600) < CLOSE_S
        await made(penstock, "later")
        assert abs(await due_in(penstock) - 600) < CLOSE_S


@ahead_or_behind
async def test_rows_go_on_and_leases_hold_when_the_wall_clock_is_set(database_url, tmp_path, wrong_s):
    machine = Machine()
    kinds = approvals(Calls(), timeout=600), later([], after=0.01)
    async with (
        opened(database_url, tmp_path, machine, *kinds) as penstock,
        opened(database_url, tmp_path, Machine(), *kinds) as neighbour,
        at_work(penstock) as worker,
    ):
        await settled(penstock, await made(penstock, "later"))
        machine.wrong_s = wrong_s
        one = await made(penstock, "approvals")
        await ends_in(penstock, one)
        assert await living(penstock) == await living(neighbour) == [worker]
        await penstock.signals.complete(one.id, "paper-p1")
        assert (await settled(penstock, one)).successful_rows == 1


@ahead_or_behind
async def test_a_signal_after_a_retry_is_heard_though_the_wall_clock_was_set_in_between(
    database_url, tmp_path, wrong_s
):
    machine = Machine()
    async with opened(database_url, tmp_path, machine, approvals(Calls(), timeout=600)) as penstock:
        one = await made(penstock, "approvals")
        async with at_work(penstock):
            await ends_in(penstock, one)
            await penstock.signals.fail(one.id, "paper-p1", "no")
            await settled(penstock, one)
            await penstock.operations.retry(one.id)
            machine.wrong_s = wrong_s
            await ends_in(penstock, one)
            await penstock.signals.complete(one.id, "paper-p1")
            assert (await settled(penstock, one)).successful_rows == 1
        async with penstock.db.read() as tx:
            first, second = (await tx.execute(select(signals.c.accepted_at).order_by(signals.c.accepted_at))).scalars()
    assert second - first < CLOSE_S * 1e6


@pytest.mark.databases("sqlite")
@ahead_or_behind
async def test_processes_started_before_and_after_the_wall_clock_was_set_see_each_other_alive(
    database_url, tmp_path, wrong_s
):
    async with (
        opened(database_url, tmp_path, Machine()) as one,
        at_work(one) as first,
        opened(database_url, tmp_path, Machine(wrong_s)) as other,
        at_work(other) as second,
    ):
        assert await living(one) == await living(other) == sorted([first, second])
        assert abs(await instant(one.db) - await instant(other.db)) < CLOSE_S
        async with one.db.read() as tx:
            leases = list((await tx.execute(select(workers.c.lease_until))).scalars())
        now = await instant(one.db)
        assert all(lease / 1e6 <= now + one.settings.lease_s for lease in leases)


@pytest.mark.databases("sqlite")
async def test_a_signal_of_a_process_started_after_the_wall_clock_was_set_back_ends_a_retried_rows_wait(
    database_url, tmp_path
):
    async with opened(database_url, tmp_path, Machine(), approvals(Calls(), timeout=600)) as one:
        waits = await made(one, "approvals")
        async with at_work(one):
            await ends_in(one, waits)
            await one.signals.fail(waits.id, "paper-p1", "no")
            await settled(one, waits)
            await one.operations.retry(waits.id)
            await ends_in(one, waits)
            async with opened(database_url, tmp_path, Machine(-HOUR_S)) as other:
                await other.signals.complete(waits.id, "paper-p1")
            assert (await settled(one, waits)).successful_rows == 1
