"""What is kept of operations for how long: parts of them, whole ones, holds, and one that is deleted at once."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from approvals import Paper, clean, papers
from sqlalchemy import func, select
from stored import stored_files

from penstock import Context, Pipeline, StepFailed, failpoints, operation, step
from penstock.access.model import Principal
from penstock.clock import from_micros
from penstock.errors import Conflict, InvalidInput, NotFound
from penstock.operations.model import Operation
from penstock.operations.proof.doctor import diagnose
from penstock.operations.pruning import applying
from penstock.operations.pruning.applying import Retention
from penstock.operations.tables import chunk_rows, history
from penstock.settings import Settings
from penstock.testing import Engine, engine, json_lines

DAY_S = 86_400
SMALL = Settings(chunk_rows=2, keep={"operations": 90 * DAY_S, "files": 10 * DAY_S})


def booking(name: str, **options: Any) -> type:
    @operation(name, row_key="code", **options)
    class Booking(Pipeline[Paper]):
        @step(retries=1, backoff=0)
        async def book(self, paper: Paper, ctx: Context) -> str:
            if ctx.attempt == 1:
                raise OSError("not now")
            return f"booked {paper.code}"

        @step
        async def check(self, paper: Paper, ctx: Context) -> None:
            if paper.code == "p1" and ctx.generation == 0:
                raise StepFailed("no")

    return Booking


KINDS = [
    booking("plain"),
    booking("brief", keep="1d"),
    booking("rows", keep="rows=1d, operations=forever"),
    booking("outputs", keep={"outputs": "1d"}),
    booking("history", keep={"history": "1d"}),
    booking("all", keep={"rows": "1d", "outputs": "1d", "history": "1d", "files": "1d"}),
]


@pytest.fixture
async def e(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    async with engine(KINDS, url=database_url, tmp_path=tmp_path, settings=SMALL) as opened:
        yield opened
        assert await clean(opened) == []


async def ended(e: Engine, kind: str, rows: int = 5) -> Operation:
    """An operation that failed at a row, which was edited and retried: it has records of every kind."""
    made = await e.run(kind, papers(rows))
    await e.operations.edit_row(made.id, 1, {"desk": "back"})
    await e.work_until_idle()
    while not (now := await e.operations.get(made.id)).is_settled:
        await e.skip_wait(now)
        await e.work_until_idle()
    return now


def age_files(folder: Path) -> None:
    for path in stored_files(folder):
        os.utime(path, (path.stat().st_mtime - 7200,) * 2)


async def count(e: Engine, table: Any) -> int:
    async with e.penstock.db.read() as tx:
        return (await tx.execute(select(func.count()).select_from(table))).scalar_one()


async def test_each_operation_has_its_own_policy_or_the_deployments(e, tmp_path):
    made = {kind: await ended(e, kind) for kind in ("plain", "brief", "rows")}
    age_files(tmp_path)
    await e.advance(2 * DAY_S)
    would = await e.operations.prune(dry_run=True)
    done = await e.operations.prune()
    assert (would.operations, would.rows, dict(would.parts)) == (1, 5, {"rows": 1})
    assert (done.operations, done.rows, dict(done.parts)) == (1, 5, {"rows": 1})
    with pytest.raises(NotFound):
        await e.operations.get(made["brief"].id)
    assert (await e.operations.get(made["rows"].id)).pruned == ("rows",)
    assert (await e.operations.get(made["plain"].id)).pruned == ()
    await e.advance(10 * DAY_S)
    assert dict((await e.operations.prune()).parts) == {"files": 2}
    await e.advance(90 * DAY_S)
    assert (await e.operations.prune()).operations == 1
    assert [each.id for each in (await e.operations.list()).items] == [made["rows"].id], "kept for ever"
    assert (await e.operations.prune()).operations == 0


async def test_rows_go_and_their_verdicts_stay(e, tmp_path):
    made = await ended(e, "rows")
    before = await e.operations.row(made.id, 2)
    assert before.data is not None
    await e.advance(2 * DAY_S)
    await e.operations.prune()
    after = await e.operations.row(made.id, 2)
    assert (after.data, after.state, after.steps) == (None, before.state, before.steps)
    assert (await e.operations.row(made.id, 1)).data is None, "an edit is row data too"
    assert all(entry.data is None for entry in (await e.operations.history(made.id)).items)
    assert await count(e, chunk_rows) == 0


async def test_outputs_go_and_steps_stay(e, tmp_path):
    made = await ended(e, "outputs")
    assert (await e.operations.row(made.id, 2)).steps[1].output == "booked p2"
    await e.advance(2 * DAY_S)
    await e.operations.prune()
    found = await e.operations.row(made.id, 2)
    assert [(each.state, each.output) for each in found.steps if each.index >= 0] == [("Completed", None)] * 2


async def test_history_goes(e, tmp_path):
    made = await ended(e, "history")
    assert (await e.operations.history(made.id)).items
    await e.advance(2 * DAY_S)
    await e.operations.prune()
    assert (await e.operations.history(made.id)).items == []
    assert await count(e, history) == 0
    assert (await e.operations.get(made.id)).status == made.status


@pytest.mark.parametrize("kind", ["rows", "outputs"])
async def test_rows_that_miss_what_they_need_are_not_retried(e, kind):
    made = await e.run(kind, papers(3))
    assert made.failed_rows == 1
    await e.advance(2 * DAY_S)
    await e.operations.prune()
    assert not (await e.operations.can_retry(made.id)).is_eligible
    for again in (e.operations.retry(made.id), e.operations.retry(made.id, rows=[1])):
        with pytest.raises(Conflict, match=f"its {kind} were removed"):
            await again
    assert (await e.operations.get(made.id)).status == made.status


async def test_what_was_left_half_done_is_finished_later(e, tmp_path, monkeypatch):
    monkeypatch.setattr(applying, "CHUNKS_EACH", 1)
    made = await ended(e, "all")
    age_files(tmp_path)
    await e.advance(2 * DAY_S)

    class Died(Exception):
        """The process is gone."""

    def die(point: str) -> None:
        if point.startswith("prune"):
            hits.append(point)
            if len(hits) == stop:
                raise Died

    stop, is_done = 1, False
    while not is_done:
        hits: list[str] = []
        with failpoints.armed(die):
            try:
                await e.operations.prune()
                is_done = len(hits) < stop
            except Died:
                stop += 1
        assert await clean(e) == []
    assert stop > 6
    assert (await e.operations.get(made.id)).pruned == ("rows", "outputs", "history", "files")
    assert stored_files(tmp_path) == []
    assert (await count(e, chunk_rows), await count(e, history)) == (0, 0)


async def test_a_worker_prunes_parts_in_small_passes(e, tmp_path):
    await ended(e, "all", rows=30)
    age_files(tmp_path)
    await e.advance(2 * DAY_S)
    retention = Retention(e.penstock.db, e.penstock.files, e.clock, keep={})
    left = [await count(e, chunk_rows)]
    while left[-1]:
        await retention.tick()
        left.append(await count(e, chunk_rows))
    for _ in range(5):
        await retention.tick()
    assert await count(e, history) == 0
    assert stored_files(tmp_path) == []


# --- holds


async def test_nothing_of_an_operation_that_is_held_is_removed(e, tmp_path):
    made = await ended(e, "brief")
    held = await e.operations.hold(made.id, "audit 2031", actor="ana")
    assert held.hold == "audit 2031"
    await e.advance(1000 * DAY_S)
    now = e.clock.now_us()
    assert (await e.operations.prune(dry_run=True)).operations == 0
    assert (await e.operations.prune()).operations == 0
    with pytest.raises(Conflict, match=r"is held \(audit 2031\); release it first"):
        await e.operations.delete(made.id)
    assert (await diagnose(e.penstock.settings, e.clock)).facts.held == 1
    assert (await e.operations.release(made.id, actor="bea", cause="it is over")).hold is None
    await e.operations.release(made.id)
    logged = [(each.event, each.actor, each.cause) for each in await e.operations.events(made.id)][-2:]
    assert logged == [("held", "ana", "audit 2031"), ("released", "bea", "it is over")]
    assert await clean(e) == []
    assert (await e.operations.prune()).operations == 1
    assert e.clock.now_us() == now


async def test_a_hold_needs_a_reason_and_an_operation(e):
    made = await ended(e, "plain")
    with pytest.raises(InvalidInput, match="needs a reason"):
        await e.operations.hold(made.id, " ")
    await e.operations.delete(made.id)
    with pytest.raises(NotFound):
        await e.operations.hold(made.id, "too late")


async def test_a_hold_that_comes_before_the_removal_wins(e, tmp_path):
    made = await ended(e, "brief")
    await e.advance(2 * DAY_S)
    reached: list[str] = []

    async def hold_first(*given: Any, **named: Any) -> Any:
        if not reached:
            reached.append("begin")
            await e.operations.hold(made.id, "wait")
        return await transaction(*given, **named)

    transaction = e.penstock.db.transaction
    e.penstock.db.transaction = hold_first
    try:
        assert (await e.operations.prune()).operations == 0
    finally:
        e.penstock.db.transaction = transaction
    assert (await e.operations.get(made.id)).hold == "wait"


# --- deleting one


async def test_one_operation_is_deleted_at_once(e, tmp_path):
    made, other = await ended(e, "plain"), await ended(e, "plain", rows=2)
    age_files(tmp_path)
    done = await e.operations.delete(made.id)
    assert (done.operations, done.rows) == (1, 5)
    assert [each.id for each in (await e.operations.list()).items] == [other.id]


async def test_an_operation_under_way_is_not_deleted(e):
    made = await e.create("plain", papers(2))
    with pytest.raises(Conflict, match="is Pending; cancel it first"):
        await e.operations.delete(made.id)


# --- doctor


async def test_doctor_says_what_is_kept_and_when_policies_are_not_applied(e):
    await ended(e, "brief")
    await e.advance(DAY_S + 60)
    found = await diagnose(e.penstock.settings, e.clock)
    assert found.facts.keep == "operations=90d, files=10d"
    assert "policies_are_applied" not in [each.check for each in found.symptoms], "workers look once an hour"
    await e.advance(DAY_S)
    found = await diagnose(e.penstock.settings, e.clock)
    (symptom,) = [each for each in found.symptoms if each.check == "policies_are_applied"]
    assert "1 operation is kept for longer" in symptom.what
    await e.operations.prune()
    assert (await diagnose(e.penstock.settings, e.clock)).facts.overdue_removals == 0


@pytest.mark.parametrize("rows", [None, [1]])
async def test_history_that_a_retry_makes_anew_goes_as_well(e, rows):
    made = await e.run("history", papers(3))
    await e.advance(2 * DAY_S)
    await e.operations.prune()
    assert (await e.operations.get(made.id)).pruned == ("history",)
    await e.operations.retry(made.id, rows=rows)
    await e.work_until_idle()
    assert (await e.operations.get(made.id)).pruned == ()
    assert (await e.operations.history(made.id)).items
    await e.advance(2 * DAY_S)
    await e.operations.prune()
    assert (await e.operations.history(made.id)).items == []


async def test_a_retry_that_comes_while_history_goes_keeps_its_own_which_goes_later(e, monkeypatch):
    made = await e.run("history", papers(5))
    monkeypatch.setattr(applying, "RECORDS_EACH", 1)
    await e.advance(2 * DAY_S)
    remove_part = applying._remove_part

    async def with_a_retry(db: Any, number: int, part: str, budget: Any) -> bool:
        assert not await remove_part(db, number, part, iter([None]))
        await e.operations.retry(made.id)
        await e.work_until_idle()
        return await remove_part(db, number, part, budget)

    monkeypatch.setattr(applying, "_remove_part", with_a_retry)
    assert not (await e.operations.prune()).parts
    now = await e.operations.get(made.id)
    assert (now.status, now.pruned) == ("Completed", ())
    assert "retried" in [line.event for line in (await e.operations.history(made.id)).items]
    assert await clean(e) == []
    monkeypatch.setattr(applying, "_remove_part", remove_part)
    await e.advance(2 * DAY_S)
    await e.operations.prune()
    assert (await e.operations.history(made.id)).items == []
    assert (await e.operations.get(made.id)).pruned == ("history",)


async def test_an_erasure_beside_another_leaves_nothing(e, tmp_path, monkeypatch):
    made = await ended(e, "plain")
    begin_part, others = applying._begin_part, iter(range(2))

    async def changed_meanwhile(due: Any, pruned: dict[str, bool], revision: int, tx: Any) -> bool:
        if [*pruned][-1] == "outputs" and next(others, None) is not None:
            return False  # another changed the operation since we looked
        return await begin_part(due, pruned, revision, tx)

    monkeypatch.setattr(applying, "_begin_part", changed_meanwhile)
    await e.operations.erase(made.id)
    assert set((await e.operations.get(made.id)).pruned) == {"rows", "outputs", "history", "files"}
    assert stored_files(tmp_path) == []


async def test_what_an_erasure_left_half_done_is_finished_without_any_policy(database_url, tmp_path, monkeypatch):
    forever = Settings(chunk_rows=2)
    async with engine(KINDS, url=database_url, tmp_path=tmp_path, settings=forever) as e:
        made = await ended(e, "plain")

        class Died(Exception):
            """The process is gone."""

        def die(point: str) -> None:
            hits.append(point)
            if hits.count("prune_part:after") == 2:
                raise Died

        hits: list[str] = []
        with failpoints.armed(die), pytest.raises(Died):
            await e.operations.erase(made.id)
        assert (await e.operations.get(made.id)).pruned != ()
        await e.operations.prune()
        assert await count(e, chunk_rows) == 0
        assert await clean(e) == []


async def test_an_operation_that_cannot_be_pruned_holds_up_no_other(e, monkeypatch):
    made = [await ended(e, "rows") for _ in range(3)]
    await e.advance(2 * DAY_S)
    remove_part = applying._remove_part

    async def damaged(db: Any, number: int, part: str, budget: Any) -> bool:
        if number == 1:
            raise ValueError("a ledger that cannot be read")
        return await remove_part(db, number, part, budget)

    monkeypatch.setattr(applying, "_remove_part", damaged)
    retention = Retention(e.penstock.db, e.penstock.files, e.clock, keep={})
    for _ in range(5):
        await retention.tick()
    left = [[row.data is None for row in (await e.operations.rows(each.id, data=True)).items] for each in made[1:]]
    assert left == [[True] * 5] * 2


async def test_who_deleted_an_operation_is_in_the_log_of_its_tenant(e):
    tenant = e.penstock.seen_by(Principal("ana", frozenset({"admin"}), tenant="acme"))
    made = await tenant.operations.create("plain", file=json_lines(papers(1)), file_name="p.jsonl")
    await e.operations.cancel(made.id)
    await e.operations.delete(made.id)
    [entry, *_] = (await e.penstock.audit.list(tenant="acme", subject=made.id)).items
    assert entry.action == "operation.delete"


async def test_who_pruned_what_no_policy_names_is_in_the_log_as_who_deleted_it(e):
    made = {kind: await e.create(kind, papers(1)) for kind in ("plain", "brief")}
    for each in made.values():
        await e.operations.cancel(each.id)
    await e.advance(2 * DAY_S)
    assert (await e.operations.prune()).operations == 1
    assert (await e.operations.prune(from_micros(e.clock.now_us()))).operations == 1
    entries = (await e.penstock.audit.list()).items
    assert [entry.subject for entry in entries if entry.action == "operation.delete"] == [made["plain"].id]
