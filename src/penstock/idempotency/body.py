"""A request's body, read whole before anything is decided, in little memory: beyond a size it goes to a file."""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import IO, Any, Self

from penstock.errors import InvalidInput
from penstock.idempotency.fingerprint import Fingerprint

__all__ = ["BodyTooLarge", "Disconnected", "SpooledBody"]

Receive = Callable[[], Awaitable[Any]]

PIECE_BYTES = 65_536


class BodyTooLarge(InvalidInput):
    """The body has more bytes than are accepted."""


class Disconnected(Exception):
    """The client went away before its request was complete."""


class SpooledBody:
    """The pieces of a body, in memory up to `memory_bytes`, beyond that in a file without a name."""

    def __init__(self, *, memory_bytes: int, bytes_max: int) -> None:
        self._memory_bytes, self._bytes_max = memory_bytes, bytes_max
        self._pieces: deque[bytes] = deque()
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._is_sent = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    async def fill(self, receive: Receive, fingerprint: Fingerprint) -> None:
        """Read to the end; `Disconnected` or `BodyTooLarge` when there is none."""
        is_more = True
        while is_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            piece = message.get("body", b"")
            is_more = message.get("more_body", False)
            if piece:
                fingerprint.add(piece)
                await self._add(piece)
        if self._file is not None:
            await asyncio.to_thread(self._file.seek, 0)

    async def _add(self, piece: bytes) -> None:
        self._bytes += len(piece)
        if self._bytes > self._bytes_max:
            raise BodyTooLarge(f"the body has more than the {self._bytes_max} bytes that are accepted with a key")
        if self._file is None and self._bytes <= self._memory_bytes:
            self._pieces.append(piece)
            return
        if self._file is None:
            self._file = await asyncio.to_thread(tempfile.TemporaryFile)
            piece = b"".join([*self._pieces, piece])
            self._pieces.clear()
        await asyncio.to_thread(self._file.write, piece)

    async def next_message(self) -> dict[str, Any] | None:
        """The body once more, message by message as the application receives it; None behind the last."""
        if self._is_sent:
            return None
        if self._file is not None:
            piece = await asyncio.to_thread(self._file.read, PIECE_BYTES)
            self._is_sent = len(piece) < PIECE_BYTES
        else:
            piece = self._pieces.popleft() if self._pieces else b""
            self._is_sent = not self._pieces
        return {"type": "http.request", "body": piece, "more_body": not self._is_sent}
