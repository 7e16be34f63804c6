"""Finding a row by its key: marks say which chunks may hold it, and only those are opened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from parcels import run, shop
from pydantic import BaseModel, Field
from sqlalchemy import delete, select, update

from penstock import Context, Penstock, StepFailed, operation
from penstock.operations.retrying import retry_rows
from penstock.operations.row_keys import GROUPS, mark
from penstock.operations.tables import chunk_rows, chunks
from penstock.operations.views import operation_views, row_views

SAME_SUM = ("plumless", "buckeroo")  # two words of one CRC-32


class Sim(BaseModel):
    imei: str = Field(validation_alias="deviceImei")
    plan: str = "basic"


class Meter(BaseModel):
    number: int
    value: int


@operation("sims", row_key="imei")
async def activate(sim: Sim, ctx: Context) -> None:
    if sim.plan == "broken":
        raise StepFailed("no such plan")


@operation("meters", row_key="number")
async def read_meter(meter: Meter, ctx: Context) -> None:
    if meter.value < 0:
        raise StepFailed("it runs backwards")


@operation("keyless")
async def keyless(sim: Sim, ctx: Context) -> None:
    """Nothing is done with the row."""


@operation("untracked-sims", row_key="imei", track_row_data=False)
async def untracked(sim: Sim, ctx: Context) -> None:
    if sim.plan == "broken":
        raise StepFailed("no such plan")


@pytest.fixture
async def penstock(database_url: str, tmp_path: Path) -> AsyncIterator[Penstock]:
    async with shop(database_url, tmp_path, activate, read_meter, keyless, untracked) as opened:
        yield opened


def sims(*others: str, rows: int = 200) -> bytes:
    """Rows A1, A2, …, in chunks of ten; the others follow, each with the plan behind its colon."""
    lines = [f"A{n},basic" for n in range(1, rows + 1)]
    lines += [",".join(other.partition(":")[::2]) for other in others]
    return ("deviceImei,plan\n" + "\n".join(lines) + "\n").encode()


async def found(penstock: Penstock, operation: str, key: str, **more: Any) -> list[int]:
    page = await penstock.operations.rows(operation, row_key=key, **more)
    return [row.number for row in page.items]


async def spoil_all_but(penstock: Penstock, *first_rows: int) -> None:
    """Make the rows of all chunks unreadable but for those that begin with these rows."""
    kept = select(chunks.c.id).where(chunks.c.first_row.in_(first_rows))

    async def write(tx: Any) -> None:
        ids = (await tx.execute(kept)).scalars().all()
        await tx.execute(update(chunk_rows).where(chunk_rows.c.chunk.not_in(ids)).values(data=b"torn"))

    await penstock.db.transaction(write)


async def unmark(penstock: Penstock, *first_rows: int) -> None:
    """Leave chunks as they were stored before there were marks: all, or those that begin with these rows."""
    mine = select(chunks.c.id).where(chunks.c.first_row.in_(first_rows) if first_rows else chunks.c.first_row > 0)

    async def write(tx: Any) -> None:
        ids = (await tx.execute(mine)).scalars().all()
        await tx.execute(update(chunk_rows).where(chunk_rows.c.chunk.in_(ids)).values(key_marks=None))

    await penstock.db.transaction(write)


@pytest.mark.covers("SM-040")
async def test_every_row_of_many_chunks_is_found_by_its_key(penstock):
    done = await run(penstock, sims(), activate)
    for number in (1, 10, 11, 105, 199, 200):
        page = await penstock.operations.rows(done.id, row_key=f"A{number}", data=True)
        assert [(row.number, row.row_key, row.data["imei"]) for row in page.items] == [
            (number, f"A{number}", f"A{number}")
        ]
    assert await found(penstock, done.id, "A201") == []


async def test_only_the_chunk_that_has_the_key_is_opened(penstock):
    done = await run(penstock, sims(), activate)
    await spoil_all_but(penstock, 101)
    assert await found(penstock, done.id, "A105") == [105]
    assert await found(penstock, done.id, "B1") == []


async def test_a_key_that_many_chunks_have_is_found_in_all_of_them_page_by_page(penstock):
    lines = "".join(f"A{n},basic\nsame,basic\n" for n in range(100))
    done = await run(penstock, f"deviceImei,plan\n{lines}".encode(), activate)
    assert await found(penstock, done.id, "same") == list(range(2, 201, 2))
    assert await found(penstock, done.id, "same", first=51, last=60) == [52, 54, 56, 58, 60]
    seen, cursor = [], None
    while len(seen) < 100:
        page = await penstock.operations.rows(done.id, row_key="same", limit=7, cursor=cursor)
        seen += [row.number for row in page.items]
        cursor = page.next_cursor
    assert (seen, cursor) == (list(range(2, 201, 2)), None)


async def test_of_two_keys_with_the_same_mark_only_the_right_one_is_returned(penstock):
    done = await run(penstock, sims(SAME_SUM[0], *(f"B{n}" for n in range(20)), SAME_SUM[1]), activate)
    assert [await found(penstock, done.id, key) for key in SAME_SUM] == [[201], [222]]
    here = await run(penstock, sims(*SAME_SUM), activate)
    assert [await found(penstock, here.id, key) for key in SAME_SUM] == [[201], [202]]


async def test_a_mark_across_two_others_leads_to_nothing_wrong(penstock):
    done = await run(penstock, sims(rows=20), activate)
    across = (b"\x07" + mark("A999")[1] + b"\x07") * GROUPS  # not where a mark begins

    async def write(tx: Any) -> None:
        await tx.execute(update(chunk_rows).values(key_marks=across))

    await penstock.db.transaction(write)
    assert await found(penstock, done.id, "A999") == []


@pytest.mark.parametrize("key", ["Grüße", "日本", "é", "e\u0301", "👩‍👩‍👧", "a' OR 1=1 --", "\\x00", " A1", "x" * 300])
async def test_a_key_of_any_text_is_found_by_that_text_alone(penstock, key):
    done = await run(penstock, sims(key), activate)
    await spoil_all_but(penstock, 201)
    assert await found(penstock, done.id, key) == [201]
    assert await found(penstock, done.id, key + "x") == []


@pytest.mark.parametrize("key", ["nul\0", "half \ud800"])
async def test_a_key_that_no_text_in_a_file_can_be_is_not_found(penstock, key):
    done = await run(penstock, sims("half ?"), activate)
    assert await found(penstock, done.id, key) == []


@pytest.mark.parametrize("shown, written", [("12", "12"), ("12", '"12"'), ("-1.5", "-1.50"), ("1e+22", "1E22")])
async def test_a_number_that_is_a_key_is_found_by_its_text(penstock, shown, written):
    others = b"".join(msgspec.json.encode({"deviceImei": f"A{n}"}) + b"\n" for n in range(50))
    file = others + f'{{"deviceImei": {written}, "plan": "basic"}}\n'.encode()
    done = await run(penstock, file, activate, file_name="sims.jsonl")
    assert await found(penstock, done.id, shown) == [51]
    assert await found(penstock, done.id, "A49") == [50]


async def test_a_key_is_found_under_any_name_the_model_reads_it_from(penstock):
    file = b'{"deviceImei": "A1"}\n{"imei": "A2"}\n{"imei": "A3", "deviceImei": "A4"}\n'
    done = await run(penstock, file, activate, file_name="sims.jsonl")
    assert [await found(penstock, done.id, f"A{n}") for n in (1, 2, 3, 4)] == [[1], [2], [3], []]


async def test_a_row_with_a_record_is_found_by_the_recorded_form_of_its_key_too(penstock):
    file = b"number,value\n" + b"".join(b"00%d,1\n" % n for n in range(30)) + b"0077,-1\n"
    done = await run(penstock, file, read_meter)
    assert await found(penstock, done.id, "0077") == [31]
    assert await found(penstock, done.id, "77") == [31]
    assert await found(penstock, done.id, "7") == []  # has no record, and stands in the file as 007


async def test_an_edited_row_is_found_by_its_new_key_and_no_longer_by_the_old(penstock):
    done = await run(penstock, sims("B1:broken", "B2:broken"), activate)
    async with penstock.db.read() as tx:
        number = (await tx.execute(select(chunks.c.operation).limit(1))).scalar_one()
    await retry_rows(penstock.db, number, [201], actor="ana", token="t", data={201: ["C1", "basic"]})
    await penstock.run_until_done(done.id)
    assert await found(penstock, done.id, "C1") == [201]
    assert await found(penstock, done.id, "B1") == []
    assert await found(penstock, done.id, "B2") == [202]


@pytest.mark.parametrize("unmarked", [(), (1,), (101,), (1, 11, 101, 191)])
async def test_chunks_stored_before_there_were_marks_are_looked_through(penstock, unmarked):
    done = await run(penstock, sims("B1:broken"), activate)
    await unmark(penstock, *unmarked)
    for number in (1, 15, 105, 200):
        assert await found(penstock, done.id, f"A{number}") == [number]
    assert await found(penstock, done.id, "B1") == [201]
    assert await found(penstock, done.id, "B2") == []


@pytest.mark.parametrize("recorded_max", [0, 1])
async def test_a_key_of_many_records_is_found_without_naming_their_chunks(penstock, monkeypatch, recorded_max):
    monkeypatch.setattr(row_views, "RECORDED_MAX", recorded_max)
    done = await run(penstock, sims(*(["same:broken", *(f"B{n}" for n in range(9))] * 3)), activate)
    assert await found(penstock, done.id, "same") == [201, 211, 221]


async def test_more_chunks_with_records_of_a_key_than_a_statement_has_room_for_are_all_looked_at(penstock):
    done = await run(penstock, sims(rows=30), activate)
    async with penstock.db.read() as tx:
        outline = await operation_views.layout(tx, done.id, {})
        search = row_views._KeySearch(outline, "A1", frozenset(range(-100_000, 0)))
        looked_at = await tx.execute(search.narrowed(select(chunks.c.first_row)))
        assert sorted(chunk.first_row for chunk in looked_at) == [1, 11, 21]


async def test_without_a_row_key_there_is_nothing_to_find(penstock):
    done = await run(penstock, sims(), keyless)
    await spoil_all_but(penstock)
    assert await found(penstock, done.id, "A5") == []


async def test_without_row_data_only_rows_with_a_record_are_found(penstock):
    done = await run(penstock, sims("B1:broken"), untracked)
    assert await found(penstock, done.id, "B1") == [201]
    assert await found(penstock, done.id, "A5") == []


async def test_marks_of_one_operation_do_not_lead_into_another(penstock):
    first, second = [await run(penstock, sims(other), activate) for other in ("B1", "B2")]
    assert [await found(penstock, first.id, key) for key in ("B1", "B2")] == [[201], []]
    assert [await found(penstock, second.id, key) for key in ("B1", "B2")] == [[], [201]]


async def test_a_page_of_rows_whose_records_hold_their_keys_opens_no_rows(penstock):
    done = await run(penstock, sims(*(f"B{n}:broken" for n in range(30))), activate)
    await spoil_all_but(penstock)
    page = await penstock.operations.rows(done.id, state="Failed", limit=20)
    assert [row.row_key for row in page.items] == [f"B{n}" for n in range(20)]
    assert page.next_cursor == "220"


async def test_a_row_without_a_recorded_key_shows_the_one_of_the_file(penstock):
    done = await run(penstock, sims("B1:broken"), activate)

    async def forget(tx: Any) -> None:
        await tx.execute(update(row_views.row_records).values(row_key=None))

    await penstock.db.transaction(forget)
    page = await penstock.operations.rows(done.id, state="Failed")
    assert [row.row_key for row in page.items] == ["B1"]


async def test_a_chunk_whose_rows_are_lost_is_passed_over(penstock):
    done = await run(penstock, sims(rows=30), activate)

    async def lose(tx: Any) -> None:
        first = (await tx.execute(select(chunks.c.id).where(chunks.c.first_row == 1))).scalar_one()
        await tx.execute(delete(chunk_rows).where(chunk_rows.c.chunk == first))

    await penstock.db.transaction(lose)
    assert [await found(penstock, done.id, key) for key in ("A1", "A15", "A25")] == [[], [15], [25]]
