"""Files that were uploaded to be checked, and the secrets given with them: kept for a while for the start."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, BinaryIO

from penstock.access.model import Principal
from penstock.clock import Clock, Entropy

__all__ = ["Draft", "Drafts"]

KEPT_S = 1800.0
KEPT_MAX = 100  # of all owners
KEPT_EACH = 5  # of one owner
BYTES_EACH = 2 * 1024**3


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Draft:
    """A file that was checked. It is closed when nobody has the draft or a reader of it any more."""

    token: str
    owner: Principal
    name: str
    size_bytes: int
    until: float
    file: IO[bytes]
    secrets: dict[str, str] = field(default_factory=dict, repr=False, compare=False)  # by the field of the form

    def open(self) -> BinaryIO:
        """A reader with a position of its own, good also after the draft was let go."""
        return io.BufferedReader(_Reader(self))


class _Reader(io.RawIOBase):
    """Reads a draft's file at its own position."""

    def __init__(self, draft: Draft) -> None:
        self._draft, self._at = draft, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._draft.size_bytes}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # narrower than a Buffer
        found = os.pread(self._draft.file.fileno(), len(buffer), self._at)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


class Drafts:
    """The drafts of this process, in temporary files; each goes after `kept_s`, or the oldest when there are too many.

    Whoever uploads much lets their own older drafts go first.
    """

    def __init__(self, clock: Clock, entropy: Entropy, *, kept_s: float = KEPT_S) -> None:
        self._clock, self._entropy, self._kept_s = clock, entropy, kept_s
        self._kept: OrderedDict[str, Draft] = OrderedDict()

    async def keep(self, owner: Principal, name: str, source: BinaryIO, before: Draft | None = None) -> Draft:
        """Copy an upload, of whatever size; secrets that were given with the file before it stay."""
        file = await asyncio.to_thread(_copied, source)
        token = f"{self._entropy.bits(128):032x}"
        secrets = dict(before.secrets) if before is not None else {}
        draft = Draft(token, owner, name, file.tell(), self._clock.monotonic() + self._kept_s, file, secrets)
        weakref.finalize(draft, file.close)
        self._kept[token] = draft
        self._make_room(owner)
        # An application that is mounted is not told when it ends: a timer must not keep its drafts.
        asyncio.get_running_loop().call_later(self._kept_s, _expire, weakref.ref(self), token)
        return draft

    def find(self, owner: Principal, token: str) -> Draft | None:
        """The draft of this token, if it is the owner's and still here."""
        found = self._kept.get(token)
        if found is None or found.owner != owner or found.until <= self._clock.monotonic():
            return None
        return found

    def drop(self, token: str) -> None:
        """Let a draft go; who reads it may go on."""
        self._kept.pop(token, None)

    def _make_room(self, owner: Principal) -> None:
        own = [draft for draft in self._kept.values() if draft.owner == owner]
        while len(own) > KEPT_EACH or (len(own) > 1 and _bytes_of(own) > BYTES_EACH):
            self.drop(own.pop(0).token)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)


def _bytes_of(drafts: Sequence[Draft]) -> int:
    return sum(draft.size_bytes for draft in drafts)


def _expire(drafts: weakref.ref[Drafts], token: str) -> None:
    found = drafts()
    if found is not None:
        found.drop(token)


def _copied(source: BinaryIO) -> IO[bytes]:
    copy = tempfile.TemporaryFile(prefix="penstock-draft-")  # noqa: SIM115  # closed with its draft
    shutil.copyfileobj(source, copy)
    copy.flush()
    return copy
