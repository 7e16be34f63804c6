"""The middleware by itself, message by message: streams, disconnects, limits, and applications that misbehave."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from shop import Shop, application, caller, client_of

from penstock.errors import DeclarationError, SettingsInvalid, Unavailable
from penstock.idempotency import Idempotency, IdempotencyMiddleware, Rule, for_methods, idempotent, one_caller
from penstock.idempotency.store import Store

pytestmark = pytest.mark.databases("sqlite")

Messages = list[dict[str, Any]]
GUARDED = for_methods("POST")
KEY = {"Idempotency-Key": "key"}


class Client:
    """One request, and what its client sees. It goes away behind its last message, if told so."""

    def __init__(self, *pieces: bytes, key: bytes = b"key", is_leaving: bool = False, is_complete: bool = True) -> None:
        self.headers = [(b"idempotency-key", key)]
        self.coming: Messages = [
            {"type": "http.request", "body": piece, "more_body": True} for piece in (pieces or (b"",))
        ]
        self.coming[-1]["more_body"] = not is_complete
        if is_leaving:
            self.coming.append({"type": "http.disconnect"})
        self.sent: Messages = []
        self.heard = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if not self.coming:
            await asyncio.Event().wait()
        return self.coming.pop(0)

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self.heard.set()

    async def call(self, application: Any, /, **scope: Any) -> None:
        made = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": self.headers, **scope}
        await application(made, self.receive, self.send)

    @property
    def status(self) -> int:
        [start] = [message for message in self.sent if message["type"] == "http.response.start"]
        return int(start["status"])

    @property
    def body(self) -> bytes:
        return b"".join(m.get("body", b"") for m in self.sent if m["type"] == "http.response.body")


class Answers:
    """An application that answers with these messages, and counts."""

    def __init__(self, status: int = 200, *pieces: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self.start = {"type": "http.response.start", "status": status, "headers": list(headers)}
        self.pieces = pieces or (b"done",)
        self.calls = 0
        self.scopes: list[Any] = []
        self.read: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        self.scopes.append(scope)
        is_more = scope["type"] == "http"
        while is_more:
            message = await receive()
            self.read.append(message["body"])
            is_more = message["more_body"]
        await send(self.start)
        for number, piece in enumerate(self.pieces, 1):
            await send({"type": "http.response.body", "body": piece, "more_body": number < len(self.pieces)})


def guarded(app: Any, keys: Idempotency, **options: Any) -> IdempotencyMiddleware:
    return IdempotencyMiddleware(app, keys=keys, **{"caller": one_caller, "rules": GUARDED, **options})


async def test_nothing_is_sent_before_the_key_is_settled(keys: Idempotency):
    app = Answers(200, b"a", b"b")
    states: list[Any] = []
    client = Client()

    async def send(message: dict[str, Any]) -> None:
        found = await keys.get("key")
        states.append(found and found.state)
        client.sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": client.headers}
    await guarded(app, keys)(scope, client.receive, send)
    assert states == ["Completed"] * 2
    assert client.body == b"ab"


async def test_a_client_that_leaves_before_its_request_is_complete_claims_nothing(keys: Idempotency):
    app = Answers()
    client = Client(b"half of", is_complete=False, is_leaving=True)
    await client.call(guarded(app, keys))
    assert (app.calls, client.sent, await keys.get("key")) == (0, [], None)


async def test_a_client_that_leaves_stops_nothing_and_finds_its_answer_later(keys: Idempotency):
    """Starlette ends a streaming answer when it hears that its client is gone; here it hears it afterwards."""
    from starlette.applications import Starlette
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    calls = 0

    async def endpoint(request: Any) -> StreamingResponse:
        nonlocal calls
        calls += 1

        async def pieces() -> AsyncIterator[bytes]:
            for piece in (b"a", b"b", b"c"):
                await asyncio.sleep(0)
                yield piece

        return StreamingResponse(pieces())

    app = guarded(Starlette(routes=[Route("/", endpoint, methods=["POST"])]), keys)
    gone = Client(is_leaving=True)
    await gone.call(app)
    back = Client()
    await back.call(app)
    assert (back.status, back.body, calls) == (200, b"abc", 1)


async def test_a_client_that_cannot_be_reached_any_more_loses_no_answer(keys: Idempotency):
    app = Answers(201)

    async def send(message: dict[str, Any]) -> None:
        raise OSError("the client is gone")

    client = Client()
    scope = {"type": "http", "method": "POST", "path": "/", "headers": client.headers}
    with pytest.raises(OSError, match="the client is gone"):
        await guarded(app, keys)(scope, client.receive, send)
    again = Client()
    await again.call(guarded(app, keys))
    assert (again.status, again.body, app.calls) == (201, b"done", 1)


async def test_an_answer_too_large_to_be_kept_is_delivered_once_and_not_made_again(keys: Idempotency):
    pieces = [b"x" * 400] * 5
    app = Answers(201, *pieces, headers=[(b"location", b"/reports/1")])
    guard = guarded(app, keys, answer_bytes_max=1000)
    first, again = Client(), Client()
    await first.call(guard)
    assert (first.status, first.body) == (201, b"".join(pieces))
    assert first.sent[-1]["more_body"] is False
    await again.call(guard)
    assert (again.status, app.calls) == (410, 1)
    assert (b"location", b"/reports/1") in again.sent[0]["headers"]
    assert b'"answeredStatus":201' in again.body


@pytest.mark.parametrize("size", [999, 1000, 1001])
async def test_the_limit_of_an_answer_is_exact_in_one_piece_or_many(keys: Idempotency, size: int):
    for number, pieces in enumerate(([b"x" * size], [b"x" * (size - 1), b"x"], [b"x" * size, b""])):
        app, key = Answers(200, *pieces), b"key-%d" % number
        guard = guarded(app, keys, answer_bytes_max=1000)
        first, again = Client(key=key), Client(key=key)
        await first.call(guard)
        await again.call(guard)
        assert first.body == b"x" * size
        assert again.status == (200 if size <= 1000 else 410)
        assert app.calls == 1


async def test_a_large_answer_that_would_not_be_kept_gives_the_key_back(keys: Idempotency):
    app = Answers(500, b"x" * 2000)
    guard = guarded(app, keys, answer_bytes_max=1000)
    for _ in range(2):
        client = Client()
        await client.call(guard)
        assert (client.status, len(client.body)) == (500, 2000)
    assert app.calls == 2


async def test_a_stream_of_events_is_passed_on_as_it_comes_and_hears_when_its_client_leaves(keys: Idempotency):
    client = Client()
    heard: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"Content-Type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        assert client.body == b"data: 1\n\n"
        client.coming.append({"type": "http.disconnect"})
        heard.append((await receive())["type"])

    await client.call(guarded(app, keys))
    assert heard == ["http.disconnect"]
    again = Client()
    await again.call(guarded(app, keys))
    assert again.status == 410


@pytest.mark.parametrize("kind", ["websocket", "lifespan-like"])
async def test_what_is_no_http_request_is_passed_by(keys: Idempotency, kind: str):
    app = Answers()
    scope = {"type": kind, "path": "/", "headers": [(b"idempotency-key", b"key")]}
    client = Client()
    await guarded(app, keys)(scope, client.receive, client.send)
    assert (app.calls, app.scopes[0] is scope, await keys.get("key")) == (1, True, None)


async def test_shortcuts_around_the_middleware_are_closed_and_other_extensions_stay(keys: Idempotency):
    app = Answers()
    extensions = {"http.response.pathsend": {}, "http.response.trailers": {}, "tls": {"version": 13}}
    await Client().call(guarded(app, keys), extensions=extensions)
    assert app.scopes[0]["extensions"] == {"tls": {"version": 13}}
    assert len(extensions) == 3


async def test_a_body_beyond_the_memory_limit_reaches_the_application_byte_by_byte(keys: Idempotency):
    pieces = [bytes([number]) * 1000 for number in range(200)]
    for memory_bytes in (0, 1, 999, 1000, 150_000, 200_000, 200_001):
        app = Answers()
        client = Client(*pieces, key=b"key-%d" % memory_bytes)
        await client.call(guarded(app, keys, memory_bytes=memory_bytes))
        assert b"".join(app.read) == b"".join(pieces)


async def test_an_empty_body_is_one_message(keys: Idempotency):
    app = Answers()
    await Client().call(guarded(app, keys))
    assert app.read == [b""]


async def test_a_body_beyond_the_limit_is_refused_and_claims_nothing(keys: Idempotency):
    app = Answers()
    client = Client(b"x" * 600, b"x" * 600)
    await client.call(guarded(app, keys, body_bytes_max=1000))
    assert (client.status, app.calls, await keys.get("key")) == (413, 0, None)


async def test_an_application_that_ends_without_an_answer_gives_the_key_back(keys: Idempotency):
    async def silent(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    client = Client()
    await client.call(guarded(silent, keys))
    assert (client.sent, await keys.get("key")) == ([], None)


async def test_a_failure_behind_the_answer_changes_nothing(keys: Idempotency):
    class FailsAfterwards(Answers):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await super().__call__(scope, receive, send)
            raise RuntimeError("a background task failed")

    app = FailsAfterwards(201)
    client, again = Client(), Client()
    with pytest.raises(RuntimeError, match="background task"):
        await client.call(guarded(app, keys))
    await again.call(guarded(app, keys))
    assert (client.status, again.status, again.body, app.calls) == (201, 201, b"done", 1)


async def test_a_handler_that_is_cancelled_leaves_the_key_indeterminate(keys: Idempotency):
    begun = asyncio.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(Client().call(guarded(endless, keys)))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    again = Client()
    await again.call(guarded(endless, keys))
    assert again.status == 409
    assert b"idempotency-key-indeterminate" in again.body


@pytest.mark.parametrize("verb", ["insert", "move"])
async def test_a_store_that_is_away_lets_nothing_through_and_takes_no_answer_back(
    keys: Idempotency, store: Store, verb: str, monkeypatch: pytest.MonkeyPatch
):
    async def away(*_: Any, **__: Any) -> Any:
        raise Unavailable("the database is away")

    app, told = Answers(201), Counter[str]()
    guard = guarded(app, keys, observe=lambda name: told.update([name]))
    with monkeypatch.context() as patch:
        patch.setattr(store, verb, away)
        client = Client()
        await client.call(guard)
    again = Client()
    await again.call(guard)
    if verb == "insert":
        assert (client.status, app.calls, told) == (503, 1, {"unavailable": 1})
        assert dict(client.sent[0]["headers"])[b"retry-after"] == b"2"
        assert b"database" not in client.body
        assert again.status == 201
    else:
        # What was done is done, so its client hears of it; the key stays in use until its lease is over.
        assert (client.status, client.body, app.calls) == (201, b"done", 1)
        assert again.status == 409


async def test_an_answer_that_cannot_be_kept_for_any_reason_is_given_and_its_key_is_not_free(
    keys: Idempotency, store: Store, monkeypatch: pytest.MonkeyPatch
):
    move = store.move

    async def broken(address: Any, event: str, **options: Any) -> Any:
        if event == "completed":
            raise RuntimeError("the packet is too large")
        return await move(address, event, **options)

    app = Answers(201)
    monkeypatch.setattr(store, "move", broken)
    client, again = Client(), Client()
    await client.call(guarded(app, keys))
    await again.call(guarded(app, keys))
    assert (client.status, client.body, again.status, app.calls) == (201, b"done", 409, 1)


async def test_a_heartbeat_that_fails_does_not_spoil_the_answer(real_store: Store, monkeypatch: pytest.MonkeyPatch):
    beaten = asyncio.Event()

    async def broken(*_: Any) -> bool:
        beaten.set()
        raise RuntimeError("a surprise")

    class Slow(Answers):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await beaten.wait()
            await super().__call__(scope, receive, send)

    monkeypatch.setattr(real_store, "renew", broken)
    app, client, again = Slow(201), Client(), Client()
    keys = Idempotency(real_store, lease=0.1)
    await client.call(guarded(app, keys))
    await again.call(guarded(app, keys))
    assert (client.status, again.body, app.calls) == (201, b"done", 1)


async def test_marks_are_found_on_routers_mounted_applications_and_classes(keys: Idempotency):
    from fastapi import APIRouter, FastAPI
    from starlette.applications import Starlette
    from starlette.endpoints import HTTPEndpoint
    from starlette.responses import PlainTextResponse
    from starlette.routing import Mount, Route

    calls = Counter[str]()
    router = APIRouter(prefix="/inner")

    @router.post("/orders/{number}")
    @idempotent(required=True)
    async def order(number: int) -> int:
        calls["order"] += 1
        return number

    @idempotent(required=True)
    async def pay(request: Any) -> PlainTextResponse:
        calls["pay"] += 1
        return PlainTextResponse("paid")

    @idempotent(required=True)
    class Refunds(HTTPEndpoint):
        async def post(self, request: Any) -> PlainTextResponse:
            calls["refund"] += 1
            return PlainTextResponse("refunded")

    app = FastAPI()
    outer = APIRouter(prefix="/outer")
    outer.include_router(router)
    app.include_router(outer)
    routes = [Route("/pay/{number}", pay, methods=["POST"]), Mount("/more", routes=[Route("/refunds", Refunds)])]
    app.mount("/mounted", Starlette(routes=routes))
    app.add_middleware(IdempotencyMiddleware, keys=keys, caller=one_caller)
    paths = ["/outer/inner/orders/7", "/mounted/pay/7", "/mounted/more/refunds"]
    async with client_of(app) as client:
        for path in paths:
            assert (await client.post(path)).status_code == 400
            answers = [await client.post(path, headers={"Idempotency-Key": path}) for _ in range(2)]
            assert [answer.status_code for answer in answers] == [200, 200]
            assert answers[1].headers["idempotent-replayed"] == "true"
        assert (await client.post("/mounted/nothing")).status_code == 404
    assert calls == {"order": 1, "pay": 1, "refund": 1}


class Opaque:
    """A route of a kind that nobody has seen: it matches, and does not say which endpoint it leads to."""

    def matches(self, scope: Any) -> tuple[Any, dict[str, Any]]:
        return SimpleNamespace(name="FULL"), {}


async def test_a_route_that_cannot_be_looked_into_is_an_error_and_not_a_way_around(keys: Idempotency):
    app = IdempotencyMiddleware(Answers(), keys=keys, caller=one_caller)
    with pytest.raises(DeclarationError, match="which endpoint Opaque chooses for /"):
        await Client().call(app, app=SimpleNamespace(routes=[Opaque()]))


async def test_a_marked_endpoint_that_was_not_found_is_reported(keys: Idempotency, caplog: pytest.LogCaptureFixture):
    @idempotent()
    async def endpoint() -> None: ...

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["endpoint"] = endpoint

    await Client().call(IdempotencyMiddleware(app, keys=keys, caller=one_caller), app=SimpleNamespace(routes=[]))
    assert "/ is marked and was not guarded" in caplog.text


async def test_a_caller_may_be_found_by_waiting_and_must_be_text(keys: Idempotency):
    async def found(scope: Any) -> list[str]:
        return ["acme", "ana"]

    await Client().call(guarded(Answers(), keys, caller=found))
    assert await keys.get("key", scope=("acme", "ana")) is not None
    with pytest.raises(TypeError, match=r"a caller is told by text; found \['NoneType'\]"):
        await Client().call(guarded(Answers(), keys, caller=lambda scope: [None]))


async def test_marked_endpoints_are_not_looked_for_where_there_are_none(keys: Idempotency):
    app = IdempotencyMiddleware(Answers(), keys=keys, caller=one_caller)
    with pytest.raises(DeclarationError, match="give rules=for_methods"):
        await Client().call(app)


async def test_a_page_with_help_is_named_in_every_refusal(keys: Idempotency):
    guard = guarded(Answers(), keys, rules=for_methods("POST", rule=Rule(required=True)), help_url="https://x/help")
    client = Client()
    client.headers = []
    await client.call(guard)
    assert client.status == 400
    assert dict(client.sent[0]["headers"])[b"link"] == b'<https://x/help>; rel="describedby"'
    assert b'"type":"https://x/help"' in client.body


async def test_which_answers_are_kept_can_be_said(keys: Idempotency):
    app = Answers(500)
    guard = guarded(app, keys, rules=for_methods("POST", rule=Rule(keep=lambda status: True)))
    for _ in range(2):
        client = Client()
        await client.call(guard)
        assert client.status == 500
    assert app.calls == 1


async def test_the_keys_are_opened_with_the_application_and_closed_with_it(store_url: str):
    shop = Shop()
    app = application(shop, store_url)
    sent, coming = asyncio.Queue[dict[str, Any]](), asyncio.Queue[dict[str, Any]]()
    coming.put_nowait({"type": "lifespan.startup"})
    life = asyncio.create_task(app({"type": "lifespan", "state": {}}, coming.get, sent.put))
    assert (await sent.get())["type"] == "lifespan.startup.complete"
    async with client_of(app) as client:
        for _ in range(2):
            assert (await client.post("/orders", content=b"x", headers=KEY)).content == b"order 1: x"
    coming.put_nowait({"type": "lifespan.shutdown"})
    assert (await sent.get())["type"] == "lifespan.shutdown.complete"
    await life
    assert shop.told["claimed"] == shop.told["replayed"] == 1


async def test_an_application_whose_keys_cannot_be_opened_does_not_start(tmp_path: Any):
    app = application(Shop(), f"sqlite:///{tmp_path}/no/such/folder/keys.db")
    sent: Messages = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    with pytest.raises(SettingsInvalid, match="folder of the database does not exist"):
        await app({"type": "lifespan", "state": {}}, receive, send)
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]


async def test_keys_that_cannot_be_reached_refuse_the_request():
    app = application(Shop(), "postgresql://nobody@127.0.0.1:1/nothing")
    async with client_of(app) as client:
        assert (await client.post("/orders", content=b"x", headers=KEY)).status_code == 503


async def test_the_keys_may_come_from_a_function(keys: Idempotency):
    shop = Shop()
    async with client_of(application(shop, lambda: keys)) as client:
        for _ in range(2):
            await client.post("/orders", content=b"x", headers=KEY)
    assert shop.effects == {"order": 1}
    assert caller({"headers": []}) == ("acme", "ana")
