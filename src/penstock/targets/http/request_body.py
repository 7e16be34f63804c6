"""The request that carries a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from math import isfinite
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from penstock.targets.http.endpoint import Body, Endpoint, File
from penstock.targets.model import ErrorKind, Mode, TargetError
from penstock.targets.target import Batch

__all__ = ["content_type", "encoded", "filled", "id_of", "without_nan"]

ENCODER = msgspec.json.Encoder()


def encoded(batch: Batch, endpoint: Endpoint) -> bytes | None:
    """The body of a call; None when it has none."""
    try:
        match endpoint.body:
            case Body.NONE:
                return None
            case Body.ARRAY:
                body = ENCODER.encode(list(batch.records))
            case Body.WRAPPER:
                body = ENCODER.encode({endpoint.wrapper: list(batch.records)})
            case Body.NDJSON:
                body = ENCODER.encode_lines(batch.records)
            case Body.SINGLE:
                body = ENCODER.encode(batch.records[0])
            case Body.FORM:
                body = urlencode(list(_form_fields(batch.records[0]))).encode()
            case Body.MULTIPART:
                body = _multipart(batch.records[0], _boundary(batch))
    except (TypeError, ValueError, OverflowError) as error:
        raise TargetError(f"a record cannot be written as JSON: {error}", kind=ErrorKind.DATA) from error
    return without_nan(body, batch.records)


def without_nan(body: bytes, records: Sequence[Any]) -> bytes:
    """The body, unless a record holds a number that JSON does not have; the encoder writes null for it."""
    wrong = tuple(at for at, record in enumerate(records) if _has_nan(record)) if b"null" in body else ()
    if wrong:
        message = "a record holds NaN or infinity, which JSON does not have"
        raise TargetError(message, kind=ErrorKind.DATA, code="NotJson", suspects=wrong)
    return body


def _has_nan(value: Any) -> bool:
    if isinstance(value, float):
        return not isfinite(value)
    if isinstance(value, Mapping):
        return any(map(_has_nan, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_nan, value))


def content_type(batch: Batch, endpoint: Endpoint) -> str:
    """The media type of a body."""
    if endpoint.body is Body.MULTIPART:
        return f"multipart/form-data; boundary={_boundary(batch)}"
    plain = {Body.NDJSON: "application/x-ndjson", Body.FORM: "application/x-www-form-urlencoded"}
    return plain.get(endpoint.body, "application/json")


def _form_fields(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """A record as flat fields: members of members are `address[city]`, those of lists `tags[]`; None is left out."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _form_fields(inner, f"{name}[{key}]" if name else str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _form_fields(inner, f"{name}[]")
    elif value is not None:
        yield name, _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ENCODER.encode(value).decode().strip('"')


def _multipart(record: Mapping[str, Any], boundary: str) -> bytes:
    body = bytearray()
    for name, value in record.items():
        if value is None:
            continue
        media_type, file, content = None, "", b""
        if isinstance(value, File):
            media_type, file, content = value.media_type, value.name, value.content
        elif isinstance(value, bytes | bytearray):
            media_type, file, content = "application/octet-stream", name, bytes(value)
        elif isinstance(value, Mapping | list | tuple):
            media_type, content = "application/json", ENCODER.encode(value)
        else:
            content = _text(value).encode()
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(name)}"'.encode()
        body += f'; filename="{_quoted(file)}"'.encode() if file else b""
        body += f"\r\nContent-Type: {media_type}".encode() if media_type else b""
        body += b"\r\n\r\n" + content + b"\r\n"
    return bytes(body + f"--{boundary}--\r\n".encode())


def _quoted(name: str) -> str:
    """A name as HTML forms write it."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _boundary(batch: Batch) -> str:
    """The same for every try of a batch, so that a remote sees the same request under the same key."""
    return sha256(batch.key.encode()).hexdigest()[:32]


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
