"""What a store of keys can do. Each verb is one compare-and-set; what to do when is decided by `Idempotency`."""

from __future__ import annotations

from typing import Protocol

from penstock.idempotency.model import Address, Entry, Seen, Wish

__all__ = ["Store"]


class Store(Protocol):
    """Keys and their entries, shared by all processes. `Unavailable` when it cannot be reached.

    A repeat of a call whose answer was lost does no harm: every claim has a token of its own.
    """

    async def insert(self, address: Address, wish: Wish) -> Seen | None:
        """Set an entry if there is none; None when that was done, else what is there.

        After a try whose answer was lost, that may be ours.
        """

    async def take_over(self, address: Address, seen: Entry, wish: Wish) -> bool:
        """Make a key ours whose owner's lease has run out; False when the entry is no longer the one we saw."""

    async def renew(self, address: Address, owner: str, lease_us: int) -> bool:
        """Extend the owner's lease; False when the key is no longer in progress under this token."""

    async def move(
        self,
        address: Address,
        event: str,
        *,
        owner: str,
        only_due: bool = False,
        answer: bytes | None = None,
        retention_us: int = 0,
    ) -> bool:
        """Take the event if the key's state admits it and the token fits; `only_due`, if its time has come, too."""

    async def read(self, address: Address) -> Seen:
        """What is stored about a key."""

    async def sweep(self, limit: int) -> int:
        """Remove at most `limit` keys that nobody works on and that were kept for long enough; how many they were."""

    async def erase(self, scope: str, limit: int) -> int:
        """Remove the answers of at most `limit` completed keys of a caller; how many they were."""

    async def unsettled(self, limit: int) -> list[Entry]:
        """Keys whose owner's lease has run out, oldest first."""

    async def close(self) -> None:
        """Let go of what was opened for this store."""
