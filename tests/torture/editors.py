"""Callers who correct rows of the same operation at once, each another field of whichever row comes to hand."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

from penstock.errors import PenstockError

from .kinds import Revision, revision_rows
from .ordeal import csv_of

if TYPE_CHECKING:
    from .client_main import Client

__all__ = ["edit_others", "tend_revision"]

EDITORS = 3
EDITS_MAX = 12
FIELDS = ("note", "tag")
LOOKED_AT = 5  # of the newest operations, which others made


async def tend_revision(client: Client, rng: random.Random) -> None:
    """One operation whose rows fail until they were corrected or retried often enough."""
    rows = revision_rows(rng)
    made = await client.create(Revision, csv_of(rows), len(rows))
    if made is None:
        return
    async with asyncio.TaskGroup() as group:
        for _ in range(EDITORS):
            group.create_task(_edit(client, made, len(rows), random.Random(rng.random())))
        group.create_task(client.await_end(made))
    for _ in range(3):
        if not await client.retry_all(made):
            return
        await client.await_end(made)


async def _edit(client: Client, operation: str, rows: int, rng: random.Random) -> None:
    """Correct rows one after the other; few rows, so that others are at the same one."""
    for _ in range(EDITS_MAX):
        await asyncio.sleep(rng.random() * 0.5)
        await client.edit(operation, rng.randint(1, rows), rng.choice(FIELDS), rng)


async def edit_others(client: Client, rng: random.Random) -> None:
    """Correct or retry rows of operations that other processes look after, for ever."""
    operations = client.penstock.operations
    while True:
        await asyncio.sleep(rng.random())
        with contextlib.suppress(PenstockError):
            found = (await operations.list(name="revision", limit=LOOKED_AT)).items
            for one in rng.sample(found, min(1, len(found))):
                await asyncio.sleep(rng.random() * 0.2)
                if rng.random() < 0.8:
                    await client.edit(one.id, rng.randint(1, max(1, one.rows_read)), rng.choice(FIELDS), rng)
                else:
                    await client.retry_row(one.id, rng.randint(1, max(1, one.rows_read)))
