"""What tests of planted faults share: the operation they damage, and how it is looked at afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from approvals import Calls, approvals, clean

from penstock import failpoints
from penstock.operations.model import Operation
from penstock.settings import Settings
from penstock.testing import Engine, engine

SMALL = Settings(chunk_rows=2)
SHARED = "desk-{row.desk}"
DONE, WAIT = "Completed", "WaitingForCompletion"

both = pytest.mark.parametrize("weak", [False, True], ids=["as it is", "planted"])


@asynccontextmanager
async def office(folder: Path, *, key: str = "paper-{row.code}", url: str | None = None) -> AsyncIterator[Engine]:
    async with engine([approvals(Calls(), key=key)], tmp_path=folder, url=url, settings=SMALL) as e:
        await e.advance(20)  # somebody has been here to sweep
        yield e


async def parked(e: Engine, rows: list[dict[str, str]]) -> Operation:
    made = await e.create("approvals", rows)
    await e.work_until_idle()
    return made


async def post_quietly(e: Engine, made: Operation, key: str) -> None:
    """Store a signal as a caller that dies before it wakes anybody."""

    def die(point: str) -> None:
        if point == "signal:after":
            raise ConnectionError

    with failpoints.armed(die), pytest.raises(ConnectionError):
        await e.penstock.signals.complete(made.id, key)


async def overlooked(e: Engine) -> bool:
    """Whether `verify` finds a row that waits beside its signal, once two sweeps should have been."""
    await e.advance(11)
    return any("has long been there" in text for text in await clean(e))
