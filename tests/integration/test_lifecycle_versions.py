"""Versions: drafts, exports, differences, machines of one's own, and instances that move to a newer version."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from orders import STATES, TRANSITIONS, document, opened, text

from penstock import Machine, Penstock
from penstock.clock import ManualClock
from penstock.errors import Conflict, DefinitionInvalid, InvalidInput, NotFound
from penstock.lifecycles import InstanceFlag, Lifecycles, StateFlag, Timeout


@pytest.fixture
async def penstock(database_url: str, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Penstock]:
    async with opened(database_url, tmp_path, clock) as made:
        await made.lifecycles.import_text(text())
        yield made


@pytest.fixture
def lifecycles(penstock: Penstock) -> Lifecycles:
    return penstock.lifecycles


async def newer(lifecycles: Lifecycles) -> None:
    """Version 2 calls Held "On hold", and knows no Lost."""
    states = [{**state, "name": "On hold"} if state["name"] == "Held" else state for state in STATES[:4]]
    lines = [
        {"from": "New", "event": "pay", "to": "Paid"},
        {"from": "Paid", "event": "hold", "to": "On hold"},
        {"from": "On hold", "event": "release", "to": "Paid"},
        {"from": "Paid", "event": "ship", "to": "Shipped"},
    ]
    version = {"name": "Order", "version": "2.0.0"}
    await lifecycles.import_text(text(definition=version, states=states, transitions=lines))


async def test_a_machine_written_in_python_is_imported_and_comes_back(lifecycles: Lifecycles):
    door = Machine.of(
        "Door", ("Open", "shut", "Closed"), ("Closed", "open", "Open"), ("Open", "burn", "Ashes"), settled=["Ashes"]
    )
    made = await lifecycles.import_machine(door, environment="Test", version="0.2.0")
    assert (made.name, made.environment, made.version_code) == ("Door", 1, 200)
    assert (await lifecycles.graph("door")).machine() == door
    assert Machine.from_json(json.loads(await lifecycles.export("door"))) == door
    assert (await lifecycles.import_machine(door, environment="Test", version="0.2.0")).unchanged


async def test_a_draft_is_edited_piece_by_piece_and_frozen_by_publishing(lifecycles: Lifecycles):
    draft = await lifecycles.draft("Claim", version="1.0.0", description="What becomes of a claim")
    for name in ("Open", "Closed"):
        await draft.add_state(name, category="claims")
    await draft.add_event("close")
    with pytest.raises(InvalidInput, match=r"condition\.op: is one of"):
        await draft.add_transition("open", "CLOSE", "closed", condition={"field": "paid", "op": "eval", "value": 1})
    await draft.add_transition("open", "CLOSE", "closed", condition={"field": "paid", "op": "=", "value": True})
    await draft.change_state("open", fires=Timeout(60_000_000, "close"))
    await draft.change_state("Closed", flags=StateFlag.FINAL)
    with pytest.raises(NotFound, match="no published version"):
        await lifecycles.start("claim")
    assert (await lifecycles.versions("claim"))[0].is_draft
    reopened = await lifecycles.open_draft("claim")
    published = await reopened.publish()
    assert (published.version_code, published.states, published.transitions) == (10000, 2, 1)
    graph = await lifecycles.graph("claim")
    assert (graph.initial.name, graph.initial.timeout) == ("Open", Timeout(60_000_000, "close"))
    written = json.loads(await lifecycles.export("claim"))
    assert written["definition"]["description"] == "What becomes of a claim"
    assert written["transitions"][0]["when"] == {"field": "paid", "op": "=", "value": True}
    assert (await lifecycles.import_text(json.dumps(written))).unchanged
    for edit in (draft.add_state("X"), draft.delete_event("close"), draft.publish(), draft.discard()):
        with pytest.raises(Conflict, match="a published version never changes"):
            await edit


async def test_a_draft_with_faults_stays_a_draft_and_can_be_discarded(lifecycles: Lifecycles):
    draft = await lifecycles.draft("Claim")
    with pytest.raises(DefinitionInvalid, match="the draft has no state"):
        await draft.publish()
    await draft.add_state("Open", fires=Timeout(1_000_000, "close"))
    await draft.add_event("close")
    with pytest.raises(DefinitionInvalid, match=r"states\[0\].timeout_event: 'Open' has no transition for 'close'"):
        await draft.publish()
    await draft.discard()
    assert await lifecycles.versions("claim") == []
    with pytest.raises(NotFound, match="has no such draft"):
        await lifecycles.open_draft("claim")


async def test_a_draft_begins_as_a_copy_and_takes_a_number_of_its_own(lifecycles: Lifecycles):
    draft = await lifecycles.draft("order")
    copy = await draft.graph()
    assert copy.version.number == 10001
    assert copy.document().transitions == (await lifecycles.graph("order")).document().transitions
    with pytest.raises(Conflict, match="has a version 10000 already"):
        await lifecycles.draft("order", version=10000)
    with pytest.raises(Conflict, match="is a draft; publish or discard it first"):
        await lifecycles.import_text(text(definition={"name": "Order", "version_code": 10001}))
    with pytest.raises(InvalidInput, match=r"is not of the form X\.Y\.Z"):
        await lifecycles.draft("order", version="latest")


async def test_imports_of_one_document_at_once_make_one_version(
    database_url: str, tmp_path: Path, penstock: Penstock, clock: ManualClock
):
    other = text(definition={"name": "Order", "version": "3.0.0"})
    async with opened(database_url, tmp_path, clock) as second:
        both = (penstock.lifecycles, second.lifecycles)
        made = await asyncio.gather(*(both[n % 2].import_text(other) for n in range(6)))
    assert sorted(each.unchanged for each in made) == [False, *[True] * 5]
    assert len({each.version_id for each in made}) == 1
    assert len((await penstock.lifecycles.graph("order")).states) == 5


async def test_a_description_is_changed_by_describe_alone(lifecycles: Lifecycles):
    version = {"name": "Order", "version": "1.5.0", "description": "Something else"}
    made = await lifecycles.import_text(text(definition=version))
    assert any("differs from the stored one, which is kept" in str(warning) for warning in made.warnings)
    found = await lifecycles.definition("order")
    assert found is not None
    assert found.description == "What becomes of an order"


async def test_two_versions_are_compared(lifecycles: Lifecycles):
    await newer(lifecycles)
    assert [str(change) for change in await lifecycles.diff("order", "1.0.0")] == [
        "- state Held",
        "- state Lost",
        "+ state On hold: System, category system",
        "- event remind",
        "- event lose",
        "~ transition Paid --ship-->: to shipped, guard in_stock, Critical -> to shipped",
        "~ transition Paid --hold-->: to held -> to on hold",
        "- transition Held --release-->",
        "- transition Held --remind-->",
        "- transition New --lose-->",
        "+ transition On hold --release-->: to paid",
    ]
    assert await lifecycles.diff("order", "2.0.0", "2.0.0") == []


async def test_a_version_is_drawn(lifecycles: Lifecycles):
    mermaid = await lifecycles.diagram("order")
    assert mermaid.startswith("stateDiagram-v2\n    [*] --> New\n    New --> Paid : pay\n")
    svg = await lifecycles.diagram("order", form="svg")
    assert svg.count("<rect") == 5
    assert svg.count("marker-end") == 6
    with pytest.raises(InvalidInput, match="a diagram is mermaid or svg"):
        await lifecycles.diagram("order", form="png")


async def test_instances_move_to_a_newer_version_by_a_map_of_states(penstock: Penstock, clock: ManualClock):
    lifecycles = penstock.lifecycles
    started = await lifecycles.start_many("order", (f"A-{n}" for n in range(30)))
    guids = [each.guid for each in started]
    await lifecycles.trigger_many(guids[:20], "pay")
    await lifecycles.trigger_many(guids[:10], "hold")
    await lifecycles.suspend(guids[0])
    await newer(lifecycles)
    planned = await lifecycles.migrate("order", source="1.0.0", dry_run=True)
    assert [str(fault) for fault in planned.faults] == ["Held: 10 instance(s) are in it; say which state they go to"]
    with pytest.raises(InvalidInput, match="Held: 10 instance"):
        await lifecycles.migrate("order", source="1.0.0")
    states = {"held": "On Hold"}
    planned = await lifecycles.migrate("order", source="1.0.0", states=states, dry_run=True)
    assert (planned.faults, planned.instances, planned.is_dry_run) == ((), 30, True)
    assert await lifecycles.count(definition="order", version="2.0.0") == 0
    done = await lifecycles.migrate("order", source="1.0.0", states=states, actor="ana", cause="release 2")
    assert done.moves == planned.moves == {("Held", "On hold"): 10, ("Paid", "Paid"): 10, ("New", "New"): 10}
    held = await lifecycles.get(guids[0])
    assert (held.state, held.version, held.last_event, int(held.flags)) == ("On hold", 20000, "hold", 3)
    last = await lifecycles.latest(guids[0])
    assert last is not None
    assert (last.kind, last.source, last.target, last.version, last.cause) == (
        "migrated", "Held", "On hold", 20000, "release 2",
    )  # fmt: skip
    assert (await lifecycles.trigger(guids[1], "release")).target == "Paid"
    assert await lifecycles.verify() == (30, [])


async def test_an_instance_that_migrates_to_an_end_is_completed(lifecycles: Lifecycles):
    guid = (await lifecycles.start("order")).guid
    await newer(lifecycles)
    await lifecycles.migrate("order", source="1.0.0", states={"New": "Shipped"})
    moved = await lifecycles.get(guid)
    assert (moved.state, moved.flags) == ("Shipped", InstanceFlag.COMPLETED)
    assert await lifecycles.verify() == (1, [])


async def test_a_migration_names_wrong_states_and_references_that_are_there_already(lifecycles: Lifecycles):
    await lifecycles.start("order", "A-1")
    await newer(lifecycles)
    await lifecycles.start("order", "A-1")
    wrong = {"Hled": "Paid", "Held": "Onhold"}
    planned = await lifecycles.migrate("order", source="1.0.0", states=wrong, dry_run=True)
    assert [str(fault) for fault in planned.faults] == [
        "Hled: Order 1.0.0 has no such state; did you mean 'Held'?",
        "Held: Order 2.0.0 has no state 'Onhold'; did you mean 'On hold'?",
        "reference 'A-1' has an instance in Order 2.0.0 already",
    ]
    with pytest.raises(InvalidInput, match=r"both Order 2.0.0"):
        await lifecycles.migrate("order", source="2.0.0")


async def test_a_definition_in_use_elsewhere_is_not_started_once_it_was_deleted(
    database_url: str, tmp_path: Path, penstock: Penstock, clock: ManualClock
):
    async with opened(database_url, tmp_path, clock) as second:
        assert (await second.lifecycles.graph("order")).version.label == "1.0.0"
        await penstock.lifecycles.delete_definition("order")
        with pytest.raises(NotFound, match="no definition 'order'"):
            await second.lifecycles.start("order")


async def test_a_published_draft_has_the_flags_of_its_own_document(lifecycles: Lifecycles):
    draft = await lifecycles.draft("parcel", version="1.0.0")
    await draft.add_state("Sent")
    await draft.add_state("Broken", category="error")
    await draft.publish()
    graph = await lifecycles.graph("parcel")
    assert {state.name: state.flags for state in graph.states} == {
        "Sent": StateFlag.INITIAL, "Broken": StateFlag.ERROR,
    }  # fmt: skip
    assert graph.document().digest() == graph.version.digest


@pytest.mark.covers("LC-116", "LC-133")
async def test_tenants_see_nothing_of_each_other(penstock: Penstock, clock: ManualClock):
    lifecycles = penstock.lifecycles
    acme, zen = lifecycles.tenant("acme"), lifecycles.tenant("zen")
    assert await acme.definitions() == []
    for tenant in (acme, zen):
        await tenant.import_text(json.dumps(document(transitions=TRANSITIONS[:2], states=STATES[:4])))
        await tenant.deliveries.register("billing")
    mine = await acme.start("order", "A-1")
    theirs = await zen.start("order", "A-1")
    assert mine.guid != theirs.guid
    for call in (
        zen.get(mine.guid),
        zen.get(mine.id),
        zen.trigger(mine.guid, "pay"),
        lifecycles.log(mine.guid),
        zen.suspend(mine.id),
    ):
        with pytest.raises(NotFound, match="no instance has"):
            await call
    assert [each.kind for each in await zen.trigger_many([mine.guid, theirs.guid], "pay")] == ["not_found", "applied"]
    assert (await acme.get(mine.guid)).state == "New"
    assert await acme.deliveries.claim("billing") == []
    (told,) = await zen.deliveries.claim("billing")
    with pytest.raises(NotFound):
        await acme.deliveries.acknowledge(told.message_id)
    assert [each.name for each in await acme.categories()] == ["business", "system"]
    assert await lifecycles.tenants() == ["acme", "zen"]
    for tenant in (acme, zen):
        assert await tenant.verify() == (1, [])
    assert await lifecycles.count() == 0
    assert lifecycles.tenant("acme") is acme
    with pytest.raises(InvalidInput, match="a tenant is printable text of at most 64 characters"):
        lifecycles.tenant("x" * 65)
