"""Gates and effects of states: asked and done in order, on entry and on exit, as the instance's own version says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from orders import opened
from sqlalchemy import delete

from penstock import Penstock
from penstock.clock import ManualClock
from penstock.db.connection import Connection
from penstock.errors import InvalidInput
from penstock.failpoints import armed
from penstock.lifecycles import Allow, Delivery, Deny, GuardContext, StateAction, Trigger
from penstock.lifecycles.tables import deliveries

ENTRY = [{"gate": "covered"}, {"effect": "mail"}, {"gate": "signed"}, {"effect": "ship"}]
EXIT = [{"gate": "counted"}, {"effect": "free"}]


def document(version: str = "1.0.0", entry: list[dict[str, str]] = ENTRY, **states: Any) -> str:
    new = {"name": "New", "is_initial": True, "on_exit": EXIT, "on_entry": [{"effect": "welcome"}]}
    whole = {
        "definition": {"name": "Order", "version": version},
        "states": [new | states, {"name": "Paid", "on_entry": entry}, {"name": "Done", "is_final": True}],
        "transitions": [
            {"from": "New", "event": "pay", "to": "Paid", "guard": "guard"},
            {"from": "Paid", "event": "pay", "to": "Paid"},
            {"from": "Paid", "event": "end", "to": "Done"},
        ],
    }
    return json.dumps(whole)


class Functions:
    """Guards, gates and effects that remember in which order they were called, and answer as they are told."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.done: list[tuple[str, str]] = []
        self.answers: dict[str, Any] = {}
        self.guards = {name: self._guard(name) for name in ("guard", "counted", "covered", "signed", "late")}
        self.effects = {name: self._effect(name) for name in ("welcome", "mail", "ship", "free", "ring")}

    def _guard(self, name: str) -> Any:
        def ask(context: GuardContext) -> Any:
            self.asked.append(name)
            return self.answers.get(name, True)

        return ask

    def _effect(self, name: str) -> Any:
        async def run(delivery: Delivery) -> None:
            if name in self.answers:
                raise self.answers[name]
            self.done.append((name, delivery.message_id))

        return run

    def names(self) -> list[str]:
        return [name for name, _ in self.done]


@pytest.fixture
def functions() -> Functions:
    return Functions()


@pytest.fixture
async def penstock(
    database_url: str, tmp_path: Path, clock: ManualClock, functions: Functions
) -> AsyncIterator[Penstock]:
    async with opened(database_url, tmp_path, clock, functions.guards, functions.effects) as made:
        await made.lifecycles.import_text(document())
        yield made


async def test_gates_are_asked_in_order_and_the_first_that_denies_ends_it(penstock: Penstock, functions: Functions):
    lifecycles = penstock.lifecycles
    order = await lifecycles.start("order")
    functions.answers["covered"] = Deny("no cover")
    outcome = await lifecycles.trigger(order.guid, "pay")
    assert (outcome.kind, outcome.reason) == ("guard_denied", "no cover")
    assert functions.asked == ["guard", "counted", "covered"]
    assert (await lifecycles.can(order.guid, "pay")).reason == "no cover"
    assert [each.reason for each in await lifecycles.available_events(order.guid)] == ["no cover"]
    functions.answers["covered"], functions.asked = True, []
    (outcome,) = await lifecycles.trigger_many([order.guid], "pay")
    assert outcome.applied
    assert functions.asked == ["guard", "counted", "covered", "signed"]


async def test_a_gate_may_let_an_instance_pass_those_behind_it_and_its_effects_are_done(
    penstock: Penstock, functions: Functions
):
    order = await penstock.lifecycles.start("order")
    functions.answers |= {"covered": Allow("fast lane"), "signed": False}
    assert (await penstock.lifecycles.trigger(order.guid, "pay")).applied
    await penstock.lifecycles.tick()
    assert functions.names() == ["welcome", "free", "mail", "ship"]


async def test_effects_are_done_in_order_once_after_the_move_one_by_one_and_in_bulk(
    penstock: Penstock, functions: Functions
):
    lifecycles = penstock.lifecycles
    first, second = [each.guid for each in await lifecycles.start_many("order", ["A", "B"])]
    assert (await lifecycles.trigger(first, "pay")).applied
    assert (await lifecycles.trigger_many([Trigger(second, "pay")]))[0].applied
    assert functions.done == []
    done = await lifecycles.tick()
    assert (done.processed, done.failed) == (8, 0)
    for guid in (first, second):
        names = [(name, id) for name, id in functions.done if id.startswith(guid)]
        assert names == [
            ("welcome", f"{guid}:1:effect:000:welcome"),
            ("free", f"{guid}:2:effect:000:free"),
            ("mail", f"{guid}:2:effect:001:mail"),
            ("ship", f"{guid}:2:effect:002:ship"),
        ]
    assert (await lifecycles.tick()).is_idle


async def test_an_effect_that_fails_is_tried_again_before_those_behind_it_and_decides_nothing(
    penstock: Penstock, functions: Functions, clock: ManualClock
):
    lifecycles = penstock.lifecycles
    order = await lifecycles.start("order")
    await lifecycles.trigger(order.guid, "pay")
    functions.answers["mail"] = OSError("no server")
    assert (await lifecycles.tick()).failed == 1
    assert functions.names() == ["welcome", "free"]
    assert (await lifecycles.tick()).is_idle
    del functions.answers["mail"]
    clock.advance(61)
    await lifecycles.tick()
    assert functions.names() == ["welcome", "free", "mail", "ship"]
    functions.answers["ship"] = OSError("gone")
    await lifecycles.trigger(order.guid, "pay")
    for _ in range(12):
        await lifecycles.tick()
        clock.advance(5000)
    (failed,) = (await penstock.deliveries.list(state="Failed")).items
    assert (failed.consumer, failed.attempts, failed.error) == ("effect:001:ship", 10, "OSError: gone")
    assert (await lifecycles.get(order.guid)).state == "Paid"
    del functions.answers["ship"]
    assert await penstock.deliveries.resend(failed.message_id) == 1
    await lifecycles.tick()
    assert functions.names()[-1] == "ship"


