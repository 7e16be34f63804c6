"""The connection dies at COMMIT: whether it happened, did not, or the server is still at it, it counts once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from approvals import Calls, Paper, Wall, approvals, at_wall, clean, failures, history, papers, states, two_engines
from left_chunks import SMALL as LEFT
from left_chunks import Bench, csv_of, raw_chunks, read_for_others

from penstock import Context, Pipeline, RowInvalid, operation, step
from penstock.db.connection import Link
from penstock.db.database import CommitUnknown, Database
from penstock.errors import Unavailable
from penstock.operations.chunk import store
from penstock.operations.inbox import settling
from penstock.operations.operation_ids import number_of
from penstock.settings import Settings
from penstock.testing import Engine, engine

SMALL = Settings(chunk_rows=2, flush_s=3600, cancel_grace_s=0)
OUTCOMES = ("did not happen", "happened", "is under way")


@asynccontextmanager
async def lost_answer(monkeypatch: pytest.MonkeyPatch, point: str, outcome: str) -> AsyncIterator[None]:
    """The answer to the first COMMIT at this point is lost.

    A commit that is under way ends only when the same transaction is tried again: until then nobody sees it, and
    whoever writes the same records waits for it, as with a server that waits for its standby.
    """
    whole = Database._whole
    under_way: list[Link] = []
    endings: list[asyncio.Task[None]] = []
    seen: list[str] = []

    async def end(link: Link) -> None:
        await link.tell("COMMIT")
        await link.close()

    async def lossy(db: Database, work: Any, name: str, tx: Any) -> Any:
        if name != point:
            return await whole(db, work, name, tx)
        seen.append(name)
        if len(seen) > 1:
            endings.extend(asyncio.create_task(end(under_way.pop())) for _ in list(under_way))
            return await whole(db, work, name, tx)
        if outcome == "happened":
            await whole(db, work, name, tx)
        elif outcome == "is under way":
            link = await Link(db._engine, db.dialect, db._statements).start()
            for statement in db.dialect.begin_write:
                await link.tell(statement)
            await work(link)
            under_way.append(link)
        raise CommitUnknown("the connection died at COMMIT")

    monkeypatch.setattr(Database, "_whole", lossy)
    yield
    monkeypatch.setattr(Database, "_whole", whole)
    await asyncio.gather(*endings)
    assert seen, f"nothing was committed at {point!r}"
    assert not under_way, "it was taken for done, or given up, without a second look"


class Letters:
    """Rows that pass every kind of write: an intent of their own, a wait, and an end; every call is counted."""

    def __init__(self) -> None:
        self.calls, self.wall = Calls(), Wall()
        letters = self

        @operation("letters")
        class Kind(Pipeline[Paper]):
            @step
            async def write(self, paper: Paper, ctx: Context) -> None:
                await letters.count("write", paper, ctx)

            @step(barrier=True)
            async def check(self, paper: Paper, ctx: Context) -> None:
                await letters.count("check", paper, ctx)

            @step.signal(key="{row.code}", timeout=60)
            async def approval(self, paper: Paper, ctx: Context) -> None:
                await letters.count("approval", paper, ctx)

            @step
            async def send(self, paper: Paper, ctx: Context) -> None:
                await letters.count("send", paper, ctx)

        self.kind = Kind

    async def count(self, name: str, paper: Paper, ctx: Context) -> None:
        self.calls[name, ctx.row_number] += 1
        if paper.desk == name:
            await self.wall.stop()


@asynccontextmanager
async def opened(kind: object, place: tuple[str, Path], **settings: Any) -> AsyncIterator[Engine]:
    url, folder = place
    given = SMALL.model_copy(update=settings)
    async with engine([kind], url=url, tmp_path=folder, settings=given) as e:
        yield e


def for_each_outcome(test: Any) -> Any:
    """On every database what ends at once; a commit that goes on beside others needs a server."""
    return pytest.mark.parametrize("outcome", OUTCOMES)(test)


@pytest.fixture
def outcome_here(outcome: str, database_kind: str) -> str:
    """On SQLite nothing is under way: its COMMIT is a call that returns, so there it has happened."""
    return "happened" if (outcome, database_kind) == ("is under way", "sqlite") else outcome


@for_each_outcome
@pytest.mark.parametrize("point", ["append", "seal", "claim", "intent", "flush", "settle", "release", "close"])
async def test_a_write_on_the_way_counts_once(database_url, tmp_path, monkeypatch, point, outcome_here):
    letters = Letters()
    async with opened(letters.kind, (database_url, tmp_path)) as e:
        async with lost_answer(monkeypatch, point, outcome_here):
            made = await e.create(letters.kind, papers(4))
            await e.work_until_idle()
            for paper in papers(4):
                await e.penstock.signals.complete(made.id, paper["code"])
            await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
        assert set(letters.calls.values()) == {1}
        assert len(letters.calls) == 4 * 4
        assert [line.event for line in await history(e, made)] == []
        assert await clean(e) == []


@for_each_outcome
async def test_a_chunk_that_is_given_back_is_given_back_once(database_url, tmp_path, monkeypatch, outcome_here):
    letters = Letters()
    async with opened(letters.kind, (database_url, tmp_path)) as e:
        made = await e.create(letters.kind, [*papers(1, desk="write"), {"code": "p2"}], options={"write.timeout": 3600})
        await at_wall(letters.wall, e.work_until_idle())
        await e.operations.pause(made.id)
        await e.worker.look_round()
        async with lost_answer(monkeypatch, "give_back", outcome_here):
            letters.wall.gone.set()
            await e.work_until_idle()
        assert [line.event for line in await history(e, made)] == []
        await e.operations.resume(made.id)
        await e.work_until_idle()
        assert await states(e, made) == ["WaitingForCompletion"] * 2
        assert set(letters.calls.values()) == {1}
        assert await clean(e) == []


@for_each_outcome
@pytest.mark.parametrize("desk", ["write", "front"], ids=["by the owner", "by the caller"])
async def test_a_drained_chunk_counts_once(database_url, tmp_path, monkeypatch, desk, outcome_here):
    letters = Letters()
    async with opened(letters.kind, (database_url, tmp_path), chunk_rows=1) as e:
        made = await e.create(letters.kind, papers(2, desk=desk))
        if desk == "write":
            await at_wall(letters.wall, e.work_until_idle())
        else:
            await e.work_until_idle()
        async with lost_answer(monkeypatch, "drain", outcome_here):
            await e.operations.cancel(made.id)
            await e.worker.look_round()
            await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Cancelled"
        assert await states(e, made) == ["Cancelled"] * 2
        assert await clean(e) == []


@for_each_outcome
async def test_a_chunk_validated_by_another_counts_once(database_url, tmp_path, monkeypatch, outcome_here):
    bench = Bench()
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=LEFT) as (reader, other):
        made = await reader.create(bench.kind, csv_of(papers(24)), file_name="a.csv")
        await read_for_others(reader)
        assert await raw_chunks(reader, made) > 2
        async with lost_answer(monkeypatch, "hand_over", outcome_here):
            await other.work_until_idle()
        assert (await other.operations.get(made.id)).status == "Completed"
        assert len(bench.checked) == len(bench.ran) == 24
        assert await clean(other) == []


@for_each_outcome
async def test_the_end_of_a_file_counts_once_while_others_still_validate(
    database_url, tmp_path, monkeypatch, outcome_here
):
    bench = Bench()
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=LEFT) as (reader, other):
        made = await reader.create(bench.kind, csv_of(papers(24)), file_name="a.csv")
        async with lost_answer(monkeypatch, "seal", outcome_here):
            await read_for_others(reader)
        assert (await other.operations.get(made.id)).status == "Validating"
        await other.work_until_idle()
        assert (await other.operations.get(made.id)).status == "Completed"
        assert await clean(other) == []


@for_each_outcome
async def test_a_file_is_rejected_once(database_url, tmp_path, monkeypatch, outcome_here):
    kind = failures(Calls(), broken=lambda ctx, code: False, max_errors=0)
    async with opened(kind, (database_url, tmp_path)) as e:
        async with lost_answer(monkeypatch, "reject", outcome_here):
            made = await e.create(kind, [{"code": "a"}, {"code": "b"}, {"code": "x1"}])
            await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Failed"
        events = [event.event for event in await e.operations.events(made.id)]
        assert events == ["created", "picked_up", "rejected"]
        assert await clean(e) == []


@for_each_outcome
async def test_a_row_that_is_checked_with_care_is_checked_on(database_url, tmp_path, monkeypatch, outcome_here):
    wall, checks = Wall(), Calls()

    @operation("careful")
    class Careful(Pipeline[Paper]):
        async def validate_row(self, paper: Paper, meta: None) -> None:
            checks["check", int(paper.code[1:])] += 1
            if paper.code == "p2" and checks["check", 2] == 1:
                await wall.stop()
            if paper.desk == "bad":
                raise RowInvalid("not a desk")

        @step
        async def work(self, paper: Paper, ctx: Context) -> None: ...

    async with opened(Careful, (database_url, tmp_path)) as e:
        made = await e.create(Careful, papers(3))
        await at_wall(wall, e.work_until_idle())
        await e.crash()
        async with lost_answer(monkeypatch, "suspect", outcome_here):
            await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
        assert await clean(e) == []


@for_each_outcome
async def test_a_signal_is_passed_on_to_the_next_row(database_url, tmp_path, monkeypatch, outcome_here):
    kind = approvals(Calls(), key="desk-{row.desk}")
    async with opened(kind, (database_url, tmp_path), chunk_rows=1) as e:
        made = await e.create(kind, papers(2))
        await e.work_until_idle()
        async with lost_answer(monkeypatch, "pass_on", outcome_here):
            for _ in range(2):
                await e.penstock.signals.complete(made.id, "desk-front")
            await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
        assert await clean(e) == []


@for_each_outcome
async def test_an_operation_with_too_many_errors_is_stopped(database_url, tmp_path, monkeypatch, outcome_here):
    kind = failures(Calls(), broken=lambda ctx, code: True, max_errors=0)
    async with opened(kind, (database_url, tmp_path)) as e:
        async with lost_answer(monkeypatch, "broke", outcome_here):
            made = await e.create(kind, papers(4))
            await e.work_until_idle()
            await e.worker.look_round()
            await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Failed"
        assert [event.event for event in await e.operations.events(made.id)].count("broke") == 1
        assert await clean(e) == []


@for_each_outcome
async def test_an_operation_is_created_once(database_url, tmp_path, monkeypatch, outcome_here):
    kind = failures(Calls(), broken=lambda ctx, code: False)
    async with opened(kind, (database_url, tmp_path)) as e:
        async with lost_answer(monkeypatch, "create", outcome_here):
            made = await e.create(kind, papers(2))
        blob = await e.penstock.blobs.upload(b'{"code": "p1"}', file_name="papers.jsonl")
        async with lost_answer(monkeypatch, "create", outcome_here):
            other = await e.operations.create(kind, blob=blob.id)
        assert {found.id for found in (await e.operations.list()).items} == {made.id, other.id}
        await e.work_until_idle()
        assert await states(e, made) == ["Completed"] * 2
        assert await states(e, other) == ["Completed"]
        assert await clean(e) == []


@asynccontextmanager
async def away_after(monkeypatch: pytest.MonkeyPatch, point: str) -> AsyncIterator[None]:
    """The database is away from the first COMMIT at this point on."""
    whole, connection = Database._whole, Database.connection

    async def last(db: Database, work: Any, name: str, tx: Any) -> Any:
        answer = await whole(db, work, name, tx)
        if name == point:
            monkeypatch.setattr(Database, "connection", away)
        return answer

    def away(db: Database) -> Any:
        raise Unavailable("the database is away")

    monkeypatch.setattr(Database, "_whole", last)
    yield
    assert Database.connection is away
    monkeypatch.setattr(Database, "_whole", whole)
    monkeypatch.setattr(Database, "connection", connection)


async def test_an_operation_that_was_stored_is_answered_though_the_database_goes_away(
    database_url, tmp_path, monkeypatch
):
    kind = failures(Calls(), broken=lambda ctx, code: False)
    async with opened(kind, (database_url, tmp_path)) as e:
        async with away_after(monkeypatch, "create"):
            made = await e.create(kind, papers(2))
        assert (made, made.status) == (await e.operations.get(made.id), "Pending")
        await e.work_until_idle()
        assert await states(e, made) == ["Completed"] * 2
        assert await clean(e) == []


async def test_a_signal_that_was_stored_is_answered_though_the_database_goes_away(database_url, tmp_path, monkeypatch):
    kind = approvals(Calls(), key="desk-{row.desk}")
    async with opened(kind, (database_url, tmp_path)) as e:
        made = await e.create(kind, papers(3))
        await e.work_until_idle()
        async with away_after(monkeypatch, "signal"):
            receipt = await e.penstock.signals.complete(made.id, "desk-front")
        assert receipt.outcome == "stored"
        assert await settling.sweep(e.penstock.db) == 1
        await e.work_until_idle()
        assert await states(e, made) == ["Completed", *["WaitingForCompletion"] * 2]
        assert await clean(e) == []


@for_each_outcome
@pytest.mark.parametrize("asked", ["all", "named", "edited"])
async def test_rows_are_asked_for_once(database_url, tmp_path, monkeypatch, asked, outcome_here):
    calls = Calls()
    kind = failures(calls, broken=lambda ctx, code: ctx.generation == 0)
    async with opened(kind, (database_url, tmp_path)) as e:
        made = await e.run(kind, papers(3))
        async with lost_answer(monkeypatch, "retry" if asked == "all" else "retry_rows", outcome_here):
            match asked:
                case "all":
                    retry = await e.operations.retry(made.id)
                case "named":
                    retry = await e.operations.retry(made.id, rows=[1, 2, 3])
                case _:
                    retry = await e.operations.edit_row(made.id, 1, {"desk": "back"})
        assert retry.submitted == (1 if asked == "edited" else 3)
        await e.work_until_idle()
        done = await e.operations.get(made.id)
        assert (done.retry_count, done.successful_rows) == (1, retry.submitted)
        assert [calls["first", n] for n in (1, 2, 3)] == [2 if n <= retry.submitted else 1 for n in (1, 2, 3)]
        assert await clean(e) == []


@for_each_outcome
async def test_an_operation_is_paused_resumed_and_cancelled_once(database_url, tmp_path, monkeypatch, outcome_here):
    letters = Letters()
    async with opened(letters.kind, (database_url, tmp_path)) as e:
        made = await e.create(letters.kind, papers(2))
        await e.work_until_idle()
        for point, act, status in (
            ("paused", e.operations.pause, "Paused"),
            ("resumed", e.operations.resume, "Running"),
            ("cancel_requested", e.operations.cancel, "Cancelled"),
        ):
            async with lost_answer(monkeypatch, point, outcome_here):
                assert (await act(made.id)).status == status
            assert [event.event for event in await e.operations.events(made.id)].count(point) == 1
        assert await clean(e) == []


async def test_a_write_decided_on_an_earlier_version_is_refused(database_url, tmp_path):
    """Whoever holds the fence may still know less than the database does: a repeat counts nothing twice."""
    letters = Letters()
    async with opened(letters.kind, (database_url, tmp_path)) as e:
        made = await e.create(letters.kind, papers(1))
        await e.work_until_idle()
        db = e.penstock.db
        async with db.read() as tx:
            (held,) = await store.load(tx, await number_of(tx, made.id), limit=1)
        await db.transaction(lambda tx: store.flush(db, tx, held, held.writing()))
        before = await states(e, made)
        for write in (
            lambda tx: store.flush(db, tx, held, held.writing()),
            lambda tx: store.flush(db, tx, held, held.writing(), owner=None),
            lambda tx: store.release(tx, held, due_at=0),
            lambda tx: store.close(db, tx, held, held.writing(), actor="one"),
            lambda tx: store.lock(tx, held),
        ):
            with pytest.raises(store.Lost):
                await db.transaction(write)
        assert await states(e, made) == before
        assert await clean(e) == []
