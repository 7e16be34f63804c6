"""The payload of a signal is the output of the step that waits: one that does not fit its type never becomes that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from approvals import Paper, clean, papers, signals_of, states
from pydantic import BaseModel, field_validator

from penstock import Context, Done, Penstock, Pipeline, operation, step
from penstock.errors import InvalidInput
from penstock.settings import Settings
from penstock.testing import Engine, engine

SMALL = Settings(chunk_rows=2)
seen: list[object] = []


class Word(BaseModel):
    by: str
    level: int = 1

    @field_validator("by")
    @classmethod
    def is_known(cls, by: str) -> str:
        if by == "nobody":
            raise LookupError("there is no such person")
        return by


class Stamp(msgspec.Struct):
    number: int


@operation("typed", row_key="code")
class Typed(Pipeline[Paper]):
    @step.signal(key="{row.code}", timeout=60, name="Ask the desk")
    async def ask(self, paper: Paper, ctx: Context) -> Done[Word] | None:
        return None

    @step
    async def use(self, paper: Paper, ctx: Context) -> None:
        seen.append(ctx.output_of(Typed.ask))


@operation("twice")
class Twice(Pipeline[Paper]):
    """Two steps that wait on one key, for different things."""

    @step.signal(key="{row.code}", timeout=60)
    async def ask(self, paper: Paper, ctx: Context) -> Done[Word] | None:
        return None

    @step.signal(key="{row.desk}", timeout=60)
    async def stamp(self, paper: Paper, ctx: Context) -> Done[Stamp] | None:
        return None


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


@pytest.fixture
async def e(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    async with engine([Typed, Twice], url=database_url, tmp_path=tmp_path, settings=SMALL) as opened:
        yield opened
        assert await clean(opened) == []


@pytest.fixture
async def outside(e: Engine) -> AsyncIterator[Penstock]:
    """A process that reaches the database and has none of the code."""
    async with Penstock.open(settings=e.penstock.settings, clock=e.penstock.clock) as opened:
        yield opened


@pytest.mark.parametrize("is_early", [True, False])
async def test_a_payload_that_does_not_fit_the_step_is_refused_and_the_row_waits_on(e, is_early):
    made = await e.create(Typed, papers(1))
    if not is_early:
        await e.work_until_idle()
    with pytest.raises(InvalidInput) as caught:
        await e.penstock.signals.complete(made.id, "p1", payload={"level": "high"})
    assert str(caught.value) == (
        "the payload for key 'p1' does not fit step 'Ask the desk', whose output is Word: by: Field required; "
        "level: Input should be a valid integer, unable to parse string as an integer"
    )
    assert await signals_of(e, made) == []
    await e.penstock.signals.complete(made.id, "p1", payload={"by": "ana"})
    await e.work_until_idle()
    assert await states(e, made) == ["Completed"]
    assert seen == [Word(by="ana")]


async def test_a_model_that_raises_something_of_its_own_refuses_its_signal_and_no_other(e):
    made = await e.create(Typed, papers(3))
    send = e.penstock.signals.complete
    answers = await asyncio.gather(
        send(made.id, "p1", payload={"by": "ana"}),
        send(made.id, "p2", payload={"by": "nobody"}),
        send(made.id, "p3", payload={"by": "bob"}),
        return_exceptions=True,
    )
    assert [type(answer).__name__ for answer in answers] == ["Receipt", "InvalidInput", "Receipt"]
    assert "LookupError: there is no such person" in str(answers[1])


async def test_a_signal_that_brings_nothing_or_tells_of_a_failure_is_taken_by_a_step_of_any_type(e):
    made = await e.create(Typed, papers(2))
    await e.work_until_idle()
    assert (await e.penstock.signals.complete(made.id, "p1")).outcome == "delivered"
    assert (await e.penstock.signals.fail(made.id, "p2", "no")).outcome == "delivered"


async def test_a_payload_must_fit_one_of_the_steps_that_could_wait_on_its_key(e):
    made = await e.create(Twice, [{"code": "p1", "desk": "p1"}, {"code": "p2", "desk": "p2"}])
    await e.work_until_idle()
    with pytest.raises(InvalidInput, match=r"fit step 'ask', .* fit step 'stamp', whose output is Stamp: .*number"):
        await e.penstock.signals.complete(made.id, "p1", payload={"size": 1})
    for key, payload in (("p1", {"by": "ana"}), ("p1", {"number": 7}), ("p2", {"number": 7})):
        await e.penstock.signals.complete(made.id, key, payload=payload)
    await e.work_until_idle()
    assert await states(e, made) == ["Completed", "Failed"]
    (error,) = (await e.operations.errors(made.id)).items
    assert (error.row, error.step_name, error.error_type) == (2, "ask", "StepFailure")
    assert error.message == (
        "the payload for key 'p2' does not fit step 'ask', whose output is Word: by: Field required"
    )


async def test_what_a_process_without_the_code_let_in_fails_its_row_with_the_reason(e, outside):
    made = await e.create(Typed, papers(2))
    await e.work_until_idle()
    for key, payload in (("p1", {"level": 2}), ("p2", {"by": "bob"})):
        assert (await outside.signals.complete(made.id, key, payload=payload)).outcome == "delivered"
    await e.work_until_idle()
    assert await states(e, made) == ["Failed", "Completed"]
    (error,) = (await e.operations.errors(made.id)).items
    assert (error.row, error.step_name, error.error_type) == (1, "Ask the desk", "StepFailure")
    assert "does not fit step 'Ask the desk', whose output is Word: by: Field required" in error.message
    assert seen == [Word(by="bob")]


async def test_a_row_of_a_cancelled_operation_that_gets_such_a_payload_has_failed(e, outside):
    made = await e.create(Typed, papers(2))
    await e.work_until_idle()
    await outside.signals.complete(made.id, "p1", payload={"level": 2})
    await e.operations.cancel(made.id)
    await e.work_until_idle()
    assert await states(e, made) == ["Failed", "Cancelled"]
