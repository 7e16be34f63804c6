"""Statements that are sent again and again: written in SQLAlchemy, compiled once, then given to the driver as text.

SQLAlchemy takes longer over such a statement than SQLite does. All that it knows, of the dialect and of our types, is
asked here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import BindParameter
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.sql.selectable import ExecutableReturnsRows

__all__ = ["Answer", "Prepared", "Statement", "Statements", "Values"]

Statement = ExecutableReturnsRows
"""SELECT, INSERT, UPDATE or DELETE."""

Values = Mapping[str, Any] | list[Mapping[str, Any]]
"""What is sent with a statement; a list of it to send it many times."""

Row = tuple[Any, ...]


class Answer(NamedTuple):
    """The rows that came back, and how many an UPDATE or DELETE matched; that says nothing after a list of values."""

    rows: list[Row]
    matched: int

    def one(self) -> Row:
        """The only row."""
        (row,) = self.rows
        return row


class Prepared:
    """A statement as the driver takes it, for values of certain names."""

    __slots__ = ("_gives", "_takes", "has_rows", "is_many", "text")

    def __init__(self, statement: Statement, dialect: Dialect, names: Collection[str], *, is_many: bool) -> None:
        # What is sent with an INSERT or UPDATE and names a column is set, as SQLAlchemy does it.
        compiled: Any = statement.compile(dialect=dialect, column_keys=list(names), for_executemany=is_many)
        if compiled.post_compile_params or not all(column.default.is_scalar for column in compiled.prefetch):
            raise TypeError(f"neither lists for IN nor defaults that are computed can be prepared: {compiled}")
        self.text: str = compiled.string
        self.is_many = is_many
        defaults = {column.key: column.default.arg for column in compiled.prefetch}
        self._takes = [
            _taker(compiled.binds[name], dialect, is_sent=name in names, default=defaults.get(name))
            for name in compiled.positiontup
        ]
        types = [column.type.dialect_impl(dialect) for column in statement.exported_columns]
        self._gives = [type_.result_processor(dialect, None) for type_ in types]
        self.has_rows = bool(self._gives)

    def parameters(self, values: Values) -> list[Any]:
        """What the driver wants beside the text."""
        if isinstance(values, list):
            return [[take(each) for take in self._takes] for each in values]
        return [take(values) for take in self._takes]

    def answer(self, found: Iterable[Any], matched: int) -> Answer:
        """The driver's rows with values as our types have them."""
        if any(self._gives):
            gives = self._gives
            found = [[give(value) if give else value for give, value in zip(gives, row, strict=True)] for row in found]
        return Answer([tuple(row) for row in found], matched)


class Statements:
    """All that was prepared for one database. A statement is known as long as somebody keeps it."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._known: WeakKeyDictionary[Statement, dict[Hashable, Prepared]] = WeakKeyDictionary()

    def prepared(self, statement: Statement, values: Values) -> Prepared:
        """The statement as it is sent with such values."""
        is_many = isinstance(values, list)
        names = tuple(values[0] if isinstance(values, list) else values)
        shapes = self._known.setdefault(statement, {})
        if (names, is_many) not in shapes:
            shapes[names, is_many] = Prepared(statement, self._dialect, names, is_many=is_many)
        return shapes[names, is_many]


def _taker(
    bind: BindParameter[Any], dialect: Dialect, *, is_sent: bool, default: Any
) -> Callable[[Mapping[str, Any]], Any]:
    """Where a parameter's value comes from: what is sent, a clock that is asked each time, or the statement itself."""
    key, ask = bind.key, bind.callable
    convert: Callable[[Any], Any] = bind.type.dialect_impl(dialect).bind_processor(dialect) or (lambda value: value)
    if is_sent:
        return lambda values: convert(values[key])
    if ask is not None:
        return lambda _: convert(ask())
    if bind.required:
        raise KeyError(key)
    value = convert(bind.value if default is None else default)
    return lambda _: value
