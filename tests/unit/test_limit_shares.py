"""How limits are shared out: never more than there is, and all of it once nothing changes any more."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operations.worker.shares import Share, fair_part, next_units


def shares(*units: dict[str, int]) -> list[Share]:
    """Workers a, b, c … in the order in which they joined."""
    return [Share(chr(ord("a") + place), place, held) for place, held in enumerate(units)]


@pytest.mark.parametrize(
    "limits, workers, parts",
    [
        ({"x": 1}, 1, [{"x": 1}]),
        ({"x": 1}, 3, [{"x": 1}, {"x": 0}, {"x": 0}]),
        ({"x": 5}, 2, [{"x": 3}, {"x": 2}]),
        ({"x": 5}, 7, [{"x": 1}] * 5 + [{"x": 0}] * 2),
        ({"x": 10, "y": 1}, 2, [{"x": 10, "y": 1}, {"x": 0, "y": 0}]),
        ({"x": 10, "y": 3}, 2, [{"x": 5, "y": 2}, {"x": 5, "y": 1}]),
    ],
)
def test_those_who_came_first_have_a_part_of_every_limit_and_together_all_of_it(limits, workers, parts):
    there = shares(*[{}] * workers)
    assert [fair_part(limits, there, share.worker) for share in there] == parts


def test_the_order_of_joining_counts_and_not_the_name():
    there = [Share("a", 2, {}), Share("b", 1, {})]
    assert (fair_part({"x": 1}, there, "a"), fair_part({"x": 1}, there, "b")) == ({"x": 0}, {"x": 1})


def test_a_worker_takes_only_what_is_free():
    assert next_units({"x": 4}, shares({"x": 4}, {}), "b", {"x": 0}) == {"x": 0}
    assert next_units({"x": 4}, shares({"x": 3}, {}), "b", {"x": 0}) == {"x": 1}
    assert next_units({"x": 4}, shares({}, {}), "b", {"x": 0}) == {"x": 2}


def test_a_worker_gives_back_only_what_it_does_not_use():
    there = shares({"x": 4}, {})
    assert next_units({"x": 4}, there, "a", {"x": 4}) == {"x": 4}
    assert next_units({"x": 4}, there, "a", {"x": 3}) == {"x": 3}
    assert next_units({"x": 4}, there, "a", {"x": 0}) == {"x": 2}


def test_what_is_still_running_from_before_a_share_was_lost_is_no_claim_to_units():
    assert next_units({"x": 1}, shares({"x": 1}, {}), "b", {"x": 1}) == {"x": 0}


# --- workers that come, go, die, call and look in any order


@dataclass
class Member:
    """A worker with its gates: what it may use, and what is inside."""

    joined_at: int
    units: dict[str, int]
    usable: dict[str, int]
    inside: dict[str, int] = field(default_factory=dict)


class Town:
    """Workers that share limits, by the rule; every step checks that no limit is exceeded."""

    def __init__(self, limits: dict[str, int]) -> None:
        self.limits = limits
        self.members: dict[str, Member] = {}
        self.moment = 0

    def do(self, event: str, worker: str) -> None:
        self.moment += 1
        member = self.members.get(worker)
        if member is None:
            if event == "look":
                self.members[worker] = Member(self.moment, dict.fromkeys(self.limits, 0), dict.fromkeys(self.limits, 0))
                self.look(worker)
        elif event == "die":
            del self.members[worker]
        elif event == "look":
            self.look(worker)
        elif event in self.limits and member.inside.get(event, 0) < member.usable[event]:
            member.inside[event] = member.inside.get(event, 0) + 1
        elif event == "end":
            member.inside = {name: max(0, number - 1) for name, number in member.inside.items()}
        self.check()

    def look(self, worker: str) -> None:
        member = self.members[worker]
        there = [Share(name, each.joined_at, each.units) for name, each in self.members.items()]
        fair = fair_part(self.limits, there, worker)
        member.usable = {name: min(member.usable[name], fair[name]) for name in self.limits}
        in_use = {name: max(member.usable[name], member.inside.get(name, 0)) for name in self.limits}
        member.units = next_units(self.limits, there, worker, in_use)
        member.usable = {name: min(member.units[name], fair[name]) for name in self.limits}

    def check(self) -> None:
        for name, limit in self.limits.items():
            assert sum(member.units[name] for member in self.members.values()) <= limit
            assert sum(member.inside.get(name, 0) for member in self.members.values()) <= limit
            assert all(
                max(member.usable[name], member.inside.get(name, 0)) <= member.units[name]
                for member in self.members.values()
            )


LIMITS = st.dictionaries(st.sampled_from(["x", "y"]), st.integers(1, 8), min_size=1)
EVENTS = st.lists(st.tuples(st.sampled_from(["look", "look", "die", "x", "y", "x", "end"]), st.sampled_from("abcde")))


@given(limits=LIMITS, events=EVENTS)
def test_no_limit_is_ever_exceeded_and_all_of_it_is_used_when_nothing_changes(limits, events):
    town = Town(limits)
    for event, worker in events:
        town.do(event, worker)
    for member in town.members.values():
        member.inside = {}
    for _ in range(2):  # those who have too much give, then those who have too little take
        for worker in town.members:
            town.do("look", worker)
    first = sorted(town.members.values(), key=lambda member: member.joined_at)[: min(limits.values())]
    for name, limit in limits.items():
        assert sum(member.usable[name] for member in first) == (limit if first else 0)
        assert all(member.usable[name] >= 1 for member in first)
