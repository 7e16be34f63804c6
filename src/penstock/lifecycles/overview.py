"""Every definition at a glance."""

from __future__ import annotations

from penstock.lifecycles.model import Version
from penstock.lifecycles.service import Lifecycles

__all__ = ["overview"]


async def overview(lifecycles: Lifecycles) -> list[tuple[Version, int]]:
    """The latest version of each definition, a draft where there is no other, and how many instances it has."""
    found = []
    for each in await lifecycles.definitions():
        known = await lifecycles.versions(each.id)
        latest = next((version for version in known if not version.is_draft), known[0] if known else None)
        if latest is not None:
            found.append((latest, await lifecycles.count(definition=each.id)))
    return found
