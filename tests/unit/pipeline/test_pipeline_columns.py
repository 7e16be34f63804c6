"""The columns of a file may have any name: the cells of a row are found under it, and no name is taken for code."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, create_model

from penstock.errors import Fault
from penstock.pipeline import RowType


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


ODD_NAMES = (
    "it's",
    'a "quoted" name',
    """both ' and \"""",
    "'''",
    "{braces}",
    "{0!r}",
    "}",
    "back\\slash",
    "ends in \\",
    "two\nlines",
    "\r",
    "\t",
    "\\n",
    "\N{NO-BREAK SPACE}",
    "Größe",
    "日本",
    "👩‍👩‍👧",
    "\u2028",
    "\u202e",
    "__class__",
    "__dict__",
    "model_config",
    "class",
    "None",
    "lambda",
    "import",
    "rows",
    "cell0",
    "cell1",
    "1",
    "a, b: c",
    "x] for x in [1",
    "__import__('os').abort()",
    " ",
    "%s",
    "#",
)


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_a_column_may_have_any_name(name: str):
    rows = RowType(Anything)
    for columns in ((name,), ("first", name), (name, "last")):
        cells = [f"cell of {place}" for place in range(len(columns))]
        (parsed,) = rows.parser_of_many(columns)([cells])
        assert parsed.model_extra == dict(zip(columns, cells, strict=True))
        assert rows.parser(columns)(cells) == parsed


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_a_field_may_be_read_from_a_column_of_any_name(name: str):
    model: Any = create_model("Odd", size=(int, Field(validation_alias=name)))
    rows = RowType(model)
    assert [row.size for row in rows.parser_of_many((name,))([["1"], ["22"]])] == [1, 22]
    assert [fault.field for fault in rows.checker((name,))([["1"], ["x"]])[1]] == ["size"]


@given(st.lists(st.text(min_size=1), min_size=1, max_size=8, unique=True))
def test_cells_are_named_by_their_columns_whatever_these_are(names: list[str]):
    rows, columns = RowType(Anything), tuple(names)
    raws = [[f"{n} {k}" for k in range(len(names))] for n in range(3)]
    parsed = rows.parser_of_many(columns)(raws)
    assert [row.model_extra for row in parsed] == [dict(zip(columns, raw, strict=True)) for raw in raws]


def test_a_row_may_have_two_thousand_columns():
    columns = tuple(f"column {n}" for n in range(2000))
    cells = [str(n) for n in range(2000)]
    rows = RowType(Anything)
    one, other = rows.parser_of_many(columns)([cells, cells[::-1]])
    assert one.model_extra == dict(zip(columns, cells, strict=True))
    assert other.model_extra == dict(zip(columns, cells[::-1], strict=True))
    assert rows.checker(columns)([cells, cells[1:]]) == {1: [Fault("has 1,999 cells, the header has 2,000")]}


def test_empty_cells_beside_odd_names_are_not_given():
    rows = RowType(Anything)
    parsed = rows.parser_of_many(("it's", "{}"))([["1", "2"], ["", "2"], ["1", ""], ["", ""]])
    assert [row.model_extra for row in parsed] == [{"it's": "1", "{}": "2"}, {"{}": "2"}, {"it's": "1"}, {}]
