"""Is this UTF-8 text at all? Files that are something else are refused with the name of what they are."""

from __future__ import annotations

import codecs
from typing import BinaryIO

from penstock.errors import FileRejected

__all__ = ["Undecodable", "check_start", "not_utf8"]

HEAD_BYTES = 4

# UTF-32 comes first: its little-endian mark begins with that of UTF-16.
FOREIGN_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
SIGNATURES = {
    b"\x1f\x8b": "a gzip archive",
    b"PK\x03\x04": "a zip archive or an XLSX workbook",
    b"PK\x05\x06": "an empty zip archive",
    b"PAR1": "a Parquet file",
    b"\x28\xb5\x2f\xfd": "a Zstandard archive",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook (.xls)",
    b"%PDF": "a PDF document",
}


class Undecodable(Exception):
    """The byte at `offset` of the file is not UTF-8."""

    def __init__(self, offset: int, byte: int) -> None:
        super().__init__(f"byte 0x{byte:02X} at offset {offset}")
        self.offset, self.byte = offset, byte


def check_start(source: BinaryIO) -> int:
    """The offset at which the text begins, behind a byte order mark; refuses what is plainly not UTF-8 text."""
    source.seek(0)
    head = source.read(HEAD_BYTES)
    if head.startswith(codecs.BOM_UTF8):
        return len(codecs.BOM_UTF8)
    for mark, encoding in FOREIGN_MARKS.items():
        if head.startswith(mark):
            raise FileRejected(f"the file is encoded as {encoding}; save it as UTF-8", code="encoding")
    for signature, kind in SIGNATURES.items():
        if head.startswith(signature):
            raise FileRejected(
                f"the file is {kind}, not text; unpack or export it, or give it the extension of what it is",
                code="not_text",
            )
    if head and not head.strip(b"\0"):
        raise FileRejected("the file begins with NUL bytes; it is not text", code="not_text")
    if b"\0" in head:
        raise FileRejected(
            "the file begins with NUL bytes between characters, as UTF-16 and UTF-32 do; save it as UTF-8",
            code="encoding",
        )
    return 0


def not_utf8(error: Undecodable, row: int) -> FileRejected:
    """The refusal of a byte that cannot stand where it stands; row 0 is the header."""
    place = f"row {row}" if row else "the header"
    return FileRejected(
        f"{error} ({place}) is not UTF-8; save the file as UTF-8 "
        "(it may be Windows-1252 or Latin-1 now, or it was cut off)",
        code="encoding",
    )
