"""The options an operation was created with hold for its whole life, whatever newer code says, also over a crash."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from approvals import Calls, Wall, approvals, at_wall, clean, papers, states
from pydantic import BaseModel
from stored import rows_of

from penstock import Backoff, BatchContext, Context, Pipeline, operation, step
from penstock.clock import ManualClock, from_micros
from penstock.errors import SettingsInvalid
from penstock.operations.model import Operation
from penstock.settings import Settings
from penstock.testing import Engine, engine

DONE, FAILED, WAIT = "Completed", "Failed", "WaitingForCompletion"
ONE_BY_ONE = Settings(chunk_rows=4, flush_rows=1)
SMALL = Settings(chunk_rows=4, flush_rows=4)


class Item(BaseModel):
    id: int
    name: str = ""


def items(count: int) -> list[dict[str, Any]]:
    return [{"id": n, "name": f"n{n}"} for n in range(1, count + 1)]


Open = Callable[..., Any]


@pytest.fixture
def deployed(database_url: str, tmp_path: Path) -> Open:
    """Opens an engine with one release of the code; all share database, files and clock."""
    clock = ManualClock()

    @asynccontextmanager
    async def opened(kind: object, settings: Settings = SMALL) -> AsyncIterator[Engine]:
        async with engine([kind], url=database_url, tmp_path=tmp_path, settings=settings, clock=clock) as e:
            yield e

    return opened


async def carried_on(deployed: Open, before: object, after: object, rows: list[dict[str, Any]]) -> Operation:
    """An operation that was created by one release and is run by the next, to its end."""
    async with deployed(before) as e:
        made = await e.create(before, rows)
    async with deployed(after) as e:
        await e.work_until_idle()
        while not (now := await e.operations.get(made.id)).is_settled:
            await e.skip_wait(now)
            await e.work_until_idle()
        assert await clean(e) == []
    return now


def failing(calls: Counter[int], **options: Any) -> object:
    @operation("failing")
    class Failing(Pipeline[Item]):
        @step(**options)
        async def call(self, row: Item, ctx: Context) -> None:
            calls[row.id] += 1
            raise OSError("down")

    return Failing


@pytest.mark.parametrize(
    "before, after, attempts",
    [
        ({"retries": 2}, {}, 3),
        ({}, {"retries": 2}, 1),
        ({"delivery": "at_most_once"}, {"retries": 2}, 1),
        ({"retries": 2}, {"delivery": "at_most_once"}, 3),
    ],
    ids=["retries taken away", "retries given", "may run twice now", "may run once now"],
)
async def test_a_failing_step_is_tried_as_often_as_when_it_was_created(
    deployed: Open, before: dict[str, Any], after: dict[str, Any], attempts: int
):
    calls = Counter[int]()
    done = await carried_on(deployed, failing(calls, **before), failing(calls, **after), items(2))
    assert (done.failed_rows, calls) == (2, {1: attempts, 2: attempts})


async def test_exceptions_that_may_pass_are_those_of_the_code_for_classes_cannot_be_stored(deployed: Open):
    calls = Counter[int]()
    before = failing(calls, retries=2, retry_on=KeyError)
    done = await carried_on(deployed, before, failing(calls, retry_on=(OSError, TypeError)), items(1))
    assert (done.failed_rows, calls) == (1, {1: 3})


def walled(calls: Counter[tuple[str, int]], wall: Wall, first: dict[str, Any], second: dict[str, Any]) -> object:
    """Two steps; the second of row 2 stops at a wall."""

    @operation("walled", max_row_concurrency=1)
    class Walled(Pipeline[Item]):
        @step(**first)
        async def prepare(self, row: Item, ctx: Context) -> None:
            calls["prepare", row.id] += 1

        @step(**second)
        async def send(self, row: Item, ctx: Context) -> None:
            calls["send", row.id] += 1
            if row.id == 2:
                await wall.stop()

    return Walled


async def crashed_in_between(deployed: Open, wall: Wall, before: object, after: object) -> list[str]:
    """Created by one release, run by the next, which dies at the wall; the next one goes on."""
    async with deployed(before) as e:
        made = await e.create(before, items(2))
    async with deployed(after, ONE_BY_ONE) as e:
        await at_wall(wall, e.work_until_idle())
        await e.crash()
        wall.gone.set()
        await e.work_until_idle()
        assert await clean(e) == []
        return await states(e, made)


async def test_what_could_run_once_only_is_in_doubt_after_a_crash_though_the_code_lets_it_repeat(deployed: Open):
    calls, wall = Counter[tuple[str, int]](), Wall()
    before = walled(calls, wall, {}, {"delivery": "at_most_once"})
    found = await crashed_in_between(deployed, wall, before, walled(calls, wall, {}, {}))
    assert (found, calls["send", 2]) == ([DONE, FAILED], 1)
    # It had an intent of its own: what came before was on disk.
    assert calls["prepare", 2] == 1


async def test_what_could_repeat_is_repeated_after_a_crash_though_the_code_says_once(deployed: Open):
    calls, wall = Counter[tuple[str, int]](), Wall()
    after = walled(calls, wall, {}, {"delivery": "at_most_once"})
    found = await crashed_in_between(deployed, wall, walled(calls, wall, {}, {}), after)
    assert (found, calls["send", 2]) == ([DONE, DONE], 2)


async def test_a_barrier_that_is_gone_from_the_code_still_stands(deployed: Open):
    calls, wall = Counter[tuple[str, int]](), Wall()
    before = walled(calls, wall, {}, {"barrier": True})
    found = await crashed_in_between(deployed, wall, before, walled(calls, wall, {}, {}))
    assert (found, calls["prepare", 2], calls["send", 2]) == ([DONE, DONE], 1, 2)


async def test_a_release_between_two_workers_changes_nothing_for_rows_under_way(deployed: Open):
    """The first release dies in the middle of a row, and the next one takes over."""
    calls, wall = Counter[tuple[str, int]](), Wall()
    before = walled(calls, wall, {}, {"delivery": "at_most_once"})
    after = walled(calls, wall, {}, {"retries": 3})
    async with deployed(before, ONE_BY_ONE) as e:
        made = await e.create(before, items(2))
        await at_wall(wall, e.work_until_idle())
        await e.crash()
    wall.gone.set()
    async with deployed(after, ONE_BY_ONE) as e:
        await e.work_until_idle()
        (error,) = (await e.operations.errors(made.id)).items
        assert (error.row, error.error_type) == (2, "InDoubt")
        assert await clean(e) == []
    assert calls["send", 2] == 1


async def test_timeouts_stay_as_they_were(deployed: Open):
    deadlines: list[datetime | None] = []

    def timed(**options: Any) -> object:
        @operation("timed")
        class Timed(Pipeline[Item]):
            @step(**options)
            async def call(self, row: Item, ctx: Context) -> None:
                deadlines.append(ctx.deadline)

        return Timed

    before = timed(timeout=60)
    async with deployed(before) as e:
        await e.create(before, items(1))
        wanted = from_micros(e.clock.now_us()) + timedelta(seconds=60)
    async with deployed(timed()) as e:
        await e.work_until_idle()
    assert deadlines == [wanted]


async def test_a_limit_of_calls_at_once_stays_as_it_was(deployed: Open):
    running, most = set[int](), [0]

    def limited(**options: Any) -> object:
        @operation("limited")
        class Limited(Pipeline[Item]):
            @step(**options)
            async def call(self, row: Item, ctx: Context) -> None:
                running.add(row.id)
                most[0] = max(most[0], len(running))
                await asyncio.sleep(0)
                running.discard(row.id)

        return Limited

    done = await carried_on(deployed, limited(concurrency=1), limited(), items(8))
    assert (done.successful_rows, most) == (8, [1])


async def test_the_size_of_batches_stays_as_it_was(deployed: Open):
    sizes: list[int] = []

    def batched(**options: Any) -> object:
        @operation("batched")
        class Batched(Pipeline[Item]):
            @step.batch(**options)
            async def call(self, rows: list[Item], ctx: BatchContext) -> None:
                sizes.append(len(rows))

        return Batched

    done = await carried_on(deployed, batched(size=2), batched(size=4), items(4))
    assert (done.successful_rows, sizes) == (4, [2, 2])


@pytest.mark.parametrize(
    "before, after, status", [({"max_errors": 2}, {}, "Failed"), ({}, {"max_errors": 2}, "CompletedWithErrors")]
)
async def test_the_errors_an_operation_may_have_stay_as_they_were(
    deployed: Open, before: dict[str, Any], after: dict[str, Any], status: str
):
    def limited(**options: Any) -> object:
        @operation("limited", max_row_concurrency=1, **options)
        class Limited(Pipeline[Item]):
            @step
            async def call(self, row: Item, ctx: Context) -> None:
                raise OSError("down")

        return Limited

    assert (await carried_on(deployed, limited(**before), limited(**after), items(8))).status == status


async def test_rows_wait_for_the_keys_they_were_created_with(deployed: Open):
    before, after = approvals(Calls(), key="old-{row.code}"), approvals(Calls(), key="new-{row.code}")
    async with deployed(before) as e:
        made = await e.create(before, papers(2))
    async with deployed(after) as e:
        await e.work_until_idle()
        assert [wait.key for wait in await e.penstock.signals.waiting(made.id)] == ["old-p1", "old-p2"]
        for row in (1, 2):
            assert (await e.penstock.signals.complete(made.id, f"old-p{row}")).outcome == "delivered"
        await e.work_until_idle()
        assert await states(e, made) == [DONE, DONE]


async def test_rows_are_called_by_the_key_the_operation_was_created_with(deployed: Open):
    keys: list[str | None] = []

    def keyed(row_key: str) -> object:
        @operation("keyed", row_key=row_key)
        class Keyed(Pipeline[Item]):
            @step
            async def call(self, row: Item, ctx: Context) -> None:
                keys.append(ctx.row_key)

        return Keyed

    await carried_on(deployed, keyed("name"), keyed("id"), items(2))
    assert keys == ["n1", "n2"]


async def test_what_was_set_for_one_run_holds_over_a_release_too(deployed: Open):
    calls = Counter[int]()
    kind = failing(calls)
    async with deployed(kind) as e:
        options = {"call.retries": 1, "call.backoff": Backoff.constant(7), "call.timeout": timedelta(minutes=1)}
        made = await e.create(kind, items(1), options=options)
    async with deployed(failing(calls, retries=5)) as e:
        await e.work_until_idle()
        await e.advance(6)
        await e.work_until_idle()
        assert calls == {1: 1}
        await e.advance(1)
        await e.work_until_idle()
        assert [row.verdict for row in await rows_of(e.penstock.db, made.id)] == [FAILED]
    assert calls == {1: 2}


async def test_exception_classes_cannot_be_set_for_one_run(deployed: Open):
    kind = failing(Counter())
    async with deployed(kind) as e:
        for call in (e.operations.create, e.operations.validate):
            with pytest.raises(SettingsInvalid, match=r"call\.retry_on: .*in code only"):
                await call(kind, file=b'{"id": 1}', file_name="one.jsonl", options={"call.retry_on": OSError})
        assert (await e.operations.list()).items == []
