"""`verify` while work goes on: of each operation when it has ended, and of any other at random."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field

from sqlalchemy import select

from penstock import Penstock
from penstock.errors import NotFound, Unavailable
from penstock.operations.states import OPERATION
from penstock.operations.tables import operations

from .oracle import Finding

__all__ = ["Proofs"]

EVERY_S = 0.3
BETWEEN = 0.3  # how often an operation is verified in between
# Whoever should have swept may have been killed or frozen; after the storm this counts too.
_LATER = "no_signal_is_left_waiting"


@dataclass
class Proofs:
    """Verifies until cancelled; every difference is told once."""

    penstock: Penstock
    rng: random.Random
    after: int = 0  # operations with lower numbers are of earlier rounds
    count: int = 0
    differences: dict[str, Finding] = field(default_factory=dict)  # by text
    _proven: set[tuple[str, int]] = field(default_factory=set)  # operation and revision

    @property
    def findings(self) -> list[Finding]:
        """What was found."""
        return list(self.differences.values())

    async def begin(self) -> None:
        """Leave out what is there already."""
        async with self.penstock.db.read() as tx:
            numbers = (await tx.execute(select(operations.c.number))).scalars().all()
        self.after = max(numbers, default=0)

    async def run(self) -> None:
        """Verify until cancelled; a database that is away is looked at later."""
        while True:
            with contextlib.suppress(Unavailable):
                await self.look()
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """Verify what has ended since, and now and then what goes on."""
        query = select(operations.c.id, operations.c.state, operations.c.revision)
        async with self.penstock.db.read() as tx:
            found = (await tx.execute(query.where(operations.c.number > self.after))).all()
        is_over = {(one.id, one.revision): OPERATION.is_settled(one.state) for one in found}
        for key in [key for key, over in is_over.items() if over and key not in self._proven]:
            self._proven.add(key)
            await self._verify(key[0])
        open_ones = [operation for (operation, _), over in is_over.items() if not over]
        if open_ones and self.rng.random() < BETWEEN:
            await self._verify(self.rng.choice(open_ones))

    async def _verify(self, operation: str) -> None:
        with contextlib.suppress(NotFound):
            report = await self.penstock.operations.verify(operation)
            self.count += 1
            for difference in report.differences:
                if difference.rule != _LATER:
                    finding = Finding("verify", f"in between: {difference}", operation)
                    self.differences.setdefault(str(finding), finding)
