"""A remote with the tables the Dataverse tests use, and a target that is opened on it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import httpx
from dataverse import Column, DataverseServer, Held, Lookup, Quota, Table
from patience import HANG_S

from penstock.clock import ManualClock
from penstock.targets import BulkExecutor, Pool
from penstock.targets.dataverse import DataverseOptions, DataverseTarget
from penstock.targets.model import BulkOptions, Mode, Verdict
from penstock.targets.target import Answer, Batch

__all__ = ["TABLES", "Impatient", "Remote", "executor", "opened", "outcomes"]

TABLES = (
    Table(
        "account",
        "accounts",
        columns=["name", Column("code", length_max=20), Column("part", "Integer"), Column("revenue", "Decimal")],
        keys={"code_key": ["code"], "code_part_key": ["code", "part"]},
        lookups=[Lookup("parentid", "account", "ParentAccount"), Lookup("contactid", "contact")],
        duplicate_rules=[["name"]],
    ),
    Table("contact", "contacts", columns=["fullname", "mail"], keys={"mail_key": ["mail"]}),
    Table("plain", "plains", columns=["name", "code"], keys={"code_key": ["code"]}),
    Table("reading", "readings", columns=["name", "code", Column("value", "Integer")], elastic=True),
    Table("unlisted", "unlisteds", columns=["name"], has_bulk=False),
)
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the remote is reached without; loading certificates takes long


class Remote:
    """The remote, the target on it, and a short way to send batches."""

    def __init__(self, server: DataverseServer, target: DataverseTarget) -> None:
        self.server = server
        self.target = target
        self._keys = count(1)

    def batch(
        self,
        mode: Mode,
        records: Sequence[Any],
        table: str = "account",
        options: BulkOptions | None = None,
        **more: Any,
    ) -> Batch:
        """A batch under a key of its own."""
        return Batch(table, mode, records, options or DataverseOptions(**more), f"batch-{next(self._keys)}")

    async def send(self, mode: Mode, records: Sequence[Any], table: str = "account", **options: Any) -> Answer:
        """Send one batch."""
        return await self.target.send(self.batch(mode, records, table, **options), "app-1")

    async def create(self, *records: Mapping[str, Any], table: str = "account", **options: Any) -> list[str]:
        """Create records and give their ids."""
        answer = await self.send(Mode.CREATE, records, table, **options)
        return [verdict.id for verdict in answer.verdicts]

    def named(self, table: str = "account") -> dict[str, dict[str, Any]]:
        """The rows that are there, by name."""
        return {row["name"]: row for row in self.server.rows(table)}


def executor(remote: Remote, **options: Any) -> BulkExecutor:
    """An executor that waits for nothing: the time it should wait passes at once."""
    clock = ManualClock()

    async def pass_over(seconds: float) -> None:
        clock.advance(seconds + 1e-6)  # a wait that ends just too early would be waited for again
        await asyncio.sleep(0)

    return BulkExecutor(remote.target, pool=Pool.of(remote.target, clock=clock, sleep=pass_over), **options)


def outcomes(answer: Answer | Sequence[Verdict]) -> list[str]:
    """The outcomes of an answer, as words."""
    verdicts = answer.verdicts if isinstance(answer, Answer) else answer
    return [verdict.outcome.value for verdict in verdicts]


class Impatient(httpx.AsyncHTTPTransport):
    """Loses its patience with a call that the remote holds, and with no other."""

    def __init__(self, held: Held) -> None:
        super().__init__()
        self._held = held

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = asyncio.ensure_future(super().handle_async_request(request))
        arrived = asyncio.ensure_future(self._held.arrived.wait())
        await asyncio.wait({answer, arrived}, return_when=asyncio.FIRST_COMPLETED)
        arrived.cancel()
        if answer.done():
            return answer.result()
        self._held.arrived.clear()
        answer.cancel()
        await asyncio.wait({answer})
        raise httpx.ReadTimeout("it took too long", request=request)


@asynccontextmanager
async def opened(
    users: Sequence[str] = ("app-1",), *, held: Held | None = None, **server_options: Any
) -> AsyncIterator[Remote]:
    """A running remote and a target on it, which gives a held call up."""
    quotas = server_options.pop("users", dict.fromkeys(users, Quota()))
    async with DataverseServer(TABLES, quotas, **server_options) as server:
        target = DataverseTarget(
            server.url,
            {user: server.credential(user) for user in quotas},
            client=lambda: httpx.AsyncClient(
                timeout=httpx.Timeout(HANG_S, pool=None),
                verify=NO_TLS,
                transport=Impatient(held) if held is not None else None,
            ),
        )
        try:
            yield Remote(server, target)
        finally:
            await target.aclose()
