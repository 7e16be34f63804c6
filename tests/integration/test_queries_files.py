"""Lists by offset, the newest events, the uploaded file and exports, on every database."""

from __future__ import annotations

import csv
from datetime import datetime
from pathlib import Path

import parcels
import pytest
from pydantic import BaseModel, Field

from penstock import Context, Pipeline, operation, step
from penstock.errors import Conflict, InvalidInput, MetadataInvalid
from penstock.operations.exporting import RESULTS, Export
from penstock.testing import engine


async def whole(export: Export) -> str:
    return b"".join([piece async for piece in export.pieces]).decode()


async def test_an_operation_comes_back_as_files_and_lists(database_url: str, tmp_path: Path):
    async with parcels.shop(database_url, tmp_path) as penstock:
        done = await parcels.run(penstock)
        other = await parcels.run(penstock, b"code,weight\nP1,1\n")
        operations = penstock.operations

        file = await operations.source_file(done.id)
        with file.stream:
            assert (file.name, file.stream.read()) == ("parcels.csv", parcels.parcels_csv())

        report = (await whole(await operations.export(done.id))).splitlines()
        assert len(report) == 1 + 40
        assert [line.split(",")[0] for line in report[1:]] == [str(n) for n in range(1, 41)]
        parts = [await whole(await operations.export(done.id, state=states)) for states in RESULTS.values()]
        assert sorted(line for part in parts for line in part.splitlines()[1:]) == sorted(report[1:])
        data = await whole(await operations.export(done.id, mode="data", state="Failed", format="jsonl"))
        assert data == '{"code":"P14","weight":"-1"}\n'
        with pytest.raises(InvalidInput, match="no such mode"):
            await operations.export(done.id, mode="odd")

        assert await operations.count() == 2
        assert await operations.count(status=["Completed"]) == 1
        assert [found.id for found in (await operations.list(offset=1)).items] == [done.id]
        every = await operations.events()
        assert await operations.events(since=None, limit=3) == every[-3:]
        mine = await operations.events(done.id)
        assert await operations.events(done.id, since=None, limit=2) == mine[-2:]
        assert {event.operation_name for event in every} == {"parcels"}
        page = await operations.events_page(other.id, limit=1)
        rest = await operations.events_page(other.id, cursor=page.next_cursor)
        assert [*page.items, *rest.items] == await operations.events(other.id)


async def test_data_that_was_not_kept_cannot_be_exported(database_url: str, tmp_path: Path):
    async with parcels.shop(database_url, tmp_path) as penstock:
        done = await parcels.run(penstock, b"code,weight\nP1,1\n", options={"track_row_data": False})
        with pytest.raises(Conflict, match="does not keep"):
            await penstock.operations.export(done.id, mode="data")
        assert len((await whole(await penstock.operations.export(done.id))).splitlines()) == 2


class Letter(BaseModel):
    code: str
    mail: str | None = Field(None, validation_alias="E-Mail")


@operation("letters", row_key="code", keep={"rows": "1d"})
class Letters(Pipeline[Letter]):
    @step
    async def send(self, letter: Letter, ctx: Context) -> None: ...


class Note(BaseModel):
    note: str


@operation("noted")
class Noted(Pipeline[Letter, Note]):
    @step
    async def send(self, letter: Letter, ctx: Context) -> None: ...


async def test_the_columns_of_an_export_have_what_records_hold_under_an_alias(database_url: str, tmp_path: Path):
    async with engine([Letters], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Letters, [{"code": "a", "E-Mail": "ana"}, {"code": "b", "mail": "ben"}, {"code": "c"}])
        data = await whole(await e.operations.export(done.id, mode="data"))
        assert data.splitlines() == ["code,mail", "a,ana", "b,ben", "c,"]


