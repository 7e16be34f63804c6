"""A crew has as many hands as its jobs can use, and never more than it may; and users' code cannot end its tasks."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from penstock.operations.rows.task_pool import TaskPool, WorkerTask, is_ours


class Rows:
    """A job of so many rows; `is_waiting` ones begin and then wait until they are let go."""

    is_cut_off = False

    def __init__(self, rows: int, *, is_waiting: bool) -> None:
        self.left, self.is_waiting = rows, is_waiting
        self.running = self.ended = 0
        self.let_go = asyncio.Event()

    async def pull(self) -> bool:
        while self.left:
            self.left -= 1
            self.running += 1
            if self.is_waiting:
                await self.let_go.wait()
            self.running -= 1
            self.ended += 1
        return False


class Hands:
    """Starts tasks, and counts them."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    def spawn(self, work: object) -> None:
        assert asyncio.iscoroutine(work)
        self.tasks.append(asyncio.create_task(work))

    async def settle(self) -> None:
        """Let everybody go on until nobody can."""
        for _ in range(100):
            await asyncio.sleep(0)


@pytest.fixture
def hands() -> Hands:
    return Hands()


async def test_rows_that_never_wait_need_one_hand(hands: Hands):
    crew, job = TaskPool(10, hands.spawn), Rows(1000, is_waiting=False)
    crew.put(job)
    await hands.settle()
    assert job.ended == 1000
    assert len(hands.tasks) == 1


async def test_as_many_rows_wait_at_once_as_there_may_be_hands(hands: Hands):
    crew, job = TaskPool(10, hands.spawn), Rows(25, is_waiting=True)
    crew.put(job)
    await hands.settle()
    assert (job.running, job.ended) == (10, 0)
    job.let_go.set()
    await hands.settle()
    assert (job.running, job.ended) == (0, 25)


async def test_hands_that_are_free_begin_the_next_job_while_rows_of_the_first_wait(hands: Hands):
    crew = TaskPool(10, hands.spawn)
    first, second = Rows(4, is_waiting=True), Rows(25, is_waiting=True)
    crew.put(first)
    await hands.settle()
    crew.put(second)
    await hands.settle()
    assert (first.running, second.running) == (4, 6)


async def test_after_a_rest_there_are_hands_again(hands: Hands):
    crew = TaskPool(10, hands.spawn)
    for _ in range(3):
        job = Rows(12, is_waiting=True)
        crew.put(job)
        await hands.settle()
        assert job.running == 10
        job.let_go.set()
        await hands.settle()
        assert job.ended == 12
        assert all(task.done() for task in hands.tasks)


def cancelled_by_somebody(task: asyncio.Task[None]) -> None:
    asyncio.get_running_loop().call_soon(task.cancel)


async def test_a_cancel_by_somebody_else_is_taken_back_and_those_of_asyncio_count():
    seen: list[bool] = []

    async def work() -> None:
        task = asyncio.current_task()
        assert isinstance(task, WorkerTask)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                for _ in range(2):
                    try:
                        await asyncio.Event().wait()
                    except asyncio.CancelledError as error:
                        seen.append(is_ours(error))
                        if is_ours(error):
                            raise
        assert task.cancelling() == 0

    task = WorkerTask(work(), loop=asyncio.get_running_loop())
    cancelled_by_somebody(task)
    await task
    assert seen == [False, True]


async def test_a_cancel_that_a_library_takes_back_by_itself_is_not_remembered():
    async def work() -> None:
        task = asyncio.current_task()
        assert isinstance(task, WorkerTask)
        for _ in range(3):
            cancelled_by_somebody(task)
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            assert task.uncancel() == task.strange == 0

    await WorkerTask(work(), loop=asyncio.get_running_loop())


def test_a_worker_task_ends_with_its_loop():
    ours: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            ours.append(is_ours(error))
            raise

    async def leave_it_behind() -> asyncio.Task[None]:
        task = WorkerTask(work(), loop=asyncio.get_running_loop())
        await asyncio.sleep(0)
        return task

    task = asyncio.run(leave_it_behind())
    assert task.cancelled()
    assert ours == [True]
