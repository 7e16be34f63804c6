"""Whatever happens to random lifecycles, at once and with crashes: the log explains every state, and no move is lost.

Actors trigger, suspend, resume, change data, force and reopen at the same time, through two engines; transactions crash
before and after their commits. Who was cut off asks again with the same key, as a client would.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from orders import opened

from penstock.clock import ManualClock
from penstock.errors import Conflict
from penstock.failpoints import armed
from penstock.lifecycles import GuardContext, Lifecycles, LogEntry, Outcome, Trigger

ACTORS = 6
STEPS = 8
INSTANCES = 5
EVENTS = [f"e{n}" for n in range(4)]


class Crash(Exception):
    """The process is gone."""


def random_document(chance: random.Random) -> dict[str, Any]:
    names = [f"S{n}" for n in range(chance.randint(2, 6))]
    states: list[dict[str, Any]] = [{"name": name, "is_initial": name == "S0"} for name in names]
    for state in states[1:]:
        state["is_final"] = chance.random() < 0.2
    pairs = [(name, event) for name in names for event in EVENTS if chance.random() < 0.6] or [("S0", "e0")]
    lines = [
        {"from": source, "event": event, "to": chance.choice(names), "guard": chance.choice([None, None, "maybe"])}
        for source, event in pairs
    ]
    for state in states:
        mine = [line["event"] for line in lines if line["from"] == state["name"]]
        if mine and chance.random() < 0.5:
            mode = chance.choice(["once", "repeat"])
            state |= {"timeout": "PT1M", "timeout_event": chance.choice(mine), "timeout_mode": mode}
    return {"definition": {"name": "drawn"}, "states": states, "events": EVENTS, "transitions": lines}


@contextmanager
def crashing(chance: random.Random, rate: float) -> Iterator[None]:
    """Transactions of lifecycles crash now and then, before or after their commit."""

    def crash(point: str) -> None:
        if point.startswith("lifecycle_") and chance.random() < rate:
            raise Crash(point)

    with armed(crash):
        yield


class Actor:
    """Does random things, and remembers what it was told of its requests."""

    def __init__(self, number: int, chance: random.Random, lifecycles: Lifecycles, guids: list[str]) -> None:
        self.number, self.chance, self.lifecycles, self.guids = number, chance, lifecycles, guids
        self.told: dict[str, Outcome] = {}

    async def act(self, clock: ManualClock) -> None:
        for step in range(STEPS):
            await asyncio.sleep(0)
            guid, key = self.chance.choice(self.guids), f"{self.number}.{step}"
            match self.chance.choice(("trigger", "trigger", "trigger", "many", "flags", "data", "force", "tick")):
                case "trigger":
                    await self.trigger(guid, key)
                case "many":
                    await self.trigger_many(key)
                case "flags":
                    name = self.chance.choice(("suspend", "resume", "resume", "reopen", "reopen", "complete"))
                    await self.tried(getattr(self.lifecycles, name)(guid))
                case "data":
                    await self.tried(self.lifecycles.change_data(guid, {"n": self.chance.randint(0, 9)}))
                case "force":
                    await self.tried(self.lifecycles.force(guid, "S0", cause="a property"))
                case "tick":
                    clock.advance(self.chance.choice((1, 61)))
                    await self.tried(self.lifecycles.tick())

    async def trigger(self, guid: str, key: str) -> None:
        event = self.chance.choice(EVENTS)
        while key not in self.told:
            try:
                self.told[key] = await self.lifecycles.trigger(guid, event, request_key=key, retries=2)
            except Crash:
                continue  # a client that was cut off asks again

    async def trigger_many(self, key: str) -> None:
        triggers = [
            Trigger(guid, self.chance.choice(EVENTS), request_key=f"{key}.{place}")
            for place, guid in enumerate(self.guids)
        ]
        while True:
            try:
                outcomes = await self.lifecycles.trigger_many(triggers, retries=1)
            except Crash:
                continue
            self.told |= {each.request_key or "": outcome for each, outcome in zip(triggers, outcomes, strict=True)}
            return

    async def tried(self, call: Awaitable[Any]) -> None:
        try:
            await call
        except (Crash, Conflict):
            return


async def whole_log(lifecycles: Lifecycles) -> list[LogEntry]:
    found, cursor = [], None
    while True:
        page = await lifecycles.log(limit=500, cursor=cursor)
        found += page.items
        if page.next_cursor is None:
            return found
        cursor = page.next_cursor


@pytest.mark.covers("I-27", "I-28", "I-29", "I-32", "LC-126")
@pytest.mark.parametrize("seed", range(6))
async def test_the_log_explains_every_state_and_every_request_moved_once(
    database_url: str, tmp_path: Path, clock: ManualClock, seed: int
):
    chance = random.Random(seed)
    guards = {"maybe": _maybe}
    async with (
        opened(database_url, tmp_path, clock, guards) as first,
        opened(database_url, tmp_path, clock, guards) as second,
    ):
        await first.lifecycles.import_text(json.dumps(random_document(chance)))
        await first.deliveries.register("listener")
        started = await first.lifecycles.start_many("drawn", map(str, range(INSTANCES)))
        guids = [each.guid for each in started]
        engines = (first.lifecycles, second.lifecycles)
        actors = [Actor(n, random.Random(seed * 100 + n), engines[n % 2], guids) for n in range(ACTORS)]
        with crashing(random.Random(seed), rate=0.15):
            await asyncio.gather(*(actor.act(clock) for actor in actors))
        assert await first.lifecycles.verify() == (INSTANCES, [])
        log = await whole_log(first.lifecycles)
        _check_requests(log, [actor.told for actor in actors])
        told = Counter(
            (each.entry.guid, each.entry.sequence) for each in (await first.deliveries.list(limit=1000)).items
        )
        moves = [(entry.guid, entry.sequence) for entry in log if entry.kind in ("moved", "forced")]
        assert told == Counter(moves), "each move is told of once, and nothing else is"


def _maybe(context: GuardContext) -> bool:
    return bool(context.data.get("n", 1) % 2)


def _check_requests(log: list[LogEntry], told: list[dict[str, Outcome]]) -> None:
    """Every request that was applied has its one entry, as it was told; every other has none."""
    entries = Counter(entry.request_key for entry in log if entry.request_key and entry.actor != "timer")
    by_key = {entry.request_key: entry for entry in log if entry.request_key}
    outcomes = {key: outcome for some in told for key, outcome in some.items()}
    assert all(many == 1 for many in entries.values())
    assert set(entries) == {key for key, outcome in outcomes.items() if outcome.applied}
    for key, outcome in outcomes.items():
        if outcome.applied:
            entry = by_key[key]
            assert (entry.guid, entry.sequence, entry.source, entry.event, entry.target) == (
                outcome.guid, outcome.sequence, outcome.source, outcome.event, outcome.target,
            )  # fmt: skip
