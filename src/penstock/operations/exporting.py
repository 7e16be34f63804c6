"""Rows as files: a report with states and errors, or the data alone; written piece by piece, whatever their number."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

from penstock.errors import InvalidInput
from penstock.operations.model import Page, RowView, StepView

__all__ = ["RESULTS", "Export", "SourceFile", "exported"]

FORMATS: dict[str, str] = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "json": "application/json",
}

# Together they hold every row once.
RESULTS: dict[str, tuple[str, ...]] = {
    "successful": ("Completed",),
    "failed": ("Invalid", "Failed", "TimedOut"),
    "unprocessed": ("Pending", "Running", "WaitingForCompletion", "Cancelled"),
}

# With these at its beginning, spreadsheets take a cell for a formula, or look behind them for one.
_SIGNS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four are full-width forms
_SKIPPED = ("\t", "\r", "\n", "\0")
_FORMULA = _SIGNS + _SKIPPED

ReadPage = Callable[[str | None], Awaitable[Page[RowView]]]
KeyAmong = Callable[[Collection[str], str], str]
"""Which of the keys of a record is that of a column."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """The file of an operation as it was uploaded; whoever gets it closes the stream."""

    name: str
    size_bytes: int
    sha256: str
    stream: BinaryIO


@dataclass(frozen=True, slots=True)
class Export:
    """A file to be written: its name, its type, and its content in pieces."""

    file_name: str
    media_type: str
    pieces: AsyncIterator[bytes]


def exported(
    file_name: str,
    read_page: ReadPage,
    columns: Sequence[str] | None,
    *,
    mode: str,
    format: str,
    neutral: bool = True,
    key_among: KeyAmong = lambda _, column: column,
) -> Export:
    """The rows of all pages as a file. `columns` are those of the data; without them it is one column of JSON.

    Data alone has only rows whose data is still there. In CSV, cells that a spreadsheet would take for a formula begin
    with an apostrophe, unless not `neutral`.
    """
    if mode not in ("report", "data"):
        raise InvalidInput(f"no such mode: {mode!r}; known: report, data")
    if format not in FORMATS:
        raise InvalidInput(f"no such format: {format!r}; known: {', '.join(FORMATS)}")
    is_report = mode == "report"
    pages = _pages(read_page, with_all=is_report)
    if format == "csv":
        pieces = _csv(pages, columns, key_among, is_report=is_report, neutral=neutral)
    else:
        pieces = _json(pages, is_report=is_report, is_array=format == "json")
    return Export(f"{file_name}.{format}", FORMATS[format], pieces)


async def _pages(read_page: ReadPage, *, with_all: bool) -> AsyncIterator[Sequence[RowView]]:
    cursor, is_more = None, True
    while is_more:
        page = await read_page(cursor)
        cursor, is_more = page.next_cursor, page.next_cursor is not None
        yield page.items if with_all else [row for row in page.items if row.data is not None]


async def _csv(
    pages: AsyncIterator[Sequence[RowView]],
    columns: Sequence[str] | None,
    key_among: KeyAmong,
    *,
    is_report: bool,
    neutral: bool,
) -> AsyncIterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")

    def cell(value: Any) -> Any:
        return _neutral(value) if neutral else value

    head = list(_REPORT) if is_report else []
    named = ["rowData"] if columns is None else columns
    writer.writerow([cell(name) for name in head + [f"data.{name}" if name in head else name for name in named]])
    async for rows in pages:
        for row in rows:
            report = list(_report(row).values()) if is_report else []
            writer.writerow([cell(value) for value in report + _cells(row.data, columns, key_among)])
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()


async def _json(pages: AsyncIterator[Sequence[RowView]], *, is_report: bool, is_array: bool) -> AsyncIterator[bytes]:
    before = b"[" if is_array else b""
    async for rows in pages:
        lines = []
        for row in rows:
            document = _report(row) | {"rowData": row.data} if is_report else row.data
            lines.append(before + msgspec.json.encode(document, enc_hook=str) + (b"" if is_array else b"\n"))
            before = b",\n" if is_array else b""
        if lines:
            yield b"".join(lines)
    if is_array:
        yield b"[]\n" if before == b"[" else b"]\n"


# The columns of a report, from a row and its current step, which says how the row stands.
_REPORT: dict[str, Callable[[RowView, StepView], Any]] = {
    "rowNumber": lambda row, step: row.number,
    "rowId": lambda row, step: row.row_key,
    "state": lambda row, step: row.state,
    "stepName": lambda row, step: row.step_name,
    "errorType": lambda row, step: step.error_type,
    "errorMessage": lambda row, step: step.message,
    "retryAttempt": lambda row, step: row.generation,
    "stepAttempts": lambda row, step: step.attempt,
    "startedAt": lambda row, step: _instant(row.steps[0].started_at) or _instant(step.started_at),
    "completedAt": lambda row, step: _instant(step.ended_at),
}


def _report(row: RowView) -> dict[str, Any]:
    step = next((step for step in row.steps if step.index == row.step), row.steps[-1])
    return {name: value(row, step) for name, value in _REPORT.items()}


def _cells(data: Any, columns: Sequence[str] | None, key_among: KeyAmong) -> list[Any]:
    if columns is None:
        return [_text(data)]
    if data is None:
        return [None] * len(columns)
    if isinstance(data, dict):
        return [_text(data.get(key_among(data, name))) for name in columns]
    return [_text(value) for value in data] if isinstance(data, list) else [_text(data)]


def _text(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else msgspec.json.encode(value).decode()


def _neutral(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(_FORMULA) or _is_number(value):
        return value
    return f"'{value}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return not text.startswith(_SKIPPED)


def _instant(moment: Any) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
