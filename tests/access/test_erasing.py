"""Erasing: what names or describes somebody is gone from everywhere, and what is left still verifies."""

from __future__ import annotations

import json

import httpx
import pytest
from pydantic import BaseModel, Field, SecretStr
from sqlalchemy import select

from penstock import Context, Pipeline, StepFailed, operation, step
from penstock.api import Trusted, create_app
from penstock.db.schema import metadata
from penstock.errors import Conflict, NotFound
from penstock.operations.pruning import erasing
from penstock.secret_keys import new_key
from penstock.settings import Settings
from penstock.testing import engine

CANARY = "4n4-c4n4ry"


class Person(BaseModel):
    name: str


class Sender(BaseModel):
    who: str
    password: SecretStr = SecretStr("x")


@operation("people", row_key="name")
class People(Pipeline[Person, Sender]):
    @step
    async def greet(self, person: Person, ctx: Context[Sender]) -> str:
        if person.name.endswith("bad"):
            raise StepFailed(f"{person.name} is not at home")
        return f"hello {person.name}"

    @step.signal(key="answer-{row.name}", timeout=60)
    async def answer(self, person: Person, ctx: Context[Sender]) -> None:
        """They are asked."""


@pytest.fixture
async def e(database_url, tmp_path):
    settings = Settings(secret_key=new_key())
    async with engine([People], url=database_url, tmp_path=tmp_path, settings=settings) as made:
        yield made


@pytest.fixture
async def over(e):
    """An operation that has ended, with somebody in every corner of it."""
    rows = [{"name": f"{CANARY}-1"}, {"name": f"{CANARY}-2-bad"}, {"name": "ben"}, {"name": "cyd-bad"}]
    made = await e.create(
        "people", rows, metadata={"who": f"from {CANARY}", "password": "p"}, file_name=f"{CANARY}.jsonl"
    )
    await e.work_until_idle()
    await e.penstock.signals.complete(made.id, f"answer-{CANARY}-1", payload={"said": CANARY})
    await e.penstock.signals.complete(made.id, "answer-ben", payload={"said": "yes"})
    await e.work_until_idle()
    await e.operations.edit_row(made.id, 2, {"name": f"{CANARY}-3-bad"})
    await e.work_until_idle()
    await e.operations.retry(made.id, rows=[2])
    await e.work_until_idle()
    return await e.operations.get(made.id)


async def stored(e):
    """Everything in the database that is text, and every row and output, unpacked."""
    found = []
    async with e.penstock.db.read() as tx:
        for table in metadata.sorted_tables:
            for row in await tx.execute(select(table)):
                found.append(f"{table.name} {[v for v in row if not isinstance(v, bytes)]!r}")
    for made in (await e.operations.list()).items:
        for n in range(1, made.total_rows + 1):
            found.append(f"row {await e.operations.row(made.id, n)!r}")
    return found


def files(e):
    folder = e.penstock.settings.storage_folder
    return [path for path in folder.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]


async def test_before_it_is_erased_it_is_everywhere(e, over):
    assert len([line for line in await stored(e) if CANARY in line]) > 8
    assert files(e)


async def test_of_an_erased_operation_nothing_personal_is_left_and_all_is_still_true(e, over):
    before = (over.successful_rows, over.failed_rows, over.status)
    await e.operations.erase(over.id, actor="dpo")
    assert [line for line in await stored(e) if CANARY in line] == []
    assert files(e) == []
    after = await e.operations.get(over.id)
    assert (after.successful_rows, after.failed_rows, after.status) == before
    report = await e.operations.verify(deep=True)
    assert report.differences == ()
    log = (await e.penstock.audit.list(subject=over.id)).items
    assert [(entry.actor, entry.action) for entry in log][:2] == [("dpo", "details.erase"), ("dpo", "operation.erase")]
    assert {entry.details is None for entry in log} == {True}
    with pytest.raises(Conflict, match="removed"):
        await e.operations.retry(over.id)


async def test_of_erased_rows_nothing_is_left_and_the_others_stay(e, over):
    await e.operations.erase(over.id, rows=[1, 2], actor="dpo")
    left = [line for line in await stored(e) if CANARY in line and not line.startswith("penstock_operation ")]
    assert [line for line in left if not line.startswith(("penstock_audit_entry", "penstock_blob"))] == []
    assert files(e) == []
    assert (await e.operations.row(over.id, 3)).data == {"name": "ben"}
    assert (await e.operations.row(over.id, 1)).data is None
    assert (await e.operations.verify(deep=True)).differences == ()
    with pytest.raises(NotFound, match="was removed"):
        await e.operations.source_file(over.id)
    errors = (await e.operations.errors(over.id)).items
    assert [(error.row, error.message) for error in errors] == [(2, ""), (4, "cyd-bad is not at home")]
    with pytest.raises(Conflict, match="removed or erased"):
        await e.operations.edit_row(over.id, 2, {"name": "dan"})


