"""Callers who send signals again and again: early, late, of earlier generations, and a thousand where one would do."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from .kinds import Approval
from .ordeal import csv_of, make_rows

if TYPE_CHECKING:
    from .client_main import Client

__all__ = ["TIMES_MAX", "tend_approval"]

ROWS_MAX = 12
TIMES_MAX = 5
TRIES_MAX = 20
FLOODS = 0.2  # how often one key gets more signals than are looked at together
FLOOD_SIGNALS = (1010, 1300)
TOGETHER = 300
_numbers = count()


async def tend_approval(client: Client, rng: random.Random) -> None:
    """One operation whose rows wait for signals, and wait again when they are retried."""
    rows = make_rows(rng, rng.randint(2, ROWS_MAX), invalid=0.0, shared=0.15)
    made = await client.create(Approval, csv_of(rows), len(rows))
    if made is None:
        return
    if rng.random() < FLOODS:
        await _flood(client, made, rng.choice(rows)["gate"], rng)
    for generation in range(3):
        bad = 0.4 if generation == 0 else 0.15
        async with asyncio.TaskGroup() as group:
            for row in rows:
                if rng.random() < 0.85:
                    group.create_task(_send(client, made, row["gate"], bad, random.Random(rng.random())))
            group.create_task(_interrupt(client, made, random.Random(rng.random())))
            group.create_task(client.await_end(made))
        if not await client.retry_all(made):
            return


async def _send(client: Client, operation: str, gate: str, bad: float, rng: random.Random) -> None:
    """One piece of news, told one to five times, under an id or without: then each is a signal of its own."""
    fails, token = rng.random() < bad, _token(client)
    known_as = token if rng.random() < 0.5 else None
    await asyncio.sleep(rng.random() * rng.choice((0.0, 0.5, 2.0)))
    for nth in range(rng.randint(1, TIMES_MAX)):
        post = partial(client.post, operation, gate, token, known_as=known_as, fails=fails)
        detail: dict[str, Any] = {"key": gate, "id": known_as, "fails": fails, "nth": nth}
        await client.call("signal", operation, post, tries=TRIES_MAX, **detail)
        await asyncio.sleep(rng.random() * rng.choice((0.0, 0.0, 0.3, 2.0)))


async def _flood(client: Client, operation: str, gate: str, rng: random.Random) -> None:
    """Bad news about one row, a thousand times: one of them fails it, the others are stale from its retry on."""
    left = rng.randint(*FLOOD_SIGNALS)
    while left > 0:
        calls = []
        for _ in range(min(left, TOGETHER)):
            post = partial(client.post, operation, gate, _token(client), known_as=None, fails=True)
            calls.append(client.call("signal", operation, post, key=gate, id=None, fails=True, nth=1))
        await asyncio.gather(*calls)
        left -= TOGETHER


async def _interrupt(client: Client, operation: str, rng: random.Random) -> None:
    if rng.random() < 0.2:
        await asyncio.sleep(rng.random() * 2)
        await client.control("pause", operation)
        await asyncio.sleep(rng.random() * 2)
        await client.control("resume", operation)
    if rng.random() < 0.05:
        await client.control("cancel", operation)


def _token(client: Client) -> str:
    return f"{client.journal.who}-{next(_numbers)}"
