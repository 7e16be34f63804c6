"""Claiming a chunk may take long, because its rows are read again from a slow storage."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import pytest
from approvals import clean
from patience import HANG_S
from several import CALM, Item, shares_of, until

from penstock import Context, Pipeline, operation, step
from penstock.testing import Engine, engine


class SlowStorage:
    """Reading a file from this worker's storage lasts until it is let go; only rows that run are read by `open`."""

    def __init__(self, e: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads, self.is_let_go, self._open = 0, threading.Event(), e.worker.files.open
        monkeypatch.setattr(e.worker.files, "open", self.open)

    @contextmanager
    def open(self, stored: Any) -> Iterator[BinaryIO]:
        self.reads += 1
        assert self.is_let_go.wait(HANG_S)
        with self._open(stored) as stream:
            yield stream


@pytest.mark.parametrize("limit", [{"concurrency": 5}, {"rate": 50}], ids=str)
async def test_rows_whose_reading_takes_long_run_though_their_step_has_a_limit(
    database_url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, limit: dict[str, Any]
):
    ran: list[int] = []

    @operation("lean", track_row_data=False)
    class Lean(Pipeline[Item]):
        @step(**limit)
        async def call(self, row: Item, ctx: Context) -> None:
            ran.append(row.id)

    settings = CALM.model_copy(update={"chunk_rows": 10})
    async with engine([Lean], url=database_url, tmp_path=tmp_path, settings=settings) as e:
        made = await e.create(Lean, [{"id": n} for n in range(1, 4)])
        storage = SlowStorage(e, monkeypatch)
        working = asyncio.create_task(e.work_until_idle())
        await until(lambda: storage.reads == 1)
        for _ in range(5):
            await e.advance(1)
            await e.worker.look_round()
        held = await shares_of(e, made)
        storage.is_let_go.set()
        await working
        done = await e.operations.get(made.id)
        assert (done.status, sorted(ran), storage.reads) == ("Completed", [1, 2, 3], 1)
        assert len(held) == 1, "its units were ours all the time"
        for _ in range(5):
            await e.advance(1)
            await e.worker.look_round()
        assert await shares_of(e, made) == {}, "and they are given back when nothing is claimed"
        assert await clean(e) == []
