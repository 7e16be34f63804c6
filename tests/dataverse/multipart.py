"""Batches on the wire: multipart/mixed bodies of whole HTTP requests and answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from .problems import Refused, bad_request
from .wire import Answer, Request

__all__ = ["Part", "boundary_of", "format_answers", "parse_parts"]

CRLF = b"\r\n"


@dataclass(frozen=True)
class Part:
    """One request of a batch, or a change set with several."""

    request: Request | None = None
    content_id: str | None = None
    change_set: Sequence[Part] = field(default=())

    @property
    def size(self) -> int:
        return len(self.change_set) or 1


def boundary_of(content_type: str) -> str:
    """The boundary that a content type declares."""
    match = re.search(r'boundary="?([^";,\s]+)"?', content_type)
    if match is None or not content_type.startswith("multipart/mixed"):
        raise Refused(bad_request("The content type of a batch must be multipart/mixed with a boundary."))
    return match[1]


def parse_parts(body: bytes, boundary: str, base: str, *, is_nested: bool = False) -> list[Part]:
    """The requests of a batch; none at all when the boundary is not the one used."""
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary.encode())
    return [_part(piece, base, is_nested=is_nested) for piece in pieces[1:] if not piece.startswith(b"--")]


def format_answers(
    answers: Sequence[tuple[Answer | Sequence[tuple[Answer, str | None]], str | None]], mark: str
) -> bytes:
    """Answers as a multipart body; a sequence in place of an answer is that of a change set."""
    lines = []
    for answer, content_id in answers:
        lines.append(f"--{mark}".encode())
        if isinstance(answer, Answer):
            lines += _formatted(answer, content_id)
        else:
            inner = f"changesetresponse_{mark}"
            lines += [f"Content-Type: multipart/mixed; boundary={inner}".encode(), b"", format_answers(answer, inner)]
    lines.append(f"--{mark}--".encode())
    return CRLF.join(lines) + CRLF


def _formatted(answer: Answer, content_id: str | None) -> list[bytes]:
    head = [b"Content-Type: application/http", b"Content-Transfer-Encoding: binary"]
    if content_id is not None:
        head.append(f"Content-ID: {content_id}".encode())
    status = f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}".encode()
    return [
        *head,
        b"",
        status,
        *(f"{name}: {value}".encode() for name, value in answer.headers.items()),
        b"",
        answer.body,
    ]


def _part(piece: bytes, base: str, *, is_nested: bool) -> Part:
    head, _, content = piece.removeprefix(CRLF).partition(CRLF + CRLF)
    headers = _headers(head)
    kind = headers.get("content-type", "")
    if kind.startswith("multipart/mixed"):
        if is_nested:
            raise Refused(bad_request("A change set cannot hold another one."))
        return Part(change_set=parse_parts(content, boundary_of(kind), base, is_nested=True))
    if not kind.startswith("application/http"):
        raise Refused(bad_request("Every part of a batch needs the content type application/http."))
    if is_nested and "content-id" not in headers:
        raise Refused(bad_request("Every request of a change set needs a Content-ID."))
    return Part(_request(content, base), headers.get("content-id"))


def _request(content: bytes, base: str) -> Request:
    head, _, body = content.partition(CRLF + CRLF)
    line, _, rest = head.partition(CRLF)
    match = re.fullmatch(rb"([A-Z]+) (.+) HTTP/1\.1", line.strip())
    if match is None:
        raise Refused(bad_request(f"'{line.decode(errors='replace')[:60]}' is no request line; lines end in CR LF."))
    target = match[2].decode()
    return Request(match[1].decode(), target, _headers(rest), body.removesuffix(CRLF), base)


def _headers(text: bytes) -> dict[str, str]:
    lines = (line.decode().partition(":") for line in text.split(CRLF) if b":" in line)
    return {name.strip().lower(): value.strip() for name, _, value in lines}
