"""Webhooks hear of lifecycles too: every move of an instance, in its order, and only those of their tenant."""

from __future__ import annotations

from parcel_post import moves, sent, told
from receivers import Answer, Receiver

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
