"""The executor over HTTP: the contract of every target, and whole bulk calls through faults on the wire."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest
from http_remote import Call, HttpRemote, Reply

from penstock.clock import Entropy, ManualClock
from penstock.targets import BulkExecutor, BulkOptions, ErrorKind, Mode, Outcome, Pool
from penstock.targets.composite.prober import Prober
from penstock.targets.conformance import CHECKS, Check, Subject
from penstock.targets.http import Body, ClientCredentials, Endpoint, HttpTarget, ItemResults, PagedLookup, bearer
from penstock.targets.model import Batch, Record, TargetError

BY_INDEX = ItemResults(path="results", index="index", status="status")
IN_ORDER = ItemResults(status="status")
LOOSE = {
    Mode.CREATE: Endpoint(url="/bulk/{table}", id_field="id", results=BY_INDEX),
    Mode.UPDATE: Endpoint(url="/change/{table}", id_field="id", results=IN_ORDER, is_idempotent=True),
    Mode.UPSERT: Endpoint(url="/bulk/{table}", id_field="id", results=BY_INDEX, is_idempotent=True),
    Mode.DELETE: Endpoint(url="/purge/{table}", results=IN_ORDER, lookup="/rows/{table}/{id}"),
}
ATOMIC = {
    **LOOSE,
    Mode.CREATE: Endpoint(
        url="/atomic/{table}", id_field="id", is_atomic=True, results=ItemResults(id="", error=None),
        lookup="/rows/{table}/{id}",
    ),
}  # fmt: skip

KEYED = Endpoint(
    url="/atomic/{table}", id_field="id", is_atomic=True, results=ItemResults(id="", error=None),
    idempotency_header="Idempotency-Key",
)  # fmt: skip


@pytest.fixture
async def remote() -> AsyncIterator[HttpRemote]:
    async with HttpRemote() as server:
        yield server


@pytest.fixture(params=[LOOSE, ATOMIC, {**LOOSE, Mode.CREATE: KEYED}], ids=["best-effort", "atomic", "keyed"])
async def subject(remote: HttpRemote, request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    remote.tables = frozenset({"thing"})
    target = HttpTarget(remote.url, request.param, auth=bearer("t"))

    async def read_back() -> Mapping[Any, Record]:
        return dict(remote.rows.get("thing", {}))

    yield Subject(
        target=target,
        table="thing",
        make_record=lambda n: {"id": f"row-{n}", "name": f"thing {n}"},
        change=lambda record: {**record, "name": "changed"},
        id_of=lambda record: record["id"],
        read_back=read_back,
        spoil=lambda record: {**record, "bad": True},
        lose=lambda loss: remote.faults.append(
            {"applied": "reset-after", "never": "reset-before", "late": "late"}[loss]
        ),
    )
    await target.aclose()


@pytest.mark.parametrize("check", CHECKS, ids=str)
async def test_the_http_target_keeps_the_contract(check: Check, subject: Subject):
    await check(subject)


class Still(random.Random):
    """Draws nought every time."""

    def random(self) -> float:
        return 0.0


def executor_of(target: HttpTarget) -> BulkExecutor:
    """An executor whose waits cost nothing."""
    clock = ManualClock()

    async def sleep(seconds: float) -> None:
        clock.advance(seconds)
        await asyncio.sleep(0)

    return BulkExecutor(target, pool=Pool.of(target, clock=clock, sleep=sleep, entropy=Entropy(jitter=Still())))


def things(count: int) -> list[dict[str, Any]]:
    return [{"id": f"row-{n}", "n": n} for n in range(count)]


@pytest.mark.covers("BX-100")
async def test_a_bulk_create_over_http(remote: HttpRemote):
    async with closing(HttpTarget(remote.url, LOOSE)) as target:
        result = await executor_of(target).create_multiple("thing", things(250))
    assert (result.is_success, result.success_count) == (True, 250)
    assert list(result.created_ids or ()) == [f"row-{n}" for n in range(250)]
    assert len(remote.calls) == 3


@pytest.mark.covers("BX-079", "BX-045")
async def test_partial_success_is_told_by_the_place_in_the_input(remote: HttpRemote):
    records = things(250)
    records[7]["bad"] = records[208]["bad"] = True
    async with closing(HttpTarget(remote.url, LOOSE)) as target:
        result = await executor_of(target).create_multiple("thing", records)
    assert [(error.index, error.id, error.field) for error in result.errors] == [
        (7, "row-7", "bad"),
        (208, "row-208", "bad"),
    ]
    assert result.success_count == 248


@pytest.mark.covers("BX-111")
async def test_the_bad_record_of_an_atomic_batch_is_found(remote: HttpRemote):
    records = things(100)
    records[42]["bad"] = True
    async with closing(HttpTarget(remote.url, ATOMIC)) as target:
        result = await executor_of(target).create_multiple("thing", records)
    assert ([error.index for error in result.errors], result.success_count) == ([42], 99)


async def test_one_record_a_call_still_makes_one_result(remote: HttpRemote):
    put = Endpoint(url="/rows/{table}/{id}", method="PUT", body=Body.SINGLE, id_field="id", is_idempotent=True)
    remote.rows["thing"] = {"row-3": {}}
    async with closing(HttpTarget(remote.url, {Mode.UPSERT: put})) as target:
        result = await executor_of(target).upsert_multiple("thing", things(10))
    assert (result.created_count, result.updated_count, result.counts_exact) == (9, 1, True)


async def test_ids_given_one_by_one_come_back_in_the_order_of_the_input(remote: HttpRemote):
    put = Endpoint(url="/rows/{table}/{id}", method="PUT", body=Body.SINGLE, id_field="id")
    async with closing(HttpTarget(remote.url, {Mode.CREATE: put})) as target:
        result = await executor_of(target).create_multiple("thing", things(10))
    assert list(result.created_ids or ()) == [f"row-{n}" for n in range(10)]


@pytest.mark.covers("BX-106")
async def test_a_throttle_is_waited_out(remote: HttpRemote):
    remote.faults += [Reply(429, None, {"Retry-After": "30"}), Reply(403, None, {"Retry-After": "5"})]
    async with closing(HttpTarget(remote.url, LOOSE)) as target:
        executor = executor_of(target)
        began_s = executor.pool.clock.monotonic()
        result = await executor.create_multiple("thing", things(10))
    assert (result.is_success, result.statistics.throttles) == (True, 2)
    assert executor.pool.clock.monotonic() - began_s >= 35


def unavailable(*, is_applied: bool) -> Reply:
    return Reply(503, None, {"Retry-After": "5"}, is_applied=is_applied)


@pytest.mark.covers("BX-060", "BX-106")
@pytest.mark.parametrize("is_applied", [True, False])
@pytest.mark.parametrize("way", ["looked up", "looked up, record by record", "keyed"])
async def test_what_became_of_a_batch_is_asked_after_the_wait_when_the_remote_was_unavailable(
    remote: HttpRemote, way: str, is_applied: bool
):
    remote.refuses_duplicates = True
    remote.faults += [unavailable(is_applied=is_applied)] * 5
    async with closing(HttpTarget(remote.url, {Mode.CREATE: WAYS[way]})) as target:
        executor = executor_of(target)
        began_s = executor.pool.clock.monotonic()
        result = await executor.create_multiple("thing", things(10))
    assert (result.is_success, len(remote.ledger)) == (True, 10)
    assert executor.pool.clock.monotonic() - began_s >= 5 * result.statistics.throttles > 0


@pytest.mark.covers("BX-060")
async def test_a_key_in_use_after_an_unavailable_remote_is_asked_for_again(remote: HttpRemote):
    remote.faults += [unavailable(is_applied=True), IN_USE]
    async with closing(HttpTarget(remote.url, {Mode.CREATE: KEYED})) as target:
        result = await executor_of(target).create_multiple("thing", things(10))
    assert (result.is_success, len(remote.ledger)) == (True, 10)
    assert len({call.headers["idempotency-key"] for call in remote.calls}) == 1


@pytest.mark.covers("BX-060")
async def test_a_create_at_an_unavailable_remote_that_cannot_be_asked_is_unknown(remote: HttpRemote):
    remote.faults += [unavailable(is_applied=True)]
    async with closing(HttpTarget(remote.url, LOOSE)) as target:
        result = await executor_of(target).create_multiple("thing", things(10))
    assert (result.unknown_count, len(remote.ledger), len(remote.calls)) == (10, 10, 1)
    assert result.errors[0].kind is ErrorKind.THROTTLED


@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.UPSERT])
async def test_a_batch_that_may_be_sent_twice_is_sent_again_after_an_unavailable_remote(remote: HttpRemote, mode: Mode):
    remote.rows["thing"] = {record["id"]: record for record in things(10)}
    remote.faults += [unavailable(is_applied=True)]
    async with closing(HttpTarget(remote.url, LOOSE)) as target:
        result = await executor_of(target).start(mode, "thing", things(10))
    assert (result.is_success, len(remote.calls)) == (True, 2)


@pytest.mark.parametrize("unavailable", [Reply(503, None, {"Retry-After": "5"}), Reply(500, {"message": "restarting"})])
async def test_a_question_that_finds_the_remote_unavailable_is_asked_again(remote: HttpRemote, unavailable: Reply):
    replies = [unavailable, Reply(200)]
    remote.routes["/look/row-0"] = lambda call: replies.pop(0)
    remote.faults += ["reset-after"]
    endpoint = Endpoint(url="/atomic/{table}", id_field="id", is_atomic=True, lookup="/look/{id}")
    async with closing(HttpTarget(remote.url, {Mode.CREATE: endpoint})) as target:
        result = await executor_of(target).create_multiple("thing", things(1))
    assert (result.is_success, len(remote.ledger), replies) == (True, 1, [])


@pytest.mark.covers("BX-059")
async def test_an_expired_token_is_renewed_once_for_all_batches(remote: HttpRemote):
    auth = ClientCredentials(f"{remote.url}/token", "me", "s3cret")
    remote.faults += [Reply(401)]
    async with closing(HttpTarget(remote.url, LOOSE, auth=auth)) as target:
        result = await executor_of(target).create_multiple("thing", things(500))
    assert (result.is_success, remote.tokens) == (True, ["token-1", "token-2"])


async def test_too_large_a_body_is_split(remote: HttpRemote):
    remote.faults += [Reply(413)]
    async with closing(HttpTarget(remote.url, LOOSE)) as target:
        result = await executor_of(target).create_multiple("thing", things(100))
    assert (result.is_success, [len(call.json) for call in remote.calls]) == (True, [100, 50, 50])


async def test_bodies_stay_below_the_declared_size(remote: HttpRemote):
    small = {Mode.CREATE: Endpoint(url="/bulk/{table}", results=BY_INDEX, bytes_max=1000)}
    async with closing(HttpTarget(remote.url, small)) as target:
        result = await executor_of(target).create_multiple("thing", things(100))
    assert result.is_success
    assert max(len(call.body) for call in remote.calls) <= 1000
    assert len(remote.calls) < 10


async def test_a_call_that_does_not_exist_stops_at_once(remote: HttpRemote):
    async with closing(HttpTarget(remote.url, {Mode.CREATE: Endpoint(url="/nowhere/{table}")})) as target:
        result = await executor_of(target).create_multiple("thing", things(1000), BulkOptions(max_parallel_batches=1))
    assert (result.stopped_reason, result.success_count, len(remote.calls)) == ("systemic", 0, 1)
    assert result.errors[0].kind is ErrorKind.UNSUPPORTED


@pytest.mark.covers("BX-060")
async def test_a_lost_create_is_looked_up_before_anything_is_sent_again(remote: HttpRemote):
    remote.faults += ["reset-after"]
    async with closing(HttpTarget(remote.url, ATOMIC)) as target:
        result = await executor_of(target).create_multiple("thing", things(10))
    assert result.is_success
    assert len(remote.ledger) == 10
    assert [call.method for call in remote.calls] == ["POST"] + ["GET"] * 10


async def test_a_throttled_look_up_goes_on_where_it_was(remote: HttpRemote):
    replies = [Reply(429, None, {"Retry-After": "1"}), Reply(200)]
    remote.routes["/look/row-7"] = lambda call: replies.pop(0)
    endpoint = Endpoint(url="/atomic/{table}", id_field="id", is_atomic=True, lookup="/look/{id}")
    for n in set(range(10)) - {7}:
        remote.routes[f"/look/row-{n}"] = lambda call: Reply(200)
    remote.faults += ["reset-after"]
    async with closing(HttpTarget(remote.url, {Mode.CREATE: endpoint})) as target:
        result = await executor_of(target).create_multiple("thing", things(10))
    assert result.is_success
    assert [call.path for call in remote.calls[1:]] == [f"/look/row-{n}" for n in (*range(8), *range(7, 10))]


async def test_a_lost_create_that_cannot_be_looked_up_is_unknown(remote: HttpRemote):
    remote.faults += ["reset-after"]
    async with closing(HttpTarget(remote.url, LOOSE)) as target:
        result = await executor_of(target).create_multiple("thing", things(10))
    assert (result.unknown_count, len(remote.ledger), len(remote.calls)) == (10, 10, 1)


IN_USE = Reply(409, {"error": {"type": "idempotency_error", "code": "idempotency_key_in_use"}}, {"Retry-After": "1"})


@pytest.mark.covers("BX-060")
@pytest.mark.parametrize("times", [1, 3])
async def test_a_key_that_the_remote_still_works_on_is_asked_for_again(remote: HttpRemote, times: int):
    remote.faults += ["reset-after", *[IN_USE] * times]
    async with closing(HttpTarget(remote.url, {Mode.CREATE: KEYED})) as target:
        result = await executor_of(target).create_multiple("thing", things(10))
    assert (result.is_success, len(remote.ledger)) == (True, 10)
    assert len({call.headers["idempotency-key"] for call in remote.calls}) == 1


async def test_a_key_that_stays_in_use_leaves_the_records_unknown(remote: HttpRemote):
    remote.faults += ["reset-after", *[IN_USE] * 1000]
    async with closing(HttpTarget(remote.url, {Mode.CREATE: KEYED})) as target:
        result = await executor_of(target).create_multiple("thing", things(10))
    assert (result.unknown_count, len(remote.ledger)) == (10, 10)


async def test_a_key_in_use_is_asked_for_again_when_the_remote_says(remote: HttpRemote):
    remote.faults += ["reset-after", Reply(409, None, {"Retry-After": "60"})]
    async with closing(HttpTarget(remote.url, {Mode.CREATE: KEYED})) as target:
        executor = executor_of(target)
        began_s = executor.pool.clock.monotonic()
        result = await executor.create_multiple("thing", things(10))
    assert (result.is_success, len(remote.ledger)) == (True, 10)
    assert executor.pool.clock.monotonic() - began_s >= 60


@pytest.mark.covers("BX-060")
@pytest.mark.parametrize("url", ["/atomic/{table}", "/bulk/{table}"], ids=["as a whole", "record by record"])
async def test_a_create_that_took_effect_after_it_was_looked_for_counts_as_created(remote: HttpRemote, url: str):
    remote.refuses_duplicates = True
    remote.faults += ["late"]
    is_atomic = url.startswith("/atomic")
    results = ItemResults(id="", error=None) if is_atomic else BY_INDEX
    endpoint = Endpoint(url=url, id_field="id", is_atomic=is_atomic, results=results, lookup="/rows/{table}/{id}")
    async with closing(HttpTarget(remote.url, {Mode.CREATE: endpoint})) as target:
        records = things(10) if is_atomic else [*things(10), {"id": "bad", "bad": True}]
        result = await executor_of(target).create_multiple("thing", records)
    assert [error.index for error in result.errors] == ([] if is_atomic else [10])
    assert (result.success_count, len(remote.ledger)) == (10, 10)


@pytest.mark.parametrize("lookup", [None, "/rows/{table}/{id}"], ids=["unknown", "looked up"])
async def test_records_before_the_one_that_was_refused_are_not_applied_twice(remote: HttpRemote, lookup: str | None):
    def apply_until_bad(call: Call) -> Reply:
        for record in call.json:
            if record.get("bad"):
                return Reply(422, {"message": "the field 'bad' is wrong"})
            remote.rows["thing"][record["id"]] = record
            remote.ledger.append(("write", record["id"]))
        return Reply(201)

    remote.rows["thing"] = {}
    remote.routes["/until-bad"] = apply_until_bad
    endpoint = Endpoint(url="/until-bad", id_field="id", lookup=lookup)
    records = things(10)
    records[3]["bad"] = records[8]["bad"] = True
    async with closing(HttpTarget(remote.url, {Mode.CREATE: endpoint})) as target:
        result = await executor_of(target).create_multiple("thing", records)
    assert max(Counter(remote.ledger).values()) == 1
    if lookup is None:
        assert result.unknown_count == 10
    else:
        # What stands before the first bad record may have been there before; the others were looked for in between.
        told = {Outcome.UNKNOWN: [0, 1, 2], Outcome.FAILED: [3, 8], Outcome.CREATED: [4, 5, 6, 7, 9]}
        assert {outcome: [n for n in range(10) if result.outcomes[n] is outcome] for outcome in told} == told


BY_ID = "/rows/{table}/{id}"
MANY_BY_ID = PagedLookup(url="/{table}?ids={ids}")


@pytest.mark.parametrize("lookup", [BY_ID, MANY_BY_ID], ids=["one by one", "many at once"])
async def test_a_record_that_was_there_before_its_batch_was_refused_is_not_told_created(
    remote: HttpRemote, lookup: str | PagedLookup
):
    old = {"id": "row-3", "n": "old"}
    remote.rows["thing"] = {"row-3": old}
    remote.refuses_duplicates = True
    remote.routes["/thing"] = lambda call: Reply(200, list(remote.rows["thing"].values()))
    endpoint = Endpoint(url="/atomic/{table}", id_field="id", lookup=lookup)
    async with closing(HttpTarget(remote.url, {Mode.CREATE: endpoint})) as target:
        result = await executor_of(target).create_multiple("thing", things(6))
    assert list(result.outcomes) == [Outcome.CREATED] * 3 + [Outcome.UNKNOWN] + [Outcome.CREATED] * 2
    (error,) = result.errors
    assert (error.index, error.id, error.code) == (3, "row-3", "exists")
    assert "a record is already there; a record of this id is there, perhaps from before" in error.message
    assert remote.rows["thing"]["row-3"] is old
    assert sorted(Counter(remote.ledger).values()) == [1] * 5


async def test_a_record_that_is_there_after_the_remote_crashed_is_unknown(remote: HttpRemote):
    remote.rows["thing"] = {"row-0": {"n": "old"}}
    remote.faults.append(Reply(500, {"message": "duplicate key"}))
    endpoint = Endpoint(url="/bulk/{table}", id_field="id", results=BY_INDEX, lookup=BY_ID)
    async with closing(HttpTarget(remote.url, {Mode.CREATE: endpoint})) as target:
        result = await executor_of(target).create_multiple("thing", things(1))
    assert (list(result.outcomes), remote.ledger) == ([Outcome.UNKNOWN], [])


@pytest.mark.parametrize("fault", ["reset-after", *[Reply(status, is_applied=True) for status in (408, 502, 503, 504)]])
async def test_a_record_that_is_there_after_its_answer_was_lost_was_created(remote: HttpRemote, fault: Any):
    remote.faults.append(fault)
    endpoint = Endpoint(url="/atomic/{table}", id_field="id", lookup=BY_ID)
    async with closing(HttpTarget(remote.url, {Mode.CREATE: endpoint})) as target:
        result = await executor_of(target).create_multiple("thing", things(5))
    assert (result.success_count, len(remote.ledger)) == (5, 5)


async def test_a_batch_that_took_effect_late_was_created_although_its_repeat_is_refused(remote: HttpRemote):
    remote.refuses_duplicates = True
    remote.faults.append("late")
    endpoint = Endpoint(url="/atomic/{table}", id_field="id", lookup=BY_ID)
    async with closing(HttpTarget(remote.url, {Mode.CREATE: endpoint})) as target:
        result = await executor_of(target).create_multiple("thing", things(5))
    assert (result.success_count, len(remote.ledger)) == (5, 5)


class Breaking(httpx.AsyncHTTPTransport):
    """Loses the first answer with an error that is none of httpx, as a loop's transport may."""

    has_broken = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if self.has_broken:
            return response
        self.has_broken = True
        await response.aclose()
        raise RuntimeError("unable to perform operation on <TCPTransport>; the handler is closed")


