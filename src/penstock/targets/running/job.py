"""What one bulk call is about: a target, a table, what is done to it and how."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.targets.model import BulkOptions, Mode, RecordId
from penstock.targets.target import Batch, Target, Traits

__all__ = ["Job"]


@dataclass(frozen=True, slots=True)
class Job:
    """The subject of a bulk call; `traits` are known once the target has described the table."""

    target: Target
    table: str
    mode: Mode
    options: BulkOptions
    call_id: str
    traits: Traits = field(default_factory=Traits)

    def batch(self, records: Sequence[Any], key: str, indexes: Sequence[int] = ()) -> Batch:
        """Records as one call to the target."""
        return Batch(self.table, self.mode, records, self.options, key, self.call_id, indexes)

    @property
    def identity(self) -> Callable[[Any], Hashable | None] | None:
        """What makes two records the same one; None when the target does not say."""
        return self.target.identifier(self.table, self.mode, self.options)

    @property
    def size(self) -> Callable[[Any], int] | None:
        """What a record weighs; None when the target does not say."""
        return None if type(self.target).size is Target.size else self.target.size

    def own_id(self, record: Any) -> RecordId:
        """The id a record already had, for reports."""
        if self.mode is Mode.DELETE:
            return record
        field = self.traits.id_field
        return record.get(field) if field is not None and hasattr(record, "get") else None
