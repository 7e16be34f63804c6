"""Sending again by hand: what has a receiver is due now with all its attempts, and what has none is left alone."""

from __future__ import annotations

import pytest
from parcel_post import sent
from receivers import Answer, Receiver

from penstock.errors import Conflict
from penstock.outbox.model import Delivery
from penstock.outbox.verdicts import ATTEMPTS_MAX
from penstock.testing import Engine


async def given_up(e: Engine) -> Delivery:
    """A delivery that was tried as often as any is."""
    await sent(e)
    for _ in range(ATTEMPTS_MAX):
        assert await e.deliver() == 1
        e.clock.advance(30 * 3600)
    (failed,) = (await e.penstock.webhooks.deliveries(state="Failed")).items
    return failed


async def test_what_nobody_receives_any_more_is_not_sent_again(e: Engine, hook: Receiver):
    hooks = e.penstock.webhooks
    added = (await hooks.add(hook.url, types="penstock.operation.finished")).subscription
    hook.answer = lambda request: Answer(500)
    failed = await given_up(e)
    await hooks.disable(added.id)
    with pytest.raises(Conflict, match=f"subscription {added.id} is Disabled"):
        await hooks.resend(failed.id)
    assert await hooks.resend(failed=True) == 0
    await hooks.enable(added.id)
    assert await hooks.resend(failed=True) == 1
    assert await e.penstock.events.verify() == []


async def test_a_failed_delivery_of_a_removed_webhook_is_not_sent_again(e: Engine, hook: Receiver):
    hooks = e.penstock.webhooks
    added = (await hooks.add(hook.url, types="penstock.operation.finished")).subscription
    hook.answer = lambda request: Answer(500)
    failed = await given_up(e)
    await hooks.remove(added.id)
    with pytest.raises(Conflict, match=f"subscription {added.id} was removed"):
        await hooks.resend(failed.id)
    assert await hooks.resend(failed=True) == 0
    assert await e.penstock.events.verify() == []


async def test_a_delivery_that_is_sent_again_begins_with_short_waits(e: Engine, hook: Receiver):
    hooks = e.penstock.webhooks
    await hooks.add(hook.url, types="penstock.operation.finished")
    hook.answer = lambda request: Answer(503)
    failed = await given_up(e)
    assert await hooks.resend(failed.id) == 1
    assert await e.deliver() == 1
    e.clock.advance(6)
    assert await e.deliver() == 1
    assert (await hooks.delivery(failed.id)).state == "Pending"


async def test_who_is_busy_when_a_delivery_is_given_up_is_told_of_others_at_once(e: Engine, hook: Receiver):
    hooks = e.penstock.webhooks
    added = (await hooks.add(hook.url)).subscription
    hook.answer = lambda request: Answer(503)
    assert (await hooks.test(added.id)).state == "Failed"
    assert (await hooks.get(added.id)).held_until is None
    hook.answer = lambda request: Answer(503, {"Retry-After": "120"})
    assert (await hooks.test(added.id)).state == "Failed"
    assert (await hooks.get(added.id)).held_until is not None, "it asked for a pause"


async def test_to_send_again_ends_the_pause_of_the_receiver(e: Engine, hook: Receiver):
    hooks = e.penstock.webhooks
    added = (await hooks.add(hook.url, types="penstock.operation.finished")).subscription
    hook.answer = lambda request: Answer(503, {"Retry-After": "3600"})
    await sent(e)
    assert await e.deliver() == 1
    hook.answer = lambda request: Answer()
    (waiting,) = (await hooks.deliveries()).items
    assert await hooks.resend(waiting.id) == 1
    assert (await hooks.get(added.id)).held_until is None
    assert await e.deliver() == 1


async def test_the_audit_log_names_the_delivery_that_was_sent_again_by_its_whole_id(e: Engine, hook: Receiver):
    hooks = e.penstock.webhooks
    await hooks.add(hook.url, types="penstock.operation.finished")
    hook.answer = lambda request: Answer(500)
    await sent(e)
    assert await e.deliver() == 1
    (waiting,) = (await hooks.deliveries()).items
    assert await hooks.resend(waiting.id[:-4]) == 1
    (noted,) = (await e.penstock.audit.list(subject=waiting.id)).items
    assert noted.action == "webhook.resend"
