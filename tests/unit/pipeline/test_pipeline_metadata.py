"""Metadata: parsed when an operation is created, stored, shown and read back."""

from __future__ import annotations

import traceback
from datetime import date
from typing import Any

import msgspec
import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    Secret,
    SecretBytes,
    SecretStr,
    computed_field,
    field_serializer,
    field_validator,
)

from penstock.errors import MetadataInvalid
from penstock.pipeline import MetaType
from penstock.pipeline.secret_values import MASK


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


# --- secrets

HUSH = "hush-token"


class Vault(BaseModel):
    """Secrets of every kind, at every depth."""

    token: SecretStr
    blob: SecretBytes = SecretBytes(b"hush-bytes")
    pin: Secret[int] = Secret(480_015)
    expires: Secret[date] | None = None
    logins: list[Login] = []
    by_name: dict[str, SecretStr] = {}
    pair: tuple[str, SecretStr] | None = None


def vault() -> Vault:
    return Vault(
        token=SecretStr("hush-token"),
        expires=Secret(date(2031, 5, 6)),
        logins=[Login(user="u", password=SecretStr("hush-password"))],
        by_name={"a": SecretStr("hush-name")},
        pair=("left", SecretStr("hush-pair")),
    )


def test_secrets_of_every_kind_come_back_whole_and_are_never_shown():
    kind, meta = MetaType(Vault), vault()
    assert kind.load(kind.dump(meta)) == meta
    shown = kind.view(meta)
    assert shown == {
        "token": MASK,
        "blob": MASK,
        "pin": MASK,
        "expires": MASK,
        "logins": [{"user": "u", "password": MASK}],
        "by_name": {"a": MASK},
        "pair": ["left", MASK],
    }


def test_a_secret_that_is_no_text_is_a_secret_too():
    class Dated(BaseModel):
        born: Secret[date]

    kind, meta = MetaType(Dated), Dated(born=Secret(date(2031, 5, 6)))
    assert kind.secrets(meta) == ("2031-05-06",)
    assert kind.load(kind.dump(meta)) == meta


def test_a_serializer_that_reveals_a_secret_reveals_none():
    class Open(BaseModel):
        token: SecretStr

        @field_serializer("token")
        def in_clear(self, token: SecretStr) -> str:
            return token.get_secret_value()

        @computed_field
        def url(self) -> str:
            return f"https://x.example/?token={self.token.get_secret_value()}"

    kind, meta = MetaType(Open), Open(token=SecretStr("hush-token"))
    assert kind.view(meta) == {"token": MASK, "url": f"https://x.example/?token={MASK}"}
    assert kind.load(kind.dump(meta)) == meta


def test_secrets_that_would_not_come_back_as_they_are_are_refused():
    class Coded(BaseModel):
        model_config = ConfigDict(val_json_bytes="base64")
        blob: SecretBytes

    for blob in (b"hush", b"\xff\xfe"):
        with pytest.raises(MetadataInvalid, match=r"the secrets of .*Coded would not come back"):
            MetaType(Coded).dump(Coded(blob=SecretBytes(blob)))


def test_the_words_of_a_validator_do_not_repeat_a_secret():
    class Strict(BaseModel):
        token: SecretStr

        @field_validator("token")
        @classmethod
        def is_long(cls, token: SecretStr) -> SecretStr:
            raise ValueError(f"{token.get_secret_value()!r} is too short")

    given = {"token": HUSH}
    with pytest.raises(MetadataInvalid) as caught:
        MetaType(Strict).parse(given)
    assert str(caught.value.faults[0]) == f"token: '{MASK}' is too short"
    assert HUSH not in "".join(traceback.format_exception(caught.value))


def test_a_wrong_type_of_a_secret_is_told_without_it():
    given = {"token": [HUSH], "logins": [{"password": HUSH}]}
    with pytest.raises(MetadataInvalid) as caught:
        MetaType(Vault).parse(given)
    told = "".join(traceback.format_exception(caught.value))
    assert "token: Input should be a valid string" in told
    assert HUSH not in told


def test_a_short_secret_is_masked_where_it_stands_alone():
    class Short(BaseModel):
        pin: SecretStr
        text: str

    assert MetaType(Short).view(Short(pin=SecretStr("at"), text="that")) == {"pin": MASK, "text": "that"}