async def test_a_batch_whose_answer_was_lost_to_a_strange_error_goes_out_under_its_key(remote: HttpRemote):
    target = HttpTarget(remote.url, {Mode.CREATE: KEYED}, client=lambda: httpx.AsyncClient(transport=Breaking()))
    async with closing(target):
        result = await executor_of(target).create_multiple("thing", things(4))
    assert (result.is_success, len(remote.ledger)) == (True, 4)
    assert len({call.headers["idempotency-key"] for call in remote.calls}) == 1


DELETES = {
    "one by one": Endpoint(url=BY_ID, method="DELETE", body=Body.NONE, is_idempotent=True),
    "record by record": Endpoint(url="/purge/{table}", results=IN_ORDER, is_idempotent=True),
}


@pytest.mark.parametrize("endpoint", DELETES.values(), ids=DELETES)
async def test_a_delete_that_took_effect_unanswered_counts_as_deleted_when_its_repeat_finds_nothing(
    remote: HttpRemote, endpoint: Endpoint
):
    remote.rows["thing"] = {"a": {}, "b": {}}
    remote.faults.append(Reply(504, is_applied=True))
    async with closing(HttpTarget(remote.url, {Mode.DELETE: endpoint})) as target:
        result = await executor_of(target).delete_multiple("thing", ["a", "b"], max_parallel_batches=1)
        never_there = await executor_of(target).delete_multiple("thing", ["x"])
    assert list(result.outcomes) == [Outcome.DELETED] * 2
    assert list(never_there.outcomes) == [Outcome.FAILED]
    assert remote.ledger == [("delete", "a"), ("delete", "b")]


