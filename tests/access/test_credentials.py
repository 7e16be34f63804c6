"""Over HTTP: what a request is let in with, and what other people's pages cannot make a browser do."""

from __future__ import annotations

import httpx
import pytest
from fastapi import Request

from penstock.access.keys import CACHE_S
from penstock.api import Closed, Credentials, Trusted, create_app
from penstock.api.openapi import describe
from penstock.cli.serve import Wanted
from penstock.cli.session import Place
from penstock.errors import Forbidden
from penstock.settings import Settings

pytestmark = pytest.mark.databases("sqlite")

HOST = "http://penstock.test"
OWN = {"origin": HOST}


@pytest.fixture
async def http(e):
    app = create_app(e.penstock, access=Credentials(e.penstock))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HOST) as client:
        yield client


@pytest.fixture
async def key(e):
    return (await e.penstock.keys.create("ana", role="operate", tenant="acme"))[1]


def bearer(text):
    return {"authorization": f"Bearer {text}"}


async def test_a_key_lets_in_and_says_who_asks(http, key):
    answer = await http.get("/api/session", headers=bearer(key))
    assert (answer.status_code, answer.json()) == (
        200,
        {"name": "ana", "roles": ["read", "operate"], "operations": None, "tenant": "acme"},
    )


@pytest.mark.parametrize("made", ["Basic {}", "Bearer", "bearer ", "{}", "Bearer x.y.z", "Bearer {}0", "Bearer {} {}"])
async def test_everything_else_is_refused_alike(http, key, made):
    answer = await http.get("/api/session", headers={"authorization": made.format(key, key)})
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert key not in answer.text


async def test_two_credentials_at_once_are_refused(http, key):
    twice = [("authorization", f"Bearer {key}"), ("authorization", f"Bearer {key}")]
    assert (await http.get("/api/session", headers=twice)).status_code == 401


async def test_a_key_in_a_url_or_a_cookie_is_nothing(http, key):
    assert (await http.get(f"/api/session?key={key}&access_token={key}")).status_code == 401
    for name in ("penstock-session", "__Host-penstock-session", "authorization"):
        assert (await http.get("/api/session", headers={"cookie": f"{name}={key}"})).status_code == 401


async def logged_in(http, key, **headers):
    return await http.post("/api/session", json={"key": key}, headers={**OWN, **headers})


async def test_a_login_is_a_cookie_that_scripts_cannot_read(http, key):
    answer = await logged_in(http, key)
    cookie = answer.headers["set-cookie"]
    assert (answer.status_code, answer.json()["name"]) == (200, "ana")
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(cookie.split("; "))
    assert key.rpartition("_")[2] not in cookie
    assert (await http.get("/api/session")).json()["name"] == "ana"


async def test_by_https_the_cookie_belongs_to_this_host_and_to_https_alone(e, key):
    app = create_app(e.penstock, access=Credentials(e.penstock))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://penstock.test") as client:
        answer = await logged_in(client, key, origin="https://penstock.test")
        assert answer.headers["set-cookie"].startswith("__Host-penstock-session=")
        assert (await client.get("/api/session")).status_code == 200
        value = client.cookies["__Host-penstock-session"]
        client.cookies.clear()
        planted = {"cookie": f"penstock-session={value}"}
        assert (await client.get("/api/session", headers=planted)).status_code == 401
    assert {"Secure", "Path=/"} <= set(answer.headers["set-cookie"].split("; "))
    assert answer.headers["strict-transport-security"].startswith("max-age=")


async def test_a_wrong_key_does_not_log_in(http, key):
    answer = await logged_in(http, key[:-1])
    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)


async def test_a_session_ends_with_its_time_its_key_or_a_logout(http, e, key, clock):
    await logged_in(http, key)
    clock.advance(e.penstock.settings.session_s - 1)
    assert (await http.get("/api/session")).status_code == 200
    clock.advance(1)
    assert (await http.get("/api/session")).status_code == 401
    await logged_in(http, key)
    assert (await http.delete("/api/session", headers=OWN)).status_code == 204
    assert (await http.get("/api/session")).status_code == 401
    await logged_in(http, key)
    await e.penstock.keys.revoke(key)
    clock.advance(CACHE_S)
    assert (await http.get("/api/session")).status_code == 401


