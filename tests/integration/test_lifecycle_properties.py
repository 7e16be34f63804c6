"""Whatever happens to random lifecycles, at once and with crashes: the log explains every state, and no move is lost.

Actors trigger, suspend, resume, change data, force, reopen, fire timers, do effects and migrate at the same time,
through two engines; transactions crash before and after their commits. Who was cut off asks again with the same key, as
a client would. Each example is a tenant of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from orders import opened

from penstock.clock import ManualClock
from penstock.errors import Conflict
from penstock.failpoints import armed
from penstock.lifecycles import Delivery, GuardContext, Lifecycles, LogEntry, Outcome, Trigger
from penstock.lifecycles.rules.graph import Graph, effects_of

ACTORS = 4
STEPS = 8
INSTANCES = 4
EVENTS = [f"e{n}" for n in range(4)]
VERSIONS = ("1.0.0", "2.0.0")
ASKED = int(os.environ.get("PENSTOCK_TEST_EXAMPLES", "40"))
IS_QUICK = ASKED <= 40  # the same examples every time, and no minutes of shrinking when one fails
EXAMPLES = 5 if IS_QUICK else ASKED
_examples = count()


class Crash(Exception):
    """The process is gone."""


# --- what is drawn

actions = st.lists(st.sampled_from([{"gate": "maybe"}, {"effect": "note"}, {"effect": "trip"}]), max_size=2)
STEP_KINDS = ("trigger", "trigger", "trigger", "many", "flags", "data", "force", "tick", "migrate")


@st.composite
def documents(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Two versions of one definition: the same states, and transitions, timeouts and actions of their own."""
    names = [f"S{n}" for n in range(draw(st.integers(2, 5)))]
    return [draw(one_version(names, version)) for version in VERSIONS]


@st.composite
def one_version(draw: st.DrawFn, names: list[str], version: str) -> dict[str, Any]:
    pairs = [(name, event) for name in names for event in EVENTS]
    chosen = draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=12, unique=True))
    lines = [
        {"from": source, "event": event, "to": draw(st.sampled_from(names)), "guard": draw(st.sampled_from(GUARDED))}
        for source, event in chosen
    ]
    states: list[dict[str, Any]] = []
    for place, name in enumerate(names):
        on_entry = [each for each in draw(actions) if place or "effect" in each]
        state = {"name": name, "is_initial": place == 0, "on_entry": on_entry, "on_exit": draw(actions)}
        state["is_final"] = place > 0 and draw(st.integers(0, 4)) == 0
        mine = [event for source, event in chosen if source == name]
        if mine and draw(st.booleans()):
            mode = draw(st.sampled_from(["once", "repeat"]))
            state |= {"timeout": "PT1M", "timeout_event": draw(st.sampled_from(mine)), "timeout_mode": mode}
        states.append(state)
    return {
        "definition": {"name": "drawn", "version": version},
        "states": states,
        "events": EVENTS,
        "transitions": lines,
    }


GUARDED = [None, None, "maybe"]


@dataclass(frozen=True)
class Step:
    """One thing an actor does; `chance` decides the rest."""

    kind: str
    place: int
    event: str
    chance: int


steps = st.builds(
    Step,
    st.sampled_from(STEP_KINDS),
    st.integers(0, INSTANCES - 1),
    st.sampled_from(EVENTS),
    st.integers(0, 99),
)
scripts = st.lists(st.lists(steps, max_size=STEPS), min_size=ACTORS, max_size=ACTORS)


@contextmanager
def crashing(chance: random.Random, rate: float) -> Iterator[None]:
    """Transactions of lifecycles crash now and then, before or after their commit."""

    def crash(point: str) -> None:
        if point.startswith("lifecycle_") and chance.random() < rate:
            raise Crash(point)

    with armed(crash):
        yield


# --- what is done


