"""Validators that are plain functions may block: they run on threads, and the loop goes on beside them."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from approvals import Paper, a_moment, clean, papers, states, two_engines
from left_chunks import SMALL, left_rows, read_for_others
from patience import HANG_S
from pydantic import BaseModel, field_validator
from stored import records_of

from penstock import BatchContext, Context, Penstock, Pipeline, RowInvalid, failpoints, operation, step
from penstock.clock import ManualClock
from penstock.operations.rows.step_threads import StepThreads
from penstock.operations.worker.vitals import LoopWatch
from penstock.settings import Settings
from penstock.testing import Engine, engine, json_lines

DONE = "Completed"


class Gate:
    """A pipeline with a plain validator. Papers for the desk 'gate' block it until the loop opens the gate."""

    def __init__(self, *, is_closed: bool = True, **options: Any) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.asked: list[str] = []
        self.ran: list[str] = []
        self.threads: set[threading.Thread] = set()
        if not is_closed:
            self.opened.set()
        gate = self

        @operation("gate", row_key="code", **options)
        class Kind(Pipeline[Paper]):
            def validate_row(self, paper: Paper, meta: None) -> None:
                gate.asked.append(paper.code)
                gate.threads.add(threading.current_thread())
                if paper.desk == "gate":
                    gate.reached.set()
                    if not gate.opened.wait(HANG_S):
                        raise RuntimeError("the loop stood still")
                if paper.desk == "bad":
                    raise RowInvalid("no such desk", field="desk")

            @step
            async def work(self, paper: Paper, ctx: Context) -> None:
                gate.ran.append(paper.code)
                if paper.desk == "broken":
                    raise OSError("down")

        self.kind = Kind

    async def is_reached(self) -> None:
        """Wait until a validator is blocked."""
        assert await asyncio.to_thread(self.reached.wait, HANG_S)

    async def open(self) -> None:
        """Once a validator is blocked, see that the loop still runs, and let it go."""
        await self.is_reached()
        await a_moment()
        self.opened.set()

    async def beside(self, work: Awaitable[Any]) -> Any:
        """Do this while the gate is being opened."""
        found, _ = await asyncio.gather(work, self.open())
        assert threading.main_thread() not in self.threads
        return found


async def killed(gate: Gate, e: Engine) -> None:
    """Work until a validator is blocked, kill the worker there, and start another."""
    working = asyncio.create_task(e.work_until_idle())
    await gate.is_reached()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await e.crash()
    gate.reached.clear()


def gated(count: int, *at: int) -> list[dict[str, str]]:
    rows = papers(count)
    for row in at:
        rows[row - 1]["desk"] = "gate"
    return rows


# Where rows are judged


async def test_the_loop_goes_on_while_a_validator_blocks_the_reading(database_url: str, tmp_path: Path):
    gate = Gate()
    async with engine([gate.kind], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        done = await gate.beside(e.run(gate.kind, gated(9, 3)))
        assert (done.status, done.successful_rows) == (DONE, 9)
        assert await clean(e) == []
    assert gate.asked == [row["code"] for row in papers(9)]


async def test_the_loop_goes_on_while_a_validator_blocks_a_chunk_that_was_left_to_another_worker(
    database_url: str, tmp_path: Path
):
    gate = Gate()
    rows = papers(30)
    async with two_engines(gate.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        made = await reader.create(gate.kind, gated(30, 28))
        await read_for_others(reader)
        assert 28 in await left_rows(reader, made)
        await gate.beside(other.work_until_idle())
        assert (await other.operations.get(made.id)).status == DONE
        assert await clean(other) == []
    assert sorted(gate.asked) == sorted(row["code"] for row in rows)


async def test_the_loop_goes_on_while_a_validator_blocks_for_rows_that_are_read_again(
    database_url: str, tmp_path: Path
):
    """A worker died over a chunk that was left to it: whoever is next reads it again, and judges what is left."""
    gate = Gate()
    async with two_engines(gate.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        made = await reader.create(gate.kind, gated(8, 6))
        await read_for_others(reader)
        await killed(gate, other)
        await gate.beside(other.work_until_idle())
        assert (await other.operations.get(made.id)).status == DONE
        assert await clean(other) == []


async def test_the_loop_goes_on_while_a_validator_blocks_for_an_edited_row(database_url: str, tmp_path: Path):
    gate = Gate()
    async with engine([gate.kind], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        rows = papers(3)
        rows[1]["desk"] = "broken"
        made = await e.run(gate.kind, rows)
        await gate.beside(e.operations.edit_row(made.id, 2, {"desk": "gate"}))
        gate.reached.clear()
        gate.opened.clear()
        await gate.beside(e.work_until_idle())
        assert await states(e, made) == [DONE] * 3
        assert await clean(e) == []
    assert gate.asked.count("p2") == 3


async def test_the_loop_goes_on_while_a_validator_blocks_a_dry_run(database_url: str, tmp_path: Path):
    gate = Gate()
    async with engine([gate.kind], url=database_url, tmp_path=tmp_path) as e:
        rows = gated(5, 2)
        rows[3]["desk"] = "bad"
        check = await gate.beside(e.operations.validate(gate.kind, file=json_lines(rows), file_name="a.jsonl"))
    assert (check.total_rows, [(error.row, str(error.faults[0])) for error in check.errors]) == (
        5,
        [(4, "desk: no such desk")],
    )


async def test_a_dry_run_that_is_given_up_does_not_wait_for_its_validator(database_url: str, tmp_path: Path):
    gate = Gate()
    async with engine([gate.kind], url=database_url, tmp_path=tmp_path) as e:
        checking = asyncio.create_task(
            e.operations.validate(gate.kind, file=json_lines(gated(5, 2)), file_name="a.jsonl")
        )
        await gate.is_reached()
        checking.cancel()
        await asyncio.gather(checking, return_exceptions=True)
        assert checking.cancelled()
        gate.opened.set()
        for thread in gate.threads:
            thread.join(HANG_S)
    assert gate.asked == ["p1", "p2"]


async def test_a_blocked_validator_does_not_look_like_a_stuck_loop(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gate, signs, alive = Gate(), [0], LoopWatch.loop_is_alive

    def loop_is_alive(watch: LoopWatch) -> None:
        alive(watch)
        if gate.reached.is_set():
            signs[0] += 1
            if signs[0] == 3:
                gate.opened.set()

    monkeypatch.setattr(LoopWatch, "loop_is_alive", loop_is_alive)
    settings = Settings(
        database_url=database_url, storage_url=str(tmp_path / "files"), stall_warning_s=0.04, lease_s=3600
    )
    async with Penstock.open(operations=[gate.kind], settings=settings) as penstock:
        made = await penstock.operations.create(gate.kind, file=json_lines(gated(5, 2)), file_name="a.jsonl")
        done = await penstock.run_until_done(made.id)
    assert (done.status, done.successful_rows, signs[0] >= 3) == (DONE, 5, True)


# What it is not asked any more


async def halted(gate: Gate, work: Coroutine[Any, Any, None], halt: Callable[[], Awaitable[None]]) -> None:
    """Halt while a validator is blocked, then let it go on."""
    working = asyncio.create_task(work)
    await gate.is_reached()
    await halt()
    gate.opened.set()
    await working


async def test_a_pause_is_heard_before_the_next_row_of_the_file_is_checked(database_url: str, tmp_path: Path):
    gate = Gate()
    async with engine([gate.kind], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(gate.kind, gated(9, 3))

        async def pause() -> None:
            await e.operations.pause(made.id)
            await e.worker.look_round()

        await halted(gate, e.work_until_idle(), pause)
        assert ((await e.operations.get(made.id)).status, gate.asked) == ("Paused", ["p1", "p2", "p3"])
        await e.operations.resume(made.id)
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == DONE


@pytest.mark.covers("I-14")
async def test_no_row_of_the_file_is_checked_once_the_lease_is_over(database_url: str, tmp_path: Path):
    gate = Gate()
    async with engine([gate.kind], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(gate.kind, gated(9, 3))
        asked: list[str] = []

        def note(point: str) -> None:
            if point == "give_back_reading:before":
                asked.extend(gate.asked)

        async def lapse() -> None:
            e.clock.advance(e.penstock.settings.lease_s - 1)

        with failpoints.armed(note):
            await halted(gate, e.work_until_idle(), lapse)
        assert asked == ["p1", "p2", "p3"]
        assert (await e.operations.get(made.id)).status == DONE
        assert await clean(e) == []


@pytest.mark.covers("I-14")
@pytest.mark.parametrize("deaths", [0, 1], ids=["as it is read", "when it is read again"])
async def test_no_row_of_a_chunk_that_was_left_is_checked_once_the_lease_is_over(
    database_url: str, tmp_path: Path, deaths: int
):
    gate, asked = Gate(), list[str]()

    def note(point: str) -> None:
        if point == "give_back:before":
            asked.extend(gate.asked)

    async with two_engines(gate.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        made = await reader.create(gate.kind, gated(8, 6))
        await read_for_others(reader)
        for _ in range(deaths):
            await killed(gate, other)
        gate.asked.clear()

        async def lapse() -> None:
            other.clock.advance(other.penstock.settings.lease_s - 1)

        with failpoints.armed(note):
            await halted(gate, other.work_until_idle(), lapse)
        assert asked == ["p5", "p6"]
        assert sorted(gate.asked) == ["p5", "p6", "p7", "p8"], "what was judged in time counts"
        assert (await other.operations.get(made.id)).status == DONE
        assert await clean(other) == []


async def test_a_validator_that_outlives_its_worker_is_asked_about_no_other_row(database_url: str, tmp_path: Path):
    gate = Gate()
    async with engine([gate.kind], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(gate.kind, gated(9, 3))
        working = asyncio.create_task(e.work_until_idle())
        await gate.is_reached()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await e.worker.vanish()
        gate.opened.set()
        for thread in gate.threads:
            thread.join(HANG_S)
        assert gate.asked == ["p1", "p2", "p3"]
        await e.crash()
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == DONE


# What it may raise and give


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot say")


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("is_left", [False, True], ids=["by the reader", "by another worker"])
@pytest.mark.parametrize(
    "error",
    [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, StopIteration, MemoryError, Mute],
    ids=lambda error: error.__name__,
)
async def test_whatever_a_validator_raises_is_its_rows_alone(
    database_url: str, tmp_path: Path, error: type[BaseException], is_left: bool, is_async: bool
):
    def plain(paper: Paper, meta: None) -> None:
        if paper.desk == "wild":
            raise error("out")

    async def awaited(paper: Paper, meta: None) -> None:
        plain(paper, meta)

    @operation("wild", validators=[awaited if is_async else plain])
    async def wild(paper: Paper, ctx: Context) -> None: ...

    rows = papers(8)
    rows[6]["desk"] = "wild"
    async with two_engines(wild, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        made = await reader.create(wild, rows)
        if is_left:
            await read_for_others(reader)
            assert 7 in await left_rows(reader, made)
        async with asyncio.timeout(HANG_S):
            await other.work_until_idle()
        done = await other.operations.get(made.id)
        (record,) = await records_of(other.penstock.db, made.id)
        assert (done.status, done.successful_rows, done.invalid_rows) == ("CompletedWithErrors", 7, 0)
        assert (record.row, record.step, record.error_type) == (7, -1, "Processing")
        name = "RuntimeError" if is_async and error is StopIteration else error.__name__
        assert name in record.message
        assert await clean(other) == []


async def test_a_plain_validator_may_give_a_coroutine_and_the_next_one_waits_for_it(database_url: str, tmp_path: Path):
    asked: list[tuple[str, str, bool]] = []

    def note(name: str, paper: Paper) -> None:
        asked.append((name, paper.code, threading.current_thread() is threading.main_thread()))

    def gives(paper: Paper, meta: None) -> Awaitable[None]:
        async def later() -> None:
            note("gives", paper)
            await asyncio.sleep(0)
            if paper.code == "p2":
                raise ValueError("no twos")

        return later()

    def then(paper: Paper, meta: None) -> None:
        note("then", paper)

    @operation("mixed", validators=[gives, then])
    async def mixed(paper: Paper, ctx: Context) -> None: ...

    async with engine([mixed], url=database_url, tmp_path=tmp_path) as e:
        made = await e.run(mixed, papers(3))
        assert await states(e, made) == [DONE, "Invalid", DONE]
    assert [[name for name, code, _ in asked if code == f"p{n}"] for n in (1, 2, 3)] == [
        ["gives", "then"],
        ["gives"],
        ["gives", "then"],
    ]
    assert {(name, on_loop) for name, _, on_loop in asked} == {("gives", True), ("then", False)}


async def test_plain_validators_check_many_rows_at_each_visit_to_a_thread(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gate, visits, run = Gate(is_closed=False), list[Any](), StepThreads.run

    async def counted(threads: StepThreads, *given: Any) -> Any:
        visits.append(given)
        return await run(threads, *given)

    monkeypatch.setattr(StepThreads, "run", counted)
    async with engine([gate.kind], url=database_url, tmp_path=tmp_path) as e:
        assert (await e.run(gate.kind, papers(1000))).successful_rows == 1000
    assert 0 < len(visits) < 10


class Turns:
    """Counts how many rows a task looks at before the loop goes round; a hundred take it longer than a slice."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.looked: Counter[asyncio.Task[Any] | None] = Counter()
        self.most = 0

    def look(self) -> None:
        task = asyncio.current_task()
        self.looked[task] += 1
        self.most = max(self.most, self.looked[task])
        self.clock.advance(0.0003)

    async def count(self) -> None:
        while True:
            self.looked.clear()
            await asyncio.sleep(0)


async def accept(row: Any, meta: None) -> None: ...


@pytest.mark.parametrize("manner", ["thread", "batch"])
@pytest.mark.parametrize("validators", [(), (accept,)], ids=["alone", "and a validator"])
async def test_the_loop_goes_on_between_rows_whose_model_takes_long(
    database_url: str, tmp_path: Path, validators: tuple[Any, ...], manner: str
):
    turns = Turns()

    class Slow(BaseModel):
        code: str

        @field_validator("code")
        @classmethod
        def look(cls, code: str) -> str:
            turns.look()
            return code

    def one(self: Any, row: Slow, ctx: Context) -> None: ...

    async def many(self: Any, rows: list[Slow], ctx: BatchContext) -> None: ...

    @operation("slow", row_key="code", validators=validators)
    class Kind(Pipeline[Slow]):
        work = {"thread": step(one), "batch": step.batch(size=1000)(many)}[manner]

    async with engine([Kind], url=database_url, tmp_path=tmp_path, clock=turns.clock) as e:
        counting = asyncio.create_task(turns.count())
        done = await e.run(Kind, [{"code": f"c{n}"} for n in range(2000)])
        counting.cancel()
        assert done.successful_rows == 2000
    assert 0 < turns.most <= 100
