"""What lets calls through: so many at once, so many a second, as far as our units go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from timers import Timers, most_within_a_second, turn

from penstock.clock import ManualClock
from penstock.operations.rows import gates
from penstock.operations.rows.gates import Gate, NoUnits, Pace


class Callers:
    """Tasks that pass through a gate and stay inside until they are told to leave."""

    def __init__(self, gate: Gate) -> None:
        self.gate, self.inside = gate, 0
        self.leave = asyncio.Semaphore(0)
        self.afterwards: list[Callable[[], object]] = []  # done by who leaves next, before anybody else does anything

    async def call(self) -> None:
        async with self.gate.entered():
            self.inside += 1
            await self.leave.acquire()
            self.inside -= 1
        while self.afterwards:
            self.afterwards.pop()()

    async def come(self, number: int) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.call()) for _ in range(number)]
        await turn()
        return tasks

    async def go(self, number: int) -> None:
        for _ in range(number):
            self.leave.release()
        await turn()


def gate_with(units: int) -> Gate:
    gate = Gate(10)
    gate.hold(units)
    return gate


async def test_a_gate_without_units_lets_nobody_wait():
    gate = Gate(3)
    with pytest.raises(NoUnits):
        async with gate.entered():
            pass
    callers = Callers(gate_with(1))
    first, *rest = await callers.come(3)
    callers.gate.hold(0)
    await turn()
    assert [task.done() for task in (first, *rest)] == [False, True, True]
    assert all(isinstance(task.exception(), NoUnits) for task in rest)
    assert callers.gate.in_use == 1, "one is still inside"
    await callers.go(1)
    assert (first.exception(), callers.gate.in_use) == (None, 0)


async def test_a_gate_that_was_lowered_lets_the_next_in_when_enough_have_left():
    callers = Callers(gate_with(3))
    tasks = await callers.come(6)
    callers.gate.hold(1)
    assert (callers.inside, callers.gate.in_use) == (3, 3)
    await callers.go(2)
    assert (callers.inside, callers.gate.in_use) == (1, 1)
    await callers.go(1)
    assert callers.inside == 1, "one more came in when the last one left"
    callers.gate.hold(2)
    await turn()
    assert callers.inside == 2
    await callers.go(6)
    assert all(task.done() and task.exception() is None for task in tasks)
    assert callers.gate.in_use == 2


async def test_whoever_was_let_in_when_the_units_went_does_not_begin():
    callers = Callers(gate_with(1))
    _, second = await callers.come(2)
    callers.afterwards.append(lambda: callers.gate.hold(0))  # the second has been let in and does not know it yet
    await callers.go(1)
    assert isinstance(second.exception(), NoUnits)
    assert callers.gate.in_use == 0


async def test_a_place_is_not_lost_when_whoever_was_let_in_is_cancelled():
    callers = Callers(gate_with(1))
    _, second, third = await callers.come(3)
    callers.afterwards.append(second.cancel)
    await callers.go(1)
    assert (second.cancelled(), callers.inside, callers.gate.in_use) == (True, 1, 1)
    await callers.go(1)
    assert third.exception() is None


# --- pace


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Timers]:
    made = Timers(ManualClock())
    monkeypatch.setattr(gates, "happens_within", made.happens_within)
    return made


class Runner:
    """Calls as often as its pace allows, and notes when."""

    def __init__(self, timers: Timers, starts: list[float], *, rate: float = 10) -> None:
        self.pace, self._timers, self._starts = Pace(rate, timers.clock.monotonic), timers, starts
        self.began = timers.clock.monotonic()
        self.task: asyncio.Task[None] | None = None

    def hold(self, units: int, *, rests: bool = False) -> None:
        self.pace.hold(units, rests=rests)
        if self.task is None:
            self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self.pace.wait()
            self._starts.append(self._timers.clock.monotonic() - self.began)


async def test_calls_are_spaced_evenly_and_a_pause_earns_no_burst():
    clock = ManualClock()
    pace = Pace(10, clock.monotonic)
    pace.hold(10, rests=False)
    waits = [await waited(pace) for _ in range(3)]
    assert waits == pytest.approx([0.1] * 3, abs=1e-5), "the first waits for one gap, too"
    clock.advance(60)
    assert [await waited(pace) for _ in range(3)] == pytest.approx([0, 0.1, 0.1], abs=1e-5)
    clock.advance(0.35)
    assert await waited(pace) == pytest.approx(0.0, abs=1e-5)


async def waited(pace: Pace) -> float:
    """How long the next call has to wait."""
    asked: list[float] = []

    async def happens_within(event: asyncio.Event, seconds: float) -> bool:
        asked.append(seconds)
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gates, "happens_within", happens_within)
        await pace.wait()
    return sum(asked)


async def test_a_call_that_begins_late_moves_those_behind_it(timers: Timers):
    pace = Pace(10, timers.clock.monotonic)
    pace.hold(10, rests=False)
    calls = [asyncio.create_task(pace.wait()) for _ in range(2)]
    await turn()
    timers.clock.advance(5)  # the loop was busy
    await timers.run(timers.clock.monotonic())
    assert [call.done() for call in calls] == [True, False]
    await timers.run(timers.clock.monotonic() + 0.099)
    assert not calls[1].done()
    await timers.run(timers.clock.monotonic() + 0.002)
    assert calls[1].done()


async def test_a_call_that_gets_ready_after_its_time_counts_from_then_and_needs_its_units_then(timers: Timers):
    pace, zero, ready = Pace(10, timers.clock.monotonic), timers.clock.monotonic(), asyncio.Event()
    pace.hold(10, rests=False)
    calls = [asyncio.create_task(pace.wait(ready.wait)) for _ in range(2)]
    await timers.run(zero + 5)
    ready.set()
    await timers.run(zero + 5.099)
    assert [call.done() for call in calls] == [True, False]
    ready.clear()
    await timers.run(zero + 5.101)
    pace.hold(1, rests=False)
    ready.set()
    await timers.run(zero + 5.999)
    assert not calls[1].done(), "one unit is good for a call a second"
    await timers.run(zero + 6.001)
    assert calls[1].done()
    ready.clear()
    late = asyncio.create_task(pace.wait(ready.wait))
    await timers.run(zero + 8)
    pace.hold(0, rests=False)
    ready.set()
    await turn()
    assert isinstance(late.exception(), NoUnits)


async def test_a_pace_without_units_lets_nobody_wait(timers: Timers):
    pace = Pace(1, timers.clock.monotonic)
    with pytest.raises(NoUnits):
        await pace.wait()
    pace.hold(1, rests=True)
    calls = [asyncio.create_task(pace.wait()) for _ in range(3)]
    await turn()
    pace.hold(0, rests=True)
    await turn()
    assert all(isinstance(call.exception(), NoUnits) for call in calls)


@pytest.mark.parametrize(
    "rate, units, gap_s", [(10, 10, 0.1), (10, 1, 1.0), (0.5, 1, 2.0), (2.5, 2, 0.4), (2.5, 1, 0.8)]
)
async def test_a_rate_has_a_unit_for_each_whole_call_a_second(rate: float, units: int, gap_s: float):
    pace = Pace(rate, ManualClock().monotonic)
    assert pace.limit == max(1, int(rate))
    pace.hold(units, rests=False)
    assert [await waited(pace) for _ in range(2)] == pytest.approx([gap_s, gap_s], abs=1e-5)


@pytest.mark.parametrize("at_s", [2.0, 2.03, 2.049, 2.07, 2.1, 2.151])
async def test_a_rate_is_not_exceeded_when_a_worker_joins_or_leaves(timers: Timers, at_s: float):
    """Units pass from one worker to another at any moment between two calls."""
    starts: list[float] = []
    one, other = Runner(timers, starts), Runner(timers, starts)
    zero = timers.clock.monotonic()
    one.hold(10)
    await timers.run(zero + at_s)
    one.hold(5)
    other.hold(5, rests=True)
    await timers.run(zero + 2 * at_s)
    shared = [start for start in starts if start > at_s + 1]
    one.hold(0)
    other.hold(10, rests=True)
    await timers.run(zero + 4 * at_s)
    assert most_within_a_second(starts) <= 10
    assert len(shared) >= 10 * (at_s - 1) - 3, "both work"
    late = [start for start in starts if start > 2 * at_s + 1]
    assert len(late) >= 10 * (2 * at_s - 1) - 2, "and then one alone"
    for runner in (one, other):
        assert runner.task is not None
        runner.task.cancel()
    await asyncio.gather(*(runner.task for runner in (one, other) if runner.task), return_exceptions=True)


async def test_units_that_rest_are_given_back_first(timers: Timers):
    starts: list[float] = []
    runner = Runner(timers, starts)
    zero = timers.clock.monotonic()
    runner.hold(2)
    await timers.run(zero + 3)
    runner.hold(10, rests=True)
    runner.hold(2, rests=True)
    before = len(starts)
    await timers.run(zero + 6)
    assert len(starts) - before in (5, 6, 7), "two a second, without a pause"
    assert runner.task is not None
    runner.task.cancel()
