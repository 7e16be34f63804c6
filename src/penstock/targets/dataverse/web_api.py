"""One HTTP call to the Web API: headers, token, and what a missing answer means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from penstock.clock import Clock, from_micros
from penstock.errors import SettingsInvalid
from penstock.targets.dataverse.error_mapping import WebApiReply, refusal
from penstock.targets.dataverse.tokens import Tokens
from penstock.targets.http.error_mapping import refuse_page
from penstock.targets.model import ErrorKind, TargetError
from penstock.targets.per_loop import PerLoop
from penstock.targets.request_count import count_request

try:
    import httpx
except ImportError as error:
    raise ImportError("penstock.targets.dataverse needs httpx: install penstock[http]") from error

__all__ = ["TOTAL_S", "WebApi", "default_client", "environment_url"]

CONNECT_S = 10.0
WRITE_S = 60.0
READ_S = 180.0  # the platform itself gives up after two minutes
TOTAL_S = 300.0
STANDARD = {
    "Accept": "application/json",
    "OData-Version": "4.0",
    "OData-MaxVersion": "4.0",
    "If-None-Match": "null",
}


def default_client() -> httpx.AsyncClient:
    """A client whose limits are the executor's widths, not its own."""
    timeout = httpx.Timeout(connect=CONNECT_S, read=READ_S, write=WRITE_S, pool=None)
    return httpx.AsyncClient(timeout=timeout, limits=httpx.Limits(max_connections=None, max_keepalive_connections=None))


def environment_url(url: str) -> str:
    """The environment's address without a closing slash; tokens travel in the clear only on this machine."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise SettingsInvalid(f"a Dataverse address is like https://org.crm.dynamics.com, not {url!r}")
    if parts.scheme == "http" and parts.hostname not in {"localhost", "127.0.0.1", "::1"}:
        raise SettingsInvalid(f"{url!r} would send access tokens in the clear; use https")
    return url.rstrip("/")


class WebApi:
    """Sends single requests in the name of a source; never retries."""

    def __init__(
        self,
        url: str,
        api_version: str,
        tokens: Tokens,
        clock: Clock,
        client: Callable[[], httpx.AsyncClient],
        *,
        timeout_s: float = TOTAL_S,
    ) -> None:
        self.root = f"{urlsplit(url).path}/api/data/{api_version}/"
        self._base = f"{url}/api/data/{api_version}/"
        self._tokens = tokens
        self._clock = clock
        self._clients = PerLoop(client)
        self._timeout_s = timeout_s

    async def read(self, source: str, path: str) -> WebApiReply:
        """GET something; raises when it was refused."""
        reply = await self.call(source, "GET", path)
        if not reply.is_success:
            raise self.refusal(reply, is_write=False)
        return reply

    async def read_rows(self, source: str, path: str) -> Sequence[Mapping[str, Any]]:
        """GET a collection; an answer that holds none cannot be trusted, and is never taken for an empty one."""
        reply = await self.read(source, path)
        rows = reply.json().get("value")
        if not isinstance(rows, list):
            raise TargetError(
                f"Dataverse answered {reply.status} without the rows asked for", kind=ErrorKind.CONNECTION
            )
        return rows

    async def call(
        self, source: str, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> WebApiReply:
        """Send a request and give the answer, whatever it says; raises when there is none."""
        token = await self._tokens.get(source)
        sent = {**STANDARD, **(headers or {}), "Authorization": f"Bearer {token}"}
        reply = await self._exchange(method, path, sent, body)
        if not reply.is_success and self.refusal(reply, is_write=False).kind is ErrorKind.TOKEN:
            self._tokens.refuse(source, token)
        return reply

    def refusal(self, reply: WebApiReply, *, is_write: bool) -> TargetError:
        """The error an answer stands for."""
        return refusal(reply, from_micros(self._clock.now_us()), is_write=is_write)

    async def aclose(self) -> None:
        client = self._clients.take()
        if client is not None:
            await client.aclose()

    async def _exchange(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> WebApiReply:
        client = self._clients.get()
        request = client.build_request(method, self._base + path, headers=headers, content=body)
        # The platform's cookie pins every call to one web server, and its quota with it.
        request.headers.pop("cookie", None)
        count_request()
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await client.send(request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError) as error:
            raise _unanswered("could not be reached", error, maybe_applied=False) from error
        except httpx.LocalProtocolError as error:
            raise TargetError(f"the request could not be sent: {error}") from error
        except (httpx.TransportError, httpx.DecodingError, TimeoutError) as error:
            raise _unanswered("gave no answer", error, maybe_applied=method != "GET") from error
        refuse_page("Dataverse", response.status_code, response.headers, maybe_applied=method != "GET")
        return WebApiReply(response.status_code, dict(response.headers), response.content)


def _unanswered(what: str, error: Exception, *, maybe_applied: bool) -> TargetError:
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return TargetError(f"Dataverse {what}: {reason}", kind=ErrorKind.CONNECTION, maybe_applied=maybe_applied)
