"""From the records of a batch to rows for statements: alike records together, in key order, each key once.

Records of one batch may name different columns, so a batch becomes one *sheet* per set of columns. Rows of a sheet
are in the order of their keys, because batches that lock rows in different orders deadlock. A key that comes again goes
into a later sheet, because one statement cannot write a row twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from penstock.targets.model import Mode, Outcome, TargetError, Verdict
from penstock.targets.sql.folds import Fold
from penstock.targets.sql.keys import (
    Row,
    by_key,
    fault,
    folded,
    is_ascending,
    is_whole,
    key_of_id,
    missing_key,
    nth_of_key,
    picker,
)
from penstock.targets.sql.table import Column, Table
from penstock.targets.target import Same

__all__ = ["Layout", "Sheet", "assemble", "lay_out"]


@dataclass(frozen=True, slots=True)
class Sheet:
    """Rows of one set of columns; `positions` says where in the batch each came from."""

    columns: tuple[str, ...]
    rows: Sequence[Row]
    positions: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list[Any]:
        """All values of one column."""
        return list(map(itemgetter(self.columns.index(name)), self.rows))

    def pick(self, indexes: Sequence[int]) -> Sheet:
        """Some of the rows, in that order."""
        return Sheet(self.columns, [self.rows[i] for i in indexes], [self.positions[i] for i in indexes])


@dataclass(frozen=True, slots=True)
class Layout:
    """A batch ready to be written, and what is wrong with the records that are not in it."""

    sheets: Sequence[Sheet]
    faults: Mapping[int, TargetError]


def lay_out(records: Sequence[Any], mode: Mode, table: Table, key: tuple[str, ...]) -> Layout:
    """Sort a batch's records into sheets and find those that cannot be sent at all."""
    faults: dict[int, TargetError] = {}
    sheets: list[Sheet] = []
    for sheet in _by_id(records, key) if mode is Mode.DELETE else _by_columns(records):
        wrong = _column_fault(sheet.columns, mode, table, key)
        if wrong is None:
            sheets.append(sheet)
        else:
            faults.update(dict.fromkeys(sheet.positions, wrong))
    if mode is Mode.CREATE:
        sheets = [_sorted(sheet, table, key) for sheet in sheets]
    else:
        sheets = _in_waves(sheets, table, key, faults)
    return Layout([sheet for sheet in sheets if sheet], faults)


def assemble(count: int, layout: Layout, verdicts: Iterable[Sequence[Verdict]]) -> Sequence[Verdict]:
    """The verdicts of a batch in its own order, from those of its sheets."""
    told = list(verdicts)
    if len(told) == 1 and len(told[0]) == count and _is_in_order(layout.sheets[0], told[0]):
        return told[0]
    placed: dict[int, Verdict] = {at: Verdict(Outcome.FAILED, error=wrong) for at, wrong in layout.faults.items()}
    for sheet, answers in zip(layout.sheets, told, strict=True):
        placed.update(zip(sheet.positions, answers, strict=True))
    return [placed[position] for position in range(count)]


def _is_in_order(sheet: Sheet, verdicts: Sequence[Verdict]) -> bool:
    return sheet.positions == range(len(sheet)) or (isinstance(verdicts, Same) and verdicts.ids is None)


def _by_columns(records: Sequence[Any]) -> Iterable[Sheet]:
    alike = _if_all_alike(records)
    if alike is not None:
        return [alike]
    shapes: dict[frozenset[str], tuple[tuple[str, ...], list[int]]] = {}
    for position, record in enumerate(records):
        columns = tuple(record) if isinstance(record, Mapping) else ()
        shapes.setdefault(frozenset(columns), (columns, []))[1].append(position)
    return [
        Sheet(columns, [picker(columns)(records[at]) for at in positions], positions)
        for columns, positions in shapes.values()
    ]


def _if_all_alike(records: Sequence[Any]) -> Sheet | None:
    columns = tuple(records[0]) if isinstance(records[0], Mapping) else ()
    try:
        if not columns or set(map(len, records)) != {len(columns)}:
            return None
        return Sheet(columns, list(map(picker(columns), records)), range(len(records)))
    except (KeyError, TypeError):
        return None


