"""An `async def` step that blocks the event loop: it is named, and a worker that is a guest ends nobody's process."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from patience import HANG_S
from pydantic import BaseModel

from penstock import BatchContext, Context, Penstock, Pipeline, operation, step
from penstock.settings import Settings
from penstock.testing import json_lines


class Item(BaseModel):
    id: int


def items(count: int) -> bytes:
    return json_lines([{"id": n} for n in range(1, count + 1)])


class Heard(logging.Handler):
    """Log records that have all these words, and whether one has come."""

    def __init__(self, *words: str) -> None:
        super().__init__()
        self.words, self.records, self.has_come = words, list[logging.LogRecord](), threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if all(word in record.getMessage() for word in self.words):
            self.records.append(record)
            self.has_come.set()

    def block(self) -> None:
        """Keep this thread until it was heard."""
        assert self.has_come.wait(HANG_S)


@contextmanager
def heard(*words: str) -> Iterator[Heard]:
    handler = Heard(*words)
    logger = logging.getLogger("penstock")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)


def settings(database_url: str, tmp_path: Path, **given: Any) -> Settings:
    places = {"database_url": database_url, "storage_url": str(tmp_path / "files")}
    return Settings(**{"lease_s": 3600, "stall_s": 3600, "stall_warning_s": 0.05, **places, **given})


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("manner", ["step", "batch", "check", "when", "validate_row"])
async def test_a_step_that_blocks_the_loop_is_named_with_its_row_and_line(
    database_url: str, tmp_path: Path, manner: str
):
    with heard("blocked the event loop") as warning:

        def block(here: str, row: Item) -> None:
            if here == manner and row.id == 2:
                warning.block()

        @operation("slow")
        class Slow(Pipeline[Item]):
            async def validate_row(self, row: Item, metadata: None) -> None:
                block("validate_row", row)

            @step
            async def count(self, row: Item, ctx: Context) -> None:
                block("step", row)

            @count.when
            async def is_counted(self, row: Item, ctx: Context) -> bool:
                block("when", row)
                return True

            @step.batch()
            async def count_many(self, rows: list[Item], ctx: BatchContext) -> None:
                for row in rows:
                    block("batch", row)

            @step.poll(every=1, timeout=60)
            async def ask(self, row: Item, ctx: Context) -> None: ...

            @ask.check
            async def has_come(self, row: Item, ctx: Context) -> bool:
                block("check", row)
                return True

        async with Penstock.open(operations=[Slow], settings=settings(database_url, tmp_path)) as penstock:
            made = await penstock.operations.create(Slow, file=items(3), file_name="a.jsonl")
            done = await penstock.run_until_done(made.id)
    assert done.status == "Completed"
    (record,) = warning.records
    name, row = {
        "step": ("count", 2),
        "when": ("count", 2),
        "batch": ("count_many", 1),
        "check": ("ask", 2),
        "validate_row": ("validation", None),
    }[manner]
    named = name + ("" if row is None else f" of row {row}") + (" and 2 more" if manner == "batch" else "")
    assert record.getMessage().startswith(f"{named} of operation slow ({made.id}), at {__file__}:")
    assert (record.levelname, vars(record)["operation_id"], vars(record)["step_name"]) == ("WARNING", made.id, name)
    assert vars(record).get("row_number") == row


@pytest.mark.databases("sqlite")
async def test_a_step_that_blocks_for_every_row_is_named_once(database_url: str, tmp_path: Path):
    with heard("blocked the event loop") as warning:

        @operation("slow")
        async def slow(row: Item, ctx: Context) -> None:
            if row.id == 1:
                warning.block()
            else:
                time.sleep(0.2)  # noqa: ASYNC251 - this is what must not be said again

        async with Penstock.open(operations=[slow], settings=settings(database_url, tmp_path)) as penstock:
            made = await penstock.operations.create(slow, file=items(4), file_name="a.jsonl")
            await penstock.run_until_done(made.id)
    assert len(warning.records) == 1


@pytest.mark.databases("sqlite")
async def test_a_plain_step_that_makes_progress_on_its_thread_does_not_hide_one_that_blocks_the_loop(
    database_url: str, tmp_path: Path
):
    beats = threading.Event()
    with heard("blocked the event loop") as warning:

        @operation("both", max_row_concurrency=2)
        class Both(Pipeline[Item]):
            @step
            def busy(self, row: Item, ctx: Context) -> None:
                end = time.monotonic() + HANG_S
                while row.id == 1 and not warning.has_come.is_set() and time.monotonic() < end:
                    ctx.heartbeat()
                    beats.set()

            @step
            async def blocking(self, row: Item, ctx: Context) -> None:
                if row.id == 2:
                    assert beats.wait(HANG_S)
                    warning.block()

        given = settings(
            database_url, tmp_path, chunk_rows=1, stall_warning_s=0.5
        )  # one row is still at the first step
        async with Penstock.open(operations=[Both], settings=given) as penstock:
            made = await penstock.operations.create(Both, file=items(2), file_name="a.jsonl")
            await penstock.run_until_done(made.id)
    assert {vars(record)["step_name"] for record in warning.records} == {"blocking"}


async def test_a_guest_whose_loop_is_blocked_loses_its_rows_to_others_and_goes_on_afterwards(
    database_url: str, tmp_path: Path
):
    ran: list[str] = []
    taken = threading.Event()
    with heard("slow of row 1 of operation slow", "its lease is not renewed") as stalled:

        @operation("slow")
        async def slow(row: Item, ctx: Context) -> None:
            ran.append(threading.current_thread().name)
            if len(ran) == 1:
                stalled.block()
                assert taken.wait(HANG_S)
            else:
                taken.set()

        given = settings(database_url, tmp_path, stall_s=0.2, lease_s=1, lease_margin_s=0.2, heartbeat_s=0.1)

        async def other(operation: str) -> None:
            async with Penstock.open(operations=[slow], settings=settings(database_url, tmp_path)) as penstock:
                await penstock.run_until_done(operation, every_s=0.01)

        def help_out(operation: str) -> None:
            stalled.block()
            asyncio.run(other(operation))

        async with Penstock.open(operations=[slow], settings=given) as penstock, penstock.worker() as worker:
            first = await penstock.operations.create(slow, file=items(1), file_name="a.jsonl")
            helper = threading.Thread(target=help_out, args=(first.id,), name="other")
            helper.start()
            stop = asyncio.Event()
            running = asyncio.create_task(worker.run(stop))
            async with asyncio.timeout(HANG_S):
                done = await penstock.operations.wait(first.id, every_s=0.01)
                await asyncio.to_thread(helper.join)
                second = await penstock.operations.create(slow, file=items(1), file_name="b.jsonl")
                after = await penstock.operations.wait(second.id, every_s=0.01)
            history = await penstock.operations.history(first.id, row=1)
            stop.set()
            await running
    assert (done.status, after.status) == ("Completed", "Completed")
    assert ran == ["MainThread", "other", "MainThread"]
    assert "owner_lost" in [line.event for line in history.items]
