"""The HTTP target against a real HTTP server: shapes, credentials, limits, and answers that go missing."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator
from traceback import format_exception
from typing import Any

import httpx
import pytest
from http_remote import Call, HttpRemote, Reply
from patience import HANG_S

from penstock.clock import ManualClock
from penstock.errors import SettingsInvalid
from penstock.targets.http import Body, ClientCredentials, Endpoint, HttpTarget, ItemResults, StaticHeaders, bearer
from penstock.targets.model import BulkOptions, ErrorKind, Mode, Outcome, TargetError
from penstock.targets.target import Answer, Batch

BULK = Endpoint(url="/bulk/{table}", id_field="id", results=ItemResults(path="results", index="index", status="status"))
ATOMIC = Endpoint(url="/atomic/{table}", is_atomic=True)
PUT = Endpoint(url="/rows/{table}/{id}", method="PUT", body=Body.SINGLE, id_field="id", is_idempotent=True)
DELETE = Endpoint(url="/rows/{table}/{id}", method="DELETE", body=Body.NONE)


@pytest.fixture
async def remote() -> AsyncIterator[HttpRemote]:
    async with HttpRemote() as server:
        yield server


async def sent(remote: HttpRemote, endpoint: Endpoint, *records: Any, mode: Mode = Mode.CREATE, **how: Any) -> Answer:
    target = HttpTarget(remote.url, {mode: endpoint}, **how)
    try:
        return await target.send(Batch("thing", mode, records, BulkOptions(), "key-1"), target.sources[0])
    finally:
        await target.aclose()


async def refusal_of(remote: HttpRemote, endpoint: Endpoint, *records: Any, **how: Any) -> TargetError:
    with pytest.raises(TargetError) as caught:
        await sent(remote, endpoint, *records, **how)
    return caught.value


def outcomes(answer: Answer) -> list[Outcome]:
    return [verdict.outcome for verdict in answer.verdicts]


async def test_a_best_effort_endpoint_answers_record_by_record(remote: HttpRemote):
    answer = await sent(remote, BULK, {"id": "a"}, {"bad": 1}, {"id": "c"})
    assert outcomes(answer) == [Outcome.CREATED, Outcome.FAILED, Outcome.CREATED]
    assert [verdict.id for verdict in answer.verdicts] == ["a", None, "c"]
    error = answer.verdicts[1].error
    assert error is not None
    assert (error.kind, error.code, error.field) == (ErrorKind.DATA, "invalid", "bad")
    assert remote.ledger == [("write", "a"), ("write", "c")]


async def test_a_record_that_came_too_early_waits_as_long_as_its_answer_asks(remote: HttpRemote):
    items = [{"index": 0, "status": 201}, {"index": 1, "status": 429}, {"index": 2, "status": 422}]
    remote.routes["/bulk/thing"] = lambda call: Reply(207, {"results": items}, {"Retry-After": "7"})
    answer = await sent(remote, BULK, {"id": "a"}, {"id": "b"}, {"id": "c"})
    assert [verdict.error and verdict.error.retry_after_s for verdict in answer.verdicts] == [None, 7.0, None]


async def test_an_atomic_endpoint_fails_as_a_whole(remote: HttpRemote):
    error = await refusal_of(remote, ATOMIC, {"id": "a"}, {"bad": 1})
    assert (error.kind, error.code, error.maybe_applied) == (ErrorKind.DATA, "invalid", False)
    assert remote.ledger == []


async def test_ids_are_found_in_a_list_of_bare_ids_if_asked(remote: HttpRemote):
    plain = Endpoint(url="/atomic/{table}", results=ItemResults(id="", error=None))
    answer = await sent(remote, plain, {"id": "a"}, {"id": "b"})
    assert [verdict.id for verdict in answer.verdicts] == ["a", "b"]


async def test_a_wrapper_with_a_list_of_failures(remote: HttpRemote):
    results = ItemResults(path="failures", index="index", status="status", only_failures=True)
    endpoint = Endpoint(url="/wrapped/{table}", body=Body.WRAPPER, results=results)
    assert outcomes(await sent(remote, endpoint, {"id": "a"}, {"bad": 1})) == [Outcome.CREATED, Outcome.FAILED]
    assert remote.calls[0].json == {"items": [{"id": "a"}, {"bad": 1}]}


@pytest.mark.parametrize("count", [1, 3])
async def test_json_lines_both_ways(remote: HttpRemote, count: int):
    endpoint = Endpoint(url="/lines/{table}", body=Body.NDJSON, results=ItemResults(status="status"))
    answer = await sent(remote, endpoint, *({"id": str(n)} for n in range(count)))
    assert outcomes(answer) == [Outcome.CREATED] * count
    assert remote.calls[0].headers["content-type"] == "application/x-ndjson"


async def test_one_record_a_call_by_its_id(remote: HttpRemote):
    first = await sent(remote, PUT, {"id": "a/b", "n": 1}, mode=Mode.UPSERT)
    again = await sent(remote, PUT, {"id": "a/b", "n": 2}, mode=Mode.UPSERT)
    assert (outcomes(first), outcomes(again)) == ([Outcome.CREATED], [Outcome.UPDATED])
    assert again.counts_exact
    assert remote.rows["thing"]["a/b"]["n"] == 2


async def test_deletes_take_ids(remote: HttpRemote):
    remote.rows["thing"] = {"a": {}, "b": {}}
    await sent(remote, DELETE, "a", mode=Mode.DELETE)
    many = Endpoint(url="/purge/{table}", results=ItemResults(status="status"))
    answer = await sent(remote, many, "b", "x", mode=Mode.DELETE)
    assert outcomes(answer) == [Outcome.DELETED, Outcome.FAILED]
    assert remote.rows["thing"] == {}


async def test_a_record_that_is_already_gone_counts_as_deleted_if_declared(remote: HttpRemote):
    assert (await refusal_of(remote, DELETE, "x", mode=Mode.DELETE)).kind is ErrorKind.DATA
    gone = Endpoint(url="/rows/{table}/{id}", method="DELETE", body=Body.NONE, gone_is_deleted=True)
    assert outcomes(await sent(remote, gone, "x", mode=Mode.DELETE)) == [Outcome.DELETED]


@pytest.mark.covers("BX-060")
@pytest.mark.parametrize(
    "fault, applied",
    [
        ("reset-before", []),
        ("reset-after", [("write", "a")]),
        ("silent-after", [("write", "a")]),
        ("half", [("write", "a")]),
        ("wrong-length", [("write", "a")]),
        ("drip", [("write", "a")]),
    ],
)
async def test_a_lost_answer_leaves_open_what_was_applied(remote: HttpRemote, fault: str, applied: list[Any]):
    remote.faults.append(fault)
    patience_s = 1 if fault in ("silent-after", "drip") else HANG_S
    error = await refusal_of(remote, BULK, {"id": "a"}, timeout_s=patience_s)
    assert (error.kind, error.maybe_applied) == (ErrorKind.CONNECTION, True)
    assert remote.ledger == applied


async def test_a_success_whose_list_is_too_short_leaves_open_what_was_applied(remote: HttpRemote):
    remote.faults.append(Reply(200, [{"status": 201}]))
    endpoint = Endpoint(url="/bulk/{table}", results=ItemResults(status="status"))
    assert (await refusal_of(remote, endpoint, {}, {})).maybe_applied


async def test_a_remote_that_cannot_be_reached_applied_nothing():
    async with HttpRemote() as gone:
        pass
    error = await refusal_of(gone, BULK, {"id": "a"})
    assert (error.kind, error.maybe_applied) == (ErrorKind.CONNECTION, False)


async def test_a_throttle_is_read_from_the_headers(remote: HttpRemote):
    remote.faults.append(Reply(429, {"message": "slow down"}, {"Retry-After": "17"}))
    error = await refusal_of(remote, BULK, {"id": "a"})
    assert (error.kind, error.retry_after_s) == (ErrorKind.THROTTLED, 17)


async def test_a_lost_batch_is_asked_for_under_its_key(remote: HttpRemote):
    endpoint = Endpoint(url="/atomic/{table}", is_atomic=True, idempotency_header="Idempotency-Key")
    target = HttpTarget(remote.url, {Mode.CREATE: endpoint})
    capabilities = await target.describe("thing", Mode.CREATE, BulkOptions(), "default")
    assert (capabilities.can_reconcile, capabilities.is_idempotent) == (True, False)
    remote.faults += ["reset-after", None, "reset-before"]
    for key in ("applied", "not applied"):
        batch = Batch("thing", Mode.CREATE, [{}, {}], BulkOptions(), key)
        with pytest.raises(TargetError):
            await target.send(batch, "default")
        told = await target.reconcile(batch, "default")
        assert [verdict and verdict.outcome for verdict in told] == [Outcome.CREATED] * 2
    assert len(remote.ledger) == 4
    await target.aclose()


async def test_a_lost_batch_that_turns_out_to_be_wrong_was_never_applied(remote: HttpRemote):
    endpoint = Endpoint(url="/atomic/{table}", is_atomic=True, idempotency_header="Idempotency-Key")
    target = HttpTarget(remote.url, {Mode.CREATE: endpoint})
    remote.faults.append("reset-before")
    batch = Batch("thing", Mode.CREATE, [{}, {"bad": 1}], BulkOptions(), "key")
    with pytest.raises(TargetError):
        await target.send(batch, "default")
    assert list(await target.reconcile(batch, "default")) == [None, None]
    await target.aclose()


async def test_a_lost_create_or_delete_is_looked_up(remote: HttpRemote):
    look = "/rows/{table}/{id}"
    target = HttpTarget(
        remote.url,
        {
            Mode.CREATE: Endpoint(url="/bulk/{table}", id_field="id", lookup=look),
            Mode.UPDATE: Endpoint(url="/bulk/{table}", id_field="id", lookup=look),
            Mode.DELETE: Endpoint(url="/purge/{table}", lookup=look),
        },
    )
    remote.rows["thing"] = {"there": {}}
    created = await target.reconcile(
        Batch("thing", Mode.CREATE, [{"id": "there"}, {"id": "not"}], BulkOptions(), "k"), "default"
    )
    deleted = await target.reconcile(Batch("thing", Mode.DELETE, ["there", "not"], BulkOptions(), "k"), "default")
    assert [verdict and verdict.outcome for verdict in created] == [Outcome.CREATED, None]
    assert [verdict and verdict.outcome for verdict in deleted] == [None, Outcome.DELETED]
    kinds = [(await target.describe("thing", mode, BulkOptions(), "default")).can_reconcile for mode in target_modes]
    assert kinds == [True, False, True]
    await target.aclose()


target_modes = (Mode.CREATE, Mode.UPDATE, Mode.DELETE)


async def test_a_mode_without_an_endpoint_is_unsupported(remote: HttpRemote):
    target = HttpTarget(remote.url, {("thing", Mode.CREATE): BULK})
    assert (await target.describe("thing", Mode.CREATE, BulkOptions(), "default")).id_field == "id"
    for table, mode in (("other", Mode.CREATE), ("thing", Mode.DELETE)):
        with pytest.raises(TargetError) as caught:
            await target.describe(table, mode, BulkOptions(), "default")
        assert caught.value.kind is ErrorKind.UNSUPPORTED


async def test_one_record_a_call_is_what_the_executor_is_told(remote: HttpRemote):
    target = HttpTarget(remote.url, {Mode.UPSERT: PUT, Mode.CREATE: Endpoint(url="/x", records_max=50, bytes_max=900)})
    single = await target.describe("thing", Mode.UPSERT, BulkOptions(), "default")
    many = await target.describe("thing", Mode.CREATE, BulkOptions(), "default")
    assert (single.records_max, many.records_max, many.bytes_max) == (1, 50, 900)


async def test_the_remote_may_recommend_a_width(remote: HttpRemote):
    endpoint = Endpoint(url="/hinted", width_header="X-Parallel")
    remote.routes["/hinted"] = lambda call: Reply(200, {}, {"X-Parallel": "7"})
    assert (await sent(remote, endpoint, {})).width_hint == 7


@pytest.mark.parametrize("client", [None, httpx.AsyncClient])
async def test_cookies_are_never_sent_back(remote: HttpRemote, client: Any):
    remote.routes["/sticky"] = lambda call: Reply(200, {}, {"Set-Cookie": "server=3; Path=/"})
    target = HttpTarget(remote.url, {Mode.CREATE: Endpoint(url="/sticky")}, client=client)
    for _ in range(2):
        await target.send(Batch("thing", Mode.CREATE, [{}], BulkOptions(), "k"), "default")
    assert all("cookie" not in call.headers for call in remote.calls)
    await target.aclose()


async def test_a_redirect_within_the_origin_is_followed_with_its_body(remote: HttpRemote):
    remote.routes["/old"] = lambda call: Reply(308, None, {"Location": "/bulk/thing"})
    answer = await sent(remote, Endpoint(url="/old", results=BULK.results), {"id": "a"}, auth=bearer("t"))
    assert outcomes(answer) == [Outcome.CREATED]
    assert remote.calls[1].headers["authorization"] == "Bearer t"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_credentials_never_follow_a_redirect_to_another_host(remote: HttpRemote, status: int):
    async with HttpRemote() as stranger:
        remote.routes["/old"] = lambda call: Reply(status, None, {"Location": f"{stranger.url}/bulk/thing"})
        error = await refusal_of(remote, Endpoint(url="/old"), {"id": "a"}, auth=bearer("t"))
        assert "origin" in str(error)
        assert stranger.calls == []


@pytest.mark.parametrize("key", ["s3cret\n", " s3cret", "s3crét", "s3\rcret", None])
async def test_a_credential_that_no_header_can_hold_is_told_without_it(remote: HttpRemote, key: Any):
    error = await refusal_of(remote, ATOMIC, {"id": "a"}, auth=StaticHeaders({"X-Api-Key": key}))
    assert "the header 'X-Api-Key' cannot be sent" in str(error)
    assert "s3" not in str(error)
    assert (error.code, error.maybe_applied, remote.calls) == ("BadHeader", False, [])


@pytest.mark.parametrize("url", ["https://me:s3cret@host", "https://me:s3c/ret@host", "https://host/x?key=s3cret"])
def test_an_address_with_credentials_is_refused_without_them(url: str):
    with pytest.raises(SettingsInvalid, match="https://host/path") as caught:
        HttpTarget(url, {Mode.CREATE: BULK})
    assert "s3c" not in "".join(format_exception(caught.value))


@pytest.mark.parametrize("place", ["{url}/nowhere", "http://127.0.0.1:1"], ids=["refused", "not reached"])
async def test_no_error_shows_the_query_of_the_address_of_tokens(remote: HttpRemote, place: str):
    remote.routes["/nowhere"] = lambda call: Reply(400)
    address = place.format(url=remote.url).replace("http://", "http://me:s3cret@") + "?key=s3cret"
    auth = ClientCredentials(address, "me", "s3cret")
    error = await refusal_of(remote, BULK, {"id": "a"}, auth=auth)
    assert str(error).startswith(place.format(url=remote.url))
    assert "s3cret" not in str(error) + repr(auth)


async def test_a_redirect_that_never_ends_is_an_error(remote: HttpRemote):
    remote.routes["/loop"] = lambda call: Reply(307, None, {"Location": "/loop"})
    error = await refusal_of(remote, Endpoint(url="/loop"), {})
    assert (error.code, len(remote.calls)) == ("307", 4)


async def test_every_source_calls_with_its_own_credentials(remote: HttpRemote):
    target = HttpTarget(
        remote.url, {Mode.CREATE: BULK}, auth={"ann": bearer("a"), "bob": StaticHeaders({"X-Key": "b"})}
    )
    assert target.sources == ("ann", "bob")
    for source in target.sources:
        await target.send(Batch("thing", Mode.CREATE, [{"id": source}], BulkOptions(), "k"), source)
    assert remote.calls[0].headers["authorization"] == "Bearer a"
    assert remote.calls[1].headers["x-key"] == "b"
    assert "authorization" not in remote.calls[1].headers
    await target.aclose()


def granted(remote: HttpRemote, secret: str = "s3cret") -> ClientCredentials:
    return ClientCredentials(f"{remote.url}/token", "me", secret, scope="all", audience="things")


async def test_many_calls_at_once_fetch_one_token(remote: HttpRemote):
    target = HttpTarget(remote.url, {Mode.CREATE: BULK}, auth=granted(remote))
    batches = [Batch("thing", Mode.CREATE, [{"id": str(n)}], BulkOptions(), str(n)) for n in range(8)]
    await asyncio.gather(*(target.send(batch, "default") for batch in batches))
    assert remote.tokens == ["token-1"]
    form = next(call.body.decode() for call in remote.calls if call.path == "/token")
    assert "grant_type=client_credentials" in form
    assert "scope=all" in form
    assert "audience=things" in form
    await target.aclose()


@pytest.mark.covers("BX-059")
async def test_a_refused_token_is_replaced_once_for_all_who_ask(remote: HttpRemote):
    target = HttpTarget(remote.url, {Mode.CREATE: BULK}, auth=granted(remote))
    remote.faults += [None, Reply(401, {"message": "expired"})]
    batch = Batch("thing", Mode.CREATE, [{"id": "a"}], BulkOptions(), "k")
    await target.send(batch, "default")
    with pytest.raises(TargetError) as caught:
        await target.send(batch, "default")
    assert caught.value.kind is ErrorKind.TOKEN
    await target.refresh("default")
    await asyncio.gather(*(target.send(batch, "default") for _ in range(4)))
    assert remote.tokens == ["token-1", "token-2"]
    assert remote.calls[-1].headers["authorization"] == "Bearer token-2"
    await target.aclose()


async def test_a_token_is_renewed_before_it_expires(remote: HttpRemote):
    clock = ManualClock()
    target = HttpTarget(remote.url, {Mode.CREATE: BULK}, auth=granted(remote), clock=clock)
    batch = Batch("thing", Mode.CREATE, [{"id": "a"}], BulkOptions(), "k")
    for seconds in (0, 89, 2):
        clock.advance(seconds)
        await target.send(batch, "default")
    assert remote.tokens == ["token-1", "token-2"]
    await target.aclose()


async def test_a_wrong_secret_is_no_passing_trouble_and_is_not_repeated_in_the_error(remote: HttpRemote):
    error = await refusal_of(remote, BULK, {"id": "a"}, auth=granted(remote, "hunter2"))
    assert (error.kind, error.code, error.maybe_applied) == (ErrorKind.PERMISSION, "invalid_client", False)
    assert "hunter2" not in str(error)
    assert "hunter2" not in repr(granted(remote, "hunter2"))


@pytest.mark.parametrize(
    "reply, kind",
    [
        (Reply(429, None, {"Retry-After": "4"}), ErrorKind.THROTTLED),
        (Reply(500), ErrorKind.CONNECTION),
        (Reply(200, b"<html>"), ErrorKind.PERMISSION),
    ],
)
async def test_an_issuer_that_is_in_trouble_leaves_nothing_applied(remote: HttpRemote, reply: Reply, kind: ErrorKind):
    remote.routes["/token"] = lambda call: reply
    error = await refusal_of(remote, BULK, {"id": "a"}, auth=granted(remote))
    assert (error.kind, error.maybe_applied) == (kind, False)


async def test_an_issuer_that_keeps_silent_is_not_waited_for_forever(remote: HttpRemote):
    never = asyncio.Event()

    class Silent:
        async def headers(self, client: Any, clock: Any) -> dict[str, str]:
            await never.wait()
            return {}

        def refuse(self) -> None: ...

    error = await refusal_of(remote, BULK, {"id": "a"}, auth=Silent(), timeout_s=0.05)
    assert (error.kind, error.maybe_applied) == (ErrorKind.CONNECTION, False)
    assert remote.calls == []


async def test_a_key_in_the_query_appears_in_no_error(remote: HttpRemote):
    endpoint = Endpoint(url="/nowhere/{table}?key=hunter2")
    remote.faults.append("reset-before")
    for _ in range(2):
        assert "hunter2" not in str(await refusal_of(remote, endpoint, {}))


@pytest.mark.parametrize("auth", [StaticHeaders({"X-Key": "s3cret"}), bearer("s3cret")], ids=["headers", "bearer"])
def test_fixed_credentials_do_not_show_their_secret(auth: StaticHeaders):
    assert "s3cret" not in f"{auth!r} {auth}"


@pytest.mark.parametrize(
    "url", ["ftp://host", "https://", "https://user:pass@host", "https://host/?key=1", "http://host.example"]
)
def test_a_base_that_would_leak_or_cannot_work_is_refused(url: str):
    with pytest.raises(SettingsInvalid):
        HttpTarget(url, {Mode.CREATE: BULK}, auth=bearer("t"))


def test_plain_http_with_credentials_must_be_asked_for():
    assert HttpTarget("http://host.example", {Mode.CREATE: BULK}, auth=bearer("t"), allow_plain_http=True)
    assert HttpTarget("http://host.example", {Mode.CREATE: BULK})
    with pytest.raises(SettingsInvalid, match="secret"):
        ClientCredentials("http://issuer.example/token", "me", "s")


def test_without_httpx_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "httpx":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SettingsInvalid, match=r"penstock\[http\]"):
        HttpTarget("https://host", {Mode.CREATE: BULK})


def test_records_of_one_key_are_one():
    target = HttpTarget("https://host", {Mode.UPSERT: PUT, Mode.DELETE: DELETE})
    assert target.identity("thing", Mode.UPSERT, {"id": 7}) == 7
    assert target.identity("thing", Mode.DELETE, 7) == 7


def test_without_an_endpoint_only_a_delete_knows_what_identifies_its_record():
    target = HttpTarget("https://host", {("thing", Mode.UPSERT): PUT})
    assert target.identity("other", Mode.UPSERT, {"id": 7}) is None
    assert target.identity("thing", Mode.DELETE, 7) == 7


async def test_the_path_in_an_error_is_the_one_that_was_called(remote: HttpRemote):
    def broken(call: Call) -> Reply:
        return Reply(500, {"message": "boom"})

    remote.routes["/broken/thing"] = broken
    error = await refusal_of(remote, Endpoint(url="/broken/{table}"), {})
    assert str(error) == "POST /broken/thing answered 500: boom"
