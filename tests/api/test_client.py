"""The Python client: the engine's calls and values, answered by a server."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from parcel_service import CSV, DEAR

from penstock import resources
from penstock.api import Trusted, create_app
from penstock.client import AsyncClient, Client
from penstock.client.transport import Transport
from penstock.errors import (
    FileRejected,
    Forbidden,
    IllegalMove,
    InvalidInput,
    MetadataInvalid,
    NoSuchWait,
    NotFound,
    RowInvalid,
    Throttled,
    Unauthenticated,
    Unavailable,
)
from penstock.operations.retrying import NothingToRetry
from penstock.testing import Engine

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
async def client(works: Engine) -> AsyncIterator[AsyncClient]:
    """A client of a server in this process."""
    transport = httpx.ASGITransport(create_app(works.penstock, access=Trusted(), dashboard=False))
    async with AsyncClient("http://penstock.test", client=httpx.AsyncClient(transport=transport)) as made:
        yield made


async def test_values_are_those_of_the_engine(client: AsyncClient, works: Engine):
    made = await client.operations.create("parcels", file=CSV, file_name="parcels.csv", metadata={"currency": "CHF"})
    await works.work_until_idle()
    here, there = works.operations, client.operations
    assert await there.get(made.id) == await here.get(made.id)
    assert await there.get(made.id[:13]) == await here.get(made.id)
    assert await there.list(status=["CompletedWithErrors"]) == await here.list()
    assert await there.rows(made.id, data=True) == await here.rows(made.id, data=True)
    assert await there.rows(made.id, state=["Failed", "Invalid"], limit=1) == await here.rows(
        made.id, state=["Failed", "Invalid"], limit=1
    )
    assert await there.errors(made.id, data=True) == await here.errors(made.id, data=True)
    assert await there.error_groups(made.id) == await here.error_groups(made.id)
    assert await there.events(made.id) == await here.events(made.id)
    assert await there.events_page(limit=2) == await here.events_page(limit=2)
    assert await there.can_retry(made.id) == await here.can_retry(made.id)
    retry = await there.retry(made.id)
    assert (retry.submitted, retry.skipped, list(retry.reasons)) == (1, 1, [2])
    await works.work_until_idle()
    assert (await there.edit_row(made.id, 3, {"weight": "3"})).submitted == 1
    await works.work_until_idle()
    assert await there.history(made.id) == await here.history(made.id)
    assert (await there.row(made.id, 3)).state == "Completed"
    export = await there.export(made.id, mode="data", state="Completed", format="jsonl")
    assert [json.loads(line)["code"] async for piece in export.pieces for line in piece.splitlines()] == [
        "P1",
        "P3",
        "P4",
    ]
    assert (await there.wait(made.id)).status == "CompletedWithErrors"


async def test_documents_of_parsed_values_are_those_of_the_server(client: AsyncClient, works: Engine):
    made = await client.operations.create("parcels", file=DEAR, file_name="parcels.csv")
    await works.work_until_idle()
    here = await works.operations.row(made.id, 1)
    assert resources.row(await client.operations.row(made.id, 1)) == resources.row(here)
    waits = await client.signals.waiting_page(made.id)
    assert waits == await works.penstock.signals.waiting_page(made.id)
    assert (await client.signals.complete(made.id, "approval-D1")).row == 1
    assert (await client.signals.fail(made.id, "approval-D3", "no", row=3)).outcome == "delivered"
    assert (await client.signals.complete(made.id, "approval-D7")).outcome == "stored"
    unclaimed = await client.signals.unclaimed_page(made.id)
    assert unclaimed == await works.penstock.signals.unclaimed_page(made.id)
    assert (await client.operations.pause(made.id, cause="lunch")).status == "Paused"
    assert (await client.operations.resume(made.id)).status == "Running"
    assert (await client.operations.cancel(made.id)).status in ("Stopping", "Cancelled")


async def test_a_dry_run_is_the_same_here_and_there(client: AsyncClient, works: Engine):
    there = await client.operations.validate("parcels", file=CSV, file_name="parcels.csv")
    here = await works.operations.validate("parcels", file=CSV, file_name="parcels.csv")
    assert resources.file_check(there) == resources.file_check(here)


async def test_errors_are_those_of_the_engine(client: AsyncClient, works: Engine):
    operations = client.operations
    with pytest.raises(NotFound, match="operation not found"):
        await operations.get("01900000-0000")
    with pytest.raises(MetadataInvalid) as metadata:
        await operations.create("parcels", file=CSV, file_name="parcels.csv", metadata={"dear_from": "x"})
    assert [fault.field for fault in metadata.value.faults] == ["dear_from"]
    with pytest.raises(FileRejected) as rejected:
        await operations.create("parcels", file=CSV, file_name="parcels.doc")
    assert rejected.value.code == "unknown_format"
    made = await operations.create("parcels", file=CSV, file_name="parcels.csv")
    with pytest.raises(NoSuchWait):
        await client.signals.complete(made.id, "refund")
    await works.work_until_idle()
    with pytest.raises(IllegalMove, match="CompletedWithErrors"):
        await operations.cancel(made.id)
    with pytest.raises(RowInvalid, match="weight"):
        await operations.edit_row(made.id, 2, {"weight": "x"})
    with pytest.raises(NothingToRetry) as nothing:
        await operations.retry(made.id, rows=[1])
    assert list(nothing.value.retry.reasons) == [1]
    with pytest.raises(InvalidInput, match="no such row state"):
        await operations.rows(made.id, state="Odd")


Answer = Callable[[httpx.Request], httpx.Response]


def scripted(*answers: httpx.Response | Exception) -> tuple[Transport, list[httpx.Request], list[float]]:
    """A transport whose requests get these answers one after the other; the requests, and the pauses between."""
    left, seen, pauses = list(answers), [], []

    def answer(request: httpx.Request) -> httpx.Response:
        request.read()
        seen.append(request)
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return Transport("http://penstock.test/", "secret", client=client, sleep=sleep), seen, pauses


async def test_a_change_whose_answer_was_lost_is_sent_again_with_the_same_key():
    busy = httpx.Response(503, json={"detail": "busy"}, headers={"retry-after": "3"})
    transport, seen, pauses = scripted(httpx.ReadError("gone"), busy, httpx.Response(200, json={"id": 1}))
    assert await transport.send("POST", "/api/x", json={}) == {"id": 1}
    assert len({request.headers["idempotency-key"] for request in seen}) == 1
    assert {request.headers["authorization"] for request in seen} == {"Bearer secret"}
    assert pauses == [0.4, 3.0]


async def test_a_file_is_sent_from_its_beginning_each_time(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"code\n1\n")
    transport, seen, _ = scripted(httpx.ReadError("gone"), httpx.Response(200, json={}))
    with (tmp_path / "a.csv").open("rb") as file:
        await transport.send("POST", "/api/x", files={"file": ("a.csv", file)}, data={"a": "b"})
    assert all(b"code\n1\n" in request.content for request in seen)


@pytest.mark.parametrize(
    "status, kind",
    [(401, Unauthenticated), (403, Forbidden), (404, NotFound), (422, InvalidInput), (418, InvalidInput)],
)
async def test_a_refusal_is_not_sent_again(status: int, kind: type[Exception]):
    transport, seen, _ = scripted(httpx.Response(status, text="<html>"))
    with pytest.raises(kind):
        await transport.get("/api/x")
    assert len(seen) == 1


async def test_a_server_that_is_away_is_unavailable_in_the_end():
    transport, seen, _ = scripted(*[httpx.ConnectError("refused")] * 4)
    with pytest.raises(Unavailable, match=r"http://penstock\.test does not answer: refused"):
        await transport.get("/api/x")
    assert len(seen) == 4


@pytest.mark.parametrize(
    "foreign",
    [
        httpx.Response(307, headers={"location": "https://login.example/"}),
        httpx.Response(301, headers={"location": "https://penstock.test/api/bulks"}, json={"id": "x"}),
        httpx.Response(304),
        httpx.Response(200, html="<h1>Welcome</h1>"),
        httpx.Response(200),
    ],
)
async def test_a_redirect_or_a_page_of_something_else_is_no_answer(foreign: httpx.Response):
    transport, sent, _ = scripted(foreign)
    with pytest.raises(Unavailable, match="give the URL of a Penstock server"):
        await transport.get("/api/bulks")
    assert len(sent) == 1


async def test_a_file_is_not_read_from_a_redirect():
    transport, _, _ = scripted(httpx.Response(302, headers={"location": "https://login.example/"}))
    with pytest.raises(Unavailable, match="leads to https://login"):
        async with transport.stream("/api/bulks/x/export"):
            pass


async def test_who_is_throttled_for_long_is_told_for_how_long():
    busy = [httpx.Response(429, json={"detail": "too many requests"}, headers={"retry-after": "90"}) for _ in range(4)]
    transport, _, pauses = scripted(*busy)
    with pytest.raises(Throttled, match="too many requests") as refused:
        await transport.get("/api/bulks")
    assert refused.value.retry_after_s == 90
    assert max(pauses) <= 5


@pytest.fixture
def quiet_server() -> Iterator[str]:
    """A server that answers everything with one operation's document."""
    texts = ("id", "operationName", "status", "fileName", "fileSha256", "createdBy")
    numbers = ("totalRows", "rowsRead", "successfulRows", "failedRows", "invalidRows", "timedOutRows", "fileSize")
    numbers += ("cancelledRows", "waitingRows", "generation", "retryCount", "stepsDone")
    document: dict[str, Any] = dict.fromkeys(texts, "Completed") | dict.fromkeys(numbers, 0)
    document |= dict.fromkeys(("errorMessage", "metadata", "startedAt", "completedAt", "trouble"))
    document |= dict.fromkeys(("version", "keep", "hold", "blobId")) | {"misfits": [], "pruned": []}
    document |= {"createdAt": "2030-01-01T00:00:00Z", "steps": [], "options": {}}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_sync_client_needs_no_event_loop(quiet_server: str):
    with Client(quiet_server, "key") as client:
        assert client.get("x").status == "Completed"
        assert client.wait("x").is_settled
