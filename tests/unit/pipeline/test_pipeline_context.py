"""What a step is told about its row, and what it can ask."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pydantic import BaseModel

from penstock.errors import NotFound
from penstock.pipeline import (
    BatchContext,
    Context,
    Done,
    NoOutput,
    Pipeline,
    Run,
    StepObject,
    definition_of,
    operation,
    step,
)
from penstock.pipeline.signal_tokens import WaitAddress, unseal
from penstock.secret_keys import SecretKeys, new_key


class Row(BaseModel):
    id: int


class Meta(BaseModel):
    who: str


class Invoice(BaseModel):
    number: int


class Archive(StepObject[str]):
    def run(self, row: Row, ctx: Context[Meta]) -> str:
        return "x"


@operation("invoices")
class Invoices(Pipeline[Row, Meta]):
    @step(name="Book it")
    def book(self, row: Row, ctx: Context[Meta]) -> Invoice: ...  # type: ignore[empty-body]

    archive = Archive()

    @step
    def maybe(self, row: Row, ctx: Context[Meta]) -> int | None: ...

    @step
    def post(self, row: Row, ctx: Context[Meta]) -> int: ...  # type: ignore[empty-body]

    @post.when
    def is_posted(self, row: Row, ctx: Context[Meta]) -> bool:
        return row.id > 1

    @step(effect_key="generation")
    def send(self, row: Row, ctx: Context[Meta]) -> int: ...  # type: ignore[empty-body]


class Stranger(Pipeline[Row]):
    @step
    def elsewhere(self, row: Row, ctx: Context) -> int: ...  # type: ignore[empty-body]


def context(at: str = "send", stored: dict[int, bytes] | None = None, **run: Any) -> Context[Meta]:
    definition = definition_of(Invoices)
    made = Run("op-1", "invoices", Meta(who="ana"), definition, **run)
    ctx: Context[Meta] = Context(made, 7, 2, stored, row_key="k7")
    found = definition.find_step(at)
    assert found is not None
    ctx.step = found
    return ctx


def test_a_context_says_where_it_is():
    ctx = context("book")
    assert (ctx.operation_id, ctx.operation_name, ctx.row_number, ctx.row_key) == ("op-1", "invoices", 7, "k7")
    assert (ctx.step_name, ctx.attempt, ctx.generation, ctx.meta.who) == ("Book it", 1, 2, "ana")
    assert (ctx.deadline, ctx.signal_key, ctx.signal_url) == (None, None, None)


def test_the_effect_key_is_stable_over_attempts_and_generations():
    first, again = context("book"), context("book")
    again.attempt, again.generation = 5, 9
    assert first.effect_key == again.effect_key == "op-1:7:book"


def test_a_step_may_ask_for_an_effect_key_per_generation():
    assert context("send").effect_key == "op-1:7:send:2"


def test_outputs_are_read_by_attribute_or_display_name_as_their_type():
    ctx = context(stored={0: b'{"number":5}', 1: b'"put away"'})
    assert ctx.outputs["book"] == ctx.outputs["Book it"] == Invoice(number=5)
    assert dict(ctx.outputs) == {"book": Invoice(number=5), "archive": "put away"}
    assert ctx.outputs.get("maybe") is None
    assert "send" not in ctx.outputs


def test_output_of_gives_the_declared_type():
    ctx = context(stored={0: b'{"number":5}', 1: b'"put away"', 2: b"3"})
    assert ctx.output_of(Invoices.book) == Invoice(number=5)
    assert ctx.output_of(Invoices.archive) == "put away"
    assert ctx.output_of(Invoices.maybe) == 3


def test_outputs_added_later_are_seen():
    ctx = context()
    outputs = ctx.outputs
    ctx.stored[0] = b'{"number":6}'
    assert outputs["book"] == Invoice(number=6)


def test_a_step_that_may_return_none_has_none_for_an_output():
    assert context().output_of(Invoices.maybe) is None


def test_a_step_that_was_skipped_has_the_output_that_the_caller_gives_instead():
    ctx = context(stored={0: b'{"number":5}'})
    assert ctx.output_of(Invoices.post, None) is None
    assert ctx.output_of(Invoices.post, -1) == -1
    assert ctx.output_of(Invoices.maybe, 0) == 0
    assert ctx.output_of(Invoices.book, None) == Invoice(number=5)
    with pytest.raises(NoOutput, match="it does not come before"):
        context("book").output_of(Invoices.post, None)


def test_a_missing_output_is_told_clearly():
    ctx = context("archive")
    with pytest.raises(NoOutput, match=r"^step 'Book it' has no output for row 7; it ended without one; "):
        ctx.output_of(Invoices.book)
    with pytest.raises(NoOutput) as caught:
        context().output_of(Invoices.post)
    assert str(caught.value) == (
        "step 'post' has no output for row 7; it was skipped; "
        "for a step that may leave none, give a default: ctx.output_of(post, None)"
    )
    with pytest.raises(LookupError, match=r"^step 'send' has no output yet: it does not come before 'archive'$"):
        ctx.output_of(Invoices.send)
    with pytest.raises(KeyError, match="has no step 'nosuch'; it has: book, archive, maybe, post, send"):
        ctx.outputs["nosuch"]
    with pytest.raises(NotFound, match="is no step of operation 'invoices'"):
        ctx.output_of(Stranger.elsewhere)


@pytest.mark.covers("SG-028")
def test_a_signalled_step_knows_where_its_signal_may_be_posted():
    keys = SecretKeys(new_key())
    ctx = context(public_url="https://p.example/", secret_keys=keys)
    assert ctx.signal_url is None
    ctx.signal_key = "a/b c"
    base, _, token = str(ctx.signal_url).rpartition("/")
    assert base == "https://p.example/api/signals"
    assert unseal(keys, token) == WaitAddress("signal", "op-1", "a/b c", 7, ctx.step.index, 2)
    assert unseal(SecretKeys(new_key()), token) is None
    assert unseal(keys, keys.encrypt(b'["session", "op-1", "a/b c", 7, 4, 2]')) is None


def test_heartbeat_and_cancelled_reach_the_run():
    beats: list[int] = []
    ctx = context(beat=lambda: beats.append(1), is_cancelled=lambda: True)
    ctx.heartbeat()
    assert beats == [1]
    assert ctx.cancelled


def test_log_records_carry_the_place_of_the_row(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "penstock.operations.invoices"):
        context("book").logger.info("hello %s", "there", extra={"mine": 1})
    (record,) = caplog.records
    assert record.getMessage() == "hello there"
    assert {"operation_id": "op-1", "row_number": 7, "step_name": "Book it", "attempt": 1, "mine": 1}.items() <= vars(
        record
    ).items()


def test_a_context_has_no_room_for_the_state_of_a_row():
    with pytest.raises(AttributeError):
        context().mine = 1  # type: ignore[attr-defined]


def test_a_batch_context_has_a_context_for_each_row():
    row = context("book")
    batch = BatchContext(row.run, row.step, [row], attempt=2)
    assert (batch.operation_id, batch.operation_name, batch.step_name) == ("op-1", "invoices", "Book it")
    assert (batch.attempt, batch.meta.who, batch.rows[0].row_key) == (2, "ana", "k7")
    assert not batch.cancelled


def test_done_carries_an_output_or_none():
    assert (Done().output, Done(5).output) == (None, 5)
