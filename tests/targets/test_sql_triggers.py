"""Rows that a trigger leaves out, or leaves as they are, are not told as written."""

from __future__ import annotations

from decimal import Decimal

import pytest
from sql_places import Place, outcomes

from penstock.targets import BulkExecutor
from penstock.targets.model import Mode
from penstock.targets.sql import SqlOptions

TRIGGERS = {
    "postgresql": (
        """CREATE OR REPLACE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN IF NEW.n = 3 THEN RETURN NULL; END IF; RETURN NEW; END $$""",
        "CREATE TRIGGER first BEFORE INSERT ON picky FOR EACH ROW EXECUTE FUNCTION leave_out()",
    ),
    "sqlite": ("CREATE TRIGGER first BEFORE INSERT ON picky WHEN NEW.n = 3 BEGIN SELECT RAISE(IGNORE); END",),
}


@pytest.mark.databases("postgresql", "sqlite")
@pytest.mark.parametrize("mode", [Mode.CREATE, Mode.UPSERT])
@pytest.mark.parametrize("key", ["integer PRIMARY KEY", "bigserial PRIMARY KEY"])
async def test_a_row_that_a_trigger_leaves_out_is_not_created(place: Place, mode: Mode, key: str):
    key = key if place.kind == "postgresql" else "integer PRIMARY KEY"
    await place.make("picky", f"CREATE TABLE picky (id {key}, n integer)")
    for statement in TRIGGERS[place.kind]:
        await place.run(statement)
    is_made = mode is Mode.CREATE and "serial" in key
    records = [{"n": n} if is_made else {"id": n + 1, "n": n} for n in range(20)]
    result = await BulkExecutor(place.target).start(mode, "picky", records)
    assert [(error.index, error.code) for error in result.errors] == [(3, "LEFT_OUT")]
    assert result.success_count == 19
    assert await place.rows("SELECT count(*) FROM picky") == [(19,)]


LEAVE_ALONE = {
    "postgresql": (
        """CREATE OR REPLACE FUNCTION leave_alone() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN IF OLD.n = 3 THEN RETURN NULL; END IF; IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW; END $$
        """,
        "CREATE TRIGGER first BEFORE UPDATE OR DELETE ON picky FOR EACH ROW EXECUTE FUNCTION leave_alone()",
    ),
    "sqlite": (
        "CREATE TRIGGER first BEFORE UPDATE ON picky WHEN OLD.n = 3 BEGIN SELECT RAISE(IGNORE); END",
        "CREATE TRIGGER last BEFORE DELETE ON picky WHEN OLD.n = 3 BEGIN SELECT RAISE(IGNORE); END",
    ),
}


@pytest.mark.databases("postgresql", "sqlite")
@pytest.mark.parametrize("more", ["", ", extra integer NOT NULL"], ids=["whole", "lacking a column"])
@pytest.mark.parametrize("only_changed", [False, True])
@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.UPSERT, Mode.DELETE])
async def test_a_row_that_a_trigger_leaves_alone_is_not_told_as_written(
    place: Place, mode: Mode, only_changed: bool, more: str
):
    await place.make("picky", f"CREATE TABLE picky (id integer PRIMARY KEY, n integer, note text{more})")
    for n in range(20):
        await place.run(f"INSERT INTO picky VALUES ({n}, {n}, 'old'{', 0' if more else ''})")
    for statement in LEAVE_ALONE[place.kind]:
        await place.run(statement)
    records = list(range(20)) if mode is Mode.DELETE else [{"id": n, "note": "new"} for n in range(20)]
    options = SqlOptions(update_only_changed=only_changed)
    result = await BulkExecutor(place.target).start(mode, "picky", records, options)
    assert [(error.index, error.code) for error in result.errors] == [(3, "LEFT_OUT")]
    assert result.success_count == 19
    assert await place.rows("SELECT id FROM picky WHERE note = 'old'") == [(3,)]


@pytest.mark.databases("postgresql", "sqlite")
@pytest.mark.parametrize("has_rest", [False, True], ids=["nothing but the key", "only what changed"])
async def test_a_row_that_is_not_there_and_left_out_is_not_unchanged(place: Place, has_rest: bool):
    await place.make("picky", "CREATE TABLE picky (id integer PRIMARY KEY, n numeric(6,1) DEFAULT 3)")
    await place.run("INSERT INTO picky VALUES (1, 3), (2, 2.5)")
    for statement in TRIGGERS[place.kind]:
        await place.run(statement)
    amounts = {1: 3, 2: Decimal("2.5"), 3: 3}
    records = [{"id": key, "n": amount} if has_rest else {"id": key} for key, amount in amounts.items()]
    answer = await place.send(Mode.UPSERT, records, table="picky", update_only_changed=True)
    assert outcomes(answer) == ["unchanged", "unchanged", "LEFT_OUT"]
