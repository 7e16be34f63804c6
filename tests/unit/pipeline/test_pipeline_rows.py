"""From raw cells or records to validated rows, and what is said about those that are wrong."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, NotRequired
from uuid import UUID

import msgspec
import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, field_validator
from typing_extensions import TypedDict

from penstock import AllowEmpty
from penstock.errors import DeclarationError, Fault, RowInvalid
from penstock.pipeline import RowType
from penstock.pipeline.rows import ModelErrors
from penstock.schema import Column


class Size(enum.StrEnum):
    SMALL = "s"


class Address(BaseModel):
    city: str
    zip: int


class Person(BaseModel):
    id: int
    name: str
    born: date | None
    nick: str = "none"
    size: Size = Size.SMALL


@dataclass
class PersonData:
    id: int
    name: str
    born: date | None
    nick: str = "none"


class PersonDict(TypedDict):
    id: int
    name: str
    born: date | None
    nick: NotRequired[str]


class PersonStruct(msgspec.Struct):
    id: int
    name: str
    born: date | None
    nick: str = "none"


class Aliased(BaseModel):
    imei: str = Field(validation_alias=AliasChoices("IMEI", "Serial No"))
    city_code: int = Field(alias="cityCode")


class Renamed(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    city_code: int


class Inner(msgspec.Struct):
    zip: int


class Outer(msgspec.Struct):
    inner: Inner


MODELS = [Person, PersonData, PersonDict, PersonStruct]
COLUMNS = ("id", "name", "born", "nick")


class Allowing(BaseModel):
    id: int
    name: Annotated[str, AllowEmpty]
    nick: Annotated[str | None, AllowEmpty] = None


@dataclass
class AllowingData:
    id: int
    name: Annotated[str, Field(max_length=5), AllowEmpty]
    nick: Annotated[str, AllowEmpty] = "none"


class AllowingDict(TypedDict):
    id: int
    name: Annotated[str, AllowEmpty]
    nick: NotRequired[Annotated[str, AllowEmpty]]


class AllowingStruct(msgspec.Struct):
    id: int
    name: Annotated[str, AllowEmpty]
    nick: Annotated[str, AllowEmpty] = "none"


ALLOWING = [Allowing, AllowingData, AllowingDict, AllowingStruct]
EMPTY_NAME = Fault("is empty; a value is required (allow it with Annotated[str, AllowEmpty])", "name")


def faults(row: RowType, raw: Any, columns: tuple[str, ...] | None = None) -> list[Fault]:
    with pytest.raises(row.rejects) as caught:
        row.parser(columns)(raw)
    return row.faults(caught.value)


@pytest.mark.parametrize("model", MODELS)
def test_cells_become_a_row_of_the_declared_types(model: Any):
    row = RowType(model, row_key="id")
    parsed = row.parser(COLUMNS)(["7", "Ana", "2001-02-03", "an"])
    assert row.dump(parsed) | {"size": "s"} == {
        "id": 7,
        "name": "Ana",
        "born": "2001-02-03",
        "nick": "an",
        "size": "s",
    }
    assert row.key(parsed) == "7"


@pytest.mark.parametrize("model", MODELS)
def test_an_empty_cell_is_not_given_or_none_as_the_field_needs(model: Any):
    row = RowType(model)
    shown = row.dump(row.parser(COLUMNS)(["7", "Ana", "", ""]))
    assert (shown["name"], shown["born"], shown.get("nick", "none")) == ("Ana", None, "none")


@pytest.mark.parametrize("model", MODELS)
def test_an_empty_cell_of_a_required_text_is_a_fault_beside_the_others(model: Any):
    found = faults(RowType(model), ["x", "", "", ""], COLUMNS)
    assert [fault.field for fault in found] == ["id", "name"]
    assert found[1] == EMPTY_NAME


@pytest.mark.parametrize("model", MODELS)
def test_a_field_that_json_leaves_out_is_not_called_empty_and_an_empty_text_is_a_value_there(model: Any):
    row = RowType(model)
    assert faults(row, {"id": 1, "born": None}) == [Fault("Field required", "name")]
    assert row.dump(row.parser(None)({"id": 1, "name": "", "born": None}))["name"] == ""


@pytest.mark.parametrize("model", ALLOWING)
def test_a_field_that_allows_it_gets_the_empty_text(model: Any):
    row = RowType(model)
    (parsed,) = row.parser_of_many(("id", "name", "nick"))([["7", "", ""]])
    assert row.dump(parsed) == {"id": 7, "name": "", "nick": ""}
    assert row.checker(("id", "name", "nick"))([["7", "", ""], ["8", "Ana", "an"]]) == {}
    assert row.parser(("id", "name"))(["7", ""]) == row.parser(None)({"id": 7, "name": ""})


def test_only_text_can_be_allowed_to_be_empty():
    class Aged(BaseModel):
        age: Annotated[int, AllowEmpty]

    with pytest.raises(DeclarationError, match="AllowEmpty is for text; 'age' is int"):
        RowType(Aged)


@pytest.mark.parametrize("model", MODELS)
def test_all_faults_of_a_row_are_told_by_field(model: Any):
    found = faults(RowType(model), ["x", "Ana", "soon"], ("id", "name", "born"))
    assert [fault.field for fault in found] == ["id", "born"]


@pytest.mark.parametrize("model", MODELS)
def test_a_missing_required_cell_is_a_fault_of_its_field(model: Any):
    assert faults(RowType(model), ["", "Ana", ""], ("id", "name", "born")) == [Fault("Field required", "id")]


@pytest.mark.parametrize("model", MODELS)
def test_records_are_validated_like_cells(model: Any):
    row = RowType(model)
    assert row.dump(row.parser(None)({"id": 1, "name": "Ana", "born": None}))["id"] == 1
    assert [fault.field for fault in faults(row, {"name": "Ana", "born": None})] == ["id"]


def test_a_row_with_another_number_of_cells_is_refused():
    row = RowType(Person)
    assert faults(row, ["7", "Ana"], COLUMNS) == [Fault("has 2 cells, the header has 4")]
    with pytest.raises(RowInvalid):
        row.parser(("id",))(["7", "8"])


def test_a_record_that_is_no_object_is_refused():
    assert [fault.field for fault in faults(RowType(Person), [1, 2])] == [None]
    assert [fault.field for fault in faults(RowType(PersonStruct), [1, 2])] == [None]


def test_the_schema_lists_columns_with_every_name_a_header_may_use():
    assert RowType(Aliased).schema.columns == (
        Column("imei", ("imei", "IMEI", "Serial No"), is_required=True),
        Column("city_code", ("city_code", "cityCode"), is_required=True),
    )
    assert RowType(Renamed).schema.columns == (Column("city_code", ("city_code", "cityCode")),)


@pytest.mark.parametrize(
    "annotation",
    [str, Annotated[str, Field(max_length=5)], int | str, SecretStr, Annotated[str, Field(min_length=1)]],
)
def test_every_kind_of_required_text_must_not_be_empty(annotation: Any):
    model = type("M", (BaseModel,), {"__annotations__": {"name": annotation}})
    row = RowType(model)
    assert faults(row, [""], ("name",)) == [EMPTY_NAME]
    assert row.checker(("name",))([["1"], [""]]) == {1: [EMPTY_NAME]}


def test_optional_columns_are_not_required():
    assert [column.is_required for column in RowType(Person).schema.columns] == [True, True, True, False, False]
    assert [column.is_required for column in RowType(PersonDict).schema.columns] == [True, True, True, False]


def test_a_model_that_forbids_unknown_fields_allows_no_extra_columns():
    class Closed(BaseModel):
        model_config = ConfigDict(extra="forbid")
        id: int

    assert not RowType(Closed).schema.allows_extra
    assert not RowType(Renamed).schema.allows_extra
    assert RowType(Person).schema.allows_extra


def test_unknown_columns_are_left_to_the_model():
    assert RowType(Person).parser(("id", "name", "born", "more"))(["1", "Ana", "", "x"]).id == 1


@pytest.mark.parametrize("record", [{"IMEI": "1", "cityCode": 2}, {"imei": "1", "city_code": 2}])
def test_records_may_use_field_names_or_aliases(record: dict[str, Any]):
    parsed = RowType(Aliased).parser(None)(record)
    assert (parsed.imei, parsed.city_code) == ("1", 2)


@pytest.mark.parametrize("record", [{"cityCode": 2}, {"city_code": 2}])
def test_structs_take_both_names_too(record: dict[str, Any]):
    assert RowType(Renamed).parser(None)(record).city_code == 2


def test_faults_name_the_field_whichever_alias_was_used():
    assert [fault.field for fault in faults(RowType(Aliased), {"cityCode": "x"})] == ["imei", "city_code"]
    assert [fault.field for fault in faults(RowType(Renamed), {"cityCode": "x"})] == ["city_code"]


def test_a_fault_inside_a_nested_value_has_a_dotted_path():
    class Customer(BaseModel):
        address: Address
        tags: list[int] = []

    found = faults(RowType(Customer), {"address": {"city": "Bonn", "zip": "x"}, "tags": [1, "y"]})
    assert [fault.field for fault in found] == ["address.zip", "tags.1"]


def test_a_nested_fault_of_a_struct_has_a_path():
    assert faults(RowType(Outer), {"inner": {"zip": "x"}}) == [Fault("Expected `int`, got `str`", "inner.zip")]


def test_faults_are_in_plain_words_without_links_or_input():
    (fault,) = faults(RowType(Person), {"id": "secret-input", "name": "Ana", "born": None})
    assert fault.message == "Input should be a valid integer, unable to parse string as an integer"


def test_the_words_of_a_users_validator_stand_alone_and_are_cut():
    class Picky(BaseModel):
        id: int
        name: str

        @field_validator("id")
        @classmethod
        def small(cls, value: int) -> int:
            raise AssertionError("too big")

        @field_validator("name")
        @classmethod
        def never(cls, value: str) -> str:
            raise ValueError(value * 1000)

    first, second = faults(RowType(Picky), {"id": 9, "name": "x"})
    assert first.message == "too big"
    assert second.message.endswith("… (cut)")
    assert len(second.message) < 520


@pytest.mark.covers("SM-052")
def test_an_error_that_is_no_verdict_on_the_row_is_one_of_its_model():
    class Broken(BaseModel):
        id: int

        @field_validator("id")
        @classmethod
        def fails(cls, value: int) -> int:
            raise ConnectionError("down")

    row_type = RowType(Broken)
    with pytest.raises(row_type.rejects) as caught:
        row_type.parser(("id",))(["1"])
    assert isinstance(caught.value.__cause__, ConnectionError)
    found = row_type.checker(("id",))([["1"]])
    assert isinstance(found[0], ModelErrors)
    assert found == {0: [Fault("ConnectionError: down")]}


@pytest.mark.covers("SM-040")
def test_the_key_is_the_text_of_its_field():
    class Keyed(BaseModel):
        key: UUID | Size | None

    row = RowType(Keyed, "key")
    assert row.key(Keyed(key=UUID(int=1))) == "00000000-0000-0000-0000-000000000001"
    assert row.key(Keyed(key=Size.SMALL)) == "s"
    assert row.key(Keyed(key=None)) is None
    assert RowType(Keyed).key(Keyed(key=None)) is None


@pytest.mark.covers("SM-040")
def test_the_key_of_a_faulty_row_is_kept_when_it_can_be_read():
    row = RowType(Aliased, "imei")
    assert row.key_of_raw(["x", "123"], ("city_code", "imei")) == "123"
    assert row.key_of_raw(["x"], ("city_code", "imei")) is None
    assert row.key_of_raw(["x", ""], ("city_code", "imei")) is None
    assert row.key_of_raw({"Serial No": 5}, None) == "5"
    assert row.key_of_raw({"imei": ["a"]}, None) is None
    assert row.key_of_raw("not,a row", None) is None
    assert RowType(Aliased).key_of_raw(["x", "123"], ("city_code", "imei")) is None


def test_a_shown_row_masks_its_secrets_and_uses_field_names():
    class Login(BaseModel):
        password: SecretStr = Field(alias="Password")

    row = RowType(Login)
    parsed = row.parser(("password",))(["hush"])
    assert parsed.password.get_secret_value() == "hush"
    assert row.dump(parsed) == {"password": "**********"}


def test_a_model_whose_field_types_cannot_be_found_is_refused():
    class Hidden(msgspec.Struct): ...

    class Holder(msgspec.Struct):
        inner: Hidden

    with pytest.raises(DeclarationError, match=r"a field of .*Holder has a type that cannot be found"):
        RowType(Holder)


def test_a_model_of_any_columns_is_a_row_type():
    class Anything(BaseModel):
        model_config = ConfigDict(extra="allow")

    row = RowType(Anything)
    assert row.dump(row.parser(("a", "b"))(["1", "2"])) == {"a": "1", "b": "2"}
