"""One HTTP call to the Web API: its headers, the token of its source, and what the answer says."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from penstock.clock import Clock, from_micros
from penstock.targets.dataverse.error_mapping import WebApiReply, refusal
from penstock.targets.http.auth import RenewedToken
from penstock.targets.http.client import HttpClient, new_client
from penstock.targets.model import ErrorKind, TargetError

if TYPE_CHECKING:
    import httpx

__all__ = ["TOTAL_S", "AccessToken", "Credential", "Tokens", "WebApi", "default_client"]

WRITE_S = 60.0
READ_S = 180.0  # the platform itself gives up after two minutes
TOTAL_S = 300.0
EARLY_S = 300.0
UNREACHED = frozenset({"ServiceRequestError", "ServiceResponseError"})
"""What azure-core, which is not needed here, raises when nobody answers."""
ENTRA_CODE = re.compile(r"\bAADSTS\d+\b")
STANDARD = {
    "Accept": "application/json",
    "OData-Version": "4.0",
    "OData-MaxVersion": "4.0",
    "If-None-Match": "null",
}


def default_client() -> httpx.AsyncClient:
    """A client whose limits are the executor's widths, not its own."""
    return new_client(read=READ_S, write=WRITE_S)


class AccessToken(Protocol):
    """What a credential gives: the token and when it expires, in seconds since 1970."""

    @property
    def token(self) -> str: ...
    @property
    def expires_on(self) -> int: ...


class Credential(Protocol):
    """Anything like the credentials of azure-identity, of either kind: `get_token` may block or be awaited."""

    def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken | Awaitable[AccessToken]: ...


class Tokens:
    """The current token of every source."""

    def __init__(self, credentials: Mapping[str, Credential], scope: str, clock: Clock) -> None:
        self._credentials = credentials
        self._scope = scope
        self._clock = clock
        self._held = {source: RenewedToken(early_s=EARLY_S) for source in credentials}

    async def get(self, source: str) -> str:
        """A token that is good for some minutes; whoever asks while it is fetched waits for the same one."""
        return await self._held[source].get(self._clock, lambda: self._fetch(source))

    def refuse(self, source: str, token: str) -> None:
        """The platform refused this token: drop it, unless another has replaced it since."""
        self._held[source].refuse(token)

    async def _fetch(self, source: str) -> tuple[str, float]:
        asked_at_s = self._clock.now_us() / 1e6
        try:
            given = await _ask(self._credentials[source], self._scope)
            return given.token, given.expires_on - asked_at_s
        except Exception as error:
            # What a credential says may hold its secret, so only its kind and the identity platform's code are kept.
            code = ENTRA_CODE.search(str(error))
            reason = f"{type(error).__name__} {code[0]}" if code else type(error).__name__
            names = {base.__name__ for base in type(error).__mro__}
            kind = ErrorKind.CONNECTION if isinstance(error, OSError) or names & UNREACHED else ErrorKind.TOKEN
            failed = TargetError(f"the credential {source!r} gave no token: {reason}", kind=kind, code=code and code[0])
        raise failed


async def _ask(credential: Credential, scope: str) -> AccessToken:
    """Ask on a thread, since most credentials block; those that do not give something to await."""
    if inspect.iscoroutinefunction(credential.get_token):
        answer: AccessToken = await credential.get_token(scope)
        return answer
    given = await asyncio.to_thread(credential.get_token, scope)
    return await given if inspect.isawaitable(given) else given


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
            # It is dropped at once, so that the target has nothing left to refresh.
            self._tokens.refuse(source, response.request.headers["Authorization"].removeprefix("Bearer "))
        return reply

    def refusal(self, reply: WebApiReply, *, is_write: bool) -> TargetError:
        return refusal(reply, from_micros(self._clock.now_us()), is_write=is_write)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _proof(self, source: str, client: httpx.AsyncClient) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {await self._tokens.get(source)}"}
