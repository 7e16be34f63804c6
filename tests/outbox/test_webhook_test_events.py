"""Test events: sent at once and alone, and what came of each is said, whoever sends it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from parcel_post import post_office, told
from patience import HANG_S
from receivers import Answer, Receiver

from penstock.errors import Conflict, Unavailable
from penstock.outbox import channels, claiming, sender
from penstock.outbox.sender import Sender
from penstock.testing import Engine


async def test_a_test_event_is_sent_at_once_and_says_what_came_of_it(e: Engine, hook: Receiver):
    hooks = e.penstock.webhooks
    added = (await hooks.add(hook.url)).subscription
    got = await hooks.test(added.id)
    assert (got.state, got.type) == ("Processed", "penstock.webhook.test")
    assert told(hook)[0]["type"] == got.type
    hook.answer = lambda request: Answer(404)
    got = await hooks.test(added.id)
    assert (got.state, got.error) == ("Failed", "the receiver answered 404")
    await hooks.disable(added.id)
    with pytest.raises(Conflict, match="Disabled"):
        await hooks.test(added.id)


async def test_a_test_event_waits_for_no_other_attempt(e: Engine, hook: Receiver):
    hooks = e.penstock.webhooks
    await hooks.add(hook.url.replace("/hook", "/hang"))
    added = (await hooks.add(hook.url, types="penstock.blob.*")).subscription
    hook.answer = lambda request: Answer(hangs="/hang" in request.line)
    await e.create("send-parcels", [{"name": "a"}])
    await e.penstock.events.tick()
    async with asyncio.timeout(HANG_S):
        assert (await hooks.test(added.id)).state == "Processed"
    await e.penstock.events.stop()


async def test_a_test_event_that_another_process_sends_is_waited_for(
    e: Engine, hook: Receiver, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hooks, key = e.penstock.webhooks, e.penstock.settings.secret_key
    added = (await hooks.add(hook.url)).subscription
    async with post_office(database_url, tmp_path, secret_key=key) as other:
        start_due, settle = Sender.start_due, claiming.settle
        looks, has_looked = 0, asyncio.Event()

        async def too_late(self: Sender, only: str | None = None) -> int:
            nonlocal looks
            looks += 1
            if looks == 1:
                return await start_due(other.penstock.events.sender, only)
            has_looked.set()
            return await start_due(self, only)

        async def slowly(*given: Any) -> bool:
            await has_looked.wait()
            return await settle(*given)

        monkeypatch.setattr(Sender, "start_due", too_late)
        monkeypatch.setattr(claiming, "settle", slowly)
        assert (await hooks.test(added.id)).state == "Processed"
    assert len(hook.requests) == 1


@pytest.mark.parametrize(
    "address, why",
    [("mailto:ana@example.com", "smtp_url is not set"), ("https://example.com/x", "httpx is not installed")],
)
async def test_a_test_event_that_nobody_here_can_send_says_what_is_missing(
    e: Engine, monkeypatch: pytest.MonkeyPatch, address: str, why: str
):
    monkeypatch.setattr(channels, "has_httpx", lambda: False)
    monkeypatch.setattr(sender, "OTHERS_S", 0)
    added = (await e.penstock.webhooks.add(address)).subscription
    with pytest.raises(Unavailable, match=f"nobody has sent it: {why}.* here, and no worker took it"):
        await e.penstock.webhooks.test(added.id)
