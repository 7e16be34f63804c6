"""A process that moves thousands of instances is killed around a commit: none is lost, and none moves twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import forked
import pytest
from patience import HANG_S

from penstock import Machine, Penstock
from penstock.failpoints import KILL_VARIABLE

WORKER = Path(__file__).parent / "lifecycle_worker.py"
ORDER = Machine.of("order", ("New", "pay", "Paid"), settled=["Paid"])
ORDERS = 2500


def run(url: str, kill: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({KILL_VARIABLE: kill} if kill else {})}
    return subprocess.run(
        [*forked.python(), str(WORKER), url],
        env=environment, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip


@pytest.mark.covers("I-29", "LC-126")
@pytest.mark.parametrize("point, moved", [("before", 1000), ("after", 2000)])
async def test_what_a_killed_process_had_committed_stays_and_the_rest_is_moved_by_the_next(
    database_url: str, point: str, moved: int
):
    async with Penstock.open(database_url) as penstock:
        lifecycles = penstock.lifecycles
        await lifecycles.import_machine(ORDER)
        await penstock.deliveries.register("billing")
        await lifecycles.start_many("order", map(str, range(ORDERS)))
        killed = await asyncio.to_thread(run, database_url, f"lifecycle_trigger_many:{point}=2")
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        counted = {count.state: count.instances for count in await lifecycles.counts()}
        assert counted == {"New": ORDERS - moved, "Paid": moved}
        assert (await lifecycles.verify())[1] == []
        again = await asyncio.to_thread(run, database_url)
        assert (again.returncode, again.stdout) == (0, f"{moved}\n"), again.stderr
        assert await lifecycles.verify() == (ORDERS, [])
        assert [(each.state, each.instances) for each in await lifecycles.counts()] == [("Paid", ORDERS)]
        told = 0
        while claimed := await penstock.deliveries.claim("billing", limit=1000, lease=HANG_S * 10):
            told += len(claimed)
        assert told == ORDERS
