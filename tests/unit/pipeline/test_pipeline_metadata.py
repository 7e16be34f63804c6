"""Metadata: parsed when an operation is created, stored, shown and read back."""

from __future__ import annotations

from datetime import date
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, SecretStr

from penstock.errors import MetadataInvalid
from penstock.pipeline import MetaType


class Login(BaseModel):
    user: str
    password: SecretStr


class Order(BaseModel):
    carrier: str
    due: date = Field(default=date(2030, 1, 1), alias="dueDate")
    page: HttpUrl | None = None
    logins: list[Login] = []


class Terms(msgspec.Struct, rename="camel"):
    carrier_name: str
    days: int = 3


@pytest.mark.parametrize("given", [None, {}])
def test_an_operation_without_metadata_takes_none(given: Any):
    assert MetaType().parse(given) is None
    assert MetaType(type(None)).dump(None) is None
    assert MetaType().load(None) is None


def test_metadata_given_to_an_operation_without_any_is_refused():
    with pytest.raises(MetadataInvalid, match="this operation takes no metadata"):
        MetaType().parse({"carrier": "acme"})


@pytest.mark.parametrize(
    "given", [{"carrier": "a", "dueDate": "2031-05-06"}, {"carrier": "a", "due": date(2031, 5, 6)}]
)
def test_a_mapping_becomes_the_model_by_name_or_alias(given: dict[str, Any]):
    assert MetaType(Order).parse(given) == Order(carrier="a", dueDate=date(2031, 5, 6))


def test_text_from_a_command_line_is_converted():
    assert MetaType(Terms).parse({"carrierName": "a", "days": "5"}) == Terms("a", 5)
    assert MetaType(Terms).parse({"carrier_name": "a"}) == Terms("a", 3)


def test_an_instance_passes_as_it_is():
    order = Order(carrier="a")
    assert MetaType(Order).parse(order) is order
    terms = Terms("a")
    assert MetaType(Terms).parse(terms) is terms


def test_an_instance_is_validated_again():
    order = Order(carrier="a")
    order.carrier = 5  # type: ignore[assignment]
    with pytest.raises(MetadataInvalid, match="carrier: Input should be a valid string"):
        MetaType(Order).parse(order)


@pytest.mark.parametrize("model", [Order, Terms])
def test_required_metadata_that_is_missing_is_asked_for(model: Any):
    name = "carrier" if model is Order else "carrier_name"
    with pytest.raises(MetadataInvalid, match=f"metadata is required: {name}") as caught:
        MetaType(model).parse(None)
    assert [fault.field for fault in caught.value.faults] == [name]


def test_metadata_with_defaults_only_may_be_left_out():
    class Optional(BaseModel):
        days: int = 3

    assert MetaType(Optional).parse(None) == Optional()


def test_all_faults_are_told_by_field():
    with pytest.raises(MetadataInvalid) as caught:
        MetaType(Order).parse({"dueDate": "soon", "logins": [{"user": "u"}]})
    assert [fault.field for fault in caught.value.faults] == ["carrier", "due", "logins.0.password"]
    with pytest.raises(MetadataInvalid) as caught:
        MetaType(Terms).parse({"days": "many"})
    assert [fault.field for fault in caught.value.faults] == ["carrier_name", "days"]


def test_something_else_than_metadata_is_refused():
    with pytest.raises(MetadataInvalid, match="must be a mapping or a Order; found list"):
        MetaType(Order).parse([1])


def test_what_is_stored_comes_back_whole_secrets_included():
    order = MetaType(Order).parse(
        {"carrier": "a", "page": "https://x.example/", "logins": [{"user": "u", "password": "hush"}]}
    )
    stored = MetaType(Order).dump(order)
    assert stored == {
        "carrier": "a",
        "due": "2030-01-01",
        "page": "https://x.example/",
        "logins": [{"user": "u", "password": "hush"}],
    }
    assert MetaType(Order).load(stored) == order


def test_what_is_shown_masks_secrets():
    order = Order(carrier="a", logins=[Login(user="u", password=SecretStr("hush"))])
    assert MetaType(Order).view(order)["logins"] == [{"user": "u", "password": "**********"}]


def test_structs_are_stored_by_field_name():
    assert MetaType(Terms).dump(Terms("a")) == {"carrier_name": "a", "days": 3}
    assert MetaType(Terms).load({"carrier_name": "a", "days": 3}) == Terms("a")


def test_a_strict_model_reads_its_own_stored_form():
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        due: date

    meta = Strict(due=date(2030, 1, 1))
    assert MetaType(Strict).load(MetaType(Strict).dump(meta)) == meta


def test_stored_metadata_that_no_longer_fits_is_told():
    with pytest.raises(MetadataInvalid, match="carrier: Field required"):
        MetaType(Order).load({"due": "2030-01-01"})
