"""The header of a delimited file: which delimiter it uses, and which field each of its columns stands for."""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import BinaryIO

from penstock.errors import Fault, FileRejected
from penstock.formats.encoding import Undecodable, not_utf8
from penstock.formats.lines import Lines
from penstock.formats.model import Limits
from penstock.schema import Schema

__all__ = ["Header", "match_columns", "read_header"]

DELIMITERS = (",", ";", "\t", "|")
NAMES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Header:
    """What the header says: a name for each column, the delimiter, and the offset of the first record."""

    columns: tuple[str, ...]
    delimiter: str
    end: int


def read_header(source: BinaryIO, offset: int, schema: Schema, limits: Limits) -> Header:
    """The header that begins at `offset`, behind blank lines and a `sep=` line; no columns if the file is empty."""
    try:
        line, begin, end = first_line(source, offset, limits)
        declared = declared_delimiter(line)
        if declared:
            line, begin, end = first_line(source, end, limits)
        if not line:
            return Header((), declared or DELIMITERS[0], begin)
        readings = readings_of(source, begin, (declared,) if declared else DELIMITERS, limits)
    except Undecodable as error:
        raise not_utf8(error, row=0) from error
    known = known_headers(schema)
    # max() keeps the first of equals, so the comma wins a tie.
    delimiter = max(readings, key=lambda each: sum(normalised(cell) in known for cell in readings[each][0]))
    cells, end = readings[delimiter]
    return Header(match_columns(cells, schema, limits), delimiter, end)


def first_line(source: BinaryIO, offset: int, limits: Limits) -> tuple[str, int, int]:
    """The first line that is not blank, its offset and that of the line behind it; an empty text at the end."""
    lines = Lines(source, offset, limits)
    begin = offset
    for line in lines:
        if line.strip():
            return line, begin, lines.offset
        begin = lines.offset
        lines.begin_batch()
    if lines.is_cut:
        raise FileRejected(f"the header is longer than {limits.batch_bytes_max:,} bytes", code="limit")
    return "", begin, begin


def declared_delimiter(line: str) -> str | None:
    """The delimiter that a spreadsheet's `sep=;` line names."""
    text = line.strip("\r\n")
    if not text.lower().startswith("sep=") or len(text) != len("sep=;"):
        return None
    return text[-1] if text[-1] != '"' else None


def readings_of(
    source: BinaryIO, offset: int, delimiters: Iterable[str], limits: Limits
) -> dict[str, tuple[list[str], int]]:
    """The header's cells and the offset behind them, by each delimiter with which it can be read at all."""
    readings: dict[str, tuple[list[str], int]] = {}
    problems: list[csv.Error] = []
    for delimiter in delimiters:
        lines = Lines(source, offset, limits)
        try:
            readings[delimiter] = next(csv.reader(lines, delimiter=delimiter, strict=True)), lines.offset
        except csv.Error as error:
            problems.append(error)
    if not readings:
        raise FileRejected(f"the header cannot be read: {problems[0]}", code="header") from problems[0]
    return readings


def match_columns(cells: Sequence[str], schema: Schema, limits: Limits) -> tuple[str, ...]:
    """A name for each header cell: the field it stands for, or its own text where the schema does not know it."""
    if len(cells) > limits.columns_max:
        raise FileRejected(f"the header has {len(cells):,} columns; at most {limits.columns_max:,}", code="limit")
    known = known_headers(schema)
    names = [known.get(normalised(cell)) or unicodedata.normalize("NFC", cell.strip()) for cell in cells]
    refuse_unusable(cells, names)
    refuse_unfitting(names, schema)
    return tuple(names)


def refuse_unusable(cells: Sequence[str], names: Sequence[str]) -> None:
    faults: list[Fault] = []
    first: dict[str, int] = {}
    for number, (cell, name) in enumerate(zip(cells, names, strict=True), start=1):
        if not name:
            faults.append(Fault(f"column {number} has no name"))
        elif "\0" in name:
            faults.append(Fault(f"the name of column {number} contains a NUL character"))
        elif (earlier := first.setdefault(normalised(name), number)) != number:
            faults.append(Fault(f"columns {earlier} and {number} have the same name", shown(cell.strip())))
    if faults:
        raise FileRejected(f"the header cannot be used: {listed(map(str, faults))}", code="header", faults=faults)


def refuse_unfitting(names: Sequence[str], schema: Schema) -> None:
    fields = {column.name for column in schema.columns}
    unknown = [] if schema.allows_extra else [name for name in names if name not in fields]
    missing = [column for column in schema.columns if column.is_required and column.name not in names]
    faults = [
        Fault(f"no column is named {' or '.join(map(repr, column.headers))}", column.name) for column in missing
    ] + [unknown_column(name, schema, guesses=place < NAMES_SHOWN) for place, name in enumerate(unknown)]
    if missing:
        raise FileRejected(
            f"required columns are missing: {listed(column.name for column in missing)}; "
            f"the header has: {listed(names)}",
            code="missing_columns",
            faults=faults,
        )
    if unknown:
        raise FileRejected(
            f"the header has unknown columns: {listed(map(str, faults))}", code="unknown_columns", faults=faults
        )


def unknown_column(name: str, schema: Schema, *, guesses: bool) -> Fault:
    """What is told of a column; to guess what is meant takes long, where there are many to guess among."""
    if not guesses:
        return Fault("is not a column of this operation", shown(name))
    known = {normalised(header): header for column in schema.columns for header in column.headers}
    close = get_close_matches(normalised(name), known, n=1)
    hint = f"did you mean {known[close[0]]!r}?" if close else f"known: {listed(known.values())}"
    return Fault(f"is not a column of this operation; {hint}", shown(name))


def known_headers(schema: Schema) -> dict[str, str]:
    return {normalised(header): column.name for column in schema.columns for header in column.headers}


def normalised(name: str) -> str:
    """The form in which two header names are compared: trimmed, composed, without case."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name.strip()).casefold())


def listed(names: Iterable[str]) -> str:
    every = list(names)
    more = len(every) - NAMES_SHOWN
    text = ", ".join(map(shown, every[:NAMES_SHOWN]))
    return f"{text} and {more:,} more" if more > 0 else text


def shown(name: str, length_max: int = 100) -> str:
    return name if len(name) <= length_max else f"{name[: length_max - 1]}…"
