"""From the records of a batch to rows for statements: alike records together, in key order, each key once.

Records of one batch may name different columns, so a batch becomes one *group* per set of columns. Rows of a group
are in the order of their keys, because batches that lock rows in different orders deadlock. A key that comes again goes
into a later group, because one statement cannot write a row twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import itemgetter, lt
from typing import Any, TypeAlias

from penstock.targets.model import Mode, TargetError, Verdict
from penstock.targets.sql.keys import Row, fault, folded, ids_of, is_whole, key_of_id, missing_key
from penstock.targets.sql.table import Column, Table
from penstock.targets.sql.values import Converters, Step
from penstock.targets.verdicts import FAILED, Verdicts

__all__ = ["Layout", "RowGroup", "alike_apart", "as_laid_out", "assemble", "by_position", "in_order", "lay_out"]

StepOf: TypeAlias = Callable[[type], Step | None]
"""What to do with values of a class; None when nothing needs doing."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one set of columns; `positions` says where in the batch each came from.

    Values are kept by column, a list each: that many tuples would be looked through by the garbage collector.
    """

    columns: tuple[str, ...]
    values: Sequence[list[Any]]
    positions: Sequence[int]

    @classmethod
    def of(cls, columns: tuple[str, ...], rows: Sequence[Sequence[Any]], positions: Sequence[int]) -> RowGroup:
        """A group from rows."""
        return cls(columns, [[row[n] for row in rows] for n in range(len(columns))], positions)

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def is_in_order(self) -> bool:
        """Whether the rows are where they were in the batch, and all of it."""
        return self.positions == range(len(self))

    @property
    def rows(self) -> Iterator[Row]:
        """The rows, each made when it is asked for."""
        return zip(*self.values, strict=True)

    def column(self, name: str) -> list[Any]:
        """All values of one column; whoever wants to change it takes a copy."""
        return self.values[self.columns.index(name)]

    def rows_of(self, names: Iterable[str]) -> Iterator[Row]:
        """Of every row the values of these columns."""
        return zip(*map(self.column, names), strict=True)

    def pick(self, indexes: Sequence[int]) -> RowGroup:
        """Some of the rows, in that order."""
        values = [[column[i] for i in indexes] for column in self.values]
        return RowGroup(self.columns, values, [self.positions[i] for i in indexes])


@dataclass(frozen=True, slots=True)
class Layout:
    """A batch ready to be written, and what is wrong with the records that are not in it."""

    groups: Sequence[RowGroup]
    faults: Mapping[int, TargetError]


def lay_out(
    records: Sequence[Any], mode: Mode, table: Table, key: tuple[str, ...], converters: Converters | None = None
) -> Layout:
    """Sort a batch's records into groups of values that the driver takes, and find those that cannot be sent."""

    def from_text(name: str) -> StepOf | None:
        read = table.columns[name].from_text
        return read and (lambda kind: read if kind is str else None)

    def not_read(name: str, text: str, error: Exception) -> str:
        return f"column {name!r} takes {table.columns[name].full_type}, not the text {text!r}"

    faults: dict[int, TargetError] = {}
    groups: list[RowGroup] = []
    for group in _by_id(records, key) if mode is Mode.DELETE else _by_columns(records):
        wrong = _column_fault(group.columns, mode, table, key)
        if wrong is None:
            groups.append(_converted(group, from_text, faults, not_read))
        else:
            faults.update(dict.fromkeys(group.positions, wrong))
    if mode is Mode.CREATE:
        groups = [_sorted(group, table, key) for group in groups]
    else:
        groups = _in_waves(groups, table, key, faults)
    if converters is not None:
        groups = [
            _converted(group, lambda _: converters.of, faults, lambda name, _, error: f"column {name!r}: {error}")
            for group in groups
        ]
    return Layout([group for group in groups if group], faults)


