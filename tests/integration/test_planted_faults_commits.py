"""Planted faults, lost answers to commits, reading, and rows lost with their worker."""

from __future__ import annotations

from typing import Any

import pytest
from approvals import Paper, Wall, at_wall, clean, papers
from planted import both, office, parked
from sqlalchemy import Integer, bindparam, update
from stored import rows_of

from penstock import Context, failpoints, operation
from penstock.db.database import CommitUnknown
from penstock.operations.chunk import owned, store
from penstock.operations.running.actor import ChunkActor
from penstock.operations.tables import chunks, operations
from penstock.operations.validating import reading
from penstock.operations.validating.reading import Reading
from penstock.operations.worker import chunk_runner
from penstock.testing import engine

CLOSE_BY_FENCE_ALONE = (
    update(chunks)
    .where(
        chunks.c.id == bindparam("the_chunk"),
        chunks.c.fence == bindparam("the_fence"),
        bindparam("the_version", type_=Integer) >= 0,
    )
    .values(version=chunks.c.version + 1, owner=None, is_open=0)
)


@both
async def test_a_commit_of_unknown_outcome_that_counts_again_is_caught(tmp_path, monkeypatch, weak):
    """It has happened, but the first look does not show it: as on a server that still waits for its standby."""
    is_written, looks = store.is_written, []

    async def not_yet(*given: Any) -> bool:
        looks.append(given)
        return len(looks) > 1 and await is_written(*given)

    def answer_lost(point: str) -> None:
        if point == "close:after" and not looks:
            raise CommitUnknown("the connection died at COMMIT")

    monkeypatch.setattr(store, "is_written", not_yet)
    if weak:
        monkeypatch.setattr(store, "_CLOSE", CLOSE_BY_FENCE_ALONE)
    async with office(tmp_path) as e:
        made = await parked(e, papers(4))
        with failpoints.armed(answer_lost):
            await e.penstock.signals.complete(made.id, "paper-p1")
            await e.penstock.signals.complete(made.id, "paper-p2")
            await e.work_until_idle()
        assert looks
        assert ("open_chunks is 0, expected 1" in " ".join(await clean(e))) is weak


@both
async def test_a_commit_of_unknown_outcome_that_is_taken_for_done_is_caught(tmp_path, monkeypatch, weak):
    lost: list[str] = []

    async def surely(*_: Any) -> bool:
        return True

    def die(point: str) -> None:
        if point == "close:before" and not lost:
            lost.append(point)
            raise CommitUnknown("the connection died at COMMIT")

    if weak:
        monkeypatch.setattr(store, "is_written", surely)
    async with office(tmp_path) as e:
        made = await parked(e, papers(1))
        with failpoints.armed(die):
            await e.penstock.signals.complete(made.id, "paper-p1")
            await e.work_until_idle()
        assert lost
        assert ((await e.operations.get(made.id)).status != "Completed") is weak


@both
@pytest.mark.parametrize("halt", ["pause", "cancel"])
async def test_chunks_appended_while_an_operation_is_paused_or_stopping_are_caught(tmp_path, monkeypatch, weak, halt):
    append = Reading._append
    unguarded = (
        update(operations)
        .where(
            operations.c.number == bindparam("the_operation"),
            operations.c.fence == bindparam("the_fence"),
            operations.c.rows_read == bindparam("read_before"),
        )
        .values(
            open_chunks=operations.c.open_chunks + bindparam("opened"),
            raw_chunks=operations.c.raw_chunks + bindparam("left_raw"),
        )
    )

    async def halted_meanwhile(reader: Reading, *given: Any) -> None:
        if not reader.is_halted:
            await getattr(e.operations, halt)(made.id)
            reader.halt()
        await append(reader, *given)

    if weak:
        monkeypatch.setattr(reading, "_READ_ON", unguarded)
    monkeypatch.setattr(Reading, "_append", halted_meanwhile)
    async with office(tmp_path) as e:
        made = await e.create("approvals", papers(2))
        await e.work_until_idle()
        now = await e.operations.get(made.id)
        assert now.status == {"pause": "Paused", "cancel": "Cancelled"}[halt]
        assert (now.rows_read > 0) is weak


@both
@pytest.mark.parametrize("fault", ["not counted", "not stored"])
async def test_rows_lost_with_their_worker_that_are_forgotten_are_caught(tmp_path, monkeypatch, weak, fault):
    recover, flush = owned.recover, ChunkActor._flush

    def uncounted(chunk: Any, now: int) -> None:
        before = bytes(chunk.ledger.lost)
        recover(chunk, now)
        chunk.ledger.lost[:] = before

    async def unstored(actor: ChunkActor, **given: Any) -> None:
        lost = bytes(actor.owned.ledger.lost)
        actor.owned.ledger.lost[:] = bytes(len(lost))
        await flush(actor, **given)
        actor.owned.ledger.lost[:] = lost

    if weak and fault == "not counted":
        monkeypatch.setattr(chunk_runner, "recover", uncounted)
    if weak and fault == "not stored":
        monkeypatch.setattr(ChunkActor, "_flush", unstored)
    wall = Wall()

    @operation("fatal")
    async def fatal(paper: Paper, ctx: Context) -> None:
        await wall.stop()

    async with engine([fatal], tmp_path=tmp_path) as e:
        made = await e.create(fatal, papers(1))
        await at_wall(wall, e.work_until_idle())
        await e.crash()
        wall.reached.clear()
        await at_wall(wall, e.work_until_idle())
        (row,) = await rows_of(e.penstock.db, made.id)
        wall.gone.set()
        assert (row.lost != 1) is weak
