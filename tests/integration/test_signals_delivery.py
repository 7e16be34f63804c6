"""Signals: stored first, then looked for; so early, late, repeated and crossing signals are all the same case."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from approvals import Calls, Paper, Wall, approvals, at_wall, clean, history, papers, signals_of, states, two_engines
from patience import HANG_S
from pydantic import BaseModel
from stored import records_of, rows_of

from penstock import Context, Done, Penstock, Pipeline, failpoints, operation, step
from penstock.errors import InvalidInput, NoSuchWait
from penstock.operations.model import Operation
from penstock.operations.running import mailroom, watch
from penstock.settings import Settings
from penstock.testing import Engine, engine, json_lines

SMALL = Settings(chunk_rows=2)
TIMEOUT_S = 60


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
async def e(database_url: str, tmp_path: Path, calls: Calls) -> AsyncIterator[Engine]:
    async with engine([approvals(calls)], url=database_url, tmp_path=tmp_path, settings=SMALL) as opened:
        yield opened
        assert await clean(opened) == []


async def parked(e: Engine, rows: int = 3) -> Operation:
    made = await e.create("approvals", papers(rows))
    await e.work_until_idle()
    return made


async def settled(e: Engine, made: Operation) -> Operation:
    """Wait out whatever still waits."""
    while not (now := await e.operations.get(made.id)).is_settled:
        await e.skip_wait(now)
        await e.work_until_idle()
    return now


@pytest.mark.covers("SG-001", "SG-002", "SG-017", "SG-018", "SG-020", "SM-032", "SM-059")
async def test_a_signal_ends_the_wait_of_its_row_and_of_no_other(e, calls):
    made = await parked(e)
    assert await states(e, made) == ["WaitingForCompletion"] * 3
    receipt = await e.penstock.signals.complete(made.id, "paper-p2", payload={"by": "ana"})
    assert (receipt.outcome, receipt.row, receipt.step) == ("delivered", 2, "approval")
    await e.work_until_idle()
    assert await states(e, made) == ["WaitingForCompletion", "Completed", "WaitingForCompletion"]
    assert calls["file", 2] == calls["approval", 2] == 1
    assert calls["file", 1] == 0


@pytest.mark.covers("SG-003", "SM-037", "SM-089")
async def test_a_failure_signal_fails_its_row_with_the_message_and_nothing_is_tried_again(database_url, tmp_path):
    calls = Calls()
    async with engine([approvals(calls, retries=3)], url=database_url, tmp_path=tmp_path) as e:
        made = await parked(e, 2)
        await e.penstock.signals.fail(made.id, "paper-p1", "not signed")
        await e.work_until_idle()
        (error,) = (await e.operations.errors(made.id)).items
        assert (error.row, error.error_type, error.message) == (1, "SignalFailure", "not signed")
        assert (await states(e, made), calls["approval", 1], calls["file", 1]) == (
            ["Failed", "WaitingForCompletion"], 1, 0,
        )  # fmt: skip
        assert await clean(e) == []


@pytest.mark.covers("SG-019", "SG-040", "I-20")
async def test_a_signal_that_comes_before_anything_has_begun_is_kept(e):
    made = await e.create("approvals", papers(2))
    receipt = await e.penstock.signals.complete(made.id, "paper-p2", payload="early")
    assert (receipt.outcome, receipt.row) == ("stored", None)
    assert [s.key for s in await e.penstock.signals.unclaimed(made.id)] == ["paper-p2"]
    await e.work_until_idle()
    assert await states(e, made) == ["WaitingForCompletion", "Completed"]
    assert await e.penstock.signals.unclaimed(made.id) == []


@pytest.mark.covers("SG-019", "I-20")
async def test_a_signal_that_comes_while_the_body_still_runs_is_kept(database_url, tmp_path):
    wall = Wall()

    @operation("call")
    class Call(Pipeline[Paper]):
        @step.signal(key="{row.code}", timeout=TIMEOUT_S)
        async def ask(self, paper: Paper, ctx: Context) -> None:
            await wall.stop()

    async with engine([Call], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Call, papers(1))
        await at_wall(wall, e.work_until_idle())
        assert (await e.penstock.signals.complete(made.id, "p1", payload=1)).outcome == "stored"
        wall.gone.set()
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
        assert (await rows_of(e.penstock.db, made.id))[0].outputs == [1]
        assert await clean(e) == []


@pytest.mark.covers("SG-014", "I-21")
async def test_a_repeat_with_the_same_id_answers_like_the_first_and_is_not_stored(e):
    made = await parked(e)
    first = await e.penstock.signals.complete(made.id, "paper-p1", id="hook-1")
    again = await e.penstock.signals.complete(made.id, "paper-p1", id="hook-1")
    await e.work_until_idle()
    late = await e.penstock.signals.complete(made.id, "paper-p1", id="hook-1")
    assert (first.outcome, again.outcome, late.outcome) == ("delivered", "duplicate", "duplicate")
    assert first.id == again.id == late.id
    assert (late.row, late.step) == (1, "approval")
    assert len(await signals_of(e, made)) == 1


@pytest.mark.covers("SG-014", "I-21")
async def test_a_repeat_with_the_same_id_answers_like_the_first_also_when_the_operation_is_over(e):
    made = await parked(e, 1)
    first = await e.penstock.signals.complete(made.id, "paper-p1", id="hook-1")
    await e.work_until_idle()
    assert (await e.operations.get(made.id)).status == "Completed"
    late = await e.penstock.signals.complete(made.id, "paper-p1", id="hook-1")
    assert (late.outcome, late.id, late.row) == ("duplicate", first.id, 1)


@pytest.mark.covers("SG-014", "I-21")
async def test_without_an_id_a_second_signal_is_kept_and_listed_and_changes_nothing(e):
    made = await parked(e, 2)
    await e.penstock.signals.complete(made.id, "paper-p1", payload="yes")
    await e.work_until_idle()
    second = await e.penstock.signals.fail(made.id, "paper-p1", "no")
    await e.work_until_idle()
    assert second.outcome == "stored"
    assert await states(e, made) == ["Completed", "WaitingForCompletion"]
    assert [(s.key, s.outcome, s.message) for s in await e.penstock.signals.unclaimed(made.id)] == [
        ("paper-p1", "failed", "no")
    ]


async def test_a_signal_that_a_waiting_row_is_about_to_take_is_not_listed_as_unclaimed(e):
    made = await parked(e, 2)
    taken = await e.penstock.signals.complete(made.id, "paper-p1")
    surplus = await e.penstock.signals.complete(made.id, "paper-p1")
    other_row = await e.penstock.signals.complete(made.id, "paper-p2", row=1)
    assert [r.outcome for r in (taken, surplus, other_row)] == ["delivered", "stored", "stored"]
    listed = await e.penstock.signals.unclaimed(made.id)
    assert [s.id for s in listed] == [surplus.id, other_row.id]
    assert [s.id for s in await e.penstock.signals.unclaimed(made.id, after=surplus.id)] == [other_row.id]
    assert [s.id for s in await e.penstock.signals.unclaimed(made.id, limit=1)] == [surplus.id]
    await e.work_until_idle()
    assert [s.id for s in await e.penstock.signals.unclaimed(made.id)] == [surplus.id, other_row.id]


async def test_waits_are_outstanding_until_a_signal_for_one_of_them_has_come(e):
    made = await parked(e, 2)
    assert await e.penstock.signals.are_all_outstanding(made.id)
    await e.penstock.signals.complete(made.id, "paper-p1")
    assert not await e.penstock.signals.are_all_outstanding(made.id)
    await e.work_until_idle()
    assert await e.penstock.signals.are_all_outstanding(made.id)


@pytest.mark.covers("I-21", "I-22")
async def test_of_two_signals_at_once_exactly_one_decides(e):
    made = await parked(e, 1)
    post = e.penstock.signals
    await asyncio.gather(*(post.complete(made.id, "paper-p1", payload=n) for n in range(8)))
    await e.work_until_idle()
    stored = await signals_of(e, made)
    assert [s.consumed_row for s in stored if s.consumed_at is not None] == [1]
    assert len(await post.unclaimed(made.id)) == 7


@pytest.mark.covers("I-21")
async def test_of_many_posts_with_one_id_one_is_stored(e):
    made = await parked(e, 1)
    post = e.penstock.signals
    receipts = await asyncio.gather(*(post.complete(made.id, "paper-p1", id="same") for _ in range(6)))
    assert len({r.id for r in receipts}) == 1
    assert sorted(r.outcome for r in receipts).count("duplicate") == 5
    assert len(await signals_of(e, made)) == 1


@pytest.mark.parametrize("key", ["PAPER-P1", "paper-p1 ", " paper-p1", "paper-p", "paper-p11", "paper-p1\u0301"])
@pytest.mark.covers("SG-012", "I-23", "I-44")
async def test_keys_match_exactly_and_by_the_byte(e, key):
    made = await parked(e, 1)
    try:
        receipt = await e.penstock.signals.complete(made.id, key)
    except NoSuchWait:
        receipt = None
    await e.work_until_idle()
    assert await states(e, made) == ["WaitingForCompletion"]
    assert receipt is None or receipt.outcome == "stored"


@pytest.mark.covers("SG-004", "SG-041")
async def test_a_key_that_fits_no_template_is_refused_and_says_what_keys_look_like(e):
    made = await parked(e)
    with pytest.raises(NoSuchWait, match=r"'invoice-7'; keys look like: 'paper-\{row.code\}'") as refused:
        await e.penstock.signals.complete(made.id, "invoice-7")
    assert not refused.value.is_over
    assert await signals_of(e, made) == []


@pytest.mark.covers("SG-041")
async def test_an_unknown_operation_is_refused(e):
    with pytest.raises(NoSuchWait):
        await e.penstock.signals.complete("01900000-0000-7000-8000-000000000009", "paper-p1")


@pytest.mark.covers("SG-041")
async def test_an_operation_without_a_signalled_step_is_refused(database_url, tmp_path):
    @operation("plain")
    async def plain(paper: Paper, ctx: Context) -> None: ...

    async with engine([plain], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(plain, papers(1))
        with pytest.raises(NoSuchWait, match="no step that waits"):
            await e.penstock.signals.complete(made.id, "p1")


@pytest.mark.covers("SG-041")
async def test_an_operation_that_is_over_hears_nothing_more(e):
    made = await parked(e, 1)
    await e.penstock.signals.complete(made.id, "paper-p1")
    await e.work_until_idle()
    with pytest.raises(NoSuchWait) as refused:
        await e.penstock.signals.complete(made.id, "paper-p1")
    assert refused.value.is_over
    assert len(await signals_of(e, made)) == 1


@pytest.mark.covers("SG-041")
async def test_an_operation_that_stops_hears_nothing_more(database_url, tmp_path):
    wall = Wall()

    @operation("held")
    class HeldUp(Pipeline[Paper]):
        @step
        async def linger(self, paper: Paper, ctx: Context) -> None:
            await wall.stop()

        @step.signal(key="{row.code}", timeout=TIMEOUT_S)
        async def ask(self, paper: Paper, ctx: Context) -> None: ...

    async with engine([HeldUp], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(HeldUp, papers(1))
        await at_wall(wall, e.work_until_idle())
        assert (await e.operations.cancel(made.id)).status == "Stopping"
        with pytest.raises(NoSuchWait) as refused:
            await e.penstock.signals.complete(made.id, "p1")
        assert refused.value.is_over
        wall.gone.set()


@pytest.mark.parametrize("key", ["", "k" * 501])
async def test_a_key_that_is_empty_or_too_long_is_refused(e, key):
    made = await parked(e, 1)
    with pytest.raises(InvalidInput, match="1 to 500 characters"):
        await e.penstock.signals.complete(made.id, key)


async def test_a_payload_that_is_too_large_is_refused_and_nothing_is_stored(e):
    made = await parked(e, 1)
    with pytest.raises(InvalidInput, match="at most 65,536"):
        await e.penstock.signals.complete(made.id, "paper-p1", payload="x" * 70_000)
    assert await signals_of(e, made) == []


class Word(BaseModel):
    by: str
    level: int = 1


@pytest.mark.covers("SG-002")
async def test_a_payload_comes_back_as_the_type_that_the_step_declares(database_url, tmp_path):
    seen: list[object] = []

    @operation("typed")
    class Typed(Pipeline[Paper]):
        @step.signal(key="{row.code}", timeout=TIMEOUT_S)
        async def ask(self, paper: Paper, ctx: Context) -> Done[Word] | None:
            return None

        @step
        async def use(self, paper: Paper, ctx: Context) -> None:
            seen.append(ctx.output_of(Typed.ask))

    async with engine([Typed], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Typed, papers(1))
        await e.work_until_idle()
        await e.penstock.signals.complete(made.id, "p1", payload={"by": "ana"})
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
    assert seen == [Word(by="ana", level=1)]


@pytest.mark.covers("SG-021", "SM-034", "SM-060", "SM-089")
async def test_a_wait_that_nobody_answers_is_timed_out_at_its_deadline(e):
    made = await parked(e, 1)
    await e.advance(TIMEOUT_S - 0.001)
    await e.work_until_idle()
    assert await states(e, made) == ["WaitingForCompletion"]
    await e.advance(0.001)
    await e.work_until_idle()
    (error,) = (await e.operations.errors(made.id)).items
    assert (error.state, error.error_type) == ("TimedOut", "Timeout")
    assert "60" in error.message


@pytest.mark.covers("I-22")
async def test_a_signal_stored_before_the_owner_looks_wins_even_past_the_deadline(e):
    made = await parked(e, 1)
    await e.advance(TIMEOUT_S + 5)
    await e.penstock.signals.complete(made.id, "paper-p1", payload="just in time")
    await e.work_until_idle()
    assert await states(e, made) == ["Completed"]
    assert (await rows_of(e.penstock.db, made.id))[0].outputs[1] == "just in time"


@pytest.mark.covers("I-22")
async def test_a_signal_after_the_timeout_was_recorded_is_refused_or_listed_and_changes_nothing(e):
    made = await parked(e, 3)
    await e.penstock.signals.complete(made.id, "paper-p3")
    await e.work_until_idle()
    await e.advance(TIMEOUT_S)
    await e.work_until_idle()
    with pytest.raises(NoSuchWait):
        await e.penstock.signals.complete(made.id, "paper-p1")
    assert await states(e, made) == ["TimedOut", "TimedOut", "Completed"]


@pytest.mark.covers("SG-022", "SG-042", "SG-043", "SG-044", "I-19")
@pytest.mark.parametrize("how", ["restart", "crash"])
async def test_waits_outlive_their_worker_and_keep_their_deadline(e, how):
    made = await parked(e, 2)
    before = [r.deadline for r in await records_of(e.penstock.db, made.id)]
    await getattr(e, how)()
    await e.work_until_idle()
    assert [r.deadline for r in await records_of(e.penstock.db, made.id)] == before
    assert await states(e, made) == ["WaitingForCompletion"] * 2
    await e.penstock.signals.complete(made.id, "paper-p1")
    await e.work_until_idle()
    assert await states(e, made) == ["Completed", "WaitingForCompletion"]
    assert (await settled(e, made)).timed_out_rows == 1


@pytest.mark.covers("SG-023", "SG-025", "SG-026", "SG-034")
async def test_a_signal_taken_in_one_process_is_applied_in_another(database_url, tmp_path):
    calls = Calls()
    kind = approvals(calls)
    async with two_engines(kind, url=database_url, folder=tmp_path) as (api, worker):
        made = await api.create(kind, papers(3))
        await worker.work_until_idle()
        receipt = await api.penstock.signals.complete(made.id, "paper-p1", payload="yes")
        failed = await api.penstock.signals.fail(made.id, "paper-p2", "no")
        assert (receipt.outcome, receipt.row, failed.row) == ("delivered", 1, 2)
        await worker.work_until_idle()
        assert await states(api, made) == ["Completed", "Failed", "WaitingForCompletion"]
        assert await clean(api) == []


@pytest.mark.covers("I-19")
async def test_a_signal_whose_caller_died_before_waking_anybody_is_found_by_the_sweep(e):
    made = await parked(e, 2)

    class Died(Exception):
        pass

    def die(point: str) -> None:
        if point == "signal:after":
            raise Died

    with failpoints.armed(die), pytest.raises(Died):
        await e.penstock.signals.complete(made.id, "paper-p2")
    await e.work_until_idle()
    assert await states(e, made) == ["WaitingForCompletion"] * 2
    assert await mailroom.sweep(e.penstock.db) == 1
    await e.work_until_idle()
    assert await states(e, made) == ["WaitingForCompletion", "Completed"]
    assert await mailroom.sweep(e.penstock.db) == 0


@pytest.mark.covers("I-19")
@pytest.mark.databases("sqlite")
async def test_a_worker_sweeps_by_itself(database_url, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "SWEEP_S", 0.0)
    quick = Settings(database_url=database_url, storage_url=str(tmp_path / "files"), control_poll_s=0.01, lease_s=3600)

    def forget(point: str) -> None:
        if point == "signal:after":
            raise ConnectionError

    async with Penstock.open(operations=[approvals(Calls())], settings=quick) as penstock:
        made = await penstock.operations.create("approvals", file=json_lines(papers(1)), file_name="papers.jsonl")
        work = asyncio.create_task(penstock.run_until_done(made.id))
        while not await penstock.signals.waiting(made.id):  # noqa: ASYNC110  # it happens in the worker
            await asyncio.sleep(0.01)
        with failpoints.armed(forget), pytest.raises(ConnectionError):
            await penstock.signals.complete(made.id, "paper-p1")
        assert (await asyncio.wait_for(work, HANG_S)).successful_rows == 1


@pytest.mark.covers("SG-006", "SG-015")
async def test_a_scoped_key_names_one_wait(e):
    made = await parked(e, 2)
    receipt = await e.penstock.signals.complete(made.id, f"{made.id}:paper-p2:2")
    assert (receipt.outcome, receipt.row) == ("delivered", 2)
    await e.work_until_idle()
    assert await states(e, made) == ["WaitingForCompletion", "Completed"]


@pytest.mark.covers("SG-007")
async def test_keys_of_different_operations_never_meet(e):
    one, other = await parked(e, 1), await parked(e, 1)
    await e.penstock.signals.complete(one.id, "paper-p1")
    await e.work_until_idle()
    assert (await states(e, one), await states(e, other)) == (["Completed"], ["WaitingForCompletion"])


@pytest.mark.covers("SG-016", "SG-033")
async def test_open_waits_are_listed_with_key_and_deadline(e):
    made = await parked(e, 3)
    await e.penstock.signals.complete(made.id, "paper-p2")
    await e.work_until_idle()
    waits = await e.penstock.signals.waiting(made.id)
    assert [(w.row, w.row_key, w.step, w.key) for w in waits] == [
        (1, "p1", "approval", "paper-p1"),
        (3, "p3", "approval", "paper-p3"),
    ]
    assert waits[0].signal_key == f"{made.id}:paper-p1:1"
    assert (waits[0].deadline - waits[0].since).total_seconds() == TIMEOUT_S
    assert [w.row for w in await e.penstock.signals.waiting(made.id, key="paper-p3")] == [3]
    assert [w.row for w in await e.penstock.signals.waiting(made.id, key=waits[1].signal_key)] == [3]
    assert [w.row for w in await e.penstock.signals.waiting()] == [1, 3]
    assert await e.penstock.signals.waiting(made.id, key="paper-p2") == []


async def test_a_retry_of_the_body_is_made_before_the_row_waits(database_url, tmp_path):
    @operation("shaky")
    class Shaky(Pipeline[Paper]):
        @step.signal(key="{row.code}", timeout=TIMEOUT_S, retries=1, backoff=1)
        async def ask(self, paper: Paper, ctx: Context) -> None:
            if ctx.attempt == 1:
                raise ConnectionError("refused")

    async with engine([Shaky], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Shaky, papers(1))
        await e.work_until_idle()
        assert await states(e, made) == ["Pending"]
        await e.skip_wait(made)
        await e.work_until_idle()
        assert await states(e, made) == ["WaitingForCompletion"]
        assert [line.event for line in await history(e, made)] == ["postponed"]
        await e.penstock.signals.complete(made.id, "p1")
        await e.work_until_idle()
        assert (await rows_of(e.penstock.db, made.id))[0].attempts == [2]
        assert await clean(e) == []


@pytest.mark.covers("SG-022")
async def test_the_wait_begins_when_the_body_has_ended(database_url, tmp_path):
    @operation("slow")
    class Slow(Pipeline[Paper]):
        @step.signal(key="{row.code}", timeout=10, retries=1, backoff=30)
        async def ask(self, paper: Paper, ctx: Context) -> None:
            if ctx.attempt == 1:
                raise ConnectionError("refused")

    async with engine([Slow], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Slow, papers(1))
        await e.work_until_idle()
        await e.skip_wait(made)
        await e.work_until_idle()
        (wait,) = await e.penstock.signals.waiting(made.id)
        assert (wait.deadline - wait.since).total_seconds() == 10
        assert (wait.since - made.created_at).total_seconds() >= 30


async def test_open_waits_of_all_operations_are_listed_page_by_page(e):
    made = [await parked(e, rows) for rows in (3, 1, 3)]
    seen: list[tuple[str, int]] = []
    after: int | str = 0
    while page := await e.penstock.signals.waiting(after=after, limit=2):
        seen += [(wait.operation_id, wait.row) for wait in page]
        after = page[-1].cursor
    assert seen == [(one.id, row) for one, rows in zip(made, (3, 1, 3), strict=True) for row in range(1, rows + 1)]


async def test_open_waits_of_one_operation_go_on_behind_a_row_or_a_cursor(e):
    made = await parked(e)
    first, *_ = await e.penstock.signals.waiting(made.id, limit=1)
    for after in (1, first.cursor):
        assert [wait.row for wait in await e.penstock.signals.waiting(made.id, after=after)] == [2, 3]


@pytest.mark.parametrize("after", [3, "3", "x", "x:1", "{other}:0", f"{{other}}:{2**63}"])
async def test_a_cursor_of_no_list_of_waits_is_refused(e, after):
    other = await parked(e, 1)
    after = after.format(other=other.id) if isinstance(after, str) else after
    with pytest.raises(InvalidInput, match="is not a cursor of this list"):
        await e.penstock.signals.waiting(after=after)


async def test_a_cursor_of_another_operations_waits_is_refused(e):
    one, other = await parked(e, 1), await parked(e, 1)
    (wait,) = await e.penstock.signals.waiting(other.id)
    with pytest.raises(InvalidInput, match="is not a cursor of this list"):
        await e.penstock.signals.waiting(one.id, after=wait.cursor)
