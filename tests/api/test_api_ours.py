"""What we have beyond BulkSharp: steering, one row, corrections, results, keys, tags and limits."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from parcel_service import CSV, DEAR, Parcels, upload
from patience import HANG_S

from penstock import Penstock
from penstock.access.model import Principal
from penstock.api import Trusted, create_app
from penstock.operations.exporting import RESULTS
from penstock.settings import Settings
from penstock.testing import Engine, engine

pytestmark = pytest.mark.databases("sqlite")


async def test_pause_and_resume_answer_with_the_operation(api: httpx.AsyncClient, works: Engine):
    made = await upload(api, DEAR)
    await works.work_until_idle()
    assert (await api.post(f"/api/bulks/{made}/pause", json={"cause": "lunch"})).json()["status"] == "Paused"
    assert (await api.get(f"/api/bulks/{made}/status")).json()["status"] == "Paused"
    assert (await api.post(f"/api/bulks/{made}/resume")).json()["status"] == "Running"
    moves = (await api.get(f"/api/bulks/{made}/events")).json()
    assert ("ana", "lunch") in [(move["actor"], move["cause"]) for move in moves]


async def test_a_row_shows_every_step_it_has_reached(api: httpx.AsyncClient, works: Engine):
    made = await upload(api, DEAR)
    await works.work_until_idle()
    row = (await api.get(f"/api/bulks/{made}/rows/1")).json()
    assert [(step["stepName"], step["state"]) for step in row["steps"]] == [
        ("validation", "Completed"),
        ("weigh", "Completed"),
        ("approve", "WaitingForCompletion"),
    ]
    assert row["steps"][1]["output"] == {"grams": 1000.0}
    assert row["steps"][2]["signalKey"] == f"{made}:approval-D1:1"
    assert row["rowData"]["code"] == "D1"
    assert (await api.get(f"/api/bulks/{made}/rows/9")).status_code == 404
    assert (await api.get(f"/api/bulks/{made}/rows/0")).status_code == 422


async def test_waits_and_signals_that_nobody_took_are_listed(api: httpx.AsyncClient, works: Engine):
    made = await upload(api, DEAR)
    await works.work_until_idle()
    first = (await api.get(f"/api/bulks/{made}/waits", params={"limit": 1})).json()
    rest = (await api.get(f"/api/bulks/{made}/waits", params={"cursor": first["nextCursor"]})).json()
    assert [wait["key"] for wait in first["items"] + rest["items"]] == ["approval-D1", "approval-D3"]
    assert len((await api.get("/api/waits")).json()["items"]) == 2
    await api.post(f"/api/bulks/{made}/signal/approval-D9")
    unclaimed = (await api.get(f"/api/bulks/{made}/signals/unclaimed")).json()["items"]
    assert [signal["key"] for signal in unclaimed] == ["approval-D9"]


async def test_a_row_is_corrected_and_runs_again(api: httpx.AsyncClient, works: Engine):
    made = await upload(api)
    await works.work_until_idle()
    answer = await api.patch(f"/api/bulks/{made}/rows/3", json={"changes": {"weight": "3"}})
    assert (answer.status_code, answer.json()["rowsSubmitted"]) == (200, 1)
    await works.work_until_idle()
    row = (await api.get(f"/api/bulks/{made}/rows/3")).json()
    assert (row["state"], row["rowData"]["weight"], row["retryAttempt"]) == ("Completed", "3", 1)
    [entry] = (await api.get(f"/api/bulks/{made}/retry/history", params={"rowNumber": 3})).json()["items"]
    assert (entry["actor"], entry["changes"]) == ("ana", [{"field": "weight", "old": "-3", "new": "3"}])


async def test_a_correction_that_is_wrong_names_every_fault(api: httpx.AsyncClient, works: Engine):
    made = await upload(api)
    await works.work_until_idle()
    answer = await api.patch(f"/api/bulks/{made}/rows/2", json={"changes": {"weight": "x", "value": "y"}})
    assert (answer.status_code, answer.json()["code"]) == (422, "row-invalid")
    assert {fault["field"] for fault in answer.json()["faults"]} == {"weight", "value"}


async def test_a_correction_of_what_has_changed_since_is_refused(api: httpx.AsyncClient, works: Engine):
    made = await upload(api)
    await works.work_until_idle()
    seen = await api.get(f"/api/bulks/{made}/rows/3")
    await api.post(f"/api/bulks/{made}/retry/rows", json={"rowNumbers": [3]})
    await works.work_until_idle()
    stale = {"if-match": seen.headers["etag"]}
    answer = await api.patch(f"/api/bulks/{made}/rows/3", json={"changes": {"weight": "3"}}, headers=stale)
    assert (answer.status_code, answer.json()["code"]) == (412, "precondition-failed")
    body = {"changes": {"weight": "3"}, "generation": 0}
    assert (await api.patch(f"/api/bulks/{made}/rows/3", json=body)).status_code == 409
    fresh = {"if-match": (await api.get(f"/api/bulks/{made}/rows/3")).headers["etag"]}
    answer = await api.patch(f"/api/bulks/{made}/rows/3", json={"changes": {"weight": "3"}}, headers=fresh)
    assert answer.status_code == 200


@pytest.mark.parametrize("format", ["csv", "jsonl"])
async def test_the_three_results_together_hold_every_row_once(api: httpx.AsyncClient, works: Engine, format: str):
    made = await upload(api, CSV + b"D5,1,5000\n")
    await works.work_until_idle()
    numbers: dict[str, list[int]] = {}
    for result in RESULTS:
        answer = await api.get(f"/api/bulks/{made}/results/{result}", params={"format": format})
        assert answer.status_code == 200
        assert f"-{result}.{format}" in answer.headers["content-disposition"]
        if format == "csv":
            rows = list(csv.DictReader(io.StringIO(answer.text)))
        else:
            rows = [httpx.Response(200, text=line).json() for line in answer.text.splitlines()]
        numbers[result] = [int(row["rowNumber"]) for row in rows]
    assert numbers == {"successful": [1, 4], "failed": [2, 3], "unprocessed": [5]}
    assert (await api.get(f"/api/bulks/{made}/results/odd")).status_code == 422


async def test_cells_that_a_spreadsheet_would_run_are_neutralised_in_exports(api: httpx.AsyncClient, works: Engine):
    made = await upload(api, b"code,weight\n=cmd|calc,1\n+1,1\n@x,-2\n")
    await works.work_until_idle()
    data = {"mode": "data"}
    text = (await api.get(f"/api/bulks/{made}/export", params=data)).text
    assert text == "code,weight\r\n'=cmd|calc,1\r\n+1,1\r\n'@x,-2\r\n"
    raw = (await api.get(f"/api/bulks/{made}/export", params=data | {"raw": "true"})).text
    assert raw == "code,weight\r\n=cmd|calc,1\r\n+1,1\r\n@x,-2\r\n"


async def test_a_formula_in_full_width_or_behind_a_line_break_is_neutralised_too(api: httpx.AsyncClient, works: Engine):
    codes = ["\uff1dA1", "\uff0bA1", "\uff0dA1", "\uff20A1", "\n=A1", "\n5", "\t5", "\r5"]
    rows = json.dumps([{"code": code, "weight": 1} for code in codes]).encode()
    made = (await works.create(Parcels, rows, file_name="parcels.json")).id
    await works.work_until_idle()
    text = (await api.get(f"/api/bulks/{made}/export", params={"mode": "data"})).text
    found = list(csv.reader(io.StringIO(text, newline="")))[1:]
    assert [row[0] for row in found] == [f"'{code}" for code in codes]


async def test_an_empty_export_is_still_a_whole_file(api: httpx.AsyncClient, works: Engine):
    made = await upload(api)
    await works.work_until_idle()
    for format, text in (("json", "[]\n"), ("jsonl", ""), ("csv", "code,weight,value\r\n")):
        query = {"mode": "data", "state": "Cancelled", "format": format}
        assert (await api.get(f"/api/bulks/{made}/export", params=query)).text == text


async def test_what_has_not_changed_is_not_sent_again(api: httpx.AsyncClient, works: Engine):
    made = await upload(api)
    for path in (f"/api/bulks/{made}", f"/api/bulks/{made}/status", "/api/operations/parcels"):
        first = await api.get(path)
        again = await api.get(path, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    await works.work_until_idle()
    changed = await api.get(f"/api/bulks/{made}", headers={"if-none-match": first.headers["etag"]})
    assert changed.status_code == 200


# --- keys


async def create_with_key(api: httpx.AsyncClient, key: str, file: bytes = CSV) -> httpx.Response:
    request = api.build_request(
        "POST",
        "/api/bulks",
        files={"file": ("parcels.csv", file)},
        data={"operationName": "parcels"},
        headers={"idempotency-key": key},
    )
    return await api.send(request)


async def test_a_create_with_a_key_is_carried_out_once(api: httpx.AsyncClient, connect, works: Engine):
    first, again = await create_with_key(api, "k1"), await create_with_key(api, "k1")
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["operationId"] == again.json()["operationId"]
    assert again.headers["idempotent-replayed"] == "true"
    other = await create_with_key(api, "k1", DEAR)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency-key-reused")
    bob = connect(Trusted(Principal("bob", frozenset({"operate"}))))
    assert (await create_with_key(bob, "k1")).json()["operationId"] != first.json()["operationId"]
    assert len((await works.operations.list()).items) == 2


async def test_a_key_without_a_credential_is_refused_and_not_stored(connect, works: Engine):
    answer = await create_with_key(connect(access=None), "k1")
    assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json")
    assert await works.penstock.idempotency.get("k1", scope=("", "anonymous")) is None


async def test_keys_are_looked_after_by_administrators(api: httpx.AsyncClient):
    await create_with_key(api, "k1")
    assert (await api.get("/api/idempotency/k1")).json()["state"] == "Completed"
    assert (await api.get("/api/idempotency")).json()["items"] == []
    assert (await api.delete("/api/idempotency/k1")).json() == {"key": "k1", "wasForgotten": True}
    assert (await api.get("/api/idempotency/k1")).status_code == 404


# --- limits


@pytest.fixture
async def narrow(database_url: str, tmp_path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an API that takes files of 100 bytes."""
    settings = Settings(upload_bytes_max=100, metadata_bytes_max=1000)
    async with engine([Parcels], url=database_url, tmp_path=tmp_path, settings=settings) as works:
        transport = httpx.ASGITransport(create_app(works.penstock, access=Trusted()))
        async with httpx.AsyncClient(transport=transport, base_url="http://penstock.test") as client:
            yield client


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("headers", [{}, {"idempotency-key": "k"}])
async def test_an_upload_that_is_too_large_is_refused(
    narrow: httpx.AsyncClient, is_told: bool, headers: dict[str, str]
):
    sent = narrow.build_request(
        "POST",
        "/api/bulks",
        files={"file": ("a.csv", b"x" * 200_000)},
        data={"operationName": "parcels"},
        headers=headers,
    )
    if not is_told:
        body = sent.read()

        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(body), 10_000):
                yield body[at : at + 10_000]

        kind = sent.headers["content-type"]
        sent = narrow.build_request("POST", "/api/bulks", content=pieces(), headers={"content-type": kind, **headers})
    answer = await narrow.send(sent)
    assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")


