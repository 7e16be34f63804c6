"""A worker process that reads its files from an object store; it validates no row while there is a gate."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from pydantic import BaseModel

from penstock import Context, Penstock, Pipeline, operation, step
from penstock.settings import Settings


class Parcel(BaseModel):
    id: int
    city: str


@operation("ship")
class Ship(Pipeline[Parcel]):
    """Ship parcels."""

    async def validate_row(self, parcel: Parcel, meta: None) -> None:
        """Say that this process reads, and wait as long as there is a gate; the first chunk goes before it."""
        if parcel.id <= 1000:
            return
        place = Path(os.environ["PENSTOCK_TEST_PLACE"])
        (place / "met" / str(os.getpid())).touch()
        while (place / "gate").exists():  # noqa: ASYNC110  # opened by another process
            await asyncio.sleep(0.01)

    @step
    async def send(self, parcel: Parcel, ctx: Context) -> None:
        """Nothing to do."""


def settings(url: str, storage: str) -> Settings:
    # However slow the machine is, the lease is kept; a worker that is killed is missed at once on its own host.
    return Settings(database_url=url, storage_url=storage, chunk_rows=500, lease_s=3600, stall_s=3600)


async def main(url: str, storage: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    opened = Penstock.open(operations=[Ship], settings=settings(url, storage))
    async with opened as penstock, penstock.worker() as worker:
        print("ready", flush=True)
        await worker.run(stop)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
