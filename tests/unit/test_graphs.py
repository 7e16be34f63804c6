"""State graphs as documents: every fault at once with its path, oddities as warnings, durations and conditions."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DefinitionInvalid
from penstock.graphs.conditions import OPERATORS, condition_faults, describe, unmet
from penstock.graphs.document import check_document, parse_document
from penstock.graphs.durations import DURATION_US_MAX, format_duration, parse_duration
from penstock.graphs.flags import StateFlag, TransitionFlag, flag_words
from penstock.graphs.model import StateLine, TransitionLine
from penstock.graphs.names import name_key
from penstock.graphs.writing import document_of
from penstock.lifecycles.rules.comparing import compare
from penstock.lifecycles.rules.drawing import to_svg
from penstock.machine import Machine


def document(**changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "definition": {"name": "order"},
        "states": [{"name": "New", "is_initial": True}, {"name": "Done", "is_final": True}],
        "transitions": [{"from": "New", "event": "finish", "to": "Done"}],
    }
    return {**whole, **changes}


def faults(value: Any, **how: Any) -> list[str]:
    with pytest.raises(DefinitionInvalid) as refused:
        check_document(value, **how)
    return [str(fault) for fault in refused.value.faults]


def test_every_fault_is_named_at_once_with_its_path():
    wrong = {
        "enviroment": "Prod",
        "environment": "Moon",
        "definition": {"name": " ", "version": "1.100.0", "description": 7},
        "states": [
            {"name": "Approved", "is_initial": "yes", "flags": ["Inital", 3]},
            {"name": "APPROVED"},
            {"name": "Waiting", "timeout": "soon", "timeout_mode": "often"},
            {"name": "Late", "timeout_event": "x"},
            {"category": "c"},
            "Paid",
        ],
        "events": ["go", "GO", {"name": ""}],
        "transitions": [
            {"from": "Approved", "event": "go", "to": "Waiting"},
            {"from": "approved", "event": "Go", "to": "Late"},
            {"from": "Aproved", "event": "x", "to": "Nowhere", "guard": 5, "flags": "Auto"},
            {"from": "Waiting", "to": "Late", "when": {"field": "a", "op": "~"}},
        ],
    }
    assert faults(wrong) == [
        "enviroment: unknown key; did you mean 'environment'?",
        "environment: no environment 'Moon'; known are Development (dev), Test (QA, Staging), Production (prod) and "
        "numbers from 0 to 999",
        "definition.name: is a name; found ' '",
        "definition.version: '1.100.0' has the number 20000, which is that of 2.0.0; minor and patch go up to 99, "
        "or give a version_code",
        "definition.description: is text; found 7",
        "states[0].flags[0]: no flag 'Inital'; did you mean 'Initial'?",
        "states[0].flags[1]: no flag 3; known are Initial, Final, System, Error",
        "states[0].is_initial: is true or false; found 'yes'",
        "states[1].name: 'Approved' is there already; names ignore case",
        "states[2].timeout: 'soon' is no ISO 8601 duration; write PT30S, PT15M, PT2H or P3D",
        "states[2].timeout_mode: is 'once' or 'repeat'; found 'often'",
        "states[2].timeout_event: is missing",
        "states[3].timeout_event: stands without a timeout",
        "states[4].name: is missing",
        "states[5]: is an object with name, is_initial, is_final, category, flags, timeout, timeout_mode, "
        "timeout_event, on_entry, on_exit; found 'Paid'",
        "events[1]: 'go' is there already; names ignore case",
        "events[2].name: is a name; found ''",
        "transitions[1]: ('Approved', 'go') leads to 'Waiting' by transitions[0] already; a pair has one target",
        "transitions[2].from: no state 'Aproved'; did you mean 'Approved'?",
        "transitions[2].to: no state 'Nowhere'",
        "transitions[2].guard: is the name of a guard; found 5",
        "transitions[2].flags: is a list; found 'Auto'",
        "transitions[3].event: is missing",
        "transitions[3].when.op: is one of =, !=, <, <=, >, >=, in, not in, exists, missing; found '~'",
    ]


@pytest.mark.covers("LC-087")
def test_more_than_one_initial_state_is_refused():
    both = [{"name": "A", "is_initial": True}, {"name": "B", "flags": ["initial"]}]
    assert faults(document(states=both, transitions=[])) == ["states: only one state is initial; marked are 'A', 'B'"]


def test_what_is_odd_is_a_warning_and_in_strict_mode_a_fault():
    odd = document(
        states=[
            {"name": "A"},
            {"name": "Island"},
            {"name": "Loop"},
            {"name": "End", "is_final": True},
        ],
        events=["unused"],
        transitions=[
            {"from": "A", "event": "go", "to": "End"},
            {"from": "a", "event": "GO", "to": "end"},
            {"from": "A", "event": "spin", "to": "Loop"},
            {"from": "Loop", "event": "spin", "to": "Loop"},
            {"from": "End", "event": "back", "to": "A"},
        ],
    )
    warnings = [str(warning) for warning in check_document(odd).warnings]
    assert warnings == [
        "transitions[1]: is the same as transitions[0]",
        "states: no state is marked as initial; 'A', the first, is",
        "states[1]: 'Island' cannot be reached from 'A'",
        "states[1]: 'Island' is a dead end: it is not final and has no exit",
        "states[2]: 'Loop' is a dead end: it is not final and leads to itself only",
        "states[3]: 'End' is final, and yet it has exits; `reopen` comes before they can be used",
        "events[0]: 'unused' is used by no transition",
    ]
    assert faults(odd, strict=True) == warnings
    assert check_document(document()).warnings == ()


def test_a_machine_gets_the_same_checks():
    with pytest.raises(DefinitionInvalid, match=r"transitions\[0\].to: no state 'Don'; did you mean 'Done'\?"):
        Machine.from_json(document(transitions=[{"from": "New", "event": "finish", "to": "Don"}]))
    made = Machine.from_json(document(states=[{"name": "New"}, {"name": "Done", "is_final": True}, {"name": "Island"}]))
    assert made.states == ("New", "Done", "Island")
    assert (made.initial, made.settled) == ("New", {"Done"})
    assert "    Island\n" in made.to_mermaid()
    assert Machine.from_json(made.to_json()) == made


def test_names_of_several_words_are_drawn_under_short_ones():
    made = Machine.of("trip", ("In transit", 'said: "go"', "end"), settled=["end"])
    assert made.to_mermaid() == (
        "stateDiagram-v2\n"
        '    state "In transit" as s1\n'
        '    state "end" as s2\n'
        "    [*] --> s1\n"
        "    s1 --> s2 : said#58; #quot;go#quot;\n"
        "    s2 --> [*]\n"
    )


def test_text_that_would_be_read_in_two_ways_is_refused():
    for text, why in (
        ('{"definition": {"name": "a", "name": "b"}, "states": [{"name": "A"}]}', "the key 'name' stands twice"),
        ('{"a": Infinity}', "Infinity is not a JSON value"),
        ("", "is not JSON"),
        ("\xff", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
    ):
        with pytest.raises(DefinitionInvalid, match=why):
            parse_document(text)


names = st.text("abcXYZ é-", min_size=1, max_size=6).filter(str.strip)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    keys = draw(st.lists(names, min_size=1, max_size=5, unique_by=name_key))
    lines = draw(
        st.dictionaries(
            st.tuples(st.sampled_from(keys), st.sampled_from(["go", "stop", "turn"])), st.sampled_from(keys), max_size=8
        )
    )
    words = st.lists(st.sampled_from(list(flag_words(TransitionFlag))), max_size=2)
    final = draw(st.sets(st.sampled_from(keys)))
    return {
        "environment": draw(st.sampled_from(["dev", "Test", 2])),
        "definition": {"name": draw(names), "version": draw(st.sampled_from(["1.0.0", "3.99.7"]))},
        "states": [{"name": key, "is_initial": key == keys[-1], "is_final": key in final} for key in keys],
        "transitions": [{"from": a, "event": e, "to": b, "flags": draw(words)} for (a, e), b in lines.items()],
    }


@given(documents())
def test_a_document_comes_back_from_its_graph(given_document: dict[str, Any]):
    graph = parse_document(json.dumps(given_document))
    again = check_document(document_of(graph))
    assert again.digest() == graph.digest()
    assert compare(graph, again) == []
    assert again.states == graph.states
    drawn = ElementTree.fromstring(to_svg(graph))
    assert len(drawn.findall(".//{*}rect")) == len(graph.states)


@given(documents(), st.randoms())
def test_order_and_case_make_no_difference_and_content_does(given_document: dict[str, Any], random: Any):
    graph = check_document(given_document)
    shuffled = json.loads(
        json.dumps(given_document).swapcase().replace("TRUE", "true").replace("FALSE", "false").lower()
    )
    for key in ("states", "transitions"):
        random.shuffle(shuffled[key])
    assert check_document(shuffled).digest() == graph.digest()
    more = {**given_document, "states": [*given_document["states"], {"name": "one more"}]}
    assert check_document(more).digest() != graph.digest()


@pytest.mark.covers("LC-008", "LC-043", "LC-034")
def test_flags_and_names_know_their_documented_values():
    assert {word: int(flag) for word, flag in flag_words(TransitionFlag).items()} == {
        "System": 1, "Auto": 2, "Manual": 4, "NeedsApproval": 8, "CanRetry": 16, "Critical": 32, "Rollback": 64,
    }  # fmt: skip
    assert {word: int(flag) for word, flag in flag_words(StateFlag).items()} == {
        "Initial": 1, "Final": 2, "System": 4, "Error": 8,
    }  # fmt: skip
    assert StateLine("A").content() != StateLine("A", StateFlag.ERROR).content()
    assert TransitionLine("A", "e", "B").content() != TransitionLine("A", "e", "B", guard="g").content()
    assert name_key(" Straße\u0301 ") == name_key("STRASSE\u0301")


# --- durations


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("PT30S", 30),
        ("PT1H30M", 5400),
        ("P1D", 86400),
        ("P1DT1S", 86401),
        ("P2W", 1209600),
        ("PT0.5S", 0.5),
        ("pt2h", 7200),
    ],
)
def test_durations_of_a_fixed_length_are_read(text: str, seconds: float):
    assert parse_duration(text) == seconds * 1e6


@pytest.mark.parametrize("text", ["", "P", "PT", "1H", "P1Y", "P1M", "PT-1S", "PT0S", "P1DT", "P99999W", "PT1H1H"])
def test_what_is_no_duration_is_refused(text: str):
    with pytest.raises(ValueError, match=r"duration|fixed length|between"):
        parse_duration(text)


@given(st.integers(1, DURATION_US_MAX))
def test_a_duration_comes_back_from_its_text(us: int):
    assert parse_duration(format_duration(us)) == us


# --- conditions

DATA = {"total": 10, "name": "ann", "flag": True, "none": None, "box": {"size": 3}, "a.b": 1}


@pytest.mark.parametrize(
    "condition, why",
    [
        ({"field": "total", "op": "<=", "value": 10}, None),
        ({"field": "total", "op": "<", "value": 10}, "total is 10, wanted < 10"),
        ({"field": "total", "op": "=", "value": 10.0}, None),
        ({"field": "flag", "op": "=", "value": 1}, "flag is True, wanted = 1"),
        ({"field": "name", "op": "<", "value": 5}, "name is 'ann', wanted < 5"),
        ({"field": "name", "op": "in", "value": ["bo", "ann"]}, None),
        ({"field": "name", "op": "not in", "value": ["ann"]}, "name is 'ann', wanted not in ['ann']"),
        ({"field": "box.size", "op": ">", "value": 2}, None),
        ({"field": "a.b", "op": "=", "value": 1}, None),
        ({"field": "none", "op": "exists"}, None),
        ({"field": "gone", "op": "exists"}, "gone is missing"),
        ({"field": "total", "op": "missing"}, "total is there"),
        ({"field": "gone", "op": "!=", "value": 1}, "gone is missing, wanted != 1"),
        ({"not": {"field": "total", "op": "=", "value": 10}}, "not wanted: total = 10"),
        ({"any": [{"field": "gone", "op": "exists"}, {"field": "total", "op": "exists"}]}, None),
        (
            {"any": [{"field": "gone", "op": "exists"}, {"field": "lost", "op": "exists"}]},
            "gone is missing and lost is missing",
        ),
        ({"all": [{"field": "total", "op": "exists"}, {"field": "lost", "op": "exists"}]}, "lost is missing"),
    ],
)
def test_a_condition_says_why_it_is_not_met(condition: dict[str, Any], why: str | None):
    assert list(condition_faults(condition, "when")) == []
    assert unmet(condition, DATA) == why
    assert describe(condition)


@pytest.mark.parametrize(
    "condition, fault",
    [
        ("total > 3", "when: is an object with field, op and value"),
        ({"field": "", "op": "=", "value": 1}, "when.field: names a field"),
        ({"field": "a", "op": "eval", "value": 1}, f"when.op: is one of {', '.join(OPERATORS)}; found 'eval'"),
        ({"field": "a", "op": "="}, "when.value: '=' compares with a value"),
        ({"field": "a", "op": "exists", "value": 1}, "when.value: 'exists' takes no value"),
        ({"field": "a", "op": "in", "value": 1}, "when.value: 'in' takes a list"),
        ({"field": "a", "op": "<", "value": [1]}, "when.value: '<' compares numbers or text"),
        ({"field": "a", "op": "=", "value": 1, "else": 2}, "when.else: unknown key"),
        ({"all": []}, "when.all: is a list of at least one condition"),
        ({"all": [{"field": "a", "op": "exists"}], "any": []}, "when.any: stands beside 'all'"),
        ({"not": {"not": 1}}, "when.not.not: is an object"),
    ],
)
def test_a_condition_that_cannot_be_asked_is_refused(condition: Any, fault: str):
    assert str(next(iter(condition_faults(condition, "when")))).startswith(fault)


def test_a_condition_is_not_nested_without_end():
    deep: dict[str, Any] = {"field": "a", "op": "exists"}
    for _ in range(20):
        deep = {"not": deep}
    assert [str(fault) for fault in condition_faults(deep, "when")] == [
        "when" + ".not" * 10 + ": is nested more than 10 deep"
    ]


def with_actions(**actions: Any) -> dict[str, Any]:
    return document(states=[{"name": "New"}, {"name": "Done", "is_final": True, **actions}])


def test_a_states_actions_are_kept_in_their_order_and_written_as_they_were_read():
    plan = [{"gate": "paid"}, {"effect": "mail"}, {"gate": "in_stock"}, {"effect": "mail"}]
    found = check_document(with_actions(on_entry=plan, on_exit=[{"effect": "clean up"}]))
    done = found.states[1]
    assert [(each.kind, each.name) for each in done.on_entry] == [(k, n) for each in plan for k, n in each.items()]
    again = check_document(document_of(found))
    assert (again.states, again.digest()) == (found.states, found.digest())


def test_the_order_of_actions_counts_and_a_graph_without_them_keeps_its_digest():
    plain = check_document(document())
    assert plain.digest() == "291db5925deb5b943dfb9a997c4aa18c66504eef1ab4cd36edbbe482dfcef359"
    one, other = (
        check_document(with_actions(on_entry=plan))
        for plan in ([{"gate": "a"}, {"gate": "b"}], [{"gate": "b"}, {"gate": "a"}])
    )
    assert len({plain.digest(), one.digest(), other.digest()}) == 3
    (change,) = compare(one, other)
    assert str(change) == "~ state Done: Final, on entry gate a then gate b -> Final, on entry gate b then gate a"


def test_actions_that_are_no_actions_are_faults_with_their_path():
    wrong = [{"gate": "a", "effect": "b"}, {}, "mail", {"gate": ""}, {"hook": "x"}, {"effect": "e" * 81}]
    found = faults(with_actions(on_entry=wrong, on_exit={"gate": "a"}))
    assert [fault.partition(";")[0] for fault in found] == [
        "states[1].on_entry[0]: is either a gate or an effect, such as {'gate': 'in_stock'}",
        "states[1].on_entry[1]: is either a gate or an effect, such as {'gate': 'in_stock'}",
        "states[1].on_entry[2]: is an object with gate, effect",
        "states[1].on_entry[3].gate: is a name",
        "states[1].on_entry[4].hook: unknown key",
        "states[1].on_entry[4]: is either a gate or an effect, such as {'gate': 'in_stock'}",
        "states[1].on_entry[5].effect: has 81 characters where 80 fit",
        "states[1].on_exit: is a list",
    ]


def test_a_gate_before_the_initial_state_is_a_fault_and_an_effect_is_not():
    gated = document(states=[{"name": "New", "on_entry": [{"effect": "mail"}, {"gate": "a"}]}, {"name": "Done"}])
    (fault,) = faults(gated)
    assert fault.startswith("states[0].on_entry: has the gate 'a' in the initial state; instances start there")
    effect = document(states=[{"name": "New", "on_entry": [{"effect": "mail"}]}, {"name": "Done"}])
    assert check_document(effect).initial.on_entry[0].name == "mail"
