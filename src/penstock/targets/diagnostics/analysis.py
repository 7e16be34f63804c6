"""Which records made a batch fail, and what to do about them; says nothing of records that merely shared the batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.targets.diagnostics.causes import KINDS, SUGGESTIONS, Cause, cause_of
from penstock.targets.diagnostics.error_parsing import ParsedError, spelled
from penstock.targets.model import Batch, Mode, RecordId, Reference

__all__ = ["Diagnostic", "analyze_batch_failure", "references_in"]

References: TypeAlias = Callable[[Any], Iterable[Reference]]
Identity: TypeAlias = Callable[[Any], Hashable | None]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A cause found; `index` is the position in the batch, None when the batch as a whole is meant."""

    code: Cause
    index: int | None = None
    record_id: RecordId = None
    field: str | None = None
    referenced_id: RecordId = None
    referenced_table: str | None = None

    @property
    def suggestion(self) -> str:
        """What would help."""
        return SUGGESTIONS[self.code]


def analyze_batch_failure(
    batch: Batch,
    error: BaseException,
    *,
    references: References | None = None,
    identity: Identity | None = None,
    id_field: str | None = None,
) -> list[Diagnostic]:
    """Name the records that made a batch fail, in the batch's order.

    A record is named when the remote pointed at it, when the error quotes an id, key or value that only it carries,
    when it lacks the field the error is about, or when it was alone. `references` and `identity` are those of the
    target; without them the options' references and `…@odata.bind` members are used, and the records' own ids.
    """
    cause = cause_of(error)
    if cause is None:
        return []
    case = _Case(batch, ParsedError.of(error), references or references_in(batch), identity, id_field)
    found = sorted(case.guilty(cause), key=lambda diagnostic: diagnostic.index or 0)
    if not found and cause in KINDS.values():
        return [Diagnostic(cause)]
    return found


BIND = "@odata.bind"
BOUND = re.compile(r"^/?(?P<table>\w+)\((?P<id>[^()=]+)\)$")


def references_in(batch: Batch) -> References:
    """References as the options name them, and as OData binds them: `"parent@odata.bind": "/accounts(…)"`."""

    def found(record: Any) -> Iterator[Reference]:
        for name, value in record.items():
            bound = BOUND.match(value) if name.endswith(BIND) and isinstance(value, str) else None
            if bound:
                yield Reference(name.removesuffix(BIND), bound["table"], bound["id"])
            elif name in batch.options.references and value is not None:
                yield Reference(name, batch.options.references[name], value)

    return found


