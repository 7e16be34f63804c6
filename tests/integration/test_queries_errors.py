"""What is wrong now, the same counted, and what went wrong before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from parcels import Parcels, run, shop

from penstock import Penstock
from penstock.errors import InvalidInput
from penstock.operations.model import Operation


@pytest.fixture
async def penstock(database_url: str, tmp_path: Path) -> AsyncIterator[Penstock]:
    async with shop(database_url, tmp_path) as opened:
        yield opened


@pytest.fixture
async def done(penstock: Penstock) -> Operation:
    return await run(penstock)


@pytest.mark.covers("SM-089", "SM-094")
async def test_every_current_error_is_listed_in_row_order(penstock, done):
    page = await penstock.operations.errors(done.id)
    assert [(e.row, e.row_key, e.state, e.step, e.step_name, e.error_type) for e in page.items] == [
        (3, "P3", "Invalid", -1, "validation", "Validation"),
        (14, "P14", "Failed", 0, "weigh", "StepFailure"),
        (26, "T26", "TimedOut", 1, "Print label", "Timeout"),
        (37, "P37", "Invalid", -1, "validation", "Validation"),
    ]
    assert page.next_cursor is None
    assert page.items[1].message == "weight -1 is negative"
    assert (page.items[2].attempt, page.items[2].generation) == (2, 0)
    assert done.created_at < page.items[0].at < page.items[2].at <= done.finished_at


async def test_a_row_that_recovered_is_no_error(penstock, done):
    assert (await penstock.operations.errors(done.id, row=25)).items == []
    assert (await penstock.operations.history(done.id, row=25)).items != []


@pytest.mark.parametrize(
    "wanted, rows",
    [
        ({"row": 14}, [14]),
        ({"row_key": "P37"}, [37]),
        ({"row_key": "P3"}, [3]),
        ({"error_type": "validation"}, [3, 37]),
        ({"step": "weigh"}, [14]),
        ({"step": -1}, [3, 37]),
        ({"first": 14, "last": 26}, [14, 26]),
        ({"first": 15, "error_type": "Validation"}, [37]),
        ({"row": 1}, []),
    ],
)
async def test_errors_can_be_narrowed(penstock, done, wanted, rows):
    assert [error.row for error in (await penstock.operations.errors(done.id, **wanted)).items] == rows


async def test_pages_of_errors_join(penstock, done):
    first = await penstock.operations.errors(done.id, limit=3)
    rest = await penstock.operations.errors(done.id, limit=3, cursor=first.next_cursor)
    assert [error.row for error in [*first.items, *rest.items]] == [3, 14, 26, 37]
    assert rest.next_cursor is None


async def test_a_page_of_errors_that_begins_behind_those_of_its_first_chunk_knows_of_more(penstock, done):
    page = await penstock.operations.errors(done.id, first=4, limit=1)
    assert ([error.row for error in page.items], page.next_cursor) == ([14], "14")


async def test_pages_of_errors_of_one_kind_join_across_chunks_that_have_others(penstock, done):
    first = await penstock.operations.errors(done.id, error_type="Validation", limit=1)
    rest = await penstock.operations.errors(done.id, error_type="Validation", limit=1, cursor=first.next_cursor)
    assert [error.row for error in [*first.items, *rest.items]] == [3, 37]
    assert rest.next_cursor is None


async def test_errors_bring_their_rows_when_asked(penstock, done):
    bare = (await penstock.operations.errors(done.id)).items
    full = (await penstock.operations.errors(done.id, data=True)).items
    assert [error.data for error in bare] == [None] * 4
    assert [error.data["code"] for error in full] == ["P3", "P14", "T26", "P37"]


async def test_alike_errors_are_one_group_the_largest_first(penstock):
    bad = b"code,weight\n" + b"".join(b"P%d,%d\n" % (n, -n if n % 2 else 600 + n) for n in range(1, 8)) + b"P8,x\n"
    done = await run(penstock, bad)
    groups = await penstock.operations.error_groups(done.id)
    assert [(g.rows, g.first_row, g.step_name, g.error_type) for g in groups] == [
        (4, 1, "weigh", "StepFailure"),
        (3, 2, "validation", "Validation"),
        (1, 8, "validation", "Validation"),
    ]
    assert groups[0].message == "weight -1 is negative"
    assert len(await penstock.operations.error_groups(done.id, limit=1)) == 1


async def test_an_operation_without_errors_has_no_groups(penstock):
    done = await run(penstock, b"code,weight\nP1,1\n")
    assert await penstock.operations.error_groups(done.id) == []


async def test_history_tells_of_attempts_that_were_retried(penstock, done):
    page = await penstock.operations.history(done.id)
    assert [(e.row, e.step_name, e.generation, e.attempt, e.event, e.error_type) for e in page.items] == [
        (25, "Print label", 0, 1, "postponed", "StepFailure"),
        (26, "Print label", 0, 1, "postponed", "Timeout"),
    ]
    assert page.items[0].message == "RuntimeError: the printer is jammed"
    assert done.created_at < page.items[0].at < done.finished_at


@pytest.mark.covers("SM-091")
async def test_history_is_paged_and_narrowed(penstock, done):
    first = await penstock.operations.history(done.id, limit=1)
    rest = await penstock.operations.history(done.id, limit=1, cursor=first.next_cursor)
    assert [e.row for e in [*first.items, *rest.items]] == [25, 26]
    assert rest.next_cursor is None
    assert [e.row for e in (await penstock.operations.history(done.id, row=26, step="Print label")).items] == [26]
    assert (await penstock.operations.history(done.id, step="weigh")).items == []
    with pytest.raises(InvalidInput, match="is not a cursor of this list"):
        await penstock.operations.history(done.id, cursor="26")


@pytest.mark.covers("SM-093", "SM-095")
async def test_a_list_of_operations_carries_the_counters_of_each(penstock, done):
    waiting = await penstock.operations.create(Parcels, file=b"code,weight\nP1,1\n", file_name="a.csv")
    listed = {op.id: op for op in (await penstock.operations.list()).items}
    assert listed[done.id] == done == await penstock.operations.get(done.id)
    assert (done.processed_rows, done.successful_rows, done.failed_rows, done.invalid_rows) == (40, 36, 4, 2)
    assert listed[waiting.id].processed_rows == 0


async def test_events_are_found_by_the_beginning_of_an_id(penstock, done):
    by_id = await penstock.operations.events(done.id)
    assert [event.event for event in by_id] == ["created", "picked_up", "validated", "finished_with_errors"]
    assert await penstock.operations.events(done.id[:13]) == by_id
