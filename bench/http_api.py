"""`python -m bench.http_api`: the REST API under load, beside a bare FastAPI endpoint with one query, in one run.

Each application is a server process of its own; both are asked in turns over sixteen connections, and a ratio of 0.5
means half as many requests a second. Then: what 200 viewers cost an operation that they watch, and how much memory a
server needs for an upload (`--upload-mib`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from penstock import Context, Penstock, Pipeline, operation, step
from penstock.api import Credentials, create_app
from penstock.clock import SystemClock
from penstock.db.upgrade import upgrade
from penstock.settings import load_settings
from tests.servers import free_port, private

DATABASES = ("sqlite", "postgresql", "mariadb")
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "mysql": "mysql+aiomysql"}
CONNECTIONS = 16
ROUNDS = 5
PAGE = 100
VIEWERS = 200
VIEWS_EACH = 50  # of one person
WATCHED_ROWS = 300_000
MIB = 2**20

Request = Callable[[], bytes]


class Parcel(BaseModel):
    """A row."""

    name: str


@operation("bench-parcels", row_key="name")
class Parcels(Pipeline[Parcel, None]):
    """Rows that wait for a signal."""

    @step.signal(key="parcel-{row.name}", timeout=86_400)
    async def arrive(self, parcel: Parcel, ctx: Context[None]) -> None:
        """Somebody says that it has arrived."""


@operation("bench-plain", row_key="name")
class Plain(Pipeline[Parcel, None]):
    """Rows that run through."""

    @step
    async def pass_by(self, parcel: Parcel, ctx: Context[None]) -> None:
        """Do nothing."""


# --- servers


def bare(url: str) -> FastAPI:
    """What one would write for one page, one record and one message: an endpoint with one statement each."""
    scheme, _, rest = url.partition("://")
    engine = create_async_engine(f"{DRIVERS[scheme.partition('+')[0]]}://{rest}", pool_size=CONNECTIONS)
    app = FastAPI()

    @app.get("/record/{id}")
    async def record(id: str) -> dict[str, Any]:
        async with engine.connect() as connection:
            found = await connection.execute(text("SELECT * FROM bench_record WHERE id = :id"), {"id": id})
            return dict(found.mappings().one())

    @app.get("/page")
    async def page(after: int = 0) -> list[dict[str, Any]]:
        async with engine.connect() as connection:
            query = text("SELECT * FROM bench_row WHERE number > :after ORDER BY number LIMIT 100")
            return [dict(each) for each in (await connection.execute(query, {"after": after})).mappings()]

    @app.post("/message/{key}")
    async def message(key: str) -> dict[str, Any]:
        async with engine.begin() as connection:
            await connection.execute(text("INSERT INTO bench_message (id) VALUES (:key)"), {"key": key})
        return {"stored": key}

    return app


async def fill(url: str) -> None:
    """The tables of the bare application."""
    scheme, _, rest = url.partition("://")
    engine = create_async_engine(f"{DRIVERS[scheme.partition('+')[0]]}://{rest}")
    columns = ", ".join(f"c{number} VARCHAR(40)" for number in range(16))
    names = ", ".join(f"c{number}" for number in range(16))
    values = ", ".join(f"'value {number}'" for number in range(16))
    async with engine.begin() as connection:
        await connection.execute(text(f"CREATE TABLE bench_record (id VARCHAR(40) PRIMARY KEY, {columns})"))
        await connection.execute(text(f"INSERT INTO bench_record (id, {names}) VALUES ('r1', {values})"))
        await connection.execute(text(f"CREATE TABLE bench_row (number INTEGER PRIMARY KEY, {columns})"))
        rows = [{"number": number} for number in range(1, 1001)]
        await connection.execute(text(f"INSERT INTO bench_row (number, {names}) VALUES (:number, {values})"), rows)
        await connection.execute(text("CREATE TABLE bench_message (id VARCHAR(60) PRIMARY KEY)"))
    await engine.dispose()


async def serve(kind: str, url: str, folder: str, port: int) -> None:
    """One application, until it is killed."""
    if kind == "bare":
        await _listen(bare(url), port)
        return
    async with Penstock.open(operations=[Parcels, Plain], settings=_settings(url, folder)) as penstock:
        await _listen(create_app(penstock, access=Credentials(penstock)), port)


async def _listen(app: FastAPI, port: int) -> None:
    await uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning")).serve()


def _settings(url: str, folder: str) -> Any:
    return load_settings(
        database_url=url, storage_url=f"file://{folder}/files", rate_per_s=1e6, rate_burst=10**6, upload_bytes_max=0
    )


@contextmanager
def server(kind: str, url: str, folder: Path) -> Iterator[tuple[int, int]]:
    """A server in a process of its own: its port and process."""
    port = free_port()
    command = [sys.executable, "-m", "bench.http_api", "--serve", kind, "--url", url, "--folder", str(folder)]
    with subprocess.Popen([*command, "--port", str(port)]) as process:
        try:
            yield port, process.pid
        finally:
            process.kill()


# --- asking


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection, as soon as somebody listens."""
    for _ in range(600):
        with suppress(OSError):
            return await asyncio.open_connection("127.0.0.1", port, limit=64 * MIB)
        await asyncio.sleep(0.1)
    raise TimeoutError("no server listens")


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[int, bytes]:
    """One request on a connection that stays open."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head[9:12])
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), None)
    if length is None:
        raise RuntimeError(f"answered without a length: {head!r}")
    return status, await reader.readexactly(length)


def get(path: str, headers: str = "") -> Request:
    """The same GET again and again."""
    made = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode()
    return lambda: made


def post(path: Callable[[], str], headers: str = "") -> Request:
    """POSTs without a body, each to a path of its own."""

    def made() -> bytes:
        return f"POST {path()} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n{headers}\r\n".encode()

    return made


async def load(port: int, request: Request, requests: int) -> tuple[float, list[float]]:
    """Requests a second over all connections, and how long each took."""
    connections = [await connect(port) for _ in range(CONNECTIONS)]
    taken: list[float] = []

    async def some(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(requests // CONNECTIONS):
            began = time.perf_counter()
            status, answer = await ask(reader, writer, request())
            taken.append(time.perf_counter() - began)
            if status not in (200, 202):
                raise RuntimeError(f"answered with {status}: {answer[:300]!r}")

    began = time.perf_counter()
    await asyncio.gather(*(some(*connection) for connection in connections))
    rate = len(taken) / (time.perf_counter() - began)
    for _, writer in connections:
        writer.close()
    return rate, taken


# --- measurements


async def compare(database: str, url: str, folder: Path, requests: int) -> None:
    """Each route of ours beside the bare endpoint of its kind."""
    keys = [f"p{number}" for number in range(requests * (ROUNDS + 1))]
    async with Penstock.open(operations=[Parcels, Plain], settings=_settings(url, str(folder))) as penstock:
        _, key = await penstock.keys.create("bench", role="admin")
        made = await penstock.operations.create(Parcels, file=("name\n" + "\n".join(keys)).encode(), file_name="p.csv")
        await _work_until_waiting(penstock, made.id, len(keys))
    await fill(url)
    credential, numbers, waiting = f"Authorization: Bearer {key}\r\n", count(), iter(keys)
    with server("bare", url, folder) as (plain, _), server("ours", url, folder) as (ours, _):
        ways: list[tuple[str, Request, Request]] = [
            ("status", get("/record/r1"), get(f"/api/bulks/{made.id}", credential)),
            ("rows", get("/page"), get(f"/api/bulks/{made.id}/rows?limit={PAGE}", credential)),
            (
                "signal",
                post(lambda: f"/message/m{next(numbers)}"),
                post(lambda: f"/api/bulks/{made.id}/signal/parcel-{next(waiting)}", credential),
            ),
        ]
        for name, bare_request, our_request in ways:
            samples: list[tuple[float, float]] = []
            times: tuple[list[float], list[float]] = ([], [])
            await load(plain, bare_request, requests // 4)
            await load(ours, our_request, requests // 4)
            for _ in range(ROUNDS):
                one, took = await load(plain, bare_request, requests)
                times[0].extend(took)
                two, took = await load(ours, our_request, requests)
                times[1].extend(took)
                samples.append((one, two))
            rates = [statistics.median(sample[turn] for sample in samples) for turn in (0, 1)]
            print(
                f"{database:<11} {name:<7} {rates[1]:>6.0f}/s  p50 {_at(times[1], 0.5):>5.1f} ms  "
                f"p99 {_at(times[1], 0.99):>6.1f} ms   bare {rates[0]:>6.0f}/s  p99 {_at(times[0], 0.99):>6.1f} ms   "
                f"ratio {statistics.median(two / one for one, two in samples):.2f}",
                flush=True,
            )


def _at(taken: Sequence[float], part: float) -> float:
    return sorted(taken)[int(part * len(taken))] * 1000


async def _work_until_waiting(penstock: Penstock, id: str, rows: int) -> None:
    async with penstock.working():
        while (await penstock.operations.get(id)).waiting_rows < rows:  # noqa: ASYNC110  # a worker does it
            await asyncio.sleep(0.2)


async def watch(database: str, url: str, folder: Path) -> None:
    """How fast an operation runs in a worker process while nobody, and while many, watch it through a server."""
    rows = b"name\n" + b"\n".join(b"p%d" % number for number in range(WATCHED_ROWS))
    taken: dict[int, list[float]] = {0: [], VIEWERS: []}
    async with Penstock.open(operations=[Parcels, Plain], settings=_settings(url, str(folder))) as penstock:
        people = range(VIEWERS // VIEWS_EACH)
        keys = [(await penstock.keys.create(f"watcher {number}", role="read"))[1] for number in people]
        with server("ours", url, folder) as (port, _):
            for viewers in (0, VIEWERS) * 4:
                made = await penstock.operations.create(Plain, file=rows, file_name="p.csv")
                async with _watching(port, made.id, keys, viewers):
                    began = time.perf_counter()
                    command = [sys.executable, "-m", "bench.http_api", "--serve", "worker", "--url", url]
                    worker = await asyncio.create_subprocess_exec(
                        *command, "--folder", str(folder), "--operation", made.id
                    )
                    if await worker.wait():
                        raise RuntimeError("the worker failed")
                    taken[viewers].append(time.perf_counter() - began)
    alone, watched = (statistics.median(each[1:]) for each in taken.values())
    print(
        f"{database:<11} {WATCHED_ROWS:,} rows in {alone:.2f} s, with {VIEWERS} viewers in {watched:.2f} s: "
        f"{alone / watched:.2f} of the throughput",
        flush=True,
    )


@asynccontextmanager
async def _watching(port: int, id: str, keys: Sequence[str], viewers: int) -> AsyncIterator[None]:
    """Streams of progress that are read all the time."""

    async def view(key: str) -> None:
        reader, writer = await connect(port)
        writer.write(get(f"/api/bulks/{id}/stream", f"Authorization: Bearer {key}\r\n")())
        while await reader.read(65536):
            pass
        writer.close()

    tasks = [asyncio.create_task(view(keys[number % len(keys)])) for number in range(viewers)]
    await asyncio.sleep(1 if viewers else 0)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def work(url: str, folder: str, id: str) -> None:
    """Run one operation to its end."""
    async with Penstock.open(operations=[Parcels, Plain], settings=_settings(url, folder)) as penstock:
        await penstock.run_until_done(id, owns_process=True)


async def upload(url: str, folder: Path, size_mib: int) -> None:
    """A large file through the API: how much memory the server has at most, before and after."""
    async with Penstock.open(operations=[Parcels, Plain], settings=_settings(url, str(folder))) as penstock:
        _, key = await penstock.keys.create("sender", role="admin")
    line = b"p" * 63 + b"\n"
    block, edge = line * (MIB // 64), b"bench"
    first = (
        b'--bench\r\nContent-Disposition: form-data; name="operationName"\r\n\r\nbench-plain\r\n'
        b'--bench\r\nContent-Disposition: form-data; name="file"; filename="big.csv"\r\n'
        b"Content-Type: text/csv\r\n\r\nname\n"
    )
    last = b"\r\n--bench--\r\n"
    with server("ours", url, folder) as (port, process):
        reader, writer = await connect(port)
        before = _peak_mib(process)
        length = len(first) + size_mib * MIB + len(last)
        head = (
            f"POST /api/bulks HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Type: multipart/form-data; boundary={edge.decode()}\r\nContent-Length: {length}\r\n\r\n"
        )
        began = time.perf_counter()
        writer.write(head.encode() + first)
        for _ in range(size_mib):
            writer.write(block)
            await writer.drain()
        status, answer = await ask(reader, writer, last)
        taken = time.perf_counter() - began
        if status != 202:
            raise RuntimeError(f"answered with {status}: {answer!r}")
        print(
            f"an upload of {size_mib:,} MiB: {taken:.1f} s, the server's memory {before:.0f} MiB before, "
            f"{_peak_mib(process):.0f} MiB at most; {json.loads(answer)['operationId']}",
            flush=True,
        )


def _peak_mib(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


@contextmanager
def place(database: str, folder: Path) -> Iterator[str]:
    """A database of one's own, ready for use."""
    with ExitStack() as stack:
        url = f"sqlite:///{folder / 'bench.db'}"
        if database != "sqlite":
            url = stack.enter_context(private(database)).url
        asyncio.run(upgrade(url, SystemClock()))
        yield url


def main() -> None:
    """Measure on each database."""
    parser = argparse.ArgumentParser(prog="python -m bench.http_api", description=__doc__)
    parser.add_argument("--db", action="append", choices=DATABASES, help="only this one; may be repeated")
    parser.add_argument("--requests", type=int, default=1600, help="of each route and round")
    parser.add_argument("--upload-mib", type=int, default=2048, help="the size of the upload; none if 0")
    parser.add_argument("--no-viewers", action="store_true", help="do not measure what viewers cost")
    for hidden in ("--serve", "--url", "--folder", "--operation"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve == "worker":
        asyncio.run(work(given.url, given.folder, given.operation))
    elif given.serve:
        asyncio.run(serve(given.serve, given.url, given.folder, given.port))
    else:
        os.environ.setdefault("PENSTOCK_SECRET_KEY", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
        for database in given.db or DATABASES[:2]:
            with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, place(database, Path(folder)) as url:
                asyncio.run(compare(database, url, Path(folder), given.requests))
                if not given.no_viewers:
                    asyncio.run(watch(database, url, Path(folder)))
                if given.upload_mib:
                    asyncio.run(upload(url, Path(folder), given.upload_mib))


if __name__ == "__main__":
    main()
