"""The SQL that writes rows into a PostgreSQL table. Pure text: rows come from arrays or from a stage.

Where the server may call keys equal that look different to us, a statement also tells which of the given ones it does:
`alike`. They have to be written one after the other.

Every statement locks rows in key order and ends in one row: the transaction's id and the ordinals (from 1) of rows with
an outcome out of the ordinary, so that a batch where all went alike is answered with nothing per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from penstock.targets.model import Mode
from penstock.targets.sql.table import Column, Table, ansi, listed

__all__ = ["EXACT", "ORDINAL", "ORDINAL_NAME", "Plan", "from_arrays", "from_stage", "make_stage"]

ORDINAL_NAME = "penstock ordinal"
ORDINAL = ansi(ORDINAL_NAME)
IS_NEW = ansi("penstock is new")
IS_DUE = ansi("penstock is due")
COUNT = ansi("penstock count")
XID = "pg_current_xact_id()::text AS xid"
EXACT = frozenset({"smallint", "integer", "bigint", "text"})
"""Types whose values come back equal to what was sent, so that they can be told apart by value."""
GEOMETRIC = ("point", "line", "lseg", "box", "path", "polygon", "circle")
ODD = frozenset({"json", "xml", "citext", "text", "bpchar", "character varying", *GEOMETRIC})
"""Types without `=`, or with one that calls different values equal: boxes, for one, are compared by their area."""
TALLY = (
    f"{XID}, array_agg({ORDINAL}) FILTER (WHERE outcome = 'created') AS created, "
    f"array_agg({ORDINAL}) FILTER (WHERE outcome = 'unchanged') AS unchanged, "
    f"array_agg({ORDINAL}) FILTER (WHERE outcome = 'left out') AS left_out, "
    f"array_agg({ORDINAL}) FILTER (WHERE outcome = 'missing') AS missing FROM told"
)


@dataclass(frozen=True)
class Plan:
    """How rows of these columns are written; `created_by` is what tells a new row from an old one."""

    table: Table
    key: tuple[str, ...]
    columns: tuple[str, ...]
    only_changed: bool = False
    server: int = 15
    """The server's major version."""

    @property
    def given(self) -> list[Column]:
        """The columns that are written."""
        return [self.table.columns[name] for name in self.columns]

    @property
    def by_value(self) -> bool:
        """Whether an upsert can name created rows by key, which saves joining them to what was sent."""
        exact = all(self.table.columns[name].type in EXACT for name in self.key)
        is_special = self.table.reads_before or self.table.has_insert_trigger or self.is_loose
        return exact and not (self.only_changed or self.is_partial or is_special) and bool(self._rest)

    @property
    def is_loose(self) -> bool:
        """Whether the server may call keys equal that we do not."""
        return any(self.table.columns[name].is_loose for name in self.key)

    @property
    def is_partial(self) -> bool:
        """Whether rows lack a column that is required or checked: some of them may only change a row that is there.

        ON CONFLICT would refuse them before it looked.
        """
        needed = {name for name, column in self.table.columns.items() if column.is_required}
        return not needed.union(*self.table.checks) <= set(self.columns)

    @property
    def generated(self) -> tuple[str, ...]:
        """Key columns whose values the database makes up for a create."""
        return tuple(k for k in self.key if k not in self.columns and self.table.columns[k].default is not None)

    def write(self, mode: Mode, source: str) -> str:
        """One statement for a whole group."""
        if mode is Mode.CREATE:
            count = ", (SELECT count(*) FROM written) AS written" if self.table.has_insert_trigger else ""
            return f"{self._create(source)} SELECT {XID}{count}{self._created_keys()}"
        if mode is Mode.UPSERT and self.by_value:
            keys = ", ".join(f"array_agg({ansi(k)}) FILTER (WHERE {IS_NEW}) AS k{n}" for n, k in enumerate(self.key))
            return f"{self._upsert(source)} SELECT {XID}, count(*) AS written, {keys} FROM written"
        alike = f"(SELECT array_agg({ORDINAL}) FROM alike) AS alike, " if self.is_loose else ""
        return f"{self.told(mode, source)} SELECT {alike}{TALLY}"

    def find_ids(self, source: str, ids: Sequence[str]) -> str:
        """The ordinals of rows and, beside each, these columns of the row that the table has for it."""
        told = ", ".join(f"t.{ansi(name)}" for name in ids)
        return f"SELECT g.{ORDINAL}, {told} FROM {source} JOIN {self._name} t ON {self._same_key()}"

    def told(self, mode: Mode, source: str) -> str:
        """The statement up to a relation `told` of ordinals and outcomes."""
        if mode is Mode.CREATE:
            # One row at a time, so that it is either written or left out.
            may_leave_out = self.table.has_insert_trigger
            left_out = "CASE WHEN EXISTS (SELECT FROM written) THEN 'created' ELSE 'left out' END"
            is_written = left_out if may_leave_out else "'created'"
            return f"{self._create(source)}, told AS (SELECT {ORDINAL}, {is_written} AS outcome FROM given)"
        if mode is Mode.UPSERT and not self.is_partial:
            return f"{self._upsert(source)}, told AS ({self._told_of_upsert()})"
        return self._change(mode, source)

    @property
    def _rest(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name not in self.key)

    @property
    def _name(self) -> str:
        return self.table.quoted(ansi)

    def _create(self, source: str) -> str:
        # Keys are made before the insert, because RETURNING promises no order to find them by.
        made = "".join(f", {self.table.columns[k].default} AS {ansi(k)}" for k in self.generated)
        columns = listed((*self.columns, *self.generated))
        told = " RETURNING 1" if self.table.has_insert_trigger else ""
        return (
            f"WITH given AS MATERIALIZED (SELECT g.*{made} FROM {source}), "
            f"written AS (INSERT INTO {self._name} ({columns}) OVERRIDING SYSTEM VALUE "
            f"SELECT {columns} FROM given{told})"
        )

    def _created_keys(self) -> str:
        keys = (f", array_agg({ansi(k)} ORDER BY {ORDINAL}) AS k{n}" for n, k in enumerate(self.key))
        known = {*self.columns, *self.generated}
        return f"{''.join(keys)} FROM given" if self.key and set(self.key) <= known else ""

    def _upsert(self, source: str) -> str:
        before = ""
        if self.table.reads_before:
            found = f"SELECT g.{ORDINAL} FROM given g JOIN {self._name} t ON {self._same_key()}"
            before = f"before AS MATERIALIZED ({found}), "
        none_alike = " WHERE NOT EXISTS (SELECT FROM alike)" if self.is_loose else ""
        is_new = "old IS NULL" if self.server >= 18 else "NULL::bool" if self.table.reads_before else "xmax = 0"
        return (
            f"WITH given AS (SELECT * FROM {source}), {self._alike()}{before}"
            f"written AS (INSERT INTO {self._name} AS t ({listed(self.columns)}) OVERRIDING SYSTEM VALUE "
            f"SELECT {listed(self.columns)} FROM given{none_alike} "
            f"ON CONFLICT ({listed(self.key)}) DO {self._on_conflict()} "
            f"RETURNING {', '.join(f't.{ansi(k)}' for k in self.key)}, {is_new} AS {IS_NEW})"
        )

    def _alike(self) -> str:
        """The given rows of which the server calls the keys equal; the empty half has its collations from the table."""
        if not self.is_loose:
            return ""
        keys, given = listed(self.key), ", ".join(self._as_held(k) for k in self.key)
        every = (
            f"SELECT {keys}, NULL::bigint AS {ORDINAL} FROM {self._name} WHERE false "
            f"UNION ALL SELECT {given}, {ORDINAL} FROM given g"
        )
        counted = f"SELECT {ORDINAL}, count(*) OVER (PARTITION BY {keys}) AS {COUNT} FROM ({every}) k"
        return f"alike AS MATERIALIZED (SELECT {ORDINAL} FROM ({counted}) k WHERE {COUNT} > 1), "

    def _as_held(self, name: str) -> str:
        """A given value with the length and precision of its column."""
        return f"g.{ansi(name)}::{self.table.columns[name].full_type}"

    def _on_conflict(self) -> str:
        if not self._rest:
            return "NOTHING"
        changes = ", ".join(f"{ansi(c)} = excluded.{ansi(c)}" for c in self._rest)
        return f"UPDATE SET {changes}" + (f" WHERE {self._differs('excluded')}" if self.only_changed else "")

    def _told_of_upsert(self) -> str:
        # Every row is written, unless it holds the same already or a trigger objects.
        absent = "'unchanged'" if self.only_changed or not self._rest else "'left out'"
        if self.table.has_insert_trigger or self.table.has_update_trigger:
            absent = f"CASE WHEN {self._holds_the_same()} THEN 'unchanged' ELSE 'left out' END"
        was_there = f"EXISTS (SELECT FROM before b WHERE b.{ORDINAL} = g.{ORDINAL})"
        is_new = f"NOT {was_there}" if self.table.reads_before else f"w.{IS_NEW}"
        return (
            f"SELECT g.{ORDINAL}, CASE WHEN w.{ansi(self.key[0])} IS NULL THEN {absent} "
            f"WHEN {is_new} THEN 'created' ELSE 'updated' END AS outcome FROM given g "
            f"LEFT JOIN written w ON {self._same_written_key('w')}"
        )

    def _holds_the_same(self) -> str:
        """Whether the table has a row of this key that an upsert leaves as it is."""
        if self._rest and not self.only_changed:
            return "false"
        differs = f" AND NOT ({self._differs('g', is_cast=True)})" if self._rest else ""
        return f"EXISTS (SELECT FROM {self._name} t WHERE {self._same_key()}{differs})"

    def _change(self, mode: Mode, source: str) -> str:
        """Rows that are there, locked in key order and then written; an upsert adds the others."""
        order = ", ".join(f"t.{ansi(k)}" for k in self.key)
        added, otherwise = "", "'missing'"
        if mode is Mode.UPSERT:
            new = f"SELECT {listed(self.columns)} FROM given g WHERE {ORDINAL} NOT IN (SELECT {ORDINAL} FROM locked)"
            insert = f"INSERT INTO {self._name} ({listed(self.columns)}) OVERRIDING SYSTEM VALUE {new}"
            added = f"added AS ({insert} RETURNING {listed(self.key)}), "
            is_added = f"EXISTS (SELECT FROM added a WHERE {self._same_written_key('a')})"
            otherwise = f"CASE WHEN {is_added} THEN 'created' ELSE 'left out' END"
        return (
            f"WITH given AS (SELECT * FROM {source}), {self._alike()}"
            f"locked AS MATERIALIZED (SELECT g.{ORDINAL}, {self._is_due(mode)} AS {IS_DUE} "
            f"FROM given g JOIN {self._name} t ON {self._same_key()} ORDER BY {order} FOR UPDATE OF t), "
            f"written AS ({self._verb(mode)}), {added}"
            f"told AS (SELECT g.{ORDINAL}, CASE WHEN w.{ORDINAL} IS NOT NULL THEN 'done' "
            f"WHEN l.{IS_DUE} THEN 'left out' WHEN l.{ORDINAL} IS NOT NULL THEN 'unchanged' "
            f"ELSE {otherwise} END AS outcome FROM given g "
            f"LEFT JOIN locked l USING ({ORDINAL}) LEFT JOIN written w USING ({ORDINAL}))"
        )

    def _is_due(self, mode: Mode) -> str:
        """Whether a row that is there has to be written."""
        if mode is Mode.DELETE:
            return "true"
        return self._differs("g") if self.only_changed and self._rest else str(bool(self._rest)).lower()

    def _verb(self, mode: Mode) -> str:
        ours = f"{self._same_key()} AND l.{ORDINAL} = g.{ORDINAL} AND l.{IS_DUE}"
        if mode is Mode.DELETE:
            return f"DELETE FROM {self._name} t USING given g, locked l WHERE {ours} RETURNING g.{ORDINAL}"
        if not self._rest:
            return f"SELECT {ORDINAL} FROM locked WHERE false"
        changes = ", ".join(f"{ansi(c)} = g.{ansi(c)}" for c in self._rest)
        return f"UPDATE {self._name} t SET {changes} FROM given g, locked l WHERE {ours} RETURNING g.{ORDINAL}"

    def _same_key(self) -> str:
        return " AND ".join(f"t.{ansi(k)} = g.{ansi(k)}" for k in self.key)

    def _same_written_key(self, written: str) -> str:
        """That a row that was written has the key of a row that was given."""
        return " AND ".join(f"{written}.{ansi(k)} = {self._as_held(k)}" for k in self.key)

    def _differs(self, other: str, *, is_cast: bool = False) -> str:
        pairs = ((self._exactly("t", c), self._exactly(other, c, is_cast=is_cast)) for c in self._rest)
        return " OR ".join(f"{mine} IS DISTINCT FROM {given}" for mine, given in pairs)

    def _exactly(self, of: str, name: str, *, is_cast: bool = False) -> str:
        """A value of which only the same is equal: not every collation tells `A` from `a`, not every type has `=`.

        `is_cast` gives it the length and precision that the column would.
        """
        column = self.table.columns[name]
        value = f"{of}.{ansi(name)}" + (f"::{column.full_type}" if is_cast else "")
        is_odd = column.is_text or column.type.removesuffix("[]") in ODD
        return f'{value}::text COLLATE "C"' if is_odd else value


