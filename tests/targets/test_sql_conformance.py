"""The three database targets keep the contract of every target."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from decimal import Decimal
from typing import Any

import pytest
from sql_places import Place, Wire

from penstock.targets.conformance import CHECKS, Check, Subject
from penstock.targets.conformance.subject import Loss
from penstock.targets.model import Record
from penstock.targets.sql.target import SqlTarget


def record(n: int) -> dict[str, Any]:
    return {"id": n, "name": f"product {n}", "price": n, "code": f"c-{n}", "note": None}


@pytest.fixture
async def subject(place: Place) -> AsyncIterator[Subject]:
    await place.products()
    if place.kind == "sqlite":  # no answer of it is ever lost
        yield on_products(place, place.target)
        return
    async with Wire(place.url) as wire:
        wire.is_once = True
        cuts: dict[Loss, str] = {"applied": "after", "never": "before", "late": "late"}
        target = place.new_target(wire.url)
        yield on_products(place, target, lose=lambda loss: setattr(wire, "cut", cuts[loss]))
        await target.aclose()


def on_products(place: Place, target: SqlTarget, lose: Callable[[Loss], None] | None = None) -> Subject:

    async def read_back() -> Mapping[Any, Record]:
        rows = await place.rows("SELECT id, name, price, code, note FROM products")
        return {row[0]: dict(zip(("id", "name", "price", "code", "note"), row, strict=True)) for row in rows}

    return Subject(
        target=target,
        lose=lose,
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
