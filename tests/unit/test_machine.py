"""A machine is a table, and everything else derives from it."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Conflict, DeclarationError, IllegalMove
from penstock.machine import Machine, Transition

DOOR = Machine.of(
    "door",
    ("Closed", "opened", "Open"),
    ("Open", "closed", "Closed"),
    ("Closed", "locked", "Locked"),
    ("Locked", "unlocked", "Closed"),
    ("Open", "broken", "Broken"),
    ("Closed", "broken", "Broken"),
    settled=("Broken",),
)

names = st.sampled_from("ABCDE")
tables = st.dictionaries(st.tuples(names, names), names, min_size=1).map(
    lambda moves: [(source, f"to_{event}", target) for (source, event), target in moves.items()]
)


def test_states_and_events_stand_in_order_of_appearance():
    assert DOOR.states == ("Closed", "Open", "Locked", "Broken")
    assert DOOR.events == ("opened", "closed", "locked", "unlocked", "broken")


def test_the_first_state_is_the_initial_one_unless_another_is_named():
    assert DOOR.initial == "Closed"
    assert Machine.of("lamp", ("Off", "lit", "On"), initial="On").initial == "On"


@given(tables)
def test_every_pair_is_either_in_the_table_or_refused(lines: list[tuple[str, str, str]]):
    machine = Machine.of("drawn", *lines)
    listed = {(source, event): target for source, event, target in lines}
    for state, event in product(machine.states, machine.events):
        if (state, event) in listed:
            assert machine.after(state, event) == listed[state, event]
        else:
            with pytest.raises(IllegalMove):
                machine.after(state, event)


@given(tables)
def test_what_is_allowed_and_the_sources_of_an_event_are_two_views_of_one_table(lines: list[tuple[str, str, str]]):
    machine = Machine.of("drawn", *lines)
    by_state = {(state, event) for state in machine.states for event in machine.allowed(state)}
    by_event = {(state, event) for event in machine.events for state in machine.sources(event)}
    by_target = {(state, event) for event in machine.events for state in machine.targets(event)}
    assert by_state == by_event == by_target == set(machine.moves)


@given(tables)
def test_a_machine_comes_back_from_its_document(lines: list[tuple[str, str, str]]):
    machine = Machine.of("drawn", *lines, settled=[lines[0][2]], initial=lines[-1][0])
    again = Machine.from_json(machine.to_json())
    assert again == machine
    assert again.moves == machine.moves


def test_a_refusal_names_the_record_its_state_and_what_would_be_allowed():
    with pytest.raises(IllegalMove) as refused:
        DOOR.after("Open", "locked", subject="door 7")
    assert str(refused.value) == "door 7 is Open, and 'locked' is not possible in this state; possible: closed, broken"
    assert (refused.value.state, refused.value.event, refused.value.allowed) == ("Open", "locked", ("closed", "broken"))
    assert isinstance(refused.value, Conflict)


def test_a_refusal_in_an_end_state_says_that_it_is_settled():
    with pytest.raises(IllegalMove, match="nothing is, because it is settled"):
        DOOR.after("Broken", "opened")


def test_an_unknown_state_or_event_is_refused_like_any_other():
    for state, event in (("Ajar", "opened"), ("Open", "painted")):
        with pytest.raises(IllegalMove):
            DOOR.after(state, event)


def test_a_pair_with_two_targets_is_refused_at_declaration():
    with pytest.raises(DeclarationError, match=r"\(A, go\) twice"):
        Machine.of("fork", ("A", "go", "B"), ("A", "go", "C"))


@pytest.mark.parametrize("wrong", [{"settled": ("Nowhere",)}, {"initial": "Nowhere"}])
def test_a_settled_or_initial_state_must_be_in_the_table(wrong: dict[str, str]):
    with pytest.raises(DeclarationError, match="no state 'Nowhere'; it has: A, B"):
        Machine.of("line", ("A", "go", "B"), **wrong)


def test_a_machine_without_transitions_is_refused():
    with pytest.raises(DeclarationError, match="has no transitions"):
        Machine.of("void")


def test_a_machine_is_a_value_that_cannot_be_changed():
    with pytest.raises(AttributeError):
        DOOR.name = "window"  # type: ignore[misc]
    with pytest.raises(TypeError):
        DOOR.moves["Open", "closed"] = "Broken"  # type: ignore[index]
    assert DOOR.transitions[0] == Transition("Closed", "opened", "Open")


def test_the_diagram_shows_the_start_every_move_and_every_end():
    assert DOOR.to_mermaid() == (
        "stateDiagram-v2\n"
        "    [*] --> Closed\n"
        "    Closed --> Open : opened\n"
        "    Open --> Closed : closed\n"
        "    Closed --> Locked : locked\n"
        "    Locked --> Closed : unlocked\n"
        "    Open --> Broken : broken\n"
        "    Closed --> Broken : broken\n"
        "    Broken --> [*]\n"
    )


def test_moves_between_the_same_two_states_share_an_arrow():
    machine = Machine.of("twin", ("A", "walked", "B"), ("A", "ran", "B"))
    assert "A --> B : walked / ran" in machine.to_mermaid()
