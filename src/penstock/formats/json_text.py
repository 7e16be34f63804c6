"""Moving through a JSON text that is longer than memory."""

from __future__ import annotations

import codecs
import re
from typing import BinaryIO

from penstock.formats.encoding import Undecodable
from penstock.formats.model import Limits

__all__ = ["Cursor", "Matcher"]

WHITE_SPACE = re.compile(r"[ \t\n\r]*")
STRUCTURE = re.compile(r'"|[\[{]+|[\]}]+')
STRING_STOP = re.compile(r'["\\]')
SCALAR_STOP = re.compile(r"[ \t\n\r,\]}]")

new_decoder = codecs.getincrementaldecoder("utf-8")


class Cursor:
    """A window of decoded text over a file, and the place `at` in it."""

    def __init__(self, source: BinaryIO, offset: int, limits: Limits) -> None:
        self.text, self.at = "", 0
        self._source, self._limits, self._read_at = source, limits, offset
        self._decoder, self._broken = new_decoder(), None  # type: tuple[codecs.IncrementalDecoder, Undecodable | None]
        self._mark, self._mark_offset = 0, offset

    @property
    def offset(self) -> int:
        """Where in the file `at` is."""
        between = self.text[self._mark : self.at]
        self._mark_offset += len(between) if between.isascii() else len(between.encode())
        self._mark = self.at
        return self._mark_offset

    def peek(self) -> str:
        """Move over white space to the next character, and say which it is; empty at the end of the file."""
        while True:
            if skipped := WHITE_SPACE.match(self.text, self.at):
                self.at = skipped.end()
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def more(self) -> bool:
        """Let go of what is behind `at` and read on; False at the end of the file."""
        if self._broken:
            raise self._broken
        _ = self.offset
        self.text, self.at, self._mark = self.text[self.at :], 0, 0
        self._source.seek(self._read_at)
        data = self._source.read(self._limits.block_bytes)
        held = self._decoder.getstate()[0]
        try:
            self.text += self._decoder.decode(data, not data)
        except UnicodeDecodeError as error:
            # What is good before the bad byte is read first, so that the refusal can name the right row.
            self._broken = Undecodable(self._read_at - len(held) + error.start, (held + data)[error.start])
            self.text += (held + data)[: error.start].decode()
            return True
        self._read_at += len(data)
        return bool(data)


class Matcher:
    """Finds where a JSON value ends by its quotes and brackets alone, in pieces, remembering nothing of its text."""

    def __init__(self, first: str) -> None:
        self._is_scalar = first not in '"[{'
        self._is_string = False
        self._depth = 0
        self._skip = 0

    def feed(self, text: str, at: int) -> int | None:
        """The index behind the value if it ends in this piece."""
        if self._is_scalar:
            stop = SCALAR_STOP.search(text, at)
            return stop.start() if stop else None
        at, self._skip = at + self._skip, 0
        while found := (STRING_STOP if self._is_string else STRUCTURE).search(text, at):
            at = found.end()
            match found[0][0]:
                case "\\":
                    at += 1
                case '"':
                    self._is_string = not self._is_string
                case "[" | "{":
                    self._depth += at - found.start()
                case _:
                    at = min(at, found.start() + self._depth)
                    self._depth -= at - found.start()
            if not self._depth and not self._is_string:
                return at
        self._skip = max(0, at - len(text))
        return None
