"""Receivers on loopback: what came is kept, and each answers as it was told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

__all__ = ["Answer", "Receiver", "Request", "mail_server", "receiver"]


@dataclass(frozen=True)
class Request:
    line: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    hangs: bool = False  # nothing is ever answered
    endless: bool = False  # the body has no end


@dataclass
class Receiver:
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    answer: Callable[[Request], Answer] = lambda request: Answer()
    came: asyncio.Event = field(default_factory=asyncio.Event)
    at_work: int = 0
    at_work_most: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.at_work += 1
        self.at_work_most = max(self.at_work, self.at_work_most)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.at_work -= 1
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode().strip()
        headers: dict[str, str] = {}
        while (raw := (await reader.readline()).decode().strip()) != "":
            name, _, value = raw.partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        request = Request(line, headers, body)
        self.requests.append(request)
        self.came.set()
        answer = self.answer(request)
        if answer.hangs:
            await reader.read()  # until the other side gives up
            return
        said = {**answer.headers} if answer.endless else {"Content-Length": str(len(answer.body)), **answer.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in said.items())
        writer.write(f"HTTP/1.1 {answer.status} Said\r\n{head}\r\n".encode() + answer.body)
        await writer.drain()
        while answer.endless:
            writer.write(b"x" * 65536)
            await writer.drain()


@asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


@asynccontextmanager
async def mail_server() -> AsyncIterator[tuple[int, list[str]]]:
    """A server that takes e-mails, and the messages that came."""
    messages: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 here\r\n")
        while line := (await reader.readline()).decode().strip():
            word = line.split()[0].upper()
            if word == "DATA":
                writer.write(b"354 go on\r\n")
                messages.append((await reader.readuntil(b"\r\n.\r\n")).decode())
            writer.write(b"221 bye\r\n" if word == "QUIT" else b"250 fine\r\n")
            if word == "QUIT":
                break
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], messages
    finally:
        server.close()
