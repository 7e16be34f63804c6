"""Plain functions on threads, which nobody can stop: what becomes of those that go on after they were given up."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import forked
import pytest
from approvals import Paper, a_moment, clean, papers, states
from patience import HANG_S, UNHURRIED

from penstock import BatchContext, Context, Done, Pipeline, operation, step
from penstock.operations.rows import gates, runtime
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


def plain(block: Block) -> Any:
    def only(self: Any, paper: Paper, ctx: Context) -> None:
        block.stop()

    return step(timeout=HANG_S)(only)


def batch(block: Block) -> Any:
    def only(self: Any, papers: list[Paper], ctx: BatchContext) -> None:
        block.stop()

    return step.batch(size=1, timeout=HANG_S)(only)


def polled(block: Block) -> Any:
    async def only(self: Any, paper: Paper, ctx: Context) -> None: ...

    def is_done(self: Any, paper: Paper, ctx: Context) -> bool:
        block.stop()
        return True

    made = step.poll(every=1, timeout=HANG_S)(only)
    made.check(is_done)
    return made


@pytest.mark.parametrize("kind", [plain, batch, polled])
async def test_the_time_limit_of_a_plain_function_begins_when_a_thread_is_free_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
):
    block, limits, timed = Block(), list[float](), runtime._timed

    def noted(call: Any, seconds: float) -> Any:
        inner = timed(call, seconds)

        async def begun(*given: Any) -> Any:
            limits.append(seconds)
            return await inner(*given)

        return begun

    monkeypatch.setattr(runtime, "_timed", noted)

    @operation("busy", max_row_concurrency=2)
    class Busy(Pipeline[Paper]):
        only = kind(block)

    settings = Settings(sync_threads=1)
    async with engine([Busy], tmp_path=tmp_path, settings=settings) as e:
        made = await e.create(Busy, papers(2))
        working = asyncio.create_task(e.work_until_idle())
        await asyncio.to_thread(block.reached.wait)
        await a_moment()
        begun = len(limits)
        block.gone.set()
        await working
        assert await states(e, made) == ["Completed"] * 2
    assert (begun, len(limits)) == (1, 2)


async def test_plain_functions_that_hang_past_their_time_leave_their_threads_to_others(
    database_url: str, tmp_path: Path
):
    block = Block()

    @operation("hang")
    class Hang(Pipeline[Paper]):
        @step(timeout=0.01)
        def only(self, paper: Paper, ctx: Context) -> None:
            block.stop()

    @operation("other")
    class Other(Pipeline[Paper]):
        def validate_row(self, paper: Paper, meta: None) -> None: ...

        @step
        def first(self, paper: Paper, ctx: Context) -> None: ...

        @step(concurrency=1)
        def second(self, paper: Paper, ctx: Context) -> None: ...

    settings = Settings(sync_threads=2)
    try:
        async with engine([Hang, Other], url=database_url, tmp_path=tmp_path, settings=settings) as e:
            async with asyncio.timeout(HANG_S):
                hung = await e.run(Hang, papers(5))
                other = await e.run(Other, papers(5))
            assert await states(e, hung) == ["TimedOut"] * 5
            assert await states(e, other) == ["Completed"] * 5
            assert await clean(e) == []
    finally:
        block.gone.set()


async def test_a_rate_lets_plain_functions_through_when_a_thread_is_free_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    block, passed = Block(), list[float]()

    async def at_once(event: asyncio.Event, seconds: float) -> bool:
        passed.append(seconds)
        return False

    monkeypatch.setattr(gates, "happens_within", at_once)

    @operation("paced", max_row_concurrency=4)
    class Paced(Pipeline[Paper]):
        @step(rate="1/s")
        def only(self, paper: Paper, ctx: Context) -> None:
            block.stop()

    async with engine([Paced], tmp_path=tmp_path, settings=Settings(sync_threads=1)) as e:
        made = await e.create(Paced, papers(4))
        working = asyncio.create_task(e.work_until_idle())
        await asyncio.to_thread(block.reached.wait)
        await a_moment()
        held_up = len(passed)
        block.gone.set()
        await working
        assert await states(e, made) == ["Completed"] * 4
    assert (held_up, len(passed)) == (2, 4), "the next one has waited for its time, and the others are behind it"


async def test_a_rate_that_waits_for_its_time_holds_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    waits, go = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def until_other_has_run(event: asyncio.Event, seconds: float) -> bool:
        waits.set()
        await go.wait()
        return False

    monkeypatch.setattr(gates, "happens_within", until_other_has_run)

    @operation("paced")
    class Paced(Pipeline[Paper]):
        @step(rate="1/h")
        def only(self, paper: Paper, ctx: Context) -> None: ...

    @operation("other")
    class Other(Pipeline[Paper]):
        @step
        def only(self, paper: Paper, ctx: Context) -> None:
            assert waits.wait(HANG_S)
            loop.call_soon_threadsafe(go.set)

    async with engine([Paced, Other], tmp_path=tmp_path, settings=Settings(sync_threads=1)) as e:
        made = [await e.create(kind, papers(1)) for kind in (Paced, Other)]
        async with asyncio.timeout(HANG_S):
            await e.work_until_idle()
        assert [await states(e, each) for each in made] == [["Completed"]] * 2


@pytest.mark.parametrize("kind", ["plain", "limited", "batch", "poll", "signal"])
async def test_conditions_and_keys_of_plain_steps_may_block_as_the_steps_may(tmp_path: Path, kind: str):
    where: dict[str, set[threading.Thread]] = {"when": set(), "key": set(), "step": set()}

    def single(self: Any, paper: Paper, ctx: Context) -> Any:
        where["step"].add(threading.current_thread())
        return Done() if kind in ("poll", "signal") else None

    def together(self: Any, papers: list[Paper], ctx: BatchContext) -> None:
        where["step"].add(threading.current_thread())

    def is_wanted(self: Any, paper: Paper, ctx: Context) -> bool:
        where["when"].add(threading.current_thread())
        return paper.code != "p2"

    def key_of(self: Any, paper: Paper, ctx: Context) -> str:
        where["key"].add(threading.current_thread())
        return paper.code

    def is_done(self: Any, paper: Paper, ctx: Context) -> bool:
        return True

    made: Any = {
        "plain": lambda: step(single),
        "limited": lambda: step(timeout=HANG_S, concurrency=2)(single),
        "batch": lambda: step.batch(size=2)(together),
        "poll": lambda: step.poll(every=1, timeout=60)(single),
        "signal": lambda: step.signal(timeout=60)(single),
    }[kind]()
    made.when(is_wanted)
    if kind == "signal":
        made.key(key_of)
    if kind == "poll":
        made.check(is_done)

    @operation("blocking")
    class Blocking(Pipeline[Paper]):
        only = made

    async with engine([Blocking], tmp_path=tmp_path) as e:
        done = await e.run(Blocking, papers(3))
        assert (done.status, done.successful_rows) == ("Completed", 3)
    assert {name for name, threads in where.items() if threads} == {
        "when",
        "step",
        *(["key"] if kind == "signal" else []),
    }
    assert not any(threading.main_thread() in threads for threads in where.values())


HANGING = """
import threading
from pydantic import BaseModel
from penstock import Context, Pipeline, operation, step

class Paper(BaseModel):
    code: str

@operation("hang")
class Hang(Pipeline[Paper]):
    @step(timeout=0.01)
    def only(self, paper: Paper, ctx: Context) -> None:
        threading.Event().wait()
"""


def test_a_process_ends_though_a_plain_function_hangs_in_it(tmp_path: Path):
    (tmp_path / "app.py").write_text(HANGING)
    (tmp_path / "papers.csv").write_text("code\np1\n")
    words = (*forked.python(), "-m", "penstock", "run", "hang", "papers.csv", "--app", "app.py")
    done = subprocess.run(
        words, cwd=tmp_path, env=os.environ | UNHURRIED, capture_output=True, text=True, check=False, timeout=HANG_S
    )
    assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
