"""Uploads and downloads of any size need little memory."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator

import httpx
import pytest

from penstock.testing import Engine

pytestmark = pytest.mark.databases("sqlite")

MIB = 1024 * 1024
FILE_BYTES = 32 * MIB
PEAK_BYTES = 10 * MIB


async def test_a_large_file_is_taken_and_given_back_in_little_memory(api: httpx.AsyncClient, works: Engine):
    head, row = b"code,weight\n", b"P" * 990 + b",12345678\n"
    rows = (FILE_BYTES - len(head)) // len(row)
    edge = b"--b\r\nContent-Disposition: form-data; name="

    async def form() -> AsyncIterator[bytes]:
        yield edge + b'"operationName"\r\n\r\nparcels\r\n' + edge + b'"file"; filename="parcels.csv"\r\n\r\n' + head
        for at in range(0, rows, 64):
            yield row * min(64, rows - at)
        yield b"\r\n--b--\r\n"

    tracemalloc.start()
    try:
        kind = {"content-type": "multipart/form-data; boundary=b"}
        made = await api.post("/api/bulks", content=form(), headers=kind)
        assert made.status_code == 202, made.text
        assert made.json()["fileSize"] == len(head) + rows * len(row)
        received = 0
        transport = api._transport  # httpx's test transport keeps a whole answer: count it where it is sent
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": f"/api/bulks/{made.json()['operationId']}/file",
            "raw_path": b"",
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"penstock.test")],
        }

        async def send(message: dict[str, object]) -> None:
            nonlocal received
            received += len(message.get("body", b""))

        async def receive() -> dict[str, object]:
            await asyncio.Event().wait()  # the client stays
            raise AssertionError

        await transport.app(scope, receive, send)
        assert received == made.json()["fileSize"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < PEAK_BYTES
