"""Column types that hold and compare the same bytes on SQLite, PostgreSQL and MariaDB.

Instants are plain `BigInteger` microseconds, which need no type of their own: MariaDB's DATETIME drops fractions
unless told, and every database has its own idea of time zones.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from sqlalchemy import LargeBinary, String, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.exc import DontWrapMixin
from sqlalchemy.types import TypeDecorator, TypeEngine

from penstock.errors import InvalidInput

__all__ = ["Bytes", "Json", "Key", "LongText", "NotStorable", "shortened", "storable", "storable_json"]

# MariaDB's plain "_bin" collations ignore trailing spaces; only the "nopad" ones compare every byte.
BYTEWISE_MARIADB = "utf8mb4_nopad_bin"
BYTEWISE_POSTGRESQL = "C"
DIGEST_CHARS = 16


class NotStorable(DontWrapMixin, InvalidInput):
    """A value that not all three databases could give back unchanged: NUL, a lone surrogate, text too long."""


def storable(text: str, chars: int | None = None) -> str:
    """The text itself, or `NotStorable`: PostgreSQL cannot hold NUL, and nothing encodes a lone surrogate.

    SQLite does not count characters, so we do: a text must not be accepted on one database only.
    """
    if chars is not None and len(text) > chars:
        raise NotStorable(f"text has {len(text)} characters where {chars} fit: {text[:40]!r}…")
    if "\0" in text:
        raise NotStorable(f"text contains NUL at position {text.index(chr(0))}; no database text may")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise NotStorable(
                f"text contains a lone surrogate at position {error.start}; it has no UTF-8 form"
            ) from None
    return text


def storable_json(value: Any) -> bytes:
    """A value as JSON, or `NotStorable`; NUL is written with an escape there."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        raise NotStorable(f"JSON contains a lone surrogate at position {error.start}; it has no UTF-8 form") from None


def shortened(text: str, chars: int) -> str:
    """A text that fits into so many characters: itself, or its beginning and a digest of all of it."""
    if len(text) <= chars:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGEST_CHARS]
    return f"{text[: chars - DIGEST_CHARS - 1]}~{digest}"


class Key(TypeDecorator[str]):
    """Text of at most `length` characters, compared and ordered by its bytes: case and trailing spaces count."""

    impl = String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        match dialect.name:
            case "postgresql":
                return dialect.type_descriptor(String(self.length, collation=BYTEWISE_POSTGRESQL))
            case "mariadb":
                return dialect.type_descriptor(
                    mysql.VARCHAR(self.length, charset="utf8mb4", collation=BYTEWISE_MARIADB)
                )
            case _:
                return dialect.type_descriptor(String(self.length))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable(value, self.length)


class LongText(TypeDecorator[str]):
    """Text of any length, for people to read; not for comparing."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        # MariaDB's TEXT ends at 64 KiB.
        if dialect.name == "mariadb":
            return dialect.type_descriptor(mysql.LONGTEXT(charset="utf8mb4", collation=BYTEWISE_MARIADB))
        return dialect.type_descriptor(Text())

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable(value)


class Bytes(TypeDecorator[bytes]):
    """Binary data of any length."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        # MariaDB's BLOB ends at 64 KiB.
        return dialect.type_descriptor(mysql.LONGBLOB() if dialect.name == "mariadb" else LargeBinary())


class Json(TypeDecorator[Any]):
    """A JSON value, kept as the text we wrote.

    The databases' own JSON types reorder keys, round numbers and refuse NUL; text gives back what was stored. None
    is the SQL null.
    """

    impl = LongText
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else storable_json(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else msgspec.json.decode(value)
