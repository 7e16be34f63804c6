"""An API as its users describe it: declared rates, forms and files, errors of the server, look-ups in pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from http_remote import Call, HttpRemote, Reply
from scripted import Refuse, Remote, executor, in_virtual_time, numbered, trouble

from penstock.errors import SettingsInvalid
from penstock.targets import BulkOptions, Capabilities, ErrorKind, RateLimit, RetryPolicy, TargetError
from penstock.targets.http import Body, Endpoint, File, HttpTarget, PagedLookup, bearer
from penstock.targets.model import Batch, Mode, Outcome
from penstock.targets.rules.limits import TokenBucket

PUT = Endpoint(url="/rows/{table}/{id}", method="PUT", body=Body.SINGLE, id_field="id", is_idempotent=True)


@pytest.fixture
async def remote() -> AsyncIterator[HttpRemote]:
    async with HttpRemote() as server:
        yield server


def batch(*records: Any, mode: Mode = Mode.CREATE) -> Batch:
    return Batch("customers", mode, records, BulkOptions(), "key-1")


async def posted(remote: HttpRemote, endpoint: Endpoint, record: dict[str, Any]) -> Call:
    """The call that carries a record; the remote takes anything."""
    remote.routes["/customers"] = lambda call: Reply(201, {"id": "c-1"})
    async with HttpTarget(remote.url, {Mode.CREATE: endpoint}, auth=bearer("secret")) as target:
        answer = await target.send(batch(record), "default")
    assert answer.verdicts[0].id == "c-1"
    return remote.calls[-1]


async def test_a_record_can_travel_as_form_fields(remote: HttpRemote):
    record = {
        "name": "Ann & Co",
        "address": {"city": "Bern"},
        "tags": ["a", "b"],
        "age": 7,
        "is_on": True,
        "note": None,
    }
    call = await posted(remote, Endpoint(url="/customers", body=Body.FORM), record)
    assert call.headers["content-type"] == "application/x-www-form-urlencoded"
    assert call.headers["authorization"] == "Bearer secret"
    assert parse_qs(call.body.decode()) == {
        "name": ["Ann & Co"], "address[city]": ["Bern"], "tags[]": ["a", "b"], "age": ["7"], "is_on": ["true"],
    }  # fmt: skip


async def test_a_record_can_carry_files(remote: HttpRemote):
    record = {"title": "Scan", "meta": {"pages": 2}, "raw": b"\0\1", "scan": File("a.pdf", b"%PDF", "application/pdf")}
    endpoint = Endpoint(url="/customers", body=Body.MULTIPART)
    call = await posted(remote, endpoint, record)
    kind, _, boundary = call.headers["content-type"].partition("; boundary=")
    assert kind == "multipart/form-data"
    parts = [part.partition(b"\r\n\r\n") for part in call.body.split(f"--{boundary}".encode())[1:-1]]
    heads = [head.decode().strip().split("\r\n") for head, _, _ in parts]
    assert heads == [
        ['Content-Disposition: form-data; name="title"'],
        ['Content-Disposition: form-data; name="meta"', "Content-Type: application/json"],
        ['Content-Disposition: form-data; name="raw"; filename="raw"', "Content-Type: application/octet-stream"],
        ['Content-Disposition: form-data; name="scan"; filename="a.pdf"', "Content-Type: application/pdf"],
    ]
    assert [content[:-2] for _, _, content in parts] == [b"Scan", b'{"pages":2}', b"\0\1", b"%PDF"]
    again = await posted(remote, endpoint, record)
    assert again.body == call.body  # a repeat under the same key is the same request


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_an_error_of_the_server_is_tried_again_where_that_does_no_harm(remote: HttpRemote, status: int):
    remote.faults.extend([Reply(status, {"message": "oops"})] * 2)
    async with HttpTarget(remote.url, {Mode.UPSERT: PUT}) as target:
        soon = RetryPolicy(jitter=0, wait_first_s=0.01)
        result = await executor(target, policy=soon).upsert_multiple("customers", [{"id": "a"}])
    assert result.is_success
    assert result.statistics.retries == {ErrorKind.SERVER if status == 500 else ErrorKind.CONNECTION: 2}


async def test_an_error_of_the_server_is_not_tried_again_where_it_might_do_harm(remote: HttpRemote):
    remote.faults.append(Reply(500, {"message": "oops"}))
    async with HttpTarget(remote.url, {Mode.CREATE: Endpoint(url="/bulk/{table}")}) as target:
        result = await executor(target).create_multiple("customers", [{"id": "a"}])
    assert list(result.outcomes) == [Outcome.UNKNOWN]
    assert len(remote.calls) == 1


@in_virtual_time
async def test_a_record_that_the_server_cannot_bear_is_found():
    idempotent = Capabilities(id_field="n", is_idempotent=True)
    remote = Remote(capabilities=idempotent, bad=lambda n: trouble(ErrorKind.SERVER) if n == 3 else None)
    result = await executor(remote).upsert_multiple("account", numbered(20))
    assert [(error.index, error.kind) for error in result.errors] == [(3, ErrorKind.SERVER)]
    assert result.success_count == 19


def paged(call: Call, way: str) -> Reply:
    """Two records that exist, one on each page."""
    asked = parse_qs(urlsplit(call.path).query)
    assert asked["ids"] == ["a,b,c"]
    is_second = asked.get("page") == ["2"]
    body: dict[str, Any] = {"data": [{"key": "c" if is_second else "a"}]}
    headers = {}
    if not is_second:
        further = call.path + "&page=2"
        body["next"] = {"address": further, "cursor": "2", "link": None}[way]
        headers = {"Link": f'<{further}>; rel="next", </>; rel="first"'} if way == "link" else {}
    return Reply(200, body, headers)


@pytest.mark.parametrize("way", ["address", "cursor", "link"])
async def test_what_became_of_a_lost_batch_is_read_page_by_page(remote: HttpRemote, way: str):
    remote.routes["/v1/customers"] = lambda call: paged(call, way)
    lookup = PagedLookup(
        url="/{table}?ids={ids}",
        items="data",
        id="key",
        next=None if way == "link" else "next",
        cursor_parameter="page",
    )
    endpoint = Endpoint(url="/{table}/bulk", id_field="id", lookup=lookup)
    async with HttpTarget(f"{remote.url}/v1", {Mode.CREATE: endpoint, Mode.DELETE: endpoint}) as target:
        created = await target.reconcile(batch({"id": "a"}, {"id": "b"}, {"id": "c"}), "default")
        deleted = await target.reconcile(batch("a", "b", "c", mode=Mode.DELETE), "default")
    assert [one and one.outcome for one in created] == [Outcome.CREATED, None, Outcome.CREATED]
    assert [one and one.outcome for one in deleted] == [None, Outcome.DELETED, None]


async def test_a_page_of_another_origin_is_not_followed(remote: HttpRemote):
    remote.routes["/customers"] = lambda call: Reply(200, {"data": [], "next": "https://evil.example/steal"})
    lookup = PagedLookup(url="/{table}?ids={ids}", items="data", next="next")
    endpoint = Endpoint(url="/{table}/bulk", id_field="id", lookup=lookup)
    async with HttpTarget(remote.url, {Mode.CREATE: endpoint}) as target:
        with pytest.raises(TargetError, match="leads to another origin"):
            await target.reconcile(batch({"id": "a"}), "default")


def paging(next_page: str, way: str, asked: list[str]) -> httpx.MockTransport:
    """Answers every question with no records and the same next page, and writes down who was asked."""

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        is_last = len(asked) > 1
        link = {"Link": f'<{next_page}>; rel="next"'} if way == "link" and not is_last else {}
        body = {"data": [], "next": None if way == "link" or is_last else next_page}
        return httpx.Response(200, json=body, headers=link)

    return httpx.MockTransport(answer)


async def looked_up(base: str, next_page: str, way: str, asked: list[str]) -> None:
    """Look a record up at a remote whose first answer names this next page."""
    lookup = PagedLookup(url="/{table}?ids={ids}", items="data", next="next" if way == "body" else None)
    endpoint = Endpoint(url="/{table}/bulk", id_field="id", lookup=lookup)

    def client() -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=paging(next_page, way, asked))

    async with HttpTarget(base, {Mode.CREATE: endpoint}, auth=bearer("secret"), client=client) as target:
        await target.reconcile(batch({"id": "a"}), "default")


@pytest.mark.parametrize(
    "next_page, way",
    [
        *product(
            [
                "https://api.example.org.evil.test/steal",
                "https://api.example.org@evil.test/steal",
                "https://api.example.org\\@evil.test/steal",
                "https://api.example.org:8443/steal",
                "https://api.example.org:port/steal",
                "https://ann:pass@api.example.org/steal",
                "http://api.example.org/steal",
                "//evil.test/steal",
            ],
            ["body", "link"],
        ),
        ("HTTP://evil.test/steal", "link"),
        ("ftp://evil.test/steal", "link"),
    ],
)
@pytest.mark.parametrize("base", ["https://api.example.org", "https://api.example.org/v1"])
async def test_a_page_whose_address_only_looks_like_the_base_is_not_followed(base: str, next_page: str, way: str):
    asked: list[str] = []
    with pytest.raises(TargetError, match=r"leads to another origin|is no address") as caught:
        await looked_up(base, next_page, way, asked)
    assert asked == [f"{base}/customers?ids=a"]
    assert "pass" not in str(caught.value)


@pytest.mark.parametrize("base", ["https://api.example.org/v1", "https://API.example.org:443/v1/"])
@pytest.mark.parametrize(
    "next_page",
    ["https://api.example.org/v1/customers?page=2", "/v1/customers?page=2", "https://api.example.org:443/x"],
)
async def test_a_page_of_the_same_origin_is_followed_however_its_address_is_spelled(base: str, next_page: str):
    asked: list[str] = []
    await looked_up(base, next_page, "body", asked)
    assert len(asked) == 2


@pytest.mark.parametrize("round_trip", [["1"], ["1", "2"]], ids=["names itself", "names one before"])
@pytest.mark.parametrize("way", ["address", "cursor"])
async def test_a_page_that_was_already_read_ends_the_question(remote: HttpRemote, round_trip: list[str], way: str):
    def turn(call: Call) -> Reply:
        page = round_trip[len(remote.calls) % len(round_trip)]
        return Reply(200, {"data": [], "next": f"/customers?ids=a&cursor={page}" if way == "address" else page})

    remote.routes["/customers"] = turn
    lookup = PagedLookup(url="/{table}?ids={ids}", items="data", next="next")
    endpoint = Endpoint(url="/{table}/bulk", id_field="id", lookup=lookup)
    async with HttpTarget(remote.url, {Mode.CREATE: endpoint}) as target:
        with pytest.raises(TargetError, match=r"customers.* names a next page that was already read") as caught:
            await target.reconcile(batch({"id": "a"}), "default")
    assert len(remote.calls) == len(round_trip) + 1
    assert "cursor" not in str(caught.value)


async def test_a_list_that_is_none_leaves_the_question_open(remote: HttpRemote):
    remote.routes["/customers"] = lambda call: Reply(200, {"records": []})
    endpoint = Endpoint(url="/x", id_field="id", lookup=PagedLookup(url="/{table}?ids={ids}", items="data"))
    async with HttpTarget(remote.url, {Mode.CREATE: endpoint}) as target:
        with pytest.raises(TargetError, match="without a list"):
            await target.reconcile(batch({"id": "a"}), "default")


async def test_records_are_looked_up_by_the_field_that_identifies_them(remote: HttpRemote):
    remote.routes["/customers"] = lambda call: Reply(200, [{"id": 7, "email": "ann@x.org"}])
    endpoint = Endpoint(url="/x", id_field="email", lookup=PagedLookup(url="/{table}?emails={ids}"))
    async with HttpTarget(remote.url, {Mode.CREATE: endpoint}) as target:
        told = await target.reconcile(batch({"email": "ann@x.org"}, {"email": "bea@x.org"}), "default")
    assert [one and one.outcome for one in told] == [Outcome.CREATED, None]


@pytest.mark.parametrize(
    "record, found, match",
    [({"name": "Ann"}, [], "without an id"), ({"id": "a"}, [{"name": "Ann"}], "records without 'id'")],
    ids=["in the record", "in the answer"],
)
async def test_a_look_up_without_ids_leaves_the_question_open(
    remote: HttpRemote, record: dict[str, Any], found: list[Any], match: str
):
    remote.routes["/customers"] = lambda call: Reply(200, found)
    endpoint = Endpoint(url="/x", id_field="id", lookup=PagedLookup(url="/{table}?ids={ids}"))
    async with HttpTarget(remote.url, {Mode.CREATE: endpoint}) as target:
        with pytest.raises(TargetError, match=match):
            await target.reconcile(batch(record), "default")


@pytest.mark.parametrize("key", ["create", ("customers", "create")])
@pytest.mark.parametrize("lookup", ["/{table}/{id}", PagedLookup(url="/{table}?ids={ids}")], ids=["one", "many"])
def test_a_look_up_of_created_records_needs_the_field_that_identifies_them(key: Any, lookup: Any):
    with pytest.raises(SettingsInvalid, match="by which id_field"):
        HttpTarget("https://x.example", {key: Endpoint(url="/x", lookup=lookup)})


def test_a_look_up_must_say_where_the_ids_go():
    with pytest.raises(SettingsInvalid, match=r"must say where the ids go"):
        PagedLookup(url="/customers")


@in_virtual_time
async def test_a_declared_rate_is_kept_without_a_single_throttle():
    remote = Remote(width=8, latency_s=0.2)
    remote.rate_limit = RateLimit(50, per_s=5)
    result = await executor(remote).create_multiple("account", numbered(100), BulkOptions(batch_size=1))
    starts = [call.at_s for call in remote.calls]
    assert result.duration_s == pytest.approx(100 * 0.1 + 0.2, abs=0.05)  # the table's description is a call too
    assert max(sum(start <= other < start + 5 for other in starts) for start in starts) <= 50


@in_virtual_time
async def test_a_remote_that_throttles_all_the_same_is_obeyed():
    remote = Remote(script={2: Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=60))})
    remote.rate_limit = RateLimit(10)
    result = await executor(remote).create_multiple("account", numbered(5), BulkOptions(batch_size=1))
    assert result.is_success
    assert result.duration_s > 60


def test_a_bucket_lets_a_burst_through_and_then_the_rate():
    bucket = TokenBucket(RateLimit(10, per_s=1, burst=3))
    for _ in range(3):
        assert bucket.until_s(5.0) is None
        bucket.began(5.0)
    assert bucket.until_s(5.0) == pytest.approx(5.1)
    assert bucket.until_s(5.1) is None
    bucket.began(5.1)
    assert bucket.until_s(100.0) is None


@pytest.mark.parametrize("wrong", [{"calls": 0}, {"calls": 1, "per_s": 0}, {"calls": 1, "burst": 0}])
def test_a_rate_that_is_none_is_refused(wrong: dict[str, Any]):
    with pytest.raises(SettingsInvalid, match="a rate limit has calls and seconds above 0"):
        RateLimit(**wrong)
