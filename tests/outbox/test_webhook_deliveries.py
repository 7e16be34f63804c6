"""Webhooks: every move of an operation is told to who subscribed, in order, at least once, and signed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from parcel_post import moves, sent, told
from receivers import Answer, Receiver
from sqlalchemy import delete, select, update

from penstock.access.model import Principal
from penstock.blobs.tables import rows as blobs
from penstock.db.connection import Connection
from penstock.errors import Forbidden, IllegalMove, InvalidInput, NotFound
from penstock.failpoints import armed
from penstock.journal.queries import entries
from penstock.operations.moves import move
from penstock.operations.operation_ids import number_of
from penstock.outbox import sender
from penstock.outbox.tables import subscriptions
from penstock.testing import Engine

ALL = ["created", "picked_up", "validated", "finished"]


@pytest.mark.covers("I-30")
async def test_each_move_is_told_once_and_in_order_with_what_is_known_of_the_operation(e: Engine, hook: Receiver):
    await e.penstock.webhooks.add(hook.url)
    first, second = [await sent(e), await sent(e, {"name": "b"}, {"name": "c", "weight": 0})]
    assert await e.deliver() == 8
    assert moves(hook, first) == ALL
    assert moves(hook, second) == [*ALL[:3], "finished_with_errors"]
    last = [event for event in told(hook) if event["subject"] == second][-1]
    assert (last["type"], last["data"]["name"]) == ("penstock.operation.finished_with_errors", "send-parcels")
    counted = {name: last["data"][name] for name in ("status", "totalRows", "successfulRows", "failedRows")}
    assert counted == {"status": "CompletedWithErrors", "totalRows": 2, "successfulRows": 1, "failedRows": 1}
    assert await e.deliver() == 0
    assert len({event["id"] for event in told(hook)}) == 8


async def test_a_subscription_hears_of_what_happens_after_it_was_made_and_only_of_what_it_wants(
    e: Engine, hook: Receiver
):
    await sent(e)
    hooks = e.penstock.webhooks
    await hooks.add(hook.url, types=["penstock.operation.finished*"], operation="send-parcels")
    await hooks.add(hook.url, types=["penstock.operation.*"], operation="other")
    await sent(e)
    await e.deliver()
    assert moves(hook) == ["finished"]


async def test_moves_of_blobs_are_told_to_who_asks_for_them(e: Engine, hook: Receiver):
    await e.penstock.webhooks.add(hook.url, types="penstock.blob.*")
    blob = await e.penstock.blobs.upload(b'{"name": "a"}\n', file_name="parcels.jsonl")
    await e.penstock.blobs.tenant("acme").upload(b'{"name": "b"}\n', file_name="theirs.jsonl")
    await e.deliver()
    assert {(event["subject"], event["data"]["fileName"]) for event in told(hook)} == {(blob.id, "parcels.jsonl")}
    assert told(hook)[-1]["type"] == "penstock.blob.validated"


@pytest.mark.databases("postgresql", "mariadb")
async def test_a_move_that_commits_after_later_ones_were_told_is_told_too(e: Engine, hook: Receiver):
    await e.penstock.webhooks.add(hook.url)
    slow, quick = [(await e.create("send-parcels", [{"name": "a"}])).id for _ in range(2)]
    await e.deliver()
    db = e.penstock.db
    async with db.write() as open_transaction:
        number = await number_of(open_transaction, slow)
        assert await move(db, open_transaction, number, "picked_up", actor="ana") is not None
        await e.operations.cancel(quick)
        await e.deliver()
        assert moves(hook, quick) == ["created", "cancelled"]
    await e.deliver()
    assert moves(hook, slow) == ["created", "picked_up"]


async def test_a_failed_attempt_is_repeated_on_the_schedule_with_the_same_id_and_later_events_wait(
    e: Engine, hook: Receiver
):
    await e.penstock.webhooks.add(hook.url)
    hook.answer = lambda request: Answer(500)
    one = await sent(e)
    assert await e.deliver() == 1
    for wait_s in (5, 300, 1800, 7200):
        e.clock.advance(wait_s - 1)
        assert await e.deliver() == 0
        e.clock.advance(1 + wait_s * 0.2)
        assert await e.deliver() == 1
    assert len({(event["id"], event["data"]["event"]) for event in told(hook)}) == 1
    assert len({request.headers["webhook-id"] for request in hook.requests}) == 1
    hook.answer = lambda request: Answer(204)
    e.clock.advance(24 * 3600)
    await e.deliver()
    assert moves(hook, one)[5:] == ALL
    (shown, *_) = (await e.penstock.webhooks.deliveries(subject=one)).items
    assert (shown.state, shown.attempts, shown.error) == ("Processed", 6, None)
    assert [attempt.status for attempt in shown.log] == [500] * 5 + [204]


async def test_a_delivery_is_given_up_after_ten_attempts_and_can_be_sent_again_by_hand(e: Engine, hook: Receiver):
    added = await e.penstock.webhooks.add(hook.url, types=["penstock.operation.finished"])
    hook.answer = lambda request: Answer(500)
    await sent(e)
    for _ in range(10):
        assert await e.deliver() == 1
        e.clock.advance(30 * 3600)
    assert await e.deliver() == 0
    hooks = e.penstock.webhooks
    (failed,) = (await hooks.deliveries(state="Failed")).items
    assert (failed.attempts, failed.error, failed.due_at) == (10, "the receiver answered 500", None)
    hook.answer = lambda request: Answer()
    assert await hooks.resend(failed.id) == 1
    assert await e.deliver() == 1
    again = await hooks.delivery(failed.id)
    assert (again.state, again.event_id) == ("Processed", failed.event_id)
    with pytest.raises(IllegalMove):
        await hooks.resend(failed.id)
    assert await hooks.resend(subscription=added.subscription.id, failed=True) == 0
    async with e.penstock.db.read() as tx:
        logged = await entries(tx, machine="delivery", subject=failed.id)
    assert [(entry.source, entry.event) for entry in logged] == [
        ("Pending", "failed"), ("Failed", "resent"), ("Pending", "processed"),
    ]  # fmt: skip


async def test_a_receiver_that_is_gone_is_told_nothing_more(e: Engine, hook: Receiver):
    added = await e.penstock.webhooks.add(hook.url)
    hook.answer = lambda request: Answer(410)
    one = await sent(e)
    assert await e.deliver() == 1
    shown = await e.penstock.webhooks.get(added.subscription.id)
    assert (shown.state, shown.reason) == ("Disabled", "the receiver answered 410")
    states = [each.state for each in (await e.penstock.webhooks.deliveries(subject=one)).items]
    assert states == ["Failed", "Cancelled", "Cancelled", "Cancelled"]
    await sent(e)
    assert await e.deliver() == 0
    hook.answer = lambda request: Answer()
    assert (await e.penstock.webhooks.enable(shown.id)).state == "Active"
    two = await sent(e)
    await e.deliver()
    assert moves(hook)[1:] == moves(hook, two) == ALL


@pytest.mark.parametrize(
    ("status", "header", "wait_s"), [(429, "120", 120), (503, "Tue, 01 Jan 2030 01:00:00 GMT", 3600)]
)
async def test_a_receiver_that_asks_for_a_pause_gets_it(
    e: Engine, hook: Receiver, status: int, header: str, wait_s: int
):
    added = await e.penstock.webhooks.add(hook.url)
    hook.answer = lambda request: Answer(status, {"Retry-After": header})
    one = (await e.create("send-parcels", [{"name": "a"}])).id
    await e.deliver()
    two = (await e.create("send-parcels", [{"name": "a"}])).id
    e.clock.advance(wait_s - 5)
    assert await e.deliver() == 0
    assert (await e.penstock.webhooks.get(added.subscription.id)).held_until is not None
    hook.answer = lambda request: Answer()
    e.clock.advance(10)
    assert await e.deliver() == 2
    assert moves(hook, one)[1:] == moves(hook, two) == ["created"]


async def test_redirects_are_not_followed_and_endless_bodies_are_not_read(e: Engine, hook: Receiver):
    await e.penstock.webhooks.add(hook.url)
    hook.answer = lambda request: Answer(302, {"Location": f"http://127.0.0.1:{hook.port}/elsewhere"})
    one = (await e.create("send-parcels", [{"name": "a"}])).id
    await e.deliver()
    (shown,) = (await e.penstock.webhooks.deliveries(subject=one)).items
    assert shown.error == "the receiver answered 302; redirects are not followed"
    assert [request.line for request in hook.requests] == ["POST /hook HTTP/1.1"]
    hook.answer = lambda request: Answer(200, endless=True)
    e.clock.advance(10)
    assert await e.deliver() == 1
    assert (await e.penstock.webhooks.delivery(shown.id)).state == "Processed"


async def test_who_hangs_holds_up_nobody_else(e: Engine, hook: Receiver):
    """Its attempts stay under way while others are told; they are given up with the sender, and made again later."""
    hanging = await e.penstock.webhooks.add(hook.url.replace("/hook", "/hang"))
    await e.penstock.webhooks.add(hook.url)
    hook.answer = lambda request: Answer(hangs="/hang" in request.line)
    for _ in range(6):
        await e.create("send-parcels", [{"name": "a"}])
    events = e.penstock.events
    while (await e.penstock.webhooks.counts())["Processed"] < 6:
        await events.tick()
    while sum("/hang" in request.line for request in hook.requests) < sender.AT_ONCE_EACH:
        hook.came.clear()
        await hook.came.wait()
    await events.stop()
    assert sum("/hang" in request.line for request in hook.requests) == sender.AT_ONCE_EACH
    still = (await e.penstock.webhooks.deliveries(subscription=hanging.subscription.id)).items
    assert [each.state for each in still] == ["Pending"] * 6
    hook.answer = lambda request: Answer()
    e.clock.advance(3600)
    assert await e.deliver() == 6


async def test_a_subscription_is_changed_disabled_and_removed(e: Engine, hook: Receiver):
    hooks = e.penstock.webhooks
    added = (await hooks.add(hook.url)).subscription
    changed = await hooks.change(added.id, types="penstock.operation.created", operation="send-parcels")
    assert (changed.types, changed.operation) == (("penstock.operation.created",), "send-parcels")
    await e.create("send-parcels", [{"name": "a"}])
    await e.penstock.events.writer.follow_log()
    assert (await hooks.counts())["Pending"] == 1
    assert await hooks.remove(added.id) == 1
    assert await hooks.counts() == {"Pending": 0, "Delivered": 0, "Processed": 0, "Failed": 0, "Cancelled": 1}
    assert (await hooks.list()).items == []
    for call in (hooks.get, hooks.remove, hooks.enable, hooks.test, hooks.rotate_secret):
        with pytest.raises(NotFound, match="no subscription has the id"):
            await call(added.id)
    with pytest.raises(NotFound, match="no delivery"):
        await hooks.delivery("none")


async def test_lists_are_read_in_pages(e: Engine, hook: Receiver):
    hooks = e.penstock.webhooks
    added = [(await hooks.add(hook.url)).subscription.id for _ in range(3)]
    page = await hooks.list(limit=2)
    rest = await hooks.list(limit=2, cursor=page.next_cursor)
    assert [each.id for each in (*page.items, *rest.items)] == sorted(added)
    assert rest.next_cursor is None
    await sent(e)
    await e.deliver()
    seen, cursor = [], None
    while True:
        some = await hooks.deliveries(cursor=cursor, limit=5, type="penstock.operation.finished")
        seen += some.items
        cursor = some.next_cursor
        if cursor is None:
            break
    assert len(seen) == 3
    with pytest.raises(InvalidInput, match="is not a cursor of this list"):
        await hooks.deliveries(cursor="x")
    with pytest.raises(InvalidInput, match="no delivery is ever"):
        await hooks.deliveries(state="Lost")


async def test_tenants_see_nothing_of_each_other(e: Engine, hook: Receiver):
    other = e.penstock.webhooks.tenant("acme")
    added = (await other.add(hook.url)).subscription
    assert (await e.penstock.webhooks.list()).items == []
    with pytest.raises(NotFound):
        await e.penstock.webhooks.get(added.id)
    none = await sent(e)  # an operation of no tenant
    assert await e.deliver() == 0
    key = Principal("ana", frozenset({"admin"}), tenant="acme")
    theirs = e.penstock.seen_by(key)
    made = await theirs.operations.create("send-parcels", file=b'{"name": "a"}', file_name="a.jsonl")
    await e.deliver()
    assert {event["subject"] for event in told(hook)} == {made.id} != {none}
    assert [each.id for each in (await theirs.webhooks.list()).items] == [added.id]
    await theirs.webhooks.remove(added.id)
    (noted, *_) = (await theirs.audit.list(subject=added.id)).items
    assert (noted.action, noted.actor) == ("webhook.remove", "ana")
    some = e.penstock.seen_by(replace(key, operations=frozenset({"other"}))).webhooks
    for asked in (some.list, some.deliveries, some.counts, partial(some.get, added.id), partial(some.add, hook.url)):
        with pytest.raises(Forbidden):
            await asked()


async def test_nobody_is_told_of_what_is_gone(e: Engine, hook: Receiver):
    """Its tenant is not known any more."""
    await e.penstock.webhooks.add(hook.url, types="penstock.blob.*")
    blob = await e.penstock.blobs.tenant("acme").upload(b'{"name": "b"}\n', file_name="theirs.jsonl")

    async def lose(tx: Connection) -> None:
        await tx.execute(delete(blobs).where(blobs.c.id == blob.id))

    await e.penstock.db.transaction(lose)
    assert await e.deliver() == 0
    assert await e.penstock.events.verify() == []


async def test_the_secret_is_stored_encrypted_and_shown_once(e: Engine, hook: Receiver):
    added = await e.penstock.webhooks.add(f"{hook.url}?token=hidden")
    assert added.secret is not None
    async with e.penstock.db.read() as tx:
        (row,) = (await tx.execute(select(subscriptions))).all()
    stored = repr(row._mapping) + repr(await e.penstock.webhooks.get(added.subscription.id))
    assert added.secret not in stored
    assert "hidden" not in stored
    assert added.subscription.url == f"{hook.url}?…"
    await e.penstock.webhooks.test(added.subscription.id)
    assert hook.requests[0].line == "POST /hook?token=hidden HTTP/1.1"


async def test_an_address_is_shown_without_what_may_be_secret_in_its_path(e: Engine, hook: Receiver):
    root = hook.url.removesuffix("/hook")
    paths = ("", "/", "/hook", "/hook/", "/hooks/catch/hidden", "/hooks/hidden?token=hidden")
    added = [(await e.penstock.webhooks.add(f"{root}{path}")).subscription for path in paths]
    shown = [each.url.removeprefix(root) for each in added]
    assert shown == ["", "/", "/hook", "/hook/", "/hooks/…", "/hooks/…"]
    assert "hidden" not in repr((await e.penstock.audit.list()).items)
    await e.penstock.webhooks.test(added[-1].id)
    assert hook.requests[0].line == "POST /hooks/hidden?token=hidden HTTP/1.1"


async def test_an_address_that_was_stored_with_its_path_is_not_shown_with_it(e: Engine, hook: Receiver):
    hooks = e.penstock.webhooks
    added = (await hooks.add(f"{hook.url}s/hidden")).subscription

    async def store(tx: Connection) -> None:
        mine = update(subscriptions).where(subscriptions.c.id == added.id)
        await tx.execute(mine.values(url=f"{hook.url}s/hidden"))

    await e.penstock.db.transaction(store)
    assert (await hooks.get(added.id)).url == added.url == f"{hook.url}s/…"
    await hooks.remove(added.id)
    assert "hidden" not in repr((await e.penstock.audit.list()).items)


async def test_what_cannot_work_is_refused_when_it_is_added(e: Engine):
    hooks = e.penstock.webhooks
    for url, why in (
        ("ftp://127.0.0.1/x", "only http: and https:"),
        ("http://10.0.0.1/x", "private or reserved"),
        ("mailto:nobody", "no e-mail address"),
        ("https://user:pw@example.com/", "no user name or password"),
    ):
        with pytest.raises(InvalidInput, match=why):
            await hooks.add(url)
    with pytest.raises(InvalidInput, match="whsec_"):
        await hooks.add("https://example.com/", secret="short")
    with pytest.raises(InvalidInput, match=r"begin with 'penstock\.'"):
        await hooks.add("https://example.com/", types=["order.*"])
    assert (await hooks.list()).items == []


async def test_a_sender_that_stops_gives_back_what_it_has_not_sent(e: Engine, hook: Receiver):
    """Also what it was claiming when it was told to stop: nobody waits for a lease that nobody uses."""
    await e.penstock.webhooks.add(hook.url)
    await e.create("send-parcels", [{"name": "a"}])
    hook.answer = lambda request: Answer(hangs=True)
    events = e.penstock.events
    await events.tick()
    await hook.came.wait()
    await events.stop()
    assert await _cancelled_at(events.tick, "delivery_claim:after")
    await events.stop()
    hook.answer = lambda request: Answer()
    assert await e.deliver() == 1
    (shown,) = (await e.penstock.webhooks.deliveries()).items
    assert (shown.state, shown.attempts) == ("Processed", 3)


async def _cancelled_at(work: Callable[[], Coroutine[Any, Any, None]], point: str) -> bool:
    """Whether work was cancelled when it was at that point."""
    loop, task = asyncio.get_running_loop(), asyncio.create_task(work())

    def cancel(reached: str) -> None:
        if reached == point:
            loop.call_soon_threadsafe(task.cancel)

    with armed(cancel):
        await asyncio.wait([task])
    return task.cancelled()
