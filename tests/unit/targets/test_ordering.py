"""Parents before children, circles in two passes."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from penstock.targets.composite.ordering import RecordPlan, plan_records
from penstock.targets.model import Record
from penstock.targets.target import Reference


def parents_of(table: str, record: Record) -> Iterable[Reference]:
    return [Reference(name, table, record[name]) for name in ("up", "side") if record.get(name) is not None]


def planned(*records: Record) -> RecordPlan:
    return plan_records({"node": records}, references=parents_of, id_of=lambda _, record: record.get("id"))


def waves(plan: RecordPlan) -> list[list[int]]:
    return [list(wave["node"]) for wave in plan.waves]


def test_records_that_refer_to_nothing_go_together():
    assert waves(planned({"id": 1}, {"id": 2}, {})) == [[0, 1, 2]]


def test_a_child_goes_after_its_parent_whatever_the_order_of_the_input():
    plan = planned({"id": 3, "up": 2}, {"id": 1}, {"id": 2, "up": 1})
    assert waves(plan) == [[1], [2], [0]]
    assert plan.parents == {("node", 0): {"up": ("node", 2)}, ("node", 2): {"up": ("node", 1)}}


def test_references_to_records_elsewhere_hold_nobody_back():
    assert waves(planned({"id": 1, "up": 99}, {"id": 2})) == [[0, 1]]


def test_a_circle_goes_together_and_sets_its_references_afterwards():
    plan = planned({"id": 1, "up": 2}, {"id": 2, "up": 1}, {"id": 3, "up": 1})
    assert waves(plan) == [[0, 1], [2]]
    assert plan.deferred == {("node", 0): {"up": ("node", 1)}, ("node", 1): {"up": ("node", 0)}}


def test_a_record_that_refers_to_itself_sets_that_afterwards():
    plan = planned({"id": 1, "up": 1})
    assert (waves(plan), plan.deferred) == ([[0]], {("node", 0): {"up": ("node", 0)}})


def test_only_the_references_within_a_circle_are_deferred():
    plan = planned({"id": 1}, {"id": 2, "up": 3, "side": 1}, {"id": 3, "up": 2})
    assert plan.deferred[("node", 1)] == {"up": ("node", 2)}
    assert plan.parents == {("node", 1): {"side": ("node", 0)}}
    assert waves(plan) == [[0], [1, 2]]


def test_of_two_records_of_one_key_the_first_counts_as_the_parent():
    assert planned({"id": 1}, {"id": 1}, {"id": 2, "up": 1}).parents == {("node", 2): {"up": ("node", 0)}}


def test_ids_are_one_whatever_their_case():
    assert waves(planned({"id": "AB"}, {"id": "x", "up": "ab"})) == [[0], [1]]


def test_records_of_several_tables_are_ordered_together():
    tables = {"contact": [{"id": 1, "firm": 7}], "firm": [{"id": 7, "boss": 2}, {"id": 8, "boss": 1}]}
    kinds = {"firm": "firm", "boss": "contact"}
    plan = plan_records(
        tables,
        references=lambda _, record: [Reference(k, kinds[k], record[k]) for k in kinds if k in record],
        id_of=lambda _, record: record["id"],
    )
    assert plan.waves == ({"firm": [0]}, {"contact": [0]}, {"firm": [1]})


def test_a_chain_of_many_thousand_records_needs_no_recursion():
    plan = planned(*({"id": n, "up": n - 1} for n in range(20_000)))
    assert len(plan.waves) == 20_000


graphs = st.integers(1, 12).flatmap(
    lambda size: st.lists(
        st.tuples(st.none() | st.integers(0, size), st.none() | st.integers(0, size)), min_size=size, max_size=size
    )
)


@given(graphs)
def test_every_record_stands_once_after_its_parents_and_only_circles_are_deferred(graph: list[tuple[int, int]]):
    plan = planned(*({"id": n, "up": up, "side": side} for n, (up, side) in enumerate(graph)))
    wave_of = {index: number for number, wave in enumerate(waves(plan)) for index in wave}
    assert sorted(index for wave in waves(plan) for index in wave) == list(range(len(graph)))
    reach = {n: _reachable(graph, n) for n in range(len(graph))}
    for child, targets in enumerate(graph):
        for name, parent in zip(("up", "side"), targets, strict=True):
            if parent is None or parent >= len(graph):
                continue
            is_circle = child in reach[parent]
            assert (name in plan.deferred.get(("node", child), {})) == is_circle
            assert is_circle or wave_of[parent] < wave_of[child]


def _reachable(graph: list[tuple[int, int]], start: int) -> set[int]:
    seen, todo = set(), [start]
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += [other for other in graph[node] if other is not None and other < len(graph)]
    return seen
