"""Callback addresses: each is good for one signal to one wait, and for nothing else."""

from __future__ import annotations

import httpx
import pytest
from pydantic import BaseModel
from sqlalchemy import select

from penstock import Context, Pipeline, operation, step
from penstock.access.model import Principal
from penstock.api import Closed, create_app
from penstock.errors import Conflict, NoSuchWait
from penstock.operations.tables import row_records, signals
from penstock.secret_keys import new_key
from penstock.settings import Settings
from penstock.testing import engine

ADDRESS = "https://bulk.example/api/signals/"


class Paper(BaseModel):
    name: str


def papers(given: dict[str, list[str]], early=None):
    @operation("papers", row_key="name")
    class Papers(Pipeline[Paper, None]):
        @step.signal(timeout=600, retries=1)
        async def approve(self, paper: Paper, ctx: Context[None]) -> None:
            given.setdefault(paper.name, []).append(ctx.signal_url)
            if early is not None:
                await early(ctx.signal_url)

        @approve.key
        def approve_key(self, paper: Paper, ctx: Context[None]) -> str:
            return "same-key"

        @step.signal(timeout=600)
        async def confirm(self, paper: Paper, ctx: Context[None]) -> None:
            given.setdefault(f"{paper.name} again", []).append(ctx.signal_url)

        @confirm.key
        def confirm_key(self, paper: Paper, ctx: Context[None]) -> str:
            return "same-key"

    return Papers


@pytest.fixture
def settings():
    return Settings(public_url="https://bulk.example/", secret_key=new_key())


@pytest.fixture
def given():
    return {}


@pytest.fixture
async def e(database_url, tmp_path, settings, given):
    async with engine([papers(given)], url=database_url, tmp_path=tmp_path, settings=settings) as made:
        yield made


def token(url):
    assert url.startswith(ADDRESS)
    return url.removeprefix(ADDRESS)


async def test_an_address_ends_the_one_wait_that_it_was_made_for(e, given):
    made = await e.create("papers", [{"name": "a"}, {"name": "b"}])
    await e.work_until_idle()
    answer = await e.penstock.signals.complete_wait(token(given["b"][0]), payload={"by": "ana"})
    assert (answer.outcome, answer.row, answer.step) == ("delivered", 2, "approve")
    await e.work_until_idle()
    states = [(await e.operations.row(made.id, n)).step_name for n in (1, 2)]
    assert states == ["approve", "confirm"]


async def test_an_address_is_worth_one_signal_also_when_the_row_waits_for_the_same_key_again(e, given):
    made = await e.create("papers", [{"name": "a"}])
    await e.work_until_idle()
    first = await e.penstock.signals.complete_wait(token(given["a"][0]))
    again = await e.penstock.signals.complete_wait(token(given["a"][0]))
    assert (again.outcome, again.id) == ("duplicate", first.id)
    with pytest.raises(Conflict):
        await e.penstock.signals.fail_wait(token(given["a"][0]), "no")
    await e.work_until_idle()
    await e.penstock.signals.complete_wait(token(given["a"][0]))
    await e.work_until_idle()
    row = await e.operations.row(made.id, 1)
    assert (row.step_name, row.state) == ("confirm", "WaitingForCompletion")
    await e.penstock.signals.fail_wait(token(given["a again"][0]), "no")
    await e.work_until_idle()
    assert (await e.operations.get(made.id)).failed_rows == 1


async def test_an_address_of_an_earlier_generation_is_over(e, given):
    made = await e.create("papers", [{"name": "a"}])
    await e.work_until_idle()
    await e.penstock.signals.fail(made.id, "same-key", "no")
    await e.work_until_idle()
    with pytest.raises(NoSuchWait):  # it was decided by another signal
        await e.penstock.signals.complete_wait(token(given["a"][0]))
    await e.operations.retry(made.id)
    await e.work_until_idle()
    old, new = given["a"]
    with pytest.raises(NoSuchWait):
        await e.penstock.signals.complete_wait(token(old))
    assert (await e.penstock.signals.complete_wait(token(new))).row == 1


async def test_an_address_of_a_wait_that_timed_out_is_over(e, given):
    await e.run("papers", [{"name": "a"}])
    with pytest.raises(NoSuchWait):
        await e.penstock.signals.complete_wait(token(given["a"][0]))


async def test_a_callback_that_comes_before_the_row_waits_is_not_lost(database_url, tmp_path, settings, given):
    receipts = []

    async def call_back(url):
        receipts.append(await e.penstock.signals.complete_wait(token(url)))

    async with engine([papers(given, call_back)], url=database_url, tmp_path=tmp_path, settings=settings) as e:
        made = await e.create("papers", [{"name": "a"}])
        await e.work_until_idle()
        assert [receipt.outcome for receipt in receipts] == ["stored"]
        assert (await e.operations.row(made.id, 1)).step_name == "confirm"


async def test_the_address_that_a_failed_attempt_handed_out_is_still_good(database_url, tmp_path, settings, given):
    async def fail_once(url):
        if len(given["a"]) == 1:
            raise RuntimeError("the line went dead after the address was sent")

    async with engine([papers(given, fail_once)], url=database_url, tmp_path=tmp_path, settings=settings) as e:
        await e.create("papers", [{"name": "a"}])
        await e.work_until_idle()
        await e.advance(60)
        await e.work_until_idle()
        assert len(given["a"]) == 2
        assert (await e.penstock.signals.complete_wait(token(given["a"][0]))).row == 1


@pytest.mark.databases("sqlite")
async def test_over_http_the_address_is_all_it_takes_and_tells_nothing(e, given):
    stranger = e.penstock.seen_by(Principal("ana", frozenset({"admin"}), tenant="acme"))
    made = await stranger.operations.create("papers", file=b"name\na\n", file_name="papers.csv")
    await e.work_until_idle()
    path = given["a"][0].removeprefix("https://bulk.example")
    app = create_app(e.penstock, access=Closed())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://bulk.example") as client:
        assert (await client.post(path, content=b"{")).status_code == 422
        assert (await client.post(path, content=b"x" * 70_000)).status_code == 413
        answer = await client.post(path, json={"by": "carrier"})
        assert (answer.status_code, answer.json()) == (200, {"outcome": "delivered"})
        assert (await client.post(path, json={"by": "carrier"})).json() == {"outcome": "duplicate"}
        wrong = await client.post(path[:-6] + "AAAA==")
        assert (wrong.status_code, made.id in wrong.text) == (404, False)
        for guess in ("x", "x" * 5000, "gAAAAAB", "%00", "a%2Fb", "\u00e4"):
            assert (await client.post(f"/api/signals/{guess}")).status_code == 404, guess


async def test_nothing_that_is_stored_gives_the_right_to_signal(e, given):
    await e.create("papers", [{"name": "a"}])
    await e.work_until_idle()
    await e.penstock.signals.complete_wait(token(given["a"][0]))
    async with e.penstock.db.read() as tx:
        stored = [*(await tx.execute(select(row_records))), *(await tx.execute(select(signals)))]
    assert token(given["a"][0]) not in repr(stored)
