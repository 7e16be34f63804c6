"""Callers who pause, resume and cancel while a file is validated by several workers."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

from penstock.errors import PenstockError

from .kinds import Inspection, inspection_rows
from .ordeal import csv_of

if TYPE_CHECKING:
    from .client_main import Client

__all__ = ["tend_inspection"]

LOOK_S = 0.05
PICKED_UP_S = 20.0
CANCELLED = 0.1


async def tend_inspection(client: Client, rng: random.Random) -> None:
    """One file whose validation is interrupted again and again, to its end."""
    rows = inspection_rows(rng, client.penstock.settings.chunk_rows, client.rows_max // 2)
    made = await client.create(Inspection, csv_of(rows), len(rows))
    if made is None:
        return
    for _ in range(rng.randint(1, 6)):
        if not await _is_validating(client, made):
            break
        await asyncio.sleep(rng.random() * rng.choice((0.1, 0.5)))
        await client.control("pause", made)
        await asyncio.sleep(rng.random() * rng.choice((0.05, 0.6)))
        await client.control("resume", made)
    if rng.random() < CANCELLED:
        await client.control("cancel", made)
    await client.await_end(made)


async def _is_validating(client: Client, operation: str) -> bool:
    """Wait until somebody reads the file; False when that is over, or takes too long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PICKED_UP_S):
            while True:
                with contextlib.suppress(PenstockError):
                    status = (await client.penstock.operations.get(operation)).status
                    if status != "Pending":
                        return status == "Validating"
                await asyncio.sleep(LOOK_S)
    return False
