"""What browsers are told, and what other people's pages may not make them do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders

from penstock.api.problems import answer as answer_to
from penstock.errors import Forbidden

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["SAFE_METHODS", "BrowserRules", "is_foreign_page", "is_own_page"]

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
# A handler that sets one of them itself knows better.
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Without a referrer at all, browsers send no usable Origin with our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-store",
}
STRICT_TRANSPORT = "max-age=31536000"


def is_own_page(headers: Headers, public_url: str | None) -> bool:
    """Whether a browser says that one of our own pages sent this request."""
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site") == "same-origin"
    return _place(origin) in _own_hosts(headers, public_url)


def is_foreign_page(headers: Headers, public_url: str | None) -> bool:
    """Whether a browser says that a page of another site sent this request; programs say nothing."""
    origin = headers.get("origin")
    if origin is not None:
        return _place(origin) not in _own_hosts(headers, public_url)
    return headers.get("sec-fetch-site", "none") not in ("same-origin", "none")


def _own_hosts(headers: Headers, public_url: str | None) -> set[str]:
    hosts = {headers.get("host", ""), urlsplit(public_url or "").netloc}
    return hosts - {""}


def _place(origin: str) -> str:
    """The host and port of an origin; empty where it has none that can be read."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


class BrowserRules:
    """Adds security headers to every answer, and refuses changes that another site's page asks for.

    A request with its own `Authorization` cannot come from such a page unasked, so it is not refused. `hosts` are the
    names by which this server may be called; another name that leads here may be an attack by DNS (none: any name).
    """

    def __init__(self, app: ASGIApp, *, public_url: str | None = None, hosts: Iterable[str] = ()) -> None:
        self.app, self._public_url, self._hosts = app, public_url, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope["method"], Headers(scope=scope))

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answer.setdefault(name, value)
                if scope.get("scheme") == "https":
                    answer.setdefault("strict-transport-security", STRICT_TRANSPORT)
            await send(message)

        app = self.app if refusal is None else answer_to(refusal)
        await app(scope, receive, with_headers)

    def _refusal(self, method: str, headers: Headers) -> Forbidden | None:
        if self._hosts and _name(headers.get("host", "")) not in self._hosts:
            return Forbidden("this server is not called by that name")
        is_changing = method not in SAFE_METHODS and "authorization" not in headers
        if is_changing and is_foreign_page(headers, self._public_url):
            return Forbidden("a page of another site may not change anything here")
        return None


def _name(host: str) -> str:
    """A host without its port; empty where it cannot be read."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
