"""Which fault comes next: a pure choice from a seeded generator, led by what was covered least."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["CLIENT_POINTS", "UNKILLED", "WORKER_POINTS", "Fault", "Menu", "both_sides"]

# Every transaction of the engine, by who makes it.
WORKER_POINTS = (
    "abandon", "announce", "append", "beat", "broke", "bury", "claim", "close", "drain", "flush", "give_back",
    "give_back_reading", "give_up", "hand_over", "intent", "late_result", "leave", "pass_on", "reject", "release",
    "resumed", "seal", "settle", "share", "suspect", "sweep", "take", "trouble",
)  # fmt: skip
CLIENT_POINTS = ("cancel_requested", "create", "paused", "resumed", "retry", "retry_rows", "signal", "wake")
# Only where the answer to a COMMIT was lost or the schema is made: seen now and then, never asked for.
# A log is folded only when it is long. No step here has a limit (see `limits`), and nothing is in trouble.
UNKILLED = frozenset({"fold", "give_up", "late_result", "share", "transaction", "trouble"})

Kind = Literal["point", "kill", "freeze", "stop", "none"]


def both_sides(names: tuple[str, ...]) -> list[str]:
    """The points before and after each COMMIT."""
    return [f"{name}:{side}" for name in names for side in ("before", "after")]


@dataclass(frozen=True)
class Fault:
    """What will befall one process: death at a point's n-th hit, or a signal after some seconds."""

    kind: Kind
    point: str | None = None
    after_s: float = 0.0
    for_s: float = 0.0

    def __str__(self) -> str:
        return self.point or f"{self.kind} after {self.after_s:.2f} s"


@dataclass
class Menu:
    """The faults still wanted. Points that killed least come first, so that all are reached."""

    rng: random.Random
    lease_s: float
    kills: int
    freezes: int
    stops: int
    asked: Counter[str] = field(default_factory=Counter)

    def for_worker(self) -> Fault:
        """The fate of the next worker."""
        fates = ["point"] * 6 + ["kill"] * 3 if self.kills > 0 else ["none"]
        fates += ["freeze"] if self.freezes > 0 else []
        fates += ["stop"] if self.stops > 0 else []
        match self.rng.choice(fates):
            case "point":
                return Fault("point", self._point(WORKER_POINTS), after_s=2.0)
            case "kill":
                return Fault("kill", after_s=self.rng.expovariate(1.2))
            case "freeze":
                return Fault("freeze", after_s=0.3 + self.rng.random(), for_s=self.lease_s * self.rng.uniform(0.8, 2))
            case "stop":
                return Fault("stop", after_s=0.2 + self.rng.random() * 1.5)
        return Fault("none")

    def for_client(self) -> Fault:
        """The fate of the next client."""
        if self.kills > 0 and self.rng.random() < 0.6:
            return Fault("point", self._point(CLIENT_POINTS), after_s=10.0)
        return Fault("kill", after_s=10.0) if self.kills > 0 else Fault("none")

    def _point(self, names: tuple[str, ...]) -> str:
        points = [point for point in both_sides(names) if point.partition(":")[0] not in UNKILLED]
        least = sorted(points, key=lambda point: (self.asked[point], self.rng.random()))[:8]
        chosen = self.rng.choice(least)
        self.asked[chosen] += 1
        return f"{chosen}={1 + min(8, int(self.rng.expovariate(0.6)))}"
