"""Records that refer to each other, and what to do with each when others fail: pure, beside the order itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from penstock.targets.composite.ordering import Place, plan_records
from penstock.targets.diagnostics.analysis import BIND, Diagnostic
from penstock.targets.diagnostics.causes import Cause
from penstock.targets.model import ErrorKind, Outcome, Record, RecordId, Reference
from penstock.targets.results import BulkError

__all__ = ["REFERENCE_NOT_SET", "ReferenceGraph"]

REFERENCE_NOT_SET = "REFERENCE_NOT_SET"
PRESENT = frozenset({Outcome.CREATED, Outcome.UPDATED, Outcome.UPSERTED, Outcome.UNCHANGED, Outcome.SKIPPED})
"""A record that was skipped gave way to another of its key."""

OutcomeOf: TypeAlias = Callable[[Place], Outcome]


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
        for field, parent in self.plan.parents.get(place, {}).items():
            became = outcome_of(parent)
            if became not in PRESENT:
                message = f"not sent: {_named(parent)}, which {field!r} refers to, is {became}"
                lost = self._lost_parent(place, field, parent)
                return self._error(place, message, Cause.PARENT_FAILED, field, Outcome.NOT_RUN, lost)
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
