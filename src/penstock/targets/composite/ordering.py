"""In which order records that refer to each other can be sent, and what to do with each when others fail.

Parents go before children, circles in two passes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from penstock.targets.diagnostics.analysis import BIND, Diagnostic
from penstock.targets.diagnostics.causes import Cause
from penstock.targets.diagnostics.error_parsing import spelled
from penstock.targets.model import ErrorKind, Outcome, Record, RecordId, Reference
from penstock.targets.results import BulkError

__all__ = ["PRESENT", "REFERENCE_NOT_SET", "Place", "RecordPlan", "ReferenceGraph", "plan_records"]

Place: TypeAlias = tuple[str, int]
"""A record by its table and its position in that table's input."""
OutcomeOf: TypeAlias = Callable[[Place], Outcome]

REFERENCE_NOT_SET = "REFERENCE_NOT_SET"
PRESENT = frozenset({Outcome.CREATED, Outcome.UPDATED, Outcome.UPSERTED, Outcome.UNCHANGED, Outcome.SKIPPED})
"""A record that was skipped gave way to another of its key."""


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
    owners: dict[tuple[str, Any], int] = {}
    for position, (table, index) in enumerate(places):
        own = id_of(table, tables[table][index])
        if own is not None:
            owners.setdefault((table, spelled(own)), position)  # of several of one key the first makes it exist
    named: list[list[tuple[str, int]]] = []
    for table, index in places:
        found = ((ref.field, (ref.table, spelled(ref.id))) for ref in references(table, tables[table][index]))
        named.append([(column, owners[key]) for column, key in found if key in owners])
    level, circle = _layered([[owner for _, owner in held] for held in named])
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
                    members = [open_nodes.pop()]
                    while members[-1] != node:
                        members.append(open_nodes.pop())
                    for member in members:
                        circle[member] = circles
                    needed = (other for member in members for other in edges[member] if circle[other] != circles)
                    height = max((level[other] + 1 for other in needed), default=0)
                    for member in members:
                        level[member] = height
                    circles += 1
    return level, circle


class ReferenceGraph:
    """The records of a run and the plan in which they are sent."""

    def __init__(
        self,
        tables: Mapping[str, Sequence[Record]],
        id_fields: Mapping[str, str],
        references: Callable[[str, Record], Iterable[Reference]],
    ) -> None:
        self._tables, self._id_fields = tables, id_fields
        self.plan = plan_records(tables, references=references, id_of=self._id_in)

    def parent_error(self, place: Place, outcome_of: OutcomeOf) -> BulkError | None:
        """Why a record should not be sent: a record it refers to is not there."""
        for column, parent in self.plan.parents.get(place, {}).items():
            became = outcome_of(parent)
            if became not in PRESENT:
                message = f"not sent: {_named(parent)}, which {column!r} refers to, is {became}"
                lost = self._lost_parent(place, column, parent)
                return self._error(place, message, Cause.PARENT_FAILED, column, Outcome.NOT_RUN, lost)
        return None

    def without_cycle(self, place: Place) -> Record:
        """A record without the references that must be set later."""
        record, circle = self._record(place), self.plan.deferred.get(place, {})
        left_out = {member for field in circle for member in (field, field + BIND)}
        return {name: value for name, value in record.items() if name not in left_out} if circle else record

    def cycle_update(self, place: Place, fields: Iterable[str], given_id: RecordId) -> Record:
        """The update that sets references which were left out."""
        record, id_field = self._record(place), self._id_fields[place[0]]
        own = record.get(id_field)
        members = (member for field in fields for member in (field, field + BIND) if member in record)
        return {id_field: given_id if own is None else own, **{member: record[member] for member in members}}

    def unreachable(self, place: Place, outcome_of: OutcomeOf) -> Mapping[str, Place]:
        """References that were left out and cannot be set, because what they refer to is not there."""
        circle = self.plan.deferred[place]
        return {field: other for field, other in circle.items() if outcome_of(other) not in PRESENT}

    def lost_reference_error(self, place: Place, field: str, other: Place) -> BulkError:
        """A record that is there, without a reference to one that is not."""
        message = f"sent without {field!r}, which cannot be set: {_named(other)} is not there"
        lost = self._lost_parent(place, field, other)
        return self._error(place, message, REFERENCE_NOT_SET, field, Outcome.FAILED, lost)

    def unset_reference_error(self, place: Place, cause: BulkError | None) -> BulkError:
        """A record that is there, but the update that should set its references failed, or was never sent."""
        fields = ", ".join(map(repr, self.plan.deferred[place]))
        why = "the run was stopped before" if cause is None else cause.message
        field = next(iter(self.plan.deferred[place]))
        message = f"sent without {fields}, which could not be set: {why}"
        return self._error(place, message, REFERENCE_NOT_SET, field, cause.outcome if cause else Outcome.FAILED)

    def _error(
        self, place: Place, message: str, code: str, field: str, outcome: Outcome, *diagnostics: Diagnostic
    ) -> BulkError:
        return BulkError(
            index=place[1],
            message=message,
            kind=ErrorKind.DATA,
            code=str(code),
            id=self._id_in(place[0], self._record(place)),
            field=field,
            outcome=outcome,
            diagnostics=diagnostics,
        )

    def _lost_parent(self, place: Place, field: str, parent: Place) -> Diagnostic:
        own, referred = (self._id_in(table, self._record((table, index))) for table, index in (place, parent))
        return Diagnostic(Cause.PARENT_FAILED, place[1], own, field, referred, parent[0])

    def _record(self, place: Place) -> Record:
        return self._tables[place[0]][place[1]]

    def _id_in(self, table: str, record: Record) -> Any:
        return record.get(self._id_fields[table])


def _named(place: Place) -> str:
    return f"record {place[1]} of {place[0]!r}"
