"""A small store behind a real HTTP/1.1 interface, with faults by script and a ledger of what it applied."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qs, unquote

import h11


@dataclass(frozen=True)
class Call:
    """A request as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """An answer; `body` is JSON unless it is bytes."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_applied: bool = False
    """As a fault: the call took effect first, and something in between answered."""

    @property
    def content(self) -> bytes:
        if self.body is None:
            return b""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


class Hangup(Exception):
    """The connection ends without another byte."""


class HttpRemote:
    """Listens on a free port of this machine.

    `faults` are used up one by one, one for each call that writes: a `Reply` is sent in place of the work, or of its
    answer, and a word says how the answer goes wrong. `reset-before` and `reset-after` cut the connection before or
    after applying; `silent-after` applies and never answers; `half`, `wrong-length` and `drip` apply and spoil the
    answer. `late` cuts the connection and applies when the next call that writes has come in. `refuses_duplicates`
    answers 409 to ids that are there; `too_early` are ids that get a 429 of their own, once.
    """

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.tables: frozenset[str] | None = None
        self.ledger: list[tuple[str, str]] = []
        self.calls: list[Call] = []
        self.faults: deque[Reply | str | None] = deque()
        self.answers: dict[str, Reply] = {}
        self.tokens: list[str] = []
        self.routes: dict[str, Callable[[Call], Reply]] = {}
        self.in_flight = self.in_flight_max = 0
        self.hold: asyncio.Event | None = None
        self.refuses_duplicates = False
        self.too_early: set[str] = set()
        self._late: list[Call] = []
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._converse(reader, writer)
        except (Hangup, ConnectionError, h11.RemoteProtocolError, asyncio.CancelledError):  # cancelled: the end
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        protocol = h11.Connection(h11.SERVER)
        while True:
            call = await self._next_call(protocol, reader)
            if call is None:
                return
            self.in_flight += 1
            self.in_flight_max = max(self.in_flight_max, self.in_flight)
            try:
                await self._answer(call, protocol, writer)
            finally:
                self.in_flight -= 1
            if protocol.our_state is not h11.DONE or protocol.their_state is not h11.DONE:
                return
            protocol.start_next_cycle()

    async def _next_call(self, protocol: h11.Connection, reader: asyncio.StreamReader) -> Call | None:
        head, body = None, b""
        while True:
            event = protocol.next_event()
            if event is h11.NEED_DATA:
                protocol.receive_data(await reader.read(65536))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                headers = {name.decode(): value.decode() for name, value in head.headers}
                return Call(head.method.decode(), head.target.decode(), headers, body)
            else:
                return None

    async def _answer(self, call: Call, protocol: h11.Connection, writer: asyncio.StreamWriter) -> None:
        self.calls.append(call)
        is_write = call.method != "GET" and call.path not in self.routes and call.path != "/token"
        fault = self.faults.popleft() if is_write and self.faults else None
        if self.hold is not None and is_write:
            await self.hold.wait()
        if fault == "reset-before":
            raise Hangup
        if is_write:
            self._apply_late_ones()
        if fault == "late":
            self._late.append(call)
            raise Hangup
        reply = fault if isinstance(fault, Reply) else self._remembered(call)
        if reply.is_applied:
            self._remembered(call)
        if fault == "reset-after":
            raise Hangup
        if fault == "silent-after":
            await asyncio.Event().wait()
        content = reply.content
        length = len(content) + (5 if fault == "wrong-length" else 0)
        headers = [("Content-Length", str(length)), *{"Content-Type": "application/json", **reply.headers}.items()]
        writer.write(protocol.send(h11.Response(status_code=reply.status, headers=headers)) or b"")
        if fault == "drip":
            writer.write(content[:1])
            await asyncio.Event().wait()
        if fault in ("half", "wrong-length"):
            writer.write(content[: len(content) // 2] if fault == "half" else content)
            await writer.drain()
            raise Hangup
        if content:
            writer.write(protocol.send(h11.Data(data=content)) or b"")
        writer.write(protocol.send(h11.EndOfMessage()) or b"")
        await writer.drain()

    def _apply_late_ones(self) -> None:
        late, self._late = self._late, []
        for call in late:
            self._remembered(call)

    def _remembered(self, call: Call) -> Reply:
        """A call that carries a known idempotency key gets the answer it got before."""
        key = call.headers.get("idempotency-key")
        if key is None:
            return self._handle(call)
        if key not in self.answers:
            self.answers[key] = self._handle(call)
        return self.answers[key]

    def _handle(self, call: Call) -> Reply:
        path = call.path.partition("?")[0]
        if path in self.routes:
            return self.routes[path](call)
        if path == "/token":
            return self._token(call)
        kind, table, *rest = path.strip("/").split("/")
        if self.tables is not None and table not in self.tables:
            return Reply(404, {"error": {"code": "no_table", "message": f"no table at {path}"}})
        rows = self.rows.setdefault(unquote(table), {})
        if kind == "rows":
            return self._row(call, unquote(rest[0]), rows)
        work = {
            "bulk": self._bulk,
            "wrapped": self._wrapped,
            "lines": self._lines,
            "atomic": self._atomic,
            "change": self._change,
            "purge": self._purge_all,
        }
        if kind not in work:
            return Reply(404, {"error": {"code": "no_route", "message": f"nothing at {path}"}})
        return work[kind](call, rows)

    def _token(self, call: Call) -> Reply:
        form = parse_qs(call.body.decode())
        if form.get("client_secret") != ["s3cret"]:
            return Reply(401, {"error": "invalid_client", "error_description": f"wrong: {form['client_secret'][0]}"})
        self.tokens.append(f"token-{len(self.tokens) + 1}")
        return Reply(200, {"access_token": self.tokens[-1], "expires_in": 100, "token_type": "Bearer"})

    def _bulk(self, call: Call, rows: dict[str, Any]) -> Reply:
        return Reply(207, {"results": self._items(call.json, rows)})

    def _wrapped(self, call: Call, rows: dict[str, Any]) -> Reply:
        items = self._items(call.json["items"], rows)
        return Reply(200, {"failures": [item for item in items if item["status"] >= 400]})

    def _lines(self, call: Call, rows: dict[str, Any]) -> Reply:
        items = self._items([json.loads(line) for line in call.body.splitlines()], rows)
        return Reply(200, b"\n".join(json.dumps(item).encode() for item in items))

    def _atomic(self, call: Call, rows: dict[str, Any]) -> Reply:
        if any(record.get("bad") for record in call.json):
            return Reply(422, {"error": {"code": "invalid", "message": "the field 'bad' is wrong"}})
        if self.refuses_duplicates and any(record.get("id") in rows for record in call.json):
            return Reply(409, {"error": {"code": "exists", "message": "a record is already there"}})
        return Reply(201, [self._apply(record, rows) for record in call.json])

    def _change(self, call: Call, rows: dict[str, Any]) -> Reply:
        there = [record["id"] in rows for record in call.json]
        items = self._items([record for record in call.json if record["id"] in rows], rows)
        gone = {"status": 404, "error": "no such row"}
        return Reply(207, [items.pop(0) if is_there else gone for is_there in there])

    def _purge_all(self, call: Call, rows: dict[str, Any]) -> Reply:
        return Reply(207, [self._purge(identifier, rows) for identifier in call.json])

    def _items(self, records: list[Any], rows: dict[str, Any]) -> list[dict[str, Any]]:
        return [self._item(index, record, rows) for index, record in enumerate(records)]

    def _item(self, index: int, record: Any, rows: dict[str, Any]) -> dict[str, Any]:
        if record.get("bad"):
            return {"index": index, "status": 422, "error": {"code": "invalid", "message": "the field 'bad' is wrong"}}
        if record.get("id") in self.too_early:
            self.too_early.discard(record["id"])
            return {"index": index, "status": 429, "error": "too early"}
        if self.refuses_duplicates and record.get("id") in rows:
            return {"index": index, "status": 409, "error": "already there"}
        status = 200 if record.get("id") in rows else 201
        return {"index": index, "status": status, "id": self._apply(record, rows)}

    def _purge(self, identifier: str, rows: dict[str, Any]) -> dict[str, Any]:
        if identifier not in rows:
            return {"status": 404, "error": "no such row"}
        del rows[identifier]
        self.ledger.append(("delete", identifier))
        return {"status": 204, "id": identifier}

    def _row(self, call: Call, identifier: str, rows: dict[str, Any]) -> Reply:
        if call.method == "PUT":
            status = 200 if identifier in rows else 201
            self._apply({**call.json, "id": identifier}, rows)
            return Reply(status, {"id": identifier})
        if identifier not in rows:
            return Reply(404, {"message": "no such row"})
        if call.method == "DELETE":
            self._purge(identifier, rows)
            return Reply(204)
        return Reply(200, rows[identifier])

    def _apply(self, record: Any, rows: dict[str, Any]) -> str:
        identifier = record.get("id") or f"made-{len(rows) + 1}"
        rows[identifier] = {**record, "id": identifier}
        self.ledger.append(("write", identifier))
        return str(identifier)
