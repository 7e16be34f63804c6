"""Every request gets an id, is counted by its route, and can be found in the log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from penstock.telemetry.logs import request_id

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from penstock.clock import Clock, Entropy
    from penstock.telemetry.exposition import Exposition

__all__ = ["Observed"]

HEADER = "x-request-id"
GIVEN = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
TRACE = re.compile(r"00-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)


class Observed:
    """Takes the caller's request id, or the id of its trace, or makes one; answers with it and counts the request."""

    def __init__(self, app: ASGIApp, *, metrics: Exposition, clock: Clock, entropy: Entropy) -> None:
        self.app, self._metrics, self._clock, self._entropy = app, metrics, clock, entropy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = self._clock.monotonic(), 500
        name = self._id_of(Headers(scope=scope))
        token = request_id.set(name)

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).setdefault(HEADER, name)
                method = scope["method"] if scope["method"] in METHODS else "other"
                self._metrics.answered(method, _route(scope), status, self._clock.monotonic() - began)
            await send(message)

        try:
            await self.app(scope, receive, named)
        finally:
            request_id.reset(token)

    def _id_of(self, headers: Headers) -> str:
        given = headers.get(HEADER, "")
        if GIVEN.fullmatch(given):
            return given
        traced = TRACE.fullmatch(headers.get("traceparent", ""))
        return traced[1] if traced else f"{self._entropy.bits(64):016x}"


METHODS = frozenset({"GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"})


def _route(scope: Scope) -> str:
    """The path as it is declared; what no route answers is one thing."""
    return str(getattr(scope.get("route"), "path", None) or "other")
