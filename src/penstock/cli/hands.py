"""More processes for one command: workers that live as long as it does."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.cli.session import Place

__all__ = ["more_hands"]


@asynccontextmanager
async def more_hands(place: Place, count: int) -> AsyncIterator[None]:
    """Run so many `penstock worker` processes beside this one; they are told to stop at the end, and waited for."""
    settings = place.settings()
    # Not on the command line, where every user of the machine could read a password.
    given = {"DATABASE_URL": settings.database_url, "APP": settings.app, "STORAGE_URL": settings.storage_url}
    environment = {**os.environ, "PENSTOCK_LOG_LEVEL": "warning"}
    environment |= {f"PENSTOCK_{name}": value for name, value in given.items() if value is not None}
    hands = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "penstock",
            "worker",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            env=environment,
        )
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for hand in hands:
            if hand.returncode is None:
                hand.terminate()
        await asyncio.gather(*(hand.wait() for hand in hands))
