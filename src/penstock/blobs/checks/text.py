"""Text that claims to be a table or JSON: encoding, control characters, shape. Read once, in bounded memory."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import BinaryIO

from penstock.blobs.checks.upload import Rejection, Upload

__all__ = ["TextLimits", "check_text"]

BLOCK_BYTES = 1024 * 1024
# Tab, line feed, form feed and carriage return are the controls that text has.
_CONTROLS = bytes(code for code in range(32) if code not in (9, 10, 12, 13)) + b"\x7f"
_NOT_CONTROLS = bytes(code for code in range(256) if code not in _CONTROLS)
_OPENINGS = rb'(?:[\[{]\s*(?:"(?:[^"\\]|\\.)*"\s*:\s*)?)'


@dataclass(frozen=True, slots=True)
class TextLimits:
    """How far text may go before it is refused."""

    line_bytes_max: int = 1024 * 1024
    columns_max: int = 2_000
    json_depth_max: int = 100


def check_text(upload: Upload, kind: str, limits: TextLimits) -> Rejection | None:
    """Refuse what is no text of this kind (delimited, json, json_lines, plain)."""
    scan = _Scan(kind, limits)
    with upload.open() as stream:
        return scan.run(stream)


class _Scan:
    def __init__(self, kind: str, limits: TextLimits) -> None:
        self.kind, self.limits = kind, limits
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.offset = self.line = self.quotes = 0
        self.first = self.last = b""

    def run(self, stream: BinaryIO) -> Rejection | None:
        while block := stream.read(BLOCK_BYTES):
            found = self._look(block)
            if found is not None:
                return found
            self.offset += len(block)
        try:
            self.decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return Rejection("encoding", "the file ends in the middle of a character; it was cut off")
        return self._shape()

    def _look(self, block: bytes) -> Rejection | None:
        controls = block.translate(None, _NOT_CONTROLS)
        if controls:
            at = self.offset + block.index(controls[:1])
            return Rejection(
                "not_text", f"byte 0x{controls[0]:02X} at offset {at} is a control character; text has none"
            )
        try:
            self.decoder.decode(block)
        except UnicodeDecodeError as error:
            return Rejection("encoding", f"byte 0x{error.object[error.start]:02X} is not UTF-8; save the file as UTF-8")
        lines = block.split(b"\n")
        longest = max(self.line + len(lines[0]), *map(len, lines))
        if longest > self.limits.line_bytes_max and self.kind != "json":
            return Rejection("line_too_long", f"a line has more than {self.limits.line_bytes_max:,} bytes")
        self.line = len(lines[-1]) + (self.line if len(lines) == 1 else 0)
        self.quotes += block.count(b'"')
        self.first = self.first or block.removeprefix(codecs.BOM_UTF8).lstrip()
        self.last = block.rstrip()[-1:] or self.last
        return None

    def _shape(self) -> Rejection | None:
        if not self.first:
            return Rejection("empty", "the file is empty")
        match self.kind:
            case "delimited":
                return self._delimited()
            case "json":
                return self._json()
            case "json_lines":
                return self._json_lines()
        return None

    def _delimited(self) -> Rejection | None:
        header = self.first.partition(b"\n")[0]
        columns = 1 + max(header.count(delimiter) for delimiter in (b",", b";", b"\t", b"|"))
        if columns > self.limits.columns_max:
            return Rejection(
                "too_many_columns", f"its header has {columns:,} columns; at most {self.limits.columns_max:,}"
            )
        if self.quotes % 2:
            return Rejection("open_quote", "a quoted cell is never closed")
        if self.first[:1] in b"[{" and self.last in (b"]", b"}"):
            return Rejection("wrong_type", "the file is JSON, not a table")
        return None

    def _json(self) -> Rejection | None:
        closing = {b"[": b"]", b"{": b"}"}.get(self.first[:1])
        if closing is None:
            return Rejection("wrong_type", "the file is no JSON: it begins with neither [ nor {")
        if self.last != closing:
            return Rejection("cut_off", f"the file is no whole JSON: it does not end with {closing.decode()}")
        return self._depth()

    def _json_lines(self) -> Rejection | None:
        if self.first[:1] not in (b"[", b"{"):
            return Rejection("wrong_type", "the file is no JSON Lines: its first line begins with neither { nor [")
        return self._depth()

    def _depth(self) -> Rejection | None:
        deepest = self.limits.json_depth_max
        if re.match(_OPENINGS + rb"{%d}" % (deepest + 1), self.first):
            return Rejection("too_deep", f"the JSON is nested more than {deepest} deep")
        return None