@pytest.mark.parametrize("rows_each", [1, 3, 500])
async def test_rows_all_over_a_file_are_erased_a_few_chunks_at_a_time(database_url, tmp_path, monkeypatch, rows_each):
    monkeypatch.setattr(erasing, "CHUNKS_EACH", 2)
    monkeypatch.setattr(erasing, "ROWS_EACH", rows_each)
    forget, sizes = erasing._forget_rows, []

    async def noted(number, part, *given):
        sizes.append((len(part), sum(map(len, part.values()))))
        await forget(number, part, *given)

    monkeypatch.setattr(erasing, "_forget_rows", noted)
    settings = Settings(secret_key=new_key(), chunk_rows=3)
    async with engine([People], url=database_url, tmp_path=tmp_path, settings=settings) as e:
        made = await e.create("people", [{"name": f"{n}-bad"} for n in range(1, 21)], metadata={"who": "x"})
        await e.work_until_idle()
        named = [1, 2, 3, 4, 8, 9, 11, 16, 20]
        await e.operations.erase(made.id, rows=named)
        assert max(chunks for chunks, _ in sizes) <= 2
        assert max(rows for _, rows in sizes) <= rows_each
        found = (await e.operations.rows(made.id, data=True)).items
        assert [row.number for row in found if row.data is None] == named
        assert (await e.operations.verify()).differences == ()


async def test_a_signal_that_nobody_took_is_erased_with_the_row_it_was_for(e):
    made = await e.create("people", [{"name": f"{CANARY}-1"}, {"name": "ben"}], metadata={"who": "x"})
    await e.work_until_idle()
    for name in (f"{CANARY}-1", "ben"):
        for said in ("yes", f"no, says {name}"):
            await e.penstock.signals.complete(made.id, f"answer-{name}", payload={"said": said})
    await e.work_until_idle()
    assert len(await e.penstock.signals.unclaimed(made.id)) == 2
    await e.operations.erase(made.id, rows=[1])
    assert [line for line in await stored(e) if CANARY in line and line.startswith("penstock_signal ")] == []
    assert "answer-ben" in [each.key for each in await e.penstock.signals.unclaimed(made.id)]
    assert (await e.operations.verify(deep=True)).differences == ()


@pytest.mark.parametrize("file_name", ["people.jsonl", "people.csv"])
async def test_a_signal_for_a_row_that_never_came_to_wait_is_erased_with_it(e, file_name):
    names = [f"{CANARY}-bad", "ben-bad"]
    lines = [json.dumps({"name": name}) for name in names] if file_name.endswith("l") else ["name", *names]
    made = await e.create("people", "\n".join(lines).encode(), file_name=file_name, metadata={"who": "x"})
    for name in (*names, f"{CANARY}-edited-bad"):
        await e.penstock.signals.complete(made.id, f"answer-{name}", payload={"said": f"yes, {name}"})
    await e.work_until_idle()
    await e.operations.edit_row(made.id, 1, {"name": f"{CANARY}-edited-bad"})
    await e.work_until_idle()
    assert len(await e.penstock.signals.unclaimed(made.id)) == 3
    await e.operations.erase(made.id, rows=[1])
    assert [line for line in await stored(e) if CANARY in line and line.startswith("penstock_signal ")] == []
    assert [each.key for each in await e.penstock.signals.unclaimed(made.id)].count("answer-ben-bad") == 1
    assert (await e.operations.verify(deep=True)).differences == ()


class Guest(BaseModel):
    name: str = Field(alias="Full Name")


@operation("guests")
class Guests(Pipeline[Guest]):
    @step.signal(key="answer-{row.name}", timeout=60)
    async def answer(self, guest: Guest, ctx: Context) -> None:
        raise StepFailed("is not at home")


