"""How much is measured: enough to trust in twenty minutes, a glance, or everything in an hour."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

__all__ = ["DEFAULT", "FULL", "QUICK", "Sizes"]


def _hundreds(rows: float) -> int:
    return max(100, round(rows / 100) * 100)


@dataclass(frozen=True)
class Sizes:
    """Rows and repetitions; rows come in hundreds, of which one is bad.

    `repeat` holds for the main job and the peers, `again` for what is compared with Penstock itself.
    """

    repeat: int
    again: int
    main: int
    script: int
    chunks: int
    row_tasks: int
    row_chains: int
    workflows: int
    shapes: int
    sleeping: int
    retry: int
    signals: int
    paced: int
    queried: int
    queries: int
    starts: int
    scaling: tuple[int, ...]
    streaming: tuple[int, ...]
    throttled_s: int
    sent: int
    sent_singly: int
    moves: int
    moves_singly: int
    upserted: int

    def repeated(self, times: int) -> Sizes:
        """The same, measured so often."""
        return dataclasses.replace(self, repeat=times, again=times)

    def scaled(self, rows: int) -> Sizes:
        """The same with `rows` for the main job, and everything else in proportion."""
        share = rows / self.main
        kept = {"repeat", "again", "starts", "queries", "scaling", "streaming", "throttled_s"}
        names = {field.name for field in dataclasses.fields(self)} - kept
        changed: dict[str, Any] = {name: _hundreds(getattr(self, name) * share) for name in names}
        for name in ("scaling", "streaming"):
            changed[name] = tuple(_hundreds(size * share) for size in getattr(self, name))
        return dataclasses.replace(self, **changed)


DEFAULT = Sizes(
    repeat=3,
    again=2,
    main=1_000_000,
    script=60_000,
    chunks=60_000,
    row_tasks=4_000,
    row_chains=1_500,
    workflows=400,
    shapes=100_000,
    sleeping=30_000,
    retry=100_000,
    signals=2_000,
    paced=1_000,
    queried=1_000_000,
    queries=200,
    starts=11,
    scaling=(10_000, 100_000, 1_000_000),
    streaming=(10_000, 100_000, 1_000_000, 5_000_000),
    throttled_s=90,
    sent=20_000,
    sent_singly=2_000,
    moves=20_000,
    moves_singly=2_000,
    upserted=200_000,
)
QUICK = dataclasses.replace(DEFAULT.scaled(100_000), repeat=1, again=1, queries=50, starts=3, throttled_s=20)
FULL = dataclasses.replace(
    DEFAULT,
    repeat=5,
    again=3,
    script=200_000,
    row_tasks=10_000,
    row_chains=4_000,
    workflows=1_000,
    sleeping=60_000,
    signals=5_000,
    queries=1_000,
    starts=21,
    scaling=(10_000, 100_000, 1_000_000, 10_000_000),
)
