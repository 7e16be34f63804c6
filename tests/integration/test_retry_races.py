"""Requests that meet: two editors of a row, an edit and a retry of all, a retry and a stop. Nobody undoes another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from approvals import Paper, Wall, at_wall, clean, requests_of, states

from penstock import Context, Pipeline, StepFailed, operation, step
from penstock.errors import Conflict
from penstock.operations.model import Operation
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
    @operation("file-papers", row_key="code")
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
    made = await e.create("file-papers", [{"code": code} for code in ("bad", "p2", "p3", "slow")])
    await at_wall(gates.filing, e.work_until_idle())
    while (await e.operations.row(made.id, 1)).state != FAILED:  # noqa: ASYNC110  # it happens in the worker
        await asyncio.sleep(0)
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
