"""One HTTP call in the name of a source: its credentials, its time, and what a missing answer means."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.errors import SettingsInvalid
from penstock.targets.http.auth import LOCAL
from penstock.targets.http.error_mapping import refuse_page
from penstock.targets.model import ErrorKind, TargetError
from penstock.targets.per_loop import PerLoop
from penstock.targets.target import count_request

if TYPE_CHECKING:
    import httpx

__all__ = ["HttpClient", "checked_base", "new_client"]

Proof: TypeAlias = "Callable[[str, httpx.AsyncClient], Awaitable[Mapping[str, str]]]"
"""Gives the headers that prove who a source is; may ask somebody for a token first."""
CONNECT_S = 10.0
REDIRECTS_MAX = 3
KEEPS_METHOD = frozenset({307, 308})
VALUE = re.compile(r"[!-~](?:[ -~\t]*[!-~])?|")
ABSOLUTE = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def new_client(**timeouts_s: float) -> httpx.AsyncClient:
    """A client without limits of its own: the executor's widths hold, and the time limit of each call."""
    module = installed()
    limits = module.Limits(max_connections=None, max_keepalive_connections=None)
    timeout = module.Timeout(None, connect=CONNECT_S, **timeouts_s)
    client: httpx.AsyncClient = module.AsyncClient(limits=limits, timeout=timeout)
    return client


def installed() -> Any:
    """The httpx module, which comes with an extra."""
    try:
        import httpx
    except ImportError as error:
        raise SettingsInvalid("a remote behind HTTP needs httpx; install penstock[http]") from error
    return httpx


def checked_base(url: str, *, has_credentials: bool = True, allow_plain_http: bool = False) -> str:
    """A base address without a closing slash; credentials travel in the clear only when that is asked for."""
    httpx = installed()
    try:
        base = httpx.URL(url)
    except httpx.InvalidURL:
        base = httpx.URL()
    if base.scheme not in {"http", "https"} or not base.host or base.query or base.fragment or base.userinfo:
        # It is not shown: what is wrong with it may be a credential.
        raise SettingsInvalid("the address of a remote is like https://host/path, without user or query")
    if base.scheme == "http" and has_credentials and not allow_plain_http and base.host not in LOCAL:
        raise SettingsInvalid(f"{url!r} would send credentials in the clear; use https, or allow_plain_http=True")
    return url.rstrip("/")


class HttpClient:
    """Sends single requests; never retries."""

    def __init__(self, base: str, proof: Proof, *, timeout_s: float, client: Callable[[], httpx.AsyncClient]) -> None:
        self._base, self._origin = base, _origin(base)
        self._proof = proof
        self._timeout_s = timeout_s
        self._clients: PerLoop[httpx.AsyncClient] = PerLoop(lambda: _without_cookies(client()))

    async def call(
        self,
        source: str,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        content: bytes | None = None,
        is_write: bool = True,
    ) -> httpx.Response:
        """The answer, whatever its status; `TargetError` when none came, or none that can be trusted."""
        httpx = installed()
        client = self._clients.get()
        proof = await self._proved(source, client)
        sent = _checked({**headers, **proof})
        request = client.build_request(method, self.address(path), content=content, headers=sent)
        count_request()
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._answered(client, request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError) as error:
            raise _lost(f"{_shown(request)} could not be reached", error, maybe_applied=False) from error
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
            raise TargetError(f"the call to {_shown(request)} cannot be made: {error}") from error
        except (httpx.HTTPError, TimeoutError) as error:
            raise _lost(f"{_shown(request)} gave no answer", error, maybe_applied=is_write) from error
        refuse_page(_shown(request), response.status_code, response.headers, maybe_applied=is_write)
        return response

    def address(self, path: str) -> str:
        """A path below the base; or what an answer named as an address, which must stay within the base's origin."""
        address = path if ABSOLUTE.match(path) else self._base + path
        if (origin := _origin(address)) != self._origin:
            raise TargetError(f"an answer leads to another origin, {origin}, not {self._origin}, and is not followed")
        return address

    async def aclose(self) -> None:
        """Close the connections; the next call opens new ones."""
        client = self._clients.take()
        if client is not None:
            await client.aclose()

    async def _proved(self, source: str, client: httpx.AsyncClient) -> Mapping[str, str]:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._proof(source, client)
        except TimeoutError as error:
            # The remote itself was not yet called.
            raise TargetError(f"no token for {source!r} came in time", kind=ErrorKind.CONNECTION) from error

    async def _answered(self, client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
        response = await client.send(request, follow_redirects=False)
        for _ in range(REDIRECTS_MAX):
            further = response.next_request
            if response.status_code not in KEEPS_METHOD or further is None or not _is_same_origin(request, further):
                break
            response = await client.send(further, follow_redirects=False)
        return response


def _checked(headers: Mapping[str, Any]) -> Mapping[str, str]:
    """Headers that can be sent; what is wrong with one is told without its value, which may be a credential."""
    for name, value in headers.items():
        if not isinstance(value, str) or not VALUE.fullmatch(value):
            wrong = "a line end, a blank at its end or a letter that is not ASCII" if value else "no text"
            raise TargetError(f"the header {name!r} cannot be sent: it holds {wrong}", code="BadHeader")
    return headers


def _without_cookies(client: httpx.AsyncClient) -> httpx.AsyncClient:
    # A cookie can tie all calls to one server behind a balancer, whose quota is then used up first.
    client.cookies = CookieJar(policy=DefaultCookiePolicy(allowed_domains=[]))
    return client


def _origin(address: str) -> str:
    """The scheme, host and port that a call to the address goes to, spelled in one way, and whether it names a user."""
    httpx = installed()
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL as error:
        raise TargetError(f"what a call should go to is no address: {error}") from error
    user = "…@" if url.userinfo else ""
    return f"{url.scheme}://{user}{url.netloc.decode()}"


def _is_same_origin(one: httpx.Request, other: httpx.Request) -> bool:
    return all(getattr(one.url, part) == getattr(other.url, part) for part in ("scheme", "host", "port"))


def _lost(what: str, error: BaseException, *, maybe_applied: bool) -> TargetError:
    reason = type(error).__name__
    return TargetError(f"{what}: {reason}", kind=ErrorKind.CONNECTION, code=reason, maybe_applied=maybe_applied)


def _shown(request: httpx.Request) -> str:
    """A call without its query, which may hold a key."""
    return f"{request.method} {request.url.copy_with(query=None)}"
