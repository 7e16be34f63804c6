"""Correcting a row: checked at once, validated again by its owner, and every value it ever had stays in history."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from approvals import Calls, Paper, Wall, at_wall, clean, failures, history, requests_of, states
from pydantic import AliasChoices, BaseModel, Field
from stored import rows_of

from penstock import Context, Pipeline, StepFailed, operation, step
from penstock.errors import Conflict, NotFound, RowInvalid
from penstock.operations.model import Operation
from penstock.operations.operation_ids import number_of
from penstock.operations.retrying import NothingToRetry, retry_rows
from penstock.settings import Settings
from penstock.testing import Engine, engine

SMALL = Settings(chunk_rows=3)
DONE, FAILED, INVALID = "Completed", "Failed", "Invalid"


def bad_code_fails(ctx: Context, code: str) -> bool:
    return ctx.step_name == "second" and code.startswith("bad")


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
async def e(database_url: str, tmp_path: Path, calls: Calls) -> AsyncIterator[Engine]:
    kind = failures(calls, broken=bad_code_fails)
    async with engine([kind], url=database_url, tmp_path=tmp_path, settings=SMALL) as opened:
        yield opened
        assert await clean(opened) == []


def rows(*codes: str) -> list[dict[str, str]]:
    return [{"code": code, "desk": "front"} for code in codes]


async def edit_blindly(e: Engine, made: Operation, row: int, data: Any) -> None:
    """Ask for an edit as a process that does not know the operation: nothing is checked at once."""
    async with e.penstock.db.read() as tx:
        number = await number_of(tx, made.id)
    await retry_rows(e.penstock.db, number, [row], actor="ana", token=f"t{row}", data={row: data})


@pytest.mark.covers("SM-043")
async def test_an_invalid_row_that_was_corrected_is_validated_and_runs_from_the_first_step(e, calls):
    made = await e.run("failures", rows("p1", "x2", "p3"))
    assert await states(e, made) == [DONE, INVALID, DONE]
    retry = await e.operations.edit_row(made.id, 2, {"code": "p2"})
    assert retry.submitted == 1
    await e.work_until_idle()
    done = await e.operations.get(made.id)
    assert (done.status, done.successful_rows, done.invalid_rows, done.failed_rows) == ("Completed", 3, 0, 0)
    assert [calls[name, 2] for name in ("first", "second", "third")] == [1, 1, 1]
    view = await e.operations.row(made.id, 2)
    assert (view.generation, view.data["code"], view.row_key) == (1, "p2", "p2")


async def test_a_failed_row_that_was_corrected_goes_on_at_the_step_that_failed(e, calls):
    made = await e.run("failures", rows("p1", "bad", "p3"))
    await e.operations.edit_row(made.id, 2, {"code": "good"})
    await e.work_until_idle()
    assert await states(e, made) == [DONE] * 3
    assert [calls[name, 2] for name in ("first", "second", "third")] == [1, 2, 1]
    assert (await rows_of(e.penstock.db, made.id))[1].outputs == ["first bad", "second good", "third good"]


async def test_an_edit_that_is_wrong_is_refused_at_once_with_every_fault_and_changes_nothing(e):
    made = await e.run("failures", rows("p1", "x2"))
    with pytest.raises(RowInvalid, match="no such code"):
        await e.operations.edit_row(made.id, 2, {"code": "x3"})
    with pytest.raises(RowInvalid) as refused:
        await e.operations.edit_row(made.id, 2, {"code": 5, "desk": []})
    assert {fault.field for fault in refused.value.faults} == {"code", "desk"}
    now = await e.operations.get(made.id)
    assert (now.status, now.retry_count, await requests_of(e, made)) == ("CompletedWithErrors", 0, [])


async def test_an_edit_is_not_refused_because_a_validator_breaks_where_it_is_checked(database_url, tmp_path):
    is_away = False

    @operation("papers", row_key="code")
    class Papers(Pipeline[Paper]):
        def validate_row(self, paper: Paper, meta: None) -> None:
            if is_away:
                raise ConnectionError("the registry is away")
            if paper.code == "x1":
                raise ValueError("no such code")

        @step
        async def file(self, paper: Paper, ctx: Context) -> None: ...

    async with engine([Papers], url=database_url, tmp_path=tmp_path) as e:
        made = await e.run(Papers, rows("x1"))
        is_away = True
        await e.operations.edit_row(made.id, 1, {"code": "p1"})
        is_away = False
        await e.work_until_idle()
        assert await states(e, made) == [DONE]
        assert await clean(e) == []


async def test_a_row_that_is_still_wrong_for_its_owner_is_invalid_again_and_history_has_both_values(e, calls):
    made = await e.run("failures", rows("p1", "x2"))
    await edit_blindly(e, made, 2, {"code": "x22", "desk": "back"})
    await e.work_until_idle()
    assert await states(e, made) == [DONE, INVALID]
    view = await e.operations.row(made.id, 2)
    assert (view.generation, view.data) == (1, {"code": "x22", "desk": "back"})
    (line,) = await history(e, made, row=2)
    assert (line.event, line.error_type, line.data) == ("edited", "Validation", {"code": "x2", "desk": "front"})
    assert calls["first", 2] == 0
    await e.operations.edit_row(made.id, 2, {"code": "p2"})
    await e.work_until_idle()
    assert await states(e, made) == [DONE, DONE]
    assert [h.data["code"] for h in await history(e, made, row=2)] == ["x2", "x22"]


async def test_a_row_that_failed_at_a_step_became_invalid_and_was_corrected_again_goes_on(e, calls):
    made = await e.run("failures", rows("p1", "bad"))
    await edit_blindly(e, made, 2, {"code": "x2", "desk": "front"})
    await e.work_until_idle()
    assert await states(e, made) == [DONE, INVALID]
    await e.operations.edit_row(made.id, 2, {"code": "p2"})
    await e.work_until_idle()
    assert await states(e, made) == [DONE, DONE]
    assert calls["third", 2] == 1
    assert [h.event for h in await history(e, made, row=2)] == ["edited", "edited"]


async def test_the_cells_of_a_file_with_columns_are_edited_by_column(e):
    file = b"code,desk\np1,front\nx2,front\n"
    made = await e.run("failures", file, file_name="papers.csv")
    with pytest.raises(RowInvalid, match="no such column; there are: code, desk"):
        await e.operations.edit_row(made.id, 2, {"colour": "red"})
    await e.operations.edit_row(made.id, 2, {"code": "p2"})
    await e.work_until_idle()
    assert await states(e, made) == [DONE, DONE]
    view = await e.operations.row(made.id, 2)
    assert (view.data, view.row_key) == ({"code": "p2", "desk": "front"}, "p2")
    assert (await history(e, made, row=2))[0].data == {"code": "x2", "desk": "front"}


@pytest.mark.parametrize("called", ["mail", "E-Mail"])
@pytest.mark.parametrize(
    ("file", "name"),
    [(b'{"code": "p1", "E-Mail": "nobody"}\n', "papers.jsonl"), (b"code,E-Mail\np1,nobody\n", "papers.csv")],
)
async def test_a_field_is_corrected_by_its_name_or_its_alias_whichever_the_file_has(
    database_url, tmp_path, called, file, name
):
    class Letter(BaseModel):
        code: str
        mail: str = Field(validation_alias=AliasChoices("E-Mail", "address"))

    @operation("letters", row_key="code")
    class Letters(Pipeline[Letter]):
        @step
        async def send(self, letter: Letter, ctx: Context) -> str:
            if letter.mail == "nobody":
                raise StepFailed("nobody lives here")
            return letter.mail

    async with engine([Letters], url=database_url, tmp_path=tmp_path) as e:
        made = await e.run(Letters, file, file_name=name)
        before = (await e.operations.row(made.id, 1)).data
        await e.operations.edit_row(made.id, 1, {called: "ana"})
        await e.work_until_idle()
        row = await e.operations.row(made.id, 1)
        assert (row.state, row.steps[-1].output, row.data.keys()) == (DONE, "ana", before.keys())
        assert [(c.old, c.new) for c in (await history(e, made, row=1))[0].changes] == [("nobody", "ana")]


async def test_a_row_that_succeeded_or_does_not_exist_cannot_be_edited(e):
    made = await e.run("failures", rows("p1", "x2"))
    with pytest.raises(NothingToRetry, match="it has succeeded"):
        await e.operations.edit_row(made.id, 1, {"code": "p9"})
    with pytest.raises(NotFound):
        await e.operations.edit_row(made.id, 9, {"code": "p9"})


async def test_a_row_whose_data_is_not_kept_cannot_be_edited(database_url, tmp_path, calls):
    kind = failures(calls, broken=bad_code_fails, track_row_data=False)
    async with engine([kind], url=database_url, tmp_path=tmp_path) as e:
        made = await e.run(kind, rows("bad"))
        with pytest.raises(Conflict, match="keeps no row data"):
            await e.operations.edit_row(made.id, 1, {"code": "p1"})


async def test_the_key_of_a_row_follows_its_correction_everywhere(e):
    made = await e.run("failures", rows("bad"))
    (before,) = (await e.operations.errors(made.id)).items
    await e.operations.edit_row(made.id, 1, {"code": "bad2"})
    await e.work_until_idle()
    (after,) = (await e.operations.errors(made.id)).items
    assert (before.row_key, after.row_key, after.generation) == ("bad", "bad2", 1)
    assert [row.row_key for row in (await e.operations.rows(made.id, row_key="bad2")).items] == ["bad2"]


async def test_two_corrections_of_one_row_at_once_are_one(e):
    made = await e.run("failures", rows("p1", "x2"))
    edits = [e.operations.edit_row(made.id, 2, {"code": f"p{n}"}) for n in range(3)]
    asked = await asyncio.gather(*edits, return_exceptions=True)
    assert sum(not isinstance(answer, Exception) for answer in asked) == 1
    assert all(isinstance(answer, Conflict) for answer in asked if isinstance(answer, Exception))
    await e.work_until_idle()
    assert await states(e, made) == [DONE, DONE]


async def test_a_row_corrected_while_its_chunk_is_being_worked_on_keeps_its_story(database_url, tmp_path):
    """The owner that claimed the chunk fresh has not read the records of its invalid rows."""
    wall = Wall()

    @operation("busy", row_key="code")
    class Busy(Pipeline[Paper]):
        def validate_row(self, paper: Paper, meta: None) -> None:
            if paper.code.startswith("x"):
                raise ValueError("no such code")

        @step
        async def linger(self, paper: Paper, ctx: Context) -> None:
            if paper.code == "p1":
                await wall.stop()

    async with engine([Busy], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Busy, rows("p1", "x2"))
        await at_wall(wall, e.work_until_idle())
        await e.operations.edit_row(made.id, 2, {"code": "p2"})
        await e.worker.look_round()
        wall.gone.set()
        await e.work_until_idle()
        assert await states(e, made) == [DONE, DONE]
        (line,) = await history(e, made, row=2)
        assert (line.event, line.error_type, line.message) == ("edited", "Validation", "no such code")
        assert await clean(e) == []


async def test_a_correction_survives_a_crash_before_and_after_it_is_applied(e, calls):
    made = await e.run("failures", rows("p1", "x2"))
    await e.operations.edit_row(made.id, 2, {"code": "bad"})
    await e.crash()
    await e.work_until_idle()
    assert await states(e, made) == [DONE, FAILED]
    await e.crash()
    await e.operations.retry(made.id)
    await e.work_until_idle()
    assert (await e.operations.row(made.id, 2)).data["code"] == "bad"
    assert calls["second", 2] == 2


async def test_a_correction_cancelled_before_it_was_validated_can_be_made_again(e):
    made = await e.run("failures", rows("p1", "x2"))
    await e.operations.edit_row(made.id, 2, {"code": "p2"})
    assert (await e.operations.cancel(made.id)).status == "Cancelled"
    assert await states(e, made) == [DONE, INVALID]
    await e.operations.edit_row(made.id, 2, {"code": "p2"})
    await e.work_until_idle()
    assert await states(e, made) == [DONE, DONE]


async def test_a_correction_cancelled_while_it_is_validated_leaves_a_row_that_can_be_corrected(database_url, tmp_path):
    wall = Wall()
    is_slow: list[bool] = []

    @operation("slow-check", row_key="code")
    class SlowCheck(Pipeline[Paper]):
        async def validate_row(self, paper: Paper, meta: None) -> None:
            if paper.code.startswith("x"):
                raise ValueError("no such code")
            if is_slow:
                await wall.stop()

        @step(delivery="at_most_once")
        async def pay(self, paper: Paper, ctx: Context) -> None: ...

    quick = Settings(cancel_grace_s=0)
    async with engine([SlowCheck], url=database_url, tmp_path=tmp_path, settings=quick) as e:
        made = await e.run(SlowCheck, rows("p1", "x2"))
        await e.operations.edit_row(made.id, 2, {"code": "p2"})
        is_slow.append(True)
        await at_wall(wall, e.work_until_idle())
        await e.operations.cancel(made.id)
        await e.worker.look_round()
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Cancelled"
        errors = (await e.operations.errors(made.id)).items
        assert [error.error_type for error in errors] != ["InDoubt"], "nothing was paid: it was only validated"
        assert await clean(e) == []
        is_slow.clear()
        await e.operations.edit_row(made.id, 2, {"code": "p2"})
        await e.work_until_idle()
        assert await states(e, made) == [DONE, DONE]


@pytest.mark.covers("SM-075")
async def test_history_says_who_corrected_a_row_when_and_what(e):
    made = await e.run("failures", rows("p1", "bad", "p3"))
    failed_at = (await e.operations.errors(made.id)).items[0].at
    await e.advance(60)
    await e.operations.edit_row(made.id, 2, {"code": "good"}, actor="ana")
    await e.advance(60)
    await e.work_until_idle()
    (line,) = await history(e, made, row=2)
    assert (line.event, line.at, line.data["code"]) == ("edited", failed_at, "bad")
    assert (line.actor, line.asked_at) == ("ana", failed_at + timedelta(seconds=60))
    assert [(change.field, change.old, change.new) for change in line.changes] == [("code", "bad", "good")]


@pytest.mark.covers("SM-075")
async def test_history_says_who_asked_for_a_retry_of_a_row_or_of_all(e):
    made = await e.run("failures", rows("bad1", "p2", "p3", "p4", "bad5"))
    for actor, named in (("ana", None), ("ben", [5]), ("cid", None)):
        await e.advance(60)
        await e.operations.retry(made.id, rows=named, actor=actor)
        await e.work_until_idle()
    assert [(h.row, h.generation, h.event, h.actor, h.changes) for h in await history(e, made)] == [
        (1, 0, "retried", "ana", ()),
        (1, 1, "retried", "cid", ()),
        (5, 0, "retried", "ana", ()),
        (5, 1, "retried", "ben", ()),
        (5, 2, "retried", "cid", ()),
    ]
