"""Keys of records: what identifies them, the order to lock rows in, and keys that come twice."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any

from penstock.targets.model import ErrorKind, Mode, TargetError
from penstock.targets.sql.table import Column, Table
from penstock.targets.sql.values import Step

__all__ = [
    "KeyReader",
    "KeysAlike",
    "Row",
    "fault",
    "folded",
    "ids_of",
    "is_whole",
    "key_of_id",
    "missing_key",
    "picker",
]

Row = tuple[Any, ...]


class KeysAlike(TargetError):
    """Records of one statement turned out to mean one row; `suspects` are their positions. It reaches no caller."""

    @classmethod
    def at(cls, positions: Iterable[int]) -> KeysAlike:
        """The error for records at these positions of the batch."""
        message = "the table calls keys of several records equal"
        return cls(message, kind=ErrorKind.DATA, code="KEYS_ALIKE", suspects=tuple(sorted(positions)))


class KeyReader:
    """What makes two records the same: their key, or None for a record without a whole one. It never fails."""

    def __init__(self, table: Table, mode: Mode, key: tuple[str, ...]) -> None:
        self._mode, self._key, self._pick = mode, key, picker(key)
        self._columns = [table.columns[name] for name in key]
        column = self._columns[0]
        is_plain = mode is not Mode.DELETE and len(key) == 1
        texts = {str} if column.from_text is None else set()
        self._plain_types: set[type] = (set(column.unfolded) if column.fold else {int, *texts}) if is_plain else set()

    def __call__(self, record: Any) -> Hashable:
        try:
            given = key_of_id(record, self._key) if self._mode is Mode.DELETE else self._pick(record)
            value = tuple(map(_as_compared, given, self._columns))
        except (KeyError, TypeError, TargetError):
            return None
        return (value[0] if len(value) == 1 else value) if is_whole(value) else None

    def of_all(self, records: Sequence[Any]) -> list[Hashable]:
        """The keys of many records. Most are whole numbers, or texts of a column of texts, which need no look."""
        if self._plain_types:
            with suppress(KeyError, TypeError):
                keys: list[Hashable] = list(map(itemgetter(self._key[0]), records))
                if self._plain_types.issuperset(map(type, keys)):
                    return keys
        return list(map(self, records))


def _as_compared(value: Any, column: Column) -> Any:
    if type(value) in column.unfolded:
        return value
    if type(value) is str and column.from_text is not None:
        with suppress(ValueError):
            value = column.from_text(value)
    return folded(value, column.fold)


def folded(value: Any, fold: Step | None) -> Any:
    """A key value as the table compares it."""
    return fold(value) if fold and value is not None else value


def key_of_id(given: Any, key: tuple[str, ...]) -> Row:
    """The key's values from what a caller calls an id: one value, a tuple of them, or a mapping with them in it."""
    if isinstance(given, Mapping):
        if set(given) >= set(key):
            return tuple(given[name] for name in key)
    elif len(key) == 1:
        return (given,)
    elif isinstance(given, tuple | list) and len(given) == len(key):
        return tuple(given)
    raise missing_key(key)


def ids_of(columns: Sequence[list[Any]]) -> list[Any]:
    """Key columns as ids: the value itself, or a tuple when the key has several columns."""
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def picker(columns: tuple[Any, ...]) -> Callable[[Any], Row]:
    """A function from a record to the tuple of these columns; from a row, of these places."""
    if len(columns) == 1:
        return lambda record: (record[columns[0]],)
    return itemgetter(*columns) if columns else lambda record: ()


def is_whole(value: Any) -> bool:
    """Whether a key, or a tuple of key values, can identify anything."""
    try:
        hash(value)
    except TypeError:
        return False
    return value is not None and not (isinstance(value, tuple) and None in value)


def missing_key(key: tuple[str, ...]) -> TargetError:
    """The error for a record that cannot be identified."""
    return fault("MISSING_KEY", f"the record lacks a value for its key ({', '.join(key)})", key[0])


def fault(code: str, message: str, field: str | None = None) -> TargetError:
    """What is wrong with a record that is not worth sending."""
    return TargetError(message, kind=ErrorKind.DATA, code=code, field=field)
