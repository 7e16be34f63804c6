"""Callers that move lifecycles: all processes fight over the same few instances, and come again when cut off."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from penstock import Penstock
from penstock.errors import PenstockError, Unavailable
from penstock.lifecycles import Delivery, Outcome, Trigger

from .journal import Said

if TYPE_CHECKING:
    from .client_main import Client

__all__ = ["CONSUMER", "EFFECTS", "LIFECYCLE", "move_for_ever", "prepare_lifecycles", "stumble"]

LIFECYCLE = "lifecycle"  # in place of an operation's id in the journal
CONSUMER = "audit"
EFFECTS = 2  # of each move into Busy
NAME = "ordeal"
INSTANCES = 12
EVENTS = ("begin", "go_on", "back", "end", "nonsense")
PAUSE_S = 0.02
AWAY_S = 0.2
STUMBLES = 0.2

_STATES: list[dict[str, Any]] = [
    {"name": "Idle", "is_initial": True},
    {
        "name": "Busy",
        "timeout": "PT1S",
        "timeout_event": "go_on",
        "timeout_mode": "repeat",
        "on_entry": [{"effect": "stumble"}, {"effect": "stumble"}],
    },
    {"name": "Done", "is_final": True},
]
_LINES = [
    {"from": "Idle", "event": "begin", "to": "Busy", "when": {"field": "open", "op": "!=", "value": False}},
    {"from": "Busy", "event": "go_on", "to": "Busy"},
    {"from": "Busy", "event": "back", "to": "Idle"},
    {"from": "Busy", "event": "end", "to": "Done"},
]
VERSIONS = ("1.0.0", "2.0.0")


def stumble(_: Delivery) -> None:
    """An effect that fails now and then."""
    if random.random() < STUMBLES:
        raise OSError("stumbled")


async def prepare_lifecycles(penstock: Penstock) -> None:
    """The definition in both versions, its consumer and its instances; all of it is there once, however often asked."""
    lifecycles = penstock.lifecycles
    for version in VERSIONS:
        document = {"definition": {"name": NAME, "version": version}, "states": _STATES, "transitions": _LINES}
        await lifecycles.import_text(json.dumps(document))
    if CONSUMER not in {each.name for each in await lifecycles.deliveries.consumers()}:
        await lifecycles.deliveries.register(CONSUMER)
    if await lifecycles.count(definition=NAME) == 0:
        await lifecycles.start_many(NAME, map(str, range(INSTANCES)), version=VERSIONS[0])


async def move_for_ever(client: Client, rng: random.Random) -> None:
    """Trigger, one by one and in bulk, suspend, reopen, change data and migrate, until cancelled."""
    lifecycles, journal, calls = client.penstock.lifecycles, client.journal, count()
    guids = await _insisting(lambda: lifecycles.guids(NAME, map(str, range(INSTANCES))))
    while True:
        await asyncio.sleep(rng.random() * PAUSE_S)
        guid, key = rng.choice(list(guids.values())), f"{journal.who}.{next(calls)}.{rng.getrandbits(32):x}"
        what = rng.choice(("one", "one", "one", "many", "flags", "data", "migrate"))
        match what:
            case "one":
                await _triggered(client, [Trigger(guid, rng.choice(EVENTS), key)], is_many=False)
            case "many":
                some = rng.sample(list(guids.values()), rng.randint(1, INSTANCES))
                triggers = [Trigger(each, rng.choice(EVENTS), f"{key}.{n}") for n, each in enumerate(some)]
                await _triggered(client, triggers, is_many=True)
            case "flags":
                name = rng.choice(("suspend", "resume", "resume", "resume", "reopen", "reopen", "fail"))
                await _tried(getattr(lifecycles, name)(guid))
            case "data":
                await _tried(lifecycles.change_data(guid, {"open": rng.random() < 0.8, "by": key}))
            case "migrate" if rng.random() < 0.3:
                source, target = rng.sample(VERSIONS, 2)
                await _tried(lifecycles.migrate(NAME, source=source, target=target))


async def _triggered(client: Client, triggers: list[Trigger], *, is_many: bool) -> None:
    """Trigger until there is an answer, and note both that it was asked and what it came to."""
    lifecycles = client.penstock.lifecycles

    async def ask() -> list[Outcome]:
        if is_many:
            return await lifecycles.trigger_many(triggers)
        (one,) = triggers
        return [await lifecycles.trigger(one.instance, one.event, request_key=one.request_key, retries=3)]

    for each in triggers:
        _note(client, each)
    for each, outcome in zip(triggers, await _insisting(ask), strict=True):
        told = {name: getattr(outcome, name) for name in ("kind", "guid", "sequence", "source", "event", "target")}
        _note(client, each, answer=told)


def _note(client: Client, trigger: Trigger, answer: Any = None) -> None:
    journal = client.journal
    detail = {"key": trigger.request_key, "guid": trigger.instance, "event": trigger.event}
    said = {"verb": "trigger", "operation": LIFECYCLE, "detail": detail, "answer": answer}
    journal.write(Said(t=journal.moment(), at=journal.wall_us(), who=journal.who, call=0, **said))


async def _insisting(ask: Callable[[], Awaitable[Any]]) -> Any:
    while True:
        try:
            return await ask()
        except Unavailable:
            await asyncio.sleep(AWAY_S)


async def _tried(call: Awaitable[Any]) -> None:
    with contextlib.suppress(PenstockError):
        await call
