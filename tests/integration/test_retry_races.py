"""Requests that meet: two editors of a row, an edit and a retry of all, a retry and a stop. Nobody undoes another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from approvals import Paper, Wall, at_wall, clean, requests_of, states

from penstock import Context, Pipeline, StepFailed, operation, step
from penstock.errors import Conflict
from penstock.operations import retrying
from penstock.operations.chunk import store
from penstock.operations.model import Operation
from penstock.operations.moves import touch
from penstock.operations.operation_ids import number_of
from penstock.operations.retrying import NothingToRetry
from penstock.settings import Settings
from penstock.testing import Engine, engine

DONE, FAILED = "Completed", "Failed"


class Gates:
    """Where calls stay until they are let through: the check of a row for this desk, the step of a row."""

    def __init__(self) -> None:
        self.check, self.filing = Wall(), Wall()


@pytest.fixture
def gates() -> Gates:
    return Gates()


@pytest.fixture
async def e(database_url: str, tmp_path: Path, gates: Gates) -> AsyncIterator[Engine]:
    @operation("file-papers", row_key="code", max_retry_attempts=3)
    class FilePapers(Pipeline[Paper]):
        async def validate_row(self, paper: Paper, meta: None) -> None:
            if paper.desk == "guarded":
                await gates.check.stop()

        @step
        async def file(self, paper: Paper, ctx: Context) -> None:
            if paper.code == "slow":
                await gates.filing.stop()
            if paper.code.startswith("bad"):
                raise StepFailed(f"no room for {paper.code}")

    settings = Settings(chunk_rows=3)
    async with engine([FilePapers], url=database_url, tmp_path=tmp_path, settings=settings) as opened:
        yield opened
        assert await clean(opened) == []


async def run(e: Engine, *codes: str) -> Operation:
    return await e.run("file-papers", [{"code": code, "desk": "front"} for code in codes])


async def with_one_at_the_wall(e: Engine, gates: Gates, *codes: str) -> Operation:
    """An operation whose first row has failed, and one of another chunk is being filed."""
    made = await e.create("file-papers", [{"code": code} for code in codes])
    await at_wall(gates.filing, e.work_until_idle())
    while (await e.operations.row(made.id, 1)).state != FAILED:  # noqa: ASYNC110  # it happens in the worker
        await asyncio.sleep(0)
    return made


async def test_an_edit_made_from_data_that_another_has_changed_since_is_refused(e, gates):
    """The second editor has read the row, but not yet written, when the first one's edit is applied and run."""
    made = await run(e, "p1", "bad")
    second = asyncio.create_task(e.operations.edit_row(made.id, 2, {"desk": "guarded"}))
    await asyncio.wait_for(gates.check.reached.wait(), 20)
    await e.operations.edit_row(made.id, 2, {"code": "bad2"})
    await e.work_until_idle()
    gates.check.gone.set()
    with pytest.raises(Conflict, match=r"row 2 was changed since \(generation 1, you saw 0\); look at it again"):
        await second
    view = await e.operations.row(made.id, 2)
    assert (view.generation, view.data) == (1, {"code": "bad2", "desk": "front"})
    now = await e.operations.get(made.id)
    assert (now.status, now.retry_count, len(await requests_of(e, made))) == ("CompletedWithErrors", 1, 1)


async def test_an_edit_of_a_row_that_was_retried_since_it_was_read_is_refused(e, gates):
    made = await run(e, "bad")
    editor = asyncio.create_task(e.operations.edit_row(made.id, 1, {"desk": "guarded"}))
    await asyncio.wait_for(gates.check.reached.wait(), 20)
    await e.operations.retry(made.id)
    await e.work_until_idle()
    gates.check.gone.set()
    with pytest.raises(Conflict, match="was changed since"):
        await editor


async def test_an_edit_can_name_the_generation_it_was_made_from(e):
    made = await run(e, "bad")
    await e.operations.edit_row(made.id, 1, {"code": "bad2"}, generation=0)
    await e.work_until_idle()
    with pytest.raises(Conflict, match=r"row 1 was changed since \(generation 1, you saw 0\)"):
        await e.operations.edit_row(made.id, 1, {"desk": "back"}, generation=0)
    await e.operations.edit_row(made.id, 1, {"desk": "back"}, generation=1)
    await e.work_until_idle()
    view = await e.operations.row(made.id, 1)
    assert (view.generation, view.data) == (2, {"code": "bad2", "desk": "back"})


