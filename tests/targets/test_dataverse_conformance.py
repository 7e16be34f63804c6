"""The Dataverse target keeps the contract of every target, on standard and on elastic tables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from dataverse import Column, DataverseServer, Drop, Table

from penstock.targets.conformance import CHECKS, Check, Subject
from penstock.targets.conformance.subject import Loss
from penstock.targets.dataverse import DataverseOptions, DataverseTarget
from penstock.targets.model import Mode, Record

COLUMNS = ("name", Column("code", length_max=10))
TABLES = (Table("account", "accounts", COLUMNS), Table("reading", "readings", COLUMNS, elastic=True))


def lose(server: DataverseServer, loss: Loss) -> None:
    for action in ("CreateMultiple", "DeleteMultiple", "$batch"):
        server.faults.add(Drop(is_applied=loss == "applied", is_late=loss == "late"), action=action, times=1)


@pytest.fixture(params=["account", "reading"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    table = request.param
    id_column = f"{table}id"
    async with DataverseServer(TABLES) as server:
        target = DataverseTarget(server.url, server.credential())

        async def read_back() -> Mapping[Any, Record]:
            # A call of its own comes after all that were sent before it, also those nobody waits for any more.
            await target.describe(table, Mode.DELETE, DataverseOptions(), "default")
            return {row[id_column]: row for row in server.rows(table)}

        yield Subject(
            target=target,
            table=table,
            make_record=lambda n: {
                id_column: f"7c0e8f00-0000-4000-8000-{n:012}",
                "name": f"name {n}",
                "code": f"c-{n}",
            },
            change=lambda record: {**record, "name": "changed"},
            id_of=lambda record: record[id_column],
            read_back=read_back,
            lose=lambda loss: lose(server, loss),
            spoil=lambda record: {**record, "code": "far too long a code"},
            options=DataverseOptions(client_made_ids=True, tell_created=True),
        )
        await target.aclose()


@pytest.mark.parametrize("check", CHECKS, ids=str)
async def test_the_dataverse_target_keeps_the_contract(check: Check, subject: Subject):
    await check(subject)
