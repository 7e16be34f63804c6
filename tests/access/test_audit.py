"""The audit log: who did what stands in it exactly when it was done, and `verify` finds what was tampered with."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

import httpx
import pytest
from pydantic import BaseModel
from sqlalchemy import delete, update

from penstock import Context, Pipeline, StepFailed, operation, step
from penstock.access.audit import Act, record
from penstock.access.model import Principal
from penstock.access.sessions import Sessions
from penstock.access.tables import audit_chains, audit_entries
from penstock.api import Trusted, create_app
from penstock.errors import Conflict, NoSuchWait
from penstock.outbox.sender import Sender
from penstock.secret_keys import SecretKeys, new_key
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


DOOR = """{"definition": {"name": "door"}, "states": [{"name": "shut", "is_initial": true}, {"name": "open"}],
 "events": [], "transitions": [{"from": "shut", "event": "pull", "to": "open"}]}"""


async def test_what_was_done_to_files_stands_in_the_log(acme):
    blob = await acme.blobs.upload(b"name\na\n", file_name="p.csv")
    await acme.blobs.hold(blob.id, "a lawsuit")
    await acme.blobs.hold(blob.id, "a lawsuit")  # twice is once
    await acme.blobs.release(blob.id, "it is over")
    await acme.blobs.delete(blob.id, "not needed")
    await acme.blobs.delete(blob.id, "not needed")
    assert await told(acme) == [("ana", f"blob.{act}") for act in ("create", "hold", "release", "delete")]
    assert {event.actor for event in await acme.blobs.history(blob.id)} == {"ana"}


async def test_what_was_done_to_lifecycles_by_hand_stands_in_the_log_and_their_events_do_not(acme):
    await acme.lifecycles.import_text(DOOR)
    await acme.lifecycles.import_text(DOOR)  # changes nothing
    await acme.lifecycles.describe("door", "of the front")
    door = await acme.lifecycles.start("door")
    await acme.lifecycles.trigger(door.guid, "pull")
    await acme.lifecycles.suspend(door.guid)
    await acme.lifecycles.suspend(door.guid)
    await acme.lifecycles.resume(door.guid)
    await acme.lifecycles.force(door.guid, "shut", cause="it jams")
    await acme.lifecycles.change_data(door.guid, {"oiled": True})
    await acme.lifecycles.delete(door.guid, force=True)
    await acme.lifecycles.delete_definition("door")
    by_hand = ["suspend", "resume", "force", "change_data", "delete"]
    acts = ["import", "describe", *(f"instance.{act}" for act in by_hand), "delete"]
    assert await told(acme) == [("ana", f"lifecycle.{act}") for act in acts]


async def test_in_a_transaction_of_the_callers_the_log_is_written_last_and_only_if_it_commits(e, acme):
    await acme.lifecycles.import_text(DOOR)
    one, two = [await acme.lifecycles.start("door") for _ in range(2)]
    for error, before in ((None, 1), (Undone, 5)):
        with suppress(Undone):
            async with acme.transaction() as tx:
                for door in (one, two):
                    await acme.lifecycles.force(door.guid, "open", cause="fire", tx=tx)
                    assert len((await tx.execute("SELECT * FROM penstock_audit_entry")).all()) == before
                    await acme.lifecycles.force(door.guid, "shut", cause="over", tx=tx)
                if error is not None:
                    raise error
        assert len(await told(acme)) == 5
    assert (await e.operations.verify()).is_clean


async def test_a_long_subject_is_shortened_and_found_by_its_whole_text(e):
    long = "a definition with a very long name " * 5

    async def work(tx):
        await record(e.penstock.db, tx, Act("", "a" * 500, "test", long), Act("", "ana", "test", long + "2"))

    await e.penstock.db.transaction(work)
    assert [entry.actor for entry in (await e.penstock.audit.list(subject=long + "2")).items] == ["ana"]
    assert (await e.penstock.audit.list(subject=long)).items[0].actor.startswith("aaa")


async def test_logins_stand_in_the_log(e):
    made, text = await e.penstock.keys.create("ci", tenant="acme")
    sessions = Sessions(e.penstock.keys, SecretKeys(new_key()), clock=e.penstock.clock, lasts_s=60)
    assert await sessions.open(text) is not None
    assert await sessions.open(text[:-1]) is None
    log = (await e.penstock.audit.list(tenant="acme")).items
    assert [(entry.actor, entry.action, entry.subject) for entry in log][:1] == [("ci", "session.open", made.id)]
    assert len(log) == 2


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


async def test_an_end_is_looked_for_in_the_tenants_own_log(e, acme):
    await e.penstock.keys.create("one", tenant="acme")
    await e.penstock.keys.create("other", tenant="globex")
    theirs = await e.penstock.audit.end("globex")
    assert await acme.audit.has(*await acme.audit.end())
    assert not await acme.audit.has(*theirs, "globex")
    nobodys = e.penstock.audit.seen_by("")
    assert await nobodys.end("globex") == await e.penstock.audit.end("")


async def test_a_test_of_a_webhook_and_a_forgotten_idempotency_key_stand_in_the_log(e, acme, monkeypatch):
    async def sent_by_nobody(sender, delivery):
        """No process here can send mails, and to wait for one takes long."""

    monkeypatch.setattr(Sender, "send_one", sent_by_nobody)
    hook = await acme.webhooks.add("mailto:ops@example.com")
    await acme.webhooks.test(hook.subscription.id)
    transport = httpx.ASGITransport(create_app(e.penstock, access=Trusted(ANA)))
    async with httpx.AsyncClient(transport=transport, base_url="http://p.test") as http:
        headers = {"idempotency-key": "k"}
        await http.post("/api/webhook-deliveries/resend", json={"failed": True}, headers=headers)
        for was_forgotten in (True, False):
            assert (await http.delete("/api/idempotency/k")).json()["wasForgotten"] is was_forgotten
    actions = [action for _, action in await told(acme)]
    assert actions.count("webhook.test") == 1
    assert actions.count("idempotency-key.forget") == 1
    assert {actor for actor, _ in await told(acme)} == {ANA.name}
