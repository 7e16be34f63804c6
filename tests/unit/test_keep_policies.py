"""Policies of what is kept for how long: how they are written, and what is due by them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from penstock import Context, operation
from penstock.errors import DeclarationError, SettingsInvalid
from penstock.pipeline import definition_of
from penstock.retention import due_parts, keep_text, parse_keep
from penstock.settings import Settings, load_settings

DAY = 86_400.0


class Person(BaseModel):
    name: str


@pytest.mark.parametrize(
    "given, meant",
    [
        (None, {}),
        ("90d", {"operations": 90 * DAY}),
        ("2w", {"operations": 14 * DAY}),
        (3600, {"operations": 3600.0}),
        (timedelta(hours=12), {"operations": DAY / 2}),
        ("forever", {"operations": None}),
        ("files=7d, operations=90d", {"files": 7 * DAY, "operations": 90 * DAY}),
        ({"rows": "30d", "history": None}, {"rows": 30 * DAY, "history": None}),
    ],
)
def test_a_policy_is_written_in_several_ways(given: Any, meant: dict[str, float | None]):
    assert parse_keep(given) == meant
    assert parse_keep(keep_text(meant) or None) == meant


@pytest.mark.parametrize(
    "given, wrong",
    [
        ("90", "must be a number with a unit, such as 90d"),
        ("-1d", "found '-1d'"),
        (-5, "found -5"),
        (True, "found True"),
        ({"file": "7d"}, "'file' is not kept by itself; it can be operations, rows, outputs, history, files"),
        ({"files": "soon", "rows": "x"}, "files: must be a number"),
    ],
)
def test_a_policy_that_cannot_be_one_is_refused(given: Any, wrong: str):
    with pytest.raises(ValueError, match=r"must be|is not kept") as refused:
        parse_keep(given)
    assert wrong in str(refused.value)


def test_all_that_is_wrong_with_a_policy_is_named():
    with pytest.raises(ValueError, match=r"files: .*; rows: .*; 'x' is not kept"):
        parse_keep({"files": "soon", "rows": "x", "x": "1d"})


@pytest.mark.parametrize(
    "keep, days, pruned, due",
    [
        ({}, 10_000, {}, ()),
        ({"operations": DAY}, 1, {}, ()),
        ({"operations": DAY}, 1.1, {}, ("operations",)),
        ({"operations": None}, 10_000, {}, ()),
        ({"files": DAY, "operations": 9 * DAY}, 2, {}, ("files",)),
        ({"files": DAY, "operations": 9 * DAY}, 2, {"files": True}, ()),
        ({"files": DAY, "operations": 9 * DAY}, 10, {"files": True}, ("operations",)),
        ({"files": DAY, "rows": DAY, "outputs": 3 * DAY}, 2, {"rows": False}, ("rows", "files")),
        ({}, 1, {"rows": False}, ("rows",)),  # begun under an earlier policy
    ],
)
def test_what_is_due(keep: Any, days: float, pruned: Any, due: tuple[str, ...]):
    assert due_parts(keep, ended_us=0, now_us=round(days * DAY * 1e6), pruned=pruned) == due


def test_operations_and_deployments_have_policies():
    @operation("greet", keep="30d")
    async def greet(row: Person, ctx: Context) -> None: ...

    definition = definition_of(greet)
    assert definition.options.keep == {"operations": 30 * DAY}
    assert definition.for_run({"keep": "rows=1d"}).options.keep == {"rows": DAY}
    assert "keep" not in definition.plan_document()["options"], "a worker of another release need not know it"
    assert Settings(keep="90d").keep == {"operations": 90 * DAY}
    with pytest.raises(DeclarationError, match="keep: must be a number with a unit"):
        operation("greet", keep="soon")(greet)


def test_a_policy_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PENSTOCK_KEEP", "files=7d, operations=90d")
    assert load_settings().keep == {"files": 7 * DAY, "operations": 90 * DAY}
    monkeypatch.setenv("PENSTOCK_KEEP", "sometime")
    with pytest.raises(SettingsInvalid, match="PENSTOCK_KEEP"):
        load_settings()