async def test_a_delete_whose_own_answer_was_lost_within_a_batch_counts_as_deleted_too(remote: HttpRemote):
    replies = [Reply(207, [{"status": 204}, {"status": 504}, {"status": 404}]), Reply(207, [{"status": 404}])]
    remote.routes["/remove"] = lambda call: replies.pop(0)
    endpoint = Endpoint(url="/remove", results=IN_ORDER, is_idempotent=True)
    async with closing(HttpTarget(remote.url, {Mode.DELETE: endpoint})) as target:
        result = await executor_of(target).delete_multiple("thing", ["a", "b", "x"])
    assert list(result.outcomes) == [Outcome.DELETED, Outcome.DELETED, Outcome.FAILED]


async def test_a_delete_under_a_key_is_believed_when_it_finds_nothing(remote: HttpRemote):
    remote.faults.append("reset-before")
    endpoint = Endpoint(url=BY_ID, method="DELETE", body=Body.NONE, idempotency_header="Idempotency-Key")
    async with closing(HttpTarget(remote.url, {Mode.DELETE: endpoint})) as target:
        batch = Batch("thing", Mode.DELETE, ["x"], BulkOptions(), "k")
        for _ in range(2):
            with pytest.raises(TargetError) as caught:
                await target.send(batch, "default")
    assert caught.value.code == "404"


