"""What a database says of a table, which of its columns identify a record, and how SQL writes their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.targets.model import BadInput, BulkOptions, ErrorKind, Mode, TargetError
from penstock.targets.sql.values import Step

__all__ = [
    "Classes",
    "Column",
    "SqlOptions",
    "Table",
    "ansi",
    "backticks",
    "choose_key",
    "listed",
    "no_such_table",
    "split_name",
]


@dataclass(frozen=True, kw_only=True)
class SqlOptions(BulkOptions):
    """Options for tables of PostgreSQL, MariaDB and SQLite. Batches of 1,000 to 10,000 records suit them best."""

    key: Sequence[str] | None = None
    """The columns that identify a record: the primary key, or the columns of a unique index."""
    update_only_changed: bool = False
    """Leave rows alone that already hold what was sent, and report them as unchanged."""

    def __post_init__(self) -> None:
        if isinstance(self.key, str):
            object.__setattr__(self, "key", (self.key,))

    @classmethod
    def of(cls, options: BulkOptions) -> SqlOptions:
        """These options, or the defaults when the call said nothing about tables."""
        return options if isinstance(options, cls) else DEFAULTS


DEFAULTS = SqlOptions()


Quote = Callable[[str], str]
Classes = tuple[type, ...]
PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `type` is without length or precision, `full_type` with them."""

    name: str
    type: str
    full_type: str = ""
    default: str | None = None
    """The expression the database would use for a missing value."""
    is_generated: bool = False
    """The database computes it and takes no value."""
    takes_null: bool = True
    is_required: bool = False
    """It takes no null and has no default."""
    is_array: bool = False
    is_user_defined: bool = False
    """Somebody made its type, and may replace it."""
    is_copied_as_text: bool = False
    """The driver has no binary form of its values, so they are staged as text."""
    fold: Step | None = None
    """Values that this makes equal are equal to the table, as far as we can tell; None when only equal ones are."""
    unfolded: Classes = ()
    """Classes whose values the fold makes nothing else of."""
    is_loose: bool = False
    """The table may call values equal that the fold does not, as some collations and spellings of dates are."""
    is_text: bool = False
    from_text: Step | None = None
    """Reads a text as a value of this type; None where texts are taken as they are."""
    is_read_by_server: bool = False
    """Texts are for the server to read: it knows more ways to write them than we do."""
    is_given_as_text: bool = False
    """This batch gives texts for the server to read."""
    key_types: Classes = ()
    """What a key of this column must be, where the database would compare anything else in its own way."""
    length_max: int | None = None
    charset: str | None = None
    collation: str | None = None

    def leaves(self, values: Iterable[Any]) -> bool:
        """Whether the fold makes nothing else of these values, as far as their classes say."""
        return self.fold is None or (bool(self.unfolded) and set(self.unfolded).issuperset(map(type, values)))


@dataclass(frozen=True, slots=True)
class Table:
    """One table with its unique keys, the primary key first if there is one."""

    schema: str | None
    name: str
    columns: Mapping[str, Column]
    primary_key: tuple[str, ...] = ()
    unique_keys: Collection[tuple[str, ...]] = ()
    reads_before: bool = False
    """What an upsert writes does not tell new rows from old ones, so what was there must be read before."""
    has_row_security: bool = False
    has_insert_trigger: bool = False
    """A trigger runs before each insert, and may leave the row out."""
    has_update_trigger: bool = False
    """The same of updates."""
    checks: Collection[tuple[str, ...]] = ()
    """The columns that each check of a row is about."""
    has_one_key: bool = False
    """It has one unique index and no triggers, and replaces no rows, so only its key can be in the way of a row."""
    statement_bytes_max: int | None = None
    """What the server takes as one statement; None where that does not matter."""
    key_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The columns of every unique index, where errors name the index."""
    columns_of_key: Mapping[frozenset[str], Mapping[str, Column]] = field(default_factory=dict)
    """The columns of a unique index as it compares them, where that is not as another index does."""

    def compared_by(self, key: Collection[str]) -> Table:
        """The table with its columns as the unique index on exactly these compares them."""
        own = self.columns_of_key.get(frozenset(key))
        return replace(self, columns={**self.columns, **own}) if own else self

    def quoted(self, quote: Quote) -> str:
        """The name as SQL writes it."""
        return ".".join(quote(part) for part in (self.schema, self.name) if part)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


def no_such_table(name: str, found: str | None = None) -> TargetError:
    """The error for a name that is no table."""
    message = f"{name!r} is {found}, not a table" if found else f"there is no table {name!r}"
    return TargetError(message, kind=ErrorKind.UNSUPPORTED, code="NO_SUCH_TABLE", details={"table": name})


def choose_key(table: Table, mode: Mode, options: BulkOptions) -> tuple[str, ...]:
    """The columns that identify a record in this call; empty when a create needs none."""
    wanted = SqlOptions.of(options).key
    if wanted is None:
        if table.primary_key or mode is Mode.CREATE:
            return table.primary_key
        raise _no_key(table, "has no primary key")
    if any(set(wanted) == set(key) for key in (table.primary_key, *table.unique_keys)):
        return tuple(wanted)
    raise _no_key(table, f"has no unique index on exactly ({', '.join(wanted)})")


def _no_key(table: Table, problem: str) -> TargetError:
    keys = [f"({', '.join(key)})" for key in dict.fromkeys((table.primary_key, *table.unique_keys)) if key]
    known = f"its unique keys are: {', '.join(keys)}" if keys else "it has no unique key at all"
    return TargetError(f"table {table} {problem}; {known}", kind=ErrorKind.UNSUPPORTED, code="NO_SUCH_KEY")


def split_name(name: str) -> tuple[str | None, str]:
    """The schema, if one is named, and the table of `table`, `schema.table` or `"a.b"."c"`; case matters."""
    parts, at = [], 0
    while at <= len(name):
        found = PART.match(name, at)
        if found is None or name[found.end() : found.end() + 1] not in ("", "."):
            break
        parts.append(found[1].replace('""', '"') if found[1] else found[2].strip())
        at = found.end() + 1
    if at != len(name) + 1 or not 1 <= len(parts) <= 2 or not all(parts) or "\0" in name:
        raise BadInput(f'{name!r} is not the name of a table; write table, schema.table or "a.b"."c"')
    return (parts[0] if len(parts) == 2 else None), parts[-1]


def ansi(name: str) -> str:
    """A name for PostgreSQL and SQLite."""
    return '"' + name.replace('"', '""') + '"'


def backticks(name: str) -> str:
    """A name for MariaDB, in a statement whose values are put in with `%s`."""
    return "`" + name.replace("`", "``").replace("%", "%%") + "`"


def listed(names: Iterable[str], quote: Quote = ansi) -> str:
    """Names with commas between."""
    return ", ".join(map(quote, names))
