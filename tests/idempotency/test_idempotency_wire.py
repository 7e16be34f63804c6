"""Over a real server, byte by byte: what clients and proxies really send, and what they should not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn
from shop import Shop, application

from penstock.idempotency import Idempotency

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
async def port(shop: Shop, keys: Idempotency) -> AsyncIterator[int]:
    """Where a server answers for the shop."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application(shop, keys), log_level="critical", lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    yield listener.getsockname()[1]
    server.should_exit = True
    await serving


async def sent(port: int, head: bytes, body: bytes = b"one anvil", *, is_cut: bool = False) -> tuple[int, bytes]:
    """Status and body of the answer to these very bytes; nothing when the client cuts the line."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    length = b"" if b"chunked" in head else b"Content-Length: %d\r\n" % len(body)
    request = b"POST /orders HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n" + head + length + b"\r\n"
    writer.write(request + (body[:4] if is_cut else body))
    await writer.drain()
    if is_cut:
        writer.transport.abort()
        return 0, b""
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    top, _, rest = answer.partition(b"\r\n\r\n")
    return int(top.split()[1]), rest


async def test_a_chunked_request_is_the_same_as_a_plain_one(port: int, shop: Shop):
    plain = await sent(port, b"Idempotency-Key: k\r\n")
    chunked = await sent(
        port,
        b"Idempotency-Key: k\r\nTransfer-Encoding: chunked\r\n",
        b"4\r\none \r\n1\r\na\r\n4\r\nnvil\r\n0\r\n\r\n",
    )
    assert plain == chunked == (201, b"order 1: one anvil")
    assert shop.effects == {"order": 1}


@pytest.mark.parametrize(
    "head",
    [
        b"Idempotency-Key: " + b"k" * 10_000 + b"\r\n",
        b"Idempotency-Key: a\r\nIdempotency-Key: b\r\n",
        b"Idempotency-Key: a\r\nidempotency-KEY: a\r\n",
        b"Idempotency-Key: a, b\r\n",
        b"Idempotency-Key:\r\n",
        b"Idempotency-Key: \xff\xfe\r\n",
        b"Idempotency-Key: a\x01b\r\n",
        b"Idempotency-Key: a\x00b\r\n",
        b"Idempotency-Key: a\x7fb\r\n",
        b'Idempotency-Key: "a\r\n',
        b"Idempotency-Key: a\r\n b\r\n",
    ],
)
async def test_a_key_that_is_none_is_refused_and_nothing_happens(port: int, shop: Shop, head: bytes):
    status, _ = await sent(port, head)
    assert status == 400
    assert shop.effects == {}


async def test_a_request_that_breaks_off_claims_nothing(port: int, shop: Shop, keys: Idempotency):
    await sent(port, b"Idempotency-Key: k\r\n", is_cut=True)
    assert await sent(port, b"Idempotency-Key: k\r\n") == (201, b"order 1: one anvil")
    assert shop.effects == {"order": 1}


async def test_a_client_that_breaks_off_while_it_waits_finds_its_answer_later(port: int, shop: Shop, keys: Idempotency):
    shop.is_held = True
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /orders HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: k\r\nContent-Length: 1\r\n\r\nx")
    await shop.reached.wait()
    writer.transport.abort()
    shop.go_on.set()
    while (await keys.get("k", scope=("acme", "ana"))).state != "Completed":  # noqa: ASYNC110  # the server does it
        await asyncio.sleep(0.01)
    assert await sent(port, b"Idempotency-Key: k\r\n", b"x") == (201, b"order 1: x")
    assert await reader.read() == b""
    assert shop.effects == {"order": 1}
