"""Several requests in one: the `multipart/mixed` form of `$batch`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.targets.dataverse.error_mapping import WebApiReply

__all__ = ["PARTS_MAX", "Part", "pack", "unpack"]

PARTS_MAX = 1000
BOUNDARY = re.compile(r'boundary="?([^";,]+)"?', re.IGNORECASE)
STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})")
PART_HEAD = b"Content-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Part:
    """One request inside a `$batch`; `path` is absolute, without the host."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


def pack(parts: Iterable[Part], boundary: str) -> bytes:
    """The body of a `$batch` request."""
    lines = bytearray()
    for part in parts:
        lines += f"--{boundary}\r\n".encode() + PART_HEAD
        lines += f"{part.method} {part.path} HTTP/1.1\r\n".encode()
        for name, value in part.headers.items():
            lines += f"{name}: {value}\r\n".encode()
        if part.body:
            lines += b"Content-Type: application/json\r\n"
        lines += b"\r\n" + part.body + b"\r\n"
    return bytes(lines + f"--{boundary}--\r\n".encode())


def unpack(content_type: str, body: bytes) -> Sequence[WebApiReply]:
    """The answers inside a `$batch` answer, in order; empty when it holds none.

    A part that is cut off before its status line is left out, so the caller compares the number of parts.
    """
    found = BOUNDARY.search(content_type)
    if not found:
        return []
    mark = b"--" + found[1].strip().encode()
    pieces = re.split(rb"(?:\r?\n|^)" + re.escape(mark), body)[1:]
    return [reply for reply in map(_reply, pieces) if reply is not None]


def _reply(piece: bytes) -> WebApiReply | None:
    _, _, answer = piece.lstrip(b"\r\n").partition(b"\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    status, _, lines = head.partition(b"\r\n")
    found = STATUS_LINE.match(status)
    return WebApiReply(int(found[1]), _headers(lines), body) if found else None


def _headers(lines: bytes) -> Mapping[str, str]:
    pairs = (line.partition(":") for line in lines.decode("latin-1").split("\r\n") if line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}