async def test_a_mode_without_an_endpoint_is_served_by_the_fallback_of_a_prober(remote: HttpRemote):
    async def one(table: str, record: Any, source: str) -> Any:
        return record["id"]

    async with closing(HttpTarget(remote.url, {Mode.UPSERT: LOOSE[Mode.UPSERT]})) as target:
        result = await Prober(executor_of(target)).run("thing", things(3), mode=Mode.CREATE, fallback=one)
    assert list(result.created_ids or ()) == ["row-0", "row-1", "row-2"]


@pytest.mark.covers("BX-019")
async def test_a_record_that_came_too_early_is_sent_again_although_its_answer_was_repeated(remote: HttpRemote):
    remote.too_early = {"row-3"}
    remote.faults += ["reset-after"]
    endpoint = Endpoint(url="/bulk/{table}", id_field="id", results=BY_INDEX, idempotency_header="Idempotency-Key")
    async with closing(HttpTarget(remote.url, {Mode.CREATE: endpoint})) as target:
        result = await executor_of(target).create_multiple("thing", things(10))
    assert (result.is_success, len(remote.ledger)) == (True, 10)


class closing:
    """A target that is closed at the end."""

    def __init__(self, target: HttpTarget) -> None:
        self.target = target

    async def __aenter__(self) -> HttpTarget:
        return self.target

    async def __aexit__(self, *exc_info: object) -> None:
        await self.target.aclose()


