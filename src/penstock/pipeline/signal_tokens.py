"""The token in a callback address: it names one wait, and is sealed, so that nobody can make one or read it.

Nothing is stored when it is made. So a step that runs again after a crash hands out an address as good as the one
before, and a callback that comes before its row waits is taken too.
"""

from __future__ import annotations

import msgspec

from penstock.errors import SecretsUnreadable
from penstock.secret_keys import SecretKeys

__all__ = ["WaitAddress", "seal", "unseal"]

TOKEN_CHARS = 3000
PURPOSE = "signal"


class WaitAddress(msgspec.Struct, array_like=True, frozen=True):
    """One wait: of this row, at this step, in this generation."""

    purpose: str
    operation: str
    key: str
    row: int
    step: int
    generation: int

    @property
    def signal_id(self) -> str:
        """The id of the one signal that this wait takes by its address: a repeat is known by it."""
        return f"url:{self.row}:{self.step}:{self.generation}"


def seal(keys: SecretKeys, *, operation: str, key: str, row: int, step: int, generation: int) -> str:
    """The token of a wait; `SettingsInvalid` when there is no key to seal it with."""
    return keys.encrypt(msgspec.json.encode(WaitAddress(PURPOSE, operation, key, row, step, generation)))


def unseal(keys: SecretKeys, token: str) -> WaitAddress | None:
    """The wait that a token names; None when it is none of ours."""
    if len(token) > TOKEN_CHARS:
        return None
    try:
        found = msgspec.json.decode(keys.decrypt(token), type=WaitAddress)
    except (SecretsUnreadable, msgspec.MsgspecError, UnicodeError):
        return None
    return found if found.purpose == PURPOSE else None
