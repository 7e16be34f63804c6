"""The chain of the audit log: what an entry's digest is made of, and what is wrong with a chain. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

__all__ = ["ERASED", "START", "ChainCheck", "Entry", "details_digest", "digest_of"]

START = "0" * 64  # what stands before the first entry
ERASED = "details.erase"  # the action of an entry that accounts for details which are gone


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the audit log: who did what to which thing, and when (microseconds since 1970)."""

    tenant: str
    sequence: int
    at: int
    actor: str
    action: str
    subject: str
    details: Mapping[str, Any] | None
    salt: str | None
    details_digest: str | None
    digest: str


def details_digest(details: Mapping[str, Any], salt: str) -> str:
    """What stays of details when they are erased."""
    return hashlib.sha256(salt.encode() + msgspec.json.encode(details, order="deterministic")).hexdigest()


def digest_of(entry: Entry, before: str) -> str:
    """The digest of an entry that follows the one with the digest `before`."""
    covered = (
        entry.tenant,
        entry.sequence,
        entry.at,
        entry.actor,
        entry.action,
        entry.subject,
        entry.details_digest,
        before,
    )
    return hashlib.sha256(msgspec.json.encode(covered)).hexdigest()


class ChainCheck:
    """Follows a tenant's chain from its start, entry by entry, and says what is wrong with it.

    One change breaks everything behind it; it is reported once, and the chain is followed from there.
    """

    def __init__(self) -> None:
        self._expected, self._before = 1, START
        self._gone: dict[str, int] = {}  # the last entry of each subject whose details are gone

    def next(self, entry: Entry) -> Iterator[tuple[int, str]]:
        """What is wrong with the next entry, by its number."""
        if entry.sequence != self._expected:
            yield self._expected, f"entries {self._expected} to {entry.sequence - 1} are missing"
        elif digest_of(entry, self._before) != entry.digest:
            yield entry.sequence, "was changed, or follows an entry that was"
        if entry.details is not None and entry.details_digest != details_digest(entry.details, entry.salt or ""):
            yield entry.sequence, "its details were changed"
        if entry.details is None and entry.details_digest is not None:
            self._gone[entry.subject] = entry.sequence
        if entry.action == ERASED:
            self._gone.pop(entry.subject, None)
        self._expected, self._before = entry.sequence + 1, entry.digest

    def end(self, sequence: int, digest: str) -> Iterator[tuple[int, str]]:
        """What is wrong now that all was seen; the chain is said to end with this number and digest."""
        for subject, number in self._gone.items():
            yield number, f"its details are gone, and no later entry says that those of {subject} were erased"
        if (self._expected - 1, self._before) != (sequence, digest):
            yield self._expected, f"the chain ends with entry {self._expected - 1}, and should end with {sequence}"
