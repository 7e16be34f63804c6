"""While a remote still builds what a table's calls need, one batch tries and the others wait for it."""

from __future__ import annotations

import asyncio

__all__ = ["Races"]


class Races:
    """Tables on which a batch met a race: whoever met it first tries alone until it is through or gives up."""

    def __init__(self) -> None:
        self._tries: dict[str, tuple[object, asyncio.Event]] = {}

    def begin(self, table: str, who: object) -> None:
        """`who` met a race; it holds the table unless someone already does."""
        self._tries.setdefault(table, (who, asyncio.Event()))

    def end(self, table: str, who: object) -> None:
        """`who` is through or has given up; does nothing unless it held the table."""
        held = self._tries.get(table)
        if held is not None and held[0] is who:
            del self._tries[table]
            held[1].set()

    def is_held_by(self, table: str, who: object) -> bool:
        """Whether `who` itself holds the table."""
        held = self._tries.get(table)
        return held is not None and held[0] is who

    def is_held(self, table: str, who: object) -> bool:
        """Whether someone else holds the table."""
        held = self._tries.get(table)
        return held is not None and held[0] is not who

    async def passage(self, table: str, who: object) -> None:
        """Wait until nobody else holds the table."""
        while (held := self._tries.get(table)) is not None and held[0] is not who:
            await held[1].wait()
