"""Outputs of steps: written as JSON through the declared type, read back as that type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, Field, SecretStr

from penstock.pipeline import Done, OutputType
from penstock.pipeline.signatures import output_annotation


class Sim(BaseModel):
    number: int = Field(alias="No")


@dataclass
class Booking:
    id: int
    at: datetime


class Receipt(msgspec.Struct, rename="camel"):
    full_text: str


@pytest.mark.parametrize(
    "annotation, value",
    [
        (Sim, Sim(No=5)),
        (Booking, Booking(1, datetime(2030, 1, 2))),
        (Receipt, Receipt("x")),
        (list[Receipt], [Receipt("x")]),
        (Receipt | None, Receipt("x")),
        (Sim | Booking, Booking(1, datetime(2030, 1, 2))),
        (Decimal, Decimal("1.10")),
        (dict[str, list[int]], {"a": [1]}),
        (tuple[int, str], (1, "a")),
        (Any, {"a": [1, None, "x"]}),
        (bool, False),
        (str, ""),
    ],
)
def test_an_output_comes_back_as_it_was(annotation: Any, value: object):
    output = OutputType(annotation)
    data = output.encode(value)
    assert data is not None
    assert output.decode(data) == value


@pytest.mark.parametrize("annotation", [Any, None, type(None), Sim | None])
def test_none_stores_nothing(annotation: Any):
    assert OutputType(annotation).encode(None) is None
    assert OutputType(annotation).allows_none


@pytest.mark.parametrize("annotation", [Sim, Receipt, int])
def test_none_is_refused_where_a_value_was_promised(annotation: Any):
    with pytest.raises(TypeError, match="the step returned None, but its output is declared as"):
        OutputType(annotation).encode(None)


@pytest.mark.parametrize("annotation, value", [(int, "x"), (Sim, {"number": 1}), (Any, object()), (Receipt, 5)])
def test_a_value_that_does_not_fit_its_declaration_is_refused(annotation: Any, value: object):
    with pytest.raises((ValueError, TypeError), match="cannot be stored as"):
        OutputType(annotation).encode(value)


def test_an_output_over_64_kib_is_refused():
    assert OutputType(str).encode("x" * (64 * 1024 - 2)) is not None
    with pytest.raises(ValueError, match="the output has 65,537 bytes; at most 65,536 can be stored"):
        OutputType(str).encode("x" * (64 * 1024 - 1))


def test_an_output_with_a_secret_is_refused_rather_than_masked():
    class Token(BaseModel):
        value: SecretStr

    with pytest.raises(ValueError, match="holds a secret, which JSON would mask"):
        OutputType(Token).encode(Token(value=SecretStr("hush")))


class Rate(BaseModel):
    rate: float
    note: str | None = None


class Spelled(Rate):
    model_config = {"ser_json_inf_nan": "strings"}


class Bare(Rate):
    model_config = {"ser_json_inf_nan": "constants"}


class Measure(msgspec.Struct):
    rate: float


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "annotation, holding",
    [
        (float, lambda number: number),
        (float | None, lambda number: number),
        (Any, lambda number: {"a": [1, None, {"b": (number,)}]}),
        (dict[int, float], lambda number: {1: 0.5, 2: number}),
        (Rate, lambda number: Rate(rate=number)),
        (list[Rate], lambda number: [Rate(rate=1), Rate(rate=number)]),
        (Bare, lambda number: Bare(rate=number)),
        (Measure, Measure),
    ],
)
def test_an_output_with_a_number_that_json_does_not_have_is_refused(annotation: Any, holding: Any, number: float):
    with pytest.raises(ValueError, match="the output holds NaN or an infinity, which JSON does not have"):
        OutputType(annotation).encode(holding(number))


@pytest.mark.parametrize(
    "annotation, value",
    [(Spelled, Spelled(rate=math.inf)), (Any, {"text": "null, NaN and Infinity", "none": None}), (Rate, Rate(rate=1))],
)
def test_an_output_that_only_looks_like_it_is_kept(annotation: Any, value: object):
    output = OutputType(annotation)
    data = output.encode(value)
    assert data is not None
    assert output.decode(data) == value


def test_a_stored_output_that_no_longer_fits_is_told():
    with pytest.raises(ValueError, match="the stored output no longer fits Sim"):
        OutputType(Sim).decode(b'{"other":1}')


@pytest.mark.parametrize(
    "body, output",
    [
        (None, type(None)),
        (type(None), type(None)),
        (Any, Any),
        (list[Sim | Exception], Sim),
        (Sequence[Sim | ValueError] | None, Sim),
        (list[Exception | None], type(None)),
        (list[int | str], int | str),
        (list, Any),
    ],
)
def test_the_output_of_a_batch_step_is_one_rows_answer(body: Any, output: Any):
    assert output_annotation("batch", body) == output


@pytest.mark.parametrize(
    "body, check, output",
    [
        (None, bool, type(None)),
        (None, bool | Done[Sim], Sim | None),
        (Done[Sim] | None, bool, Sim | None),
        (str, bool | Done[Sim], str | Sim),
        (None, Done[bool] | bool, bool | None),
        (None, Done, Any),
        (Any, bool, Any),
    ],
)
def test_the_output_of_a_polled_step_comes_from_its_body_or_its_check(body: Any, check: Any, output: Any):
    assert output_annotation("poll", body, check) == output


@pytest.mark.parametrize("body, output", [(None, Any), (Done[Sim] | None, Sim), (Sim, Sim), (Any, Any)])
def test_the_output_of_a_signalled_step_is_its_payload(body: Any, output: Any):
    assert output_annotation("signal", body) == output
