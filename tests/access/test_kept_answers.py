"""Answers that are kept for repeats: none holds a secret, and none is repeated to who may not ask for it."""

from __future__ import annotations

import httpx
import pytest
from sqlalchemy import select

from penstock.api import Credentials, create_app
from penstock.idempotency.fingerprint import Fingerprint
from penstock.idempotency.model import Address
from penstock.idempotency.tables import idempotency_keys
from penstock.secret_keys import new_key
from penstock.settings import Settings
from penstock.testing import engine

KEY = {"idempotency-key": "k"}


@pytest.fixture
async def e(database_url, tmp_path):
    settings = Settings(secret_key=new_key())
    async with engine([], url=database_url, tmp_path=tmp_path, settings=settings) as made:
        yield made


@pytest.fixture
async def http(e):
    app = create_app(e.penstock, access=Credentials(e.penstock))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    _, key = await e.penstock.keys.create("ana", role="admin")
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://p.test", headers=headers) as client:
        yield client


async def kept(e):
    async def read(tx):
        return b"".join((await tx.execute(select(idempotency_keys.c.answer))).scalars())

    return await e.penstock.db.look(read)


async def test_a_secret_is_shown_once_and_kept_nowhere(e, http):
    new = await http.post("/api/webhooks", json={"url": "https://example.com/hook"})
    assert new.status_code == 201, new.text
    asked = {
        "/api/keys": {"name": "ben"},
        "/api/webhooks": {"url": "https://example.com/other"},
        f"/api/webhooks/{new.json()['id']}/rotate": {},
    }
    for number, (path, body) in enumerate(asked.items()):
        headers = {"idempotency-key": f"k{number}"}
        first = await http.post(path, json=body, headers=headers)
        secret = first.json().get("key") or first.json()["secret"]
        assert secret.encode() not in await kept(e), path
        again = await http.post(path, json=body, headers=headers)
        assert (again.status_code, again.json()["code"]) == (410, "idempotency-answer-not-kept"), path
        assert again.json()["answeredStatus"] == first.status_code
    names = [each.name for each in await e.penstock.keys.list(tenant="")]
    assert names.count("ben") == 1


async def test_an_address_to_send_a_file_to_is_not_kept(e, http):
    first = await http.post("/api/blobs", json={"fileName": "a.csv"}, headers=KEY)
    again = await http.post("/api/blobs", json={"fileName": "a.csv"}, headers=KEY)
    assert (first.status_code, again.status_code) == (201, 410)
    assert again.headers["location"] == first.headers["location"]


async def test_a_check_of_a_file_is_made_again_and_its_report_is_not_kept(e, http):
    form = {"operationName": "none"}
    answers = [await http.post("/api/bulks/validate", data=form, headers=KEY) for _ in range(2)]
    assert answers[0].json() == answers[1].json()
    assert "idempotent-replayed" not in answers[1].headers
    assert await kept(e) == b""


async def test_a_kept_answer_is_not_repeated_to_a_weaker_credential_of_the_same_name(e, http):
    first = await http.post("/api/webhook-deliveries/resend", json={"failed": True}, headers=KEY)
    assert first.status_code == 200
    _, weaker = await e.penstock.keys.create("ana", role="read")
    headers = KEY | {"authorization": f"Bearer {weaker}"}
    again = await http.post("/api/webhook-deliveries/resend", json={"failed": True}, headers=headers)
    assert (again.status_code, again.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize(("path", "status"), [("/api/bulks/x/signal/a/cancel", 409), ("/api/bulks/x/cancel", 404)])
async def test_a_signal_whose_key_ends_like_a_cancel_is_not_sent_again_after_it_was_cut_off(e, http, path, status):
    request = Fingerprint("POST", path, b"", b"")
    claim = await e.penstock.idempotency.claim(Address.of("k", ("", "ana")), request.end(), label=f"POST {path}")
    await claim.abandon()
    answer = await http.post(path, headers=KEY)
    assert answer.status_code == status
    assert (answer.json()["code"] == "idempotency-key-indeterminate") == (status == 409)