async def test_a_row_is_not_edited_while_a_retry_of_all_rows_is_on_its_way(e):
    made = await run(e, "p1", "bad", "bad")
    await e.operations.retry(made.id)
    for ask in (e.operations.edit_row(made.id, 2, {"code": "p2"}), e.operations.retry(made.id, rows=[2])):
        with pytest.raises(NothingToRetry, match="a retry of all failed rows is on its way"):
            await ask
    await e.work_until_idle()
    assert await states(e, made) == [DONE, FAILED, FAILED]
    assert [request.outcome for request in await requests_of(e, made)] == ["applied to 2 rows"]
    await e.operations.edit_row(made.id, 2, {"code": "p2"})
    await e.work_until_idle()
    assert await states(e, made) == [DONE, DONE, FAILED]


async def test_rows_of_an_operation_that_is_stopping_are_not_retried(e, gates):
    made = await with_one_at_the_wall(e, gates, "bad", "p2", "p3", "slow")
    stopping = await e.operations.cancel(made.id)
    assert stopping.status == "Stopping"
    for ask in (e.operations.retry(made.id, rows=[1]), e.operations.edit_row(made.id, 1, {"code": "p1"})):
        with pytest.raises(Conflict, match="rows of an operation that is Stopping cannot be retried"):
            await ask
    assert await requests_of(e, made) == []
    gates.filing.gone.set()
    await e.worker.look_round()
    await e.work_until_idle()
    assert (await e.operations.get(made.id)).status == "Cancelled"


def while_judging(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Awaitable[Any]]) -> list[str]:
    """Do something, once, when a retry looks at its rows; every look at some chunks is listed."""
    looks: list[str] = []
    load = store.load

    async def load_and_do(*given: Any, **options: Any) -> Any:
        looks.append("look")
        if len(looks) == 1:
            await meanwhile()
        return await load(*given, **options)

    monkeypatch.setattr(store, "load", load_and_do)
    return looks


async def write_to(e: Engine, made: Operation) -> None:
    """Others create an operation, and write to this one."""
    await e.create("file-papers", [{"code": "p1"}])
    async with e.penstock.db.read() as tx:
        number = await number_of(tx, made.id)
    assert await e.penstock.db.transaction(lambda tx: touch(tx, number)) is not None


async def test_while_a_retry_of_all_rows_looks_at_them_others_write_to_its_operation_and_to_others(e, monkeypatch):
    made = await run(e, "bad", "p2", "bad")
    looks = while_judging(monkeypatch, lambda: write_to(e, made))
    assert (await e.operations.retry(made.id)).submitted == 2
    assert len(looks) > 2, "it has seen that the operation was written to, and looked at its only chunk again"
    assert len(await requests_of(e, made)) == 1
    await e.work_until_idle()


async def test_a_retry_of_all_rows_leaves_out_those_that_came_right_while_it_looked(e, monkeypatch):
    made = await run(e, "bad", "p2", "bad", "p4", "bad")

    async def correct() -> None:
        await e.operations.edit_row(made.id, 3, {"code": "p3"})
        await e.work_until_idle()

    while_judging(monkeypatch, correct)
    assert (await e.operations.retry(made.id)).submitted == 2
    now = await e.operations.get(made.id)
    assert (now.status, now.retry_count, now.generation) == ("Retrying", 2, 2)
    await e.work_until_idle()
    assert [row.generation for row in (await e.operations.rows(made.id)).items] == [1, 0, 1, 0, 1]


async def test_a_retry_of_all_rows_is_refused_when_another_was_accepted_while_it_looked(e, monkeypatch):
    made = await run(e, "bad", "p2", "bad")

    async def retry_one() -> None:
        await e.operations.retry(made.id, rows=[1])

    while_judging(monkeypatch, retry_one)
    with pytest.raises(Conflict, match="the operation is Retrying"):
        await e.operations.retry(made.id)
    assert [request.row for request in await requests_of(e, made)] == [1]
    await e.work_until_idle()
    assert (await e.operations.get(made.id)).retry_count == 1


# --- of named rows