QUICK = [None, None, "reset-before", "reset-after", "late", "half", "wrong-length"]
REPLIES = [
    Reply(429, None, {"Retry-After": "2"}),
    Reply(503, None, {"Retry-After": "1"}),
    Reply(502),
    Reply(500),
    Reply(401),
    Reply(413),
    Reply(200, b"{"),
    Reply(207, {"results": []}),
    Reply(408),
    IN_USE,
]
LOST = [
    *[Reply(status, is_applied=True) for status in (408, 502, 503, 504)],
    *[Reply(503, None, {"Retry-After": "1"}, is_applied=True)] * 3,
]
SLOW = ["silent-after", "drip"]
LOOKED_UP = Endpoint(url="/bulk/{table}", id_field="id", results=BY_INDEX, lookup="/rows/{table}/{id}")
WAYS = {
    "best effort": LOOSE[Mode.CREATE],
    "looked up": ATOMIC[Mode.CREATE],
    "looked up, record by record": LOOKED_UP,
    "keyed": KEYED,
    "keyed, record by record": replace(KEYED, url="/bulk/{table}", is_atomic=False, results=BY_INDEX),
}


@pytest.mark.covers("BX-019", "BX-020", "BX-060")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("block", range(4))
async def test_through_any_faults_outcomes_match_the_ledger_and_nothing_is_applied_twice(way: str, block: int):
    for seed in range(block * 15, block * 15 + 15):
        await faulty_run(way, seed)


