"""How much one request may send: the route decides, never what the request says of itself."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.api.problems import answer
from penstock.api.routing import route_of
from penstock.errors import TooLarge
from penstock.settings import Settings

__all__ = ["BodyLimit", "upload_bytes_max"]

JSON_BYTES_MAX = 8 * 1024 * 1024
PUBLIC_BYTES_MAX = 64 * 1024  # without a credential
FORM_BYTES = 64 * 1024  # of a form, beside its file and its metadata
NO_LIMIT = 2**63


def upload_bytes_max(settings: Settings) -> int:
    """How long the body of an upload may be."""
    if not settings.upload_bytes_max:
        return NO_LIMIT
    return settings.upload_bytes_max + settings.metadata_bytes_max + FORM_BYTES


class BodyLimit:
    """Refuses bodies that are too long: at once where their length is told, otherwise when it is reached."""

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self.app, self._upload_bytes_max = app, upload_bytes_max(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self._bytes_max(scope)
        told = Headers(scope=scope).get("content-length", "")
        refusal = f"the body has more than the {limit:,} bytes that are taken"
        if told.isdecimal() and int(told) > limit:
            await answer(TooLarge(refusal))(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                # FastAPI lets this one pass; others that happen while it reads a body it takes for its own.
                raise HTTPException(413, refusal)
            return message

        await self.app(scope, counted, send)

    def _bytes_max(self, scope: Scope) -> int:
        route = route_of(scope)
        if route is None or route.role == "public":
            return PUBLIC_BYTES_MAX
        return self._upload_bytes_max if route.is_upload else JSON_BYTES_MAX
