"""What is refused before anybody may use it, and why. Each line of the table is one kind of hostile or broken file."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
import zstandard

from penstock.blobs.checks.archives import ArchiveLimits, check_archive
from penstock.blobs.checks.policy import CHECKS, BlobPolicy, inspect
from penstock.blobs.checks.text import TextLimits
from penstock.blobs.checks.types import KNOWN, OCTETS, READABLE, content_type_of
from penstock.blobs.checks.upload import Rejection, Upload

XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
CSV = b"id,name\n1,Ana\n2,Ben\n"
MIB = 1024 * 1024
SMALL = ArchiveLimits(expanded_bytes_max=8 * MIB, ratio_max=50, ratio_from_bytes=MIB, entries_max=100)
POLICY = BlobPolicy(types=(*READABLE, *KNOWN), bytes_max=MIB, text=TextLimits(line_bytes_max=4096), archives=SMALL)


def zipped(*entries: tuple[Any, bytes], store: bool = False) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED if store else zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return target.getvalue()


def link() -> zipfile.ZipInfo:
    made = zipfile.ZipInfo("link")
    made.create_system, made.external_attr = 3, 0o120777 << 16
    return made


def workbook(*more: tuple[str, bytes]) -> bytes:
    return zipped(("[Content_Types].xml", b"<Types/>"), ("xl/workbook.xml", b"<workbook/>"), *more)


def encrypted() -> bytes:
    content = bytearray(zipped(("a.csv", CSV), store=True))
    content[6] |= 1  # the flag of the entry, then the same in the directory
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


def lying() -> bytes:
    """An archive that says its entry has ten bytes."""
    content = bytearray(zipped(("a.csv", CSV * 1000)))
    at = content.index(b"PK\x01\x02") + 24
    content[at : at + 4] = struct.pack("<I", 10)
    return bytes(content)


def overlapping() -> bytes:
    """Two entries of the directory that lead to the same bytes."""
    content = zipped(("aa.csv", CSV), ("bb.csv", CSV), store=True)
    first = content.index(b"PK\x01\x02")
    second = content.index(b"PK\x01\x02", first + 4)
    return content[: second + 42] + struct.pack("<I", 1) + content[second + 46 :]


def packed(method: int) -> bytes:
    """An archive by another method, whose packed bytes are none of it."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        archive.writestr("a.csv", CSV * 100)
    content = bytearray(target.getvalue())
    begin = 30 + len("a.csv") + (9 if method == zipfile.ZIP_LZMA else 0)  # behind the properties of LZMA
    end = content.index(b"PK\x01\x02")
    content[begin:end] = b"\xff" * (end - begin)
    return bytes(content)


def misnamed() -> bytes:
    """An archive that says the name of its entry is UTF-8."""
    content = bytearray(zipped(("\u00e4.csv", CSV), store=True))
    return bytes(content.replace("\u00e4".encode(), b"\xff\xff"))


def twice() -> bytes:
    with pytest.warns(UserWarning, match="Duplicate name"):
        return zipped(("a.csv", CSV), ("a.csv", CSV))


