"""A process that delivers what is due, and may be killed at a point."""

from __future__ import annotations

import asyncio

from penstock import Penstock
from penstock.clock import ManualClock
from penstock.failpoints import arm_from_environment


async def main() -> None:
    clock = ManualClock()
    clock.advance(60)
    async with Penstock.open(clock=clock) as penstock:
        arm_from_environment()
        await penstock.events.deliver()


asyncio.run(main())
