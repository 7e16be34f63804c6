"""What capabilities register: checks for `verify`, symptoms for `doctor`, and carriers of hints."""

from __future__ import annotations

from typing import Any

import pytest
from approvals import Calls, approvals, papers
from sqlalchemy import select

from penstock.db.database import Database
from penstock.operations.proof.doctor import diagnose
from penstock.services import Check, Symptom
from penstock.testing import engine

pytestmark = pytest.mark.databases("sqlite")


async def test_a_registered_check_is_part_of_verify(database_url, tmp_path):
    asked: list[bool] = []

    async def find(deep: bool) -> list[tuple[str, str]]:
        asked.append(deep)
        return [("stamps_are_dry", "stamp 7 is wet")]

    async with engine([approvals(Calls())], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create("approvals", papers(1))
        assert (await e.penstock.verify()).is_clean
        e.penstock.checks.append(Check("stamps", find))
        (found,) = (await e.penstock.verify(deep=True)).differences
        assert (found.rule, str(found), asked) == ("stamps_are_dry", "stamp 7 is wet", [True])
        assert (await e.penstock.verify(made.id)).is_clean, "one operation alone is asked for"


async def test_a_registered_source_is_part_of_doctor(database_url, tmp_path):
    async def find(db: Database) -> list[Symptom]:
        async with db.read() as tx:
            number = (await tx.execute(select(7))).scalar_one()
        return [Symptom("stamps_are_dry", f"{number} stamps are wet", "they stick", "wait")]

    async with engine([approvals(Calls())], url=database_url, tmp_path=tmp_path) as e:
        found = await diagnose(e.penstock.settings, e.clock, [find])
        assert [each.what for each in found.symptoms if each.check == "stamps_are_dry"] == ["7 stamps are wet"]
        assert not found.is_healthy


async def test_a_carrier_gets_every_hint_with_its_operation(database_url, tmp_path):
    hints: list[tuple[Any, ...]] = []

    def carry(operation: str | None = None, due_us: int | None = None) -> None:
        hints.append((operation, due_us))

    async with engine([approvals(Calls())], url=database_url, tmp_path=tmp_path) as e:
        e.penstock.hint_carriers.append(carry)
        made = await e.create("approvals", papers(1))
        assert hints == [(made.id, None)]
        e.penstock.hint(made.id, 17)
        assert hints[-1] == (made.id, 17)


async def test_a_hint_for_later_wakes_a_worker_then(database_url, tmp_path):
    async with engine([approvals(Calls())], url=database_url, tmp_path=tmp_path) as e:
        e.worker.wake.clear()
        e.worker.hint("x", e.clock.now_us() + 1_000_000)
        assert not e.worker.wake.is_set()
        e.worker.hint("x", e.clock.now_us())
        assert e.worker.wake.is_set()