def assemble(count: int, layout: Layout, verdicts: Iterable[Sequence[Verdict]]) -> Verdicts:
    """The verdicts of a batch in its own order, from those of its groups."""
    told = [Verdicts.of(one) for one in verdicts]
    if len(told) == 1 and len(told[0]) == count and (layout.groups[0].is_in_order or told[0].are_alike):
        return told[0]
    positions = [*chain.from_iterable(group.positions for group in layout.groups), *layout.faults]
    order = sorted(range(count), key=positions.__getitem__)
    codes = b"".join(one.codes for one in told) + bytes((FAILED,)) * len(layout.faults)
    ids = [*chain.from_iterable(one.ids or [None] * len(one) for one in told), *[None] * len(layout.faults)]
    errors = dict(layout.faults)
    for group, one in zip(layout.groups, told, strict=True):
        errors.update({group.positions[n]: error for n, error in one.errors.items()})
    has_ids = any(one.ids for one in told)
    return Verdicts(bytes([codes[n] for n in order]), [ids[n] for n in order] if has_ids else None, errors)


def by_position(groups: Sequence[RowGroup], verdicts: Sequence[Sequence[Verdict]]) -> dict[int, Verdict]:
    """The verdicts of groups by the positions of their rows in the batch."""
    placed: dict[int, Verdict] = {}
    for group, told in zip(groups, verdicts, strict=True):
        placed.update(zip(group.positions, told, strict=True))
    return placed


def as_laid_out(groups: Sequence[RowGroup], told: Mapping[int, Verdict]) -> list[list[Verdict]]:
    """The verdicts of groups whose rows were written in another order, from those by position."""
    return [[told[position] for position in group.positions] for group in groups]


def in_order(groups: Sequence[RowGroup]) -> list[RowGroup]:
    """The same rows in the order of the batch, those together that are of one group and next to each other."""
    rows = sorted((position, n, i) for n, group in enumerate(groups) for i, position in enumerate(group.positions))
    return [groups[n].pick([i for _, _, i in run]) for n, run in groupby(rows, key=itemgetter(1))]


def alike_apart(
    groups: Sequence[RowGroup], table: Table, key: tuple[str, ...], alike: Collection[int]
) -> list[RowGroup]:
    """The same rows, where the table calls keys equal that we do not: the keys of the rows at these positions.

    All rows of such keys come last, each a group of its own, in the order of the batch.
    """
    keys = [_keys(group, table, key) for group in groups]
    meant = {
        value
        for group, values in zip(groups, keys, strict=True)
        for position, value in zip(group.positions, values, strict=True)
        if position in alike
    }
    others, apart = [], []
    for group, values in zip(groups, keys, strict=True):
        others.append(group.pick([i for i, value in enumerate(values) if value not in meant]))
        apart += [group.pick([i]) for i, value in enumerate(values) if value in meant]
    return [*filter(len, others), *sorted(apart, key=lambda row: row.positions[0])]


def _by_columns(records: Sequence[Any]) -> Iterable[RowGroup]:
    alike = _if_all_alike(records)
    if alike is not None:
        return [alike]
    shapes: dict[frozenset[str], tuple[tuple[str, ...], list[int]]] = {}
    for position, record in enumerate(records):
        columns = tuple(record) if isinstance(record, Mapping) else ()
        shapes.setdefault(frozenset(columns), (columns, []))[1].append(position)
    return [
        RowGroup(columns, _values([records[at] for at in positions], columns), positions)
        for columns, positions in shapes.values()
    ]


def _if_all_alike(records: Sequence[Any]) -> RowGroup | None:
    columns = tuple(records[0]) if isinstance(records[0], Mapping) else ()
    try:
        if not columns or set(map(len, records)) != {len(columns)}:
            return None
        return RowGroup(columns, _values(records, columns), range(len(records)))
    except (KeyError, TypeError):
        return None


def _values(records: Sequence[Any], columns: tuple[str, ...]) -> list[list[Any]]:
    return [list(map(itemgetter(name), records)) for name in columns]


def _by_id(ids: Sequence[Any], key: tuple[str, ...]) -> Iterator[RowGroup]:
    rows, positions, wrong = [], [], []
    for position, given in enumerate(ids):
        try:
            rows.append(key_of_id(given, key))
            positions.append(position)
        except TargetError:
            wrong.append(position)
    yield RowGroup.of(key, rows, positions if wrong else range(len(ids)))
    if wrong:
        yield RowGroup((), [], wrong)


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


def _sorted(group: RowGroup, table: Table, key: tuple[str, ...]) -> RowGroup:
    """New rows in key order; keys that are twice in it are for the table to refuse."""
    if not key or not set(key) <= set(group.columns):
        return group
    keys = _keys(group, table, key)
    return group if _is_ascending(keys) else group.pick(_by_key(range(len(keys)), keys))


