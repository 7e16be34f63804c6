"""Lists by offset, the newest events, the uploaded file and exports, on every database."""

from __future__ import annotations

from pathlib import Path

import parcels
import pytest

from penstock.errors import Conflict, InvalidInput
from penstock.operations.exporting import RESULTS, Export


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
