"""HTTP to receivers that somebody else has named: resolved once, judged, and called at that very address.

A name that is judged and then resolved again could lead elsewhere the second time; so the connection is made to the
judged address, while TLS and the header `Host` go by the name.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import InvalidInput, SettingsInvalid
from penstock.outbox.addresses import Endpoint, Network, literal_address, parse_endpoint, refusal
from penstock.outbox.threads import on_thread

if TYPE_CHECKING:
    import httpx

__all__ = ["AddressRefused", "Poster", "Resolve", "has_httpx", "resolve"]

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

CONNECT_S = 10.0
USER_AGENT = "Penstock-Webhooks/1"


class AddressRefused(InvalidInput):
    """Nothing is sent to this address."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a host, by the system's resolver."""
    found = await on_thread(partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
    return [str(address[0]) for *_, address in found]


def has_httpx() -> bool:
    """Whether this process can send over HTTP."""
    try:
        import httpx  # noqa: F401
    except ImportError:
        return False
    return True


class Poster:
    """Posts bodies to addresses, and hears nothing but the status of the answer and its `Retry-After`."""

    def __init__(
        self,
        *,
        allowed: Sequence[Network],
        timeout_s: float,
        resolve: Resolve = resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.allowed, self._timeout_s, self._resolve, self._tls = allowed, timeout_s, resolve, tls
        self._client: httpx.AsyncClient | None = None

    async def post(self, url: str, body: bytes, headers: dict[str, str]) -> tuple[int, str | None]:
        """The status and `Retry-After` of the answer; its body is not read, and redirects are not followed.

        `AddressRefused` before anything is sent; `TimeoutError` when all of it takes too long; `OSError` when the
        receiver cannot be reached or answers nonsense.
        """
        import httpx

        async with asyncio.timeout(self._timeout_s):
            endpoint = parse_endpoint(url, self.allowed)
            request = self._opened().build_request(
                "POST",
                _pinned(endpoint, await self._address(endpoint)),
                content=body,
                headers={**headers, "Host": endpoint.host_header, "User-Agent": USER_AGENT},
                extensions={"sni_hostname": endpoint.host},
            )
            try:
                answer = await self._opened().send(request, stream=True)
            except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
                raise OSError(f"{type(error).__name__}: {error}") from error
            try:
                return answer.status_code, answer.headers.get("retry-after")
            finally:
                await answer.aclose()  # the connection ends too, so a body without end costs nothing

    async def _address(self, endpoint: Endpoint) -> str:
        """The one address that is called; refused when any of the host's is."""
        literal = literal_address(endpoint.host)
        found = [str(literal)] if literal is not None else await self._resolve(endpoint.host, endpoint.port)
        if not found:
            raise OSError(f"{endpoint.host} has no address")
        for address in found:
            why = refusal(address, endpoint.port, self.allowed)
            if why is not None:
                raise AddressRefused(f"{endpoint.host} is not sent to: {why}")
        return found[0]

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            try:
                import httpx
            except ImportError:
                raise SettingsInvalid("webhooks need httpx: pip install 'penstock[http]'") from None
            # No connection is used twice: one that was made for a name must not serve another at the same address.
            self._client = httpx.AsyncClient(
                verify=self._tls or ssl.create_default_context(),
                trust_env=False,
                follow_redirects=False,
                http2=False,
                timeout=httpx.Timeout(self._timeout_s, connect=min(CONNECT_S, self._timeout_s)),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            )
        return self._client

    async def close(self) -> None:
        """Close every connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def _pinned(endpoint: Endpoint, address: str) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"{endpoint.scheme}://{host}:{endpoint.port}{endpoint.path}"
