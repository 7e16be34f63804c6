"""Files that were uploaded to be checked: kept for a while, so that starting does not send them again."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import BinaryIO

from penstock.access.model import Principal
from penstock.clock import Clock, Entropy

__all__ = ["Draft", "Drafts"]

KEPT_S = 1800.0
KEPT_MAX = 20


@dataclass(frozen=True, slots=True)
class Draft:
    """A file that was checked."""

    token: str
    owner: Principal
    name: str
    size_bytes: int
    file: BinaryIO
    until: float


class Drafts:
    """The drafts of this process, in temporary files; the oldest goes when there are too many."""

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self._clock, self._entropy = clock, entropy
        self._kept: OrderedDict[str, Draft] = OrderedDict()
        # An application that is mounted is not told when it ends.
        weakref.finalize(self, _close_all, self._kept)

    async def keep(self, owner: Principal, name: str, source: BinaryIO) -> Draft:
        """Copy an upload, of whatever size."""
        self._drop_old()
        file = await asyncio.to_thread(_copied, source)
        size = file.seek(0, 2)
        file.seek(0)
        token = f"{self._entropy.bits(128):032x}"
        draft = Draft(token, owner, name, size, file, self._clock.monotonic() + KEPT_S)
        self._kept[token] = draft
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)[1].file.close()
        return draft

    def find(self, owner: Principal, token: str) -> Draft | None:
        """The draft of this token, if it is the owner's and still here."""
        self._drop_old()
        found = self._kept.get(token)
        if found is None or found.owner != owner:
            return None
        found.file.seek(0)
        return found

    def drop(self, draft: Draft) -> None:
        """Let a draft go."""
        if self._kept.pop(draft.token, None) is not None:
            draft.file.close()

    def _drop_old(self) -> None:
        now = self._clock.monotonic()
        for draft in [each for each in self._kept.values() if each.until <= now]:
            self.drop(draft)


def _close_all(kept: OrderedDict[str, Draft]) -> None:
    for draft in kept.values():
        draft.file.close()


def _copied(source: BinaryIO) -> BinaryIO:
    copy = tempfile.TemporaryFile(prefix="penstock-draft-")  # noqa: SIM115  # the drafts close it
    shutil.copyfileobj(source, copy)
    return copy
