"""Secrets in metadata and rows: steps have them, nobody else sees them, and those of metadata are stored encrypted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr
from sqlalchemy import inspect, text

from penstock import Context, Penstock, Pipeline, RowInvalid, operation, resources, step
from penstock.clock import ManualClock
from penstock.errors import DeclarationError, MetadataInvalid, SecretsUnreadable, SettingsInvalid
from penstock.operations.proof.doctor import diagnose
from penstock.secret_keys import new_key
from penstock.settings import Settings
from penstock.testing import Engine, engine

HUSH = "hush-token-4711"
MASK = "**********"


class Item(BaseModel):
    id: int


class Login(BaseModel):
    user: str
    password: SecretStr


class Access(BaseModel):
    token: SecretStr
    logins: list[Login] = []


ACCESS = {"token": HUSH, "logins": [{"user": "ann", "password": f"{HUSH}-2"}]}


class Plant:
    """An operation that uses its secrets, and repeats them in its errors."""

    def __init__(self) -> None:
        self.used: list[str] = []
        plant = self

        @operation("secretive", row_key="id")
        class Secretive(Pipeline[Item, Access]):
            def validate_metadata(self, access: Access) -> None:
                if access.token.get_secret_value() == "wrong-token":
                    raise ValueError(f"{access.token.get_secret_value()} is wrong")

            def validate_row(self, row: Item, access: Access) -> None:
                if row.id < 0:
                    raise RowInvalid(f"no {access.token.get_secret_value()} for this", field="id")

            @step(retries=1, backoff=1)
            async def send(self, row: Item, ctx: Context[Access]) -> None:
                token = ctx.meta.token.get_secret_value()
                plant.used.append(f"{token} {ctx.meta.logins[0].password.get_secret_value()}")
                if row.id == 13:
                    raise ConnectionError(f"https://x.example/?token={token} refused")

        self.kind = Secretive


@pytest.fixture
def key() -> str:
    return new_key()


@asynccontextmanager
async def opened(plant: Plant, url: str, folder: Path, key: str | None, clock: Any = None) -> AsyncIterator[Engine]:
    settings = Settings.model_validate({"secret_key": key})
    async with engine([plant.kind], url=url, tmp_path=folder, settings=settings, clock=clock) as e:
        yield e


async def everything_stored(penstock: Penstock) -> str:
    """Every value of every table."""
    async with penstock.db.read() as tx:
        names = await tx.run_sync(lambda connection: inspect(connection).get_table_names())
        rows = [(await tx.execute(text(f"SELECT * FROM {name}"))).all() for name in names]
    return str(rows)


async def everything_shown(e: Engine, made: str) -> str:
    """What Python, the JSON documents and the lists say of an operation."""
    ops = e.operations
    found = await ops.get(made)
    rows, errors = await ops.rows(made, data=True), await ops.errors(made, data=True)
    history, groups = await ops.history(made), await ops.error_groups(made)
    documents = [
        resources.operation(found),
        *map(resources.operation, (await ops.list()).items),
        *map(resources.row, rows.items),
        *map(resources.error, errors.items),
        *map(resources.history_entry, history.items),
        *map(resources.error_group, groups),
        *map(resources.event, await ops.events()),
    ]
    return f"{found} {asdict(found)} {rows} {errors} {history} {groups} {json.dumps(documents)}"


async def test_steps_have_secrets_which_are_stored_encrypted_and_shown_nowhere(database_url, tmp_path, key, caplog):
    caplog.set_level("DEBUG")
    plant = Plant()
    async with opened(plant, database_url, tmp_path, key) as e:
        done = await e.run(plant.kind, [{"id": 1}, {"id": -1}, {"id": 13}], metadata=ACCESS)
        assert (done.status, done.successful_rows, done.failed_rows) == ("CompletedWithErrors", 1, 2)
        assert set(plant.used) == {f"{HUSH} {HUSH}-2"}
        assert done.metadata == {"token": MASK, "logins": [{"user": "ann", "password": MASK}]}
        shown = await everything_shown(e, done.id)
        assert f"https://x.example/?token={MASK} refused" in shown
        assert f"no {MASK} for this" in shown
        for said in (shown, await everything_stored(e.penstock), caplog.text):
            assert HUSH not in said


async def test_another_process_with_the_same_key_goes_on(database_url, tmp_path, key):
    plant, clock = Plant(), ManualClock()
    async with opened(plant, database_url, tmp_path, key, clock) as one:
        made = await one.create(plant.kind, [{"id": 1}], metadata=ACCESS)
    async with opened(plant, database_url, tmp_path, f"{new_key()} {key}", clock) as other:
        await other.work_until_idle()
        assert (await other.operations.get(made.id)).status == "Completed"
    assert plant.used == [f"{HUSH} {HUSH}-2"]


@pytest.mark.parametrize("wrong", [False, True])
async def test_a_worker_without_the_key_sets_the_operation_aside_and_doctor_tells(
    database_url, tmp_path, key, wrong, database_kind
):
    plant, clock = Plant(), ManualClock()
    async with opened(plant, database_url, tmp_path, key, clock) as one:
        made = await one.create(plant.kind, [{"id": 1}], metadata=ACCESS)
    async with opened(plant, database_url, tmp_path, new_key() if wrong else None, clock) as other:
        await other.work_until_idle()
        now = await other.operations.get(made.id)
        assert now.status == "Pending"
        assert f"the secrets of operation {made.id} cannot be decrypted" in str(now.trouble)
        assert "PENSTOCK_SECRET_KEY (secret_key)" in str(now.trouble)
        found = await diagnose(other.penstock.settings, clock)
        (symptom,) = [symptom for symptom in found.symptoms if symptom.check == "secrets_are_readable"]
        assert made.id in symptom.what
        assert "PENSTOCK_SECRET_KEY" in symptom.remedy
        assert not found.is_healthy
    async with opened(plant, database_url, tmp_path, key, clock) as e:
        found = await diagnose(e.penstock.settings, clock)
        assert "secrets_are_readable" not in [symptom.check for symptom in found.symptoms]
        await e.work_until_idle()
        now = await e.operations.get(made.id)
        assert (now.status, now.trouble) == ("Completed", None)


async def test_retry_edit_and_verify_work_with_secrets(database_url, tmp_path, key):
    plant = Plant()
    async with opened(plant, database_url, tmp_path, key) as e:
        done = await e.run(plant.kind, [{"id": -1}, {"id": 13}], metadata=ACCESS)
        await e.operations.edit_row(done.id, 1, {"id": 5})
        await e.operations.edit_row(done.id, 2, {"id": 6})
        await e.work_until_idle()
        assert (await e.operations.get(done.id)).status == "Completed"
        assert (await e.operations.verify(deep=True)).is_clean


async def test_an_edit_without_the_key_says_which_is_missing(database_url, tmp_path, key):
    plant, clock = Plant(), ManualClock()
    async with opened(plant, database_url, tmp_path, key, clock) as one:
        done = await one.run(plant.kind, [{"id": -1}], metadata=ACCESS)
    async with opened(plant, database_url, tmp_path, new_key(), clock) as other:
        with pytest.raises(SecretsUnreadable, match="PENSTOCK_SECRET_KEY"):
            await other.operations.edit_row(done.id, 1, {"id": 5})


@pytest.mark.databases("postgresql", "mariadb")
async def test_a_server_without_a_key_refuses_secrets_and_says_how_to_make_one(database_url, tmp_path):
    plant = Plant()
    async with opened(plant, database_url, tmp_path, None) as e:
        with pytest.raises(SettingsInvalid, match=r"'secretive' holds secrets.*`penstock config --new-key` makes one"):
            await e.create(plant.kind, [{"id": 1}], metadata=ACCESS)
        assert (await e.operations.list()).items == []
        assert not (tmp_path / "files").exists()


@pytest.mark.databases("sqlite")
async def test_beside_a_sqlite_file_the_key_is_made_when_it_is_first_needed(database_url, tmp_path):
    plant, file = Plant(), tmp_path / "penstock.db.key"
    async with opened(plant, database_url, tmp_path, None) as e:
        assert not file.exists()
        assert (await e.run(plant.kind, [{"id": 1}], metadata=ACCESS)).status == "Completed"
        assert file.exists()
        assert HUSH not in await everything_stored(e.penstock)


async def test_refused_metadata_is_told_without_its_secrets(database_url, tmp_path, key):
    plant = Plant()
    async with opened(plant, database_url, tmp_path, key) as e:
        with pytest.raises(MetadataInvalid, match=r"\*{10} is wrong"):
            await e.create(plant.kind, [{"id": 1}], metadata={"token": "wrong-token"})
        check = await e.operations.validate(
            plant.kind, file=b'{"id": 1}', file_name="a.jsonl", metadata={"token": "wrong-token"}
        )
        assert "wrong-token" not in str(check)


# --- secrets in rows


class Account(BaseModel):
    name: str
    password: SecretStr
    login: Login | None = None


class Bank:
    def __init__(self) -> None:
        self.used: list[str] = []
        bank = self

        @operation("accounts", row_key="name")
        class Accounts(Pipeline[Account]):
            def validate_row(self, row: Account, meta: None) -> None:
                if row.name == "bad":
                    raise ValueError(f"{row.password.get_secret_value()} is bad")

            @step
            async def open(self, row: Account, ctx: Context) -> None:
                bank.used.append(row.password.get_secret_value())
                if row.name == "ugly":
                    raise ValueError(f"{row.password.get_secret_value()} is ugly")

        self.kind = Accounts


ROWS = [
    {"name": "good", "password": HUSH, "login": {"user": "u", "password": HUSH}},
    {"name": "bad", "password": HUSH},
    {"name": "ugly", "password": HUSH},
]
CSV = f"name,password\ngood,{HUSH}\nbad,{HUSH}\nugly,{HUSH}\nwide,{HUSH},{HUSH}\n".encode()


@pytest.mark.parametrize("is_csv", [False, True])
@pytest.mark.parametrize("is_known", [False, True])
async def test_secrets_of_rows_are_shown_nowhere(database_url, tmp_path, is_csv, is_known, caplog):
    caplog.set_level("DEBUG")
    bank, clock = Bank(), ManualClock()
    async with engine([bank.kind], url=database_url, tmp_path=tmp_path, clock=clock) as e:
        given: dict[str, Any] = {"file_name": "a.csv"} if is_csv else {}
        done = await e.run(bank.kind, CSV if is_csv else ROWS, **given)
        assert set(bank.used) == {HUSH}
        assert done.failed_rows == 2 + is_csv
    async with engine([bank.kind] if is_known else [], url=database_url, tmp_path=tmp_path, clock=clock) as e:
        shown = await everything_shown(e, done.id)
        assert f"{MASK} is bad" in shown
        assert f"{MASK} is ugly" in shown
        assert HUSH not in shown + caplog.text


@pytest.mark.parametrize("is_csv", [False, True])
async def test_an_edit_keeps_the_secrets_that_it_does_not_name(database_url, tmp_path, is_csv):
    bank = Bank()
    async with engine([bank.kind], url=database_url, tmp_path=tmp_path) as e:
        given: dict[str, Any] = {"file_name": "a.csv"} if is_csv else {}
        done = await e.run(bank.kind, CSV if is_csv else ROWS, **given)
        bank.used.clear()
        await e.operations.edit_row(done.id, 2, {"name": "mended"})
        await e.work_until_idle()
        assert bank.used == [HUSH]
        assert (await e.operations.row(done.id, 2)).data["password"] == MASK


@pytest.mark.parametrize("is_csv", [False, True])
async def test_a_row_that_is_sent_back_as_it_was_shown_keeps_its_secrets(database_url, tmp_path, is_csv):
    bank = Bank()
    async with engine([bank.kind], url=database_url, tmp_path=tmp_path) as e:
        given: dict[str, Any] = {"file_name": "a.csv"} if is_csv else {}
        done = await e.run(bank.kind, CSV if is_csv else ROWS, **given)
        bank.used.clear()
        shown = (await e.operations.row(done.id, 2)).data
        await e.operations.edit_row(done.id, 2, {**shown, "name": "mended"})
        await e.work_until_idle()
        assert bank.used == [HUSH]


def test_a_secret_is_no_key():
    class Keyed(BaseModel):
        id: int
        token: SecretStr

    with pytest.raises(DeclarationError, match="row_key is 'token', which is a secret"):

        @operation("keyed", row_key="token")
        async def keyed(row: Keyed, ctx: Context) -> None: ...

    with pytest.raises(DeclarationError, match=r"\{row\.token\}, which is a secret"):

        @operation("signalled")
        class Signalled(Pipeline[Keyed, Access]):
            @step.signal(key="a-{row.token}", timeout=1)
            async def wait(self, row: Keyed, ctx: Context[Access]) -> None: ...
