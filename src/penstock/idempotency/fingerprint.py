"""What tells two requests apart: method, path, query, content type and every byte of the body."""

from __future__ import annotations

import hashlib
import re
from typing import Protocol

from penstock.idempotency.model import digest

__all__ = ["Fingerprint"]

VERSION = "1"
BOUNDARY = re.compile(rb';\s*boundary=(?:"([^"]*)"|([^\s;]+))', re.IGNORECASE)
BOUNDARY_BYTES_MAX = 200  # RFC 2046 permits 70


class _Body(Protocol):
    def add(self, data: bytes) -> None: ...

    def end(self) -> str: ...


class Fingerprint:
    """Fed with a request's body piece by piece; keeps nothing of it but digests."""

    def __init__(self, method: str, path: str, query: bytes, content_type: bytes) -> None:
        boundary = _boundary(content_type)
        self._head: tuple[str | bytes, ...] = (
            VERSION,
            method,
            path,
            *_sorted(query),
            "",
            BOUNDARY.sub(b"", content_type).strip().lower(),
        )
        self._body: _Body = _Plain() if boundary is None else _Multipart(boundary)

    def add(self, data: bytes) -> None:
        """The next piece of the body."""
        self._body.add(data)

    def end(self) -> str:
        """The fingerprint, after the last piece."""
        return digest((*self._head, self._body.end()))


def _sorted(query: bytes) -> list[bytes]:
    """The parameters ordered by name; values of one name stay in their order, which means something."""
    return sorted(filter(None, query.split(b"&")), key=lambda part: part.partition(b"=")[0])


def _boundary(content_type: bytes) -> bytes | None:
    if not content_type.lower().lstrip().startswith(b"multipart/"):
        return None
    found = BOUNDARY.search(content_type)
    boundary = (found[1] or found[2]) if found else None
    return boundary if boundary and len(boundary) <= BOUNDARY_BYTES_MAX else None


class _Plain:
    def __init__(self) -> None:
        self._total = hashlib.sha256()

    def add(self, data: bytes) -> None:
        self._total.update(data)

    def end(self) -> str:
        return self._total.hexdigest()


class _Multipart:
    """Parts with their headers, whatever the boundary between them: a client makes up a new one for each try."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._rest = b"\r\n"  # the first delimiter stands at the very beginning, without a line before it
        self._part = hashlib.sha256()
        self._parts = hashlib.sha256()

    def add(self, data: bytes) -> None:
        *whole, last = (self._rest + data).split(self._delimiter)
        for part in whole:
            self._part.update(part)
            self._close_part()
        # What may be the beginning of a delimiter waits for what follows.
        kept = len(self._delimiter) - 1
        self._part.update(last[:-kept])
        self._rest = last[-kept:]

    def end(self) -> str:
        self._part.update(self._rest)
        self._close_part()
        return self._parts.hexdigest()

    def _close_part(self) -> None:
        self._parts.update(self._part.digest())
        self._part = hashlib.sha256()