async def faulty_run(way: str, seed: int) -> None:
    chance = random.Random(seed)
    records = things(chance.randrange(1, 60))
    for record in records:
        record["bad"] = chance.random() < 0.05
    async with HttpRemote() as remote:
        remote.refuses_duplicates = True
        remote.too_early = {record["id"] for record in records if chance.random() < 0.03}
        # An atomic endpoint promises that a call that failed by itself changed nothing.
        crashes = [] if WAYS[way].is_atomic else [Reply(500, is_applied=True)]
        remote.faults += chance.choices([*QUICK, *REPLIES, *LOST, *crashes], k=chance.randrange(12))
        if seed % 5 == 0:
            remote.faults.append(chance.choice(SLOW))
        target = HttpTarget(remote.url, {Mode.CREATE: WAYS[way]}, timeout_s=0.1 if seed % 5 == 0 else 30)
        async with closing(target):
            options = BulkOptions(batch_size=chance.randrange(1, 20))
            result = await executor_of(target).create_multiple("thing", records, options)
        applied = Counter(identifier for _, identifier in remote.ledger)
        for record, outcome in zip(records, result.outcomes, strict=True):
            times = applied[record["id"]]
            assert times <= 1, f"seed {seed}: {record['id']} was applied {times} times"
            assert outcome is Outcome.UNKNOWN or bool(times) == outcome.is_success, f"seed {seed}: {record} {outcome}"


