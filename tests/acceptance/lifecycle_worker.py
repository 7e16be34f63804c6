"""A process that moves every order of a database in one call; it is killed where its environment says."""

from __future__ import annotations

import asyncio
import sys

from penstock import Penstock, failpoints
from penstock.lifecycles import Trigger


async def main(url: str) -> None:
    failpoints.arm_from_environment()
    async with Penstock.open(url) as penstock:
        lifecycles, cursor, orders = penstock.lifecycles, None, []
        while True:
            page = await lifecycles.instances(definition="order", cursor=cursor, limit=1000)
            orders += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
        triggers = [Trigger(order.guid, "pay", request_key=f"pay {order.reference}") for order in orders]
        outcomes = await lifecycles.trigger_many(triggers)
        assert all(outcome.applied for outcome in outcomes)
        print(sum(outcome.kind == "duplicate" for outcome in outcomes))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
