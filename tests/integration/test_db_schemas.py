"""A schema for each tenant: everything of Penstock lives in the one that the settings name, and sees no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from orders import text
from sqlalchemy import text as sql

from penstock import Penstock
from penstock.clock import SystemClock
from penstock.db.database import Database
from penstock.db.upgrade import check, upgrade
from penstock.errors import DatabaseUnready, SettingsInvalid
from penstock.settings import Settings, load_settings


def settings_of(url: str, schema: str, tmp_path: Path) -> Settings:
    return Settings(database_url=url, database_schema=schema, storage_url=str(tmp_path / schema))


@pytest.mark.covers("LC-117")
@pytest.mark.databases("postgresql")
async def test_each_tenant_may_have_a_schema_of_its_own(fresh_url: str, tmp_path: Path):
    acme, zeta = settings_of(fresh_url, "acme", tmp_path), settings_of(fresh_url, "zeta", tmp_path)
    with pytest.raises(DatabaseUnready, match="run `penstock db upgrade`"):
        async with Penstock.open(settings=acme):
            pass
    for tenant in (acme, zeta):
        before, after = await upgrade(tenant.database_address, SystemClock())
        assert (before, (await check(tenant.database_address, SystemClock())).revision) == (None, after)
    async with Penstock.open(settings=acme) as mine, Penstock.open(settings=zeta) as theirs:
        await mine.lifecycles.import_text(text())
        order = await mine.lifecycles.start("order", "A-1")
        assert (await mine.lifecycles.trigger(order.guid, "pay")).applied
        assert await theirs.lifecycles.definitions() == []
        assert await theirs.lifecycles.count() == 0
        assert await mine.lifecycles.verify() == (1, [])
    assert (await check(fresh_url, SystemClock())).revision is None, "nothing was made outside the schemas"


@pytest.mark.databases("postgresql")
async def test_the_command_line_makes_and_uses_the_schema(
    fresh_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", fresh_url)
    monkeypatch.setenv("PENSTOCK_DATABASE_SCHEMA", "beta")
    assert load_settings().database_address.endswith("?schema=beta")
    database = Database.connect(load_settings().database_address, clock=SystemClock())
    try:
        async with database.connection() as connection:
            assert (await connection.execute(sql("SHOW search_path"))).scalar() == "beta"
    finally:
        await database.close()


@pytest.mark.parametrize("url", ["sqlite:///penstock.db", "mariadb://u@h/n"])
def test_a_schema_is_refused_where_there_are_none(url: str):
    with pytest.raises(SettingsInvalid, match="'acme', and only PostgreSQL has schemas; here give each tenant"):
        Database.connect(Settings(database_url=url, database_schema="acme").database_address, clock=SystemClock())


@pytest.mark.parametrize("name", ["Acme", "a-b", "1a", "pg_temp", "a" * 64, "x;y", "x&y=z"])
def test_a_name_that_is_no_schema_is_refused(name: str):
    url = Settings(database_url="postgresql://u@h/n?sslmode=require", database_schema=name).database_address
    with pytest.raises(SettingsInvalid, match="small letters, digits and underscores"):
        Database.connect(url, clock=SystemClock())