def from_arrays(columns: Sequence[Column]) -> str:
    """Rows from one array parameter a column."""
    given = ", ".join(f"${n}::{column.type}[]" for n, column in enumerate(columns, 1))
    return f"unnest({given}) WITH ORDINALITY AS g ({listed(c.name for c in columns)}, {ORDINAL})"


def from_stage(name: str, columns: Sequence[Column], only: str | None = None) -> str:
    """Rows from a stage, or the one of an ordinal; what was staged as text gets its own type again."""
    if not only and not any(column.is_copied_as_text for column in columns):
        return f"{name} AS g"
    given = "".join(f", {ansi(c.name)}::{c.type} AS {ansi(c.name)}" for c in columns)
    where = f" WHERE {ORDINAL} = {only}" if only else ""
    return f"(SELECT {ORDINAL}{given} FROM {name}{where}) AS g"


def make_stage(columns: Sequence[Column], more: Sequence[str] = ()) -> tuple[str, str]:
    """A temporary table that is empty in every transaction: its name, and the statements that make it.

    `more` are columns as SQL declares them. No stage of other columns has its name: the driver remembers types by it.
    One with a type that somebody made ends with its transaction, so that it is in nobody's way who replaces the type.
    """
    end = "DROP" if any(column.is_user_defined for column in columns) else "DELETE ROWS"
    declared = ", ".join((*(f"{ansi(column.name)} {_staged_type(column)}" for column in columns), *more))
    name = f"penstock_stage_{crc32(declared.encode()):08x}"
    # A key that comes twice, or another portion, may have used the same stage in this transaction.
    return name, f"CREATE TEMP TABLE IF NOT EXISTS {name} ({declared}) ON COMMIT {end}; DELETE FROM {name}"


def _staged_type(column: Column) -> str:
    if not column.is_copied_as_text:
        return column.type
    return "text[]" if column.is_array else "text"
