"""Batch steps: many rows at once, an answer for each, and the guilty rows found when a batch fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from stored import records_of, rows_of

from penstock import BatchContext, Context, Pipeline, RetryLater, StepFailed, operation, step
from penstock.settings import Settings
from penstock.testing import engine


class Item(BaseModel):
    id: int


WHOLE = Settings(chunk_rows=100)


def items(count: int) -> list[dict[str, int]]:
    return [{"id": n} for n in range(1, count + 1)]


async def test_rows_come_in_batches_of_the_declared_size_each_with_its_context(database_url: str, tmp_path: Path):
    seen: list[list[tuple[int, int, str]]] = []

    @operation("batches")
    class Batches(Pipeline[Item]):
        @step.batch(size=4)
        async def send(self, rows: list[Item], ctx: BatchContext) -> None:
            assert (ctx.step_name, ctx.operation_name) == ("send", "batches")
            seen.append([(row.id, c.row_number, c.effect_key) for row, c in zip(rows, ctx.rows, strict=True)])

    async with engine([Batches], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Batches, items(10))
    assert (done.status, done.successful_rows) == ("Completed", 10)
    assert sorted(map(len, seen)) == [2, 4, 4]
    assert sorted(row for batch in seen for row in batch) == [(n, n, f"{done.id}:{n}:send") for n in range(1, 11)]


async def test_none_means_that_every_row_succeeded_and_a_sequence_answers_for_each(database_url: str, tmp_path: Path):
    @operation("answers")
    class Answers(Pipeline[Item]):
        @step.batch(size=10)
        async def quiet(self, rows: list[Item], ctx: BatchContext) -> None: ...

        @step.batch(size=10)
        def each(self, rows: list[Item], ctx: BatchContext) -> list[int | Exception | None]:
            answers: dict[int, int | Exception | None] = {2: StepFailed("not you"), 3: None}
            return [answers.get(row.id, row.id * 10) for row in rows]

    async with engine([Answers], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Answers, items(4))
        stored = await rows_of(e.penstock.db, done.id)
        [record] = await records_of(e.penstock.db, done.id)
    assert (done.status, done.successful_rows, done.failed_rows) == ("CompletedWithErrors", 3, 1)
    assert [row.outputs for row in stored] == [[None, 10], [None, None], [None, None], [None, 40]]
    assert [row.verdict for row in stored] == ["Completed", "Failed", "Completed", "Completed"]
    assert (record.row, record.message) == (2, "not you")


async def test_a_row_that_answers_with_an_error_is_retried_without_the_others(database_url: str, tmp_path: Path):
    seen: list[list[int]] = []

    @operation("some")
    class Some(Pipeline[Item]):
        @step.batch(size=10, retries=1, backoff=1)
        async def send(self, rows: list[Item], ctx: BatchContext) -> list[Exception | None]:
            seen.append([row.id for row in rows])
            return [OSError("once") if row.id == 3 and c.attempt == 1 else None for row, c in zip(rows, ctx.rows)]  # noqa: B905

    async with engine([Some], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Some, items(4))
        stored = await rows_of(e.penstock.db, done.id)
    assert done.status == "Completed"
    assert seen == [[1, 2, 3, 4], [3]]
    assert [row.attempts for row in stored] == [[1], [1], [2], [1]]


async def test_a_batch_may_put_single_rows_off(database_url: str, tmp_path: Path):
    @operation("later")
    class Later(Pipeline[Item]):
        @step.batch(size=10)
        async def send(self, rows: list[Item], ctx: BatchContext) -> list[Exception | None]:
            return [RetryLater(after=30) if c.attempt == 1 and c.row_number == 1 else None for c in ctx.rows]

    async with engine([Later], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Later, items(2))
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).successful_rows == 1
        await e.advance(30)
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"


async def test_a_raised_error_is_retried_for_the_whole_batch(database_url: str, tmp_path: Path):
    sizes: list[int] = []

    @operation("whole")
    class Whole(Pipeline[Item]):
        @step.batch(size=8, retries=2, backoff=1)
        async def send(self, rows: list[Item], ctx: BatchContext) -> None:
            sizes.append(len(rows))
            if len(sizes) < 3:
                raise OSError("down")

    async with engine([Whole], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Whole, items(8))
        stored = await rows_of(e.penstock.db, done.id)
    assert (done.status, sizes) == ("Completed", [8, 8, 8])
    assert {tuple(row.attempts) for row in stored} == {(3,)}


async def test_a_batch_is_told_which_attempt_it_is_the_highest_where_its_rows_differ(database_url: str, tmp_path: Path):
    seen: list[tuple[int, list[int]]] = []

    @operation("counted")
    class Counted(Pipeline[Item]):
        @step.batch(size=4)
        async def send(self, rows: list[Item], ctx: BatchContext) -> list[Exception | None]:
            seen.append((ctx.attempt, [c.attempt for c in ctx.rows]))
            # Row 1 is put off twice, row 2 once, for as long: then they come together.
            later = {(1, 1): 10, (1, 2): 20, (2, 1): 30}
            waits = [later.get((c.row_number, c.attempt)) for c in ctx.rows]
            return [None if wait is None else RetryLater(after=wait) for wait in waits]

    async with engine([Counted], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Counted, items(3))
    assert done.status == "Completed"
    assert seen == [(1, [1, 1, 1]), (2, [2]), (3, [3, 2])]


@pytest.mark.parametrize("guilty", [{1}, {7}, {16}, {3, 4}, {1, 8, 16}, set(range(1, 17))], ids=str)
async def test_past_the_retries_a_batch_is_halved_until_the_guilty_rows_are_alone(
    database_url: str, tmp_path: Path, guilty: set[int]
):
    @operation("halves")
    class Halves(Pipeline[Item]):
        @step.batch(size=16, retries=1, backoff=1)
        async def send(self, rows: list[Item], ctx: BatchContext) -> list[int]:
            bad = guilty & {row.id for row in rows}
            if bad:
                raise ValueError(f"{len(bad)} of {len(rows)} are bad")
            return [row.id for row in rows]

    async with engine([Halves], url=database_url, tmp_path=tmp_path, settings=WHOLE) as e:
        done = await e.run(Halves, items(16))
        stored = await rows_of(e.penstock.db, done.id)
        failed = [r for r in await records_of(e.penstock.db, done.id) if r.state == "Failed"]
    assert {row.number for row in stored if row.verdict == "Failed"} == guilty
    assert {row.number for row in stored if row.outputs == [row.number]} == set(range(1, 17)) - guilty
    assert (done.successful_rows, done.failed_rows) == (16 - len(guilty), len(guilty))
    assert {record.message for record in failed} == {"ValueError: 1 of 1 are bad"}


async def test_a_failed_batch_is_kept_whole_when_asked(database_url: str, tmp_path: Path):
    calls: list[int] = []

    @operation("together")
    class Together(Pipeline[Item]):
        @step.batch(size=4, isolate=False)
        async def send(self, rows: list[Item], ctx: BatchContext) -> None:
            calls.append(len(rows))
            raise ValueError("one of you")

    async with engine([Together], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Together, items(4))
    assert (done.failed_rows, calls) == (4, [4])


async def test_a_batch_that_may_run_once_is_never_called_again_for_a_row(database_url: str, tmp_path: Path):
    calls: list[list[int]] = []

    @operation("once")
    class Once(Pipeline[Item]):
        @step.batch(size=4, delivery="at_most_once")
        async def send(self, rows: list[Item], ctx: BatchContext) -> None:
            calls.append([row.id for row in rows])
            raise ValueError("one of you")

    async with engine([Once], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Once, items(4))
    assert (done.failed_rows, calls) == (4, [[1, 2, 3, 4]])


@pytest.mark.parametrize("answer", [[1], [1, 2, 3], "ab", 7, {1: 2}], ids=str)
async def test_a_wrong_answer_fails_the_batch_and_says_so(database_url: str, tmp_path: Path, answer: Any):
    calls: list[int] = []

    @operation("wrong")
    class Wrong(Pipeline[Item]):
        @step.batch(size=2, retries=3)
        async def send(self, rows: list[Item], ctx: BatchContext) -> Any:
            calls.append(len(rows))
            return answer

    async with engine([Wrong], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Wrong, items(2))
        records = await records_of(e.penstock.db, done.id)
    assert (done.failed_rows, calls) == (2, [2])
    assert all("returned" in record.message for record in records)


async def test_a_condition_takes_rows_out_of_the_batch(database_url: str, tmp_path: Path):
    seen: list[list[int]] = []

    @operation("choose")
    class Choose(Pipeline[Item]):
        @step.batch(size=4)
        async def send(self, rows: list[Item], ctx: BatchContext) -> list[int]:
            seen.append([row.id for row in rows])
            return [c.row_number for c in ctx.rows]

        @send.when
        def is_even(self, row: Item, ctx: Context) -> bool:
            return row.id % 2 == 0

    async with engine([Choose], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Choose, items(4))
        stored = await rows_of(e.penstock.db, done.id)
    assert (done.status, seen) == ("Completed", [[2, 4]])
    assert [(row.states, row.outputs) for row in stored] == [
        (["Skipped"], [None]),
        (["Completed"], [2]),
        (["Skipped"], [None]),
        (["Completed"], [4]),
    ]
