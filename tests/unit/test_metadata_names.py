"""Which names of metadata, as somebody writes them one by one, a model reads."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, model_validator

from penstock.pipeline.metadata import MetaType

NAMES = ["currency", "times", "count", "more", "valuta"]


class Plain(BaseModel):
    currency: str
    times: int = Field(1, alias="count")


class Deep(BaseModel):
    times: int = Field(1, validation_alias=AliasChoices("count", AliasPath("more", "times")))


class Struct(msgspec.Struct, rename="camel"):
    start_at: str


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class ReadsOldNames(BaseModel):
    currency: str

    @model_validator(mode="before")
    @classmethod
    def renamed(cls, data: dict[str, Any]) -> dict[str, Any]:
        return {"currency": data.get("valuta")} | data


@pytest.mark.parametrize(
    "model, unknown",
    [(Plain, ["more", "valuta"]), (Struct, NAMES), (Deep, []), (Open, []), (ReadsOldNames, []), (None, [])],
)
def test_names_that_a_model_never_reads_are_told(model: Any, unknown: list[str]):
    assert [fault.field for fault in MetaType(model).unknown(NAMES)] == unknown


def test_a_field_is_known_by_its_name_and_by_its_alias():
    assert MetaType(Struct).unknown(["start_at", "startAt"]) == []