@dataclass
class Actor:
    """Follows its script, and remembers what it was told of its requests."""

    number: int
    lifecycles: Lifecycles
    guids: list[str]
    told: dict[str, Outcome] = field(default_factory=dict)

    async def act(self, script: list[Step], clock: ManualClock) -> None:
        for place, step in enumerate(script):
            await asyncio.sleep(0)
            guid, key = self.guids[step.place], f"{self.number}.{place}"
            match step.kind:
                case "trigger":
                    await self.trigger(guid, step.event, key)
                case "many":
                    await self.trigger_many(key, step)
                case "flags":
                    names = ("suspend", "resume", "resume", "reopen", "reopen", "complete")
                    await self.tried(getattr(self.lifecycles, names[step.chance % len(names)])(guid))
                case "data":
                    await self.tried(self.lifecycles.change_data(guid, {"n": step.chance % 10}))
                case "force":
                    await self.tried(self.lifecycles.force(guid, "S0", cause="a property"))
                case "tick":
                    clock.advance((1, 61)[step.chance % 2])
                    await self.tried(self.lifecycles.tick())
                case "migrate":
                    source, target = VERSIONS if step.chance % 2 else VERSIONS[::-1]
                    await self.tried(self.lifecycles.migrate("drawn", source=source, target=target))

    async def trigger(self, guid: str, event: str, key: str) -> None:
        while key not in self.told:
            try:
                self.told[key] = await self.lifecycles.trigger(guid, event, request_key=key, retries=2)
            except Crash:
                continue  # a client that was cut off asks again

    async def trigger_many(self, key: str, step: Step) -> None:
        triggers = [
            Trigger(guid, EVENTS[(step.chance + place) % len(EVENTS)], request_key=f"{key}.{place}")
            for place, guid in enumerate([*self.guids, self.guids[step.place]])
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


@pytest.mark.covers("I-27", "I-28", "I-29", "I-32", "LC-126")
@settings(
    max_examples=EXAMPLES,
    derandomize=IS_QUICK,
    phases=[phase for phase in Phase if not IS_QUICK or phase is not Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(documents=documents(), scripts=scripts, crashes=st.integers(0, 999))
async def test_the_log_explains_every_state_and_every_request_moved_once(
    database_url: str, tmp_path: Path, documents: list[dict[str, Any]], scripts: list[list[Step]], crashes: int
):
    tenant, clock = f"example {next(_examples)}", ManualClock()
    guards, effects = {"maybe": _maybe}, {"note": _note, "trip": _trip}
    async with (
        opened(database_url, tmp_path, clock, guards, effects) as first,
        opened(database_url, tmp_path, clock, guards, effects) as second,
    ):
        engines = [each.lifecycles.tenant(tenant) for each in (first, second)]
        lifecycles = engines[0]
        for document in documents:
            await lifecycles.import_text(json.dumps(document))
        await lifecycles.deliveries.register("listener")
        started = await lifecycles.start_many("drawn", map(str, range(INSTANCES)), version=VERSIONS[0])
        guids = [each.guid for each in started]
        actors = [Actor(n, engines[n % 2], guids) for n in range(ACTORS)]
        with crashing(random.Random(crashes), rate=0.15):
            await asyncio.gather(*(actor.act(script, clock) for actor, script in zip(actors, scripts, strict=True)))
        assert await lifecycles.verify() == (INSTANCES, [])
        log = (await lifecycles.log(limit=1000)).items
        told = (await lifecycles.deliveries.list(limit=1000)).items
        graphs = [await lifecycles.graph("drawn", version=version) for version in VERSIONS]
        _check_moves(log, {graph.version.number: graph for graph in graphs})
        _check_requests(log, [actor.told for actor in actors])
        _check_deliveries(log, told, {graph.version.number: graph for graph in graphs})


def _maybe(context: GuardContext) -> bool:
    return bool(context.data.get("n", 1) % 2)


def _note(_: Delivery) -> None: ...


def _trip(_: Delivery) -> None:
    raise OSError("tripped")


# --- what must be


def _check_moves(log: list[LogEntry], graphs: dict[int, Graph]) -> None:
    """Each move is in the table of the version that the instance had."""
    for entry in log:
        if entry.kind == "moved":
            assert entry.source is not None
            assert entry.event is not None
            line = graphs[entry.version].transition(entry.source, entry.event)
            assert line is not None
            assert line.target.name == entry.target


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


def _check_deliveries(log: list[LogEntry], told: list[Delivery], graphs: dict[int, Graph]) -> None:
    """Each move is told of once to the consumer and has its effects once, in their order; nothing else has."""
    wanted = Counter[tuple[str, int, str]]()
    for entry in log:
        graph, place = graphs[entry.version], (entry.guid, entry.sequence)
        if entry.kind in ("moved", "forced"):
            wanted[(*place, "listener")] += 1
        if entry.kind in ("moved", "forced", "started"):
            left = None if entry.source is None else graph.state(entry.source)
            for number, name in enumerate(effects_of(left, graph.state(entry.target))):
                wanted[(*place, f"effect:{number:03}:{name}")] += 1
    assert Counter((each.entry.guid, each.entry.sequence, each.consumer) for each in told) == wanted