class _Case:
    """One failed batch and what is known of it."""

    def __init__(
        self, batch: Batch, parsed: ParsedError, references: References, identity: Identity | None, id_field: str | None
    ) -> None:
        self.records = {index: record for index, record in enumerate(batch.records) if isinstance(record, Mapping)}
        self.parsed = parsed
        self.mode = batch.mode
        self._references = references
        self._id_fields = (id_field,) if id_field else (f"{batch.table}id", "id")
        self._identity = identity or self.id_of
        alone = (0,) if len(batch.records) == 1 else ()
        self.accused = {index for index in (parsed.suspects or alone) if index in self.records}

    def guilty(self, cause: Cause) -> Iterable[Diagnostic]:
        """The records that the cause applies to."""
        match cause:
            case Cause.MISSING_REFERENCE:
                return self._dangling()
            case Cause.DUPLICATE_IN_BATCH | Cause.DUPLICATE_IN_TARGET:
                return self._duplicates(cause)
            case Cause.REQUIRED_MISSING:
                found = self._lacking()
            case Cause.TOO_LONG:
                found = self._overlong()
            case Cause.BAD_TYPE:
                found = self._quoted()
            case _:
                found = {}
        if self.parsed.suspects or not found:
            found = {index: found.get(index, self.parsed.field) for index in self.accused}
        return [Diagnostic(cause, index, self.id_of(self.records[index]), field) for index, field in found.items()]

    def id_of(self, record: Mapping[str, Any]) -> Hashable | None:
        """A record's own id, in one spelling."""
        found = next((record[name] for name in self._id_fields if record.get(name) is not None), None)
        return None if found is None else spelled(found)

    def about(self, cause: Cause, index: int, reference: Reference) -> Diagnostic:
        """A diagnostic on one reference of one record."""
        own = self.id_of(self.records[index])
        return Diagnostic(cause, index, own, reference.field, reference.id, reference.table)

    def referring(self) -> Iterator[tuple[Cause, int, Reference]]:
        """Every reference of every record, by where it leads."""
        owners = {self.id_of(record): index for index, record in self.records.items()}
        for index, record in self.records.items():
            for reference in self._references(record):
                referred = spelled(reference.id)
                if referred == self.id_of(record):
                    yield Cause.SELF_REFERENCE, index, reference
                elif referred in owners:
                    yield Cause.SAME_BATCH_REFERENCE, index, reference
                else:
                    yield Cause.MISSING_REFERENCE, index, reference

    def repeated(self) -> Iterator[Diagnostic]:
        """Records whose key an earlier record of the batch already has."""
        seen: set[Hashable] = set()
        for index, record in self.records.items():
            key = self._identity(record)
            if key is not None and key in seen:
                yield Diagnostic(Cause.DUPLICATE_IN_BATCH, index, self.id_of(record))
            seen.add(key)

    def _dangling(self) -> list[Diagnostic]:
        named = [self.about(cause, index, ref) for cause, index, ref in self.referring() if self._is_named(ref)]
        if named or self.parsed.ids:
            return named
        key = self.parsed.key
        if key and len(key.columns) == 1:
            return [
                Diagnostic(Cause.MISSING_REFERENCE, index, self.id_of(record), column, record[column], key.table)
                for index, record in self.records.items()
                for column in key.columns
                if key.is_of(record)
            ]
        return [self._blamed(index) for index in self.accused]

    def _blamed(self, index: int) -> Diagnostic:
        """An accused record whose error names no id: its reference is told only when there is no choice."""
        held = [(cause, ref) for cause, at, ref in self.referring() if at == index]
        fitting = [one for one in held if one[1].field == self.parsed.field] or held
        if len(fitting) == 1:
            return self.about(fitting[0][0], index, fitting[0][1])
        return Diagnostic(Cause.MISSING_REFERENCE, index, self.id_of(self.records[index]), self.parsed.field)

    def _is_named(self, reference: Reference) -> bool:
        key = self.parsed.key
        by_key = key is not None and key.columns == (reference.field,) and key.values == (str(reference.id),)
        return by_key or spelled(reference.id) in self.parsed.ids

    def _duplicates(self, cause: Cause) -> list[Diagnostic]:
        repeated = list(self.repeated())
        key = self.parsed.key
        holders = [index for index, record in self.records.items() if key and key.is_of(record)]
        if key and holders:
            # Of several holders the first may be new to the remote; the later ones cannot be.
            cause = Cause.DUPLICATE_IN_BATCH if len(holders) > 1 else Cause.DUPLICATE_IN_TARGET
            field = key.columns[0] if len(key.columns) == 1 else None
            guilty = holders[1:] or holders
            return [Diagnostic(cause, index, self.id_of(self.records[index]), field) for index in guilty]
        if repeated and not self.parsed.suspects:
            return repeated
        found = self.accused or (self._quoted() if cause is Cause.DUPLICATE_IN_TARGET else ())
        return [Diagnostic(cause, index, self.id_of(self.records[index]), self.parsed.field) for index in found]

    def _lacking(self) -> dict[int, str | None]:
        field = self.parsed.field
        if field is None:
            return {}
        empty = [index for index, record in self.records.items() if field in record and record[field] is None]
        absent = [index for index, record in self.records.items() if field not in record]
        # An update leaves absent fields alone, and a create may fill them; a null that was given explains more.
        return dict.fromkeys(empty or (absent if self.mode is not Mode.UPDATE else ()), field)

    def _overlong(self) -> dict[int, str | None]:
        field, limit = self.parsed.field, self.parsed.length_max
        if field is None or limit is None:
            return {}
        held = {index: record.get(field) for index, record in self.records.items()}
        return {index: field for index, value in held.items() if isinstance(value, str) and len(value) > limit}

    def _quoted(self) -> dict[int, str | None]:
        """The one place where a quoted value stands; several places prove nothing, unless the field is known."""
        value, known = self.parsed.value, self.parsed.field
        places = [
            (index, field)
            for index, record in self.records.items()
            for field, held in record.items()
            if value is not None and str(held) == value and known in (None, field)
        ]
        return dict(places) if known is not None or len(places) == 1 else {}
