"""In which order records that refer to each other can be sent: parents before children, circles in two passes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from penstock.targets.diagnostics.error_parsing import spelled
from penstock.targets.model import Record, Reference

__all__ = ["Place", "RecordPlan", "plan_records"]

Place: TypeAlias = tuple[str, int]
"""A record by its table and its position in that table's input."""


@dataclass(frozen=True)
class RecordPlan:
    """Records in waves; every record stands in exactly one wave, after all it refers to except deferred fields."""

    waves: tuple[Mapping[str, Sequence[int]], ...]
    """For each wave and table, positions in the table's input, in input order."""
    parents: Mapping[Place, Mapping[str, Place]] = field(default_factory=dict)
    """Fields of a record that refer to records of an earlier wave, and to which."""
    deferred: Mapping[Place, Mapping[str, Place]] = field(default_factory=dict)
    """Fields to set in a second pass, and the record each of them refers to."""


def plan_records(
    tables: Mapping[str, Sequence[Record]],
    *,
    references: Callable[[str, Record], Iterable[Reference]],
    id_of: Callable[[str, Record], Any],
) -> RecordPlan:
    """Order records by what they actually refer to; references to records that are not among them are ignored."""
    places: list[Place] = [(table, index) for table, records in tables.items() for index in range(len(records))]
    owners = _owners(tables, places, id_of)
    edges: list[list[int]] = []
    named: list[list[tuple[str, int]]] = []
    for table, index in places:
        found = [(ref.field, _owner(owners, ref)) for ref in references(table, tables[table][index])]
        held = [(column, owner) for column, owner in found if owner is not None]
        named.append(held)
        edges.append([owner for _, owner in held])
    level, circle = _layered(edges)
    waves: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    parents, deferred = {}, {}
    for position, (table, index) in enumerate(places):
        waves[level[position]][table].append(index)
        inner = {column: places[owner] for column, owner in named[position] if circle[owner] == circle[position]}
        outer = {column: places[owner] for column, owner in named[position] if circle[owner] != circle[position]}
        if inner:
            deferred[table, index] = inner
        if outer:
            parents[table, index] = outer
    return RecordPlan(tuple(dict(waves[wave]) for wave in sorted(waves)), parents, deferred)


def _owners(
    tables: Mapping[str, Sequence[Record]], places: list[Place], id_of: Callable[[str, Record], Any]
) -> dict[tuple[str | None, Any], int]:
    owners: dict[tuple[str | None, Any], int] = {}
    for position, (table, index) in enumerate(places):
        own = id_of(table, tables[table][index])
        if own is not None:
            # Of several records of one key the first makes it exist.
            owners.setdefault((table, spelled(own)), position)
    return owners


def _owner(owners: Mapping[tuple[str | None, Any], int], reference: Reference) -> int | None:
    return owners.get((reference.table, spelled(reference.id)))


def _layered(edges: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """For every node how many layers lie under it, and the circle it belongs to; `edges` lead to what it needs.

    Tarjan's algorithm, without recursion: it closes a circle only after all that the circle needs, so that the
    layer of a circle is known the moment it is closed.
    """
    seen: list[int] = [0] * len(edges)
    low: list[int] = [0] * len(edges)
    circle: list[int] = [-1] * len(edges)
    level: list[int] = [0] * len(edges)
    open_nodes: list[int] = []
    clock = circles = 0
    for root in range(len(edges)):
        path = [] if seen[root] else [(root, iter(edges[root]))]
        while path:
            node, others = path[-1]
            if not seen[node]:
                clock += 1
                seen[node] = low[node] = clock
                open_nodes.append(node)
            for other in others:
                if not seen[other]:
                    path.append((other, iter(edges[other])))
                    break
                if circle[other] < 0:
                    low[node] = min(low[node], seen[other])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == seen[node]:
                    members = _taken(open_nodes, down_to=node)
                    for member in members:
                        circle[member] = circles
                    needed = (other for member in members for other in edges[member] if circle[other] != circles)
                    height = max((level[other] + 1 for other in needed), default=0)
                    for member in members:
                        level[member] = height
                    circles += 1
    return level, circle


def _taken(open_nodes: list[int], *, down_to: int) -> list[int]:
    """Take a finished circle off the open nodes: all down to the one it was entered by."""
    start = len(open_nodes) - 1
    while open_nodes[start] != down_to:
        start -= 1
    members = open_nodes[start:]
    del open_nodes[start:]
    return members
