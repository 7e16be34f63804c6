"""Values that a driver does not know, as ones that it does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite, isnan
from typing import Any

from penstock.targets.model import TargetError
from penstock.targets.sql.keys import fault
from penstock.targets.sql.row_groups import Layout, RowGroup

__all__ = ["Converters", "convert", "finite", "not_nan", "to_json"]


@dataclass(frozen=True)
class Converters:
    """What a driver takes as it is, and what must be made of other things; all else is refused."""

    known: tuple[type, ...]
    made: Mapping[type, Callable[[Any], Any]] = field(default_factory=dict)

    def of(self, kind: type) -> Callable[[Any], Any] | None:
        """What to do with values of a class; None when nothing needs doing."""
        found = next((self.made[base] for base in kind.__mro__ if base in self.made), None)
        return found or (None if issubclass(kind, self.known) else _refuse)


def convert(layout: Layout, converters: Converters) -> Layout:
    """The layout with every value the driver's own; records with a value that cannot become it are at fault."""
    faults = dict(layout.faults)
    groups = [_convert(group, converters, faults) for group in layout.groups]
    return Layout([group for group in groups if group], faults)


def to_json(value: Any) -> str:
    """Dicts and lists for a JSON column."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def finite(value: float) -> float:
    """A number that is neither NaN nor infinite, which MariaDB would take for names."""
    if not isfinite(value):
        raise ValueError(f"{value} cannot be stored")
    return value


def not_nan(value: float) -> float:
    """A number; SQLite would store NULL for NaN."""
    if isnan(value):
        raise ValueError(f"{value} cannot be stored")
    return value


def _convert(group: RowGroup, converters: Converters, faults: dict[int, TargetError]) -> RowGroup:
    columns: list[Any] = list(zip(*group.rows, strict=True))
    wrong: set[int] = set()
    is_changed = False
    for n, values in enumerate(columns):
        steps = {kind: converters.of(kind) for kind in set(map(type, values))}
        if not any(steps.values()):
            continue
        is_changed = True
        columns[n] = list(values)
        for i, value in enumerate(values):
            step = steps[type(value)]
            try:
                columns[n][i] = step(value) if step else value
            except (TypeError, ValueError) as error:
                wrong.add(i)
                faults[group.positions[i]] = fault(
                    "BAD_TYPE", f"column {group.columns[n]!r}: {error}", group.columns[n]
                )
    if not is_changed:
        return group
    made = RowGroup(group.columns, list(zip(*columns, strict=True)), group.positions)
    return made.pick([i for i in range(len(made)) if i not in wrong]) if wrong else made


def _refuse(value: Any) -> Any:
    raise TypeError(f"a value of type {type(value).__name__} cannot be stored")
