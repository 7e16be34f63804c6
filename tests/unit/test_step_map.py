"""Where rows go on when their pipeline was changed, and what is refused because a step would be lost or repeated."""

from __future__ import annotations

import pytest

from penstock.operations.chunk.ledger import COMPLETED, FAILED, PENDING, WAITING, Ledger
from penstock.operations.chunk.step_map import Places, StepMap
from penstock.pipeline.fitting import differences


def ledger_at(*places: int, steps: int, state: int = PENDING, attempt: int = 0) -> Ledger:
    """Rows at these places; what is behind them is Completed, and where they are is in `state`."""
    ledger = Ledger(len(places), steps, base=0)
    for i, place in enumerate(places):
        ledger.at[i] = place
        for step in range(1, place):
            ledger.tracks[step].state[i], ledger.tracks[step].attempt[i] = COMPLETED, 1
            ledger.tracks[step].outputs[i] = f"{step}".encode()
        if place <= steps:
            ledger.tracks[place].state[i], ledger.tracks[place].attempt[i] = state, attempt
    return ledger


def faults(before: str, after: str, ledger: Ledger, **renamed: str) -> list[str]:
    places = Places()
    places.add(ledger)
    return list(StepMap.of(before.split(), after.split(), renamed).faults(places))


@pytest.mark.parametrize(
    "before, after, place, new_place",
    [
        ("a b", "a b c", 2, 2),  # a step more at the end
        ("a b", "a x b", 1, 1),  # a step more behind where the row is
        ("a b c", "a c", 2, 2),  # a step less that was not begun
        ("a b", "x y", 1, 1),  # nothing has begun
        ("a b c", "b a c", 3, 3),  # those behind it changed places
        ("a b", "a b", 3, 3),  # it has ended
    ],
)
def test_a_row_that_has_not_begun_its_step_goes_on_behind_what_it_has_done(before, after, place, new_place):
    ledger = ledger_at(place, steps=len(before.split()))
    assert faults(before, after, ledger) == []
    moved = StepMap.of(before.split(), after.split(), {}).moved(ledger)
    assert (moved.at[0], moved.steps) == (new_place, len(after.split()))
    done = {name: f"{place}".encode() for place, name in enumerate(before.split(), 1) if place < ledger.at[0]}
    assert {
        after.split()[step - 1]: track.outputs[0] for step, track in enumerate(moved.tracks) if track.outputs
    } == done


@pytest.mark.parametrize(
    "before, after, place, reason",
    [
        ("a b", "x a b", 2, "1 row before 'b' would never run 'x'"),
        ("a b", "b", 2, "1 row before 'b' would lose what 'a' did"),
        ("a b", "a b c", 3, "1 row at the end would never run 'c'"),
        ("a b c", "c b", 3, "1 row before 'c' would lose what 'a' did and never run 'c'"),
        ("a b c", "a x b", 3, "1 row before 'c' would never run 'x'"),
    ],
)
def test_a_change_that_loses_a_step_is_refused(before, after, place, reason):
    assert faults(before, after, ledger_at(place, steps=len(before.split()))) == [reason]


@pytest.mark.parametrize("state, attempt", [(PENDING, 1), (WAITING, 1), (FAILED, 2)])
def test_a_row_that_has_begun_its_step_stays_at_it(state, attempt):
    ledger = ledger_at(2, steps=2, state=state, attempt=attempt)
    assert faults("a b", "a b c", ledger) == []
    assert faults("a b", "a c", ledger) == ["1 row at 'b' would lose what 'b' did"]
    assert faults("a b", "a x b", ledger) == ["1 row at 'b' would never run 'x'"]
    assert faults("a b", "a c", ledger, b="c") == []
    moved = StepMap.of(["a", "b"], ["a", "c", "d"], {"b": "c"}).moved(ledger)
    assert (moved.at[0], moved.tracks[2].state[0], moved.tracks[2].attempt[0]) == (2, state, attempt)


def test_every_reason_is_named_at_once_and_rows_are_counted():
    ledger = ledger_at(2, 2, 3, steps=2)
    ledger.in_flight[0] = 1
    assert faults("a b", "x b", ledger) == [
        "1 row in flight with a worker that is gone: let a worker take over first",
        "2 rows before 'b' would lose what 'a' did",
        "1 row at the end would lose what 'a' did and never run 'x'",
    ]


def test_invalid_rows_stay_what_they_are():
    ledger = Ledger(1, 2, base=0)
    ledger.reject(0)
    assert faults("a b", "x", ledger) == []
    assert StepMap.of(["a", "b"], ["x"], {}).moved(ledger).counts().invalid == 1


@pytest.mark.parametrize(
    "plan, code, found",
    [
        (("1", "a:plain"), ("1", "a:plain"), ()),
        ((None, "a:plain"), ("2", "a:plain"), ()),
        (("1", "a:plain"), ("2", "a:plain"), ("it has version 1, the code has version 2",)),
        (("1", "a:plain"), (None, "a:plain"), ("it has version 1, the code has none",)),
        ((None, "a:plain"), (None, "b:plain"), ("step 'a' is gone", "step 'b' is new")),
        ((None, "a:plain"), (None, "a:poll"), ("step 'a' is a poll step now, and was a plain step",)),
        (
            (None, "a:plain b:plain"),
            (None, "b:plain a:plain"),
            ("its steps run in the order a, b, those of the code in b, a",),
        ),
    ],
)
def test_what_differs_between_a_plan_and_the_code_is_said(plan, code, found):
    def steps(written: str) -> list[list[str]]:
        return [each.split(":") for each in written.split()]

    stored = {"version": plan[0], "steps": [{"attribute": name, "kind": kind} for name, kind in steps(plan[1])]}
    assert differences(stored, {"version": code[0], "steps": steps(code[1])}) == found
