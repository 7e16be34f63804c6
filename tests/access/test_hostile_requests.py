"""Hostile requests: whatever is sent, the answer is a refusal in its own words, never a fault of the server."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from pydantic import BaseModel

from penstock import Context, Pipeline, operation, step
from penstock.api import Credentials, create_app
from penstock.testing import engine

pytestmark = pytest.mark.databases("sqlite")

DEEP = "[" * 100_000 + "]" * 100_000
ID = "01999999-9999-7999-8999-999999999999"


class Paper(BaseModel):
    name: str


class Cabinet(BaseModel):
    about: dict[str, str] = {}


@operation("papers", row_key="name")
class Papers(Pipeline[Paper, Cabinet]):
    @step
    async def read(self, paper: Paper, ctx: Context[Cabinet]) -> None:
        """It is read."""


@pytest.fixture
async def http(database_url, tmp_path):
    async with engine([Papers], url=database_url, tmp_path=tmp_path) as e:
        app = create_app(e.penstock, access=Credentials(e.penstock))
        key = (await e.penstock.keys.create("ana", role="admin"))[1]
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://p.test", headers=headers) as client:
            yield client


def is_a_refusal(answer):
    return 400 <= answer.status_code < 500 and answer.headers["content-type"].startswith("application/problem+json")


PATHS = [
    "/api/bulks/%00",
    "/api/bulks/" + "x" * 5000,
    "/api/bulks/..%2f..%2fetc%2fpasswd",
    "/api/bulks/%F0%9F%92%A9",
    "/api/bulks/%ff%fe",
    "/api/bulks/'%20OR%201=1--",
    f"/api/bulks/{ID}/rows/99999999999999999999",
    f"/api/bulks/{ID}/rows/-1",
    f"/api/bulks/{ID}/rows?limit=0",
    f"/api/bulks/{ID}/rows?limit=99999999999999999999",
    f"/api/bulks/{ID}/rows?cursor=%00",
    "/api/bulks?cursor=x:y:z",
    "/api/bulks?cursor=%2Bx",
    "/api/bulks?cursor=%2B99999999999999999999",
    "/api/lifecycle-instances?cursor=%C2%B2",
    "/api/lifecycle-instances?cursor=99999999999999999999",
    "/api/lifecycle-instances/%00%00%00%00%00%00%00%00",
    "/api/bulks?page=0",
    "/api/bulks?fromDate=not-a-date",
    "/api/bulks?sortBy=password",
    "/api/operations/%00/template",
    "/api/audit?cursor=-1",
    "/api/audit?limit=0",
    "/api/keys?cursor=%00",
    "/api/keys?limit=99999999999999999999",
    "/api/idempotency/" + "x" * 300,
    "/api/lifecycles/%00",
    "/api/machines/%00",
]


async def test_strange_paths_and_parameters_are_refused(http):
    for path in PATHS:
        answer = await http.get(path)
        assert is_a_refusal(answer), (path, answer.status_code, answer.text)
        assert "Traceback" not in answer.text, path
        assert "sqlite" not in answer.text.lower(), path


BODIES = [
    (b"", "application/json"),
    (b"{", "application/json"),
    (b"null", "application/json"),
    (b"[]", "application/json"),
    (DEEP.encode(), "application/json"),
    (b'{"a": 1e999}', "application/json"),
    (b'"\\ud800"', "application/json"),
    (b"\xff\xfe", "application/json"),
    (b"x=1", "application/x-www-form-urlencoded"),
    (b"--x\r\n", "multipart/form-data"),
    (b"--x\r\n", "multipart/form-data; boundary="),
    (b"--x\r\nContent-Disposition: form-data\r\n\r\n", "multipart/form-data; boundary=x"),
    (b"--x\r\n" + b"A: " + b"b" * 100_000, "multipart/form-data; boundary=x"),
]
CHANGING = [
    ("POST", "/api/bulks"),
    ("POST", "/api/bulks/validate"),
    ("POST", f"/api/bulks/{ID}/retry/rows"),
    ("PATCH", f"/api/bulks/{ID}/rows/1"),
    ("POST", f"/api/bulks/{ID}/signals"),
    ("POST", f"/api/bulks/{ID}/signal/k"),
    ("POST", f"/api/bulks/{ID}/erase"),
    ("POST", "/api/lifecycles"),
    ("POST", "/api/keys"),
    ("POST", "/api/signals/x"),
]


async def test_strange_bodies_are_refused(http):
    for method, path in CHANGING:
        for body, kind in BODIES:
            answer = await http.request(method, path, content=body, headers={"content-type": kind})
            assert is_a_refusal(answer), (method, path, body[:40], kind, answer.status_code, answer.text[:300])


NAMES = [
    "../../etc/passwd.csv",
    "a\r\nSet-Cookie: x=1.csv",
    "\u202egnp.csv",
    "x" * 5000 + ".csv",
    "\x00.csv",
    "=cmd|'!A1.csv",
]


async def test_a_strange_file_name_is_text_and_comes_back_encoded(http):
    for name in NAMES:
        form = {"operationName": "papers"}
        answer = await http.post("/api/bulks", data=form, files={"file": (name, b"name\na\n", "text/csv")})
        assert answer.status_code == 202 or is_a_refusal(answer), (name, answer.status_code, answer.text)
        if answer.status_code == 202:
            file = await http.get(f"/api/bulks/{answer.json()['operationId']}/file")
            assert file.headers["content-disposition"].startswith("attachment"), name
            assert file.headers["x-content-type-options"] == "nosniff"
            assert "set-cookie" not in file.headers


async def test_a_caller_cannot_say_who_they_are_or_which_tenant_is_theirs(http):
    form = {"operationName": "papers", "createdBy": "root", "tenant": "globex"}
    answer = await http.post(
        "/api/bulks?tenant=globex",
        data=form,
        files={"file": ("p.csv", b"name\na\n", "text/csv")},
        headers={"x-tenant": "globex", "x-forwarded-user": "root"},
    )
    assert (answer.status_code, answer.json()["createdBy"]) == (202, "ana")
    made = await http.post("/api/keys", json={"name": "x", "tenant": "globex"})
    assert made.status_code == 422
    assert (await http.post("/api/keys", json={"name": "x"})).json()["tenant"] == ""


async def test_headers_that_say_two_things_are_refused(http):
    twice = [*http.headers.multi_items(), ("authorization", "Bearer x")]
    async with asyncio.timeout(60):
        assert (await http.get("/api/bulks", headers=twice)).status_code == 401
    for value in ("Bearer \u00e4".encode(), b"Bearer " + b"x" * 50_000, b"\xff"):
        answer = await http.get("/api/bulks", headers={"authorization": value})
        assert answer.status_code == 401, value[:20]


async def test_an_origin_or_host_that_cannot_be_read_is_foreign(http):
    for origin in ("http://[", "http://]", "http://[::1", "//", "null", "http://\u2100".encode()):
        for credential in ({}, {"authorization": ""}):
            headers = {"origin": origin, **credential}
            answer = await http.post("/api/session", json={"key": "x"}, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), origin
    app = http._transport.app
    named = create_app(app.state.penstock, access=app.state.access, hosts=["p.test"])
    transport = httpx.ASGITransport(named, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://p.test") as client:
        answer = await client.get("/health/live", headers={"host": "["})
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


FORMS = [
    ("/dashboard/waits", {"wait": "x", "do": "approve", "row": "1", "operation": "a/b"}),
    ("/dashboard/waits", {"wait": "x", "do": "approve", "row": "1", "operation": "\x00"}),
    ("/dashboard/waits", {"wait": "x", "do": "approve", "payload": DEEP}),
    ("/dashboard/upload/papers", {"meta.about": DEEP, "do": "start"}),
    (f"/dashboard/operations/{ID}/rows/1/fix", {"field.name": DEEP}),
]


async def test_strange_forms_are_refused(http):
    for path, form in FORMS:
        answer = await http.post(path, data=form, headers={"origin": "http://p.test"})
        assert 400 <= answer.status_code < 500, (path, list(form), answer.status_code)


async def test_an_answer_names_nothing_of_the_inside(http):
    answer = await http.post("/api/bulks", content=json.dumps({"a": DEEP}).encode())
    assert is_a_refusal(answer)
    for word in ("site-packages", 'File "', "sqlalchemy", "SELECT "):
        assert word not in answer.text
