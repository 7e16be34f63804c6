"""Notifications of one operation: by webhook, by e-mail and in Slack's JSON."""

from __future__ import annotations

import json
from email import message_from_string
from pathlib import Path

import pytest
from parcel_post import moves, post_office, sent, told
from receivers import Receiver, mail_server
from sqlalchemy import select

from penstock import Notify
from penstock.clock import from_micros
from penstock.errors import InvalidInput, SettingsInvalid
from penstock.outbox.tables import deliveries, subscriptions
from penstock.testing import Engine

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


async def test_who_is_named_for_an_operation_is_told_of_that_one_from_its_creation_on(e: Engine, hook: Receiver):
    await sent(e)
    mine = await sent(e, notify=[Notify(hook.url, on="every_change", secret=SECRET)])
    await sent(e)
    await e.deliver()
    assert moves(hook) == moves(hook, mine) == ["picked_up", "validated", "finished"]
    assert len((await e.penstock.webhooks.list(subject=mine)).items) == 1
    assert (await e.penstock.webhooks.list()).items == []


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize(
    ("on", "wanted"),
    [
        (("failed", "completed_with_errors"), [False, True]),
        ("completed", [True, False]),
        ("settled", [True, True]),
        ("cancelled", [False, False]),
    ],
)
async def test_triggers_say_of_what(e: Engine, hook: Receiver, on, wanted: list[bool]):
    notify = [Notify(f"slack+{hook.url}", on=on)]
    for weight in (1, 0):
        await sent(e, {"name": "a", "weight": weight}, notify=notify)
    await e.deliver()
    texts = [json.loads(request.body)["text"] for request in hook.requests]
    ends = ["Completed", "CompletedWithErrors"]
    assert [text.rpartition(": ")[2] for text in texts] == [end for end, yes in zip(ends, wanted, strict=True) if yes]


async def test_an_email_says_how_the_operation_ended(database_url: str, tmp_path: Path):
    async with (
        mail_server() as (port, mails),
        post_office(database_url, tmp_path, smtp_url=f"smtp://127.0.0.1:{port}", smtp_from="post@example.com") as e,
    ):
        notify = [Notify("mailto:ana@example.com", on="settled")]
        made = await sent(e, {"name": "a"}, {"name": "b", "weight": 0}, notify=notify)
        assert await e.deliver() == 1
    (mail,) = map(message_from_string, mails)
    assert (mail["To"], mail["From"]) == ("ana@example.com", "post@example.com")
    assert "".join(mail["Subject"].splitlines()) == f"[Penstock] operation send-parcels {made}: CompletedWithErrors"
    assert "failedRows: 1" in mail.get_payload()
    assert mail["Message-ID"].startswith("<operation-")


@pytest.mark.databases("sqlite")
async def test_emails_wait_for_a_worker_that_has_a_server_for_them(e: Engine):
    await sent(e, notify=[Notify("mailto:ana@example.com", on="settled")])
    assert await e.deliver() == 0
    (waiting,) = (await e.penstock.webhooks.deliveries()).items
    assert (waiting.state, waiting.attempts) == ("Pending", 0)


@pytest.mark.databases("sqlite")
async def test_a_notification_that_cannot_work_is_refused_and_nothing_is_stored(e: Engine, hook: Receiver):
    for notify, why in (
        (Notify(hook.url), "give the secret"),
        (Notify("mailto:ana@example.com", secret=SECRET), "not signed"),
        (Notify("http://10.0.0.1/"), "private or reserved"),
        (Notify("mailto:ana@example.com", on=()), "names triggers"),
    ):
        with pytest.raises(InvalidInput, match=why):
            await e.create("send-parcels", [{"name": "a"}], notify=[notify])
    assert (await e.operations.list()).items == []


@pytest.mark.databases("postgresql")
async def test_a_webhook_without_a_key_to_encrypt_its_secret_is_refused(database_url: str, tmp_path: Path, hook):
    async with post_office(database_url, tmp_path, secret_key=None) as e:
        with pytest.raises(SettingsInvalid, match="PENSTOCK_SECRET_KEY"):
            await e.penstock.webhooks.add(hook.url)


async def test_what_is_known_of_an_operation_that_is_removed_is_gone_from_the_outbox_too(e: Engine, hook: Receiver):
    await e.penstock.webhooks.add(hook.url)
    mine = await sent(e, notify=[Notify(hook.url, on="settled", secret=SECRET)])
    await e.deliver()
    assert len(told(hook)) == 5
    e.clock.advance(3600)
    assert (await e.operations.prune(from_micros(e.clock.now_us()))).operations == 1
    async with e.penstock.db.read() as tx:
        assert (await tx.execute(select(deliveries.c.subject).where(deliveries.c.subject == mine))).all() == []
        assert [row.subject for row in await tx.execute(select(subscriptions.c.subject))] == [None]


@pytest.mark.covers("X-15")
async def test_what_was_erased_is_not_told_any_more(e: Engine, hook: Receiver):
    await e.penstock.webhooks.add(hook.url)
    made = await e.create(
        "send-parcels",
        [{"name": "a"}],
        file_name="ana-secret.jsonl",
        created_by="ana-secret",
        notify=[Notify("mailto:ana-secret@example.com", on="cancelled")],
    )
    await e.operations.cancel(made.id, cause="ana-secret moved away")
    await e.penstock.events.writer.follow_log()
    await e.operations.erase(made.id)
    await e.deliver()
    assert [event["data"]["status"] for event in told(hook)] == ["Pending", "Cancelled"]
    assert (await e.penstock.webhooks.list(subject=made.id)).items == []
    assert not [request for request in hook.requests if b"ana-secret" in request.body]
    assert await e.penstock.events.verify() == []