async def test_metadata_that_is_too_large_is_refused(narrow: httpx.AsyncClient):
    metadata = '{"currency": "' + "x" * 2000 + '"}'
    answer = await narrow.post(
        "/api/bulks", files={"file": ("a.csv", b"x")}, data={"operationName": "parcels", "metadata": metadata}
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-request")


async def test_a_json_body_that_is_too_large_is_refused(api: httpx.AsyncClient):
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(90):
            yield b"[" * 100_000

    answer = await api.post("/api/bulks/x/signals", content=pieces(), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "too-large")


async def test_deeply_nested_json_is_refused(api: httpx.AsyncClient):
    made = await upload(api, DEAR)
    deep = b'{"payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    kind = {"content-type": "application/json"}
    answer = await api.post(f"/api/bulks/{made}/signal/approval-D1", content=deep, headers=kind)
    assert 400 <= answer.status_code < 500
    answer = await api.post(
        "/api/bulks",
        files={"file": ("a.csv", CSV)},
        data={"operationName": "parcels", "metadata": "[" * 100_000},
    )
    assert answer.status_code == 422


# --- the rest


async def test_machines_and_the_diagnosis_are_answered(api: httpx.AsyncClient):
    names = [machine["definition"]["name"] for machine in (await api.get("/api/machines")).json()["items"]]
    assert "operation" in names
    assert (await api.get("/api/machines/row-step")).status_code == 200
    assert (await api.get("/api/machines/odd")).status_code == 404
    assert "findings" in (await api.get("/api/doctor")).json()
    assert (await api.get("/api/verify")).json()["isClean"] is True


async def test_a_mistake_of_ours_is_in_the_log_and_not_in_the_answer(
    api: httpx.AsyncClient, works: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the secret is 42")

    monkeypatch.setattr("penstock.operations.service.Operations.list", broken)
    answer = await api.get("/api/bulks")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert "42" not in answer.text
    assert "the secret is 42" in caplog.text


async def test_an_application_with_a_worker_runs_what_is_submitted_while_it_lives(database_url: str, tmp_path):
    settings = Settings(database_url=database_url, storage_url=str(tmp_path / "files"))
    async with Penstock.open(settings=settings, operations=[Parcels]) as penstock:
        app = create_app(penstock, access=Trusted(), worker=True)
        async with app.router.lifespan_context(app), asyncio.timeout(HANG_S):
            made = await penstock.operations.create("parcels", file=CSV, file_name="parcels.csv")
            done = await penstock.operations.wait(made.id, every_s=0.01)
        assert done.status == "CompletedWithErrors"
        assert (await penstock.diagnose()).facts.workers == ()  # it has left in good order


async def test_a_mounted_application_knows_its_place(works: Engine):
    from fastapi import FastAPI

    host = FastAPI()
    host.mount("/bulk", create_app(works.penstock, access=Trusted()))
    transport = httpx.ASGITransport(host)
    async with httpx.AsyncClient(transport=transport, base_url="http://host.test") as client:
        answer = await client.post("/bulk/api/bulks", files={"file": ("a.csv", CSV)}, data={"operationName": "parcels"})
        assert answer.headers["location"].startswith("/bulk/api/bulks/")
        assert (await client.get(answer.headers["location"])).json()["id"] == answer.json()["operationId"]
        assert (await client.get("/bulk/openapi.json")).json()["servers"] == [{"url": "/bulk"}]
