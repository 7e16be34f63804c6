"""A worker process for the example of the document: it runs until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from device_provisioning import DeviceProvisioning

from penstock import Penstock
from penstock.settings import Settings


async def main(url: str, folder: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    # However slow the machine is, the lease is kept.
    settings = Settings(database_url=url, storage_url=folder, chunk_rows=30, lease_s=3600, stall_s=3600)
    opened = Penstock.open(operations=[DeviceProvisioning], settings=settings)
    async with opened as penstock, penstock.worker() as worker:
        print("ready", flush=True)
        await worker.run(stop)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
