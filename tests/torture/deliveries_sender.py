"""A process that writes and sends deliveries until it is killed; leases and pauses are short, so that much happens."""

from __future__ import annotations

import asyncio
import logging

from pydantic import BaseModel

from penstock import Context, Penstock, operation
from penstock.failpoints import arm_from_environment
from penstock.outbox import sender, verdicts

__all__ = ["parcels"]


class Parcel(BaseModel):
    name: str


@operation("parcels")
async def parcels(parcel: Parcel, ctx: Context) -> None: ...


async def main() -> None:
    """Tick for ever."""
    logging.getLogger("penstock").setLevel(logging.ERROR)
    sender.LEASE_MARGIN_S = 0.5
    verdicts.WAITS_S = (0.1,) * 9
    verdicts.ATTEMPTS_MAX = 10
    async with Penstock.open(operations=[parcels]) as penstock:
        arm_from_environment()
        while True:
            await penstock.events.tick()
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main())
