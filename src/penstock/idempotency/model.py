"""The values of the capability: which key is meant, what is stored about it, and what a caller wants."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from penstock.errors import InvalidInput

__all__ = ["KEY_CHARACTERS_MAX", "LABEL_CHARACTERS_MAX", "Address", "Entry", "KeyRecord", "Seen", "Verdict", "Wish"]

KEY_CHARACTERS_MAX = 255
LABEL_CHARACTERS_MAX = 255

Verdict = Literal["claim", "take_over", "replay", "in_flight", "indeterminate", "mismatch"]


def digest(parts: Iterable[str | bytes]) -> str:
    """SHA-256 over several parts, each with its length, so that no two lists of parts are told alike."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        total.update(b"%d:" % len(data))
        total.update(data)
    return total.hexdigest()


@dataclass(frozen=True, slots=True)
class Address:
    """One caller's key. `scope` stands for the caller and is a digest, because a caller may be told by a secret.

    `id` is a digest of both; it is the same in every attempt, so it can be sent along as an effect key.
    """

    key: str
    scope: str
    id: str

    @classmethod
    def of(cls, key: str, scope: Sequence[str] = ()) -> Address:
        """The key of a caller: its tenant and principal, or whatever tells callers apart."""
        if isinstance(scope, str):
            scope = (scope,)
        if not 1 <= len(key) <= KEY_CHARACTERS_MAX:
            raise InvalidInput(f"an idempotency key has 1 to {KEY_CHARACTERS_MAX} characters; found {len(key)}")
        if not key.isprintable():
            raise InvalidInput("an idempotency key has printable characters only")
        caller = scope_of(scope)
        return cls(key, caller, digest((caller, key)))


def scope_of(parts: Sequence[str]) -> str:
    """The digest that stands for a caller."""
    return digest(("scope", *((parts,) if isinstance(parts, str) else parts)))


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody who claims a key brings along; the owner's token is made before and used once."""

    owner: str
    fingerprint: str
    label: str
    lease_us: int
    retention_us: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What is stored about a key. Instants are microseconds since 1970 on the store's clock.

    `state` is the one that was stored; `rules.state_at` tells what it means now.
    """

    key: str
    label: str
    fingerprint: str
    state: str
    owner: str
    attempt: int
    created_at: int
    lease_until: int
    expires_at: int
    finished_at: int | None
    answer: bytes | None


@dataclass(frozen=True, slots=True)
class Seen:
    """An entry, None when there is none, and the store's time when it was read."""

    entry: Entry | None
    now_us: int


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key as it is shown. `has_answer` is False while it is in progress and after its answer was erased."""

    key: str
    label: str
    state: str
    attempt: int
    created_at: datetime
    lease_until: datetime | None
    finished_at: datetime | None
    expires_at: datetime
    has_answer: bool
