"""How records become rows for statements: grouped by columns, in key order, every key once; what cannot be sent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.targets.model import BadInput, BulkOptions, Mode, Outcome, TargetError, Verdict
from penstock.targets.sql.keys import KeyReader
from penstock.targets.sql.row_groups import Layout, assemble, lay_out
from penstock.targets.sql.table import Column, SqlOptions, Table, ansi, backticks, choose_key, split_name
from penstock.targets.target import UniformVerdicts

NAMES = ("id", "region", "name", "size", "total")
TABLE = Table(
    schema="shop",
    name="products",
    columns={
        name: Column(name, "text", "text", is_generated=name == "total", fold=str.lower if name == "region" else None)
        for name in NAMES
    },
    primary_key=("id",),
    unique_keys=(("id",), ("region", "name")),
)
NUMBERED = Table(None, "n", {"id": Column("id", "int", "int(11)", key_types=(int,))}, ("id",))


def laid(records: list[Any], mode: Mode = Mode.UPSERT, key: tuple[str, ...] = ("id",)) -> Layout:
    return lay_out(records, mode, TABLE, key)


def test_records_of_the_same_columns_make_one_sheet_in_their_own_order():
    (group,) = laid([{"id": 1, "name": "a"}, {"name": "b", "id": 2}]).groups
    assert (group.columns, list(group.rows), group.positions) == (("id", "name"), [(1, "a"), (2, "b")], range(2))


def test_records_of_different_columns_make_a_sheet_each():
    groups = laid([{"id": 1, "name": "a"}, {"id": 2, "size": 5}, {"id": 3, "name": "c"}]).groups
    assert [(group.columns, list(group.positions)) for group in groups] == [
        (("id", "name"), [0, 2]),
        (("id", "size"), [1]),
    ]


def test_rows_come_in_key_order_so_that_batches_lock_alike():
    (group,) = laid([{"id": 3, "name": "c"}, {"id": 1, "name": "a"}, {"id": 2, "name": "b"}]).groups
    assert list(group.rows) == [(1, "a"), (2, "b"), (3, "c")]
    assert group.positions == [1, 2, 0]


def test_a_key_that_comes_again_waits_for_a_later_sheet():
    groups = laid(
        [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}, {"id": 0, "name": "z"}, {"id": 1, "name": "c"}]
    ).groups
    assert [list(group.rows) for group in groups] == [[(0, "z"), (1, "a")], [(1, "b")], [(1, "c")]]


def test_records_of_one_key_keep_their_order_when_they_name_different_columns():
    records = [
        {"id": 1, "name": "a", "size": 1},
        {"id": 1, "name": "b"},
        {"id": 1, "name": "c", "size": 2},
        {"id": 2, "name": "d"},
    ]
    positions = [list(group.positions) for group in laid(records).groups]
    assert positions == [[0], [3], [1], [2]]


def test_a_create_leaves_repeated_keys_to_the_table():
    (group,) = laid([{"id": 1, "name": "a"}, {"id": 1, "name": "b"}], Mode.CREATE).groups
    assert len(group) == 2


def test_keys_of_several_types_still_have_an_order():
    (group,) = laid([{"id": "x", "name": "a"}, {"id": 1, "name": "b"}]).groups
    assert sorted(group.positions) == [0, 1]


def test_a_key_in_another_case_is_the_same_key_where_the_column_says_so():
    records = [{"region": "EU", "name": "a"}, {"region": "eu", "name": "a"}]
    assert [len(group) for group in laid(records, key=("region", "name")).groups] == [1, 1]


@pytest.mark.parametrize(
    "mode, record, code, field",
    [
        (Mode.CREATE, {"id": 1, "colour": "red"}, "UNKNOWN_COLUMN", "colour"),
        (Mode.CREATE, {"id": 1, "total": 5}, "GENERATED_COLUMN", "total"),
        (Mode.CREATE, {}, "NOTHING_TO_WRITE", None),
        (Mode.CREATE, "not a record", "NOTHING_TO_WRITE", None),
        (Mode.UPDATE, {"name": "a"}, "MISSING_KEY", "id"),
        (Mode.UPDATE, {"id": None, "name": "a"}, "MISSING_KEY", "id"),
        (Mode.UPDATE, {"id": ["list"], "name": "a"}, "MISSING_KEY", "id"),
        (Mode.UPDATE, {"id": 1}, "NOTHING_TO_WRITE", None),
        (Mode.UPSERT, {"name": "a"}, "MISSING_KEY", "id"),
        (Mode.DELETE, None, "MISSING_KEY", "id"),
        (Mode.DELETE, {"name": "a"}, "MISSING_KEY", "id"),
    ],
)
def test_a_record_that_cannot_be_sent_is_told_what_is_wrong(mode: Mode, record: Any, code: str, field: str | None):
    good = 7 if mode is Mode.DELETE else {"id": 7, "name": "good"}
    layout = laid([good, record], mode)
    assert [list(group.positions) for group in layout.groups] == [[0]]
    assert (layout.faults[1].code, layout.faults[1].field) == (code, field)


def test_an_unknown_column_is_named_beside_those_the_table_has():
    message = laid([{"id": 1, "colour": "red"}]).faults[0].message
    assert message == "table shop.products has no column 'colour'; it has: id, region, name, size, total"


@pytest.mark.parametrize("given_id", [("EU", "a"), ["EU", "a"], {"name": "a", "region": "EU"}])
def test_an_id_of_several_columns_is_a_tuple_a_list_or_a_mapping(given_id: Any):
    (group,) = laid([given_id], Mode.DELETE, ("region", "name")).groups
    assert list(group.rows) == [("EU", "a")]


@pytest.mark.parametrize("given_id", ["EU", ("EU",), ("EU", "a", "b"), {"region": "EU"}, ("EU", None)])
def test_an_id_that_lacks_a_column_is_refused(given_id: Any):
    layout = laid([given_id], Mode.DELETE, ("region", "name"))
    assert not layout.groups
    assert layout.faults[0].code == "MISSING_KEY"


def test_a_key_of_a_type_the_database_would_misread_is_refused():
    layout = lay_out([{"id": 1}, {"id": "x"}, {"id": 2}], Mode.UPSERT, NUMBERED, ("id",))
    assert [list(group.rows) for group in layout.groups] == [[(1,), (2,)]]
    assert layout.faults[1].message == "key 'id' takes int(11), not str"


RECORDS = st.lists(
    st.fixed_dictionaries(
        {"id": st.one_of(st.integers(0, 5), st.sampled_from(["a", "b"]), st.none())},
        optional={"name": st.integers(), "size": st.integers(), "colour": st.just("red")},
    ),
    min_size=1,
    max_size=30,
)


@given(records=RECORDS, mode=st.sampled_from([Mode.CREATE, Mode.UPDATE, Mode.UPSERT]))
def test_every_record_is_on_one_sheet_or_at_fault_and_keys_keep_their_order(records: list[Any], mode: Mode):
    layout = laid(records, mode)
    placed = [
        (position, row, group.columns)
        for group in layout.groups
        for position, row in zip(group.positions, group.rows, strict=True)
    ]
    assert sorted([position for position, _, _ in placed] + list(layout.faults)) == list(range(len(records)))
    assert all(dict(zip(columns, row, strict=True)) == records[position] for position, row, columns in placed)
    if mode is not Mode.CREATE:
        assert all(len(set(group.column("id"))) == len(group) for group in layout.groups)
        for value in {record["id"] for record in records}:
            order = [p for s in layout.groups for p, v in zip(s.positions, s.column("id"), strict=True) if v == value]
            assert order == sorted(order)


def test_verdicts_come_back_in_the_order_of_the_batch():
    layout = laid([{"id": 3, "name": "c"}, {"colour": 1}, {"id": 1, "name": "a"}])
    created, updated = Verdict(Outcome.CREATED), Verdict(Outcome.UPDATED)
    verdicts = assemble(3, layout, [[created, updated]])
    assert [v.outcome for v in verdicts] == [Outcome.UPDATED, Outcome.FAILED, Outcome.CREATED]


def test_one_verdict_for_all_costs_nothing_per_record():
    layout = laid([{"id": 2, "name": "b"}, {"id": 1, "name": "a"}])
    same = UniformVerdicts(Verdict(Outcome.UPDATED), 2)
    assert assemble(2, layout, [same]) is same


def test_ids_of_sorted_rows_return_to_their_records():
    layout = laid([{"id": 2, "name": "b"}, {"id": 1, "name": "a"}], Mode.CREATE)
    verdicts = assemble(2, layout, [UniformVerdicts(Verdict(Outcome.CREATED), 2, [1, 2])])
    assert [v.id for v in verdicts] == [2, 1]


def test_the_identity_of_a_record_is_its_key_as_the_table_compares_it():
    by_id = KeyReader(TABLE, Mode.UPSERT, ("id",))
    by_name = KeyReader(TABLE, Mode.UPSERT, ("region", "name"))
    assert by_id({"id": 5}) == by_id({"id": 5, "name": "x"}) != by_id({"id": 6})
    assert by_name({"region": "EU", "name": "a"}) == by_name({"region": "eu", "name": "a"})
    assert KeyReader(TABLE, Mode.DELETE, ("id",))(5) == KeyReader(TABLE, Mode.DELETE, ("id",))({"id": 5})


@pytest.mark.parametrize("record", [{}, {"id": None}, {"id": [1]}, None, 5])
def test_a_record_without_a_usable_key_has_no_identity(record: Any):
    assert KeyReader(TABLE, Mode.UPDATE, ("id",))(record) is None


def test_the_key_is_the_primary_key_unless_told_otherwise():
    assert choose_key(TABLE, Mode.UPDATE, BulkOptions()) == ("id",)
    assert choose_key(TABLE, Mode.UPDATE, SqlOptions(key=["name", "region"])) == ("name", "region")
    assert choose_key(TABLE, Mode.UPDATE, SqlOptions(key="id")) == ("id",)


def test_a_key_that_no_unique_index_has_is_refused_with_those_it_could_be():
    with pytest.raises(
        TargetError, match=r"no unique index on exactly \(name\); its unique keys are: \(id\), \(region, name\)"
    ):
        choose_key(TABLE, Mode.UPSERT, SqlOptions(key=["name"]))


def test_a_table_without_a_key_takes_new_rows_only():
    keyless = Table(None, "log", {"line": Column("line", "text")})
    assert choose_key(keyless, Mode.CREATE, BulkOptions()) == ()
    with pytest.raises(TargetError, match="log has no primary key; it has no unique key at all"):
        choose_key(keyless, Mode.DELETE, BulkOptions())


@pytest.mark.parametrize(
    "name, parts",
    [
        ("orders", (None, "orders")),
        ("shop.orders", ("shop", "orders")),
        ('"a.b"."c d"', ("a.b", "c d")),
        ('"say ""hi"""', (None, 'say "hi"')),
        ("Mixed Case", (None, "Mixed Case")),
    ],
)
def test_a_table_is_named_alone_or_with_its_schema(name: str, parts: tuple[str | None, str]):
    assert split_name(name) == parts


@pytest.mark.parametrize("name", ["", ".", "a.", ".b", "a.b.c", '"a', 'a"b', "a\0b", '""'])
def test_what_is_no_name_of_a_table_is_refused(name: str):
    with pytest.raises(BadInput, match="is not the name of a table"):
        split_name(name)


@given(st.text(min_size=1))
def test_a_quoted_name_ends_where_it_should(name: str):
    assert ansi(name)[1:-1].replace('""', "") == name.replace('"', "")
    assert (backticks(name) % ())[1:-1].replace("``", "") == name.replace("`", "")