# fmt: off
# file name, declared type, bytes, code of the refusal, part of the reason
HOSTILE: list[tuple[str, str | None, bytes | Callable[[], bytes], str, str]] = [
    # names
    ("../../etc/passwd.csv", None, CSV, "file_name", "is a path"),
    ("..\\..\\boot.csv", None, CSV, "file_name", "is a path"),
    ("rows\0.csv", None, CSV, "file_name", "cannot be seen"),
    ("rows\u202evsc.exe.csv", None, CSV, "file_name", "cannot be seen"),
    ("x" * 300 + ".csv", None, CSV, "file_name", "255 characters"),
    ("  ", None, CSV, "file_name", "1 to 255"),
    # types
    ("virus.exe", "text/csv", CSV, "extension", "ends with .csv"),
    ("rows.csv.exe", "text/csv", CSV, "extension", "does not"),
    ("page.html", "text/html", b"<p>hello", "type_not_allowed", "text/html are not taken"),
    ("rows", None, CSV, "type_not_allowed", OCTETS),
    # programs and documents that pretend to be tables
    ("rows.csv", None, b"MZ\x90\0\x03", "wrong_type", "a Windows program"),
    ("rows.csv", None, b"\x7fELF\x02\x01", "wrong_type", "a Linux program"),
    ("rows.csv", None, b"\xcf\xfa\xed\xfe\x07", "wrong_type", "a macOS program"),
    ("rows.csv", None, b"\xca\xfe\xba\xbe\0\0", "wrong_type", "a Java class"),
    ("rows.csv", None, b"\0asm\x01\0", "wrong_type", "a WebAssembly module"),
    ("rows.csv", None, b"#!/bin/sh\nrm -rf /\n", "wrong_type", "a script"),
    ("rows.csv", None, b"\n <?php system($_GET[0]); ?>", "wrong_type", "a PHP script"),
    ("rows.csv", None, b"<!DOCTYPE HTML><script>alert(1)</script>", "wrong_type", "an HTML page"),
    ("rows.json", None, b"<svg onload=alert(1)>", "wrong_type", "an SVG image"),
    ("rows.csv", None, b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "b">]>', "wrong_type", "an XML document"),
    ("rows.csv", None, b"%PDF-1.7\n", "wrong_type", "a PDF document"),
    ("rows.csv", None, b"\x89PNG\r\n\x1a\n", "wrong_type", "a PNG image"),
    ("rows.csv", None, zipped(("a", b"b")), "wrong_type", "a zip archive"),
    ("rows.csv", None, gzip.compress(CSV), "wrong_type", "a gzip archive"),
    ("rows.csv", None, b"\xd0\xcf\x11\xe0\xa1\xb1", "wrong_type", "an old Office document"),
    ("rows.csv", None, b"{\\rtf1 {\\object}}", "wrong_type", "an RTF document"),
    ("rows.csv", None, b"SQLite format 3\0", "wrong_type", "a SQLite database"),
    ("rows.csv", None, b"Rar!\x1a\x07\x01\0", "wrong_type", "a RAR archive"),
    ("rows.csv", None, b"7z\xbc\xaf\x27\x1c", "wrong_type", "a 7-Zip archive"),
    ("image.png", None, CSV, "wrong_type", "does not begin as image/png"),
    ("image.png", None, b"\x89PNG\r\n\x1a\n" + bytes(50), "cut_off", "does not end"),
    ("table.parquet", None, b"PAR1" + bytes(50), "cut_off", "does not end"),
    ("report.pdf", None, b"MZ\x90\0", "wrong_type", "does not begin as application/pdf"),
    # sizes
    ("rows.csv", None, b"", "empty", "is empty"),
    ("rows.csv", None, b"a,b\n" * 300_000, "too_large", "at most 1,048,576"),
    # text
    ("rows.csv", None, CSV + b"3,\0\n", "not_text", "byte 0x00 at offset 22"),
    ("rows.csv", None, CSV + b"3,\x1b[2J\n", "not_text", "byte 0x1B"),
    ("rows.csv", None, "id;name\n1;Jürgen\n".encode("latin-1"), "encoding", "byte 0xFC is not UTF-8"),
    ("rows.csv", None, "id,name\n".encode("utf-16"), "wrong_type", "UTF-16"),
    ("rows.csv", None, "id,name\n".encode("utf-16-le"), "not_text", "byte 0x00"),
    ("rows.csv", None, CSV + "é".encode()[:1], "encoding", "cut off"),
    ("rows.csv", None, b" \n\t\r\n", "empty", "is empty"),
    ("rows.csv", None, b"\xef\xbb\xbf", "empty", "is empty"),
    ("rows.csv", None, b"id,name\n" + b"x" * 5000, "line_too_long", "more than 4,096"),
    ("rows.csv", None, b"," * 3000 + b"\n", "too_many_columns", "3,001 columns"),
    ("rows.csv", None, b'id,name\n1,"Ana\n2,Ben\n', "open_quote", "never closed"),
    ("rows.csv", None, b'[{"id": 1}]', "wrong_type", "is JSON"),
    ("rows.json", None, CSV, "wrong_type", "neither [ nor {"),
    ("rows.json", None, b'[{"id": 1}, {"id":', "cut_off", "does not end with ]"),
    ("rows.json", None, b"[" * 5000 + b"]" * 5000, "too_deep", "more than 100 deep"),
    ("rows.json", None, b'{"a":' * 500 + b"1" + b"}" * 500, "too_deep", "more than 100 deep"),
    ("rows.jsonl", None, CSV, "wrong_type", "no JSON Lines"),
    ("rows.jsonl", None, b'{"a": [' * 200 + b"]}" * 200 + b"\n", "too_deep", "deep"),
    # archives
    ("a.zip", None, zipped(("a.csv", bytes(6 * MIB))), "bomb", "expands to more than"),
    ("a.zip", None, zipped(*((f"{n}", b"") for n in range(101))), "bomb", "101 entries"),
    ("a.zip", None, zipped(("inner.zip", zipped(("a", b"b")))), "nested", "another archive"),
    ("a.zip", None, zipped(("../../etc/cron.d/x", b"b")), "unsafe_path", "points outside"),
    ("a.zip", None, zipped(("/etc/passwd", b"b")), "unsafe_path", "points outside"),
    ("a.zip", None, zipped((link(), b"/etc/passwd")), "symlink", "symbolic link"),
    ("a.zip", None, encrypted(), "encrypted", "is encrypted"),
    ("a.zip", None, lying(), "damaged", "damaged"),
    ("a.zip", None, overlapping(), "overlap", "overlaps another"),
    ("a.zip", None, twice, "duplicate_entry", "is there twice"),
    ("a.zip", None, zipped(("a.csv", CSV))[:-10], "damaged", "damaged"),
    ("a.zip", None, packed(zipfile.ZIP_LZMA), "damaged", "damaged"),
    ("a.zip", None, packed(zipfile.ZIP_BZIP2), "damaged", "damaged"),
    ("a.zip", None, misnamed, "damaged", "damaged"),
    ("a.xlsx", None, zipped(("a.csv", CSV)), "wrong_type", "no workbook"),
    ("a.xlsx", None, workbook(("xl/vbaProject.bin", b"macro")), "macros", "has macros"),
    ("a.gz", None, gzip.compress(bytes(6 * MIB)), "bomb", "expands to more than"),
    ("a.gz", None, gzip.compress(CSV)[:-9], "damaged", "ends too early"),
    ("a.gz", None, gzip.compress(CSV) + b"and more", "damaged", "damaged"),
    ("a.gz", None, gzip.compress(gzip.compress(CSV)), "nested", "another archive"),
    ("a.zst", None, zstandard.compress(bytes(6 * MIB)), "bomb", "expands to more than"),
    ("a.zst", None, b"\x28\xb5\x2f\xfd" + bytes(20), "damaged", "damaged"),
]
HARMLESS: list[tuple[str, str | None, bytes]] = [
    ("rows.csv", None, CSV),
    ("rows.csv", "text/csv; charset=utf-8", b"\xef\xbb\xbf" + CSV),
    ("rows.csv", "application/vnd.ms-excel", CSV),
    ("rows.csv", None, 'id;name\r\n1;"Jürgen; ""Jü"""\r\n'.encode()),
    ("rows.tsv", None, b"id\tname\n1\tAna\n"),
    ("rows.json", None, b'[{"id": 1, "a": {"b": [1, 2]}}]\n'),
    ("rows.jsonl", "application/jsonl", b'{"id": 1}\n{"id": 2}\n'),
    ("a.zip", None, zipped(("rows.csv", CSV), ("folder/more.csv", CSV))),
    ("a.xlsx", None, workbook(("xl/sheet1.xml", b"<x/>"))),
    ("rows.csv.gz", None, gzip.compress(CSV) + gzip.compress(CSV)),
    ("rows.csv.zst", None, zstandard.compress(CSV)),
    ("table.parquet", None, b"PAR1" + bytes(50) + b"PAR1"),
    ("report.pdf", None, b"%PDF-1.7\n..."),
]
# fmt: on


