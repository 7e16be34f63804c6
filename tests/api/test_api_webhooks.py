"""Webhooks over the API: added, tested, listed, sent again and removed, by admins of a tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
from parcel_service import Parcels

from penstock.settings import Settings
from penstock.testing import Engine, engine

pytestmark = pytest.mark.databases("sqlite")


class Hook(BaseHTTPRequestHandler):
    status = 200

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def hook_url():
    Hook.status = 200
    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook"
        server.shutdown()
        thread.join()


@pytest.fixture
async def works(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    """An engine that may send to loopback."""
    settings = Settings(webhook_networks="127.0.0.0/8")
    async with engine([Parcels], url=database_url, tmp_path=tmp_path, settings=settings) as opened:
        yield opened


async def test_a_webhook_is_added_told_and_removed(api: httpx.AsyncClient, works: Engine, hook_url: str):
    answer = await api.post("/api/webhooks", json={"url": hook_url, "types": ["penstock.operation.created"]})
    assert answer.status_code == 201
    made = answer.json()
    assert made["secret"].startswith("whsec_")
    place = f"/api/webhooks/{made['id']}"
    assert "secret" not in (await api.get(place)).json()
    assert [each["id"] for each in (await api.get("/api/webhooks")).json()["items"]] == [made["id"]]
    assert (await api.post(f"{place}/test")).json()["state"] == "Processed"
    await works.operations.create(Parcels, file=b"code,weight,value\nD1,1,5\n", file_name="a.csv")
    await works.deliver()
    (_, told) = (await api.get("/api/webhook-deliveries", params={"webhook": made["id"]})).json()["items"]
    assert (told["state"], told["type"]) == ("Processed", "penstock.operation.created")
    full = (await api.get(f"/api/webhook-deliveries/{told['messageId']}")).json()
    assert full["event"]["subject"] == told["subject"]
    assert (await api.post(f"/api/webhook-deliveries/{told['messageId']}/resend")).status_code == 409
    assert (await api.post(f"{place}/rotate")).json()["secret"] != made["secret"]
    assert (await api.post(f"{place}/disable")).json()["state"] == "Disabled"
    assert (await api.post(f"{place}/test")).status_code == 409
    assert (await api.post(f"{place}/enable")).json()["state"] == "Active"
    assert (await api.delete(place)).json() == {"cancelled": 0}
    assert (await api.get(place)).status_code == 404


async def test_what_was_given_up_is_sent_again(api: httpx.AsyncClient, works: Engine, hook_url: str):
    Hook.status = 500
    made = (await api.post("/api/webhooks", json={"url": hook_url})).json()
    assert (await api.post(f"/api/webhooks/{made['id']}/test")).json()["state"] == "Failed"
    assert (await api.post("/api/webhook-deliveries/resend", json={"failed": True})).json() == {"deliveries": 1}
    assert (await api.post("/api/webhook-deliveries/resend", json={})).status_code == 422


async def test_what_cannot_work_is_a_problem_with_its_reason(api: httpx.AsyncClient):
    for url in ("http://169.254.169.254/", "ftp://example.com/", "mailto:nobody", ""):
        answer = await api.post("/api/webhooks", json={"url": url})
        assert answer.status_code == 422, url
    assert (
        await api.post("/api/webhooks", json={"url": "https://example.com", "types": ["other.*"]})
    ).status_code == 422
    assert (await api.get("/api/webhooks")).json()["items"] == []
