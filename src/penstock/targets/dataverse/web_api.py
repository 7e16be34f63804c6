"""One HTTP call to the Web API: headers, token, and what a missing answer means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.clock import Clock, from_micros
from penstock.targets.dataverse.error_mapping import WebApiReply, refusal
from penstock.targets.dataverse.tokens import Tokens
from penstock.targets.http.client import HttpClient, new_client
from penstock.targets.model import ErrorKind, TargetError

if TYPE_CHECKING:
    import httpx

__all__ = ["TOTAL_S", "WebApi", "default_client"]

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
    return new_client(read=READ_S, write=WRITE_S)


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
        self._tokens = tokens
        self._clock = clock
        self._http = HttpClient(f"{url}/api/data/{api_version}/", self._proof, timeout_s=timeout_s, client=client)

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
        sent = {**STANDARD, **(headers or {})}
        response = await self._http.call(source, method, path, headers=sent, content=body, is_write=method != "GET")
        reply = WebApiReply(response.status_code, response.headers, response.content)
        if not reply.is_success and self.refusal(reply, is_write=False).kind is ErrorKind.TOKEN:
            self._tokens.refuse(source, response.request.headers["Authorization"].removeprefix("Bearer "))
        return reply

    def refusal(self, reply: WebApiReply, *, is_write: bool) -> TargetError:
        """The error an answer stands for."""
        return refusal(reply, from_micros(self._clock.now_us()), is_write=is_write)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _proof(self, source: str, client: httpx.AsyncClient) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {await self._tokens.get(source)}"}
