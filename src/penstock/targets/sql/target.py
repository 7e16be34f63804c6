"""What the three databases have in common as targets: tables looked up once, records laid out, errors per record."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.errors import SettingsInvalid
from penstock.targets.model import DONE as OUTCOMES
from penstock.targets.model import BulkOptions, ErrorKind, Mode, Outcome, TargetError, Verdict
from penstock.targets.sql.keys import KeyReader, ids_of
from penstock.targets.sql.row_groups import Layout, RowGroup, assemble, in_order, lay_out
from penstock.targets.sql.table import SqlOptions, Table, choose_key
from penstock.targets.sql.values import Converters
from penstock.targets.target import Answer, Batch, Capabilities, Target
from penstock.targets.verdicts import CODES, Verdicts

__all__ = [
    "CREATED",
    "DONE",
    "UNCHANGED",
    "SqlTarget",
    "TableBatch",
    "created_or_updated",
    "left_out",
    "not_found",
    "with_ids",
]

GroupVerdicts: TypeAlias = Sequence[Sequence[Verdict]]
"""What the groups of a batch came to: their verdicts, in the order of the groups and their rows."""
DONE = {mode: Verdict(outcome) for mode, outcome in OUTCOMES.items()} | {Mode.UPSERT: Verdict(Outcome.UPDATED)}
CREATED_OR_UPDATED = bytes.maketrans(b"\1\0", bytes((CODES[Outcome.CREATED], CODES[Outcome.UPDATED])))
CREATED, UNCHANGED = Verdict(Outcome.CREATED), Verdict(Outcome.UNCHANGED)


@dataclass(frozen=True, slots=True)
class TableBatch:
    """A batch laid out for its table."""

    batch: Batch
    table: Table
    key: tuple[str, ...]
    layout: Layout

    @property
    def mode(self) -> Mode:
        return self.batch.mode

    @property
    def tells_ids(self) -> bool:
        """Whether the records of an upsert should be told with their ids."""
        return self.mode is Mode.UPSERT and self.batch.options.keep_ids

    @property
    def foreign_ids(self) -> tuple[str, ...]:
        """The primary key, where an upsert that tells ids goes by another key; otherwise nothing need be asked."""
        primary = self.table.primary_key
        return primary if self.tells_ids and set(primary) != set(self.key) else ()

    @property
    def has_loose_key(self) -> bool:
        """Whether the table may call keys equal that we do not."""
        return any(self.table.columns[name].is_loose for name in self.key)

    def one_by_one(self, groups: Sequence[RowGroup]) -> Sequence[RowGroup]:
        """The groups for writing row by row: in the order of the batch where keys may be equal that look different."""
        return in_order(groups) if self.has_loose_key and self.mode is not Mode.CREATE else groups

    @property
    def options(self) -> SqlOptions:
        """The options, with the defaults for tables."""
        return SqlOptions.of(self.batch.options)


class SqlTarget(Target):
    """A database whose tables take batches of records. A batch is one transaction.

    Records that cannot be sent at all (an unknown column, no key) fail alone; the rest of their batch goes on.
    """

    options_type = SqlOptions
    batch_size = 10_000
    _converters: Converters | None = None
    _stale_codes: frozenset[str] = frozenset()
    """Codes after which what we know of the table is out of date."""

    def __init__(self, name: str, connections: int) -> None:
        if connections < 1:
            raise SettingsInvalid(f"connections is {connections}; at least 1 is needed")
        self.name = name
        self.width = self.width_max = connections
        self._tables: dict[str, Table] = {}
        self._changed: set[str] = set()

    async def describe(self, table: str, mode: Mode, options: BulkOptions, source: str) -> Capabilities:
        """Look the table up and settle which columns identify its records."""
        self.forget(table)  # it may have changed since the last call
        found = await self.table(table)
        key = choose_key(found, mode, options)
        return Capabilities(can_reconcile=self._can_reconcile(key), id_field=key[0] if len(key) == 1 else None)

    def identifier(self, table: str, mode: Mode, options: BulkOptions) -> Callable[[Any], Hashable | None] | None:
        """The record's key, as the table compares it. Two creates are never the same record."""
        found = self._tables.get(table)
        if found is None or mode is Mode.CREATE:
            return None
        try:
            key = choose_key(found, mode, options)
            return KeyReader(found.compared_by(key), mode, key)
        except TargetError:
            return None  # `describe` has refused the call

    async def table(self, name: str) -> Table:
        """What the database says of a table; raises `TargetError` when there is none."""
        if name not in self._tables or name in self._changed:
            found = await self._read_table(name)
            self._changed.discard(name)
            self._tables[name] = found
        return self._tables[name]

    async def send(self, batch: Batch, source: str) -> Answer:
        """Write the batch in one transaction."""
        return await self._sent(batch, self._write)

    async def send_each(self, batch: Batch, source: str) -> Answer:
        """Write the batch so that a bad record fails alone."""
        return await self._sent(batch, self._write_each)

    def forget(self, table: str) -> None:
        """Look the table up again next time, since it may have changed; until then others use what is known of it."""
        self._changed.add(table)

    async def _sent(self, batch: Batch, write: Callable[[TableBatch], Awaitable[GroupVerdicts]]) -> Answer:
        work = await self._work(batch)
        if not work.layout.groups:
            return Answer(assemble(len(batch), work.layout, ()))
        try:
            verdicts = await write(work)
        except TargetError as error:
            if error.kind is ErrorKind.RACE or error.code in self._stale_codes:
                self.forget(batch.table)
            raise
        is_exact = batch.mode is not Mode.UPSERT or not work.table.reads_before
        return Answer(assemble(len(batch), work.layout, verdicts), counts_exact=is_exact)

    async def _work(self, batch: Batch) -> TableBatch:
        table = await self.table(batch.table)
        key = choose_key(table, batch.mode, batch.options)
        table = table.compared_by(key)
        layout = lay_out(batch.records, batch.mode, table, key, self._converters)
        table, layout = self._as_texts(table, layout)
        if layout.faults and not batch.options.isolate:
            raise layout.faults[min(layout.faults)].but(suspects=tuple(sorted(layout.faults)))
        return TableBatch(batch, table, key, layout)

    def _as_texts(self, table: Table, layout: Layout) -> tuple[Table, Layout]:
        """The same, with columns marked for which texts are given that the server must read."""
        return table, layout

    @abstractmethod
    async def _read_table(self, name: str) -> Table:
        """Ask the database about a table; raise `TargetError` when there is none."""

    @abstractmethod
    async def _write(self, work: TableBatch) -> GroupVerdicts:
        """Write all groups or none; raise `TargetError` when that failed."""

    @abstractmethod
    async def _write_each(self, work: TableBatch) -> GroupVerdicts:
        """Write the rows that the database takes, and say what is wrong with the others."""

    def _can_reconcile(self, key: tuple[str, ...]) -> bool:
        """Whether `reconcile` can tell what became of a batch whose records have this key."""
        return False