async def test_while_a_retry_of_named_rows_looks_at_them_others_write_to_its_operation_and_to_others(e, monkeypatch):
    made = await run(e, "bad", "p2", "bad", "bad")
    looks = while_judging(monkeypatch, lambda: write_to(e, made))
    assert (await e.operations.retry(made.id, rows=[1, 3, 4])).submitted == 3
    assert len(looks) == 2, "once at each chunk: its rows are what they were"
    await e.work_until_idle()
    assert [row.generation for row in (await e.operations.rows(made.id)).items] == [1, 0, 1, 1]


async def test_a_retry_of_a_row_whose_chunk_is_closed_while_it_looks_opens_it_again(e, gates, monkeypatch):
    made = await with_one_at_the_wall(e, gates, "bad", "p2", "bad", "slow")
    await e.operations.retry(made.id, rows=[3])
    gates.filing.gone.set()
    while_judging(monkeypatch, e.work_until_idle)
    assert (await e.operations.retry(made.id, rows=[1])).submitted == 1
    now = await e.operations.get(made.id)
    assert (now.status, now.retry_count) == ("Retrying", 1)
    await e.work_until_idle()
    assert (await e.operations.row(made.id, 1)).generation == 1


async def test_rows_that_are_named_while_others_run_are_no_retry_of_their_own(e, gates):
    """So the limit of retries, which is reached, does not keep them."""
    made = await run(e, "bad", "p2", "p3", "bad")
    for _ in range(2):
        await e.operations.retry(made.id)
        await e.work_until_idle()
    await e.operations.edit_row(made.id, 4, {"code": "slow"})
    await at_wall(gates.filing, e.work_until_idle())
    now = await e.operations.get(made.id)
    assert (now.status, now.retry_count) == ("Running", 3)
    await e.operations.retry(made.id, rows=[1])
    gates.filing.gone.set()
    await e.work_until_idle()
    now = await e.operations.get(made.id)
    assert (now.status, now.retry_count) == ("CompletedWithErrors", 3)
    assert (await e.operations.row(made.id, 1)).generation == 3
    with pytest.raises(Conflict, match="max_retry_attempts is 3"):
        await e.operations.retry(made.id, rows=[1])


async def test_a_row_is_not_retried_when_a_retry_of_all_rows_was_accepted_while_it_was_looked_at(e, monkeypatch):
    made = await run(e, "bad", "p2", "bad")

    async def retry_all() -> None:
        await e.operations.retry(made.id)

    while_judging(monkeypatch, retry_all)
    with pytest.raises(NothingToRetry, match="a retry of all failed rows is on its way"):
        await e.operations.retry(made.id, rows=[1])
    assert [request.row for request in await requests_of(e, made)] == [None]
    await e.work_until_idle()


async def test_an_edit_is_refused_when_the_row_was_run_again_while_it_was_looked_at(e, monkeypatch):
    made = await run(e, "bad", "p2")

    async def retry_and_run() -> None:
        await e.operations.retry(made.id)
        await e.work_until_idle()

    while_judging(monkeypatch, retry_and_run)
    with pytest.raises(Conflict, match=r"row 1 was changed since \(generation 1, you saw 0\)"):
        await e.operations.edit_row(made.id, 1, {"code": "p1"}, generation=0)
    assert (await e.operations.get(made.id)).retry_count == 1


async def test_a_row_of_a_running_operation_is_not_asked_for_twice_by_those_who_look_at_once(e, gates, monkeypatch):
    made = await with_one_at_the_wall(e, gates, "bad", "p2", "p3", "slow")

    async def retry_it() -> None:
        await e.operations.retry(made.id, rows=[1])

    while_judging(monkeypatch, retry_it)
    with pytest.raises(Conflict, match="is on its way already"):
        await e.operations.retry(made.id, rows=[1])
    assert [request.row for request in await requests_of(e, made)] == [1]
    gates.filing.gone.set()
    await e.work_until_idle()


async def test_many_chunks_are_opened_a_few_at_a_time(e, monkeypatch):
    monkeypatch.setattr(retrying, "CHUNKS_OPENED_EACH", 2)
    made = await run(e, *["bad"] * 14)
    assert (await e.operations.retry(made.id)).submitted == 14
    assert len(await requests_of(e, made)) == 5
    assert await clean(e) == []
    await e.work_until_idle()
    assert {row.generation for row in (await e.operations.rows(made.id)).items} == {1}
