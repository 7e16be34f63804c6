"""A bare client for looking at the wire: it adds the usual headers and a token, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from .server import DataverseServer
from .wire import API

__all__ = ["Caller", "change_set", "part"]

HEADERS = {
    "Accept": "application/json",
    "OData-Version": "4.0",
    "OData-MaxVersion": "4.0",
    "If-None-Match": "null",
    "Content-Type": "application/json",
}


class Caller:
    """Sends single requests as one user of a remote."""

    def __init__(self, server: DataverseServer, user: str = "app-1") -> None:
        self._server = server
        self._user = user
        # Plain http needs no certificates, and loading them is most of the cost of a client.
        self._client = httpx.AsyncClient(base_url=server.url + API, timeout=300, verify=False)
        self.token = server.credential(user).get_token(f"{server.url}/.default").token

    async def __aenter__(self) -> Caller:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """One request; cookies are forgotten unless passed as a header."""
        self._client.cookies.clear()
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        sent = {**HEADERS, "Authorization": f"Bearer {self.token}", **(headers or {})}
        return await self._client.request(method, path, content=content, headers=sent, params=query)

    async def act(
        self,
        entity_set: str,
        action: str,
        rows: Sequence[Mapping[str, Any]],
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """A bulk action; the type of each target is that of the table."""
        table = next(table for table in self._server.tables if table.entity_set == entity_set)
        targets = [{"@odata.type": f"Microsoft.Dynamics.CRM.{table.name}", **row} for row in rows]
        return await self.send("POST", f"{entity_set}/Microsoft.Dynamics.CRM.{action}", {"Targets": targets}, headers)

    async def batch(self, *parts: bytes, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """A `$batch` of parts made with `part`."""
        kind = {"Content-Type": 'multipart/mixed; boundary="batch_1"'}
        return await self.send("POST", "$batch", b"".join(parts) + b"--batch_1--\r\n", {**kind, **(headers or {})})


def part(
    method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, content_id: int | None = None
) -> bytes:
    """One part of a batch; with a content id it is one of the change set `set_1`."""
    mark = "batch_1" if content_id is None else "set_1"
    lines = [f"--{mark}", "Content-Type: application/http", "Content-Transfer-Encoding: binary"]
    if content_id is not None:
        lines.append(f"Content-ID: {content_id}")
    lines += ["", f"{method} {path} HTTP/1.1"]
    if body is not None:
        lines.append("Content-Type: application/json")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    lines += ["", json.dumps(body) if body is not None else ""]
    return "\r\n".join(lines).encode() + b"\r\n"


def change_set(*parts: bytes) -> bytes:
    """Parts with content ids as one change set of a batch."""
    head = b"--batch_1\r\nContent-Type: multipart/mixed; boundary=set_1\r\n\r\n"
    return head + b"".join(parts) + b"--set_1--\r\n\r\n"