async def test_an_export_of_data_leaves_out_rows_that_were_erased(database_url: str, tmp_path: Path):
    async with engine([Letters], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Letters, b"code,mail\na,ana\nb,ben\n", file_name="letters.csv")
        await e.operations.erase(done.id, rows=[1])
        assert await whole(await e.operations.export(done.id, mode="data")) == "code,mail\r\nb,ben\r\n"
        lines = await whole(await e.operations.export(done.id, mode="data", format="jsonl"))
        assert lines == '{"code":"b","mail":"ben"}\n'
        report = csv.reader((await whole(await e.operations.export(done.id))).splitlines())
        assert [(len(cells), cells[-2:]) for cells in report] == [
            (12, ["code", "mail"]),
            (12, ["", ""]),
            (12, ["b", "ben"]),
        ]


async def test_data_that_was_removed_cannot_be_exported(database_url: str, tmp_path: Path):
    async with engine([Letters], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Letters, [{"code": "a", "E-Mail": "ana"}])
        await e.advance(2 * 86_400)
        await e.operations.prune()
        with pytest.raises(Conflict, match="was removed"):
            await e.operations.export(done.id, mode="data")
        assert len((await whole(await e.operations.export(done.id))).splitlines()) == 2


async def test_operations_are_found_by_their_creator_in_letters_of_any_alphabet(database_url: str, tmp_path: Path):
    async with engine([Letters], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Letters, [{"code": "a"}], created_by="Ärmel, ÖZGÜR")
        for text in ("Ärmel", "ÄRMEL", "rMel, Ö", "ÖZGÜR"):
            assert [each.id for each in (await e.operations.list(created_by=text)).items] == [made.id]


@pytest.mark.parametrize("text", ["a\0", "a\ud800"])
async def test_operations_are_not_looked_for_by_text_that_no_database_holds(
    database_url: str, tmp_path: Path, text: str
):
    async with engine([Letters], url=database_url, tmp_path=tmp_path) as e:
        for wanted in ({"name": text}, {"created_by": text}):
            with pytest.raises(InvalidInput, match="text contains"):
                await e.operations.list(**wanted)
            with pytest.raises(InvalidInput, match="text contains"):
                await e.operations.count(**wanted)


async def test_metadata_with_text_that_no_database_holds_is_refused(database_url: str, tmp_path: Path):
    async with engine([Noted], url=database_url, tmp_path=tmp_path) as e:
        with pytest.raises(MetadataInvalid, match="metadata of 'noted': JSON contains a lone surrogate"):
            await e.create(Noted, [{"code": "a"}], metadata={"note": "a\ud800"})
        [fault] = (await e.operations.validate("noted", file=None, metadata={"note": "a\ud800"})).metadata_faults
        assert "JSON contains a lone surrogate" in fault.message
        assert (await e.run(Noted, [{"code": "a"}], metadata={"note": "a\0"})).metadata == {"note": "a\0"}


@pytest.mark.parametrize("text", ["a\0.jsonl", "a\udcff.jsonl", f"{'a' * 250}.jsonl"])
async def test_a_file_is_refused_by_its_name_that_no_database_holds(database_url: str, tmp_path: Path, text: str):
    async with engine([Letters], url=database_url, tmp_path=tmp_path) as e:
        with pytest.raises(InvalidInput, match=r"^the name of the file cannot be stored: text (contains|has 256 char)"):
            await e.operations.create("letters", file=b'{"code": "a"}\n', file_name=text)


async def test_operations_are_listed_by_instants_with_their_time_zone(database_url: str, tmp_path: Path):
    async with engine([Letters], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Letters, [{"code": "a"}])
        assert [each.id for each in (await e.operations.list(created_from=made.created_at)).items] == [made.id]
        with pytest.raises(InvalidInput, match="created_from takes an instant with its time zone"):
            await e.operations.list(created_from=datetime(2030, 1, 1))
        with pytest.raises(InvalidInput, match="created_to takes an instant with its time zone"):
            await e.operations.count(created_to=datetime(2030, 1, 1))
