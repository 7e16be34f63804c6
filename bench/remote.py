"""The executor against remotes: a throttled one in another process, and one in memory that answers at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx

from penstock.targets import (
    Answer,
    Batch,
    BulkExecutor,
    BulkOptions,
    Outcome,
    Target,
    TargetError,
    UniformVerdicts,
    Verdict,
)
from penstock.targets.dataverse import DataverseTarget
from tests.dataverse import EndpointCredential

__all__ = ["bulk", "in_parts", "singly", "stream", "throttled"]

STOP_S = 10
FIRST_S = 60
TABLE, PLURAL = "account", "accounts"
AT_ONCE = 5


@contextmanager
def remote(users: int, *arguments: str) -> Iterator[str]:
    """The remote in a process of its own; its address."""
    names = [f"app-{n}" for n in range(1, users + 1)]
    command = [sys.executable, "-m", "tests.dataverse", "--dop", str(AT_ONCE), *arguments, "--users", *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.wait(STOP_S)


class Watched(DataverseTarget):
    """Notes when each call was answered, and which were refused."""

    def __init__(self, url: str, users: int) -> None:
        super().__init__(url, {f"app-{n}": EndpointCredential(url, f"app-{n}") for n in range(1, users + 1)})
        self.answered: list[float] = []
        self.refused: list[float] = []

    async def send(self, batch: Batch, source: str) -> Answer:
        try:
            answer = await super().send(batch, source)
        except TargetError:
            self.refused.append(time.monotonic())
            raise
        self.answered.append(time.monotonic())
        return answer


@asynccontextmanager
async def watched(url: str, users: int = 1) -> AsyncIterator[Watched]:
    target = Watched(url, users)
    try:
        yield target
    finally:
        await target.aclose()


def records(count: int | None = None) -> Iterator[dict[str, Any]]:
    """So many records, or records without end."""
    n = 0
    while n != count:
        yield {"name": f"account {n}", "size": n % 1000}
        n += 1


def throttled(
    *, file: str, rows: int, users: int, per_second: int, window_s: float, settle_s: float, seconds: float
) -> dict[str, Any]:
    """Calls a second and refusals, once the pace is found, against a remote with a published limit."""
    return asyncio.run(_throttled(users, per_second, window_s, settle_s, seconds))


async def _throttled(users: int, per_second: int, window_s: float, settle_s: float, seconds: float) -> dict[str, Any]:
    with remote(users, "--rate", str(per_second), "--window-s", str(window_s)) as url:
        async with watched(url, users) as target:
            options = BulkOptions(batch_size=2, deadline_s=settle_s + seconds, keep_ids=False)
            await BulkExecutor(target).create_multiple(TABLE, records(), options)
    first_s = target.answered[0]
    answered, refused = (
        [at_s - first_s for at_s in times if settle_s <= at_s - first_s < settle_s + seconds]
        for times in (target.answered, target.refused)
    )
    # Calls come in bursts, one for each window: only from one burst to another do they tell a rate.
    window_calls = round(per_second * window_s) * users
    calls = (len(answered) - 1) // window_calls * window_calls
    of_permitted = calls / (answered[calls] - answered[0]) / (per_second * users)
    return {
        "seconds": seconds,
        "calls": len(answered),
        "refused": len(refused),
        "refused_share": len(refused) / (len(answered) + len(refused)),
        "of_permitted": of_permitted,
        "first_minute": sum(at_s - first_s < FIRST_S for at_s in target.answered) / FIRST_S / (per_second * users),
    }


def bulk(file: str, rows: int) -> dict[str, Any]:
    """Create records by the bulk action."""
    return asyncio.run(_sent(Watched.send, rows))


def in_parts(file: str, rows: int) -> dict[str, Any]:
    """Create records as single operations in batch requests."""
    return asyncio.run(_sent(DataverseTarget.send_each, rows))


async def _sent(send: Any, rows: int) -> dict[str, Any]:
    with remote(1) as url:
        async with watched(url) as target:
            target.send = send.__get__(target)  # type: ignore[method-assign]
            began_s = time.monotonic()
            result = await BulkExecutor(target).create_multiple(TABLE, records(rows), BulkOptions(batch_size=100))
            seconds = time.monotonic() - began_s
    assert (result.success_count, len(set(result.created_ids or ()))) == (rows, rows)
    return {"rows": rows, "seconds": seconds, "calls": result.statistics.calls}


def singly(file: str, rows: int) -> dict[str, Any]:
    """Create records by hand, a request for each, as many at once as the remote recommends."""
    return asyncio.run(_singly(rows))


async def _singly(rows: int) -> dict[str, Any]:
    with remote(1) as url:
        token = await asyncio.to_thread(EndpointCredential(url, "app-1").get_token, f"{url}/.default")
        headers = {"Authorization": f"Bearer {token.token}", "OData-Version": "4.0"}
        left = records(rows)
        async with httpx.AsyncClient(base_url=f"{url}/api/data/v9.2", headers=headers) as client:

            async def work() -> None:
                for record in left:
                    (await client.post(f"/{PLURAL}", json=record)).raise_for_status()

            began_s = time.monotonic()
            await asyncio.gather(*(work() for _ in range(AT_ONCE)))
            seconds = time.monotonic() - began_s
    return {"rows": rows, "seconds": seconds, "calls": rows}


class AtOnce(Target):
    """Answers every batch at once, with new ids when they are wanted."""

    name = "memory"

    async def send(self, batch: Batch, source: str) -> Answer:
        ids = [str(uuid.UUID(int=hash((batch.key, n)) % 2**128)) for n in range(len(batch))]
        return Answer(UniformVerdicts(Verdict(Outcome.CREATED), len(batch), ids if batch.options.keep_ids else None))


def stream(file: str, rows: int, count: int, keep_ids: bool) -> dict[str, Any]:
    """Stream records through the executor to a remote that takes no time."""
    began_s = time.monotonic()
    options = BulkOptions(batch_size=1000, keep_ids=keep_ids)
    result = asyncio.run(BulkExecutor(AtOnce()).create_multiple(TABLE, records(count), options))
    assert result.success_count == count, "records went missing"
    return {"rows": count, "seconds": time.monotonic() - began_s}
