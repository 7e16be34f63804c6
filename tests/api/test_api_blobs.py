"""Uploaded files over HTTP: announced, sent, looked at, held and deleted."""

from __future__ import annotations

import hashlib

import httpx
import pytest
from parcel_service import upload

pytestmark = pytest.mark.databases("sqlite")


async def announced(api: httpx.AsyncClient, **fields: object) -> str:
    answer = await api.post("/api/blobs", json={"fileName": "notes.csv", **fields})
    assert answer.status_code == 201, answer.text
    assert (await api.get(answer.headers["location"])).json()["status"] == "Pending"
    return str(answer.json()["blob"]["id"])


async def test_a_file_is_announced_sent_and_given_back(api: httpx.AsyncClient):
    blob = await announced(api, sha256=hashlib.sha256(b"a,b\n1,2\n").hexdigest())
    sent = await api.put(f"/api/blobs/{blob}/content", content=b"a,b\n1,2\n")
    assert (sent.status_code, sent.json()["status"], sent.json()["sizeBytes"]) == (200, "Valid", 8)
    back = await api.get(f"/api/blobs/{blob}/content")
    assert (back.content, "notes.csv" in back.headers["content-disposition"]) == (b"a,b\n1,2\n", True)
    found = (await api.get(f"/api/blobs/{blob}")).json()
    assert found["history"][0]["actor"] == "ana"
    assert [item["id"] for item in (await api.get("/api/blobs", params={"fileName": "notes.csv"})).json()["items"]] == [
        blob
    ]


async def test_a_file_that_is_not_what_was_announced_is_rejected(api: httpx.AsyncClient):
    blob = await announced(api, sizeBytes=3)
    sent = await api.put(f"/api/blobs/{blob}/content", content=b"four")
    assert (sent.status_code, sent.json()["status"]) == (200, "Rejected")
    assert (await api.get(f"/api/blobs/{blob}/content")).status_code == 422


async def test_a_file_is_deleted_unless_it_is_held_or_used(api: httpx.AsyncClient):
    blob = await announced(api)
    await api.put(f"/api/blobs/{blob}/content", content=b"a\n1\n")
    held = await api.post(f"/api/blobs/{blob}/hold", json={"reason": "audit"})
    assert [hold["name"] for hold in held.json()["items"]] == ["legal"]
    gone = {"reason": "not needed"}
    assert (await api.post(f"/api/blobs/{blob}/delete", json=gone)).status_code == 409
    assert (await api.post(f"/api/blobs/{blob}/release", json={"reason": "done"})).json()["items"] == []
    assert (await api.post(f"/api/blobs/{blob}/delete", json=gone)).json()["status"] == "Deleted"
    used = (await api.get(f"/api/bulks/{await upload(api)}")).json()["blobId"]
    assert (await api.post(f"/api/blobs/{used}/delete", json=gone)).status_code == 409
    assert (await api.get("/api/blobs/01900000-0000-7000-8000-000000000000")).status_code == 404
