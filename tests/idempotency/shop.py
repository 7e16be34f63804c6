"""A small shop whose endpoints count what they do: the application that the tests of the middleware guard."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

from penstock.idempotency import Idempotency, IdempotencyMiddleware, idempotent


def caller(scope: Any) -> tuple[str, ...]:
    """Tenant and principal, as a header says; real applications ask the credential."""
    headers = dict(scope["headers"])
    return tuple(headers.get(b"x-caller", b"acme/ana").decode().split("/"))


@dataclass
class Shop:
    """What happened, and what shall happen next."""

    effects: Counter[str] = field(default_factory=Counter)
    statuses: list[int] = field(default_factory=list)  # of the next answers; then 201
    is_held: bool = False
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    told: Counter[str] = field(default_factory=Counter)

    async def act(self, what: str) -> int:
        """An effect, and the status of its answer."""
        self.effects[what] += 1
        if self.is_held:
            self.reached.set()
            await self.go_on.wait()
        return self.statuses.pop(0) if self.statuses else 201


def application(shop: Shop, keys: Idempotency | str | Callable[[], Idempotency], **options: Any) -> FastAPI:
    """The shop behind the middleware."""
    app = FastAPI()
    app.add_middleware(
        IdempotencyMiddleware, keys=keys, caller=caller, observe=lambda name: shop.told.update([name]), **options
    )

    @app.post("/orders")
    @idempotent(required=True)
    async def order(request: Request) -> Response:
        body = await request.body()
        status = await shop.act("order")
        number = shop.effects["order"]
        if status == 599:
            raise RuntimeError("the handler broke")
        if status >= 400:
            raise HTTPException(status, "refused")
        headers = {"Location": f"/orders/{number}", "X-Number": str(number), "Set-Cookie": "session=1"}
        return Response(b"order %d: " % number + body, status, headers, "text/plain")

    @app.post("/orders/{number}/pay")
    @idempotent()
    async def pay(number: int, currency: str = "EUR") -> dict[str, Any]:
        await shop.act("pay")
        return {"paid": number, "currency": currency, "number": shop.effects["pay"]}

    @app.post("/files")
    @idempotent()
    async def upload(request: Request) -> dict[str, Any]:
        await shop.act("upload")
        pieces = [len(piece) async for piece in request.stream()]
        return {"bytes": sum(pieces), "most": max(pieces), "number": shop.effects["upload"]}

    @app.post("/again")
    @idempotent(may_run_again=True)
    async def again(request: Request) -> dict[str, Any]:
        await shop.act("again")
        claim = request.scope["penstock.idempotency"]
        return {"attempt": claim.attempt, "effectKey": claim.effect_key}

    @app.post("/report")
    @idempotent()
    async def report(size: int = 10, kind: str = "text/plain") -> Response:
        await shop.act("report")

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(size):
                yield b"x" * 1000

        return StreamingResponse(pieces(), 200, {"Location": "/reports/1"}, kind)

    @app.post("/unmarked")
    async def unmarked() -> dict[str, int]:
        await shop.act("unmarked")
        return {"number": shop.effects["unmarked"]}

    return app


@asynccontextmanager
async def client_of(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client that calls the application in this process."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield client


def seen(response: httpx.Response) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """All of an answer but the mark of a replay."""
    headers = [(name, value) for name, value in response.headers.raw if name != b"idempotent-replayed"]
    return response.status_code, headers, response.content
