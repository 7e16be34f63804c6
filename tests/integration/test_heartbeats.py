"""The threads beside a worker's loop survive what goes wrong in them, or the worker ends and says so."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from patience import HANG_S
from sqlalchemy.exc import OperationalError
from test_blocked_loop import Item, heard, items, settings

from penstock import BatchContext, Context, Penstock, Pipeline, failpoints, operation, step
from penstock.operations.worker import vitals
from penstock.operations.worker import worker as worker_module

UNEXPECTED = OperationalError("UPDATE", {}, Exception(1105, "Unknown error"))


@operation("plain")
async def plain(row: Item, ctx: Context) -> None: ...


class Beats:
    """What happens at beats: the first ones raise these errors, and after them `goes_on` is set."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors, self.goes_on = list(errors), threading.Event()

    def __call__(self, point: str) -> None:
        if point == "beat:before" and self.errors:
            raise self.errors.pop(0)
        if point == "beat:after":
            self.goes_on.set()


@pytest.mark.parametrize("error", [UNEXPECTED, MemoryError(), RuntimeError("can't start new thread")])
async def test_a_heartbeat_that_fails_is_logged_and_beats_again(database_url: str, tmp_path: Path, error: Exception):
    given, beats = settings(database_url, tmp_path, heartbeat_s=0.01), Beats(error)
    with heard("the heartbeat failed") as failed, failpoints.armed(beats):
        async with Penstock.open(operations=[plain], settings=given) as penstock, penstock.worker() as worker:
            assert await asyncio.to_thread(beats.goes_on.wait, HANG_S)
            stop = asyncio.Event()
            running = asyncio.create_task(worker.run(stop))
            made = await penstock.operations.create(plain, file=items(3), file_name="a.jsonl")
            async with asyncio.timeout(HANG_S):
                done = await penstock.operations.wait(made.id, every_s=0.01)
            stop.set()
            await running
    assert (done.status, done.successful_rows) == ("Completed", 3)
    (record,) = failed.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error


class EndOfThread(BaseException):
    """Nothing that anybody catches."""


async def test_a_worker_whose_heartbeat_has_ended_ends_with_its_error(database_url: str, tmp_path: Path):
    given = settings(database_url, tmp_path, heartbeat_s=0.01)
    with heard("its heartbeat has ended") as said, failpoints.armed(Beats(EndOfThread())):
        async with Penstock.open(operations=[plain], settings=given) as penstock:
            with pytest.raises(EndOfThread):
                async with penstock.worker() as worker, asyncio.timeout(HANG_S):
                    await worker.run(asyncio.Event())
    assert [record.levelname for record in said.records] == ["CRITICAL"]


@pytest.mark.databases("sqlite")
async def test_a_batch_that_has_emptied_its_list_of_rows_and_blocks_the_loop_is_named(
    database_url: str, tmp_path: Path
):
    with heard("blocked the event loop") as warning:

        @operation("slow")
        class Slow(Pipeline[Item]):
            @step.batch()
            async def count_many(self, rows: list[Item], ctx: BatchContext) -> None:
                ctx.rows.clear()
                warning.block()

        async with Penstock.open(operations=[Slow], settings=settings(database_url, tmp_path)) as penstock:
            made = await penstock.operations.create(Slow, file=items(3), file_name="a.jsonl")
            await penstock.run_until_done(made.id)
    (record,) = warning.records
    assert record.getMessage().startswith(f"count_many of operation slow ({made.id}), at {__file__}:")
    assert "row_number" not in vars(record)


@pytest.mark.databases("sqlite")
async def test_a_loop_that_is_stuck_is_seen_whatever_the_step_did_to_its_context(database_url: str, tmp_path: Path):
    with heard(": code at", "its lease is not renewed") as stalled:

        @operation("slow")
        class Slow(Pipeline[Item]):
            @step.batch()
            async def spoil(self, rows: list[Item], ctx: BatchContext) -> None:
                ctx.rows[:] = [None]
                stalled.block()

        given = settings(database_url, tmp_path, stall_s=0.2)
        async with Penstock.open(operations=[Slow], settings=given) as penstock:
            made = await penstock.operations.create(Slow, file=items(1), file_name="a.jsonl")
            await penstock.run_until_done(made.id)
    assert stalled.records


async def test_a_worker_leaves_though_the_database_answers_nothing_any_more(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(vitals, "END_S", 0.01)
    monkeypatch.setattr(worker_module, "SHUTDOWN_WRITE_S", 0.01)
    beats, answers = threading.Event(), threading.Event()

    def wait_for_ever(point: str) -> None:
        if point == "beat:before" and threading.current_thread() is not threading.main_thread():
            beats.set()
            answers.wait(HANG_S)

    async def unanswered() -> None:
        await asyncio.Event().wait()

    async with Penstock.open(operations=[plain], settings=settings(database_url, tmp_path)) as penstock:
        try:
            with failpoints.armed(wait_for_ever):
                async with asyncio.timeout(HANG_S), penstock.worker() as worker:
                    monkeypatch.setattr(worker.lease, "end", unanswered)
                    await asyncio.to_thread(beats.wait, HANG_S)
        finally:
            answers.set()
