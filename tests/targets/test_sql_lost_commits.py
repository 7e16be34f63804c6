"""A commit whose answer is lost: the target finds out what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sql_places import Place, Wire, batch

from penstock.targets.model import ErrorKind, Mode, Outcome, TargetError
from penstock.targets.sql.postgres.target import ASKED_MAX, is_committed
from penstock.targets.sql.target import SqlTarget
from penstock.targets.target import Batch

pytestmark = pytest.mark.databases("postgresql", "mariadb")


def product(n: int, **more: object) -> dict[str, object]:
    return {"id": n, "name": f"product {n}", "price": n, **more}


RECORDS = {
    Mode.CREATE: [product(n) for n in (9, 8)],
    Mode.UPSERT: [product(9, note="first"), product(1, note="new"), product(9, note="again")],
    Mode.UPDATE: [product(2, note="new"), product(77), product(1, note="new")],
    Mode.DELETE: [2, 77],
}
ANSWERS = {
    Mode.CREATE: [Outcome.CREATED, Outcome.CREATED],
    Mode.UPSERT: [Outcome.CREATED, Outcome.UPDATED, Outcome.UPDATED],
    Mode.UPDATE: [Outcome.UPDATED, Outcome.FAILED, Outcome.UPDATED],
    Mode.DELETE: [Outcome.DELETED, Outcome.FAILED],
}


@pytest.fixture
async def wire(place: Place) -> AsyncIterator[Wire]:
    await place.products()
    await place.send(Mode.CREATE, [product(1), product(2)])
    async with Wire(place.url) as wire:
        yield wire


async def lose(target: SqlTarget, given: Batch, *, each: bool = False) -> TargetError:
    send = target.send_each if each else target.send
    with pytest.raises(TargetError) as caught:
        await send(given, "default")
    return caught.value


@pytest.mark.covers("BX-060")
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("mode", list(Mode))
async def test_a_commit_that_arrived_is_recognised_by_what_it_did(place: Place, wire: Wire, mode: Mode, each: bool):
    target = place.new_target(wire.url)
    given = batch(mode, RECORDS[mode])
    await target.describe("products", mode, given.options, "default")
    wire.cut = "after"
    error = await lose(target, given, each=each)
    assert (error.kind, error.maybe_applied) == (ErrorKind.CONNECTION, True)
    wire.cut = None
    told = await target.reconcile(given, "default")
    assert [verdict and verdict.outcome for verdict in told] == ANSWERS[mode]
    if mode is Mode.CREATE:
        assert [verdict and verdict.id for verdict in told] == [9, 8]


@pytest.mark.databases("mariadb")
async def test_a_commit_of_records_whose_empty_keys_the_server_filled_is_recognised(place: Place, wire: Wire):
    await place.make("notes", "CREATE TABLE notes (id integer PRIMARY KEY AUTO_INCREMENT, note text)")
    target = place.new_target(wire.url)
    given = batch(Mode.CREATE, [{"id": key, "note": "n"} for key in (None, 7, None)], table="notes")
    wire.cut = "after"
    await lose(target, given)
    wire.cut = None
    told = await target.reconcile(given, "default")
    ids = [verdict and verdict.id for verdict in told]
    assert sorted(ids) == [id for (id,) in await place.rows("SELECT id FROM notes ORDER BY id")]
    assert ids[1] == 7


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("ids", [["2024-01-02", "2024-1-2"], ["2024-1-2", "2024-01-02"]])
async def test_a_commit_of_records_that_mean_one_row_is_recognised_by_the_last_of_them(
    place: Place, wire: Wire, ids: list[str], each: bool
):
    await place.make("days", "CREATE TABLE days (id date PRIMARY KEY, n integer)")
    await place.run("INSERT INTO days VALUES ('2024-01-02', 0)")
    target = place.new_target(wire.url)
    given = batch(Mode.UPDATE, [{"id": one, "n": n} for n, one in enumerate(ids, 1)], table="days")
    wire.cut = "after"
    await lose(target, given, each=each)
    wire.cut = None
    told = await target.reconcile(given, "default")
    assert [verdict and verdict.outcome for verdict in told] == [Outcome.UPDATED] * 2


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("mode", list(Mode))
async def test_a_commit_that_never_arrived_is_recognised_by_what_it_did_not(
    place: Place, wire: Wire, mode: Mode, each: bool
):
    target = place.new_target(wire.url)
    before = await place.rows("SELECT * FROM products ORDER BY id")
    given = batch(mode, RECORDS[mode])
    await target.describe("products", mode, given.options, "default")
    wire.cut = "before"
    assert (await lose(target, given, each=each)).maybe_applied
    wire.cut = None
    assert list(await target.reconcile(given, "default")) == [None] * len(given)
    assert await place.rows("SELECT * FROM products ORDER BY id") == before


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_connection_that_broke_before_the_commit_changed_nothing_for_sure(place: Place, wire: Wire, when: str):
    target = place.new_target(wire.url)
    await target.describe("products", Mode.UPDATE, batch(Mode.UPDATE, []).options, "default")
    wire.word, wire.cut = b"products", when
    error = await lose(target, batch(Mode.UPDATE, [product(1, note="x")]))
    assert (error.kind, error.maybe_applied) == (ErrorKind.CONNECTION, False)
    wire.cut = None
    answer = await target.send(batch(Mode.UPDATE, [product(1, note="y")]), "default")
    assert answer.verdicts[0].outcome is Outcome.UPDATED
    assert await place.rows("SELECT note FROM products ORDER BY id") == [("y",), ("none",)]


@pytest.mark.covers("BX-076")
async def test_a_call_cancelled_while_it_commits_gets_the_answer(place: Place, wire: Wire):
    target = place.new_target(wire.url)
    given = batch(Mode.CREATE, [product(5)])
    await target.describe("products", Mode.CREATE, given.options, "default")
    wire.cut = "hold"
    sending = asyncio.ensure_future(target.send(given, "default"))
    await wire.held.wait()
    sending.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not sending.done()
    wire.released.set()
    assert [verdict.outcome for verdict in (await sending).verdicts] == [Outcome.CREATED]


async def test_ids_the_database_made_are_known_after_a_lost_answer(place: Place, wire: Wire):
    identity = "integer GENERATED ALWAYS AS IDENTITY" if place.kind == "postgresql" else "integer AUTO_INCREMENT"
    await place.make("notes", f"CREATE TABLE notes (id {identity} PRIMARY KEY, body text)")
    target = place.new_target(wire.url)
    given = batch(Mode.CREATE, [{"body": "a"}, {"body": "b"}], table="notes")
    await target.describe("notes", Mode.CREATE, given.options, "default")
    wire.cut = "after"
    await lose(target, given)
    wire.cut = None
    told = await target.reconcile(given, "default")
    assert [(verdict.id, body) for verdict, body in zip(told, "ab", strict=True) if verdict] == await place.rows(
        "SELECT id, body FROM notes ORDER BY id"
    )


@pytest.mark.databases("postgresql")
async def test_rows_sent_each_before_the_break_keep_their_verdicts(place: Place, wire: Wire):
    target = place.new_target(wire.url)
    given = batch(Mode.CREATE, [product(n) for n in range(100, 200)])  # two transactions
    await target.describe("products", Mode.CREATE, given.options, "default")
    wire.spare = 1
    wire.cut = "before"
    assert (await lose(target, given, each=True)).maybe_applied
    wire.cut = None
    told = await target.reconcile(given, "default")
    assert [verdict is not None for verdict in told] == [True] * 60 + [False] * 40
    assert await place.rows("SELECT count(*) FROM products WHERE id >= 100") == [(60,)]


@pytest.mark.databases("mariadb")
async def test_new_rows_without_a_key_cannot_be_looked_for(place: Place, wire: Wire):
    await place.make("log", "CREATE TABLE log (line text)")
    target = place.new_target(wire.url)
    given = batch(Mode.CREATE, [{"line": "a"}], table="log")
    assert not (await target.describe("log", Mode.CREATE, given.options, "default")).can_reconcile
    wire.cut = "after"
    await lose(target, given)
    wire.cut = None
    with pytest.raises(TargetError, match="no key to look for the records by") as caught:
        await target.reconcile(given, "default")
    assert caught.value.maybe_applied


class Server:
    """A server that tells a status each time it is asked."""

    def __init__(self, *statuses: str | None) -> None:
        self.statuses = list(statuses)

    async def fetchval(self, query: str, xid: str) -> str | None:
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]


@pytest.mark.databases("postgresql")
async def test_a_transaction_that_is_still_ending_is_asked_about_again(database_kind: str):
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    assert await is_committed(Server("in progress", "in progress", "committed"), "7", sleep)
    assert len(pauses) == 2


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("status", ["in progress", None])
async def test_a_transaction_nobody_can_tell_about_stays_in_doubt(database_kind: str, status: str | None):
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    with pytest.raises(TargetError, match="whether it committed is not known") as caught:
        await is_committed(Server(status), "7", sleep)
    assert caught.value.maybe_applied
    assert len(pauses) == (ASKED_MAX if status else 0)
