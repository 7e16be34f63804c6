"""`python -m bench.idempotency`: what the middleware costs, as a ratio to the same endpoint without it, in one run.

The application is called in this process, without a network, so the ratio is the worst case: a real request costs
more by itself. A new key costs two durable commits, a replay one look.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from penstock.clock import SystemClock
from penstock.db.upgrade import upgrade
from penstock.idempotency import Idempotency, IdempotencyMiddleware, idempotent, one_caller
from tests.servers import private

STORES = ("sqlite", "postgresql", "mariadb", "redis")
BODY = b'{"article": "anvil", "quantity": 2}'
ROUNDS = 5

Call = Callable[[], Awaitable[None]]


def application() -> FastAPI:
    """One endpoint that takes JSON and answers with JSON."""
    app = FastAPI()

    @app.post("/orders")
    @idempotent()
    async def order(order: dict[str, Any]) -> dict[str, Any]:
        return {"number": 7, **order}

    return app


def caller_of(app: Any, keys: Iterator[bytes] | None) -> Call:
    """Calls the application once, with the next key if there are any."""

    async def call() -> None:
        headers = [(b"content-type", b"application/json")]
        if keys is not None:
            headers.append((b"idempotency-key", next(keys)))
        scope = {
            "type": "http", "method": "POST", "path": "/orders", "raw_path": b"/orders", "query_string": b"",
            "headers": headers, "http_version": "1.1", "scheme": "http", "server": ("bench", 80), "extensions": {},
        }  # fmt: skip
        statuses = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": BODY, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            statuses.append(message.get("status", 200))

        await app(scope, receive, send)
        if statuses[0] != 200:
            raise RuntimeError(f"answered with {statuses[0]}")

    return call


async def seconds(call: Call, calls: int, width: int) -> float:
    """How long so many calls take, so many of them at once."""

    async def some(number: int) -> None:
        for _ in range(number):
            await call()

    began = time.perf_counter()
    await asyncio.gather(*(some(calls // width) for _ in range(width)))
    return (time.perf_counter() - began) / (calls // width * width)


@asynccontextmanager
async def guarded(url: str) -> AsyncIterator[FastAPI]:
    """The application behind the middleware."""
    if not url.startswith("redis"):
        await upgrade(url, SystemClock())
    async with Idempotency.open(url) as keys:
        app = application()
        app.add_middleware(IdempotencyMiddleware, keys=keys, caller=one_caller)
        yield app


async def measure(store: str, url: str, calls: int) -> None:
    """Bare, passed by, new keys and replays, round by round beside each other."""
    new = (b"key-%d" % number for number in count())
    same = (b"same" for _ in count())
    async with guarded(url) as app:
        ways: dict[str, tuple[Call, int]] = {
            "bare endpoint": (caller_of(application(), None), 1),
            "no key": (caller_of(app, None), 1),
            "replay": (caller_of(app, same), 1),
            "new key": (caller_of(app, new), 1),
            "new key, 32 at once": (caller_of(app, new), 32),
        }
        for call, _ in ways.values():
            await call()
        samples: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, (call, width) in ways.items():
                samples[name].append(await seconds(call, calls, width))
    bare = statistics.median(samples["bare endpoint"])
    for name, taken in samples.items():
        typical = statistics.median(taken)
        print(f"{store:<11} {name:<20} {typical * 1e6:>9.0f} µs  {typical / bare:>6.1f} x bare", flush=True)


@contextmanager
def place(store: str, folder: Path) -> Iterator[str]:
    """A store of one's own."""
    if store == "sqlite":
        yield f"sqlite:///{folder / 'keys.db'}"
        return
    with private(store) as server:
        yield server.url


def main() -> None:
    """Measure each store."""
    parser = argparse.ArgumentParser(prog="python -m bench.idempotency", description=__doc__)
    parser.add_argument("--store", action="append", choices=STORES, help="only this one; may be repeated")
    parser.add_argument("--calls", type=int, default=320, help="of each way and round")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        for store in given.store or STORES:
            with place(store, Path(folder)) as url:
                asyncio.run(measure(store, url, given.calls))


if __name__ == "__main__":
    main()
