"""One HTTP call: what it carries, and what a missing answer means."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import pytest

from penstock.clock import ManualClock
from penstock.errors import SettingsInvalid
from penstock.targets.dataverse import DataverseTarget
from penstock.targets.dataverse.web_api import Tokens, WebApi, default_client
from penstock.targets.http.client import checked_base
from penstock.targets.model import ErrorKind, TargetError

URL = "https://org.crm.dynamics.com"


@dataclass(frozen=True)
class Given:
    token: str
    expires_on: int


class Credential:
    def __init__(self) -> None:
        self.asked = 0

    def get_token(self, *scopes: str, **_: object) -> Given:
        self.asked += 1
        return Given(f"secret-{self.asked}", 2_000_000_000)


def wire(answer: Callable[[httpx.Request], httpx.Response]) -> WebApi:
    clock = ManualClock()
    tokens = Tokens({"app": Credential()}, f"{URL}/.default", clock)
    return WebApi(URL, "v9.2", tokens, clock, lambda: httpx.AsyncClient(transport=httpx.MockTransport(answer)))


async def test_a_request_carries_the_headers_the_web_api_wants():
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(204)

    await wire(answer).call("app", "POST", "orders/X", headers={"Content-Type": "application/json"}, body=b"{}")
    (request,) = seen
    assert str(request.url) == f"{URL}/api/data/v9.2/orders/X"
    assert request.headers["authorization"] == "Bearer secret-1"
    assert (request.headers["odata-version"], request.headers["odata-maxversion"]) == ("4.0", "4.0")
    assert (request.headers["accept"], request.headers["if-none-match"]) == ("application/json", "null")


@pytest.mark.parametrize("method, is_doubtful", [("POST", True), ("PATCH", True), ("GET", False)])
async def test_a_page_for_people_is_no_answer(method: str, is_doubtful: bool):
    page = {"Content-Type": "text/html; charset=utf-8"}
    api = wire(lambda request: httpx.Response(200, headers=page, content=b"<html>log in</html>"))
    with pytest.raises(TargetError, match="a page for people") as caught:
        await api.call("app", method, "orders")
    assert (caught.value.kind, caught.value.maybe_applied) == (ErrorKind.CONNECTION, is_doubtful)


async def test_cookies_are_never_sent_back():
    cookies: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        cookies.append(request.headers.get("cookie"))
        return httpx.Response(204, headers={"Set-Cookie": "ARRAffinity=server-1; Path=/"})

    one = wire(answer)
    await one.call("app", "GET", "a")
    await one.call("app", "GET", "b")
    assert cookies == [None, None]


@pytest.mark.covers("BX-060")
@pytest.mark.parametrize(
    "error, method, is_doubtful",
    [
        (httpx.ConnectError("refused"), "POST", False),
        (httpx.ConnectTimeout("slow"), "POST", False),
        (httpx.PoolTimeout("full"), "POST", False),
        (httpx.ReadTimeout("slow"), "POST", True),
        (httpx.ReadError("reset"), "POST", True),
        (httpx.WriteError("reset"), "POST", True),
        (httpx.RemoteProtocolError("Server disconnected"), "POST", True),
        (httpx.ReadTimeout("slow"), "GET", False),
    ],
)
async def test_only_a_write_that_may_have_arrived_leaves_a_doubt(error: Exception, method: str, is_doubtful: bool):
    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    with pytest.raises(TargetError) as caught:
        await wire(answer).call("app", method, "orders")
    assert (caught.value.kind, caught.value.maybe_applied) == (ErrorKind.CONNECTION, is_doubtful)
    assert caught.value.__cause__ is error


@pytest.mark.covers("BX-059")
async def test_a_refused_token_is_replaced_at_the_next_call():
    tokens: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        tokens.append(request.headers["authorization"])
        return httpx.Response(401 if len(tokens) == 1 else 204)

    one = wire(answer)
    reply = await one.call("app", "GET", "a")
    assert one.refusal(reply, is_write=False).kind is ErrorKind.TOKEN
    await one.call("app", "GET", "a")
    assert tokens == ["Bearer secret-1", "Bearer secret-2"]


@pytest.mark.parametrize("body", [b"", b"[]", b'{"value": null}', b'{"val'])
async def test_an_answer_without_rows_is_not_taken_for_an_empty_table(body: bytes):
    with pytest.raises(TargetError, match="without the rows"):
        await wire(lambda request: httpx.Response(200, content=body)).read_rows("app", "orders")


async def test_no_error_and_no_log_line_shows_a_token(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    one = wire(lambda request: httpx.Response(403, json={"error": {"code": "0x80040220", "message": "no"}}))
    with pytest.raises(TargetError) as caught:
        await one.read("app", "orders")
    assert "secret-1" not in f"{caught.value!r} {vars(caught.value)} {caplog.text}"


@pytest.mark.parametrize(
    "url", ["http://org.crm.dynamics.com", "org.crm.dynamics.com", "ftp://x", "https://x/?a=1", ""]
)
def test_an_address_that_would_leak_tokens_or_is_none_is_refused(url: str):
    with pytest.raises(SettingsInvalid):
        checked_base(url)


@pytest.mark.parametrize("url", [f"{URL}/", "http://127.0.0.1:8000", "http://localhost:1", "https://x/crm"])
def test_https_is_taken_and_http_on_this_machine(url: str):
    assert checked_base(url) == url.rstrip("/")


def test_a_target_without_credentials_is_refused():
    with pytest.raises(SettingsInvalid, match="at least one credential"):
        DataverseTarget(URL, {})


async def test_the_default_client_leaves_limits_to_the_executor_and_follows_no_redirect():
    async with default_client() as client:
        assert client.timeout.pool is None
        assert client.timeout.read is not None
        assert not client.follow_redirects