async def test_an_instance_keeps_the_actions_of_its_version_until_it_migrates(penstock: Penstock, functions: Functions):
    lifecycles = penstock.lifecycles
    old = await lifecycles.start("order", "A")
    await lifecycles.import_text(document("2.0.0", [{"gate": "late"}, {"effect": "ring"}]))
    new = await lifecycles.start("order", "B")
    await lifecycles.tick()
    functions.answers["late"] = False
    assert (await lifecycles.trigger(old.guid, "pay")).applied
    assert (await lifecycles.trigger(new.guid, "pay")).reason == "gate 'late' denied it"
    await lifecycles.tick()
    assert functions.names()[2:] == ["free", "mail", "ship"]
    await lifecycles.migrate("order", source="1.0.0", target="2.0.0")
    assert (await lifecycles.tick()).is_idle, "who migrates enters no state"
    functions.answers["late"] = True
    assert (await lifecycles.trigger(old.guid, "pay")).applied
    await lifecycles.tick()
    assert functions.names()[-1] == "ring"


async def test_a_forced_state_asks_no_gate_and_has_its_effects(penstock: Penstock, functions: Functions):
    order = await penstock.lifecycles.start("order")
    functions.answers["covered"] = False
    await penstock.lifecycles.force(order.guid, "Paid", cause="by hand")
    assert functions.asked == []
    await penstock.lifecycles.tick()
    assert functions.names() == ["welcome", "free", "mail", "ship"]


async def test_a_move_and_its_effects_are_one_transaction(penstock: Penstock, functions: Functions):
    order = await penstock.lifecycles.start("order")

    def crash(point: str) -> None:
        if point == "lifecycle_trigger:before":
            raise OSError("cut off")

    with armed(crash), pytest.raises(OSError, match="cut off"):
        await penstock.lifecycles.trigger(order.guid, "pay")
    assert len((await penstock.deliveries.list()).items) == 1
    await penstock.lifecycles.trigger(order.guid, "pay")
    assert len((await penstock.deliveries.list()).items) == 4


async def test_effects_are_left_to_a_process_that_has_their_functions(
    penstock: Penstock, database_url: str, tmp_path: Path, clock: ManualClock, functions: Functions
):
    order = await penstock.lifecycles.start("order")
    await penstock.lifecycles.trigger(order.guid, "pay")
    some = {name: functions.effects[name] for name in ("welcome", "mail")}
    async with opened(database_url, tmp_path, clock, functions.guards, some) as other:
        await other.lifecycles.tick()
        assert functions.names() == ["welcome"], "mail comes after free, which only the other process has"
        await penstock.lifecycles.tick()
    assert functions.names() == ["welcome", "free", "mail", "ship"]


async def test_a_timer_is_left_to_a_process_that_has_its_gates(
    penstock: Penstock, database_url: str, tmp_path: Path, clock: ManualClock, functions: Functions
):
    timed = document("3.0.0", timeout="PT1M", timeout_event="pay")
    await penstock.lifecycles.import_text(timed)
    order = await penstock.lifecycles.start("order")
    clock.advance(61)
    async with opened(database_url, tmp_path, clock, {"guard": functions.guards["guard"]}, {}) as other:
        assert (await other.lifecycles.tick()).is_idle
    assert (await penstock.lifecycles.tick()).timers_fired == 1
    assert (await penstock.lifecycles.get(order.guid)).state == "Paid"


async def test_actions_of_a_draft_are_edited_and_stored(penstock: Penstock):
    draft = await penstock.lifecycles.draft("order", version="4.0.0")
    await draft.change_state("Paid", on_entry=[StateAction("effect", "ring")], on_exit=[StateAction("gate", "late")])
    await draft.add_state("Lost", on_entry=[StateAction("effect", "mail")])
    await draft.publish()
    graph = await penstock.lifecycles.graph("order", version="4.0.0")
    assert graph.state("Paid").on_entry == (StateAction("effect", "ring"),)
    assert graph.state("Paid").on_exit == (StateAction("gate", "late"),)
    assert graph.state("New").on_exit == tuple(StateAction(k, n) for each in EXIT for k, n in each.items())
    assert graph.state("Lost").on_entry == (StateAction("effect", "mail"),)


async def test_effects_are_no_consumers(penstock: Penstock):
    with pytest.raises(InvalidInput, match="does not begin with 'effect:'"):
        await penstock.deliveries.register("effect:000:mail")
    with pytest.raises(InvalidInput, match="carried out by processes that have its function"):
        await penstock.deliveries.claim("effect:000:mail")


async def test_verify_finds_a_move_whose_effects_are_missing(penstock: Penstock):
    order = await penstock.lifecycles.start("order")
    await penstock.lifecycles.trigger(order.guid, "pay")
    assert await penstock.lifecycles.verify() == (1, [])

    async def lose(tx: Connection) -> None:
        await tx.execute(delete(deliveries).where(deliveries.c.consumer == "effect:001:mail"))

    await penstock.db.transaction(lose)
    _, (found,) = await penstock.lifecycles.verify()
    assert (found.rule, found.message) == (
        "effects_have_deliveries", f"instance {order.guid}: entry 2 has none for its effect 'mail'",
    )  # fmt: skip
