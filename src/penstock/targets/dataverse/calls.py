"""One batch made ready for the wire: its records with everything that must be known to write them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid5

from penstock.targets.dataverse.entities import Key, Spelling, encode, key_columns
from penstock.targets.dataverse.odata import address, guid
from penstock.targets.dataverse.options import BYPASS_PRIVILEGE, DataverseOptions, behaviour
from penstock.targets.dataverse.table_metadata import Table
from penstock.targets.http.request_body import without_nan
from penstock.targets.model import ErrorKind, Mode, TargetError
from penstock.targets.target import Batch

__all__ = ["Call"]

IDS = UUID("1b6cf0f1-35a3-4dd9-9d6c-0f7f2f0e86c5")


@dataclass(frozen=True)
class Call:
    """A batch, its table as it is now known, and the spelling of its names."""

    batch: Batch
    options: DataverseOptions
    spelling: Spelling

    def __len__(self) -> int:
        return len(self.records)

    @property
    def mode(self) -> Mode:
        return self.batch.mode

    @property
    def records(self) -> Sequence[Any]:
        return self.batch.records

    @property
    def table(self) -> Table:
        return self.spelling.table

    @property
    def makes_ids(self) -> bool:
        """Whether new records get their ids from us; on elastic tables always, since a partial failure tells none."""
        return self.mode is Mode.CREATE and (self.options.client_made_ids or self.table.is_elastic)

    @cached_property
    def headers(self) -> Mapping[str, str]:
        return behaviour(self.options, self.mode)

    def query(self, *options: str) -> str:
        """The query part of an address: what is given, and the tag."""
        tag = [] if self.options.tag is None else [f"tag={quote(self.options.tag, safe='')}"]
        return "?" + "&".join((*options, *tag)) if options or tag else ""

    def id(self, position: int) -> str | None:
        """A record's id, when it is known before the platform answers; ValueError when it is no GUID."""
        record = self.records[position]
        if self.mode is Mode.UPSERT and self.options.alternate_key:
            return None
        own = record.get(self.table.id_column) if isinstance(record, Mapping) else record
        if own is not None:
            return guid(own)
        # An id that we give a record is the same for every try, whatever batch it is in.
        return str(uuid5(IDS, self.batch.record_key(position))) if self.makes_ids else None

    def key(self, position: int) -> Key:
        """What identifies a record that may be there already; ValueError when it carries no such thing."""
        own, record = self.id(position), self.records[position]
        if own is not None:
            partition = record.get("partitionid") if self.table.is_elastic and isinstance(record, Mapping) else None
            return own if partition is None else {self.table.id_column: UUID(own), "partitionid": partition}
        if self.mode is Mode.DELETE and record:
            return key_columns(record, tuple(record), {})
        if self.options.alternate_key:
            return key_columns(record, self.options.alternate_key, self.options.references)
        raise ValueError(f"the column {self.table.id_column} is empty")

    def check(self) -> None:
        """Refuse records that cannot be addressed, all of them at once, before anything is sent."""
        faults = {position: fault for position in range(len(self)) if (fault := self._fault(position))}
        if faults:
            first = next(iter(faults.values()))
            message = f"{self.table.name}: {first} (records {', '.join(map(str, faults))} of the batch)"
            raise TargetError(message, kind=ErrorKind.DATA, code="BadKey", suspects=tuple(faults))

    def _fault(self, position: int) -> str | None:
        try:
            if self.mode is not Mode.CREATE or self.options.alternate_key:
                address(self.table.entity_set, self.key(position))
            else:
                self.id(position)
        except ValueError as error:
            return str(error)
        return None

    def entity(self, position: int, leave_out: Collection[str] = ()) -> dict[str, Any]:
        """A record as it is written in a request, less some columns."""
        try:
            entity = self.spelling.entity(self.records[position], leave_out)
        except ValueError as error:
            message = f"{self.table.name}: a reference cannot be written: {error}"
            raise TargetError(message, kind=ErrorKind.DATA, code="BadReference", suspects=(position,)) from error
        if self.makes_ids:
            entity[self.table.id_column] = self.id(position)
        return entity

    def encoded(self, position: int, leave_out: Collection[str] = ()) -> bytes:
        """A record as the body of a request of its own."""
        return without_nan(encode(self.entity(position, leave_out), position), self.records)

    def body(self) -> bytes:
        """The body of the bulk action; a value that is no JSON is blamed on its record."""
        targets = [self._target(position) for position in range(len(self))]
        try:
            return without_nan(encode({"Targets": targets}), self.records)
        except TargetError:
            for position, target in enumerate(targets):
                encode(target, position)
            raise

    def _target(self, position: int) -> dict[str, Any]:
        if self.mode is Mode.DELETE:
            record = self.records[position]
            whole = dict(record) if isinstance(record, Mapping) else {}
            return self.spelling.entity(whole | {self.table.id_column: self.id(position)})
        if self.mode is Mode.UPSERT and self.options.alternate_key:
            named = address(self.table.entity_set, self.key(position))
            return {"@odata.id": named, **self.entity(position, self.options.alternate_key)}
        return self.entity(position)

    def explained(self, error: TargetError) -> TargetError:
        """The error, with the privilege named that the options need."""
        if error.kind is not ErrorKind.PERMISSION or not self.options.bypass_custom_logic:
            return error
        if BYPASS_PRIVILEGE in error.message:
            return error
        return error.but(message=f"{error.message} (bypass_custom_logic needs the privilege {BYPASS_PRIVILEGE})")
