"""Which fault comes next: a pure choice from a seeded generator, led by what was covered least."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Literal

__all__ = [
    "CLIENT_POINTS",
    "LIFECYCLE_CLIENT_POINTS",
    "LIFECYCLE_WORKER_POINTS",
    "MOODS",
    "UNKILLED",
    "WORKER_POINTS",
    "Fault",
    "Menu",
    "Switches",
    "both_sides",
]

# Every transaction of the engine, by who makes it.
WORKER_POINTS = (
    "abandon", "append", "beat", "broke", "claim", "claim_reading", "close", "drain", "flush", "give_back",
    "give_back_reading", "give_up", "hand_over", "intent", "late_result", "limit_shares", "pass_on",
    "register_worker", "reject", "release", "remove_dead_workers", "resumed", "seal", "settle", "suspect", "sweep",
    "trouble", "unregister_worker",
)  # fmt: skip
CLIENT_POINTS = ("cancel_requested", "create", "paused", "resumed", "retry", "retry_rows", "signal", "wake")
# Those of lifecycles, whose callers take part in campaigns and not in schedules.
LIFECYCLE_WORKER_POINTS = ("lifecycle_acknowledge", "lifecycle_claim", "lifecycle_fail", "lifecycle_trigger")
LIFECYCLE_CLIENT_POINTS = ("lifecycle_change", "lifecycle_migrate", "lifecycle_trigger", "lifecycle_trigger_many")
# Only where the answer to a COMMIT was lost or the schema is made: seen now and then, never asked for.
# A log is folded only when it is long; events are numbered when the oracle reads them; nothing is pruned there. No step
# has a limit (see `limits`), and trouble comes by chance.
# Those of files, webhooks and quotas have campaigns and tests of their own.
OF_OTHERS = (
    "blob_begin", "blob_clear", "blob_create", "blob_expire", "blob_let_go", "blob_missing", "blob_rejected",
    "blob_validated", "delivery_claim", "delivery_purge", "delivery_settle", "key_sweep", "outbox", "purge_blob",
    "quota_renew",
)  # fmt: skip
UNKILLED = frozenset(
    {
        *OF_OTHERS,
        "clock", "fold", "give_up", "late_result", "lifecycle_consumer", "lifecycle_import", "lifecycle_start",
        "lifecycle_timer", "limit_shares", "number_events", "prune", "prune_begin", "prune_end",
        "transaction", "trouble",
    }
)  # fmt: skip

GENTLE_S = (2.0, 12.0)

# Where workers die within a second, what else is done to them has little effect: so some rounds let them live longer,
# and in some nobody dies but by the other faults.
Mood = Literal["rough", "gentle", "quiet"]
MOODS: tuple[Mood, ...] = ("rough", "rough", "gentle", "quiet")
Kind = Literal["point", "kill", "freeze", "stop", "none"]


def both_sides(names: tuple[str, ...]) -> list[str]:
    """The points before and after each COMMIT."""
    return [f"{name}:{side}" for name in names for side in ("before", "after")]


@dataclass(frozen=True)
class Switches:
    """The sorts of trouble that a campaign makes beside deaths and freezes; each can be left out."""

    pauses: bool = True  # operations are paused and workers stopped in the middle of validation
    edits: bool = True  # several callers correct and retry the same rows at once
    repeats: bool = True  # signals are sent several times, also of earlier generations, and by the thousand
    cuts: bool = True  # connections break at COMMIT, where there is a server
    clocks: bool = True  # wall clocks are an hour off, and jump
    lifespans: bool = True  # lifespans fail, in some workers now and then, in some always
    proofs: bool = True  # `verify` while work goes on
    lifecycles: bool = True  # callers fight over instances of a lifecycle, workers fire its timers and do its effects

    @classmethod
    def names(cls) -> list[str]:
        """All of them."""
        return [each.name for each in fields(cls)]


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
    stop_share: int = 1
    mood: Mood = "rough"
    lifecycles: bool = False
    asked: Counter[str] = field(default_factory=Counter)

    def for_worker(self) -> Fault:
        """The fate of the next worker."""
        fates: list[Kind] = ["point"] * 6 + ["kill"] * 3 if self.kills > 0 else ["none"]
        fates += ["freeze"] if self.freezes > 0 else []
        fates += ["stop"] * self.stop_share if self.stops > 0 else []
        if self.mood == "quiet":
            fates = ["none"]
        elif self.mood == "gentle":
            fates = [fate for fate in fates if fate != "point"]
        kind, for_s = self.rng.choice(fates), self.lease_s * self.rng.uniform(0.8, 2)
        point = self._point(WORKER_POINTS, LIFECYCLE_WORKER_POINTS) if kind == "point" else None
        return Fault(kind, point, self._after_s(kind), for_s)

    def _after_s(self, kind: Kind) -> float:
        """How long a worker lives before something happens to it."""
        if self.mood == "gentle":
            return self.rng.uniform(*GENTLE_S)
        match kind:
            case "kill":
                return self.rng.expovariate(1.2)
            case "freeze":
                return 0.3 + self.rng.random()
            case "stop":
                return 0.2 + self.rng.random() * 1.5
        return 2.0  # to come to its point

    def for_client(self) -> Fault:
        """The fate of the next client."""
        if self.mood == "quiet" or self.kills <= 0:
            return Fault("none")
        if self.rng.random() < (0.3 if self.mood == "gentle" else 0.6):
            return Fault("point", self._point(CLIENT_POINTS, LIFECYCLE_CLIENT_POINTS), after_s=10.0)
        return Fault("kill", after_s=25.0 if self.mood == "gentle" else 10.0)

    def _point(self, names: tuple[str, ...], of_lifecycles: tuple[str, ...]) -> str:
        names = (*names, *of_lifecycles) if self.lifecycles else names
        points = [point for point in both_sides(names) if point.partition(":")[0] not in UNKILLED]
        least = sorted(points, key=lambda point: (self.asked[point], self.rng.random()))[:8]
        chosen = self.rng.choice(least)
        self.asked[chosen] += 1
        return f"{chosen}={1 + min(8, int(self.rng.expovariate(0.6)))}"
