"""Which reader a file gets: by its extension, never by guessing from its content."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import BinaryIO

from penstock.errors import FileRejected
from penstock.formats.delimited import open_delimited
from penstock.formats.encoding import check_start
from penstock.formats.json_array import open_json_array
from penstock.formats.json_lines import open_json_lines
from penstock.formats.model import Limits, Reader
from penstock.schema import Schema

__all__ = ["format_of", "open_reader"]

DEFAULT_LIMITS = Limits()

EXTENSIONS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"}

READERS: dict[str, Callable[[BinaryIO, int, Schema, Limits], Reader]] = {
    "csv": open_delimited,
    "json": open_json_array,
    "jsonl": open_json_lines,
}


def format_of(file_name: str) -> str:
    """The format that a file's extension stands for."""
    extension = PurePath(file_name).suffix.lower()
    if extension not in EXTENSIONS:
        found = f"the extension {extension!r}" if extension else "no extension"
        raise FileRejected(
            f"{PurePath(file_name).name!r} has {found}; known: {', '.join(EXTENSIONS)}", code="unknown_format"
        )
    return EXTENSIONS[extension]


def open_reader(source: BinaryIO, *, format: str, schema: Schema, limits: Limits = DEFAULT_LIMITS) -> Reader:
    """A reader over a seekable file whose start (encoding, header, opening bracket) has been read and found good."""
    if format not in READERS:
        raise FileRejected(f"no reader for format {format!r}; known: {', '.join(READERS)}", code="unknown_format")
    return READERS[format](source, check_start(source), schema, limits)
