"""The request header `Idempotency-Key`: quoted, as the IETF draft has it, or bare, as most clients send it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.errors import InvalidInput
from penstock.idempotency.model import KEY_CHARACTERS_MAX

__all__ = ["HEADER", "KeyMalformed", "key_of"]

HEADER = b"idempotency-key"

# A string of structured fields (RFC 9651): printable ASCII, where a quote or backslash has a backslash before it.
QUOTED = re.compile(rb'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
ESCAPED = re.compile(rb'\\(["\\])')
# No quote, and no comma: a proxy that joins two headers puts one between them.
BARE = re.compile(rb"[\x21\x23-\x2b\x2d-\x7e]*")


class KeyMalformed(InvalidInput):
    """The header is there, but holds no key."""


def key_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The request's key, the same for both spellings; None when it has none."""
    given = [value for name, value in headers if name.lower() == HEADER]
    if not given:
        return None
    if len(given) > 1:
        raise KeyMalformed(f"Idempotency-Key was sent {len(given)} times; once is right")
    return _key(given[0].strip(b" \t"))


def _key(value: bytes) -> str:
    quoted = QUOTED.fullmatch(value)
    if quoted is None and BARE.fullmatch(value) is None:
        raise KeyMalformed(
            "Idempotency-Key is a quoted string of printable ASCII characters, or the same without quotes, commas and "
            f"spaces; found something else in its {len(value)} bytes"
        )
    key = ESCAPED.sub(rb"\1", quoted[1]) if quoted else value
    if not 1 <= len(key) <= KEY_CHARACTERS_MAX:
        raise KeyMalformed(f"Idempotency-Key has 1 to {KEY_CHARACTERS_MAX} characters; found {len(key)}")
    return key.decode("ascii")
