"""`verify` finds nothing in what the engine wrote, and every kind of thing that the engine would never write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from parcels import Parcel, Parcels, parcels_csv, replant, run, shop
from sqlalchemy import delete, insert, select, update
from sqlalchemy.sql import Executable

from penstock import Context, Penstock, Pipeline, StepFailed, operation, step
from penstock.errors import NotFound
from penstock.journal.tables import transitions
from penstock.operations.chunk.ledger import COMPLETED, FAILED, PENDING, WAITING, Ledger
from penstock.operations.chunk.packing import pack_rows
from penstock.operations.model import Operation, VerifyReport
from penstock.operations.operation_ids import number_of
from penstock.operations.retrying import retry_rows
from penstock.operations.tables import chunk_rows, chunks, operations, row_records


@operation("untracked", track_row_data=False)
async def keep_nothing(parcel: Parcel, ctx: Context) -> None:
    """Its rows are not stored."""


@pytest.fixture
async def penstock(database_url: str, tmp_path: Path) -> AsyncIterator[Penstock]:
    async with shop(database_url, tmp_path, Parcels, keep_nothing) as opened:
        yield opened


@pytest.fixture
async def done(penstock: Penstock) -> Operation:
    return await run(penstock)


async def spoil(penstock: Penstock, *statements: Executable) -> None:
    async def write(tx: Any) -> None:
        for statement in statements:
            await tx.execute(statement)

    await penstock.db.transaction(write)


def rules(report: VerifyReport) -> set[str]:
    return {difference.rule for difference in report.differences}


@pytest.mark.covers("SM-085")
async def test_operations_of_every_kind_are_clean(penstock):
    made = [
        await run(penstock),
        await run(penstock, b"code,weight\nP1,1\n"),
        await run(penstock, b"code,weight\n", options={"allow_empty": True}),
        await run(penstock, b"code,weight\nP1,x\nP2,y\n"),
        await run(penstock, b"nothing,useful\n1,2\n"),
        await run(penstock, options={"max_errors": 2}),
        await run(penstock, parcels_csv(12), keep_nothing),
        await run(penstock, b'{"code": "a", "weight": 1}\n', file_name="rows.jsonl"),
        await penstock.operations.create(Parcels, file=parcels_csv(), file_name="parcels.csv"),
    ]
    report = await penstock.operations.verify(deep=True)
    assert list(map(str, report.differences)) == []
    assert report.is_clean
    assert report.operations == len(made)
    assert {op.status for op in made} == {"Completed", "CompletedWithErrors", "Failed", "Pending"}


async def test_the_report_says_how_much_was_looked_at(penstock, done):
    report = await penstock.operations.verify(done.id)
    assert (report.operations, report.chunks, report.rows, report.unlisted) == (1, 4, 40, 0)


async def test_one_operation_is_checked_without_the_others(penstock, done):
    other = await run(penstock, b"code,weight\nP1,1\n")
    await spoil(penstock, update(operations).where(operations.c.id == done.id).values(open_chunks=3))
    assert (await penstock.operations.verify(other.id)).is_clean
    assert rules(await penstock.operations.verify(done.id)) == {
        "open_chunks_are_counted",
        "settled_operations_have_ended",
    }
    assert not (await penstock.operations.verify()).is_clean


async def test_an_unknown_operation_is_not_found(penstock):
    with pytest.raises(NotFound):
        await penstock.operations.verify("nowhere")


def step_two(i: int, state: int) -> Callable[[Ledger], None]:
    def change(ledger: Ledger) -> None:
        ledger.at[i], ledger.tracks[2].state[i] = 2, state

    return change


def beyond(ledger: Ledger) -> None:
    ledger.at[0] = 7


def not_left(ledger: Ledger) -> None:
    ledger.at[0] = 2


def skipped_past(ledger: Ledger) -> None:
    ledger.tracks[1].state[0] = PENDING


def in_flight(ledger: Ledger) -> None:
    ledger.at[0], ledger.tracks[2].state[0], ledger.in_flight[0] = 2, PENDING, 1


def settled_in_flight(ledger: Ledger) -> None:
    ledger.in_flight[0] = 1


def retried(ledger: Ledger) -> None:
    ledger.tracks[1].attempt[0] = 3


def younger(ledger: Ledger) -> None:
    ledger.generation[3] = 1


@pytest.mark.parametrize(
    "first_row, change, values, rule, sentence",
    [
        (1, step_two(0, FAILED), {}, "counters_match_ledger", "its counter succeeded is 9, its ledger has 8"),
        (1, step_two(0, FAILED), {}, "steps_have_records", "row 1: is Failed at step 1, but has no record of it"),
        (1, step_two(0, WAITING), {}, "steps_have_records", "is WaitingForCompletion at step 1, but has no record"),
        (1, retried, {}, "steps_have_records", "row 1: took 3 attempts at step 0, but has no record of it"),
        (1, beyond, {}, "current_steps_exist", "row 1: stands at step 6, the pipeline has 2"),
        (1, not_left, {}, "current_steps_exist", "row 1: stands at step 1, which is already Completed"),
        (1, skipped_past, {}, "steps_are_in_order", "row 1: is past step 0, which is Pending"),
        (1, in_flight, {"is_open": 1}, "running_rows_have_an_owner", "row 1: is in flight, but nobody owns its chunk"),
        (
            1,
            settled_in_flight,
            {"owner": "w"},
            "running_rows_have_an_owner",
            "row 1: is in flight, but has its verdict",
        ),
        (
            1,
            step_two(0, PENDING),
            {},
            "closed_chunks_have_ended",
            "row 1: is Pending in a closed chunk, expected a verdict",
        ),
        (1, retried, {"owner": "w-1"}, "closed_chunks_have_ended", "it is closed, but owned by w-1"),
        (1, retried, {"is_raw": 1}, "closed_chunks_have_ended", "it is closed, but its rows are not validated"),
        (
            11,
            step_two(3, COMPLETED),
            {},
            "records_match_ledger",
            "row 14: stands at step 1, its record of step 0 says Failed",
        ),
        (
            21,
            lambda ledger: ledger.reject(5),
            {},
            "records_match_ledger",
            "row 26: stands at step -1, its record of step 1 says TimedOut",
        ),
        (11, younger, {}, "records_match_ledger", "row 14: is in generation 1, its record of step 0 says 0"),
        (1, retried, {"row_count": 9}, "ledger_matches_chunk", "its ledger has 10 rows and 2 steps, expected 9 and 2"),
    ],
)
async def test_a_ledger_that_was_changed_is_noticed(penstock, done, *, first_row, change, values, rule, sentence):
    await replant(penstock, first_row, change, **values)
    report = await penstock.operations.verify(done.id)
    told = [str(d) for d in report.differences if d.rule == rule]
    assert any(sentence in text for text in told), [str(d) for d in report.differences]
    assert all(text.startswith(f"operation {done.id}, chunk ") for text in told)


MINE = chunks.c.first_row == 11


@pytest.mark.parametrize(
    "statement, rule, sentence",
    [
        (update(chunks).where(MINE).values(failed=0), "counters_match_ledger", "its counter failed is 0"),
        (update(chunks).where(MINE).values(waiting=2), "counters_match_ledger", "its counter waiting is 2"),
        (update(chunks).where(MINE).values(ledger=b"torn"), "chunk_is_readable", "its ledger cannot be read"),
        (update(chunks).where(MINE).values(is_open=1), "open_chunks_are_counted", "open_chunks is 0, expected 1"),
        (update(chunks).where(MINE).values(first_row=12), "rows_are_contiguous", "it begins with row 12, expected 11"),
        (delete(chunks).where(MINE), "rows_are_contiguous", "it begins with row 21, expected 11"),
        (
            delete(chunks).where(chunks.c.first_row == 31),
            "rows_are_counted",
            "rows_read is 40, its chunks end at row 30",
        ),
        (delete(chunks).where(MINE), "no_stray_records", "row 14: has a record of step 0 in chunk"),
        (update(operations).values(total_rows=39), "rows_are_counted", "total_rows is 39, expected 40"),
        (
            update(operations).values(open_chunks=1),
            "settled_operations_have_ended",
            "but 1 chunks are open, expected none",
        ),
        (update(operations).values(raw_chunks=1), "open_chunks_are_counted", "raw_chunks is 1, expected 0"),
        (update(operations).values(owner="w-1"), "settled_operations_have_ended", "but w-1 owns it"),
        (update(operations).values(finished_at=None), "settled_operations_have_ended", "but finished_at is missing"),
        (
            update(operations).values(state="Running"),
            "settled_operations_have_ended",
            "it is Running, but nothing of it is open",
        ),
        (
            update(operations).values(state="Running"),
            "transition_log_is_consistent",
            "it is Running, its log ends at CompletedWithErr",
        ),
        (update(operations).values(state="Completed"), "state_follows_from_rows", "its rows lead to CompletedWithErr"),
        (update(operations).values(state="Stopping"), "state_follows_from_rows", "but stop_outcome is None"),
        (delete(transitions), "transition_log_is_consistent", "its transition log is empty"),
        (
            delete(transitions).where(transitions.c.event == "created"),
            "transition_log_is_consistent",
            "does not follow None",
        ),
        (
            delete(transitions).where(transitions.c.event == "validated"),
            "transition_log_is_consistent",
            "does not follow Validating",
        ),
        (
            update(transitions).where(transitions.c.event == "validated").values(event="paused"),
            "transition_log_is_consistent",
            "(Validating -paused-> Running) is not a move of the operation machine",
        ),
        (delete(row_records).where(row_records.c.row == 14), "steps_have_records", "row 14: is Failed at step 0, but"),
        (delete(row_records).where(row_records.c.row == 3), "steps_have_records", "row 3: is Failed at step -1, but"),
        (
            delete(row_records).where(row_records.c.row == 26),
            "steps_have_records",
            "row 26: is TimedOut at step 1, but",
        ),
        (delete(row_records).where(row_records.c.row == 25), "steps_have_records", "row 25: took 2 attempts at step 1"),
        (
            update(row_records).where(row_records.c.row == 14).values(state="TimedOut"),
            "records_match_ledger",
            "row 14: is Failed at step 0, its record says TimedOut",
        ),
        (
            update(row_records).where(row_records.c.row == 25).values(attempt=1),
            "records_match_ledger",
            "row 25: took 2 attempts at step 1, its record says 1",
        ),
        (
            update(row_records).where(row_records.c.row == 14).values(generation=2),
            "records_match_ledger",
            "row 14: is in generation 0, its record of step 0 says 2",
        ),
        (
            update(row_records).where(row_records.c.row == 14).values(row=99),
            "records_match_ledger",
            "row 99: has a record in a chunk that holds rows 11 to 20",
        ),
        (
            update(row_records).where(row_records.c.row == 14).values(step=5),
            "records_match_ledger",
            "row 14: has a record of step 5, the pipeline has 2 steps",
        ),
        (
            update(row_records).where(row_records.c.row == 14).values(operation=999),
            "records_match_ledger",
            "row 14: has a record of operation number 999",
        ),
        (
            update(row_records).where(row_records.c.row == 14).values(state="WaitingForCompletion"),
            "waits_have_deadlines",
            "row 14: waits at step 0 without a deadline",
        ),
        (delete(chunk_rows), "rows_are_stored", "its row data is missing"),
        (update(chunk_rows).values(data=pack_rows([["a"]])), "rows_are_stored", "it stores 1 rows, expected 10"),
        (update(chunk_rows).values(data=b"torn"), "chunk_is_readable", "its row data cannot be read"),
    ],
)
async def test_a_record_that_was_changed_is_noticed(penstock, done, statement, rule, sentence):
    await spoil(penstock, statement)
    report = await penstock.operations.verify(done.id)
    told = [str(d) for d in report.differences if d.rule == rule]
    assert any(sentence in text for text in told), [str(d) for d in report.differences]
    assert all(text.startswith(f"operation {done.id}") for text in told)


async def test_a_difference_names_its_place(penstock, done):
    await spoil(penstock, delete(row_records).where(row_records.c.row == 14))
    async with penstock.db.read() as tx:
        chunk = (await tx.execute(select(chunks.c.id).where(MINE))).scalar_one()
    (found,) = (await penstock.operations.verify()).differences
    assert (found.rule, found.operation, found.chunk, found.row) == ("steps_have_records", done.id, chunk, 14)


async def test_rows_stored_against_the_operations_wish_are_noticed(penstock):
    done = await run(penstock, b"code,weight\nP1,1\n", keep_nothing)
    async with penstock.db.read() as tx:
        chunk = (await tx.execute(select(chunks.c.id))).scalar_one()
    await spoil(penstock, insert(chunk_rows).values(chunk=chunk, data=pack_rows([["P1", "1"]])))
    (found,) = (await penstock.operations.verify(done.id)).differences
    assert "it stores 1 rows, but the operation does not track row data" in found.message


async def test_records_that_belong_to_nothing_are_noticed(penstock, done):
    await spoil(penstock, delete(operations))
    assert rules(await penstock.operations.verify()) == {"nothing_is_orphaned"}
    await spoil(penstock, delete(chunks), delete(row_records))
    told = [str(d) for d in (await penstock.operations.verify()).differences]
    assert len(told) == 4
    assert all("the rows of chunk" in text for text in told)


async def test_a_running_row_may_be_ahead_of_its_record(penstock, done):
    def run_again(ledger: Ledger) -> None:
        ledger.at[4], ledger.tracks[2].state[4], ledger.tracks[2].attempt[4] = 2, PENDING, 2
        ledger.in_flight[4] = 1

    await replant(penstock, 21, run_again, is_open=1, owner="w-1", succeeded=8)
    await spoil(
        penstock,
        update(row_records).where(row_records.c.row == 25).values(state="Pending", attempt=1),
        update(operations).values(state="Running", open_chunks=1, finished_at=None),
        delete(transitions).where(transitions.c.event == "finished_with_errors"),
    )
    report = await penstock.operations.verify(done.id)
    assert list(map(str, report.differences)) == []


@pytest.mark.parametrize("harm", ["gone", "longer", "other"])
async def test_a_file_that_was_changed_is_noticed(penstock, done, tmp_path, harm):
    (file,) = (tmp_path / "files").glob(f"sealed/shared/*.{done.file_sha256}")
    content = file.read_bytes()
    match harm:
        case "gone":
            file.unlink()
        case "longer":
            file.write_bytes(content + b"!")
        case "other":
            file.write_bytes(content[::-1])
    plain, deep = [await penstock.operations.verify(done.id, deep=deep) for deep in (False, True)]
    assert rules(deep) == {"file_is_stored"}
    assert plain.is_clean == (harm == "other")


@operation("two-steps")
class TwoSteps(Pipeline[Parcel]):
    """The first step fails once, the second for good."""

    @step(retries=1, backoff=0.001)
    async def stumble(self, parcel: Parcel, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise RuntimeError("not yet")

    @step
    async def fail(self, parcel: Parcel, ctx: Context) -> None:
        raise StepFailed("never")


async def test_a_row_that_recovered_at_one_step_and_failed_at_the_next_is_clean(database_url, tmp_path):
    async with shop(database_url, tmp_path, TwoSteps) as penstock:
        done = await run(penstock, b"code,weight\nP1,1\n", TwoSteps)
        report = await penstock.operations.verify(done.id)
    assert list(map(str, report.differences)) == []


async def test_a_row_that_failed_at_a_step_and_was_edited_is_clean(penstock, done):
    async with penstock.db.read() as tx:
        number = await number_of(tx, done.id)
    await retry_rows(penstock.db, number, [14], actor="ana", token="t", data={14: ["P14", "14"]})
    again = await penstock.run_until_done(done.id)
    report = await penstock.operations.verify(done.id)
    assert again.successful_rows == done.successful_rows + 1
    assert list(map(str, report.differences)) == []
