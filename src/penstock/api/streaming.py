"""Answers that go on: server-sent events, of which each caller may have some at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from penstock.access.model import Principal
from penstock.errors import Throttled

__all__ = ["STREAMS_MAX", "STREAM_S", "event_stream"]

STREAM_S = 300.0  # then clients connect again, so that who was locked out stays out
STREAMS_MAX = 100  # of one caller, in one process
RETRY_S = 10
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}

Caller = tuple[str, str]
Pieces = AsyncGenerator[bytes] | AsyncGenerator[str]


def event_stream(request: Request, principal: Principal, pieces: Pieces) -> Response:
    """An answer of server-sent events; `Throttled` for a caller who has too many open."""
    open_streams: Counter[Caller] = request.app.state.open_streams
    caller = (principal.tenant, principal.name)
    if open_streams[caller] >= STREAMS_MAX:
        raise Throttled(f"{principal.name!r} has {STREAMS_MAX} streams open: close some", retry_after_s=RETRY_S)
    return StreamingResponse(_counted(open_streams, caller, pieces), media_type="text/event-stream", headers=_HEADERS)


async def _counted(open_streams: Counter[Caller], caller: Caller, pieces: Pieces) -> AsyncGenerator[bytes | str]:
    open_streams[caller] += 1
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece
    finally:
        open_streams[caller] -= 1
        if not open_streams[caller]:
            del open_streams[caller]
