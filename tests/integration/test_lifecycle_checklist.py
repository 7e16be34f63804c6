"""The testing checklist of the lifecycle document (its section 13), in its order, on every database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from orders import STATES, TRANSITIONS, document, opened, text

from penstock import Penstock
from penstock.clock import ManualClock
from penstock.errors import Conflict, DefinitionInvalid, InvalidInput, NotFound, SettingsInvalid, Unavailable
from penstock.lifecycles import InstanceFlag, Lifecycles, StateFlag, TransitionFlag

START = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
async def penstock(database_url: str, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Penstock]:
    async with opened(database_url, tmp_path, clock) as made:
        yield made


@pytest.fixture
def lifecycles(penstock: Penstock) -> Lifecycles:
    return penstock.lifecycles


# --- Importer


@pytest.mark.covers("LC-001", "LC-012", "LC-013", "LC-118", "LC-063", "LC-064", "LC-018", "LC-025", "LC-002", "LC-078")
async def test_a_valid_document_is_imported_from_text_and_from_a_file(lifecycles: Lifecycles, tmp_path: Path):
    path = tmp_path / "order.json"
    path.write_text(text())
    made = await lifecycles.import_file(path)
    assert (made.name, made.environment_label, made.version_code, made.unchanged) == (
        "Order",
        "Production",
        10000,
        False,
    )
    assert (made.states, made.events, made.transitions) == (5, 6, 6)
    assert await lifecycles.export("order") == path.read_bytes()
    again = await lifecycles.import_text(text(definition={"name": "Order", "version": "1.0.1"}))
    assert (again.definition_id, again.version_code) == (made.definition_id, 10001)


@pytest.mark.covers("LC-118", "LC-067", "LC-065", "LC-066", "LC-077")
async def test_a_missing_environment_is_development_and_labels_and_numbers_are_understood(lifecycles: Lifecycles):
    found = {}
    for given in (None, "dev", "QA", "staging", "PROD", 2, "7", 7):
        name = f"order {given!r}"
        found[given] = (await lifecycles.import_text(text(environment=given, definition={"name": name}))).environment
    assert found == {None: 0, "dev": 0, "QA": 1, "staging": 1, "PROD": 2, 2: 2, "7": 7, 7: 7}


@pytest.mark.covers("LC-118", "LC-072", "LC-030")
async def test_without_an_initial_state_the_first_one_is_and_a_warning_says_so(lifecycles: Lifecycles):
    states = [{"name": "A"}, {"name": "B", "is_final": True}]
    unmarked = text(states=states, transitions=[{"from": "A", "event": "go", "to": "B"}])
    made = await lifecycles.import_text(unmarked)
    assert [str(warning) for warning in made.warnings] == ["states: no state is marked as initial; 'A', the first, is"]
    assert (await lifecycles.graph("order")).initial.name == "A"
    with pytest.raises(DefinitionInvalid, match="no state is marked as initial"):
        await lifecycles.import_text(unmarked, strict=True)


@pytest.mark.covers("LC-076")
async def test_a_document_without_transitions_has_none(lifecycles: Lifecycles):
    made = await lifecycles.import_text(text(transitions=None))
    assert (made.states, made.events, made.transitions) == (5, 0, 0)


@pytest.mark.covers("LC-118", "LC-080", "LC-015", "LC-016")
async def test_unknown_categories_are_made_and_shared(lifecycles: Lifecycles):
    await lifecycles.import_text(text())
    assert [category.name for category in await lifecycles.categories()] == ["business", "error", "system"]
    assert (await lifecycles.add_category("BUSINESS")).name == "business"
    assert (await lifecycles.add_category("Legal")).name == "Legal"
    assert await lifecycles.category("legal") == await lifecycles.add_category("LEGAL")
    assert await lifecycles.category("none") is None


@pytest.mark.covers("LC-118", "LC-104", "LC-079", "LC-081", "LC-083", "LC-084", "LC-134")
async def test_an_import_that_is_repeated_changes_nothing(lifecycles: Lifecycles):
    first = await lifecycles.import_text(text())
    graph = await lifecycles.graph("order")
    assert [state.name for state in graph.states] == [state["name"] for state in STATES]
    lines = [(line.source.name, line.event.name, line.target.name, line.guard) for line in graph.transitions]
    assert lines == [(line["from"], line["event"], line["to"], line.get("guard")) for line in TRANSITIONS]
    shuffled = document(states=STATES[::-1], transitions=TRANSITIONS[::-1])
    again = await lifecycles.import_text(json.dumps(shuffled))
    assert again.unchanged
    assert (again.version_id, again.states, again.events, again.transitions) == (first.version_id, 0, 0, 0)
    assert await lifecycles.graph("order") == graph
    assert await lifecycles.export("order") == text().encode()


@pytest.mark.covers("LC-118", "LC-079", "LC-086", "LC-104")
async def test_other_content_under_a_used_version_is_refused_and_nothing_is_changed(lifecycles: Lifecycles):
    await lifecycles.import_text(text())
    graph = await lifecycles.graph("order")
    with pytest.raises(Conflict, match=r"version 1.0.0 of 'Order' in Production is there with other content"):
        await lifecycles.import_text(text(transitions=TRANSITIONS[:-1]))
    assert await lifecycles.graph("order") == graph


# --- Definitions and versions


@pytest.mark.covers("LC-119", "LC-024", "LC-069", "LC-068")
@pytest.mark.parametrize(
    "given, number",
    [
        ({"version": "1.2.3"}, 10203),
        ({"version": "2"}, 20000),
        ({"version": "1.2.3", "version_code": 7}, 7),
        ({"version_code": 41}, 41),
        ({}, 10000),
    ],
)
async def test_a_version_is_numbered_by_its_code_or_its_dotted_form(lifecycles: Lifecycles, given, number):
    made = await lifecycles.import_text(text(definition={"name": "Order", **given}))
    assert (made.version_code, made.label) == (number, given.get("version"))


@pytest.mark.covers("LC-024")
async def test_version_numbers_that_collide_are_refused(lifecycles: Lifecycles):
    with pytest.raises(DefinitionInvalid, match=r"'1.100.0' has the number 20000, which is that of 2.0.0"):
        await lifecycles.import_text(text(definition={"name": "Order", "version": "1.100.0"}))
    await lifecycles.import_text(text(definition={"name": "Order", "version": "2.0.0"}))
    with pytest.raises(Conflict, match=r"has the number 20000, which is taken by a version with the label '2.0.0'"):
        await lifecycles.import_text(text(definition={"name": "Order", "version": "two", "version_code": 20000}))


@pytest.mark.covers("LC-119", "LC-020")
async def test_the_latest_version_is_the_one_with_the_highest_number(lifecycles: Lifecycles):
    for version in ("1.0.0", "1.10.0", "1.9.0"):
        await lifecycles.import_text(text(definition={"name": "Order", "version": version}))
    assert [version.label for version in await lifecycles.versions("order")] == ["1.10.0", "1.9.0", "1.0.0"]
    assert (await lifecycles.graph("order")).version.label == "1.10.0"
    assert (await lifecycles.graph("order", version="1.9.0")).version.number == 10900
    assert (await lifecycles.graph("order", version=10000)).version.label == "1.0.0"


@pytest.mark.covers("LC-119", "LC-021", "LC-019", "LC-085", "LC-017")
async def test_definitions_are_found_by_name_and_environment(lifecycles: Lifecycles):
    for environment in ("Test", "Production"):
        await lifecycles.import_text(text(environment=environment))
    assert await lifecycles.exists("ORDER", "test")
    assert not await lifecycles.exists("order", "dev")
    found = await lifecycles.definition("order", environment="prod")
    assert found is not None
    assert (found.name, found.environment_label, found.description) == (
        "Order",
        "Production",
        "What becomes of an order",
    )
    assert await lifecycles.definition(found.id) == found
    assert await lifecycles.definition("invoice") is None
    with pytest.raises(InvalidInput, match="in several environments: Test, Production; say which"):
        await lifecycles.graph("order")
    assert [each.environment for each in await lifecycles.definitions()] == [1, 2]


@pytest.mark.covers("LC-022", "LC-023")
async def test_a_definition_is_described_and_deleted_unless_it_has_instances(lifecycles: Lifecycles):
    await lifecycles.import_text(text())
    assert (await lifecycles.describe("order", "Orders of the shop")).description == "Orders of the shop"
    instance = await lifecycles.start("order", "A-1")
    with pytest.raises(Conflict, match=r"'Order' has 1 instance\(s\)"):
        await lifecycles.delete_definition("order")
    await lifecycles.delete(instance.guid, force=True)
    await lifecycles.delete_definition("order")
    assert await lifecycles.definitions() == []


# --- States


@pytest.mark.covers("LC-120", "LC-029", "LC-009", "LC-028")
async def test_states_are_found_ignoring_case_and_keep_their_spelling(lifecycles: Lifecycles):
    await lifecycles.import_text(text())
    graph = await lifecycles.graph("ORDER")
    assert graph.state("pAID").name == "Paid"
    assert [state.name for state in graph.states] == ["New", "Paid", "Held", "Shipped", "Lost"]
    with pytest.raises(NotFound, match=r"Order 1.0.0 has no state 'Payed'; did you mean 'Paid'\?"):
        graph.state("Payed")


@pytest.mark.covers("LC-120", "LC-034", "LC-070", "LC-071", "LC-031", "LC-005", "LC-087")
async def test_flags_of_states_are_the_documented_bits(lifecycles: Lifecycles):
    states = [*STATES, {"name": "Odd", "flags": ["IsSystem", "error"]}]
    await lifecycles.import_text(text(states=states))
    graph = await lifecycles.graph("order")
    assert {state.name: int(state.flags) for state in graph.states} == {
        "New": 1, "Paid": 0, "Held": 4, "Shipped": 2, "Lost": 10, "Odd": 12,
    }  # fmt: skip
    assert [state.name for state in graph.final_states] == ["Shipped", "Lost"]
    assert graph.final_state == graph.state("shipped")


@pytest.mark.covers("LC-120", "LC-026", "LC-027", "LC-032", "LC-033")
async def test_states_of_a_draft_are_changed_and_deleted_unless_they_are_used(lifecycles: Lifecycles):
    await lifecycles.import_text(text())
    draft = await lifecycles.draft("order", version="1.1.0")
    await draft.add_state("Parked", flags=StateFlag.SYSTEM, category="business")
    await draft.change_state("parked", flags=StateFlag.ERROR)
    assert (await draft.graph()).state("Parked").flags == StateFlag.ERROR
    with pytest.raises(Conflict, match="names ignore case"):
        await draft.add_state("PARKED")
    with pytest.raises(Conflict, match=r"state 'Paid' is used by 4 transition\(s\), such as New --pay--> Paid"):
        await draft.delete_state("Paid")
    await draft.delete_state("Parked")
    published = await draft.publish()
    assert (published.version_code, published.unchanged) == (10100, False)
    with pytest.raises(Conflict, match="a published version never changes"):
        await draft.change_state("Paid", flags=StateFlag.ERROR)


# --- Events


@pytest.mark.covers("LC-121", "LC-035", "LC-036", "LC-073", "LC-082")
async def test_events_are_registered_looked_up_and_the_same_in_two_versions(lifecycles: Lifecycles):
    await lifecycles.import_text(text(events=["audit", "PAY"]))
    graph = await lifecycles.graph("order")
    assert [event.name for event in graph.events] == ["audit", "PAY", "ship", "hold", "release", "remind", "lose"]
    assert graph.event("pay").name == "PAY"
    draft = await lifecycles.draft("order")
    await draft.add_event("Refund")
    with pytest.raises(Conflict, match=r"event 'pay' is used by 1 transition"):
        await draft.delete_event("pay")
    await draft.delete_event("audit")
    await draft.publish()
    later = await lifecycles.graph("order")
    assert later.version.number == 10001
    assert [event.name for event in later.events] == ["PAY", "ship", "hold", "release", "remind", "lose", "Refund"]
    assert later.event("pay").id != graph.event("pay").id


# --- Transitions


@pytest.mark.covers("LC-122", "LC-037", "LC-038", "LC-039", "LC-040", "LC-042", "LC-043", "LC-074", "LC-088")
async def test_transitions_have_guards_and_flags_and_are_found_by_state_and_event(lifecycles: Lifecycles):
    await lifecycles.import_text(text())
    graph = await lifecycles.graph("order")
    ship = graph.transition("PAID", "ship")
    assert ship is not None
    assert (ship.target.name, ship.guard, ship.flags) == ("Shipped", "in_stock", TransitionFlag.CRITICAL)
    pay = graph.transition("New", "PAY")
    assert pay is not None
    assert (pay.guard, pay.flags) == (None, TransitionFlag.NONE)
    assert graph.transition("New", "ship") is None
    assert [line.event.name for line in graph.outgoing("paid")] == ["ship", "hold"]
    assert len(graph.transitions) == 6


@pytest.mark.covers("LC-122", "LC-041", "LC-026")
async def test_transitions_of_a_draft_are_added_and_deleted_and_refuse_unknown_names(lifecycles: Lifecycles):
    draft = await lifecycles.draft("Claim", version="0.1.0")
    for name in ("Open", "Closed"):
        await draft.add_state(name)
    await draft.add_event("close")
    with pytest.raises(NotFound, match=r"no state 'Opened'; did you mean 'Open'\?; no event 'shut'"):
        await draft.add_transition("Opened", "shut", "Closed")
    await draft.add_transition("open", "close", "closed", guard="is_paid", flags=TransitionFlag.MANUAL)
    with pytest.raises(Conflict, match="a pair has one target"):
        await draft.add_transition("Open", "close", "Open")
    await draft.delete_transition("Open", "close")
    with pytest.raises(NotFound, match="no transition for"):
        await draft.delete_transition("Open", "close")


@pytest.mark.covers("LC-122", "LC-075")
async def test_a_document_with_unknown_states_is_refused_with_every_fault(lifecycles: Lifecycles):
    wrong = [*TRANSITIONS, {"from": "New", "event": "x", "to": "Payd"}, {"from": "Shiped", "event": "y", "to": "New"}]
    with pytest.raises(DefinitionInvalid) as refused:
        await lifecycles.import_text(text(transitions=wrong))
    assert [str(fault) for fault in refused.value.faults] == [
        "transitions[6].to: no state 'Payd'; did you mean 'Paid'?",
        "transitions[7].from: no state 'Shiped'; did you mean 'Shipped'?",
    ]
    assert await lifecycles.definitions() == []


# --- Instances


@pytest.mark.covers("LC-123", "LC-059", "LC-090", "LC-051", "LC-094", "LC-089", "LC-004", "LC-095")
async def test_an_instance_is_created_once_for_a_version_and_a_reference(lifecycles: Lifecycles):
    await lifecycles.import_text(text())
    first = await lifecycles.start("order", "A-1", data={"total": 9})
    assert (first.state, first.last_event, first.flags, first.version) == ("New", None, InstanceFlag.ACTIVE, 10000)
    again = await lifecycles.start("order", "A-1", data={"total": 10})
    assert again == first
    await lifecycles.import_text(text(definition={"name": "Order", "version": "2.0.0"}))
    newer = await lifecycles.start("order", "A-1")
    assert (newer.guid != first.guid, newer.version) == (True, 20000)
    found = await lifecycles.instances(reference="A-1")
    assert [each.guid for each in found.items] == [first.guid, newer.guid]


@pytest.mark.covers("LC-123", "LC-052", "LC-053", "LC-054", "LC-091")
async def test_instances_are_found_by_guid_id_reference_state_and_last_event(lifecycles: Lifecycles):
    await lifecycles.import_text(text())
    paid, new = [await lifecycles.start("order", reference) for reference in ("A-1", "A-2")]
    await lifecycles.trigger(paid.guid, "pay")
    assert await lifecycles.get(new.id) == await lifecycles.get(new.guid) == new
    assert [each.guid for each in (await lifecycles.instances(state="PAID")).items] == [paid.guid]
    assert [each.guid for each in (await lifecycles.instances(last_event="pay")).items] == [paid.guid]
    assert [each.guid for each in (await lifecycles.instances(reference="A-2")).items] == [new.guid]
    for nobody in ("00000000-0000-0000-0000-000000000000", 10**9):
        with pytest.raises(NotFound, match="no instance has the"):
            await lifecycles.get(nobody)


@pytest.mark.covers("LC-123", "LC-056", "LC-057", "LC-058", "LC-108", "LC-014")
async def test_an_instance_is_changed_completed_and_deleted_by_guid_and_by_id(lifecycles: Lifecycles):
    await lifecycles.import_text(text())
    by_guid, by_id = [await lifecycles.start("order", reference) for reference in ("A-1", "A-2")]
    for name in (by_guid.guid, by_id.id):
        assert (await lifecycles.force(name, "Held", cause="moved house")).state == "Held"
        with pytest.raises(Conflict, match="has not ended; archive it"):
            await lifecycles.delete(name)
        assert (await lifecycles.complete(name)).flags == InstanceFlag.ACTIVE | InstanceFlag.COMPLETED
        await lifecycles.delete(name)
    assert (await lifecycles.instances()).items == []
    assert (await lifecycles.verify())[1] == []


@pytest.mark.covers("LC-123", "LC-107", "LC-099", "LC-100", "LC-101", "LC-102", "LC-010", "LC-011")
async def test_flags_are_added_and_removed_and_never_overwritten(lifecycles: Lifecycles):
    await lifecycles.import_text(text())
    guid = (await lifecycles.start("order", "A-1")).guid
    seen = []
    for action in ("suspend", "complete", "fail", "archive", "resume", "reopen"):
        seen.append((action, int((await getattr(lifecycles, action)(guid)).flags)))
    assert seen == [
        ("suspend", 3), ("complete", 7), ("fail", 15), ("archive", 31), ("resume", 29), ("reopen", 17),
    ]  # fmt: skip
    assert (await lifecycles.reopen(guid)).revision == 7, "what is so already is not written again"


@pytest.mark.covers("LC-123", "LC-055", "LC-103", "LC-128", "LC-129", "LC-061")
async def test_instances_are_filtered_by_all_any_and_none_of_their_flags(lifecycles: Lifecycles):
    await lifecycles.import_text(text())
    plain, held, both, done = [await lifecycles.start("order", f"A-{n}") for n in range(4)]
    for each in (held, both):
        await lifecycles.suspend(each.guid)
    for each in (both, done):
        await lifecycles.complete(each.guid)
    suspended, completed = InstanceFlag.SUSPENDED, InstanceFlag.COMPLETED

    async def found(**wanted: InstanceFlag) -> list[str | None]:
        page = await lifecycles.instances(definition="order", version="1.0.0", **wanted)
        assert len(page.items) == await lifecycles.count(definition="order", version="1.0.0", **wanted)
        return [each.reference for each in page.items]

    assert await found(all_of=completed) == [both.reference, done.reference]
    assert await found(all_of=suspended | completed) == [both.reference]
    assert await found(any_of=suspended | completed) == [held.reference, both.reference, done.reference]
    assert await found(none_of=completed) == [plain.reference, held.reference]
    assert await found(all_of=suspended, none_of=completed) == [held.reference]


# --- Transition logs


@pytest.mark.covers("LC-124", "LC-044", "LC-045", "LC-046", "LC-092", "LC-098", "LC-113", "LC-003", "LC-096")
async def test_the_log_is_read_by_instance_by_states_by_time_and_by_its_end(lifecycles: Lifecycles, clock: ManualClock):
    await lifecycles.import_text(text())
    guid = (await lifecycles.start("order", "A-1", actor="shop")).guid
    other = (await lifecycles.start("order", "A-2")).guid
    for minute, (event, name) in enumerate([("pay", "ana"), ("hold", "bo"), ("release", "cy")], 1):
        clock.advance(60)
        await lifecycles.trigger(guid, event, actor=name, correlation=f"req-{minute}", metadata={"minute": minute})
    await lifecycles.trigger(other, "pay")
    log = (await lifecycles.log(guid)).items
    assert [(e.sequence, e.kind, e.source, e.event, e.target, e.actor) for e in log] == [
        (1, "started", None, None, "New", "shop"),
        (2, "moved", "New", "pay", "Paid", "ana"),
        (3, "moved", "Paid", "hold", "Held", "bo"),
        (4, "moved", "Held", "release", "Paid", "cy"),
    ]
    assert [(e.correlation, e.metadata) for e in log[1:]] == [(f"req-{n}", {"minute": n}) for n in (1, 2, 3)]
    assert await lifecycles.latest(guid) == log[-1]
    pair = await lifecycles.log(source="new", target="paid")
    assert [(e.guid, e.sequence) for e in pair.items] == [(guid, 2), (other, 2)]
    until = START + timedelta(minutes=3)
    span = await lifecycles.log(since=START + timedelta(minutes=1), until=until)
    assert [e.sequence for e in span.items] == [2, 3]
    assert [e.sequence for e in (await lifecycles.log(correlation="req-2")).items] == [3]
    newest = await lifecycles.log(guid, newest_first=True, limit=3)
    older = await lifecycles.log(guid, newest_first=True, limit=3, cursor=newest.next_cursor)
    assert [e.sequence for e in (*newest.items, *older.items)] == [4, 3, 2, 1]
    assert older.next_cursor is None


# --- Acknowledgements


@pytest.mark.covers("LC-125", "LC-047", "LC-048", "LC-049", "LC-050", "LC-093")
async def test_a_move_is_acknowledged_by_its_message_id_pending_after_a_while_and_bumped(
    penstock: Penstock, clock: ManualClock
):
    lifecycles, deliveries = penstock.lifecycles, penstock.deliveries
    await lifecycles.import_text(text())
    await deliveries.register("billing", retry_after=60)
    guid = (await lifecycles.start("order", "A-1")).guid
    outcome = await lifecycles.trigger(guid, "pay")
    (pending,) = (await deliveries.list()).items
    assert pending.message_id == f"{guid}:{outcome.sequence}:billing"
    assert (pending.state, pending.attempts, pending.entry.event) == ("Pending", 0, "pay")
    assert (await deliveries.list(state="Pending", older_than=120)).items == []
    clock.advance(120)
    assert len((await deliveries.list(state="Pending", older_than=120)).items) == 1
    bumped = await deliveries.bump(pending.message_id)
    assert bumped.attempts == 1
    assert bumped.due_at is not None
    assert bumped.due_at >= START + timedelta(seconds=180)
    assert (await deliveries.acknowledge(pending.message_id, "delivered")).state == "Delivered"
    assert (await deliveries.acknowledge(pending.message_id)).state == "Processed"
    assert (await deliveries.acknowledge(pending.message_id)).state == "Processed"
    with pytest.raises(NotFound, match="no delivery has the message id 'nobody'"):
        await deliveries.acknowledge("nobody")


# --- Concurrency and transactions


@pytest.mark.covers("LC-126", "LC-105")
async def test_of_many_triggers_at_once_one_wins_and_no_update_is_lost(
    database_url: str, tmp_path: Path, penstock: Penstock, clock: ManualClock
):
    await penstock.lifecycles.import_text(text())
    guid = (await penstock.lifecycles.start("order", "A-1")).guid
    async with opened(database_url, tmp_path, clock) as second:
        both = (penstock.lifecycles, second.lifecycles)
        outcomes = await asyncio.gather(*(both[n % 2].trigger(guid, "pay", actor=f"actor {n}") for n in range(10)))
    kinds = sorted(outcome.kind for outcome in outcomes)
    assert kinds.count("applied") == 1
    assert set(kinds) <= {"applied", "conflict", "not_allowed"}
    log = (await penstock.lifecycles.log(guid)).items
    assert [(entry.sequence, entry.event) for entry in log] == [(1, None), (2, "pay")]
    assert (await penstock.lifecycles.get(guid)).revision == 2
    assert await penstock.lifecycles.verify() == (1, [])


@pytest.mark.covers("LC-126")
async def test_a_client_that_asks_again_with_its_request_key_moves_the_instance_once(lifecycles: Lifecycles):
    await lifecycles.import_text(text())
    guid = (await lifecycles.start("order", "A-1")).guid
    asked = [lifecycles.trigger(guid, "pay", request_key="req-1", retries=20) for _ in range(8)]
    outcomes = await asyncio.gather(*asked)
    assert sorted(outcome.kind for outcome in outcomes) == ["applied", *["duplicate"] * 7]
    assert {(outcome.source, outcome.target, outcome.sequence) for outcome in outcomes} == {("New", "Paid", 2)}


@pytest.mark.covers("LC-106", "LC-130")
async def test_a_unit_of_work_commits_several_calls_together_or_not_at_all(penstock: Penstock):
    lifecycles = penstock.lifecycles
    await lifecycles.import_text(text())
    guid = (await lifecycles.start("order", "A-1")).guid

    async def given_up() -> None:
        async with penstock.transaction() as tx:
            assert (await lifecycles.trigger(guid, "pay", tx=tx)).applied
            await lifecycles.start("order", "A-2", tx=tx)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await given_up()
    assert (await lifecycles.get(guid)).state == "New"
    assert (await lifecycles.instances(reference="A-2")).items == []
    async with penstock.transaction() as tx:
        assert (await lifecycles.trigger(guid, "pay", tx=tx)).applied
        assert (await lifecycles.trigger(guid, "hold", tx=tx)).source == "Paid"
        await lifecycles.change_data(guid, {"shelf": 7}, tx=tx)
    assert (await lifecycles.get(guid)).state == "Held"
    assert (await lifecycles.verify())[1] == []


# --- Failure paths


@pytest.mark.covers("LC-127")
@pytest.mark.parametrize(
    "given, message",
    [
        ('{"definition": ', r"the document is not JSON: .* line 1 column"),
        ("[]", r"the document is an object with environment, definition"),
        ('{"states": [{}]}', r"definition: is an object with name.*found nothing; states\[0\].name: is missing"),
        ('{"definition": {"name": "x"}, "states": []}', "states: a definition has at least one state"),
        ('{"definition": {"name": "x"}, "states": [{"name": "A"}], "states": []}', "the key 'states' stands twice"),
        ('{"definition": {"name": "x"}, "states": [{"name": NaN}]}', "NaN is not a JSON value"),
    ],
)
async def test_malformed_json_and_missing_keys_are_named(lifecycles: Lifecycles, given: str, message: str):
    with pytest.raises(DefinitionInvalid, match=message):
        await lifecycles.import_text(given)


@pytest.mark.covers("LC-127")
async def test_a_file_that_is_not_there_and_records_that_are_not_are_named(lifecycles: Lifecycles, tmp_path: Path):
    with pytest.raises(InvalidInput, match=r"order.json cannot be read: No such file"):
        await lifecycles.import_file(tmp_path / "order.json")
    with pytest.raises(NotFound, match="no definition 'order'"):
        await lifecycles.start("order", "A-1")
    await lifecycles.import_text(text())
    with pytest.raises(NotFound, match=r"'Order' has no version '9.0.0'; it has: 1.0.0"):
        await lifecycles.start("order", "A-1", version="9.0.0")
    with pytest.raises(NotFound, match=r"no definition 'ordr'; did you mean 'Order'\?"):
        await lifecycles.start("ordr", "A-1")


@pytest.mark.covers("LC-127", "LC-110")
@pytest.mark.databases("postgresql", "mariadb")
async def test_a_database_that_is_away_or_refuses_the_user_is_named(database_url: str, tmp_path: Path):
    from sqlalchemy import make_url

    url = make_url(database_url)
    wrong_user = url.set(username="nobody_we_know", password="x", database="no_such_database")
    with pytest.raises((SettingsInvalid, Unavailable)):
        async with opened(wrong_user.render_as_string(hide_password=False), tmp_path):
            pass
