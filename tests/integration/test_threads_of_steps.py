"""Plain functions on threads, which nobody can stop: what becomes of those that go on after they were given up."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from approvals import Paper, clean, papers, states
from patience import HANG_S

from penstock import Context, Pipeline, operation, step
from penstock.settings import Settings
from penstock.testing import engine

NO_GRACE = Settings(cancel_grace_s=0)


class Block:
    """A place where a thread stays until it is let go."""

    def __init__(self) -> None:
        self.reached, self.gone = threading.Event(), threading.Event()

    def stop(self) -> None:
        self.reached.set()
        assert self.gone.wait(HANG_S)


async def test_a_thread_that_was_cut_off_begins_no_further_step_of_its_row(database_url: str, tmp_path: Path):
    block, begun, threads = Block(), list[str](), set[threading.Thread]()

    @operation("two")
    class Two(Pipeline[Paper]):
        @step
        def first(self, paper: Paper, ctx: Context) -> None:
            begun.append("first")
            threads.add(threading.current_thread())
            block.stop()

        @step
        def second(self, paper: Paper, ctx: Context) -> None:
            begun.append("second")

    async with engine([Two], url=database_url, tmp_path=tmp_path, settings=NO_GRACE) as e:
        made = await e.create(Two, papers(1))
        working = asyncio.create_task(e.work_until_idle())
        await asyncio.to_thread(block.reached.wait)
        await e.operations.cancel(made.id)
        await e.worker.look_round()
        await working
        assert await states(e, made) == ["Cancelled"]
        block.gone.set()
        assert await clean(e) == []
    for thread in threads:  # the worker has ended, so they end when they are free
        await asyncio.to_thread(thread.join, HANG_S)
    assert begun == ["first"]