def _in_waves(
    groups: Sequence[RowGroup], table: Table, key: tuple[str, ...], faults: dict[int, TargetError]
) -> list[RowGroup]:
    """Rows in key order, every key's first row before any key's second."""
    keys = [_keys(group, table, key) for group in groups]
    wrong = [_wrong_keys(group, values, table, key) for group, values in zip(groups, keys, strict=True)]
    if len(groups) == 1 and not wrong[0] and _is_ascending(keys[0]):
        return list(groups)
    for group, found in zip(groups, wrong, strict=True):
        faults.update({group.positions[i]: error for i, error in found.items()})
    rows = sorted(
        (group.positions[i], value, n, i)
        for n, (group, values) in enumerate(zip(groups, keys, strict=True))
        for i, value in enumerate(values)
        if i not in wrong[n]
    )
    waves: Counter[Hashable] = Counter()
    placed: dict[tuple[int, int], list[int]] = {}
    for _, value, n, i in rows:
        placed.setdefault((waves[value], n), []).append(i)
        waves[value] += 1
    return [groups[n].pick(_by_key(placed[wave, n], keys[n])) for wave, n in sorted(placed)]


def _keys(group: RowGroup, table: Table, key: tuple[str, ...]) -> list[Any]:
    """One comparable value a row: the key's, or a tuple of them."""
    columns = [(group.column(name), table.columns[name]) for name in key]
    return ids_of(
        [values if of.leaves(values) else [folded(value, of.fold) for value in values] for values, of in columns]
    )


def _wrong_keys(group: RowGroup, keys: list[Any], table: Table, key: tuple[str, ...]) -> dict[int, TargetError]:
    """What is wrong with the rows whose keys identify nothing."""
    are_plain = set(map(type, keys)) <= {int, str}
    wrong = {} if are_plain else {i: missing_key(key) for i, value in enumerate(keys) if not is_whole(value)}
    for name in key:
        if table.columns[name].key_types:
            wrong = _of_wrong_type(group.column(name), table.columns[name]) | wrong
    return wrong


def _of_wrong_type(values: list[Any], column: Column) -> dict[int, TargetError]:
    return {
        i: fault("BAD_TYPE", f"key {column.name!r} takes {column.full_type}, not {type(value).__name__}", column.name)
        for i, value in enumerate(values)
        if not isinstance(value, column.key_types)
    }


def _converted(
    group: RowGroup,
    steps_of: Callable[[str], StepOf | None],
    faults: dict[int, TargetError],
    problem: Callable[[str, Any, Exception], str],
) -> RowGroup:
    """The rows with every value that has a step, by its column and class, replaced by what the step makes of it.

    A row with a value of which nothing can be made is at fault, and left out.
    """
    changed: dict[int, list[Any]] = {}
    wrong: set[int] = set()
    for n, name in enumerate(group.columns):
        if (step_of := steps_of(name)) is None:
            continue
        steps = {kind: step_of(kind) for kind in set(map(type, group.values[n]))}
        if not any(steps.values()):
            continue
        values = changed[n] = group.values[n].copy()
        for i, value in enumerate(values):
            if (step := steps[type(value)]) is not None:
                try:
                    values[i] = step(value)
                except (TypeError, ValueError) as error:
                    wrong.add(i)
                    faults.setdefault(group.positions[i], fault("BAD_TYPE", problem(name, value, error), name))
    if not changed:
        return group
    columns = [changed.get(n, values) for n, values in enumerate(group.values)]
    made = RowGroup(group.columns, columns, group.positions)
    return made.pick([i for i in range(len(made)) if i not in wrong]) if wrong else made


def _is_ascending(keys: Sequence[Any]) -> bool:
    """Whether every key is greater than the one before, so that there is nothing to sort and nothing twice."""
    try:
        return all(map(lt, keys, islice(keys, 1, None)))
    except TypeError:
        return False


def _by_key(indexes: Sequence[int], keys: Sequence[Any]) -> list[int]:
    """The indexes in key order."""
    try:
        return sorted(indexes, key=keys.__getitem__)
    except TypeError:  # values of several types have no order; any that is always the same will do
        return sorted(indexes, key=lambda i: repr(keys[i]))
