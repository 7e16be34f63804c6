"""One HTTP call in the name of a source: its credentials, its time, and what a missing answer means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.clock import Clock
from penstock.errors import SettingsInvalid
from penstock.targets.http.answers import decoded
from penstock.targets.http.auth import LOCAL, Auth
from penstock.targets.http.error_mapping import Reply, refuse_page
from penstock.targets.model import ErrorKind, TargetError
from penstock.targets.per_loop import PerLoop
from penstock.targets.request_count import count_request

if TYPE_CHECKING:
    import httpx

__all__ = ["HttpClient", "checked_base", "new_client"]

CONNECT_S = 10.0
REDIRECTS_MAX = 3
KEEPS_METHOD = frozenset({307, 308})


def new_client() -> httpx.AsyncClient:
    """A client without limits of its own: the executor's widths hold, and the time limit of each call."""
    module = installed()
    limits = module.Limits(max_connections=None, max_keepalive_connections=None)
    client: httpx.AsyncClient = module.AsyncClient(limits=limits, timeout=module.Timeout(None, connect=CONNECT_S))
    return client


def installed() -> Any:
    """The httpx module, which comes with an extra."""
    try:
        import httpx
    except ImportError as error:
        raise SettingsInvalid("HttpTarget needs httpx; install penstock[http]") from error
    return httpx


def checked_base(url: str, *, has_credentials: bool, allow_plain_http: bool) -> str:
    """A base address without a closing slash; credentials travel in the clear only when that is asked for."""
    base = installed().URL(url)
    if base.scheme not in {"http", "https"} or not base.host or base.query or base.fragment or base.userinfo:
        raise SettingsInvalid(f"the base of an HTTP target is like https://host/path, without user or query: {url!r}")
    if base.scheme == "http" and has_credentials and not allow_plain_http and base.host not in LOCAL:
        raise SettingsInvalid(f"{url!r} would send credentials in the clear; use https, or allow_plain_http=True")
    return url.rstrip("/")


class HttpClient:
    """Sends single requests; never retries."""

    def __init__(
        self, base: str, auths: Mapping[str, Auth], *, clock: Clock, timeout_s: float, client: Callable[[], Any]
    ) -> None:
        self._base = base
        self._auths = auths
        self._clock = clock
        self._timeout_s = timeout_s
        self._clients: PerLoop[httpx.AsyncClient] = PerLoop(lambda: _without_cookies(client()))

    async def call(
        self, source: str, method: str, path: str, *, content: bytes | None = None, headers: Mapping[str, str]
    ) -> Reply:
        """The answer, whatever its status; `TargetError` when none came, or none that can be trusted."""
        httpx = installed()
        client = self._clients.get()
        proof = await self._proof(source, client)
        request = client.build_request(method, self.address(path), content=content, headers={**headers, **proof})
        count_request()
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._answered(client, request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError) as error:
            raise _lost(request, error, maybe_applied=False) from error
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
            raise TargetError(f"the call to {_shown(request)} cannot be made: {error}") from error
        except (httpx.HTTPError, TimeoutError) as error:
            raise _lost(request, error, maybe_applied=True) from error
        named = {name.lower(): value for name, value in response.headers.items()}
        refuse_page(_shown(request), response.status_code, named, maybe_applied=method != "GET")
        return Reply(response.status_code, named, decoded(response.content))

    def address(self, path: str) -> str:
        """A path below the base; or what an answer named as an address, which must stay within the base's origin."""
        if path.startswith(self._base):
            return path
        if not path.startswith(("http:", "https:")):
            return self._base + path
        told, own = urlsplit(path), urlsplit(self._base)
        if (told.scheme, told.netloc) != (own.scheme, own.netloc):
            raise TargetError(f"an answer leads to another origin, {told.scheme}://{told.netloc}, and is not followed")
        return path

    async def _proof(self, source: str, client: httpx.AsyncClient) -> Mapping[str, str]:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._auths[source].headers(client, self._clock)
        except TimeoutError as error:
            # The remote itself was not yet called.
            raise TargetError(f"no token for {source!r} came in time", kind=ErrorKind.CONNECTION) from error

    async def aclose(self) -> None:
        """Close the connections; the next call opens new ones."""
        client = self._clients.take()
        if client is not None:
            await client.aclose()

    async def _answered(self, client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
        response = await client.send(request, follow_redirects=False)
        for _ in range(REDIRECTS_MAX):
            further = response.next_request
            if response.status_code not in KEEPS_METHOD or further is None or not _is_same_origin(request, further):
                break
            response = await client.send(further, follow_redirects=False)
        return response


def _without_cookies(client: httpx.AsyncClient) -> httpx.AsyncClient:
    # A cookie can tie all calls to one server behind a balancer, whose quota is then used up first.
    client.cookies = CookieJar(policy=DefaultCookiePolicy(allowed_domains=[]))
    return client


def _is_same_origin(one: httpx.Request, other: httpx.Request) -> bool:
    return all(getattr(one.url, part) == getattr(other.url, part) for part in ("scheme", "host", "port"))


def _lost(request: httpx.Request, error: BaseException, *, maybe_applied: bool) -> TargetError:
    return TargetError(
        f"{_shown(request)} gave no answer: {type(error).__name__}",
        kind=ErrorKind.CONNECTION,
        code=type(error).__name__,
        maybe_applied=maybe_applied,
    )


def _shown(request: httpx.Request) -> str:
    """A call without its query, which may hold a key."""
    return f"{request.method} {request.url.copy_with(query=None)}"
