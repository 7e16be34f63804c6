"""Requests to a server: with a credential, sent again when an answer is lost, and errors as the engine raises them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx

from penstock.client.parsing import faults, retry
from penstock.clock import Entropy
from penstock.errors import (
    Conflict,
    FileRejected,
    Forbidden,
    InvalidInput,
    NotFound,
    PenstockError,
    Throttled,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from penstock.operations.retrying import NothingToRetry
from penstock.resources import PROBLEMS

__all__ = ["Transport", "path"]

ATTEMPTS = 4
PAUSE_S = 0.2
PAUSE_MAX_S = 5.0
TIMEOUT_S = 60.0
RETRY_S = 1  # where a server that is busy does not say
WRONG_PLACE = "give the URL of a Penstock server, as it is called without redirects"

_KINDS = {name: kind for kind, _, name, _ in PROBLEMS}
_BY_STATUS: dict[int, type[PenstockError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    429: Throttled,
}

Sleep = Callable[[float], Awaitable[None]]


def path(*parts: object) -> str:
    """A path of the API; each part is escaped."""
    return "/api/" + "/".join(quote(str(part), safe="") for part in parts)


class Transport:
    """Sends requests. Each change has a key, so that it is carried out once however often it has to be sent."""

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        client: httpx.AsyncClient | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._url, self._entropy, self._sleep = url.rstrip("/"), Entropy(), sleep
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._client = client or httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def get(self, path: str, **query: Any) -> Any:
        """The document of a resource."""
        return self._parsed(await self._sent("GET", path, {"params": _given(query)}))

    async def send(self, method: str, path: str, **content: Any) -> Any:
        """The document that a change is answered with."""
        content["headers"] = {"idempotency-key": f"{self._entropy.bits(128):032x}"}
        return self._parsed(await self._sent(method, path, content))

    def _parsed(self, answer: httpx.Response) -> Any:
        try:
            return answer.json()
        except ValueError:
            raise Unavailable(f"{self._url} answered with a page, not with JSON: {WRONG_PLACE}") from None

    @asynccontextmanager
    async def stream(self, path: str, **query: Any) -> AsyncIterator[httpx.Response]:
        """An answer that is read piece by piece."""
        try:
            async with self._client.stream(
                "GET", f"{self._url}{path}", params=_given(query), headers=self._headers
            ) as answer:
                if not answer.is_success:
                    await answer.aread()
                    raise _error(answer)
                yield answer
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    async def _sent(self, method: str, path: str, content: Mapping[str, Any]) -> httpx.Response:
        headers = {**self._headers, **content.get("headers", {})}
        for attempt in range(1, ATTEMPTS + 1):
            _rewind(content.get("files"))
            try:
                answer = await self._client.request(method, f"{self._url}{path}", **{**content, "headers": headers})
            except httpx.TransportError as error:
                if attempt == ATTEMPTS:
                    raise self._unreachable(error) from error
                await self._sleep(PAUSE_S * 2**attempt)
                continue
            if answer.is_success:
                return answer
            if attempt == ATTEMPTS or not _is_temporary(answer):
                raise _error(answer)
            await self._sleep(_pause_s(answer, attempt))
        raise AssertionError("an attempt is the last one")

    def _unreachable(self, error: httpx.TransportError) -> Unavailable:
        return Unavailable(f"{self._url} does not answer: {str(error) or type(error).__name__}")


def _given(query: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that are given, as a query spells them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in query.items()
        if value is not None
    }


def _rewind(files: Mapping[str, Any] | None) -> None:
    for _, file in (files or {}).values():
        if hasattr(file, "seek"):
            file.seek(0)


def _is_temporary(answer: httpx.Response) -> bool:
    """Whether the same request may fare better soon: the server is busy, or is still at it."""
    return answer.status_code in (429, 502, 503, 504) or _document(answer).get("code") == "idempotency-key-in-use"


def _pause_s(answer: httpx.Response, attempt: int) -> float:
    told_s = _told_s(answer)
    return min(PAUSE_S * 2**attempt if told_s is None else told_s, PAUSE_MAX_S)


def _told_s(answer: httpx.Response) -> int | None:
    """When to come again, as the server says."""
    told = answer.headers.get("retry-after", "")
    return int(told) if told.isascii() and told.isdecimal() else None


def _document(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _error(answer: httpx.Response) -> PenstockError:
    """The error that the server's engine raised, as far as its document tells."""
    if not answer.is_error:
        place = answer.headers.get("location", "nowhere")
        return Unavailable(f"{answer.url} leads to {place}, with status {answer.status_code}: {WRONG_PLACE}")
    document = _document(answer)
    told = str(document.get("detail") or f"the server answered {answer.status_code}")
    if "skippedReasons" in document:
        return NothingToRetry(told, retry(document))
    name = str(document.get("type", "")).rpartition(":")[2]
    other = Unavailable if answer.status_code >= 500 else InvalidInput
    kind = _KINDS.get(name) or _BY_STATUS.get(answer.status_code, other)
    # Made from its message alone: the facts that some kinds are made of stayed on the server.
    error = kind.__new__(kind)
    Exception.__init__(error, told)
    if isinstance(error, InvalidInput):
        error.faults = faults(document.get("faults", ()))
    if isinstance(error, FileRejected):
        error.code = str(document.get("code"))
    if isinstance(error, Throttled):
        error.retry_after_s = _told_s(answer) or RETRY_S
    return error
