"""What a bulk call to a database table takes beside the options of every target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.targets.model import BulkOptions

__all__ = ["SqlOptions"]


@dataclass(frozen=True, kw_only=True)
class SqlOptions(BulkOptions):
    """Options for tables of PostgreSQL, MariaDB and SQLite. Batches of 1,000 to 10,000 records suit them best."""

    key: Sequence[str] | None = None
    """The columns that identify a record: the primary key, or the columns of a unique index."""
    update_only_changed: bool = False
    """Leave rows alone that already hold what was sent, and report them as unchanged."""

    def __post_init__(self) -> None:
        if isinstance(self.key, str):
            object.__setattr__(self, "key", (self.key,))

    @classmethod
    def of(cls, options: BulkOptions) -> SqlOptions:
        """These options, or the defaults when the call said nothing about tables."""
        return options if isinstance(options, cls) else DEFAULTS


DEFAULTS = SqlOptions()
