"""The threads of plain functions: so many calls at once, and what those do that nobody waits for any more."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from patience import HANG_S
from timers import turn

from penstock.operations.rows import step_threads
from penstock.operations.rows.step_threads import StepThreads


class Calls:
    """Calls that block until they are let go, one by one."""

    def __init__(self) -> None:
        self.threads = StepThreads(1)
        self.begun, self._go = list[int](), threading.Semaphore(0)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def block(self, number: int) -> int:
        self._loop.call_soon_threadsafe(self._note, number)
        assert self._go.acquire(timeout=HANG_S)
        return number

    def _note(self, number: int) -> None:
        self.begun.append(number)
        self._changed.set()

    async def start(self, number: int) -> asyncio.Task[int]:
        task = asyncio.create_task(self.threads.run(self.block, number))
        await turn()
        return task

    async def have_begun(self, *numbers: int) -> None:
        async with asyncio.timeout(HANG_S):
            while self.begun != [*numbers]:
                self._changed.clear()
                await self._changed.wait()

    def let_go(self, number: int = 1) -> None:
        for _ in range(number):
            self._go.release()


@pytest.fixture
async def calls() -> AsyncIterator[Calls]:
    made = Calls()
    yield made
    made.let_go(10)
    made.threads.close()


async def given_up(task: asyncio.Task[int]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_calls_run_so_many_at_once_in_the_order_in_which_they_came(calls: Calls):
    tasks = [await calls.start(number) for number in (1, 2, 3)]
    await calls.have_begun(1)
    calls.let_go(3)
    assert await asyncio.gather(*tasks) == [1, 2, 3]
    assert calls.begun == [1, 2, 3]


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration(), SystemExit(3)], ids=repr)
async def test_whatever_a_function_raises_is_raised_to_who_called_it(calls: Calls, error: BaseException):
    def fail() -> None:
        raise error

    with pytest.raises((type(error), RuntimeError)) as raised:
        await calls.threads.run(fail)
    assert error in (raised.value, raised.value.__cause__)


async def test_a_call_that_nobody_waits_for_leaves_its_place_to_another_until_too_many_do(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(step_threads, "LEFT_MAX", 2)
    for number in (1, 2, 3):
        task = await calls.start(number)
        await calls.have_begun(*range(1, number + 1))
        await given_up(task)
    waits = await calls.start(4)
    await turn()
    assert calls.begun == [1, 2, 3], "two are left behind, and the third keeps its place"
    calls.let_go(4)
    assert await waits == 4


async def test_who_gives_up_before_a_thread_is_free_takes_no_place(calls: Calls):
    first, second, third = [await calls.start(number) for number in (1, 2, 3)]
    await calls.have_begun(1)
    await given_up(second)
    calls.let_go(2)
    assert (await first, await third, calls.begun) == (1, 3, [1, 3])


async def test_a_call_that_returns_as_it_is_given_up_frees_one_place(calls: Calls, monkeypatch: pytest.MonkeyPatch):
    first, loop, queued = await calls.start(1), asyncio.get_running_loop(), threading.Event()
    await calls.have_begun(1)
    later = loop.call_soon_threadsafe

    def noted(*given: Any) -> Any:
        try:
            return later(*given)
        finally:
            queued.set()

    monkeypatch.setattr(loop, "call_soon_threadsafe", noted)
    calls.let_go()
    assert queued.wait(HANG_S)  # the loop stands still: it has not heard of the answer
    await given_up(first)
    second, third = [await calls.start(number) for number in (2, 3)]
    await calls.have_begun(1, 2)
    await turn()
    assert calls.begun == [1, 2]
    calls.let_go(2)
    assert await asyncio.gather(second, third) == [2, 3]


async def test_what_a_function_that_failed_was_given_is_let_go_at_once(calls: Calls):
    class Row: ...

    def fail(row: Row) -> None:
        raise ValueError

    async def run() -> weakref.ref[Row]:
        row = Row()
        with suppress(ValueError):
            await calls.threads.run(fail, row)
        return weakref.ref(row)

    gc.disable()
    try:
        failed = await run()
        await calls.threads.run(int)  # the thread has gone on
        assert failed() is None
    finally:
        gc.enable()
