"""A dry run says what would become of a file and stores nothing."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from parcels import Parcels, parcels_csv, shop
from stored import count_of

from penstock import Penstock
from penstock.errors import Fault, NotFound, SettingsInvalid

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
async def penstock(database_url: str, tmp_path: Path) -> AsyncIterator[Penstock]:
    async with shop(database_url, tmp_path) as opened:
        yield opened


@pytest.mark.covers("SM-051")
async def test_every_row_is_checked_and_nothing_is_stored(penstock, tmp_path):
    check = await penstock.operations.validate(Parcels, file=parcels_csv(), file_name="parcels.csv")
    assert (check.total_rows, check.valid_rows, check.invalid_rows, check.is_valid) == (40, 38, 2, False)
    assert [(e.row, e.row_key, e.state, e.error_type) for e in check.errors] == [
        (3, "P3", "Invalid", "Validation"),
        (37, "P37", "Invalid", "Validation"),
    ]
    assert check.errors[1].faults == (Fault("is over 500", "weight"),)
    assert set((await count_of(penstock.db)).values()) == {0}
    assert not (tmp_path / "files").exists()


async def test_a_good_file_is_valid(penstock, tmp_path):
    (tmp_path / "good.csv").write_text("code,weight\nP1,1\n")
    check = await penstock.operations.validate("PARCELS", file=tmp_path / "good.csv", metadata={"weight_max": 2})
    assert check.is_valid
    assert (check.operation, check.total_rows, check.errors, check.groups) == ("parcels", 1, (), ())


async def test_only_the_first_errors_are_listed_but_all_are_counted(penstock):
    file = b"code,weight\n" + b"P1,x\n" * 25 + b"P2,600\n" * 30
    check = await penstock.operations.validate(Parcels, file=file, file_name="a.csv", limit_errors=3)
    assert [error.row for error in check.errors] == [1, 2, 3]
    assert check.invalid_rows == 55
    assert [(group.rows, group.first_row) for group in check.groups] == [(30, 26), (25, 1)]


async def test_wrong_metadata_is_reported_and_the_rows_are_still_checked_by_their_model(penstock):
    check = await penstock.operations.validate(
        Parcels, file=parcels_csv(), file_name="a.csv", metadata={"weight_max": "x"}
    )
    assert [fault.field for fault in check.metadata_faults] == ["weight_max"]
    assert [error.row for error in check.errors] == [3]
    assert not check.is_valid


async def test_what_validate_metadata_refuses_is_reported(penstock):
    check = await penstock.operations.validate(
        Parcels, file=b"code,weight\n", file_name="a.csv", metadata={"weight_max": -1}
    )
    assert [fault.message for fault in check.metadata_faults] == ["weight_max must be positive"]


@pytest.mark.parametrize(
    "file, file_name, code",
    [
        (b"code\nP1\n", "a.csv", "missing_columns"),
        (b"PK\x03\x04....", "a.csv", "not_text"),
        (b"code,weight\nP1,1\n", "a.docx", "unknown_format"),
        (b"code,weight\nP1,1\n", None, "unknown_format"),
        ("nowhere.csv", None, "missing"),
        (b'[{"code": "a", "weight": 1}, ', "a.json", None),
    ],
)
async def test_a_file_that_cannot_be_read_is_reported_with_a_code(penstock, file, file_name, code):
    check = await penstock.operations.validate(Parcels, file=file, file_name=file_name)
    assert check.file_fault is not None
    assert check.file_fault.message
    assert code is None or check.file_fault.code == code
    assert not check.is_valid


async def test_a_missing_column_is_named(penstock):
    check = await penstock.operations.validate(Parcels, file=b"code\nP1\n", file_name="a.csv")
    assert [fault.field for fault in check.file_fault.faults] == ["weight"]


async def test_too_many_wrong_rows_are_reported_as_the_stop_they_would_be(penstock):
    file = b"code,weight\n" + b"P1,x\n" * 3
    check = await penstock.operations.validate(Parcels, file=file, file_name="a.csv", options={"max_errors": 2})
    assert check.stop_reason == "3 rows failed, max_errors is 2"


async def test_an_open_file_can_be_sent_right_after(penstock):
    stream = io.BytesIO(parcels_csv())
    await penstock.operations.validate(Parcels, file=stream, file_name="a.csv")
    made = await penstock.operations.create(Parcels, file=stream, file_name="a.csv")
    assert made.file_bytes == len(parcels_csv())


async def test_a_stream_that_cannot_be_rewound_is_checked_too(penstock):
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    check = await penstock.operations.validate(Parcels, file=Pipe(parcels_csv()), file_name="a.csv")
    assert check.total_rows == 40


async def test_an_unknown_operation_or_option_is_the_callers_mistake(penstock):
    with pytest.raises(NotFound, match="unknown operation 'letters'"):
        await penstock.operations.validate("letters", file=b"", file_name="a.csv")
    with pytest.raises(SettingsInvalid):
        await penstock.operations.validate(Parcels, file=b"", file_name="a.csv", options={"speed": 9})
