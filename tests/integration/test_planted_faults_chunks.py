"""Closing, releasing, stopping, retrying: each test plants one fault in the core, and shows that it is seen.

With `weak` False the same scenario runs on the real thing and must be clean, so that it is the fault that is caught.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from approvals import Calls, Paper, Wall, at_wall, clean, failures, papers, requests_of, states
from planted import DONE, WAIT, both, office, overlooked, parked
from sqlalchemy import Column, ForeignKey, Integer, MetaData, Table, bindparam, false, select, update

from penstock import Context, StepFailed, operation
from penstock.db.schema import metadata
from penstock.errors import Conflict
from penstock.operations import control, moves, retrying
from penstock.operations.chunk import store
from penstock.operations.chunk.store import Lost
from penstock.operations.inbox import settling
from penstock.operations.retrying import NothingToRetry
from penstock.operations.running import actor as acting
from penstock.operations.running.actor import ChunkActor
from penstock.operations.running.planning import next_due
from penstock.operations.tables import chunks, operations, requests
from penstock.settings import Settings
from penstock.testing import engine

# --- closing and letting go


@both
async def test_an_end_without_the_operation_row_is_caught(tmp_path, monkeypatch, weak):
    async def close(db: Any, tx: Any, chunk: Any, writing: Any, **_: Any) -> None:
        await store.flush(db, tx, chunk, writing, is_open=0, owner=None)

    if weak:
        monkeypatch.setattr(store, "close", close)
    async with office(tmp_path) as e:
        made = await parked(e, papers(1))
        await e.penstock.signals.complete(made.id, "paper-p1")
        await e.work_until_idle()
        assert ("open_chunks is 1, expected 0" in " ".join(await clean(e))) is weak


@both
async def test_letting_go_past_new_mail_is_caught(tmp_path, monkeypatch, weak):
    let_go = ChunkActor._release
    posted: list[str] = []

    async def signal_then_release(actor: ChunkActor) -> bool:
        if not posted:
            posted.append((await e.penstock.signals.complete(made.id, "paper-p1")).outcome)
        return await let_go(actor)

    if weak:
        past_new_ones = store._FLUSH.where(chunks.c.message_count >= bindparam("seen_messages")).values(owner=None)
        monkeypatch.setattr(store, "_RELEASE", past_new_ones)
    monkeypatch.setattr(ChunkActor, "_release", signal_then_release)
    async with office(tmp_path) as e:
        made = await e.create("approvals", papers(1))
        await e.work_until_idle()
        assert posted == ["delivered"]
        assert await states(e, made) == ([WAIT] if weak else [DONE])
        assert await overlooked(e) is weak


@both
async def test_letting_go_without_a_look_after_parking_is_caught(tmp_path, monkeypatch, weak):
    flush = ChunkActor._flush

    async def blind(actor: ChunkActor, **given: Any) -> None:
        await flush(actor, **given)
        actor._must_look = False

    if weak:
        monkeypatch.setattr(ChunkActor, "_flush", blind)
    async with office(tmp_path) as e:
        made = await e.create("approvals", papers(1))
        await e.penstock.signals.complete(made.id, "paper-p1")
        await e.work_until_idle()
        assert await overlooked(e) is weak


@both
async def test_parking_and_letting_go_in_one_commit_is_caught(tmp_path, monkeypatch, weak):
    flush = ChunkActor._flush

    async def park_and_go(actor: ChunkActor, **given: Any) -> None:
        if not actor.progress.has_parked:
            return await flush(actor, **given)
        writing, due = actor.owned.writing(), next_due(actor.owned)
        await actor.db.transaction(
            lambda tx: store.flush(actor.db, tx, actor.owned, writing, owner=None, due_at=due), "park"
        )
        raise Lost("let go in the same breath")

    if weak:
        monkeypatch.setattr(ChunkActor, "_flush", park_and_go)
    async with office(tmp_path) as e:
        made = await e.create("approvals", papers(1))
        await e.penstock.signals.complete(made.id, "paper-p1")
        await e.work_until_idle()
        assert await overlooked(e) is weak


@both
async def test_a_paused_operation_that_cannot_finish_is_caught(tmp_path, monkeypatch, weak):
    finish = moves.finish_if_over

    async def not_while_paused(db: Any, tx: Any, head: Any, **given: Any) -> Any:
        return head if head.state == "Paused" else await finish(db, tx, head, **given)

    if weak:
        monkeypatch.setattr(store, "finish_if_over", not_while_paused)
    wall = Wall()

    @operation("last")
    async def last(paper: Paper, ctx: Context) -> None:
        await wall.stop()

    async with engine([last], tmp_path=tmp_path) as e:
        made = await e.create(last, papers(1))
        await at_wall(wall, e.work_until_idle())
        await e.operations.pause(made.id)
        wall.gone.set()
        await e.work_until_idle()
        assert ("it is Paused, but nothing of it is open" in " ".join(await clean(e))) is weak


# --- stopping


@both
async def test_a_cancel_straight_to_cancelled_is_caught(tmp_path, monkeypatch, weak):
    async def at_once(db: Any, number: int, **_: Any) -> Any:
        async def stop(tx: Any) -> Any:
            await tx.execute(update(operations).where(operations.c.number == number).values(state="Cancelled"))
            return await moves.head_of(tx, number)

        return await db.transaction(stop)

    if weak:
        monkeypatch.setattr(control, "cancel", at_once)
    async with office(tmp_path) as e:
        made = await parked(e, papers(2))
        await e.operations.cancel(made.id)
        told = " ".join(await clean(e))
        assert ("it is Cancelled, but 2 rows have no verdict" in told) is weak


@both
async def test_a_drain_that_waits_for_something_to_be_due_is_caught(tmp_path, monkeypatch, weak):
    candidates = store.candidates

    async def only_due(db: Any, tx: Any, **given: Any) -> Any:
        found = await candidates(db, tx, **given)
        return [chunk for chunk in found if chunk.operation_state != "Stopping"]

    if weak:
        monkeypatch.setattr(store, "candidates", only_due)
    async with office(tmp_path) as e:
        made = await parked(e, papers(2))
        await e.operations.cancel(made.id)
        await e.work_until_idle()
        assert ((await e.operations.get(made.id)).status != "Cancelled") is weak


# --- retry and schema


@both
async def test_a_retry_that_opens_chunks_outside_its_transaction_is_caught(tmp_path, monkeypatch, weak):
    async def later(*_: Any, **__: Any) -> None:
        """The caller dies before it comes to the second transaction."""

    async with office(tmp_path) as e:
        made = await parked(e, papers(1))
        await e.advance(61)
        await e.work_until_idle()
        if weak:
            monkeypatch.setattr(retrying, "_request", later)
        await e.operations.retry(made.id)
        await e.work_until_idle()
        assert ("open_chunks is 1, expected 0" in " ".join(await clean(e))) is weak


@both
async def test_rows_of_a_stopping_operation_that_are_accepted_for_retry_are_caught(tmp_path, monkeypatch, weak):
    if weak:
        monkeypatch.setattr(retrying, "_RUNNING", (*retrying._RUNNING, "Stopping"))
    wall = Wall()

    @operation("last", max_row_concurrency=1)
    async def last(paper: Paper, ctx: Context) -> None:
        if ctx.row_number == 1:
            raise StepFailed("no room")
        await wall.stop()

    async with engine([last], tmp_path=tmp_path, settings=Settings(chunk_rows=1)) as e:
        made = await e.create(last, papers(2))
        await at_wall(wall, e.work_until_idle())
        while (await e.operations.row(made.id, 1)).state != "Failed":  # noqa: ASYNC110  # it happens in the worker
            await asyncio.sleep(0)
        await e.operations.cancel(made.id)
        with suppress(Conflict):
            await e.operations.retry(made.id, rows=[1])
        wall.gone.set()
        await e.worker.look_round()
        await e.work_until_idle()
        assert refused_later(await requests_of(e, made)) is weak


@both
async def test_an_edit_beside_a_retry_of_all_is_caught(tmp_path, monkeypatch, weak):
    def sees_no_request(*columns: Any) -> Any:
        query = select(*columns)
        return query.where(false()) if columns[0] is requests.c.id else query

    if weak:
        monkeypatch.setattr(retrying, "select", sees_no_request)
    async with engine([failures(Calls(), broken=lambda ctx, code: code == "bad")], tmp_path=tmp_path) as e:
        made = await e.create("failures", [{"code": "bad"}])
        await e.work_until_idle()
        await e.operations.retry(made.id)
        with suppress(NothingToRetry):
            await e.operations.edit_row(made.id, 1, {"code": "good"})
        await e.work_until_idle()
        assert refused_later(await requests_of(e, made)) is weak


def refused_later(asked: list[Any]) -> bool:
    """Whether a request that was accepted came to nothing."""
    return any(request.outcome.startswith("refused") for request in asked)


def keys_to_operation(tables: MetaData) -> list[str]:
    return [
        f"{table.name}.{key.parent.name}"
        for table in tables.sorted_tables
        for key in table.foreign_keys
        if key.column.table.name == operations.name
    ]


@both
def test_a_foreign_key_to_the_operation_is_caught(weak):
    """It would lock the operation after the chunk, and deadlock with the rule that the operation comes first."""
    tables = MetaData()
    for table in metadata.sorted_tables:
        table.to_metadata(tables)
    if weak:
        column = Column("operation", Integer, ForeignKey(f"{operations.name}.number"))
        Table("planted", tables, Column("id", Integer, primary_key=True), column)
    assert keys_to_operation(tables) == (["planted.operation"] if weak else [])


def test_the_faults_are_planted_where_the_engine_looks():
    assert acting.settling is settling
    assert acting.store is store
