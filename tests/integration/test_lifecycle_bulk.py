"""Lifecycles in bulk: thousands of instances in one call, an outcome for each, and graphs of ten thousand states."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from orders import opened, text
from sqlalchemy import event

from penstock import Penstock
from penstock.clock import ManualClock
from penstock.errors import InvalidInput, NotFound
from penstock.lifecycles import Lifecycles, Start, Trigger, bulk
from penstock.lifecycles.changes import write_many
from penstock.lifecycles.records import INSTANCES_EACH


@pytest.fixture
async def penstock(database_url: str, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Penstock]:
    async with opened(database_url, tmp_path, clock) as made:
        await made.lifecycles.import_text(text())
        yield made


@pytest.fixture
def lifecycles(penstock: Penstock) -> Lifecycles:
    return penstock.lifecycles


async def test_instances_are_started_in_bulk_once_for_each_reference(lifecycles: Lifecycles):
    await lifecycles.start("order", "A-7")
    started = await lifecycles.start_many("order", [*(f"A-{n}" for n in range(1500)), "A-3", Start(None, {"x": 1})])
    assert [each.reference for each in started[:3]] == ["A-0", "A-1", "A-2"]
    assert [each.created for each in started].count(False) == 2
    assert started[1500].guid == started[3].guid
    again = await lifecycles.start_many("order", (f"A-{n}" for n in range(1500)))
    assert [(each.id, each.guid) for each in again] == [(each.id, each.guid) for each in started[:1500]]
    assert await lifecycles.count(definition="order") == 1501
    assert await lifecycles.verify() == (1501, [])


async def test_bulk_calls_find_their_instances_by_key_however_many_the_tenant_has(
    penstock: Penstock, lifecycles: Lifecycles
):
    # An index that only begins with the tenant leads to all of its instances.
    sent: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, _x: Any, is_many: bool) -> None:
        if "penstock_lifecycle_instance" in statement and not is_many:
            sent.append((statement, parameters))

    event.listen(penstock.db._engine.sync_engine, "before_cursor_execute", note)
    started = await lifecycles.start_many("order", (f"A-{n}" for n in range(1000)))
    await lifecycles.trigger_many([each.guid for each in started], "pay")
    event.remove(penstock.db._engine.sync_engine, "before_cursor_execute", note)
    assert len(sent) >= 5
    word = "EXPLAIN QUERY PLAN" if penstock.db.dialect.is_file else "EXPLAIN"
    async with penstock.db.connection() as connection:
        for statement, parameters in sent:
            rows = (await connection.exec_driver_sql(f"{word} {statement}", parameters)).mappings().all()
            plan = "\n".join(str(row.get("key", row)) for row in rows)  # MariaDB names others that it did not take
            assert not re.search(r"instance_(state|version|event|flags)|instance_external \(tenant=\?\)", plan), plan


async def test_thousands_move_in_one_call_with_an_outcome_for_each_in_order(lifecycles: Lifecycles):
    started = await lifecycles.start_many("order", (f"A-{n}" for n in range(2100)))
    guids = [each.guid for each in started]
    await lifecycles.suspend(guids[5])
    await lifecycles.trigger(guids[6], "pay")
    mixed = [*guids[:10], "nobody", *guids[10:]]
    outcomes = await lifecycles.trigger_many(mixed, "pay", actor="night job", correlation="job-1")
    assert [outcome.guid for outcome in outcomes] == mixed
    kinds = {place: outcome.kind for place, outcome in enumerate(outcomes) if outcome.kind != "applied"}
    assert kinds == {5: "suspended", 6: "not_allowed", 10: "not_found"}
    counted = Counter({(each.state, int(each.flags)): each.instances for each in await lifecycles.counts()})
    assert counted == {("Paid", 1): 2099, ("New", 3): 1}
    assert (await lifecycles.log(guids[0])).items[-1].actor == "night job"
    assert await lifecycles.verify() == (2100, [])


async def test_a_bulk_call_mixes_events_guards_versions_and_request_keys(lifecycles: Lifecycles):
    old = [
        each.guid
        for each in await lifecycles.start_many("order", [Start(f"A-{n}", {"stock": n % 2}) for n in range(6)])
    ]
    await lifecycles.import_text(text(definition={"name": "Order", "version": "2.0.0"}))
    new = [each.guid for each in await lifecycles.start_many("order", ["B-0", "B-1"])]
    assert all(outcome.applied for outcome in await lifecycles.trigger_many([*old, *new], "pay"))
    triggers = [Trigger(guid, "ship", request_key="ship-it") for guid in old] + [Trigger(guid, "hold") for guid in new]
    outcomes = await lifecycles.trigger_many(triggers)
    assert [outcome.kind for outcome in outcomes] == ["guard_denied", "applied"] * 3 + ["applied"] * 2
    again = await lifecycles.trigger_many(triggers)
    assert [outcome.kind for outcome in again] == ["guard_denied", "duplicate"] * 3 + ["not_allowed"] * 2
    assert [outcome.sequence for outcome in again[1:6:2]] == [3, 3, 3]
    assert (await lifecycles.verify())[1] == []


async def test_each_entry_of_a_bulk_call_says_what_happened_to_its_instance(lifecycles: Lifecycles):
    guids = [each.guid for each in await lifecycles.start_many("order", (f"A-{n}" for n in range(8)))]
    await lifecycles.trigger_many(guids[4:], "pay")
    pay = [Trigger(guids[0], "pay"), Trigger(guids[1], "pay"), Trigger(guids[2], "pay", request_key="r-2")]
    mixed = [*pay, Trigger(guids[3], "pay", metadata={"paid": "cash"}), *(Trigger(guid, "hold") for guid in guids[4:])]
    assert all(outcome.applied for outcome in await lifecycles.trigger_many(mixed, actor="ann", cause="audit"))
    last = [(await lifecycles.log(guid)).items[-1] for guid in guids]
    assert [(entry.sequence, entry.source, entry.event) for entry in last] == [
        *[(2, "New", "pay")] * 4,
        *[(3, "Paid", "hold")] * 4,
    ]
    assert [(entry.request_key, entry.metadata) for entry in last[:4]] == [
        (None, None), (None, None), ("r-2", None), (None, {"paid": "cash"})
    ]  # fmt: skip
    assert {(entry.actor, entry.cause) for entry in last} == {("ann", "audit")}
    assert await lifecycles.verify() == (8, [])


async def test_what_cannot_be_a_guid_is_not_found_and_the_others_move(lifecycles: Lifecycles):
    guid = (await lifecycles.start("order")).guid
    wrong = ["x" * 37, "a\0b", "\ud800", "größer"]
    outcomes = await lifecycles.trigger_many([*wrong, guid], "pay")
    assert [outcome.kind for outcome in outcomes] == ["not_found"] * 4 + ["applied"]
    for each in wrong:
        with pytest.raises(NotFound, match="no instance has the guid"):
            await lifecycles.get(each * 5 if len(each) < 8 else each)


@pytest.mark.parametrize(
    "wrong",
    [
        {"request_key": "k" * 201},
        {"request_key": "\ud800"},
        {"metadata": {"by": "\ud800"}},
        {"metadata": {"x": object()}},
    ],
    ids=["long key", "broken key", "broken metadata", "no JSON"],
)
async def test_a_trigger_that_cannot_be_stored_is_refused_before_any_instance_moves(
    lifecycles: Lifecycles, wrong: dict[str, Any]
):
    started = await lifecycles.start_many("order", (str(n) for n in range(INSTANCES_EACH + 1)))
    triggers = [Trigger(each.guid, "pay") for each in started[:-1]]
    with pytest.raises(InvalidInput):
        await lifecycles.trigger_many([*triggers, Trigger(started[-1].guid, "pay", **wrong)])
    assert {each.state for each in await lifecycles.counts()} == {"New"}


async def test_an_instance_that_is_named_several_times_takes_its_events_in_order(lifecycles: Lifecycles):
    guid, other = [each.guid for each in await lifecycles.start_many("order", ["A", "B"])]
    events = ["pay", "hold", "remind", "remind", "release", "pay"]
    outcomes = await lifecycles.trigger_many([*(Trigger(guid, event) for event in events), Trigger(other, "lose")])
    assert [outcome.kind for outcome in outcomes] == ["applied"] * 5 + ["not_allowed", "applied"]
    assert [outcome.sequence for outcome in outcomes[:5]] == [2, 3, 4, 5, 6]
    with pytest.raises(InvalidInput, match="guids need an event"):
        await lifecycles.trigger_many([guid])


async def test_an_instance_that_is_named_again_in_the_next_transaction_takes_its_events_in_order(
    lifecycles: Lifecycles,
):
    started = await lifecycles.start_many("order", (f"A-{n}" for n in range(INSTANCES_EACH + 1)))
    guids = [each.guid for each in started]
    triggers = [*(Trigger(guid, "pay") for guid in guids), Trigger(guids[0], "hold"), Trigger(guids[-1], "hold")]
    outcomes = await lifecycles.trigger_many(triggers, retries=0)
    assert [outcome.guid for outcome in outcomes] == [trigger.instance for trigger in triggers]
    assert all(outcome.applied for outcome in outcomes)
    assert [outcome.sequence for outcome in outcomes[-2:]] == [3, 3]


async def test_a_bulk_call_that_fails_leaves_whole_transactions_and_nothing_under_way(
    lifecycles: Lifecycles, monkeypatch: pytest.MonkeyPatch
):
    written: list[int] = []

    async def write_once(tx: Any, scope: Any, changes: Any) -> set[int]:
        if written:
            raise NotFound("the disk")
        written.append(len(changes))
        return await write_many(tx, scope, changes)

    monkeypatch.setattr(bulk, "write_many", write_once)
    started = await lifecycles.start_many("order", (f"A-{n}" for n in range(3 * INSTANCES_EACH)))
    before = asyncio.all_tasks()
    with pytest.raises(NotFound, match="the disk"):
        await lifecycles.trigger_many([each.guid for each in started], "pay")
    assert asyncio.all_tasks() <= before
    counted = {each.state: each.instances for each in await lifecycles.counts()}
    assert counted == {"Paid": INSTANCES_EACH, "New": 2 * INSTANCES_EACH}
    assert await lifecycles.verify() == (3 * INSTANCES_EACH, [])


async def test_bulk_calls_at_once_move_each_instance_once(
    database_url: str, tmp_path: Path, penstock: Penstock, clock: ManualClock
):
    guids = [each.guid for each in await penstock.lifecycles.start_many("order", (f"A-{n}" for n in range(300)))]
    async with opened(database_url, tmp_path, clock) as second:
        found = await asyncio.gather(
            penstock.lifecycles.trigger_many(guids, "pay"),
            second.lifecycles.trigger_many(guids[::-1], "pay"),
            second.lifecycles.trigger_many(guids, "pay", retries=0),
        )
    applied = Counter(outcome.guid for outcomes in found for outcome in outcomes if outcome.applied)
    assert applied == dict.fromkeys(guids, 1)
    assert await penstock.lifecycles.verify() == (300, [])


async def test_a_bulk_move_tells_consumers_and_sets_timers(penstock: Penstock, clock: ManualClock):
    states = [
        {"name": "A", "is_initial": True, "timeout": "PT1M", "timeout_event": "go"},
        {"name": "B", "timeout": "PT1H", "timeout_event": "end"},
        {"name": "C", "is_final": True},
    ]
    lines = [{"from": "A", "event": "go", "to": "B"}, {"from": "B", "event": "end", "to": "C"}]
    lifecycles = penstock.lifecycles
    await lifecycles.import_text(text(definition={"name": "Timed"}, states=states, transitions=lines))
    await penstock.deliveries.register("billing", definition="timed")
    await penstock.deliveries.register("orders only", definition="order")
    started = await lifecycles.start_many("timed", ["1", "2", "3"])
    await lifecycles.trigger_many([each.guid for each in started[:2]], "go")
    told = (await penstock.deliveries.list()).items
    assert [(each.consumer, each.entry.guid) for each in told] == [("billing", each.guid) for each in started[:2]]
    clock.advance(61)
    assert (await lifecycles.tick()).timers_fired == 1
    clock.advance(3600)
    assert (await lifecycles.tick()).timers_fired == 3
    assert {each.state for each in await lifecycles.counts(definition="timed")} == {"C"}
    assert (await lifecycles.verify())[1] == []


@pytest.mark.covers("LC-132")
async def test_a_graph_of_ten_thousand_states_is_imported_in_one_transaction(lifecycles: Lifecycles):
    count = 10_000
    states = [{"name": f"State {n}", "category": f"group {n % 7}"} for n in range(count)]
    states[-1]["is_final"] = True
    lines = [{"from": f"State {n}", "event": f"go {n % 50}", "to": f"State {n + 1}"} for n in range(count - 1)]
    large = json.dumps({"definition": {"name": "Large"}, "states": states, "transitions": lines})
    made = await lifecycles.import_text(large)
    assert (made.states, made.events, made.transitions) == (count, 50, count - 1)
    guid = (await lifecycles.start("large")).guid
    assert (await lifecycles.trigger(guid, "go 0")).target == "State 1"
    assert (await lifecycles.import_text(large)).unchanged
