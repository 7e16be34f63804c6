"""Looking at rows: pages, filters, and one row with all its steps, whichever way it is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from parcels import COURSE, Parcel, Parcels, replant, run, shop

from penstock import Context, Penstock, operation
from penstock.errors import Fault, InvalidInput, NotFound
from penstock.operations.chunk.ledger import CANCELLED, PENDING, WAITING, Ledger
from penstock.operations.model import Operation
from penstock.operations.operation_ids import number_of
from penstock.operations.retrying import retry_rows


@pytest.fixture
async def penstock(database_url: str, tmp_path: Path) -> AsyncIterator[Penstock]:
    async with shop(database_url, tmp_path, Parcels, note, keep_nothing) as opened:
        yield opened


@pytest.fixture
async def done(penstock: Penstock) -> Operation:
    return await run(penstock)


@operation("notes", row_key="code")
async def note(parcel: Parcel, ctx: Context) -> None:
    """Nothing is done with the row."""


@operation("untracked", row_key="code", track_row_data=False)
async def keep_nothing(parcel: Parcel, ctx: Context) -> None:
    """Its rows are not stored."""


async def numbers(penstock: Penstock, operation: str, **wanted: object) -> list[int]:
    page = await penstock.operations.rows(operation, **wanted)  # type: ignore[arg-type]
    return [row.number for row in page.items]


@pytest.mark.covers("SM-100")
@pytest.mark.parametrize("limit", [7, 10, 40])
async def test_pages_join_to_all_rows_in_order_without_gap_or_overlap(penstock, done, limit):
    seen, cursor = [], None
    while True:
        page = await penstock.operations.rows(done.id, limit=limit, cursor=cursor)
        assert len(page.items) <= limit
        seen += [row.number for row in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == list(range(1, 41))


async def test_the_last_page_has_no_cursor_even_when_it_is_full(penstock, done):
    assert (await penstock.operations.rows(done.id, limit=40)).next_cursor is None
    assert (await penstock.operations.rows(done.id, limit=39)).next_cursor == "39"


@pytest.mark.parametrize("state", COURSE)
async def test_a_state_finds_exactly_its_rows(penstock, done, state):
    assert await numbers(penstock, done.id, state=state) == COURSE[state]
    assert {row.state for row in (await penstock.operations.rows(done.id, state=state)).items} == {state}


async def test_states_ignore_case_and_may_be_several(penstock, done):
    assert await numbers(penstock, done.id, state=["failed", "INVALID", "timedout"]) == [3, 14, 26, 37]


async def test_rows_that_have_no_verdict_yet_are_found_by_their_state(penstock, done):
    def reopen(ledger: Ledger) -> None:
        for i, state in enumerate((PENDING, WAITING, CANCELLED, PENDING)):
            ledger.at[i], ledger.tracks[2].state[i] = 2, state
        ledger.in_flight[3] = 1

    await replant(penstock, 1, reopen, succeeded=6, invalid=0, waiting=1, cancelled=1)
    assert await numbers(penstock, done.id, state="Pending") == [1]
    assert await numbers(penstock, done.id, state="WaitingForCompletion") == [2]
    assert await numbers(penstock, done.id, state="Cancelled") == [3]
    assert await numbers(penstock, done.id, state="Running") == [4]


async def test_an_unknown_state_is_refused_with_the_known_ones(penstock, done):
    with pytest.raises(InvalidInput, match=r"no such row state: Lost; known: Pending, Running, .*Invalid"):
        await penstock.operations.rows(done.id, state="Lost")


@pytest.mark.parametrize("step", ["Print label", "print_LABEL", 1, "1"])
async def test_a_step_is_named_by_display_name_attribute_or_index(penstock, done, step):
    found = await numbers(penstock, done.id, step=step, state=["Failed", "TimedOut"])
    assert found == [26]


@pytest.mark.covers("SM-025")
async def test_a_row_stands_at_its_current_step_and_a_completed_one_at_the_last(penstock, done):
    assert await numbers(penstock, done.id, step=-1) == [3, 37]
    assert await numbers(penstock, done.id, step="weigh") == [14]
    assert await numbers(penstock, done.id, step="Print label") == sorted([*COURSE["Completed"], 26])


async def test_an_unknown_step_is_refused_with_the_known_ones(penstock, done):
    with pytest.raises(InvalidInput, match="has no step 'wrap'; it has: validation, weigh, Print label"):
        await penstock.operations.rows(done.id, step="wrap")


@pytest.mark.covers("SM-089")
async def test_an_error_type_finds_the_rows_that_have_it_now(penstock, done):
    assert await numbers(penstock, done.id, error_type="validation") == [3, 37]
    assert await numbers(penstock, done.id, error_type="StepFailure") == [14]
    assert await numbers(penstock, done.id, error_type="Timeout") == [26]
    with pytest.raises(InvalidInput, match="no such error type: Oops; known: Validation, "):
        await penstock.operations.rows(done.id, error_type="Oops")


@pytest.mark.covers("SM-040")
@pytest.mark.parametrize("key, number", [("P7", 7), ("P3", 3), ("P14", 14), ("R25", 25), ("P40", 40)])
async def test_a_key_finds_its_row_whether_or_not_the_row_has_a_record(penstock, done, key, number):
    page = await penstock.operations.rows(done.id, row_key=key)
    assert [(row.number, row.row_key) for row in page.items] == [(number, key)]


@pytest.mark.parametrize("key", ["P", "p7", "7", "", 'P7","', "heavy"])
async def test_a_key_matches_whole_and_exactly(penstock, done, key):
    assert await numbers(penstock, done.id, row_key=key) == []


async def test_rows_that_share_a_key_are_all_found_page_by_page(penstock):
    done = await run(penstock, b"code,weight\n" + b"same,1\nother,2\n" * 15, note)
    page = await penstock.operations.rows(done.id, row_key="same", limit=8)
    rest = await penstock.operations.rows(done.id, row_key="same", limit=8, cursor=page.next_cursor)
    assert [row.number for row in [*page.items, *rest.items]] == list(range(1, 31, 2))


async def test_a_key_that_needs_escapes_is_found(penstock):
    done = await run(penstock, 'code,weight\n"a ""b"" \\ ü",1\n'.encode(), note)
    assert await numbers(penstock, done.id, row_key='a "b" \\ ü') == [1]


async def test_a_key_that_is_a_number_in_a_json_file_is_found(penstock):
    file = b'{"code": "12", "weight": 1}\n{"code": 12, "weight": 1}\n{"code": "120", "weight": 12}\n'
    done = await run(penstock, file, note, file_name="rows.jsonl")
    assert await numbers(penstock, done.id, row_key="12") == [1, 2]


async def test_filters_combine(penstock, done):
    assert await numbers(penstock, done.id, state="Completed", first=12, last=16) == [12, 13, 15, 16]
    assert await numbers(penstock, done.id, state="Completed", row_key="P14") == []
    assert await numbers(penstock, done.id, state=["Invalid", "Failed"], error_type="Validation", first=4) == [37]
    assert await numbers(penstock, done.id, first=39) == [39, 40]
    assert await numbers(penstock, done.id, first=41) == []


@pytest.mark.parametrize("cursor", ["x", "-1", "1:2", "²"])
async def test_a_cursor_of_another_list_is_refused(penstock, done, cursor):
    with pytest.raises(InvalidInput, match="is not a cursor of this list"):
        await penstock.operations.rows(done.id, cursor=cursor)


@pytest.mark.parametrize("cursor", ["x", "7", "1:", "1:x", f"1:{10**30}", f"{10**30}:1"])
async def test_a_cursor_of_no_list_of_operations_is_refused(penstock, done, cursor):
    with pytest.raises(InvalidInput, match="is not a cursor of this list"):
        await penstock.operations.list(cursor=cursor)


async def test_a_page_has_at_least_one_entry(penstock, done):
    with pytest.raises(InvalidInput, match="limit is 0; a page has at least 1 entry"):
        await penstock.operations.rows(done.id, limit=0)


async def test_data_comes_when_it_is_asked_for(penstock, done):
    plain, full = [(await penstock.operations.rows(done.id, first=7, limit=1, data=data)).items for data in (0, 1)]
    assert plain[0].data is None
    assert full[0].data == {"code": "P7", "weight": "7"}


@pytest.mark.covers("SM-014", "SM-064")
async def test_a_row_shows_every_step_it_has_reached(penstock, done):
    row = await penstock.operations.row(done.id, 7)
    assert (row.number, row.row_key, row.state, row.generation) == (7, "P7", "Completed", 0)
    assert (row.step_name, row.completed_steps, row.total_steps) == ("Print label", 2, 2)
    assert row.data == {"code": "P7", "weight": "7"}
    assert [(step.index, step.name, step.state, step.attempt) for step in row.steps] == [
        (-1, "validation", "Completed", 1),
        (0, "weigh", "Completed", 1),
        (1, "Print label", "Completed", 1),
    ]
    weigh, label = row.steps[1:]
    assert weigh.output == {"grams": 7000}
    assert done.created_at < weigh.started_at < weigh.ended_at <= label.ended_at <= done.finished_at


@pytest.mark.covers("SM-038", "SM-041")
async def test_an_invalid_row_shows_its_faults_by_field_and_no_other_step(penstock, done):
    row = await penstock.operations.row(done.id, 3)
    (validation,) = row.steps
    assert (row.state, row.step, row.step_name) == ("Invalid", -1, "validation")
    assert (validation.state, validation.error_type, validation.attempt) == ("Failed", "Validation", 1)
    assert [fault.field for fault in validation.faults] == ["weight"]
    assert (await penstock.operations.row(done.id, 37)).steps[0].faults == (Fault("is over 500", "weight"),)


async def test_a_failed_row_shows_where_and_why(penstock, done):
    row = await penstock.operations.row(done.id, 14)
    assert [step.state for step in row.steps] == ["Completed", "Failed"]
    assert (row.steps[-1].error_type, row.steps[-1].message) == ("StepFailure", "weight -1 is negative")
    assert row.steps[-1].ended_at > row.steps[-1].started_at


async def test_a_row_that_was_retried_shows_its_attempts_and_no_error(penstock, done):
    label = (await penstock.operations.row(done.id, 25)).steps[-1]
    assert (label.state, label.attempt, label.error_type, label.message) == ("Completed", 2, None, None)


async def test_an_unknown_row_is_not_found_and_the_answer_says_how_many_there_are(penstock, done):
    for number in (0, 41, 10**12):
        with pytest.raises(NotFound, match=f"has no row {number}; its rows are numbered 1 to 40"):
            await penstock.operations.row(done.id, number)


async def test_an_unknown_operation_is_not_found(penstock):
    for look in (penstock.operations.rows, penstock.operations.errors, penstock.operations.history):
        with pytest.raises(NotFound, match="operation not found: 'nowhere'"):
            await look("nowhere")


async def test_an_operation_that_nobody_has_picked_up_has_no_rows(penstock):
    made = await penstock.operations.create(Parcels, file=b"code,weight\nP1,1\n", file_name="a.csv")
    assert await numbers(penstock, made.id) == []
    with pytest.raises(NotFound, match="it has no rows"):
        await penstock.operations.row(made.id, 1)


async def test_objects_and_unreadable_lines_are_shown_as_they_are(penstock):
    file = b'{"code": "a", "weight": 1, "more": [2]}\nnot json\n'
    done = await run(penstock, file, note, file_name="rows.jsonl")
    rows = (await penstock.operations.rows(done.id, data=True)).items
    assert [(row.state, row.row_key, row.data) for row in rows] == [
        ("Completed", "a", {"code": "a", "weight": 1, "more": [2]}),
        ("Invalid", None, "not json"),
    ]


async def test_a_record_with_too_many_cells_is_shown_cell_by_cell(penstock):
    done = await run(penstock, b"code,weight\na,1,extra\n", note)
    row = await penstock.operations.row(done.id, 1)
    assert (row.state, row.data) == ("Invalid", ["a", "1", "extra"])


async def test_without_row_data_only_rows_with_a_record_have_a_key(penstock):
    done = await run(penstock, b"code,weight\na,1\nb,heavy\n", keep_nothing)
    rows = (await penstock.operations.rows(done.id, data=True)).items
    assert [(row.state, row.row_key, row.data) for row in rows] == [("Completed", None, None), ("Invalid", "b", None)]
    assert await numbers(penstock, done.id, row_key="b") == [2]


async def test_an_edited_row_shows_its_new_data_and_key(penstock, done):
    number = await number_of_operation(penstock, done.id)
    await retry_rows(penstock.db, number, [3], actor="ana", token="t", data={3: ["Q3", "3"]})
    await penstock.run_until_done(done.id)
    row = await penstock.operations.row(done.id, 3)
    assert (row.state, row.row_key, row.data, row.generation) == ("Completed", "Q3", {"code": "Q3", "weight": "3"}, 1)
    assert await numbers(penstock, done.id, row_key="Q3") == [3]
    assert await numbers(penstock, done.id, row_key="P3") == []


async def number_of_operation(penstock: Penstock, operation: str) -> int:
    async with penstock.db.read() as tx:
        return await number_of(tx, operation)
