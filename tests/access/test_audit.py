"""The audit log: who did what stands in it exactly when it was done, and `verify` finds what was tampered with."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from pydantic import BaseModel
from sqlalchemy import delete, update

from penstock import Context, Pipeline, StepFailed, operation, step
from penstock.access.audit import Act, record
from penstock.access.model import Principal
from penstock.access.tables import audit_chains, audit_entries
from penstock.errors import Conflict, NoSuchWait
from penstock.testing import engine

ANA = Principal("ana", frozenset({"admin"}), tenant="acme")


class Paper(BaseModel):
    name: str


@operation("papers", row_key="name")
class Papers(Pipeline[Paper, None]):
    @step
    async def read(self, paper: Paper, ctx: Context[None]) -> None:
        if paper.name.startswith("bad"):
            raise StepFailed("unreadable")

    @step.signal(key="paper-{row.name}", timeout=60)
    async def approve(self, paper: Paper, ctx: Context[None]) -> None:
        """Somebody is asked."""


@pytest.fixture
async def e(database_url, tmp_path):
    async with engine([Papers], url=database_url, tmp_path=tmp_path) as made:
        yield made


@pytest.fixture
async def acme(e):
    return e.penstock.seen_by(ANA)


async def told(penstock):
    return [(entry.actor, entry.action) for entry in reversed((await penstock.audit.list()).items)]


async def test_what_was_done_to_an_operation_stands_in_the_log_of_its_tenant(e, acme):
    ops = acme.operations
    made = await ops.create("papers", file=b"name\na\nbad\n", file_name="p.csv")
    await e.work_until_idle()
    await ops.pause(made.id, cause="lunch")
    await ops.resume(made.id)
    await e.work_until_idle()
    await acme.signals.complete(made.id, "paper-a")
    await e.work_until_idle()
    await ops.retry(made.id)
    await e.work_until_idle()
    await ops.edit_row(made.id, 2, {"name": "b"})
    await e.work_until_idle()
    await ops.cancel(made.id)
    actions = ["create", "pause", "resume", "signal", "retry", "edit", "cancel"]
    assert await told(acme) == [("ana", f"operation.{action}") for action in actions]
    assert {entry.subject for entry in (await acme.audit.list()).items} == {made.id}
    assert [entry.details for entry in (await acme.audit.list(subject=made.id)).items if entry.details][-2] == {
        "cause": "lunch"
    }
    assert await told(e.penstock) == []  # the tenant without a name
    assert (await e.operations.verify()).is_clean


async def test_what_changed_nothing_is_not_told_of(e, acme):
    made = await acme.operations.create("papers", file=b"name\na\n", file_name="p.csv")
    await acme.operations.cancel(made.id)
    await acme.operations.cancel(made.id)
    for refused in (acme.operations.retry(made.id), acme.signals.complete(made.id, "paper-a")):
        with pytest.raises((Conflict, NoSuchWait)):
            await refused
    assert await told(acme) == [("ana", "operation.create"), ("ana", "operation.cancel")]


async def test_keys_that_are_made_and_revoked_are_told_of_without_their_secret(e):
    made, text = await e.penstock.keys.create("ci", tenant="acme", lasts=timedelta(days=1), actor="ben")
    await e.penstock.keys.revoke(made.id, actor="cyd")
    await e.penstock.keys.revoke(made.id, actor="cyd")
    log = (await e.penstock.audit.list(tenant="acme")).items
    assert [(entry.actor, entry.action, entry.subject) for entry in log] == [
        ("cyd", "key.revoke", made.id),
        ("ben", "key.create", made.id),
    ]
    assert text.rpartition("_")[2] not in repr(log)


async def test_signals_that_come_together_are_told_of_by_sender(e, acme):
    made = await acme.operations.create("papers", file=b"name\na\nb\nc\n", file_name="p.csv")
    await e.work_until_idle()
    calls = [acme.signals.complete(made.id, f"paper-{name}", actor=by) for name, by in ("ax", "by", "cx")]
    await asyncio.gather(*calls)
    log = [entry for entry in (await acme.audit.list()).items if entry.action == "operation.signal"]
    assert {entry.actor for entry in log} == {"x", "y"}
    assert sum(len(entry.details["signals"]) for entry in log) == 3
    assert "paper-" not in repr(log)


async def test_many_who_write_at_once_make_one_chain(e):
    async def act(n):
        async def work(tx):
            await record(e.penstock.db, tx, Act("busy", f"a{n}", "test", "x", {"n": n}))

        await e.penstock.db.transaction(work)

    await asyncio.gather(*(act(n) for n in range(8)))
    page = await e.penstock.audit.list(tenant="busy", limit=3)
    rest = await e.penstock.audit.list(tenant="busy", cursor=page.next_cursor)
    assert [entry.sequence for entry in (*page.items, *rest.items)] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert [fault async for fault in e.penstock.audit.faults()] == []


TAMPERING = {
    "changed": update(audit_entries).where(audit_entries.c.sequence == 2).values(actor="nobody"),
    "removed": delete(audit_entries).where(audit_entries.c.sequence == 2),
    "cut": delete(audit_entries).where(audit_entries.c.sequence == 3),
    "all": delete(audit_entries),
    "chain": delete(audit_chains),
    "details": update(audit_entries).where(audit_entries.c.sequence == 1).values(details={"name": "x"}),
    "erased": update(audit_entries).where(audit_entries.c.sequence == 1).values(details=None, salt=None),
}


class Undone(Exception):
    pass


async def faults_after(e, statement):
    try:
        async with e.penstock.db.write() as tx:
            await tx.execute(statement)
            found = [fault async for fault in e.penstock.audit.faults_in(tx)]
            raise Undone
    except Undone:
        return found


async def test_verify_finds_each_way_to_tamper_with_the_log(e):
    keys = [(await e.penstock.keys.create(f"k{n}"))[0] for n in range(3)]
    assert len(keys) == 3
    assert (await e.operations.verify()).is_clean
    for way, statement in TAMPERING.items():
        assert await faults_after(e, statement), way
    assert (await e.operations.verify()).is_clean


async def test_an_end_that_was_kept_elsewhere_shows_that_the_log_was_not_made_anew(e):
    await e.penstock.keys.create("one")
    kept = await e.penstock.audit.end()
    await e.penstock.keys.create("two")
    assert await e.penstock.audit.has(*kept)
    assert not await e.penstock.audit.has(kept[0], "0" * 64)
