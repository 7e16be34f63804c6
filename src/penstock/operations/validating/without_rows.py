"""Files without rows: a mistake of their sender, unless the operation allows them."""

from __future__ import annotations

import contextlib
from typing import BinaryIO

from penstock.errors import FileRejected
from penstock.formats import open_reader
from penstock.pipeline import Definition

__all__ = ["no_rows", "refuse_without_rows"]


def no_rows(definition: Definition, file_name: str, columns: tuple[str, ...] | None) -> FileRejected:
    """The refusal of a file that was read to its end without finding a row."""
    found = "a header and no rows" if columns else "no rows" if columns is None else "no rows and no header"
    return FileRejected(
        f"{file_name!r} has {found}; operation {definition.name!r} takes such files only with allow_empty "
        "(@operation(…, allow_empty=True), or for one run --set allow_empty=true)",
        code="no_rows",
    )


def refuse_without_rows(definition: Definition, stream: BinaryIO, *, file_name: str, file_format: str) -> None:
    """Raise if the file has no row and must have one. Whatever else is wrong with it is left to its reading.

    Needs a stream that can be rewound and stands at its beginning, where it is left; others are not looked at.
    """
    if definition.options.allow_empty or not stream.seekable() or stream.tell():
        return
    columns: tuple[str, ...] | None = None
    found = True
    with contextlib.suppress(FileRejected):
        reader = open_reader(stream, format=file_format, schema=definition.row.schema)
        columns, found = reader.columns, next(reader.batches(1), None) is not None
    stream.seek(0)
    if not found:
        raise no_rows(definition, file_name, columns)
