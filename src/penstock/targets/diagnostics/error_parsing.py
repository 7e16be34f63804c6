"""What the text and the code of a remote's error give away: the kind of mistake, fields, ids and keys it names."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from penstock.targets.model import ErrorKind, TargetError

__all__ = ["NamedKey", "ParsedError", "guids_in", "named_field", "spelled"]

QUOTED = r"""(?:[`'"]\w+[`'"]\.)*['"`‘“]([\w.@$-]+)['"`’”]"""
FIELD_PATTERNS = (
    re.compile(rf"\b(?:attribute|field|column|property)\s+(?:named\s+)?{QUOTED}", re.IGNORECASE),
    re.compile(rf"{QUOTED}\s+(?:attribute|field|column|property)\b", re.IGNORECASE),
    re.compile(rf"{QUOTED}\s+contains\b", re.IGNORECASE),
    re.compile(r"constraint failed: (?:\w+\.)?(\w+)$", re.IGNORECASE),
    re.compile(rf"\bFOREIGN KEY \({QUOTED}\)", re.IGNORECASE),
)
GUID = re.compile(r"(?<![0-9a-f-])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f-])", re.IGNORECASE)
KEY = re.compile(r"\bKey \((?P<columns>[^()]+)\)=\((?P<values>.*?)\) (?:is not present|already exists|conflicts)")
KEY_TABLE = re.compile(r'is not present in table "(\w+)"')
VALUE = re.compile(r"""(?:type [\w ]+: |entry |value:? )['"]([^'"]+)['"]""", re.IGNORECASE)
LENGTH = re.compile(r"(?:varying|char|length of|length:?|longer than|at most)\s*\(?'?(\d+)'?\)?", re.IGNORECASE)


def named_field(message: str) -> str | None:
    """The field that an error message is about, when it names one."""
    for pattern in FIELD_PATTERNS:
        found = pattern.search(message)
        if found:
            return found[1].rpartition(".")[2]
    return None


def guids_in(text: str) -> frozenset[str]:
    """Every GUID in a text, in lower case."""
    return frozenset(found.casefold() for found in GUID.findall(text))


class NamedKey(NamedTuple):
    """Columns and values that a database named as the offending key."""

    columns: tuple[str, ...]
    values: tuple[str, ...]
    table: str | None

    def is_of(self, record: Mapping[str, object]) -> bool:
        return all(
            column in record and str(record[column]) == value
            for column, value in zip(self.columns, self.values, strict=True)
        )


class ParsedError(NamedTuple):
    """An error, read once."""

    kind: ErrorKind | None
    code: str
    text: str
    field: str | None
    suspects: tuple[int, ...]

    @classmethod
    def of(cls, error: BaseException) -> ParsedError:
        """Read an error; one that is not a `TargetError` has only its text."""
        if not isinstance(error, TargetError):
            return cls(None, "", str(error), named_field(str(error)), ())
        told = [error.message, *(str(error.details[name]) for name in ("detail", "message") if name in error.details)]
        text = "\n".join(told)
        column = error.field or error.details.get("column")
        field = str(column) if column else named_field(text)
        return cls(error.kind, (error.code or "").casefold(), text, field, error.suspects)

    @property
    def ids(self) -> frozenset[str]:
        return guids_in(self.text)

    @property
    def key(self) -> NamedKey | None:
        """The key that a database quoted, when its columns and values can be told apart."""
        found = KEY.search(self.text)
        if not found:
            return None
        columns, values = (tuple(found[name].split(", ")) for name in ("columns", "values"))
        table = KEY_TABLE.search(self.text)
        named = NamedKey(tuple(name.strip('"') for name in columns), values, table[1] if table else None)
        return named if len(columns) == len(values) else None

    @property
    def value(self) -> str | None:
        """The offending value, when it was quoted."""
        found = VALUE.search(self.text)
        return found[1] if found else None

    @property
    def length_max(self) -> int | None:
        """The longest value the remote takes, when it says so."""
        found = LENGTH.search(self.text)
        return int(found[1]) if found else None


def spelled(identifier: Any) -> Hashable:
    """Ids that differ only in case, or in being text or a UUID, are one."""
    if isinstance(identifier, str | UUID):
        return str(identifier).casefold()
    return identifier if isinstance(identifier, Hashable) else repr(identifier)
