"""More processes for one command: workers that live as long as it does."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.cli.session import Place

__all__ = ["more_hands"]

WORDS_MAX = 2000


@asynccontextmanager
async def more_hands(place: Place, count: int) -> AsyncIterator[None]:
    """Run so many `penstock worker` processes beside this one; they are told to stop at the end, and waited for."""
    settings = place.settings()
    # Not on the command line, where every user of the machine could read a password.
    given = {"DATABASE_URL": settings.database_url, "APP": settings.app, "STORAGE_URL": settings.storage_url}
    environment = {**os.environ, "PENSTOCK_LOG_LEVEL": "warning"}
    environment |= {f"PENSTOCK_{name}": value for name, value in given.items() if value is not None}
    command = (sys.executable, "-m", "penstock", "worker")
    with tempfile.TemporaryFile() as words:
        hands = [
            await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=DEVNULL, stderr=words, env=environment)
            for _ in range(count)
        ]
        try:
            yield
        finally:
            for hand in hands:
                if hand.returncode is None:
                    hand.terminate()
            codes = await asyncio.gather(*(hand.wait() for hand in hands))
            if any(codes):
                words.seek(0)
                last = words.read()[-WORDS_MAX:].decode(errors="replace")
                print(f"penstock: a worker process ended with code {max(codes)}:\n{last}", file=sys.stderr)