@pytest.mark.parametrize("cookie", ["", "x", "\u00e4", "gAAAAAB" + "A" * 100, "x" * 5000])
async def test_a_cookie_that_is_not_ours_is_nobody(http, key, cookie):
    await logged_in(http, key)
    http.cookies.clear()
    answer = await http.get("/api/session", headers={"cookie": f"penstock-session={cookie}".encode()})
    assert answer.status_code == 401


FOREIGN = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://penstock.test.evil.example"},
    {"origin": "http://evil.example/http://penstock.test"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
]


@pytest.mark.parametrize("headers", FOREIGN)
async def test_a_page_of_another_site_cannot_use_the_session_to_change_anything(http, key, headers):
    await logged_in(http, key)
    assert (await http.delete("/api/session", headers=headers)).status_code == 403
    assert (await http.post("/api/bulks", headers=headers)).status_code == 403
    assert (await http.get("/api/session", headers=headers)).status_code == 200


async def test_with_a_session_a_change_has_to_say_where_it_comes_from(http, key, e):
    await logged_in(http, key)
    access = Credentials(e.penstock)
    changing = httpx.Request("POST", f"{HOST}/api/x", cookies=http.cookies)
    assert "cookie" in changing.headers

    def asked(**headers):
        raw = [(name.encode(), value.encode()) for name, value in {**changing.headers, **headers}.items()]
        return Request({"type": "http", "method": "POST", "headers": raw, "path": "/", "query_string": b""})

    with pytest.raises(Forbidden):
        await access.authenticate(asked())
    assert (await access.authenticate(asked(origin=HOST))).name == "ana"
    assert (await access.authenticate(asked(**{"sec-fetch-site": "same-origin"}))).name == "ana"


@pytest.mark.parametrize("headers", FOREIGN)
async def test_a_page_of_another_site_cannot_change_anything_where_everybody_is_let_in(e, headers):
    app = create_app(e.penstock, access=Trusted())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HOST) as client:
        assert (await client.post("/api/bulks", headers=headers)).status_code == 403


async def test_behind_a_proxy_that_changes_the_host_pages_are_ours_by_the_public_url(e, key):
    penstock = e.penstock
    penstock.settings = Settings(**{**penstock.settings.model_dump(), "public_url": "https://bulk.example"})
    app = create_app(penstock, access=Credentials(penstock))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HOST) as client:
        answer = await logged_in(client, key, origin="https://bulk.example")
    assert (answer.status_code, "Secure" in answer.headers["set-cookie"]) == (200, True)


async def test_a_name_by_which_the_server_is_not_called_is_refused(e):
    app = create_app(e.penstock, access=Trusted(), hosts=["127.0.0.1", "localhost", "::1"])
    for host, status in [("127.0.0.1:8000", 200), ("localhost", 200), ("[::1]:80", 200), ("evil.example", 403)]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{host}") as client:
            assert (await client.get("/health/live")).status_code == status, host


@pytest.mark.parametrize("path", ["/health/live", "/api/session", "/api/nothing"])
async def test_every_answer_has_the_security_headers(http, path):
    answer = await http.get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "cache-control" in answer.headers


async def test_without_credentials_configured_nothing_is_let_in(e, key):
    app = create_app(e.penstock, access=Closed())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HOST) as client:
        assert (await client.get("/api/session", headers=bearer(key))).status_code == 401


@pytest.mark.parametrize(("host", "called"), [("127.0.0.2", "127.0.0.2:8472"), ("::1", "[::1]:8472")])
async def test_a_server_without_credentials_is_called_by_the_address_it_listens_on(e, host, called):
    wanted = Wanted(Place(), (), has_worker=False, has_dashboard=True, is_insecure=True, root_path="", host=host)
    transport = httpx.ASGITransport(wanted.application(e.penstock))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{called}") as client:
        assert (await client.get("/api/session")).status_code == 200
        assert (await client.get("/api/session", headers={"host": "127.0.0.3"})).status_code == 403


async def test_the_description_of_the_api_is_made_once(e, monkeypatch):
    made = []

    def counted(*given):
        made.append(given)
        return describe(*given)

    monkeypatch.setattr("penstock.api.system.describe", counted)
    transport = httpx.ASGITransport(create_app(e.penstock, access=Trusted()))
    async with httpx.AsyncClient(transport=transport, base_url=HOST) as client:
        answers = [(await client.get(path)).json() for path in ("/openapi.json", "/openapi/v1.json", "/openapi.json")]
    assert answers[0] == answers[1] == answers[2]
    assert len(made) == 1
