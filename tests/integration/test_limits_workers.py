"""The limits of a step hold over all workers that run it, and over no others, whoever joins, leaves and dies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from approvals import a_moment, chunks_of, clean, history
from patience import HANG_S
from several import CALM, Item, Witness, engines, items, limited, shares_of, until
from stored import rows_of
from timers import Timers, most_within_a_second

from penstock import BatchContext, Context, Pipeline, failpoints, operation, step
from penstock.errors import Unavailable
from penstock.operations.model import Operation
from penstock.operations.rows import gates
from penstock.operations.worker.limit_shares import LimitShares
from penstock.testing import Engine

LEASE_S = CALM.lease_s


@asynccontextmanager
async def working(*them: Engine) -> AsyncIterator[None]:
    """Workers that work beside the test; they look round when the test tells them to."""
    tasks = [asyncio.create_task(_work(e)) for e in them]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _work(e: Engine) -> None:
    while True:
        if not await e.worker.tick():
            await asyncio.sleep(0.002)


async def look(*them: Engine) -> None:
    """Each looks round once."""
    for e in them:
        await e.worker.look_round()


async def pass_time(seconds: float, *them: Engine) -> None:
    """Time passes, and these workers keep their leases."""
    them[0].clock.advance(seconds)
    for e in them:
        await e.worker.lease.beat()


async def until_later(holds: Callable[[], bool], *them: Engine) -> None:
    """Wait until it is so while time passes: a worker that found no unit looks again after a second."""
    async with asyncio.timeout(HANG_S):
        while not holds():
            await pass_time(1, *them)
            await a_moment()


async def ends(made: Operation, *them: Engine) -> Operation:
    """The operation at its end; time passes, and all look round, for as long as it takes."""
    async with asyncio.timeout(HANG_S), working(*them):
        while not (done := await them[0].operations.get(made.id)).is_settled:
            await pass_time(1, *them)
            await look(*them)
    return done


def units(shares: dict[str, dict[str, int]], name: str = "call.concurrency") -> list[int]:
    return [share[name] for share in shares.values()]


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0)])
async def test_a_second_worker_takes_nothing_from_one_that_has_the_only_unit(database_url, tmp_path, numbers):
    """Whichever of their ids sorts first."""
    witness = Witness()
    kind = limited(witness, concurrency=1)
    async with engines([kind], [kind], url=database_url, folder=tmp_path, numbers=numbers) as (one, other):
        made = await one.create(kind, items(24))
        async with working(one, other):
            await until(lambda: bool(witness.inside))
            for _ in range(3):
                await look(one, other)
                await pass_time(1, one, other)
            await look(one, other)
            for done in range(1, 6):
                witness.let_go()
                await until(lambda done=done: len(witness.calls) > done)
        witness.open()
        finished = await ends(made, one, other)
        assert (finished.status, finished.successful_rows, witness.most) == ("Completed", 24, 1)
        assert sorted(witness.calls) == list(range(1, 25))
        assert await clean(one) == []


async def test_a_worker_that_joins_gets_units_only_when_calls_have_ended(database_url, tmp_path):
    witness = Witness()
    kind = limited(witness, concurrency=4)
    async with engines([kind], [kind], url=database_url, folder=tmp_path) as (one, other):
        made = await one.create(kind, items(24))
        async with working(one):
            await until(lambda: len(witness.inside) == 4)
            async with working(other):
                for _ in range(3):
                    await look(one, other)
                    await pass_time(1, one, other)
                await until(lambda: bool(other.worker.set_aside.numbers))
                assert units(await shares_of(one, made)) == [4, 0]
                assert {chunk.owner for chunk in await chunks_of(one, made)} <= {None, one.worker.lease.id}
                witness.let_go()
                await until(lambda: len(witness.inside) == 3)
                await a_moment()
                assert len(witness.inside) == 3, "nobody may begin until the unit is given back"
                await look(one)
                assert units(await shares_of(one, made)) == [3, 0]
                await look(other)
                assert units(await shares_of(one, made)) == [3, 1]
                await until_later(lambda: len(witness.inside) == 4, one, other)
                witness.let_go()
                await until(lambda: len(witness.inside) == 3)
                await look(one, other)
                assert units(await shares_of(one, made)) == [2, 2]
                await until_later(lambda: len(witness.inside) == 4, one, other)
        witness.open()
        done = await ends(made, one, other)
        assert (done.status, done.successful_rows, witness.most) == ("Completed", 24, 4)


async def test_those_who_come_too_late_wait_until_somebody_leaves(database_url, tmp_path):
    witness = Witness()
    kind = limited(witness, concurrency=2)
    async with engines([kind], [kind], [kind], url=database_url, folder=tmp_path) as (one, two, three):
        made = await one.create(kind, items(24))
        async with working(one):
            await until(lambda: len(witness.inside) == 2)
        async with working(one, two, three):
            async with asyncio.timeout(HANG_S):
                while len(await shares_of(one, made)) < 3:  # the others look for work
                    await pass_time(1, one, two, three)
                    await a_moment()
            for _ in range(4):
                witness.let_go()
                await look(one, two, three)
                await pass_time(1, one, two, three)
            await until_later(lambda: len(witness.inside) == 2, one, two, three)
            found = await shares_of(one, made)
            assert sorted(units(found)) == [0, 1, 1]
            assert found[one.worker.lease.id] == {"call.concurrency": 1}, "it came first"
        late = next(e for e in (two, three) if found[e.worker.lease.id] == {"call.concurrency": 0})
        on_time = two if late is three else three
        assert not late.worker.actors
        async with working(late, on_time):
            await one.worker.stop()  # its call is cut off: shutdown_s is 0
            assert one.worker.lease.id not in await shares_of(late, made)
            await pass_time(1, late, on_time)
            await look(late, on_time)
            await until_later(lambda: len(witness.inside) == 2, late, on_time)
            assert units(await shares_of(late, made)) == [1, 1]
        witness.open()
        done = await ends(made, late, on_time)
        assert (done.status, done.successful_rows, witness.most) == ("Completed", 24, 2)
        assert await clean(late) == []


async def test_a_dead_workers_units_are_taken_when_its_lease_is_over(database_url, tmp_path):
    witness = Witness()
    kind = limited(witness, concurrency=1)
    async with engines([kind], [kind], url=database_url, folder=tmp_path) as (one, other):
        made = await one.create(kind, items(24))
        async with working(one):
            await until(lambda: bool(witness.inside))
        await one.worker.vanish()
        assert not witness.inside, "its call has ended with it"
        async with working(other):
            await pass_time(LEASE_S - 1, other)
            await until(lambda: bool(other.worker.set_aside.numbers))
            assert len(witness.calls) == 1, "it might be alive"
            await pass_time(2, other)
            await until_later(lambda: bool(witness.inside), other)
            assert list(await shares_of(other, made)) == [other.worker.lease.id]
        witness.open()
        done = await ends(made, other)
        assert (done.status, done.successful_rows, witness.most) == ("Completed", 24, 1)


async def test_workers_that_do_not_run_the_operation_have_no_part_in_its_limits(database_url, tmp_path):
    """Neither those that lack its code nor those that have nothing to do."""
    witness = Witness()
    kind, stranger = limited(witness, concurrency=4), limited(witness, "stranger", concurrency=4)
    async with engines([kind], [stranger], [kind, stranger], url=database_url, folder=tmp_path) as them:
        one, *rest = them
        made = await one.create(kind, items(4))
        await look(*them)
        async with working(one):
            await until(lambda: len(witness.inside) == 4)
            async with working(*rest):
                await look(*them)
                await pass_time(1, *them)
                await look(*them)
                assert await shares_of(one, made) == {one.worker.lease.id: {"call.concurrency": 4}}
        witness.open()
        assert (await ends(made, one)).status == "Completed"


async def test_workers_that_know_other_operations_too_share_a_limit(database_url, tmp_path):
    witness = Witness()
    kind, more = limited(witness, concurrency=2), limited(witness, "more")
    async with engines([kind], [more, kind], url=database_url, folder=tmp_path) as (one, other):
        made = await one.create(kind, items(40))
        async with working(one, other):
            await until(lambda: bool(witness.inside))
            while units(await shares_of(one, made)) != [1, 1]:
                await pass_time(1, one, other)
                await look(one, other)
                witness.let_go()
            await until_later(lambda: len(witness.inside) == 2, one, other)
        witness.open()
        assert ((await ends(made, one, other)).status, witness.most) == ("Completed", 2)


async def test_a_worker_leaves_the_others_all_units_when_it_has_nothing_to_run(database_url, tmp_path):
    witness = Witness()
    kind = limited(witness, concurrency=2)
    async with engines([kind], [kind], url=database_url, folder=tmp_path) as (one, other):
        made = await one.create(kind, items(24))
        async with working(one):
            await until(lambda: len(witness.inside) == 2)
            await other.work_until_idle()
            assert len(await shares_of(one, made)) == 2
            for _ in range(5):
                await pass_time(1, one, other)
                await look(one, other)
            assert len(await shares_of(one, made)) == 1, "it has wanted nothing for a while"
            witness.let_go(2)
            await until(lambda: len(witness.calls) == 4)
            await look(one)
            assert units(await shares_of(one, made)) == [2]
        witness.open()
        assert (await ends(made, one)).status == "Completed"
        await pass_time(5, one)
        await look(one)
        assert await shares_of(one, made) == {}, "and when all is done, nobody holds anything"


async def away_when_it_leaves(e: Engine, point: str) -> None:
    """The worker has nothing to run, and cannot reach the database at this point when it gives its units back."""

    def be_away(at: str) -> None:
        if at == point:
            raise Unavailable("the database is away")

    await pass_time(5, e)
    with failpoints.armed(be_away), pytest.raises(Unavailable):
        await look(e)


WHILE_LEAVING = pytest.mark.parametrize("point", ["limit_shares:before", "limit_shares:after"])


@WHILE_LEAVING
async def test_a_worker_gives_its_units_back_when_the_database_that_was_away_is_there_again(
    database_url, tmp_path, point
):
    kind = limited(Witness(is_open=True), concurrency=2)
    async with engines([kind], url=database_url, folder=tmp_path) as (one,):
        made = await one.run(kind, items(2))
        await away_when_it_leaves(one, point)
        await look(one)
        assert await shares_of(one, made) == {}


@WHILE_LEAVING
async def test_a_worker_that_could_not_leave_goes_on_with_units_that_are_on_record(database_url, tmp_path, point):
    kind = limited(Witness(is_open=True), concurrency=2)
    async with engines([kind], url=database_url, folder=tmp_path) as (one,):
        made = await one.run(kind, items(2))
        (chunk,) = await chunks_of(one, made)
        await away_when_it_leaves(one, point)
        runtime = await one.worker.runtimes.get(chunk.operation)
        assert await one.worker.limit_shares.take_part(runtime)
        assert units(await shares_of(one, made)) == [2]
        assert [limiter.units for limiter in runtime.limiters.values()] == [2]


async def test_rows_that_queue_for_units_that_are_gone_are_given_back(database_url, tmp_path):
    """A worker comes back after its lease was over: another has its units, and it still holds its chunk."""
    witness = Witness()
    kind = limited(witness, concurrency=1)
    async with engines([kind], [kind], url=database_url, folder=tmp_path) as (one, other):
        made = await one.create(kind, items(2))
        async with working(one):
            await until(lambda: witness.rows == [1])
        await pass_time(LEASE_S + 1, other)
        (chunk,) = await chunks_of(one, made)
        execution = await other.worker.runtimes.get(chunk.operation)
        assert await other.worker.limit_shares.take_part(execution), "its lease is over"
        await one.worker.lease.beat()
        assert not one.worker.lease.may_start(), "it has not yet seen what became of its units"
        await look(one)
        assert one.worker.lease.may_start()
        witness.let_go()
        await one.work_until_idle()
        (chunk,) = await chunks_of(one, made)
        assert (chunk.owner, chunk.is_open, witness.calls) == (None, 1, [1])
        first, second = await rows_of(one.penstock.db, made.id)
        assert (first.verdict, second.verdict, second.in_flight, second.lost) == ("Completed", "Pending", 0, 0)
        assert second.attempts == []
        assert await clean(one) == []
        await other.worker.limit_shares.leave()
        witness.open()
        done = await ends(made, one)
        assert (done.status, witness.calls, await history(one, made)) == ("Completed", [1, 2], [])


async def test_a_batch_that_queues_for_units_that_are_gone_is_given_back(database_url, tmp_path):
    witness = Witness()

    @operation("batched", max_row_concurrency=8)
    class Batched(Pipeline[Item]):
        @step.batch(size=1, concurrency=1)
        async def call(self, rows: list[Item], ctx: BatchContext) -> None:
            await witness(rows[0].id)

    async with engines([Batched], [Batched], url=database_url, folder=tmp_path) as (one, other):
        made = await one.create(Batched, items(2))
        async with working(one):
            await until(lambda: witness.rows == [1])
        await pass_time(LEASE_S + 1, other)
        (chunk,) = await chunks_of(one, made)
        assert await other.worker.limit_shares.take_part(await other.worker.runtimes.get(chunk.operation))
        await one.worker.lease.beat()
        await look(one)
        witness.let_go()
        await one.work_until_idle()
        _, second = await rows_of(one.penstock.db, made.id)
        assert (second.verdict, second.attempts, witness.calls) == ("Pending", [], [1])
        await other.worker.limit_shares.leave()
        witness.open()
        assert ((await ends(made, one)).status, witness.calls) == ("Completed", [1, 2])


async def test_a_worker_that_comes_back_in_time_goes_on_with_its_units(database_url, tmp_path):
    witness = Witness()
    kind = limited(witness, concurrency=1)
    async with engines([kind], [kind], url=database_url, folder=tmp_path) as (one, other):
        made = await one.create(kind, items(2))
        async with working(one):
            await until(lambda: witness.rows == [1])
        await pass_time(LEASE_S + 1, one)
        assert not one.worker.lease.may_start()
        await look(one)
        assert one.worker.lease.may_start()
        witness.let_go()
        await until(lambda: witness.calls == [1, 2])
        assert list(await shares_of(other, made)) == [one.worker.lease.id]
        witness.open()
        assert (await ends(made, one)).status == "Completed"


@pytest.mark.databases("postgresql", "mariadb")
async def test_a_worker_that_comes_back_waits_for_who_is_just_taking_its_units(database_url, tmp_path):
    """Whoever saw its lease over takes its units in a transaction that may not be committed yet."""
    witness = Witness()
    kind = limited(witness, concurrency=1)
    async with engines([kind], [kind], url=database_url, folder=tmp_path) as (one, other):
        made = await one.create(kind, items(2))
        async with working(one):
            await until(lambda: witness.rows == [1])
        await pass_time(LEASE_S + 1, other)
        (chunk,) = await chunks_of(one, made)
        async with other.penstock.db.write() as tx:
            limits = {"call.concurrency": 1}
            taken, *_ = await other.worker.limit_shares._change(chunk.operation, limits, {"call.concurrency": 0}, tx)
            await one.worker.lease.beat()
            coming_back = asyncio.create_task(one.worker.look_round())
            await asyncio.wait({coming_back}, timeout=0.3)
            assert (taken, coming_back.done()) == ({"call.concurrency": 1}, False)
            assert not one.worker.lease.may_start()
        await coming_back
        assert units(await shares_of(one, made)) == [1, 0]
        witness.let_go()
        await one.work_until_idle()
        assert witness.calls == [1]


async def test_nothing_may_start_until_a_worker_that_comes_back_has_seen_its_units(database_url, tmp_path, monkeypatch):
    witness, could_start = Witness(is_open=True), []
    kind, look_round = limited(witness, concurrency=1), LimitShares.look_round
    async with engines([kind], url=database_url, folder=tmp_path) as (one,):
        await one.run(kind, items(2))

        async def noting(self: LimitShares, running: Any, *, has_lapsed: bool) -> None:
            could_start.append(one.worker.lease.may_start())
            await look_round(self, running, has_lapsed=has_lapsed)
            could_start.append(one.worker.lease.may_start())

        monkeypatch.setattr(LimitShares, "look_round", noting)
        await pass_time(LEASE_S + 1, one)
        await look(one)
        assert (could_start, one.worker.lease.may_start()) == ([False, False], True)


async def test_the_shares_of_the_dead_are_removed_although_nobody_shares_with_them(database_url, tmp_path):
    witness = Witness(is_open=True)
    kind = limited(witness, concurrency=3)
    async with engines([kind], [kind], url=database_url, folder=tmp_path) as (one, other):
        made = await one.create(kind, items(4))
        await one.work_until_idle()
        await one.worker.vanish()
        assert len(await shares_of(other, made)) == 1
        await pass_time(LEASE_S - 1, other)
        await tick(other, "dead workers")
        assert len(await shares_of(other, made)) == 1, "it might be alive"
        await pass_time(2, other)
        await tick(other, "dead workers")
        assert await shares_of(other, made) == {}


async def tick(e: Engine, name: str) -> None:
    """One pass of a background service."""
    await next(service for service in e.worker.services if service.name == name).tick()


async def test_a_worker_with_no_part_in_one_limit_holds_none_of_the_others(database_url, tmp_path):
    """Nobody keeps units that it cannot use."""
    witness = Witness()

    @operation("two", max_row_concurrency=8)
    class Two(Pipeline[Item]):
        @step(concurrency=4)
        async def wide(self, row: Item, ctx: Context) -> None:
            await witness(row.id)

        @step(concurrency=1)
        async def narrow(self, row: Item, ctx: Context) -> None: ...

    async with engines([Two], [Two], url=database_url, folder=tmp_path) as (one, other):
        made = await one.create(Two, items(12))
        async with working(one):
            await until(lambda: len(witness.inside) == 4)
            async with working(other):
                for _ in range(3):
                    await look(one, other)
                    await pass_time(1, one, other)
                witness.let_go(2)
                await until(lambda: len(witness.calls) == 6)
            held = await shares_of(one, made)
            assert held.pop(one.worker.lease.id) == {"wide.concurrency": 4, "narrow.concurrency": 1}
            assert not any(any(units.values()) for units in held.values()), "whether or not the other still takes part"
        witness.open()
        assert ((await ends(made, one, other)).status, witness.most) == ("Completed", 4)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limit", [1, 3])
async def test_a_limit_holds_whatever_happens_to_three_workers(database_url, tmp_path, limit, seed):
    rng, witness = random.Random(seed), Witness()
    kind = limited(witness, concurrency=limit)
    async with engines([kind], [kind], [kind], url=database_url, folder=tmp_path) as them:
        made = await them[0].create(kind, items(60))
        for _ in range(40):
            e = rng.choice(them)
            match rng.choice(["work", "work", "look", "look", "end", "end", "time", "restart", "kill", "freeze"]):
                case "work":
                    await asyncio.wait([asyncio.ensure_future(e.worker.tick())])
                    await a_moment()
                case "look":
                    await e.worker.look_round()
                case "end":
                    witness.let_go()
                    await a_moment()
                case "time":
                    await pass_time(1, *them)
                case "restart":
                    await e.restart()
                case "kill":
                    await e.worker.vanish()
                    await e.restart()
                case "freeze":  # others may take over while its calls have ended, but not its word
                    await e.worker.vanish()
                    await pass_time(LEASE_S + 1, *(each for each in them if each is not e))
                    await e.restart()
            held = await shares_of(them[0], made)
            live = [each.worker.lease.id for each in them]
            assert sum(share["call.concurrency"] for worker, share in held.items() if worker in live) <= limit
            assert len(witness.inside) <= limit
        witness.open()
        done = await ends(made, *them)
        assert (done.successful_rows, done.failed_rows) == (60, 0)
        assert witness.most <= limit
        assert await clean(them[0]) == []


async def test_a_rate_holds_over_workers_that_join_and_leave(database_url, tmp_path, monkeypatch):
    calls: list[tuple[float, str]] = []

    def paced(who: str) -> type:
        @operation("paced", max_row_concurrency=8)
        class Paced(Pipeline[Item]):
            @step(rate="10/s")
            async def call(self, row: Item, ctx: Context) -> None:
                calls.append((one.clock.monotonic(), who))

        return Paced

    kinds = [paced("one")], [paced("other")]
    async with engines(*kinds, url=database_url, folder=tmp_path) as (one, other):
        timers = Timers(one.clock)
        monkeypatch.setattr(gates, "happens_within", timers.happens_within)

        async def go_on(number: int, *them: Engine) -> None:
            """So many calls more; all look round each second."""
            wanted, looked = len(calls) + number, one.clock.monotonic()
            while len(calls) < wanted:
                await until(lambda: bool(timers.waits))
                await timers.next()
                if one.clock.monotonic() >= looked + 1:
                    looked = one.clock.monotonic()
                    await pass_time(0, *them)
                    await look(*them)

        made = await one.create(kinds[0][0], items(200))
        async with working(one):
            await go_on(35, one)
            async with working(other):
                await go_on(70, one, other)
                assert units(await shares_of(one, made), "call.rate") == [5, 5]
                await one.worker.stop()
                await go_on(40, other)
                assert units(await shares_of(other, made), "call.rate") == [10]
        by_one = [start for start, who in calls if who == "one"]
        by_other = [start for start, who in calls if who == "other"]
        assert most_within_a_second([start for start, _ in calls]) <= 10
        assert by_other[0] < by_one[-1] < by_other[-1], "they worked at the same time, and then one alone"
        last_second = [start for start in by_other if start > by_other[-1] - 0.9999]
        assert len(last_second) == 10, "and it has all of the rate in the end"
