"""Requests and answers as values, and reading and writing them on a connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urlsplit

import h11

__all__ = ["Answer", "Lost", "Request", "json_answer", "receive", "send"]

API = "/api/data/v9.2/"
HEADERS_BYTES_MAX = 96 * 1024
READ_BYTES = 256 * 1024


@dataclass(frozen=True)
class Request:
    """One HTTP request, or one part of a batch; header names are lower case."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    base: str = ""
    """Scheme and host the client used."""

    @property
    def path(self) -> str:
        """The decoded path below the API's root, or the whole path when it lies elsewhere."""
        path = unquote(urlsplit(self.target).path)
        return path.removeprefix(API)

    @property
    def query(self) -> dict[str, str]:
        """The decoded query options; a later one of the same name wins."""
        found = {}
        for piece in urlsplit(self.target).query.split("&"):
            name, _, value = piece.partition("=")
            if name:
                found[_decoded(name)] = _decoded(value)
        return found

    @property
    def preferences(self) -> dict[str, str]:
        """The `Prefer` header as names and values."""
        found = {}
        for piece in _split_outside_quotes(self.headers.get("prefer", "")):
            name, _, value = piece.strip().partition("=")
            if name:
                found[name.strip().lower()] = value.strip().strip('"')
        return found

    def json(self) -> Any:
        """The decoded body, not to be changed; raises ValueError when it is none."""
        return self._decoded_body

    @cached_property
    def _decoded_body(self) -> Any:
        return json.loads(self.body)

    def wants_annotation(self, name: str) -> bool:
        """Whether the client asked for a member of this name."""
        patterns = self.preferences.get("odata.include-annotations", "").split(",")
        return any(fnmatchcase(name.removeprefix("@"), pattern.strip()) for pattern in patterns if pattern.strip())


@dataclass(frozen=True)
class Answer:
    """One HTTP answer; `cut` sends so many bytes of the body and then hangs up."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: int | None = None

    def plus(self, headers: Mapping[str, str]) -> Answer:
        """The answer with further headers; its own win."""
        return replace(self, headers={**headers, **self.headers})


class Lost(Exception):
    """The connection is to be dropped instead of answering; `is_reset` drops it hard."""

    def __init__(self, *, is_reset: bool = False) -> None:
        super().__init__("the connection is dropped")
        self.is_reset = is_reset


def json_answer(status: int, value: Any, headers: Mapping[str, str] | None = None) -> Answer:
    """An answer with a JSON body."""
    text = json.dumps(value, ensure_ascii=False).encode()
    kind = {"Content-Type": "application/json; odata.metadata=minimal", "OData-Version": "4.0"}
    return Answer(status, {**kind, **(headers or {})}, text)


async def receive(
    connection: h11.Connection, reader: asyncio.StreamReader, base: str, bytes_max: Callable[[], int]
) -> Request | None:
    """The next request on a connection, None when the client is gone; a body over the limit is read but not kept."""
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            if len(body) <= bytes_max():
                body += event.data
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            return Request(head.method.decode(), head.target.decode(), _headers(head.headers), bytes(body), base)
        else:
            return None


async def send(connection: h11.Connection, writer: asyncio.StreamWriter, answer: Answer) -> None:
    """Write an answer; a cut one ends in the middle of its body."""
    headers = [*answer.headers.items()]
    if answer.status != 204:
        headers.append(("Content-Length", str(len(answer.body))))
    head = connection.send(h11.Response(status_code=answer.status, headers=headers)) or b""
    if answer.cut is not None:
        writer.write(head + answer.body[: answer.cut])
        await writer.drain()
        raise Lost
    body = connection.send(h11.Data(data=answer.body)) if answer.status != 204 else b""
    end = connection.send(h11.EndOfMessage())
    writer.write(head + (body or b"") + (end or b""))
    await writer.drain()


def _headers(raw: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode().lower(): value.decode("latin-1") for name, value in raw}


def _decoded(text: str) -> str:
    return unquote(text.replace("+", " "))


def _split_outside_quotes(text: str) -> Iterator[str]:
    piece, is_quoted = "", False
    for letter in text:
        if letter == '"':
            is_quoted = not is_quoted
        if letter == "," and not is_quoted:
            yield piece
            piece = ""
        else:
            piece += letter
    yield piece
