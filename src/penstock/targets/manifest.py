"""Which records of a run should be sent again: saved, loaded, and laid over the same input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.targets.model import BadInput, Mode, Outcome, RecordId
from penstock.targets.results import BulkResult

__all__ = ["RetryManifest", "TableRetry"]

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class TableRetry:
    """The records of one table that did not succeed, by their position in the input."""

    mode: Mode
    total: int
    failed: Sequence[int] = ()
    unknown: Sequence[int] = ()
    not_run: Sequence[int] = ()
    ids: Mapping[int, RecordId] = field(default_factory=dict)
    """Those ids that are known, so that a person can look the records up."""

    @classmethod
    def of(cls, result: BulkResult) -> TableRetry:
        """What a result leaves to do."""
        positions = result.outcomes.positions
        return cls(
            mode=result.mode,
            total=len(result.outcomes),
            failed=list(positions(Outcome.FAILED)),
            unknown=list(positions(Outcome.UNKNOWN)),
            not_run=list(positions(Outcome.NOT_RUN)),
            ids={error.index: error.id for error in result.errors if error.id is not None},
        )

    def indexes(self, *, unknown: bool | None = None) -> list[int]:
        """Positions to send again, in order.

        Records whose outcome is unknown are among them unless the mode is create, where a second sending could make
        a second record; say `unknown=True` when the remote refuses duplicates, or after looking.
        """
        is_unknown_wanted = self.mode is not Mode.CREATE if unknown is None else unknown
        return sorted([*self.failed, *self.not_run, *(self.unknown if is_unknown_wanted else ())])


@dataclass(frozen=True)
class RetryManifest:
    """What is left to do, by table."""

    tables: Mapping[str, TableRetry]

    @classmethod
    def of(cls, results: Mapping[str, BulkResult]) -> RetryManifest:
        """Everything in results that did not succeed; tables where all went well are left out."""
        retries = {table: TableRetry.of(result) for table, result in results.items()}
        return cls({table: retry for table, retry in retries.items() if retry.indexes(unknown=True)})

    def select(self, records: Iterable[R], *, table: str | None = None, unknown: bool | None = None) -> Iterator[R]:
        """The records to send again, from the input of the first run; it must have as many records as then."""
        retry = self.of_table(table)
        if isinstance(records, Sequence):
            _check_total(len(records), retry.total)
            return (records[index] for index in retry.indexes(unknown=unknown))
        return _chosen(records, set(retry.indexes(unknown=unknown)), retry.total)

    def save(self, path: Path | str) -> None:
        """Write the manifest to a file."""
        Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(self, enc_hook=str), indent=1))

    @classmethod
    def load(cls, path: Path | str) -> RetryManifest:
        """Read what `save` wrote."""
        try:
            return msgspec.json.decode(Path(path).read_bytes(), type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadInput(f"{path} is no retry manifest: {error}") from error

    def of_table(self, table: str | None = None) -> TableRetry:
        """What is left of a table; of the only one when none is named."""
        if table is None and len(self.tables) == 1:
            return next(iter(self.tables.values()))
        if table is None or table not in self.tables:
            raise BadInput(f"{table!r} is not in the manifest; it knows {', '.join(self.tables) or 'nothing to retry'}")
        return self.tables[table]


def _chosen(records: Iterable[R], wanted: set[int], total: int) -> Iterator[R]:
    count = 0
    for index, record in enumerate(records):
        count += 1
        if index in wanted:
            yield record
    _check_total(count, total)


def _check_total(count: int, total: int) -> None:
    if count != total:
        raise BadInput(f"the manifest was made for {total} records and this input has {count}; it is another input")
