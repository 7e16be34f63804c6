"""How values are spelled in addresses and filters."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from urllib.parse import unquote
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.targets.dataverse.odata import IDS_MAX, address, comparable, filters, guid, literal

ID = "7c0e8f00-0000-4000-8000-0000000000ff"


@pytest.mark.parametrize(
    "value, spelled",
    [
        ("A-1", "'A-1'"),
        ("O'Brien", "'O''Brien'"),
        (ID, f"'{ID}'"),
        (UUID(ID), ID),
        (7, "7"),
        (Decimal("1.50"), "1.50"),
        (True, "true"),
        (date(2030, 1, 2), "2030-01-02"),
        (datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC), "2030-01-02T03:04:05Z"),
        (datetime(2030, 1, 2, 3, tzinfo=timezone(timedelta(hours=2))), "2030-01-02T01:00:00Z"),
    ],
)
def test_text_is_quoted_and_everything_else_is_bare(value: object, spelled: str):
    assert literal(value) == spelled


def test_a_value_that_no_key_can_have_is_refused():
    with pytest.raises(ValueError, match="a list cannot be part of a key"):
        literal([1])


@given(st.text())
def test_a_text_key_survives_its_address(text: str):
    named = address("orders", {"code": text, "part": 3})
    assert not set("/?#& +%") & set(re.sub("%[0-9A-F]{2}", "", named))
    inside = unquote(named).removeprefix("orders(code='").removesuffix("',part=3)")
    assert inside.replace("''", "'") == text


def test_an_address_by_id_is_the_bare_guid():
    assert address("orders", ID) == f"orders({ID})"


def test_a_guid_is_spelled_in_lower_case_with_dashes():
    assert guid(ID.upper()) == ID
    assert guid(UUID(ID)) == ID
    assert guid(ID.replace("-", "")) == ID
    with pytest.raises(ValueError, match="badly formed"):
        guid("A-1")


def test_keys_are_compared_as_the_platform_does_without_case_and_closing_blanks():
    assert comparable("Straße ") == comparable("STRASSE")
    assert comparable(7) == "7"
    assert comparable(UUID(ID)) == ID


def test_ids_are_looked_for_by_membership_and_other_keys_by_alternatives():
    assert list(filters(["orderid"], [(ID,)], are_ids=True)) == [
        f"Microsoft.Dynamics.CRM.In(PropertyName='orderid',PropertyValues=['{ID}'])"
    ]
    assert list(filters(["code", "part"], [("it's", 1), ("B", 2)], are_ids=False)) == [
        "(code eq 'it''s' and part eq 1) or (code eq 'B' and part eq 2)"
    ]


def test_no_keys_need_no_question():
    assert list(filters(["code"], [], are_ids=False)) == []


@given(st.lists(st.text(max_size=50), max_size=300), st.booleans())
def test_filters_ask_for_every_key_in_order_and_for_no_other(keys: list[str], is_composite: bool):
    columns, values = (
        (["code", "part"], [(key, 1) for key in keys]) if is_composite else (["code"], [(key,) for key in keys])
    )
    asked = list(filters(columns, values, are_ids=False))
    one = " and part eq 1" if is_composite else ""
    assert " or ".join(asked) == " or ".join(f"(code eq {literal(key)}{one})" for key in keys)
    assert all(asked)


def test_keys_of_several_columns_are_asked_for_in_shorter_questions():
    asked = list(filters(["code", "part"], [("A", n) for n in range(150)], are_ids=False))
    assert [test.count("code eq") for test in asked] == [100, 50]


def test_long_keys_are_asked_for_in_several_questions():
    asked = list(filters(["code"], [("ü" * 1500,)] * 5, are_ids=False))
    assert [test.count("code eq") for test in asked] == [2, 2, 1]


def test_many_ids_are_asked_for_in_several_questions():
    ids = [(str(uuid4()),) for _ in range(2 * IDS_MAX + 1)]
    asked = list(filters(["orderid"], ids, are_ids=True))
    assert [len(re.findall(r"'[0-9a-f-]{36}'", test)) for test in asked] == [IDS_MAX, IDS_MAX, 1]
