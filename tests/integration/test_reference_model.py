"""Random operations come out as the reference model says: every verdict, counter, attempt and output."""

from __future__ import annotations

import asyncio
import os
import types
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as profile
from patience import HANG_S
from pydantic import BaseModel
from reference_model import ALWAYS, SKIP, Interruption, Row, Scenario, Step, counters, difference, output_of, scenarios

from penstock import BatchContext, Context, Pipeline, operation, step
from penstock.operations.model import Operation, RowView
from penstock.settings import Settings
from penstock.testing import Engine, engine

EXAMPLES = int(os.environ.get("PENSTOCK_TEST_EXAMPLES", "40"))
IS_QUICK = EXAMPLES <= 40  # the same examples every time, and no minutes of shrinking when one fails

bounded = profile(
    max_examples=EXAMPLES,
    derandomize=IS_QUICK,
    phases=[phase for phase in Phase if not IS_QUICK or phase is not Phase.shrink],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
names = (f"reference-{number}" for number in count())


class Item(BaseModel):
    id: int


class Puppeteer:
    """Makes the steps of a scenario do what it says, and ends the worker at the calls it names."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.failed: Counter[tuple[int, int]] = Counter()
        self.completed: Counter[tuple[int, int]] = Counter()
        self.begun: set[tuple[int, int]] = set()
        self.calls = 0
        self.ends = list(scenario.interruptions)
        self.end_is_due = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def fails(self, row: int, index: int) -> bool:
        """Whether this attempt of a row's step fails."""
        errors = self.scenario.rows[row - 1].errors[index]
        if self.failed[row, index] < errors:
            self.failed[row, index] += 1
            return True
        self.completed[row, index] += 1
        return False

    def called(self) -> bool:
        """Count a call of user code; True when the worker must not come out of it."""
        self.calls += 1
        if not self.ends or self.calls < self.ends[0].call:
            return False
        self.loop.call_soon_threadsafe(self.end, self.ends[0])
        return self.ends[0].is_inside

    def end(self, due: Interruption) -> None:
        """The worker is to be ended, unless it was before somebody heard of this."""
        if self.ends and self.ends[0] is due:
            self.end_is_due.set()

    def next_end(self) -> Interruption:
        self.end_is_due.clear()
        return self.ends.pop(0)

    async def enter(self, index: int, *rows: Item) -> None:
        self.begun.update((row.id, index) for row in rows)
        if self.called():
            await asyncio.Event().wait()


def pipeline(puppeteer: Puppeteer) -> type[Pipeline[Item]]:
    """The operation of a scenario."""
    scenario = puppeteer.scenario

    def validate_row(self: Any, row: Item, meta: None) -> None:
        if scenario.rows[row.id - 1].kind == "broken":
            raise OSError("the directory is away")

    members: dict[str, Any] = {"validate_row": validate_row}
    for index, spec in enumerate(scenario.steps):
        made = _options(spec)(_body(puppeteer, index, spec))
        members[f"step_{index}"] = made
        members[f"when_{index}"] = made.when(_condition(scenario, index))
    made_class = types.new_class("Made", (Pipeline[Item],), exec_body=lambda namespace: namespace.update(members))
    settings = {
        "allow_empty": True,
        "max_row_concurrency": scenario.max_row_concurrency,
        "track_row_data": scenario.track_row_data,
    }
    return operation(next(names), **settings)(made_class)  # type: ignore[arg-type]


def _options(spec: Step) -> Callable[[Any], Any]:
    delivery = "at_most_once" if spec.is_at_most_once else "at_least_once"
    shared: dict[str, Any] = {"retries": spec.retries, "delivery": delivery, "barrier": spec.is_barrier, "backoff": 1}
    return step.batch(size=spec.size, **shared) if spec.manner == "batch" else step(**shared)


def _condition(scenario: Scenario, index: int) -> Callable[..., bool]:
    def when(self: Any, row: Item, ctx: Context) -> bool:
        return scenario.rows[row.id - 1].errors[index] != SKIP

    when.__name__ = f"when_{index}"
    return when


def _body(puppeteer: Puppeteer, index: int, spec: Step) -> Callable[..., Any]:
    async def awaited(self: Any, row: Item, ctx: Context) -> int:
        await puppeteer.enter(index, row)
        if puppeteer.fails(row.id, index):
            raise OSError(f"row {row.id}")
        return output_of(row.id, index)

    def threaded(self: Any, row: Item, ctx: Context) -> int:
        puppeteer.begun.add((row.id, index))
        puppeteer.called()
        if puppeteer.fails(row.id, index):
            raise OSError(f"row {row.id}")
        return output_of(row.id, index)

    async def batched(self: Any, rows: list[Item], ctx: BatchContext) -> list[int | Exception]:
        await puppeteer.enter(index, *rows)
        answers = [OSError("row") if puppeteer.fails(row.id, index) else output_of(row.id, index) for row in rows]
        if spec.raises and any(isinstance(answer, OSError) for answer in answers):
            raise OSError("batch")
        return answers

    return {"async": awaited, "sync": threaded, "batch": batched}[spec.manner]


async def drive(e: Engine, made: Operation, puppeteer: Puppeteer) -> Operation:
    """Work until the operation is settled, ending the worker wherever the scenario says."""
    while True:
        work = asyncio.create_task(e.work_until_idle())
        due = asyncio.create_task(puppeteer.end_is_due.wait())
        await asyncio.wait({work, due}, timeout=HANG_S, return_when=asyncio.FIRST_COMPLETED)
        for task in (work, due):
            task.cancel()
        worked, _ = await asyncio.gather(work, due, return_exceptions=True)
        if puppeteer.end_is_due.is_set():
            await (e.crash() if puppeteer.next_end().kills else e.restart())
            continue
        if worked is not None:
            raise AssertionError("the worker did not come to rest") from worked
        now = await e.operations.get(made.id)
        if now.is_settled:
            return now
        await e.skip_wait(now)


async def check(scenario: Scenario, url: str, folder: Path) -> None:
    puppeteer = Puppeteer(scenario)
    declared = pipeline(puppeteer)
    sizes = Settings(chunk_rows=scenario.chunk_rows, flush_rows=scenario.flush_rows, shutdown_s=0)
    file = [{"id": "bad" if row.kind == "invalid" else number} for number, row in enumerate(scenario.rows, start=1)]
    async with engine([declared], url=url, tmp_path=folder, settings=sizes) as e:
        done = await drive(e, await e.create(declared, file), puppeteer)
        views = (await e.operations.rows(done.id, limit=1000)).items
        report = await e.operations.verify(done.id)
    assert [view.number for view in views] == list(range(1, len(scenario.rows) + 1))
    assert [wrong for view in views if (wrong := difference(scenario, view))] == []
    wanted = counters([view.state for view in views])
    assert {name: getattr(done, name) for name in wanted} == wanted
    assert report.is_clean, report.differences
    check_effects(scenario, views, puppeteer)


def check_effects(scenario: Scenario, views: Sequence[RowView], puppeteer: Puppeteer) -> None:
    """What happened outside: nothing twice that may happen once, and no doubt about a call that was never made."""
    ends = puppeteer.completed + puppeteer.failed
    once = {index for index, spec in enumerate(scenario.steps) if spec.is_at_most_once}
    assert [place for place, times in ends.items() if times > 1 and place[1] in once] == []
    if not any(end.kills for end in scenario.interruptions):
        in_doubt = {(view.number, s.index) for view in views for s in view.steps if s.error_type == "InDoubt"}
        assert in_doubt <= puppeteer.begun


@pytest.mark.covers("I-01", "I-02", "I-03", "I-04", "I-05", "I-06", "I-43", "SM-001", "SM-053", "SM-086")
@bounded
@given(scenario=scenarios())
async def test_an_operation_comes_out_as_the_model_says(scenario: Scenario, database_url: str, tmp_path: Path):
    await check(scenario, database_url, tmp_path)


PLAIN, ONCE = Step("async"), Step("async", is_at_most_once=True)
OK = Row("valid", (0, 0))
STOP, CUT_OFF, KILL = Interruption(1, False, False), Interruption(1, False, True), Interruption(8, True, True)


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario((PLAIN, PLAIN), (), 1, 1, 1, True, ()),
        Scenario((PLAIN, PLAIN), (Row("invalid", (0, 0)), Row("broken", (0, 0))), 1, 1, 1, True, ()),
        Scenario((PLAIN, ONCE), (OK,) * 6, 3, 2, 2, True, (KILL,)),
        Scenario((ONCE, PLAIN), (OK,), 1, 1, 1, True, (STOP,)),
        Scenario((PLAIN, ONCE), (OK,), 1, 1, 1, True, (STOP,)),
        Scenario((PLAIN, ONCE), (OK,) * 3, 3, 3, 1, True, (CUT_OFF,)),
        Scenario((Step("batch", size=5, raises=True), PLAIN), (OK, Row("valid", (ALWAYS, 0)), OK), 3, 3, 1, False, ()),
    ],
    ids=["empty", "nothing valid", "killed", "stopped behind once", "stopped before once", "cut off", "one guilty row"],
)
async def test_the_corners_come_out_as_the_model_says(scenario: Scenario, database_url: str, tmp_path: Path):
    await check(scenario, database_url, tmp_path)
