"""Content types that can be told from bytes, and bytes that give away what a file really is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

__all__ = ["KNOWN", "OCTETS", "READABLE", "TypeOfContent", "content_type_of", "kind_of_bytes"]

OCTETS = "application/octet-stream"
XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"


@dataclass(frozen=True, slots=True)
class TypeOfContent:
    """A known type: the extensions its files have, how they begin and end, and how they are looked into."""

    extensions: tuple[str, ...]
    starts: tuple[bytes, ...] = ()
    ends: bytes = b""
    text: str | None = None  # delimited, json, json_lines, plain
    archive: str | None = None  # zip, xlsx, gzip, zstd


# fmt: off
KNOWN = {
    "text/csv":                       TypeOfContent((".csv",), text="delimited"),
    "text/tab-separated-values":      TypeOfContent((".tsv", ".tab"), text="delimited"),
    "application/json":               TypeOfContent((".json",), text="json"),
    "application/x-ndjson":           TypeOfContent((".jsonl", ".ndjson"), text="json_lines"),
    "text/plain":                     TypeOfContent((".txt", ".text", ".log"), text="plain"),
    "application/zip":                TypeOfContent((".zip",), (b"PK\x03\x04", b"PK\x05\x06"), archive="zip"),
    XLSX:                             TypeOfContent((".xlsx",), (b"PK\x03\x04",), archive="xlsx"),
    "application/gzip":               TypeOfContent((".gz", ".gzip"), (b"\x1f\x8b",), archive="gzip"),
    "application/zstd":               TypeOfContent((".zst", ".zstd"), (b"\x28\xb5\x2f\xfd",), archive="zstd"),
    "application/vnd.apache.parquet": TypeOfContent((".parquet",), (b"PAR1",), b"PAR1"),
    "application/pdf":                TypeOfContent((".pdf",), (b"%PDF-",)),
    "image/png":                      TypeOfContent((".png",), (b"\x89PNG\r\n\x1a\n",), b"IEND\xaeB`\x82"),
    "image/jpeg":                     TypeOfContent((".jpg", ".jpeg"), (b"\xff\xd8\xff",), b"\xff\xd9"),
    "image/gif":                      TypeOfContent((".gif",), (b"GIF87a", b"GIF89a"), b"\x3b"),
    "image/tiff":                     TypeOfContent((".tif", ".tiff"), (b"II*\0", b"MM\0*")),
}
# What clients say instead.
ALIASES = {
    "application/csv": "text/csv", "text/x-csv": "text/csv", "application/x-csv": "text/csv",
    "text/tsv": "text/tab-separated-values",
    "text/json": "application/json",
    "application/jsonl": "application/x-ndjson", "application/jsonlines": "application/x-ndjson",
    "application/ndjson": "application/x-ndjson", "application/x-jsonlines": "application/x-ndjson",
    "application/x-gzip": "application/gzip", "application/x-zip-compressed": "application/zip",
    "application/x-zstd": "application/zstd", "application/parquet": "application/vnd.apache.parquet",
}
# How files of other kinds begin, for those that must not pretend to be text.
GIVEAWAYS = (
    (b"MZ", "a Windows program"), (b"\x7fELF", "a Linux program"), (b"#!", "a script"),
    (b"\xca\xfe\xba\xbe", "a Java class or macOS program"), (b"\xcf\xfa\xed\xfe", "a macOS program"),
    (b"\xce\xfa\xed\xfe", "a macOS program"), (b"\0asm", "a WebAssembly module"), (b"dex\n", "an Android program"),
    (b"PK\x03\x04", "a zip archive"), (b"PK\x05\x06", "an empty zip archive"), (b"\x1f\x8b", "a gzip archive"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive"), (b"BZh", "a bzip2 archive"), (b"\xfd7zXZ\0", "an xz archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"), (b"Rar!\x1a\x07", "a RAR archive"), (b"PAR1", "a Parquet file"),
    (b"%PDF", "a PDF document"), (b"\x89PNG", "a PNG image"), (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"), (b"\xd0\xcf\x11\xe0", "an old Office document"), (b"{\\rtf", "an RTF document"),
    (b"SQLite format 3\0", "a SQLite database"), (b"%!PS", "a PostScript document"),
    (b"\xff\xfe", "UTF-16 text"), (b"\xfe\xff", "UTF-16 text"), (b"\0\0\xfe\xff", "UTF-32 text"),
)
# The same for texts that a browser or an interpreter would run; spaces before them and case do not matter.
MARKUP = (
    (b"<!doctype html", "an HTML page"), (b"<html", "an HTML page"), (b"<script", "an HTML page"),
    (b"<svg", "an SVG image"), (b"<?xml", "an XML document"), (b"<?php", "a PHP script"),
)
# fmt: on

# What operations can read.
READABLE = ("text/csv", "text/tab-separated-values", "application/json", "application/x-ndjson")

_BY_EXTENSION = {extension: name for name, kind in KNOWN.items() for extension in kind.extensions}
_BOM = b"\xef\xbb\xbf"


def content_type_of(file_name: str, declared: str | None = None) -> str:
    """The type that was declared, without parameters and by its usual name; else the one of the extension."""
    said = (declared or OCTETS).partition(";")[0].strip().lower()
    said = ALIASES.get(said, said)
    by_name = _BY_EXTENSION.get(PurePosixPath(file_name).suffix.lower(), OCTETS)
    # Browsers on machines with Excel say this of every CSV.
    return by_name if said in (OCTETS, "") or (said == "application/vnd.ms-excel" and by_name == "text/csv") else said


def kind_of_bytes(head: bytes) -> str | None:
    """What bytes that begin so are, if they are certainly no table or JSON text."""
    for start, kind in GIVEAWAYS:
        if head.startswith(start):
            return kind
    text = head.removeprefix(_BOM).lstrip()[:20].lower()
    return next((kind for start, kind in MARKUP if text.startswith(start)), None)
