"""Polled steps: the body starts the work once, then the check is asked until it says so or the time is up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from approvals import Paper, Wall, at_wall, clean, history, papers, states
from stored import records_of, rows_of

from penstock import Context, Done, Pipeline, RetryLater, StepFailed, operation, step
from penstock.clock import ManualClock
from penstock.operations.chunk import owned
from penstock.operations.model import Operation
from penstock.settings import Settings
from penstock.testing import engine

EVERY_S, TIMEOUT_S = 2, 20
JITTER = 1.2


class Remote:
    """The other side: answers a check with the next of its answers, the last one for ever; times are kept."""

    def __init__(self, clock: ManualClock, *answers: Any) -> None:
        self.clock, self.answers = clock, list(answers)
        self.start = clock.now_us()
        self.bodies: list[float] = []
        self.checks: list[float] = []

    def now_s(self) -> float:
        return (self.clock.now_us() - self.start) / 1e6

    def answer(self) -> Any:
        self.checks.append(self.now_s())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def polled(remote: Remote, body: Callable[[Context], Any] = lambda ctx: None, *, retries: int = 0) -> type:
    @operation("push")
    class Push(Pipeline[Paper]):
        @step.poll(every=EVERY_S, timeout=TIMEOUT_S, retries=retries, backoff=3)
        async def push(self, paper: Paper, ctx: Context) -> Any:
            remote.bodies.append(remote.now_s())
            return body(ctx)

        @push.check
        async def is_pushed(self, paper: Paper, ctx: Context) -> Any:
            return remote.answer()

        @step
        async def tell(self, paper: Paper, ctx: Context) -> Any:
            return ctx.outputs.get("push")

    return Push


def gaps(times: Sequence[float]) -> list[float]:
    return [round(after - before, 6) for before, after in pairwise(times)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def run(kind: type, clock: ManualClock, folder: Path, rows: int = 1) -> tuple[Operation, list[Any], list[Any]]:
    async with engine([kind], tmp_path=folder, clock=clock) as e:
        done = await e.run(kind, papers(rows))
        assert await clean(e) == []
        return done, await rows_of(e.penstock.db, done.id), await history(e, done)


@pytest.mark.covers("SM-057", "SM-031", "SM-032")
async def test_the_body_runs_once_and_the_check_is_asked_at_once_and_then_after_the_interval(clock, tmp_path):
    remote = Remote(clock, False, False, False, True)
    done, (row,), _ = await run(polled(remote), clock, tmp_path)
    assert done.status == "Completed"
    assert row.states == ["Completed", "Completed"]
    assert row.attempts == [1, 1]
    assert (remote.bodies, remote.checks[0], len(remote.checks)) == ([0], 0, 4)
    assert all(EVERY_S <= gap <= EVERY_S * JITTER for gap in gaps(remote.checks))


async def test_the_interval_is_spread_so_that_rows_do_not_stay_in_step(clock, tmp_path):
    remote = Remote(clock, False)
    await run(polled(remote), clock, tmp_path)
    assert len(set(gaps(remote.checks)[:-1])) > 3


async def test_a_row_that_is_done_at_the_first_check_never_waits_for_the_interval(clock, tmp_path):
    remote = Remote(clock, True)
    done, _, _ = await run(polled(remote), clock, tmp_path)
    assert (done.status, remote.checks, remote.now_s()) == ("Completed", [0], 0)


async def test_what_a_check_gives_with_done_is_the_output_of_the_step(clock, tmp_path):
    remote = Remote(clock, False, Done({"profile": 7}))
    _, (row,), _ = await run(polled(remote), clock, tmp_path)
    assert row.outputs == [{"profile": 7}, {"profile": 7}]


async def test_a_body_that_returns_done_leaves_nothing_to_wait_for(clock, tmp_path):
    remote = Remote(clock, False)
    done, (row,), _ = await run(polled(remote, lambda ctx: Done("was there")), clock, tmp_path)
    assert (done.status, remote.checks) == ("Completed", [])
    assert row.outputs == ["was there", "was there"]


@pytest.mark.covers("SM-033")
async def test_a_check_that_raises_step_failed_fails_the_row_for_good(clock, tmp_path):
    remote = Remote(clock, False, StepFailed("the device is gone"))
    done, (row,), past = await run(polled(remote, retries=3), clock, tmp_path)
    assert (done.status, row.states) == ("CompletedWithErrors", ["Failed"])
    assert (len(remote.bodies), len(remote.checks), past) == (1, 2, [])


@pytest.mark.parametrize("answer", [ConnectionError("the line is down"), "maybe"])
async def test_a_check_that_cannot_tell_is_recorded_and_asked_again(clock, tmp_path, answer):
    remote = Remote(clock, answer, True)
    done, (row,), past = await run(polled(remote), clock, tmp_path)
    assert (done.status, row.states) == ("Completed", ["Completed", "Completed"])
    assert [(line.event, line.error_type) for line in past] == [("check_raised", "StepFailure")]
    assert all(("the line is down" in line.message) or ("'maybe'" in line.message) for line in past)
    assert all(EVERY_S <= gap <= EVERY_S * JITTER for gap in gaps(remote.checks))


def down(port: int) -> ConnectionError:
    return ConnectionError(f"no answer from port {port}")


async def test_checks_that_raise_the_same_leave_one_line_and_their_number_when_the_wait_ends(clock, tmp_path):
    remote = Remote(clock, *map(down, range(6)), False, down(7), True)
    done, _, past = await run(polled(remote), clock, tmp_path)
    assert done.status == "Completed"
    assert [(line.event, line.message) for line in past] == [
        ("check_raised", "ConnectionError: no answer from port 0"),
        ("check_raised", "7 checks raised; the last: ConnectionError: no answer from port 7"),
    ]
    assert past[0].at < past[1].at


async def test_a_check_that_raises_something_else_gets_a_line_of_its_own(clock, tmp_path):
    remote = Remote(clock, down(1), down(2), TypeError("no such field"), down(3), StepFailed("the device is gone"))
    done, _, past = await run(polled(remote), clock, tmp_path)
    assert done.failed_rows == 1
    assert [line.message for line in past] == [
        "ConnectionError: no answer from port 1",
        "TypeError: no such field",
        "ConnectionError: no answer from port 3",
        "4 checks raised; the last: ConnectionError: no answer from port 3",
    ]


async def test_errors_that_take_turns_leave_no_line_for_each_check(clock, tmp_path, monkeypatch):
    monkeypatch.setattr(owned, "CHECKS_NOTED_MAX", 3)
    remote = Remote(clock, *[down(1), TypeError("no such field")] * 4, True)
    _, _, past = await run(polled(remote), clock, tmp_path)
    assert len(past) == 4
    assert past[-1].message == "8 checks raised; the last: TypeError: no such field"


async def test_the_record_of_a_wait_tells_what_its_last_check_raised_and_no_error_when_it_ended_well(clock, tmp_path):
    remote = Remote(clock, down(1), down(2), False, True)
    async with engine([kind := polled(remote)], tmp_path=tmp_path, clock=clock) as e:
        made = await e.create(kind, papers(1))
        await e.work_until_idle()
        for _ in range(2):
            await e.skip_wait(made)
            await e.work_until_idle()
        waiting = (await e.operations.row(made.id, 1)).steps[-1]
        assert (waiting.state, waiting.error_type) == ("WaitingForCompletion", "StepFailure")
        assert waiting.message == "ConnectionError: no answer from port 2"
        assert (await e.operations.errors(made.id)).items == []
        await e.skip_wait(made)
        await e.work_until_idle()
        step = next(s for s in (await e.operations.row(made.id, 1)).steps if s.name == "push")
        assert (step.state, step.error_type, step.message) == ("Completed", None, None)
        assert await clean(e) == []


@pytest.mark.parametrize("how", ["restart", "crash"])
async def test_the_next_owner_goes_on_counting_the_checks_that_raised(clock, database_url, tmp_path, how):
    remote = Remote(clock, *map(down, range(4)), True)
    async with engine([kind := polled(remote)], url=database_url, tmp_path=tmp_path, clock=clock) as e:
        made = await e.create(kind, papers(1))
        await e.work_until_idle()
        await getattr(e, how)()
        await e.work_until_idle()
        while not (done := await e.operations.get(made.id)).is_settled:
            await e.skip_wait(done)
            await e.work_until_idle()
        assert [line.message for line in await history(e, made)] == [
            "ConnectionError: no answer from port 0",
            "4 checks raised; the last: ConnectionError: no answer from port 3",
        ]


async def test_a_wait_that_is_cancelled_tells_how_many_of_its_checks_raised(clock, tmp_path):
    remote = Remote(clock, *map(down, range(9)))
    async with engine([kind := polled(remote)], tmp_path=tmp_path, clock=clock) as e:
        made = await e.create(kind, papers(1))
        await e.work_until_idle()
        await e.skip_wait(made)
        await e.work_until_idle()
        await e.operations.cancel(made.id)
        lines = [line.message for line in await history(e, made)]
        assert lines[1:] == ["2 checks raised; the last: ConnectionError: no answer from port 1"]
        assert await clean(e) == []


@pytest.mark.covers("SM-058", "SM-034", "SM-030")
async def test_a_row_is_timed_out_when_its_time_since_parking_is_over_after_one_last_check(clock, tmp_path):
    remote = Remote(clock, False)
    async with engine([kind := polled(remote)], tmp_path=tmp_path, clock=clock) as e:
        done = await e.run(kind, papers(1))
        (record,) = await records_of(e.penstock.db, done.id)
        assert await clean(e) == []
    assert remote.checks[-1] == TIMEOUT_S
    assert len(remote.checks) == len(set(remote.checks))
    assert (record.state, record.error_type) == ("TimedOut", "Timeout")
    assert (done.status, done.timed_out_rows, done.failed_rows) == ("CompletedWithErrors", 1, 1)


async def test_the_last_check_at_the_deadline_may_still_succeed(clock, tmp_path):
    @operation("late")
    class Late(Pipeline[Paper]):
        @step.poll(every=30, timeout=20)
        async def push(self, paper: Paper, ctx: Context) -> None: ...

        @push.check
        def is_pushed(self, paper: Paper, ctx: Context) -> bool:
            return clock.now_us() - start >= 20_000_000

    start = clock.now_us()
    done, (row,), _ = await run(Late, clock, tmp_path)
    assert (done.status, row.states) == ("Completed", ["Completed"])


async def test_the_time_counts_from_parking_not_from_the_first_attempt_of_the_body(clock, tmp_path):
    def shaky(ctx: Context) -> None:
        if ctx.attempt < 3:
            raise RetryLater("not open yet", after=15)

    remote = Remote(clock, False)
    done, _, _ = await run(polled(remote, shaky), clock, tmp_path)
    assert remote.bodies == [0, 15, 30]
    assert (done.timed_out_rows, remote.checks[0], remote.checks[-1]) == (1, 30, 30 + TIMEOUT_S)


async def test_a_body_that_raises_is_tried_again_before_anything_is_asked(clock, tmp_path):
    def shaky(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("refused")

    remote = Remote(clock, True)
    done, (row,), past = await run(polled(remote, shaky, retries=1), clock, tmp_path)
    assert (done.status, row.attempts) == ("Completed", [2, 1])
    assert [line.event for line in past] == ["postponed"]
    assert (len(remote.bodies), len(remote.checks)) == (2, 1)


async def test_a_body_that_uses_up_its_retries_fails_without_a_wait(clock, tmp_path):
    def broken(ctx: Context) -> None:
        raise ConnectionError("refused")

    remote = Remote(clock, True)
    done, (row,), _ = await run(polled(remote, broken, retries=1), clock, tmp_path)
    assert (done.failed_rows, row.states, row.attempts, remote.checks) == (1, ["Failed"], [2], [])


async def test_body_and_check_may_be_plain_functions(clock, tmp_path):
    asked: list[int] = []

    @operation("plain")
    class Plain(Pipeline[Paper]):
        @step.poll(every=1, timeout=10)
        def push(self, paper: Paper, ctx: Context) -> None: ...

        @push.check
        def is_pushed(self, paper: Paper, ctx: Context) -> bool:
            asked.append(ctx.row_number)
            return len(asked) > 3

    done, rows, _ = await run(Plain, clock, tmp_path, rows=3)
    assert (done.successful_rows, sorted(asked[:3])) == (3, [1, 2, 3])
    assert all(row.attempts == [1] for row in rows)


@pytest.mark.parametrize("how", ["restart", "crash"])
@pytest.mark.covers("I-24", "SG-022")
async def test_due_time_and_deadline_survive_the_worker_and_do_not_move(clock, tmp_path, how):
    remote = Remote(clock, False)
    async with engine([kind := polled(remote)], tmp_path=tmp_path, clock=clock) as e:
        made = await e.create(kind, papers(1))
        await e.work_until_idle()
        (before,) = await records_of(e.penstock.db, made.id)
        await getattr(e, how)()
        await e.work_until_idle()
        (after,) = await records_of(e.penstock.db, made.id)
        assert after.deadline == before.deadline
        if how == "restart":
            assert after.due_at == before.due_at
        while not (done := await e.operations.get(made.id)).is_settled:
            await e.skip_wait(done)
            await e.work_until_idle()
        assert await clean(e) == []
    assert len(remote.bodies) == 1
    assert remote.checks[-1] == TIMEOUT_S
    assert done.timed_out_rows == 1


@pytest.mark.covers("I-24")
async def test_a_waiting_row_holds_neither_chunk_nor_turn_and_shows_when_it_is_due(clock, tmp_path):
    remote = Remote(clock, False)
    async with engine([kind := polled(remote)], tmp_path=tmp_path, clock=clock) as e:
        made = await e.create(kind, papers(3))
        await e.work_until_idle()
        assert not e.worker.is_busy
        now = await e.operations.get(made.id)
        view = await e.operations.row(made.id, 2)
        assert (now.status, now.waiting_rows, now.processed_rows) == ("Running", 3, 0)
        assert (view.state, view.step_name) == ("WaitingForCompletion", "push")
        assert view.steps[-1].due_at is not None
        assert view.steps[-1].deadline is not None
        assert view.steps[-1].due_at < view.steps[-1].deadline


async def test_a_check_lost_with_its_worker_is_asked_again_and_the_body_is_not(clock, tmp_path):
    wall, bodies = Wall(), []

    @operation("stuck")
    class Stuck(Pipeline[Paper]):
        @step.poll(every=EVERY_S, timeout=TIMEOUT_S)
        async def push(self, paper: Paper, ctx: Context) -> None:
            bodies.append(ctx.row_number)

        @push.check
        async def is_pushed(self, paper: Paper, ctx: Context) -> bool:
            await wall.stop()
            return True

    async with engine([Stuck], tmp_path=tmp_path, clock=clock) as e:
        made = await e.create(Stuck, papers(1))
        await at_wall(wall, e.work_until_idle())
        await e.crash()
        wall.gone.set()
        await e.work_until_idle()
        done = await e.operations.get(made.id)
        past = await history(e, made)
        assert await clean(e) == []
    assert (done.status, bodies) == ("Completed", [1])
    assert [line.event for line in past] == ["owner_lost"]


@pytest.mark.covers("SM-084")
async def test_rows_wait_side_by_side_each_on_its_own_clock(clock, tmp_path):
    remote = Remote(clock, False)
    small = Settings(chunk_rows=2)
    async with engine([kind := polled(remote)], tmp_path=tmp_path, clock=clock, settings=small) as e:
        done = await e.run(kind, papers(5))
        assert await states(e, done) == ["TimedOut"] * 5
        assert await clean(e) == []
    assert done.timed_out_rows == 5
