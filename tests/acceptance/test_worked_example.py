"""The document's example from upload to retry: five steps, a hundred rows, 92 successful, 8 failed, then the rest."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import forked
import pytest
from patience import HANG_S
from sqlalchemy import update

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

from device_provisioning import (  # noqa: E402
    DEVICES,
    OUT_OF_REACH,
    QUICK,
    UNDECIDED,
    DeviceProvisioning,
    approve,
    devices_csv,
    imei,
)

from penstock import Penstock  # noqa: E402
from penstock.db.connection import Connection  # noqa: E402
from penstock.operations.model import Operation  # noqa: E402
from penstock.operations.tables import chunks, row_records  # noqa: E402
from penstock.settings import Settings  # noqa: E402
from penstock.testing import Engine, engine  # noqa: E402

STEPS = ("activate_sim", "register_network", "push_profile", "carrier_approval", "notify_customer")
FAILED = sorted((*OUT_OF_REACH, *UNDECIDED))
ORDER = {"carrier": "acme"}
# However slow the machine is, no row's time is over before the test says so.
UNHURRIED = QUICK | {"push_profile.timeout": 3600, "carrier_approval.timeout": 3600}


def decided() -> list[int]:
    return [n for n in range(1, DEVICES + 1) if n not in UNDECIDED]


async def lines_of(penstock: Penstock, made: Operation) -> list[tuple[Any, ...]]:
    """The history of the retry, row by row; attempts that were retried within a step are not in question here."""
    page = await penstock.operations.history(made.id, limit=1000)
    return [
        (h.row, h.step, h.step_name, h.generation, h.event, h.error_type, h.data["imei"])
        for h in page.items
        if h.event == "retried"
    ]


HISTORY = [
    (row, 1, "register_network", 0, "retried", "StepFailure", imei(row))
    if row in OUT_OF_REACH
    else (row, 3, "carrier_approval", 0, "retried", "Timeout", imei(row))
    for row in FAILED
]


async def assert_first_run(penstock: Penstock, made: Operation) -> None:
    now = await penstock.operations.get(made.id)
    assert now.status == "CompletedWithErrors"
    assert (now.total_rows, now.processed_rows, now.successful_rows, now.failed_rows) == (100, 100, 92, 8)
    errors = (await penstock.operations.errors(made.id)).items
    assert [error.row for error in errors] == FAILED
    assert {error.row: (error.step_name, error.state, error.error_type) for error in errors} == {
        **dict.fromkeys(OUT_OF_REACH, ("register_network", "Failed", "StepFailure")),
        **dict.fromkeys(UNDECIDED, ("carrier_approval", "TimedOut", "Timeout")),
    }
    can = await penstock.operations.can_retry(made.id)
    assert (can.is_eligible, can.reasons, can.rows) == (True, (), 8)


async def assert_second_run(penstock: Penstock, made: Operation) -> None:
    done = await penstock.operations.get(made.id)
    assert done.status == "Completed"
    assert (done.total_rows, done.processed_rows, done.successful_rows, done.failed_rows) == (100, 100, 100, 0)
    assert (done.retry_count, done.generation, done.steps) == (1, 1, STEPS)
    assert await lines_of(penstock, made) == HISTORY
    rows = (await penstock.operations.rows(made.id, limit=1000)).items
    assert [row.generation for row in rows] == [int(row.number in FAILED) for row in rows]
    assert {step.state for row in rows for step in row.steps} == {"Completed"}
    late = await penstock.operations.row(made.id, UNDECIDED[0])
    assert late.steps[-1].output == f"acme: {imei(UNDECIDED[0])} is ready, approved by night desk"
    assert [event.target for event in await penstock.operations.events(made.id)] == [
        "Pending", "Validating", "Running", "CompletedWithErrors", "Retrying", "Running", "Completed",
    ]  # fmt: skip
    assert list(map(str, (await penstock.operations.verify(deep=True)).differences)) == []


async def go_on(e: Engine, made: Operation) -> None:
    await e.work_until_idle()
    while not (now := await e.operations.get(made.id)).is_settled:
        await e.skip_wait(now)
        await e.work_until_idle()


@pytest.mark.covers("SM-099", "SM-065", "SM-092", "SM-093", "SM-097", "SM-100", "SM-054", "SM-061")
async def test_the_example_from_upload_to_retry_in_one_process(database_url: str, tmp_path: Path):
    small = Settings(chunk_rows=30)
    async with engine([DeviceProvisioning], url=database_url, tmp_path=tmp_path, settings=small) as e:
        made = await e.create(DeviceProvisioning, devices_csv(), file_name="devices.csv", metadata=ORDER)
        assert (made.status, made.total_rows) == ("Pending", 0)
        await approve(e.penstock, made.id, decided())
        await go_on(e, made)
        await assert_first_run(e.penstock, made)
        third = await e.operations.row(made.id, 13)
        assert third.steps[1].attempt == 2, "the carrier was busy once"

        await e.advance(60)
        retry = await e.operations.retry(made.id)
        assert (retry.submitted, retry.skipped) == (8, 0)
        for device in FAILED:
            key = f"carrier-{imei(device)}"
            assert (await e.penstock.signals.complete(made.id, key, payload={"by": "night desk"})).outcome == "stored"
        await go_on(e, made)
        await assert_second_run(e.penstock, made)
        unclaimed = await e.penstock.signals.unclaimed(made.id)
        assert sorted(s.key for s in unclaimed) == sorted(f"carrier-{imei(row)}" for row in OUT_OF_REACH)


@contextmanager
def worker_process(url: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A worker in a process of its own, ready to work; it is stopped in good order at the end."""
    process = subprocess.Popen(
        [*forked.python(), str(HERE / "provisioning_worker.py"), url, str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        yield process
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=HANG_S)
    assert (process.returncode, errors) == (0, "")


@asynccontextmanager
async def api_side(url: str, folder: Path) -> AsyncIterator[Penstock]:
    """An engine that takes in, signals and retries, and never runs a row."""
    settings = Settings(database_url=url, storage_url=str(folder))
    async with Penstock.open(operations=[DeviceProvisioning], settings=settings) as penstock:
        yield penstock


async def settled(penstock: Penstock, made: Operation, *, undecided: int = 0) -> None:
    """Wait for the end; when only the undecided rows are left, their time is over."""
    async with asyncio.timeout(HANG_S):
        while not (now := await penstock.operations.get(made.id)).is_settled:
            if undecided and now.processed_rows == DEVICES - undecided:
                await penstock.db.transaction(partial(end_waits, penstock.db.now()))
            await asyncio.sleep(0.1)


async def end_waits(now: Any, tx: Connection) -> None:
    """As if the time for which rows wait were over."""
    waits = row_records.c.deadline.is_not(None)
    await tx.execute(update(chunks).where(chunks.c.is_open == 1).values(due_at=now))
    await tx.execute(update(row_records).where(waits).values(due_at=now, deadline=now))


@pytest.mark.covers("SM-099", "SM-065", "SG-023", "SG-025", "SG-026", "SM-020")
async def test_the_example_with_callers_and_worker_in_different_processes(database_url: str, tmp_path: Path):
    folder = tmp_path / "files"
    async with api_side(database_url, folder) as api:
        made = await api.operations.create(
            DeviceProvisioning, file=devices_csv(), file_name="devices.csv", metadata=ORDER, options=UNHURRIED
        )
        with worker_process(database_url, folder):
            await approve(api, made.id, decided())
            await settled(api, made, undecided=len(UNDECIDED))
        await assert_first_run(api, made)
        assert (await api.operations.retry(made.id)).submitted == 8
        for device in FAILED:
            await api.signals.complete(made.id, f"carrier-{imei(device)}", payload={"by": "night desk"})
        assert (await api.operations.get(made.id)).status == "Retrying", "nobody works, and nothing is lost"
        with worker_process(database_url, folder):
            await settled(api, made)
        await assert_second_run(api, made)


@pytest.mark.covers("SM-099")
def test_the_example_runs_as_a_script(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "device_provisioning.py")],
        cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert told[0] == "CompletedWithErrors: 92 successful, 8 failed"
    assert told[-1] == "Completed: 100 successful, 0 failed"
    assert "8 rows run again from the step that failed" in told
