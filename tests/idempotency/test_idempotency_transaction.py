"""Effect and kept answer in one transaction: both or neither, whatever happens, on every database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request
from shop import client_of
from sqlalchemy.exc import DBAPIError

from penstock.clock import ManualClock
from penstock.db.database import CommitUnknown, Database
from penstock.db.unit import UnitOfWork
from penstock.errors import Conflict, KeyRefused, SettingsInvalid, Unavailable
from penstock.idempotency import Address, Claim, Idempotency, IdempotencyMiddleware, idempotent, one_caller
from penstock.idempotency.sql import SqlStore
from penstock.idempotency.store import Store

pytestmark = pytest.mark.databases("sqlite", "postgresql", "mariadb")
KEY = {"Idempotency-Key": "key"}
ADD = "INSERT INTO transfers (amount) VALUES (:amount)"


@pytest.fixture
async def db(store: Store) -> AsyncIterator[Database]:
    """The database of the keys, with a table of the application's own."""
    assert isinstance(store, SqlStore)
    async with store.db.connection() as connection:
        await connection.exec_driver_sql("CREATE TABLE transfers (amount INTEGER NOT NULL)")
    yield store.db
    async with store.db.connection() as connection:
        await connection.exec_driver_sql("DROP TABLE transfers")


async def amounts(db: Database) -> list[int]:
    async with db.connection() as connection:
        found = await connection.exec_driver_sql("SELECT amount FROM transfers ORDER BY amount")
        return [amount for (amount,) in found]


async def claimed(keys: Idempotency, **options: Any) -> Claim:
    claim = await keys.claim(Address.of("key"), "f", **options)
    assert isinstance(claim, Claim)
    return claim


@pytest.mark.covers("I-36")
async def test_statements_and_answer_are_there_together(keys: Idempotency, db: Database):
    claim = await claimed(keys)
    async with claim.transaction() as tx:
        await tx.execute(ADD, {"amount": 1})
        await asyncio.sleep(0)  # code between two statements may wait for anything
        await tx.execute(ADD, [{"amount": 2}, {"amount": 3}])
    assert await amounts(db) == []
    assert (await keys.get("key")).state == "InProgress"
    await claim.complete(b"moved")
    assert await amounts(db) == [1, 2, 3]
    assert (await keys.get("key")).state == "Completed"


@pytest.mark.parametrize("end", ["release", "abandon"])
async def test_an_attempt_that_ends_otherwise_has_done_nothing_and_leaves_the_key_free(
    keys: Idempotency, db: Database, end: str
):
    claim = await claimed(keys)
    async with claim.transaction() as tx:
        await tx.execute(ADD, {"amount": 1})
    await getattr(claim, end)()
    assert await amounts(db) == []
    assert await keys.get("key") is None


async def test_an_error_in_the_block_undoes_it_at_once_and_the_attempt_goes_on(keys: Idempotency, db: Database):
    claim = await claimed(keys)

    async def fail() -> None:
        async with claim.transaction() as tx:
            await tx.execute(ADD, {"amount": 1})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    await claim.complete(b"refused")
    assert await amounts(db) == []
    assert (await keys.get("key")).state == "Completed"


@pytest.mark.covers("I-35", "I-36")
async def test_a_late_attempt_that_was_followed_changes_nothing(keys: Idempotency, db: Database, clock: ManualClock):
    late = await claimed(keys)
    clock.advance(31)
    second = await claimed(keys, may_take_over=True)
    with pytest.raises(KeyRefused, match="taken idempotency key 'key' over"):
        async with late.transaction():
            raise AssertionError("the block must not run")
    async with second.transaction() as tx:
        await tx.execute(ADD, {"amount": 2})
    await second.complete(b"second")
    assert await amounts(db) == [2]


async def test_a_late_attempt_that_nobody_followed_still_counts(keys: Idempotency, db: Database, clock: ManualClock):
    late = await claimed(keys)
    clock.advance(31)
    with pytest.raises(KeyRefused, match="nobody knows whether it was carried out"):
        await keys.claim(Address.of("key"), "f")
    assert (await keys.get("key")).state == "Indeterminate"
    async with late.transaction() as tx:
        await tx.execute(ADD, {"amount": 1})
    await late.complete(b"late")
    assert await amounts(db) == [1]
    assert (await keys.get("key")).state == "Completed"