def _by_id(ids: Sequence[Any], key: tuple[str, ...]) -> Iterator[Sheet]:
    rows, positions, wrong = [], [], []
    for position, given in enumerate(ids):
        try:
            rows.append(key_of_id(given, key))
            positions.append(position)
        except TargetError:
            wrong.append(position)
    yield Sheet(key, rows, positions if wrong else range(len(ids)))
    if wrong:
        yield Sheet((), [()] * len(wrong), wrong)


def _column_fault(columns: tuple[str, ...], mode: Mode, table: Table, key: tuple[str, ...]) -> TargetError | None:
    for name in columns:
        if name not in table.columns:
            known = ", ".join(table.columns)
            return fault("UNKNOWN_COLUMN", f"table {table} has no column {name!r}; it has: {known}", str(name))
        if table.columns[name].is_generated:
            return fault("GENERATED_COLUMN", f"column {name!r} of {table} is computed by the database", name)
    if mode is not Mode.CREATE and not set(key) <= set(columns):
        return missing_key(key)
    if not columns:
        return fault("NOTHING_TO_WRITE", f"the record names no column; table {table} has: {', '.join(table.columns)}")
    if mode is Mode.UPDATE and set(columns) == set(key):
        return fault("NOTHING_TO_WRITE", f"the record has its key ({', '.join(key)}) but nothing to change")
    return None


def _sorted(sheet: Sheet, table: Table, key: tuple[str, ...]) -> Sheet:
    """New rows in key order; keys that are twice in it are for the table to refuse."""
    if not key or not set(key) <= set(sheet.columns):
        return sheet
    keys = _keys(sheet, table, key)
    return sheet if is_ascending(keys) else sheet.pick(by_key(range(len(keys)), keys))


def _in_waves(
    sheets: Sequence[Sheet], table: Table, key: tuple[str, ...], faults: dict[int, TargetError]
) -> list[Sheet]:
    """Rows in key order, every key's first row before any key's second."""
    keys = [_keys(sheet, table, key) for sheet in sheets]
    wrong = [_wrong_keys(sheet, values, table, key) for sheet, values in zip(sheets, keys, strict=True)]
    if len(sheets) == 1 and not wrong[0] and is_ascending(keys[0]):
        return list(sheets)
    for sheet, found in zip(sheets, wrong, strict=True):
        faults.update({sheet.positions[i]: error for i, error in found.items()})
    rows = sorted(
        (sheet.positions[i], value, n, i)
        for n, (sheet, values) in enumerate(zip(sheets, keys, strict=True))
        for i, value in enumerate(values)
        if i not in wrong[n]
    )
    waves = nth_of_key([value for _, value, _, _ in rows])
    placed: dict[tuple[int, int], list[int]] = {}
    for wave, (_, _, n, i) in zip(waves, rows, strict=True):
        placed.setdefault((wave, n), []).append(i)
    return [sheets[n].pick(by_key(placed[wave, n], keys[n])) for wave, n in sorted(placed)]


def _keys(sheet: Sheet, table: Table, key: tuple[str, ...]) -> list[Any]:
    """One comparable value a row: the key's, or a tuple of them."""
    columns = [_comparable(sheet.column(name), table.columns[name].fold) for name in key]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _wrong_keys(sheet: Sheet, keys: list[Any], table: Table, key: tuple[str, ...]) -> dict[int, TargetError]:
    """What is wrong with the rows whose keys identify nothing."""
    wrong = {} if _are_plain(keys) else {i: missing_key(key) for i, value in enumerate(keys) if not is_whole(value)}
    for name in key:
        if table.columns[name].key_types:
            wrong = _of_wrong_type(sheet.column(name), table.columns[name]) | wrong
    return wrong


def _are_plain(keys: list[Any]) -> bool:
    return set(map(type, keys)) <= {int, str}


def _of_wrong_type(values: list[Any], column: Column) -> dict[int, TargetError]:
    return {
        i: fault("BAD_TYPE", f"key {column.name!r} takes {column.full_type}, not {type(value).__name__}", column.name)
        for i, value in enumerate(values)
        if not isinstance(value, column.key_types)
    }


def _comparable(values: list[Any], fold: Fold | None) -> list[Any]:
    return [folded(value, fold) for value in values] if fold else values
