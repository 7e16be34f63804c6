"""A file as records for a table: which row each came from, what could not be read, and what is left to load."""

from __future__ import annotations

import csv
import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from penstock.errors import FileRejected
from penstock.formats import Reader, format_of, open_reader
from penstock.schema import Column, Schema
from penstock.targets.manifest import RetryManifest, TableRetry
from penstock.targets.model import Outcome
from penstock.targets.results import BulkResult

__all__ = ["LoadFile"]

ROWS = 1000
ROW, ERROR = "_row", "_error"
OURS = (ROW, ERROR)
"""Columns that a file of failed records has beside its own; they are not loaded."""


class LoadFile:
    """The records of one file. It is read once for the load, and once more if the failed records are wanted."""

    def __init__(
        self,
        stream: BinaryIO,
        name: str,
        columns: Sequence[str],
        *,
        retry: Path | None = None,
        sends_unknown: bool = False,
    ) -> None:
        self._name, self._columns = name, columns
        self._reader = self._opened(stream)
        self._rows = array("q")
        """The row of every record, by its index in the load."""
        self._positions = array("q")
        """Its place among all records of the file, which differs when only some are loaded again."""
        self._unread = array("q")
        self._count = 0
        self._chosen: Iterator[tuple[int, tuple[int, dict[str, Any]]]] = enumerate(self._read(self._reader))
        self.left_out: Sequence[int] = ()
        """Places of records that are not sent again, because an earlier load may have created them."""
        if retry is not None:
            manifest, unknown = RetryManifest.load(retry), True if sends_unknown else None
            left = manifest.of_table()
            self.left_out = sorted({*left.unknown} - {*left.indexes(unknown=unknown)})
            self._chosen = manifest.select(self._chosen, unknown=unknown)
        self.unreadable: dict[int, str] = {}
        """What is wrong with rows that are no records, by their number."""

    def records(self) -> Iterator[dict[str, Any]]:
        """The records to load."""
        for position, (row, record) in self._chosen:
            self._rows.append(row)
            self._positions.append(position)
            yield record

    def read_on(self) -> None:
        """Look at what a load that was stopped has not read: it is left to do."""
        self._unread.extend(position for position, _ in self._chosen)

    @property
    def unread(self) -> int:
        """Records that the load did not come to."""
        return len(self._unread)

    def ids(self, key: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        """The keys of the records, to delete them."""
        for record in self.records():
            yield {name: record.get(name) for name in key}

    def told(self, result: BulkResult, limit: int) -> list[tuple[int, str]]:
        """The first rows that were not loaded, and why."""
        unread = islice(self.unreadable.items(), limit)
        failed = ((self._rows[error.index], error.message) for error in islice(result.errors, limit))
        return sorted([*unread, *failed])[:limit]

    def manifest(self, table: str, result: BulkResult) -> RetryManifest:
        """What is left to do, by the places of records in the whole file."""
        left, places = TableRetry.of(result), self._positions
        retry = replace(
            left,
            total=self._count,
            failed=[places[index] for index in left.failed],
            unknown=sorted([*(places[index] for index in left.unknown), *self.left_out]),
            not_run=[*(places[index] for index in left.not_run), *self._unread],
            ids={places[index]: identifier for index, identifier in left.ids.items()},
        )
        return RetryManifest({table: retry} if retry.indexes(unknown=True) else {})

    def write_failed(self, stream: BinaryIO, path: Path, result: BulkResult) -> None:
        """Write the records that failed as they stand in the file, each with its row number and the reason."""
        reasons = {self._rows[error.index]: error.message for error in result.errors}
        for index in result.outcomes.positions(Outcome.NOT_RUN):
            reasons[self._rows[index]] = f"not run: {result.stopped_reason}"
        reader = self._opened(stream)
        failed = [(row, record) for row, record in self._read(reader) if row in reasons] if reasons else []
        names = reader.columns or tuple(dict.fromkeys(name for _, record in failed for name in record))
        own = [name for name in names if name not in OURS]
        with path.open("w", newline="", encoding="utf-8") as made:
            writer = csv.DictWriter(made, [*own, *OURS], extrasaction="ignore")
            writer.writeheader()
            for row, record in failed:
                cells = {name: _cell(value) for name, value in record.items()}
                writer.writerow(cells | {ROW: row, ERROR: reasons[row]})
            for row, reason in self.unreadable.items():
                writer.writerow({ROW: row, ERROR: reason})

    def _opened(self, stream: BinaryIO) -> Reader:
        schema = Schema(tuple(Column(name, (name,), is_required=False) for name in self._columns))
        reader = open_reader(stream, format=format_of(self._name), schema=schema)
        unknown = [name for name in reader.columns or () if name not in self._columns and name not in OURS]
        if unknown:
            known = ", ".join(self._columns)
            raise FileRejected(
                f"the table has no column {', '.join(map(repr, unknown))}; it has: {known}", code="unknown_columns"
            )
        return reader

    def _read(self, reader: Reader) -> Iterator[tuple[int, dict[str, Any]]]:
        """The records with the numbers of their rows."""
        self._count = 0
        for batch in reader.batches(ROWS):
            for index, raw in enumerate(batch.rows):
                row = batch.start.row + index
                if index in batch.faults or isinstance(raw, str):
                    faults = batch.faults.get(index, ())
                    self.unreadable[row] = "; ".join(map(str, faults)) or "it cannot be read"
                    continue
                self._count += 1
                yield row, _record(raw, reader.columns)


def _cell(value: Any) -> Any:
    """A value of a JSON file as a cell that can be loaded: what CSV cannot hold stays JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | bool) else value


def _record(raw: list[str] | dict[str, Any], columns: tuple[str, ...] | None) -> dict[str, Any]:
    if isinstance(raw, dict):
        return {name: value for name, value in raw.items() if name not in OURS}
    assert columns is not None
    # As PostgreSQL's own COPY reads CSV: an empty cell is null.
    return {name: cell or None for name, cell in zip(columns, raw, strict=True) if name not in OURS}
