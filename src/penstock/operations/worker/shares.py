"""How much of an operation's limits each of its workers may hold.

A limit has units: calls at once, or calls a second. A worker takes more units only as far as they are free, and gives
back only those that it does not use, so the units of all workers never add up to more than the limit, whoever comes
and goes, and in whatever order they look.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

__all__ = ["Share", "Units", "fair_part", "next_units"]

Units = Mapping[str, int]  # by the name of the limit


@dataclass(frozen=True, slots=True)
class Share:
    """The units that a worker holds; those that joined earlier come first."""

    worker: str
    joined_at: int
    units: Units


def fair_part(limits: Units, shares: Collection[Share], worker: str) -> dict[str, int]:
    """The units that a worker would hold if all had theirs.

    There is room for as many workers as the smallest limit has units: each of the first has at least one unit of every
    limit, later ones have none of any. So nobody loses its last unit to one who came later, and all units can be used.
    """
    order = sorted(shares, key=lambda share: (share.joined_at, share.worker))
    rank = next(rank for rank, share in enumerate(order) if share.worker == worker)
    room = min(len(order), *limits.values())
    if rank >= room:
        return dict.fromkeys(limits, 0)
    return {name: limit // room + int(rank < limit % room) for name, limit in limits.items()}


def next_units(limits: Units, shares: Collection[Share], worker: str, in_use: Units) -> dict[str, int]:
    """The units that a worker holds from now on.

    Up to its fair part it takes what is free; beyond it, it keeps what is in use.
    """
    fair = fair_part(limits, shares, worker)
    owned = next(share.units for share in shares if share.worker == worker)
    others = [share.units for share in shares if share.worker != worker]
    units = {}
    for name, limit in limits.items():
        mine, free = owned.get(name, 0), limit - sum(other.get(name, 0) for other in others)
        if mine < fair[name]:
            units[name] = max(mine, min(fair[name], free))
        else:
            units[name] = max(fair[name], min(mine, in_use[name]))
    return units
