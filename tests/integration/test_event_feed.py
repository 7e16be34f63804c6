"""The feed of events: whoever goes on behind the last number it saw misses nothing, in whatever order moves commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from approvals import Paper, papers
from sqlalchemy import delete, select, update

from penstock import Context, operation
from penstock.db.database import Database
from penstock.journal import numbering
from penstock.journal.queries import record
from penstock.journal.tables import transitions
from penstock.operations.model import Event
from penstock.operations.moves import move
from penstock.operations.operation_ids import number_of
from penstock.testing import Engine, engine


@operation("file-papers")
async def file_papers(paper: Paper, ctx: Context) -> None: ...


@pytest.fixture
async def e(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    async with engine([file_papers], url=database_url, tmp_path=tmp_path) as opened:
        yield opened


def told(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.operation_id, event.event) for event in events]


async def stored_numbers(e: Engine) -> list[int | None]:
    """The numbers of operations' moves."""
    mine = select(transitions.c.position).where(transitions.c.machine == "operation")
    async with e.penstock.db.read() as tx:
        return list((await tx.execute(mine.order_by(transitions.c.sequence))).scalars())


@pytest.mark.databases("postgresql", "mariadb")
async def test_a_move_that_commits_after_a_later_one_was_read_is_not_missed(e):
    slow, quick = [await e.create(file_papers, papers(1)) for _ in range(2)]
    db = e.penstock.db
    seen = await e.operations.events()
    async with db.write() as open_transaction:
        number = await number_of(open_transaction, slow.id)
        assert await move(db, open_transaction, number, "picked_up", actor="ana") is not None
        await e.operations.cancel(quick.id)
        seen += (read := await e.operations.events(since=seen[-1].sequence))
        assert told(read) == [(quick.id, "cancelled")]
    later = await e.operations.events(since=seen[-1].sequence)
    assert told(later) == [(slow.id, "picked_up")]
    assert told(await e.operations.events()) == told([*seen, *later])
    assert await e.operations.events(since=later[-1].sequence) == []


@pytest.mark.databases("postgresql", "mariadb")
async def test_moves_of_one_operation_that_commit_between_two_passes_keep_their_order(e, monkeypatch):
    """Its first move was written before those of the first pass, its second one behind them; both come afterwards."""
    monkeypatch.setattr(numbering, "NUMBERED_EACH", 2)
    db, transaction, passes = e.penstock.db, Database.transaction, []
    slow, *others = [await e.create(file_papers, papers(1)) for _ in range(4)]
    await e.operations.events()
    async with AsyncExitStack() as stack:
        open_transaction = await stack.enter_async_context(db.write())
        number = await number_of(open_transaction, slow.id)
        await move(db, open_transaction, number, "picked_up", actor="ana")
        for other in others:
            await e.operations.cancel(other.id)

        async def commit_before_the_second_pass(db: Database, work: Any, point: str = "") -> Any:
            passes.append(point)
            if passes.count("number_events") == 2 and passes[-1] == "number_events":
                await stack.aclose()
                await e.operations.pause(slow.id)
            return await transaction(db, work, point)

        monkeypatch.setattr(Database, "transaction", commit_before_the_second_pass)
        await e.operations.events()
    found = await e.operations.events(slow.id)
    assert [event.event for event in found] == ["created", "picked_up", "paused"]
    assert [event.sequence for event in found] == sorted(event.sequence for event in found)


async def test_readers_at_once_give_no_number_out_twice_and_all_read_the_same(e, monkeypatch):
    """Small passes, so that several take turns while moves are made."""
    monkeypatch.setattr(numbering, "NUMBERED_EACH", 2)
    is_over = asyncio.Event()

    async def read() -> list[Event]:
        seen: list[Event] = []
        while True:
            was_over = is_over.is_set()
            more = await e.operations.events(since=seen[-1].sequence if seen else 0, limit=3)
            if was_over and not more:
                return seen
            seen += more
            await asyncio.sleep(0)

    async def make_moves() -> None:
        for _ in range(6):
            made = await e.create(file_papers, papers(1))
            await e.operations.cancel(made.id)
        is_over.set()

    *feeds, _ = await asyncio.gather(*(read() for _ in range(3)), make_moves())
    numbers = await stored_numbers(e)
    assert None not in numbers
    assert len(numbers) == len(set(numbers)) == 12
    assert all([event.sequence for event in feed] == sorted(number for number in numbers if number) for feed in feeds)


async def test_moves_that_were_read_keep_their_numbers_and_those_of_one_operation_their_order(e):
    made = await e.create(file_papers, papers(1))
    first = await e.operations.events()
    await e.work_until_idle()
    every = await e.operations.events(made.id)
    assert every[: len(first)] == first
    assert [event.event for event in every] == ["created", "picked_up", "validated", "finished"]
    assert [event.sequence for event in every] == sorted({event.sequence for event in every})


async def test_a_feed_that_nobody_has_read_for_long_is_numbered_in_passes(e, monkeypatch):
    monkeypatch.setattr(numbering, "NUMBERED_EACH", 3)
    for _ in range(4):
        await e.operations.cancel((await e.create(file_papers, papers(1))).id)
    assert await stored_numbers(e) == [None] * 8
    found = await e.operations.events()
    assert len(found) == 8
    assert await stored_numbers(e) == [event.sequence for event in found]


async def test_numbers_go_on_behind_those_of_a_database_that_was_upgraded(e):
    """An upgrade gives every move its number; the counter is made when the first one after it is read."""
    made = await e.create(file_papers, papers(1))

    async def upgrade(tx):
        await tx.execute(update(transitions).values(position=40))

    await e.penstock.db.transaction(upgrade)
    assert [event.sequence for event in await e.operations.events()] == [40]
    await e.operations.cancel(made.id)
    assert told(await e.operations.events(since=40)) == [(made.id, "cancelled")]


async def test_numbers_are_not_given_out_again_when_the_last_moves_are_gone(e):
    await e.create(file_papers, papers(1))
    (last,) = await e.operations.events()

    async def forget(tx):
        await tx.execute(delete(transitions))

    await e.penstock.db.transaction(forget)
    made = await e.create(file_papers, papers(1))
    assert told(await e.operations.events(since=last.sequence)) == [(made.id, "created")]


async def test_moves_of_other_machines_are_no_events_and_hide_none(e):
    async def move_blobs(tx):
        for _ in range(3):
            await record(
                e.penstock.db, tx, machine="blob", subject="b", source=None, event="x", target="y", actor="ana"
            )

    first = await e.create(file_papers, papers(1))
    await e.penstock.db.transaction(move_blobs)
    second = await e.create(file_papers, papers(1))
    (seen,) = await e.operations.events(limit=1)
    assert told([seen, *await e.operations.events(since=seen.sequence, limit=1)]) == [
        (first.id, "created"),
        (second.id, "created"),
    ]
    assert len(await e.operations.events(limit=2)) == 2