@pytest.mark.parametrize("has_happened", [True, False])
@pytest.mark.covers("I-42")
async def test_a_commit_whose_answer_was_lost_is_looked_up(
    keys: Idempotency, db: Database, has_happened: bool, monkeypatch: pytest.MonkeyPatch
):
    claim = await claimed(keys)
    async with claim.transaction() as tx:
        await tx.execute(ADD, {"amount": 1})
    commit, roll_back = tx.commit, tx.roll_back

    async def lost() -> None:
        await (commit() if has_happened else roll_back())
        raise CommitUnknown("the connection died at COMMIT")

    monkeypatch.setattr(tx, "commit", lost)
    if has_happened:
        await claim.complete(b"moved")
        assert await amounts(db) == [1]
        assert (await keys.get("key")).state == "Completed"
    else:
        with pytest.raises(Exception, match="lost with its connection"):
            await claim.complete(b"moved")
        assert await amounts(db) == []
        assert await keys.get("key") is None


async def test_a_block_whose_statements_could_not_be_committed_gives_its_key_back(
    keys: Idempotency, db: Database, monkeypatch: pytest.MonkeyPatch
):
    async def move(amount: int, *, fails: bool) -> None:
        async with keys.guard("key", "f") as attempt:
            assert attempt.claim is not None
            async with attempt.claim.transaction() as tx:
                await tx.execute(ADD, {"amount": amount})
            if fails:
                monkeypatch.setattr(tx, "commit", fail)

    async def fail() -> None:
        raise Unavailable("the database is away")

    with pytest.raises(Unavailable, match="is away"):
        await move(1, fails=True)
    assert await keys.get("key") is None
    await move(2, fails=False)
    assert await amounts(db) == [2]


async def test_an_attempt_whose_transaction_was_undone_keeps_its_lease(
    real_store: Store, monkeypatch: pytest.MonkeyPatch
):
    keys, renewed, renew = Idempotency(real_store, lease=0.3), asyncio.Event(), real_store.renew
    claim = await claimed(keys)

    async def fail() -> None:
        async with claim.transaction():
            raise ZeroDivisionError

    async def told(address: Address, owner: str, lease_us: int) -> bool:
        is_ours = await renew(address, owner, lease_us)
        renewed.set()
        return is_ours

    with pytest.raises(ZeroDivisionError):
        await fail()
    monkeypatch.setattr(real_store, "renew", told)
    await renewed.wait()
    await claim.complete(b"refused")
    assert (await keys.get("key")).state == "Completed"


async def test_an_attempt_has_one_transaction(keys: Idempotency, db: Database):
    claim = await claimed(keys)
    async with claim.transaction() as tx:
        await tx.execute(ADD, {"amount": 1})
    with pytest.raises(Conflict, match="has its transaction already"):
        async with claim.transaction():
            raise AssertionError("the block must not run")
    await claim.complete(None)
    with pytest.raises(Conflict, match="has ended"):
        await tx.execute(ADD, {"amount": 2})


async def test_no_other_transaction_begins_inside_one(keys: Idempotency, db: Database):
    claim = await claimed(keys)
    async with claim.transaction() as tx:
        with pytest.raises(Conflict, match="no other is begun"):
            await keys.forget("other") or await keys.claim(Address.of("other"), "f")
        with pytest.raises(Conflict, match="no other is begun"):
            async with db.unit():
                raise AssertionError("the block must not run")
        # Tasks that it starts belong to it.
        with pytest.raises(Conflict, match="no other is begun"):
            await asyncio.create_task(keys.sweep())
        assert await keys.get("key") is not None  # to look is allowed
        await tx.execute(ADD, {"amount": 1})
    await claim.complete(b"")
    assert await keys.sweep() == 0
    assert await amounts(db) == [1]


