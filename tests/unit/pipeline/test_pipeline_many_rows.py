"""Many rows validated in one call are judged exactly as they are one by one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Self

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    Field,
    PrivateAttr,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticOmit

from penstock import AllowEmpty
from penstock.errors import Fault, RowInvalid
from penstock.pipeline import RowType
from penstock.pipeline.rows import ModelErrors

COLUMNS = ("id", "name", "born")


class Person(BaseModel):
    id: int = Field(ge=0)
    name: str = Field(min_length=2)
    born: date | None

    @field_validator("name")
    @classmethod
    def is_welcome(cls, name: str) -> str:
        if name == "troll":
            raise ValueError("no trolls")
        return name


@dataclass
class PersonData:
    id: int
    name: str
    born: date | None


class PersonStruct(msgspec.Struct):
    id: int
    name: str
    born: date | None


class Aliased(BaseModel):
    city_code: int = Field(alias="cityCode")


MODELS: list[Any] = [Person, PersonData, PersonStruct]

ids = st.sampled_from(["1", "22", "-3", "x", ""])
names = st.sampled_from(["Ada", "A", "troll", ""])
dates = st.sampled_from(["2030-01-02", "soon", ""])
cells = st.one_of(st.tuples(ids, names, dates).map(list), st.lists(ids, max_size=4))


def one_by_one(rows: RowType, raws: list[Any], columns: tuple[str, ...] | None) -> dict[int, list[Fault]]:
    parse, found = rows.parser(columns), {}
    for i, raw in enumerate(raws):
        try:
            parse(raw)
        except rows.rejects as error:
            found[i] = rows.faults(error)
    return found


@pytest.mark.parametrize("model", MODELS)
@given(raws=st.lists(cells, max_size=6))
def test_the_faults_of_many_rows_are_those_of_each(model: Any, raws: list[list[str]]):
    rows = RowType(model)
    assert rows.checker(COLUMNS)(raws) == one_by_one(rows, raws, COLUMNS)


@pytest.mark.parametrize("model", MODELS)
@given(raws=st.lists(st.tuples(ids, names, dates).map(list), max_size=6))
def test_many_good_rows_are_parsed_as_each_is(model: Any, raws: list[list[str]]):
    rows = RowType(model)
    bad = one_by_one(rows, raws, COLUMNS)
    good = [raw for i, raw in enumerate(raws) if i not in bad]
    assert rows.parser_of_many(COLUMNS)(good) == [*map(rows.parser(COLUMNS), good)]


class Lenient(BaseModel):
    """Every cell may be empty."""

    id: int | None
    name: str = "Nobody"
    born: date | None = None


class Allowing(BaseModel):
    """Text that may be empty, whether it must be given or not."""

    id: Annotated[str | None, AllowEmpty]
    name: Annotated[str, AllowEmpty]
    born: Annotated[str, Field(min_length=2), AllowEmpty] = "1970"


class Forbidding(BaseModel, extra="forbid"):
    id: int
    name: str


class Collecting(BaseModel, extra="allow"):
    __pydantic_extra__: dict[str, int]
    id: int


class Strict(BaseModel, strict=True):
    id: int
    name: str


class Trimmed(BaseModel, str_strip_whitespace=True, str_min_length=2):
    name: str
    id: int


class Looking(BaseModel):
    """A field that looks at another."""

    id: int
    name: str

    @field_validator("name")
    @classmethod
    def is_not_the_id(cls, name: str, info: ValidationInfo) -> str:
        if name.startswith("A") and info.data.get("id") == 1:
            raise ValueError("number one must not be called A")
        return name


class Nested(BaseModel):
    id: Annotated[int, {"a note": ["that has no hash"]}]
    name: list[int] | Annotated[str, Field(min_length=3)]


class Made(BaseModel):
    id: int
    name: str = Field(default_factory=lambda: str(1 // 0))


class Doubtful(BaseModel, validate_default=True):
    id: int
    name: str = Field(default="A", min_length=2)


class Renamed(BaseModel):
    number: int = Field(alias="id")
    called: str = Field(validation_alias=AliasChoices("title", "name"))
    year: date = Field(validation_alias=AliasPath("born", 0))


class Crossed(BaseModel):
    """The name of one field is the alias of another."""

    id: str = Field(default="none", min_length=2)
    name: int = Field(alias="id")


class Whole(BaseModel):
    id: int
    name: str

    @model_validator(mode="after")
    def is_not_one(self) -> Self:
        if self.id == 1:
            raise ValueError("there is only one")
        return self


class Owned(BaseModel):
    id: int
    _seen: int = PrivateAttr(default_factory=lambda: 1 // 0)


KINDS = [
    Lenient, Allowing, Forbidding, Collecting, Strict, Trimmed, Looking, Nested, Made, Doubtful, Renamed, Crossed,
    Whole, Person,
]  # fmt: skip
HEADERS = [COLUMNS, ("born", "name", "id"), ("id", "name"), ("id",), ("name",), ("name", "extra", "id")]


@pytest.mark.parametrize("columns", HEADERS, ids=" ".join)
@pytest.mark.parametrize("model", KINDS)
@settings(max_examples=30)  # of each model with each header
@given(data=st.data())
def test_whatever_a_model_does_its_rows_are_judged_as_the_model_says(
    model: Any, columns: tuple[str, ...], data: st.DataObject
):
    cell = st.sampled_from(["1", " 22 ", "x", "A", "Ada", "2030-01-02", ""])
    raws = data.draw(st.lists(st.lists(cell, min_size=len(columns), max_size=len(columns)), max_size=4))
    rows = RowType(model)
    try:
        expected = one_by_one(rows, raws, columns)
    except ZeroDivisionError:  # of the model's own making
        with pytest.raises(ZeroDivisionError):
            rows.checker(columns)(raws)
    else:
        assert rows.checker(columns)(raws) == expected


def test_a_field_that_is_called_like_the_place_of_another_is_not_taken_for_it():
    class Numbered(BaseModel):
        first: int = Field(alias="1")
        second: int = Field(alias="0")

    check = RowType(Numbered).checker(("1", "0"))
    assert [fault.field for fault in check([["x", "2"]])[0]] == ["first"]
    assert [fault.field for fault in check([["1", ""]])[0]] == ["second"]  # missing: the model itself says it


def test_a_private_attribute_is_made_when_rows_are_judged():
    (faults,) = RowType(Owned).checker(("id",))([["1"]]).values()
    assert isinstance(faults, ModelErrors)
    assert faults[0].message.startswith("ZeroDivisionError")


def test_records_of_any_kind_are_judged_each_for_itself():
    rows = RowType(Person)
    raws = [{"id": 1, "name": "Ada", "born": None}, "text", {"id": -1, "name": "A"}, None]
    found = rows.checker(None)(raws)
    assert found == one_by_one(rows, raws, None)
    assert [fault.field for fault in found[2]] == ["id", "name", "born"]


def test_a_field_may_go_by_its_own_name_in_many_rows_too():
    rows = RowType(Aliased)
    raws: list[Any] = [{"cityCode": "1"}, {"city_code": "2"}, {"city_code": "x"}]
    assert [row.city_code for row in rows.parser_of_many(None)(raws[:2])] == [1, 2]
    assert [fault.field for fault in rows.checker(None)(raws)[2]] == ["city_code"]


def test_a_validator_that_refuses_a_row_in_its_own_way_is_asked_row_by_row():
    class Odd(BaseModel):
        id: int

        @field_validator("id")
        @classmethod
        def is_odd(cls, value: int) -> int:
            if value % 2 == 0:
                raise RowInvalid(f"{value} is even")
            return value

    rows = RowType(Odd)
    found = rows.checker(("id",))([["1"], ["2"], ["x"]])
    assert found == {1: [Fault("2 is even")], 2: one_by_one(rows, [["x"]], ("id",))[0]}


def test_no_row_is_passed_over_because_a_validator_left_it_out():
    class Shy(BaseModel):
        id: int

        @model_validator(mode="before")
        @classmethod
        def is_there(cls, given: Any) -> Any:
            if given["id"] == "0":
                raise PydanticOmit
            return given

    check = RowType(Shy).checker(("id",))
    assert check([["1"]]) == {}
    found = check([["1"], ["0"]])
    assert list(found) == [1]
    assert isinstance(found[1], ModelErrors)
    assert "Omit" in found[1][0].message


@pytest.mark.parametrize("many", [1, 30], ids=["one row", "more faults together than are listed at once"])
@pytest.mark.parametrize("kind", ["pydantic", "msgspec", "records"])
def test_of_a_row_with_very_many_faults_the_first_are_told_and_how_many_more_there_are(kind: str, many: int):
    columns = tuple(f"c{n}" for n in range(300))
    fields: Any = [(name, int) for name in columns]
    model = (
        msgspec.defstruct("Wide", fields)
        if kind == "msgspec"
        else create_model("Wide", **dict.fromkeys(columns, (int, ...)))
    )
    rows = RowType(model)
    given = None if kind == "records" else columns
    raw: Any = dict.fromkeys(columns, "x") if given is None else ["x"] * 300
    found = rows.checker(given)([raw] * many)
    assert found == one_by_one(rows, [raw] * many, given)
    for faults in found.values():
        assert [fault.field for fault in faults] == [*columns[:49], None]
        assert faults[-1].message == "and 251 more faults"
