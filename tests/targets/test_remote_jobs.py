"""`BulkDelete` of the test remote is a job: it is answered at once and done later, once."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from dataverse import DataverseServer, Table
from dataverse.caller import Caller

TABLES = (Table("account", "accounts"),)
ID = str(uuid.UUID(int=7))


def query(*ids: str, table: str = "account", column: str = "accountid") -> dict[str, Any]:
    condition = {"AttributeName": column, "Operator": "In", "Values": [{"Value": id} for id in ids]}
    return {"JobName": "tidy up", "QuerySet": [{"EntityName": table, "Criteria": {"Conditions": [condition]}}]}


async def test_a_job_waits_runs_once_and_tells_when_it_is_done():
    async with DataverseServer(TABLES, runs_jobs_at_once=False) as server, Caller(server) as caller:
        await caller.send("POST", "accounts", {"accountid": ID})
        job = (await caller.send("POST", "BulkDelete", query(ID, str(uuid.uuid4())))).json()["JobId"]
        assert (await caller.send("GET", f"asyncoperations({job})")).json()["statuscode"] == 0
        assert len(server.rows("account")) == 1
        server.run_jobs()
        assert (await caller.send("GET", f"asyncoperations({job})")).json()["statuscode"] == 30
        assert server.rows("account") == []
        await caller.send("POST", "accounts", {"accountid": ID})
        server.run_jobs()
        assert len(server.rows("account")) == 1


async def test_jobs_run_at_once_unless_told_otherwise():
    async with DataverseServer(TABLES) as server, Caller(server) as caller:
        await caller.send("POST", "accounts", {"accountid": ID})
        await caller.send("POST", "BulkDelete", query(ID))
        assert server.rows("account") == []


@pytest.mark.parametrize(
    "body, status",
    [(query(ID, table="lead"), 404), (query(ID, column="name"), 400), ({"QuerySet": []}, 400)],
)
async def test_jobs_that_mean_nothing_are_refused(body: dict[str, Any], status: int):
    async with DataverseServer(TABLES) as server, Caller(server) as caller:
        assert (await caller.send("POST", "BulkDelete", body)).status_code == status
        assert (await caller.send("GET", f"asyncoperations({ID})")).status_code == 404
