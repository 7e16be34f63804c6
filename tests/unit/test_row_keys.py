"""Marks of keys: every row whose key can be read has its mark, whatever its neighbours are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from penstock.operations.row_keys import GROUPS, key_names, key_of, key_sums, mark, marks
from penstock.pipeline.rows import RowType

COLUMNS = ("name", "code", "weight")


class Parcel(BaseModel):
    name: str = ""
    code: str = Field(validation_alias="parcelCode")


def marked(rows: list[Any], names: tuple[str, ...], columns: tuple[str, ...] | None) -> bytes | None:
    return marks(key_sums(rows, names, columns))


def has(block: bytes | None, key: str) -> bool:
    """Whether a key's mark stands in its group, where the database will look for it."""
    assert block is not None
    room, (group, wanted) = len(block) // GROUPS, mark(key)
    assert len(block) == GROUPS * room
    return wanted in block[group * room : (group + 1) * room]


@pytest.mark.parametrize("key", ["P1", "7", " 7", "Grüße", "日本", "👩‍👩‍👧", 'a "b" \\', "x" * 10_000])
def test_every_key_has_its_mark(key):
    cells = [["a", "first", "1"], ["b", key, "2"], ["c", "last", "3"]]
    records = [{"code": "first"}, {"code": key, "name": "code"}, {"code": "last"}]
    for found in (marked(cells, ("code",), COLUMNS), marked(records, ("code",), None)):
        assert [has(found, wanted) for wanted in ("first", key, "last")] == [True] * 3


@pytest.mark.parametrize("key", ["a\nb", "\n", "a\n", "\nb", "a\r\nb", "\n\n\n"])
def test_a_key_of_several_lines_has_its_mark_and_shifts_no_other(key):
    keys = ["first", key, "", "third", "a", "b", "last"]
    cells = [["a", each, "1"] for each in keys]
    records = [{"code": each} for each in keys]
    for found in (marked(cells, ("code",), COLUMNS), marked(records, ("code",), None)):
        assert [each for each in keys if not has(found, each)] == []
    assert key_sums(cells, ("code",), COLUMNS) == key_sums(records, ("code",), None)


@given(st.lists(st.text("ab\n\rü", max_size=4), max_size=8))
def test_the_sum_of_a_key_does_not_depend_on_its_neighbours(keys: list[str]):
    alone = [total for key in keys for total in key_sums([[key]], ("code",), ("code",))]
    assert key_sums([[key] for key in keys], ("code",), ("code",)) == alone
    assert key_sums([{"code": key} for key in keys], ("code",), None) == alone


def test_an_empty_key_takes_nothing_from_its_neighbours():
    rows: list[Any] = [["a", "", "1"], ["b", "P2", "2"], ["c", "", "3"]]
    found = marked(rows, ("code",), COLUMNS)
    assert has(found, "P2")
    assert key_sums(rows, ("code",), COLUMNS)[::2] == [0, 0]


def test_rows_that_all_have_an_empty_key_have_marks_of_one_size():
    found = marked([["", "", ""]] * 3, ("code",), COLUMNS)
    assert found == bytes(2 * 3 * GROUPS)


def test_a_thousand_keys_have_their_marks_and_few_others_seem_to():
    found = marked([["a", f"P{n}", "1"] for n in range(1000)], ("code",), COLUMNS)
    assert all(has(found, f"P{n}") for n in range(1000))
    assert sum(has(found, f"Q{n}") for n in range(10_000)) < 50
    assert found is not None
    assert len(found) < 3000


def test_marks_are_stored_so_what_they_are_never_changes():
    # Of the CRC-32 cbf43926: its first digit is the group, its last two bytes are the mark.
    assert mark("123456789") == (12, b"\x26\x39")
    assert marked([["123456789"]], ("code",), ("code",)) == b"\0" * 24 + b"\x26\x39" + b"\0" * 6


def test_a_number_in_a_record_has_the_mark_of_its_text():
    for value, key in ((12, "12"), (1.5, "1.5"), (10**30, f"1{'0' * 30}"), (True, "True"), (-0.0, "-0.0")):
        assert marked([{"code": value}], ("code",), None) == marked([{"code": key}], ("code",), None)


def test_rows_that_cannot_be_read_take_nothing_from_their_neighbours():
    cells: list[Any] = [["a", "P1", "1"], [], ["b"], "torn", "x", ["c", "", "3"], ["d", "P7", "4", "extra"]]
    records: list[Any] = [{"code": "P1"}, "not json", {}, {"code": None}, {"code": [1]}, {"code": ""}, {"code": "P7"}]
    for found in (marked(cells, ("code",), COLUMNS), marked(records, ("code",), None)):
        assert has(found, "P1")
        assert has(found, "P7")


def test_rows_without_a_key_have_no_marks():
    assert marked([["a", "b"]], (), COLUMNS) is None
    assert marked([["a", "b"]], ("imei",), COLUMNS) is None
    assert marked([{"code": "a"}], (), None) is None


def test_no_rows_have_no_marks_to_be_found():
    assert marked([], ("code",), COLUMNS) is None


def test_a_key_may_have_the_names_the_model_reads_it_from():
    row = RowType(Parcel, "code")
    assert key_names("code", row.fields) == ("code", "parcelCode")
    assert key_names("code") == ("code",)
    assert key_names(None, row.fields) == ()
    found = marked([{"parcelCode": "P1"}, {"code": "P2"}], key_names("code", row.fields), None)
    assert has(found, "P1")
    assert has(found, "P2")


@pytest.mark.parametrize(
    "raw",
    [
        ["a", "P1", "1"],
        ["a", "P1"],
        ["a"],
        ["a", "", "1"],
        ["a", "P1", "1", "extra"],
        {"code": "P1"},
        {"parcelCode": 12},
        {"code": None, "parcelCode": "P2"},
        {"code": 0},
        {"code": False},
        {"code": {"a": 1}},
        {},
        "torn",
    ],
)
def test_the_key_that_is_looked_up_is_the_one_that_is_recorded(raw):
    row = RowType(Parcel, "code")
    columns = COLUMNS if isinstance(raw, list) else None
    assert key_of(raw, key_names("code", row.fields), columns) == row.key_of_raw(raw, columns)