@pytest.mark.parametrize("file_name", ["guests.jsonl", "guests.csv"])
async def test_a_signal_whose_key_comes_from_a_field_with_an_alias_is_erased_too(database_url, tmp_path, file_name):
    names = [CANARY, "ben"]
    lines = [json.dumps({"Full Name": name}) for name in names]
    async with engine([Guests], url=database_url, tmp_path=tmp_path) as e:
        source = "\n".join(lines if file_name.endswith("l") else ["Full Name", *names])
        made = await e.create("guests", source.encode(), file_name=file_name)
        for name in names:
            await e.penstock.signals.complete(made.id, f"answer-{name}", payload={"said": f"yes, {name}"})
        await e.work_until_idle()
        await e.operations.erase(made.id, rows=[1])
        assert {each.key for each in await e.penstock.signals.unclaimed(made.id)} == {erasing.ERASED, "answer-ben"}
        assert [line for line in await stored(e) if CANARY in line] == []


@pytest.mark.parametrize("rows", [None, [1]])
async def test_an_answer_that_is_kept_for_repeats_is_erased_and_others_stay(e, rows):
    transport = httpx.ASGITransport(create_app(e.penstock, access=Trusted()))
    async with httpx.AsyncClient(transport=transport, base_url="http://p.test") as http:

        async def create(key, name):
            form = {"operationName": "people", "metadata": json.dumps({"who": name})}
            files = {"file": (f"{name}.csv", b"name\nbad\n")}
            headers = {"idempotency-key": key, "content-type": "multipart/form-data; boundary=b"}
            body = http.build_request("POST", "/", data=form, files=files, headers=headers).read()
            return await http.post("/api/bulks", content=body, headers=headers)

        made, other = await create("one", CANARY), await create("two", "somebody")
        id = made.json()["id"]
        signal = {"key": f"answer-{CANARY}"}
        await http.post(f"/api/bulks/{id[:13]}/signals", json=signal, headers={"idempotency-key": "signal"})
        await e.work_until_idle()
        await e.operations.erase(id, rows=rows)
        again = await create("one", CANARY)
        assert (again.status_code, again.json()["code"]) == (410, "idempotency-answer-not-kept")
        assert not (await e.penstock.idempotency.get("signal", scope=("", "anonymous"))).has_answer
        assert (await create("two", "somebody")).json() == other.json()


async def test_erasing_twice_is_erasing_once(e, over):
    await e.operations.erase(over.id, rows=[1])
    await e.operations.erase(over.id)
    await e.operations.erase(over.id)
    assert (await e.operations.verify(deep=True)).differences == ()


async def test_what_runs_or_is_held_is_not_erased_and_rows_that_are_not_there_are_named(e, over):
    await e.operations.hold(over.id, "lawsuit")
    with pytest.raises(Conflict, match="held"):
        await e.operations.erase(over.id)
    await e.operations.release(over.id)
    with pytest.raises(NotFound, match="has 4 rows; there is no row 9"):
        await e.operations.erase(over.id, rows=[9])
    running = await e.create("people", [{"name": "z"}], metadata={"who": "x"})
    await e.work_until_idle()
    with pytest.raises(Conflict, match="is Running; cancel it first"):
        await e.operations.erase(running.id)


@pytest.mark.parametrize("retried", [[2], None])
async def test_erased_rows_that_are_retried_fail_with_the_reason_and_the_others_run(e, over, retried):
    await e.operations.erase(over.id, rows=[2], actor="dpo")
    await e.operations.retry(over.id, rows=retried)
    await e.work_until_idle()
    [error] = (await e.operations.errors(over.id, row=2)).items
    assert (error.step_name, error.message) == ("greet", "its data was erased")
    assert (await e.operations.get(over.id)).status == "CompletedWithErrors"
    assert (await e.operations.verify(over.id)).is_clean


class Note(BaseModel):
    text: str


@operation("notes")
class Notes(Pipeline[Note]):
    def validate_row(self, note: Note, _: None) -> None:
        if note.text == "odd":
            raise OSError("the dictionary is away")

    @step
    async def keep(self, note: Note, ctx: Context) -> None:
        if note.text == "bad":
            raise StepFailed("no")


async def test_erased_rows_without_a_key_and_those_that_were_not_validated_fail_when_they_are_retried(
    database_url, tmp_path
):
    async with engine([Notes], url=database_url, tmp_path=tmp_path) as e:
        made = await e.penstock.operations.create("notes", file=b"text\nbad\nodd\nbad\n", file_name="n.csv")
        await e.work_until_idle()
        await e.operations.erase(made.id, rows=[1, 2], actor="dpo")
        await e.operations.retry(made.id)
        await e.work_until_idle()
        errors = (await e.operations.errors(made.id)).items
        assert [(error.step_name, error.message) for error in errors] == [
            ("keep", "its data was erased"),
            ("validation", "its data was erased"),
            ("keep", "no"),
        ]
        assert (await e.operations.verify(made.id)).is_clean
