"""Outputs of many rows that are too large for one statement: each is kept, read by later steps, and removed."""

from __future__ import annotations

import asyncio
import base64
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from approvals import Calls, Paper, approvals, clean, papers
from patience import HANG_S
from sqlalchemy import func, select
from stored import rows_of

from penstock import BatchContext, Context, Done, Pipeline, StepFailed, operation, step
from penstock.operations.chunk import ledger, store
from penstock.operations.chunk.records import StepRecord
from penstock.operations.tables import chunks, row_records
from penstock.operations.views import row_views
from penstock.pipeline.outputs import OUTPUT_BYTES_MAX
from penstock.testing import Engine, engine

MIB = 1024 * 1024
DAY_S = 86_400


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger has room for about two of the small outputs of these tests."""
    monkeypatch.setattr(ledger, "OUTPUTS_BYTES_MAX", 32)


async def in_records(e: Engine) -> int:
    """How many outputs are in records."""
    async with e.penstock.db.read() as tx:
        return int((await tx.execute(select(func.count(row_records.c.output)))).scalar_one())


async def test_outputs_of_a_chunk_that_no_statement_could_hold_are_stored_and_each_row_runs_once(
    database_url: str, tmp_path: Path
):
    ran: Counter[int] = Counter()

    @operation("images", row_key="code")
    class Images(Pipeline[Paper]):
        @step
        async def make(self, paper: Paper, ctx: Context) -> str:
            ran[ctx.row_number] += 1
            noise = random.Random(ctx.row_number).randbytes(OUTPUT_BYTES_MAX * 3 // 4 - 100)
            return base64.b64encode(noise).decode()

        @step
        async def measure(self, paper: Paper, ctx: Context) -> int:
            return len(ctx.outputs["make"])

    count = 400
    async with engine([Images], url=database_url, tmp_path=tmp_path) as e:
        async with asyncio.timeout(HANG_S):
            done = await e.run(Images, papers(count))
        assert done.successful_rows == count
        assert ran == Counter(range(1, count + 1))
        size = len((await e.operations.row(done.id, count)).steps[1].output)
        assert [row.outputs[1] for row in await rows_of(e.penstock.db, done.id)] == [size] * count
        async with e.penstock.db.read() as tx:
            stored = (await tx.execute(select(func.max(func.length(chunks.c.ledger))))).scalar_one()
        assert size * count > 20 * MIB > 3 * MIB > stored
        assert await clean(e) == []


async def test_a_worker_that_takes_a_row_over_finds_the_outputs_that_did_not_fit(
    database_url: str, tmp_path: Path, no_room: None
):
    calls: Calls = Counter()
    kind = approvals(calls, timeout=3600)
    async with engine([kind], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(kind, papers(6))
        await e.work_until_idle()
        assert await in_records(e) > 0
        await e.crash()
        for n in range(1, 7):
            await e.penstock.signals.complete(made.id, f"paper-p{n}", payload={"word": f"yes, p{n}"})
        await e.work_until_idle()
        done = await e.operations.get(made.id)
        assert done.successful_rows == 6
        found = [row.outputs for row in await rows_of(e.penstock.db, made.id)]
        assert found == [[f"submitted p{n}", *[{"word": f"yes, p{n}"}] * 2] for n in range(1, 7)]
        shown = [await e.operations.row(made.id, n) for n in range(1, 7)]
        assert [[s.output for s in row.steps if s.index >= 0] for row in shown] == found
        assert await clean(e) == []
    assert set(calls.values()) == {1}


@operation("answers", row_key="code", keep={"outputs": "1d"})
class Answers(Pipeline[Paper]):
    """A step of every kind that gives an output, and a last one that repeats what it got from them."""

    @step(retries=1, backoff=0)
    async def plain(self, paper: Paper, ctx: Context) -> str:
        if ctx.attempt == 1 and paper.code == "p3":
            raise OSError("not now")
        return f"plain answer for {paper.code}"

    @step
    def threaded(self, paper: Paper, ctx: Context) -> str:
        return f"answer of a thread for {paper.code}"

    @step.batch(size=4)
    async def together(self, papers: list[Paper], ctx: BatchContext) -> list[str]:
        return [f"answer of a batch for {paper.code}" for paper in papers]

    @step.poll(every=1, timeout=60)
    async def asked(self, paper: Paper, ctx: Context) -> None: ...

    @asked.check
    async def is_there(self, paper: Paper, ctx: Context) -> Done:
        return Done(f"answer of a check for {paper.code}")

    @step
    async def repeated(self, paper: Paper, ctx: Context) -> list[Any]:
        if ctx.generation == 0 and paper.code == "p5":
            raise StepFailed("not this time")
        return [ctx.outputs[name] for name in ("plain", "threaded", "together", "asked")]


def answers(n: int) -> list[Any]:
    each = [
        f"{what} for p{n}" for what in ("plain answer", *(f"answer of a {k}" for k in ("thread", "batch", "check")))
    ]
    return [*each, each]


async def test_steps_of_every_kind_keep_outputs_that_do_not_fit_also_of_rows_that_are_retried(
    database_url: str, tmp_path: Path, no_room: None
):
    async with engine([Answers], url=database_url, tmp_path=tmp_path) as e:
        made = await e.run(Answers, papers(9))
        assert (made.successful_rows, made.failed_rows) == (8, 1)
        await e.operations.retry(made.id)
        await e.work_until_idle()
        found = [row.outputs for row in await rows_of(e.penstock.db, made.id)]
        assert found == [answers(n) for n in range(1, 10)]
        assert await in_records(e) == 44, "all but the first"
        assert await clean(e) == []


async def test_outputs_that_did_not_fit_are_pruned_with_the_others(database_url: str, tmp_path: Path, no_room: None):
    async with engine([Answers], url=database_url, tmp_path=tmp_path) as e:
        made = await e.run(Answers, papers(9))
        await e.advance(2 * DAY_S)
        await e.operations.prune()
        assert await in_records(e) == 0
        found = (await e.operations.row(made.id, 9)).steps
        assert [(each.state, each.output) for each in found if each.index >= 0] == [("Completed", None)] * 5
        assert await clean(e) == []


async def test_outputs_that_did_not_fit_are_erased_with_their_rows(database_url: str, tmp_path: Path, no_room: None):
    async with engine([Answers], url=database_url, tmp_path=tmp_path) as e:
        made = await e.run(Answers, papers(9))
        before = await in_records(e)
        await e.operations.erase(made.id, rows=[8])
        assert await in_records(e) == before - 5
        assert [each.output for each in (await e.operations.row(made.id, 8)).steps] == [None] * 6
        await e.operations.erase(made.id)
        assert await in_records(e) == 0
        assert await clean(e) == []


async def test_outputs_of_rows_that_are_not_shown_stay_in_the_database(
    database_url: str, tmp_path: Path, no_room: None, monkeypatch: pytest.MonkeyPatch
):
    read: list[int] = []

    def noted(*columns: Any) -> StepRecord:
        record = StepRecord(*columns)
        read.extend([record.row] * (record.output is not None))
        return record

    @operation("answers", row_key="code")
    class Failing(Answers):
        @step
        async def last(self, paper: Paper, ctx: Context) -> None:
            if paper.code in ("p2", "p8"):
                raise StepFailed("not this one")

    async with engine([Failing], url=database_url, tmp_path=tmp_path) as e:
        made = await e.run(Failing, papers(9))
        await e.operations.retry(made.id)
        await e.work_until_idle()
        for module in (store, row_views):
            monkeypatch.setattr(module, "StepRecord", noted)
        for wanted in ({"state": "Failed"}, {"error_type": "StepFailure"}):
            found = await e.operations.rows(made.id, **wanted)
            assert [row.number for row in found.items] == [2, 8]
            assert found.items[1].steps[-2].output == answers(8)[-1]
        assert set(read) == {2, 8}
        read.clear()
        assert [row.number for row in (await e.operations.rows(made.id, row_key="p3")).items] == [3]
        assert set(read) == {3}
        read.clear()
        assert (await e.operations.can_retry(made.id)).rows == 2
        assert await clean(e) == []
        assert read == []
