"""Archives: what they would become when unpacked is counted, never written."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from lzma import LZMAError
from typing import IO, BinaryIO, cast

import zstandard

from penstock.blobs.checks.upload import Rejection, Upload

__all__ = ["ArchiveLimits", "check_archive"]

BLOCK_BYTES = 256 * 1024
ENTRY_BYTES = 512  # of the directory of a zip archive, on average
FRAME_BYTES = 1024  # Zstandard gives all that comes of its input at once: this becomes 32 MiB at most
SYMLINK = 0o12
PACKED = (
    b"PK\x03\x04",
    b"\x1f\x8b",
    b"\x28\xb5\x2f\xfd",
    b"BZh",
    b"\xfd7zXZ\0",
    b"7z\xbc\xaf\x27\x1c",
    b"Rar!\x1a\x07",
)


_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    zstandard.ZstdError,
    LZMAError,
    EOFError,
    NotImplementedError,
    UnicodeDecodeError,  # the name of an entry
)


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """How far an archive may expand. A ratio counts only where the result is larger than `ratio_from_bytes`."""

    expanded_bytes_max: int = 4 * 1024**3
    ratio_max: int = 200
    ratio_from_bytes: int = 10 * 1024**2
    entries_max: int = 10_000


class _Refused(Exception):
    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.rejection = Rejection(code, reason)


def check_archive(upload: Upload, kind: str, limits: ArchiveLimits) -> Rejection | None:
    """Refuse archives (zip, xlsx, gzip, zstd) that expand too far, hide something or are damaged."""
    with upload.open() as stream:
        try:
            if kind in ("zip", "xlsx"):
                _check_zip(stream, upload.size_bytes, limits, is_workbook=kind == "xlsx")
            else:
                expanded = _gunzipped(stream) if kind == "gzip" else _unzstd(stream)
                _count(expanded, _Budget(upload.size_bytes, limits))
        except _Refused as refused:
            return refused.rejection
        except _DAMAGE as error:
            return _damaged(error)
        except OSError as error:
            if error.errno is not None:  # not the archive, but the disk; bzip2 raises one without a number
                raise
            return _damaged(error)
    return None


def _damaged(error: Exception) -> Rejection:
    return Rejection("damaged", f"the archive is damaged: {error}")


class _Budget:
    """How many bytes may still come out of an archive."""

    def __init__(self, packed_bytes: int, limits: ArchiveLimits) -> None:
        self.limits, self.expanded = limits, 0
        self.most = min(limits.expanded_bytes_max, max(limits.ratio_from_bytes, packed_bytes * limits.ratio_max))

    def spend(self, count: int) -> None:
        """Count bytes that came out."""
        self.expanded += count
        if self.expanded > self.most:
            raise _Refused("bomb", f"the archive expands to more than {self.most:,} bytes")


def _count(blocks: Iterator[bytes], budget: _Budget) -> None:
    is_first = True
    for block in blocks:
        if is_first and block:
            if block.startswith(PACKED):
                raise _Refused("nested", "the archive holds another archive")
            is_first = False
        budget.spend(len(block))


def _gunzipped(stream: BinaryIO) -> Iterator[bytes]:
    inflate, rest = zlib.decompressobj(31), b""
    while rest or (rest := stream.read(BLOCK_BYTES)):
        if inflate.eof:  # another member follows, or what is none
            inflate = zlib.decompressobj(31)
        yield inflate.decompress(rest, BLOCK_BYTES)
        rest = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
    if not inflate.eof:
        raise EOFError("it ends too early")


def _unzstd(stream: BinaryIO) -> Iterator[bytes]:
    frames = zstandard.ZstdDecompressor(max_window_size=2**27)
    inflate, rest = frames.decompressobj(), b""
    while rest or (rest := stream.read(FRAME_BYTES)):
        if inflate.eof:  # another frame follows, or what is none
            inflate = frames.decompressobj()
        yield inflate.decompress(rest)
        rest = inflate.unused_data if inflate.eof else b""
    if not inflate.eof:
        raise EOFError("it ends too early")


# --- zip


class _Bounded:
    """A stream of which no more is read at once than the directory of an archive may have: it is read as a whole."""

    def __init__(self, stream: BinaryIO, bytes_max: int) -> None:
        self._stream, self._bytes_max = stream, bytes_max
        self.seek, self.tell, self.seekable = stream.seek, stream.tell, stream.seekable

    def read(self, size: int = -1) -> bytes:
        if size > self._bytes_max:
            most = f"at most {self._bytes_max:,}"
            raise _Refused("bomb", f"the archive has too many entries: its directory has {size:,} bytes; {most}")
        return self._stream.read(size)


def _check_zip(stream: BinaryIO, size_bytes: int, limits: ArchiveLimits, *, is_workbook: bool) -> None:
    bounded = _Bounded(stream, max(BLOCK_BYTES, limits.entries_max * ENTRY_BYTES))
    with zipfile.ZipFile(cast("IO[bytes]", bounded)) as archive:
        entries = archive.infolist()
        _check_entries(entries, limits)
        budget = _Budget(size_bytes, limits)
        budget.spend(sum(entry.file_size for entry in entries))
        budget.expanded = 0
        for entry in entries:
            if not entry.is_dir():
                _count(_unzipped(archive, entry), budget)
        if is_workbook:
            _check_workbook({entry.filename for entry in entries})


def _check_entries(entries: Sequence[zipfile.ZipInfo], limits: ArchiveLimits) -> None:
    if len(entries) > limits.entries_max:
        raise _Refused("bomb", f"the archive has {len(entries):,} entries; at most {limits.entries_max:,}")
    end = 0
    seen: set[str] = set()
    for entry in sorted(entries, key=lambda each: each.header_offset):
        name = entry.orig_filename
        if entry.flag_bits & 1:
            raise _Refused("encrypted", f"the entry {name!r} is encrypted")
        if entry.external_attr >> 28 == SYMLINK:
            raise _Refused("symlink", f"the entry {name!r} is a symbolic link")
        if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or ":" in name or "\0" in name:
            raise _Refused("unsafe_path", f"the entry {name!r} points outside of the archive")
        if entry.filename in seen:
            raise _Refused("duplicate_entry", f"the entry {name!r} is there twice")
        if entry.header_offset < end:
            raise _Refused("overlap", f"the entry {name!r} overlaps another, as in bombs")
        seen.add(entry.filename)
        end = entry.header_offset + entry.compress_size


def _unzipped(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    with archive.open(entry) as stream:  # compares the checksum at the end
        while block := stream.read(BLOCK_BYTES):
            yield block


def _check_workbook(names: set[str]) -> None:
    if not {"[Content_Types].xml", "xl/workbook.xml"} <= names:
        raise _Refused("wrong_type", "the file is a zip archive, but no workbook")
    if any(name.lower().endswith("vbaproject.bin") for name in names):
        raise _Refused("macros", "the workbook has macros; save it without them (.xlsx)")
