"""Webhooks hear of lifecycles too: every move of an instance, in its order, and only those of their tenant."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from parcel_post import moves, sent, told
from receivers import Answer, Receiver

from penstock.db.types import NotStorable
from penstock.outbox.events import Event
from penstock.outbox.storing import Writer
from penstock.testing import Engine

ORDER = """{"definition": {"name": "Order"}, "states": [{"name": "New", "is_initial": true}, {"name": "Paid"},
 {"name": "Held"}], "transitions": [{"from": "New", "event": "pay", "to": "Paid"},
 {"from": "Paid", "event": "hold", "to": "Held"}, {"from": "Held", "event": "release", "to": "Paid"}]}"""


async def test_moves_of_instances_are_told_in_their_order_beside_those_of_operations(e: Engine, hook: Receiver):
    lifecycles = e.penstock.lifecycles
    await lifecycles.import_text(ORDER)
    before = (await lifecycles.start("Order")).guid
    await lifecycles.trigger(before, "pay")
    await e.penstock.webhooks.add(hook.url, types=["penstock.*"])
    guid = (await lifecycles.start("Order", "A-1")).guid
    for event in ("pay", "hold", "release"):
        assert (await lifecycles.trigger(guid, event)).applied
    made = await sent(e)
    hook.answer = lambda request: Answer(500 if len(hook.requests) == 1 else 200)
    await e.deliver()
    e.clock.advance(10)
    await e.deliver()
    heard = [event for event in told(hook)[1:] if event["subject"] == guid]
    assert [event["type"] for event in heard] == [f"penstock.lifecycle.{name}" for name in ("pay", "hold", "release")]
    assert [(event["data"]["previousStatus"], event["data"]["status"]) for event in heard[:1]] == [("New", "Paid")]
    assert {(event["data"]["name"], event["data"]["reference"]) for event in heard} == {("Order", "A-1")}
    assert moves(hook, made)[-1] == "finished"
    assert moves(hook, before) == []
    consumer = await e.penstock.deliveries.list(consumer="penstock.webhooks")
    assert {each.state for each in consumer.items} == {"Processed"}


async def test_another_tenants_instances_are_not_told(e: Engine, hook: Receiver):
    for name in ("acme", "other"):
        await e.penstock.lifecycles.tenant(name).import_text(ORDER)
    await e.penstock.webhooks.tenant("acme").add(hook.url, types=["penstock.lifecycle.*"])
    await e.penstock.webhooks.tenant("other").add(hook.url, types=["penstock.operation.*"])
    guids = {}
    for name in ("acme", "other"):
        lifecycles = e.penstock.lifecycles.tenant(name)
        guids[name] = (await lifecycles.start("Order")).guid
        await lifecycles.trigger(guids[name], "pay")
    await e.deliver()
    assert {event["subject"] for event in told(hook)} == {guids["acme"]}


async def test_an_event_with_the_longest_name_there_is_is_told_with_the_others(e: Engine, hook: Receiver):
    longest = "x" * 200
    order = json.loads(ORDER)
    order["transitions"][1]["event"] = longest
    lifecycles = e.penstock.lifecycles
    await lifecycles.import_text(json.dumps(order))
    await e.penstock.webhooks.add(hook.url, types=["penstock.lifecycle.*"])
    guid = (await lifecycles.start("Order")).guid
    for event in ("pay", longest, "release"):
        assert (await lifecycles.trigger(guid, event)).applied
    await e.deliver()
    assert moves(hook, guid) == ["pay", longest, "release"]
    kind = told(hook)[1]["type"]
    assert kind.startswith("penstock.lifecycle.xxx")
    assert len(kind) == 200


async def test_a_move_that_cannot_be_written_holds_up_no_other_instance(
    e: Engine, hook: Receiver, monkeypatch: pytest.MonkeyPatch
):
    lifecycles = e.penstock.lifecycles
    await lifecycles.import_text(ORDER)
    await e.penstock.webhooks.add(hook.url, types=["penstock.lifecycle.*"])
    bad, good = [(await lifecycles.start("Order")).guid for _ in range(2)]
    for guid in (bad, good):
        for event in ("pay", "hold"):
            await lifecycles.trigger(guid, event)
    write = Writer.write

    async def fail(self: Writer, tx: Any, events: Sequence[Event]) -> int:
        if any((event.subject, event.data["event"]) == (bad, "pay") for event in events):
            raise NotStorable("it is too long")
        return await write(self, tx, events)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "write", fail)
        await e.deliver()
    assert (moves(hook, good), moves(hook, bad)) == (["pay", "hold"], [])
    e.clock.advance(61)
    await e.deliver()
    assert moves(hook, bad) == ["pay", "hold"]