async def test_a_statement_that_the_database_refuses_is_the_callers_error(keys: Idempotency, db: Database):
    claim = await claimed(keys)

    async def fail() -> None:
        async with claim.transaction() as tx:
            await tx.execute(ADD, {"amount": 1})
            await tx.execute(ADD, {"amount": None})

    with pytest.raises(DBAPIError):
        await fail()
    await claim.release()
    assert await amounts(db) == []


def bank(keys: Idempotency, statuses: list[int]) -> FastAPI:
    app = FastAPI()
    app.add_middleware(IdempotencyMiddleware, keys=keys, caller=one_caller)

    @app.post("/transfers")
    @idempotent(required=True, may_run_again=True)
    async def transfer(request: Request, amount: int) -> dict[str, int]:
        async with request.scope["penstock.idempotency"].transaction() as tx:
            await tx.execute(ADD, {"amount": amount})
        status = statuses.pop(0) if statuses else 200
        if status == 599:
            raise RuntimeError("the handler broke")
        if status != 200:
            raise HTTPException(status)
        return {"moved": amount}

    return app


@pytest.mark.parametrize(("status", "kept"), [(599, False), (500, False), (409, False), (402, True)])
async def test_statements_of_a_request_are_committed_exactly_when_its_answer_is_kept(
    keys: Idempotency, db: Database, status: int, kept: bool
):
    async with client_of(bank(keys, [status])) as client:
        await client.post("/transfers?amount=1", headers=KEY)
        assert await amounts(db) == ([1] if kept else [])
        second = await client.post("/transfers?amount=1", headers=KEY)
        assert second.status_code == (402 if kept else 200)
        assert await amounts(db) == [1]


async def test_requests_at_once_move_once_each(keys: Idempotency, db: Database):
    async with client_of(bank(keys, [])) as client:

        async def until_answered(number: int) -> httpx.Response:
            while True:
                response = await client.post(f"/transfers?amount={number}", headers={"Idempotency-Key": f"k{number}"})
                if response.status_code not in (409, 503):
                    return response
                await asyncio.sleep(0)

        answers = await asyncio.gather(*(until_answered(number % 5) for number in range(25)))
    assert [answer.json() for answer in answers] == [{"moved": number % 5} for number in range(25)]
    assert await amounts(db) == [0, 1, 2, 3, 4]


async def test_a_late_request_gets_the_answer_of_the_one_that_followed_it(
    keys: Idempotency, db: Database, clock: ManualClock
):
    begun, go_on = asyncio.Event(), asyncio.Event()
    app = bank(keys, [])
    is_first = True

    @app.post("/slow")
    @idempotent(may_run_again=True)
    async def slow(request: Request) -> dict[str, int]:
        nonlocal is_first
        claim: Claim = request.scope["penstock.idempotency"]
        if is_first:
            is_first = False
            begun.set()
            await go_on.wait()
        async with claim.transaction() as tx:
            await tx.execute(ADD, {"amount": claim.attempt})
        return {"attempt": claim.attempt}

    async with client_of(app) as client:
        late = asyncio.create_task(client.post("/slow", headers=KEY))
        await begun.wait()
        clock.advance(31)
        second = await client.post("/slow", headers=KEY)
        go_on.set()
        assert (await late).content == second.content == b'{"attempt":2}'
        assert (await late).headers["idempotent-replayed"] == "true"
    assert await amounts(db) == [2]


async def test_a_transaction_that_cannot_begin_is_a_reason_to_come_again(
    keys: Idempotency, db: Database, monkeypatch: pytest.MonkeyPatch
):
    async def away(_: UnitOfWork) -> None:
        raise Unavailable("the database is away")

    async with client_of(bank(keys, [])) as client:
        with monkeypatch.context() as patch:
            patch.setattr(UnitOfWork, "begin", away)
            refused = await client.post("/transfers?amount=1", headers=KEY)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert (await client.post("/transfers?amount=1", headers=KEY)).status_code == 200
    assert await amounts(db) == [1]


@pytest.mark.databases("redis")
async def test_a_transaction_needs_a_database(keys: Idempotency):
    claim = await claimed(keys)
    with pytest.raises(SettingsInvalid, match="these are in Redis"):
        async with claim.transaction():
            raise AssertionError("the block must not run")
