"""The request that carries a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any
from urllib.parse import quote

import msgspec

from penstock.targets.http.endpoint import Body, Endpoint
from penstock.targets.model import ErrorKind, Mode, TargetError
from penstock.targets.target import Batch

__all__ = ["content_type", "encoded", "filled", "id_of", "refuse_nan"]

ENCODER = msgspec.json.Encoder()


def encoded(batch: Batch, endpoint: Endpoint) -> bytes | None:
    """The body of a call; None when it has none."""
    try:
        body = _encoded(batch, endpoint)
    except (TypeError, ValueError, OverflowError) as error:
        raise TargetError(f"a record cannot be written as JSON: {error}", kind=ErrorKind.DATA) from error
    if body is not None and b"null" in body:
        refuse_nan(batch.records)
    return body


def refuse_nan(records: Sequence[Any]) -> None:
    """Refuse numbers that JSON does not have; the encoder would write null for them."""
    wrong = tuple(position for position, record in enumerate(records) if _has_nan(record))
    if wrong:
        message = "a record holds NaN or infinity, which JSON does not have"
        raise TargetError(message, kind=ErrorKind.DATA, code="NotJson", suspects=wrong)


def _has_nan(value: Any) -> bool:
    if isinstance(value, float):
        return not isfinite(value)
    if isinstance(value, Mapping):
        return any(map(_has_nan, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_nan, value))


def _encoded(batch: Batch, endpoint: Endpoint) -> bytes | None:
    match endpoint.body:
        case Body.NONE:
            return None
        case Body.SINGLE:
            return ENCODER.encode(batch.records[0])
        case Body.WRAPPER:
            return ENCODER.encode({endpoint.wrapper: list(batch.records)})
        case Body.NDJSON:
            return ENCODER.encode_lines(batch.records)
        case Body.ARRAY:
            return ENCODER.encode(list(batch.records))


def content_type(endpoint: Endpoint) -> str:
    """The media type of a body."""
    return "application/x-ndjson" if endpoint.body is Body.NDJSON else "application/json"


def filled(template: str, table: str, identifier: Any = None) -> str:
    """A URL with its fields filled in; what stands in for them cannot leave its place in the path."""
    path = template.replace("{table}", _segment(table, "table"))
    return path.replace("{id}", _segment(identifier, "id")) if "{id}" in template else path


def id_of(record: Any, mode: Mode, endpoint: Endpoint) -> Any:
    """What identifies a record, if anything does."""
    if mode is Mode.DELETE:
        return record
    return record.get(endpoint.id_field) if endpoint.id_field else None


def _segment(value: Any, name: str) -> str:
    text = "" if value is None else str(value)
    if text.strip(".") == "":
        raise TargetError(f"{text!r} cannot stand for {{{name}}} in a URL", kind=ErrorKind.DATA)
    return quote(text, safe="")