def with_ids(
    work: TableBatch, group: RowGroup, verdicts: Sequence[Verdict], found: Mapping[int, Any] | None = None
) -> Verdicts:
    """The verdicts on an upsert with the ids of its records: their keys, or those `found` by the rows' places."""
    told = Verdicts.of(verdicts)
    if not work.tells_ids:
        return told
    if found is None:
        ids = ids_of([group.column(name) for name in work.key])
    else:
        ids = [found.get(n) for n in range(len(group))]
    return Verdicts(told.codes, ids, told.errors)


def created_or_updated(are_new: Iterable[bool]) -> Verdicts:
    """The verdicts on an upsert that wrote every row."""
    return Verdicts(bytes(are_new).translate(CREATED_OR_UPDATED))


def left_out(work: TableBatch) -> TargetError:
    """The error for a row that a trigger did not let into the table."""
    return TargetError(f"a trigger of {work.table} left the row out", kind=ErrorKind.BUSINESS, code="LEFT_OUT")


def not_found(work: TableBatch, group: RowGroup, index: int) -> Verdict:
    """The verdict on an update or delete of a row that is not there."""
    values = ", ".join(f"{name}={group.column(name)[index]!r}" for name in work.key)
    error = TargetError(f"{work.table} has no row with {values}", kind=ErrorKind.DATA, code="NOT_FOUND")
    return Verdict(Outcome.FAILED, error=error)
