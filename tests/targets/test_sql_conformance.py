"""The three database targets keep the contract of every target."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from sql_places import Place

from penstock.targets.conformance import CHECKS, Check, Subject
from penstock.targets.model import Record


def record(n: int) -> dict[str, Any]:
    return {"id": n, "name": f"product {n}", "price": n, "code": f"c-{n}", "note": None}


@pytest.fixture
async def subject(place: Place) -> Subject:
    await place.products()

    async def read_back() -> Mapping[Any, Record]:
        rows = await place.rows("SELECT id, name, price, code, note FROM products")
        return {row[0]: dict(zip(("id", "name", "price", "code", "note"), row, strict=True)) for row in rows}

    return Subject(
        target=place.target,
        table="products",
        make_record=record,
        change=lambda given: (
            {**given, "name": "changed", "price": Decimal("1.5")}
            if place.kind != "sqlite"
            else {**given, "name": "changed", "price": 1.5}
        ),
        id_of=lambda given: given["id"],
        read_back=read_back,
        spoil=lambda given: {**given, "price": -1},
    )


@pytest.mark.parametrize("check", CHECKS, ids=str)
async def test_a_database_target_keeps_the_contract(check: Check, subject: Subject):
    await check(subject)
