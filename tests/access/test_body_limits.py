"""How much of a body is read: the route and the caller's role decide, never what the request says of itself."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from penstock.api import Credentials, create_app

pytestmark = pytest.mark.databases("sqlite")

KIB = 1024
MIB = 1024 * KIB
FORM = "multipart/form-data; boundary=b"
PART = b'--b\r\nContent-Disposition: form-data; name="key"; filename="f"\r\n\r\n'


class Endless:
    """A body that goes on for up to 64 MiB, and knows how much of it was taken."""

    def __init__(self, first: bytes = b"") -> None:
        self.first, self.taken = first, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in (self.first, *[b"[" * (64 * KIB)] * 1024):
            self.taken += len(piece)
            yield piece


@pytest.fixture
async def http(e):
    app = create_app(e.penstock, access=Credentials(e.penstock))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    origin = {"origin": "http://p.test"}
    async with httpx.AsyncClient(transport=transport, base_url="http://p.test", headers=origin) as client:
        yield client


async def key_of(e, role):
    return {"authorization": f"Bearer {(await e.penstock.keys.create(role, role=role))[1]}"}


@pytest.mark.parametrize("kind", ["application/json", "multipart/x", FORM])
@pytest.mark.parametrize("path", ["/api/session", "/dashboard/login", "/api/signals/x", "/api/signals/x/fail"])
async def test_little_is_read_of_what_strangers_send_whatever_they_call_it(http, path, kind):
    body = Endless(PART)
    answer = await http.post(path, content=body, headers={"content-type": kind})
    assert 400 <= answer.status_code < 500, answer.text
    assert body.taken <= 192 * KIB


async def test_a_path_that_ends_like_that_of_a_file_takes_no_file(e, http):
    body = Endless()
    headers = await key_of(e, "operate") | {"content-type": "application/json"}
    answer = await http.post("/api/bulks/x/signal/a/content", content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "too-large")
    assert body.taken <= 9 * MIB


async def test_a_form_for_a_route_that_takes_none_is_no_upload(e, http):
    body = Endless(PART)
    answer = await http.post("/api/keys", content=body, headers=await key_of(e, "admin") | {"content-type": FORM})
    assert (answer.status_code, answer.json()["code"]) == (413, "too-large")
    assert body.taken <= 9 * MIB


async def test_nothing_is_read_of_a_request_with_an_idempotency_key_before_the_role_is_checked(e, http):
    key = {"idempotency-key": "k", "content-type": FORM}
    for headers, status in (({}, 401), (await key_of(e, "read"), 403)):
        body = Endless(PART)
        answer = await http.post("/api/bulks", content=body, headers=headers | key)
        assert (answer.status_code, body.taken) == (status, 0)


async def test_a_body_with_an_idempotency_key_that_is_too_long_leaves_the_key_free(e, http):
    headers = await key_of(e, "admin") | {"idempotency-key": "k"}
    answer = await http.post("/api/keys", content=Endless(), headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")
    again = await http.post("/api/keys", json={"name": "ben"}, headers=headers)
    assert again.status_code == 201


async def test_a_request_to_a_public_route_with_an_idempotency_key_is_answered_as_without_one(http):
    answers = [await http.post("/api/signals/x", headers=headers) for headers in ({}, {"idempotency-key": "k"})]
    assert answers[0].status_code == answers[1].status_code == 404
    assert answers[0].json() == answers[1].json()