async def test_a_page_for_people_is_no_success(remote: HttpRemote):
    remote.faults += [Reply(200, b"<html>log in</html>", {"Content-Type": "text/html; charset=utf-8"})]
    async with closing(HttpTarget(remote.url, {Mode.CREATE: Endpoint(url="/bulk/{table}")})) as target:
        result = await executor_of(target).create_multiple("thing", things(100))
    assert (result.success_count, result.unknown_count, remote.ledger) == (0, 100, [])


PAGE = Reply(200, b"<html>log in</html>", {"Content-Type": "Text/HTML; charset=utf-8"})


@pytest.mark.parametrize("mode", [Mode.CREATE, Mode.DELETE])
async def test_a_page_for_people_does_not_tell_what_became_of_a_lost_call(remote: HttpRemote, mode: Mode):
    remote.routes["/look/row-0"] = lambda call: PAGE
    remote.faults += ["reset-before"]
    endpoint = Endpoint(url="/bulk/{table}", id_field="id", lookup="/look/{id}")
    async with closing(HttpTarget(remote.url, {mode: endpoint})) as target:
        records = ["row-0"] if mode is Mode.DELETE else things(1)
        result = await executor_of(target).start(mode, "thing", records)
    assert (list(result.outcomes), remote.ledger) == ([Outcome.UNKNOWN], [])


@pytest.mark.parametrize("reply", [PAGE, IN_USE, Reply(400)], ids=["page", "in use", "refused"])
async def test_no_error_shows_the_query_of_a_call(remote: HttpRemote, reply: Reply):
    endpoint = Endpoint(url="/bulk/{table}?key=s3cret", is_atomic=True, idempotency_header="Idempotency-Key")
    remote.faults += ["reset-before", *[reply] * 20]
    async with closing(HttpTarget(remote.url, {Mode.CREATE: endpoint})) as target:
        batch = Batch("thing", Mode.CREATE, things(1), BulkOptions(), "k")
        for _ in range(2):
            with pytest.raises(TargetError) as caught:
                await target.send(batch, "default")
            assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [{"deep": float("nan")}]])
async def test_a_number_that_json_does_not_have_fails_its_record(remote: HttpRemote, value: Any):
    records = things(20)
    records[3]["value"], records[4]["value"] = None, value
    async with closing(HttpTarget(remote.url, LOOSE)) as target:
        result = await executor_of(target).create_multiple("thing", records)
    assert [(error.index, error.code) for error in result.errors] == [(4, "NotJson")]
    assert len(remote.ledger) == 19