def judged(
    name: str, declared: str | None, content: bytes, policy: BlobPolicy = POLICY, **given: Any
) -> Rejection | None:
    digest = hashlib.sha256(content).hexdigest()
    said = {"bytes_max": policy.bytes_max, **given}
    kind = content_type_of(name, declared)
    return inspect(policy, Upload(name, kind, len(content), digest, lambda: io.BytesIO(content), **said))


@pytest.mark.parametrize(
    "name, declared, content, code, reason", HOSTILE, ids=[f"{n}-{line[3]}" for n, line in enumerate(HOSTILE, 1)]
)
def test_a_hostile_file_is_refused_with_the_reason(
    name: str, declared: str | None, content: bytes | Callable[[], bytes], code: str, reason: str
):
    found = judged(name, declared, content() if callable(content) else content)
    assert found is not None, "it was taken"
    assert found.code == code
    assert reason in found.reason


@pytest.mark.parametrize("name, declared, content", HARMLESS, ids=[f"{n}" for n, _ in enumerate(HARMLESS, 1)])
def test_a_harmless_file_is_taken(name: str, declared: str | None, content: bytes):
    assert judged(name, declared, content) is None


def test_the_directory_of_an_archive_is_not_read_when_it_is_too_large():
    class Watched(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            block = super().read(size)
            reads.append(len(block))
            return block

    reads: list[int] = []
    content = zipped(*((f"{n:050}", b"") for n in range(5000)), store=True)
    kind = content_type_of("a.zip", None)
    found = inspect(POLICY, Upload("a.zip", kind, len(content), "", lambda: Watched(content), MIB))
    assert found is not None
    assert (found.code, "its directory has" in found.reason) == ("bomb", True)
    assert max(reads) <= 256 * 1024


def test_a_disk_that_cannot_be_read_says_nothing_of_the_archive():
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() == 0:
                raise OSError(errno.EIO, "input/output error")
            return super().read(size)

    content = zipped(("rows.csv", CSV))
    with pytest.raises(OSError, match="input/output error"):
        check_archive(Upload("a.zip", "application/zip", len(content), "", lambda: Broken(content)), "zip", SMALL)


def test_bytes_other_than_those_that_were_announced_are_refused():
    assert judged("rows.csv", None, CSV, expected_bytes=len(CSV)) is None
    found = judged("rows.csv", None, CSV, expected_bytes=7)
    assert found == Rejection("size", f"the file has {len(CSV)} bytes where 7 were announced")
    found = judged("rows.csv", None, CSV, expected_sha256="0" * 64)
    assert found is not None
    assert found.code == "digest"
    assert judged("rows.csv", None, CSV, expected_sha256=hashlib.sha256(CSV).hexdigest()) is None


def test_unless_told_otherwise_only_what_operations_read_is_taken():
    found = judged("report.pdf", None, b"%PDF-1.7\n", BlobPolicy())
    assert found is not None
    assert (found.code, "text/csv, text/tab-separated-values" in found.reason) == ("type_not_allowed", True)


def test_the_first_refusal_counts_in_the_order_of_the_checks():
    names = [check.__name__ for check in CHECKS]
    assert names == ["check_name", "check_type", "check_signature", "check_size", "check_digest", "check_shape"]
    found = judged("../rows.exe", "text/html", b"", expected_sha256="0" * 64)
    assert found is not None
    assert found.code == "file_name"


def test_a_text_is_judged_the_same_wherever_its_blocks_end(monkeypatch: pytest.MonkeyPatch):
    content = "id,name\n1,Jürgen\n2,Zoë\n".encode()
    for size in range(1, 8):
        monkeypatch.setattr("penstock.blobs.checks.text.BLOCK_BYTES", size)
        assert judged("rows.csv", None, content) is None
        found = judged("rows.csv", None, content + b"x" * 5000)
        assert found is not None
        assert found.code == "line_too_long"
