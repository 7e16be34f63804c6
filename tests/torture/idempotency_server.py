"""The server of the idempotency campaign: two endpoints whose effects are counted elsewhere.

`/transfers` puts its effect into the transaction of its kept answer; `/calls` has one outside, a line in a file. Their
answers are made of chance, so that a second execution would not give the same bytes.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
from uuid import uuid4

import uvicorn
from fastapi import FastAPI, Request, Response

from penstock.failpoints import arm_from_environment
from penstock.idempotency import Idempotency, IdempotencyMiddleware, idempotent, one_caller

LEASE_S = 2.0
WORK_PARTS = 4  # of a second, at most
ADD = "INSERT INTO campaign_effects (kept_key, token) VALUES (:kept_key, :token)"


def application(keys: Idempotency, effects: int) -> FastAPI:
    """The campaign's application; `effects` is the file of outside effects, open for appending."""
    app = FastAPI()
    app.add_middleware(IdempotencyMiddleware, keys=keys, caller=one_caller)

    def answer(token: str) -> Response:
        return Response(token.encode() + random.randbytes(random.choice((0, 100, 20_000))), 201)

    @app.post("/transfers")
    @idempotent(required=True, may_run_again=True)
    async def transfer(request: Request) -> Response:
        claim, token = request.scope["penstock.idempotency"], uuid4().hex
        await asyncio.sleep(random.random() / WORK_PARTS)
        async with claim.transaction() as tx:
            await tx.execute(ADD, {"kept_key": claim.key, "token": token})
        return answer(token)

    @app.post("/calls")
    @idempotent(required=True)
    async def call(request: Request) -> Response:
        claim, token = request.scope["penstock.idempotency"], uuid4().hex
        await asyncio.sleep(random.random() / WORK_PARTS)
        os.write(effects, f"{claim.key} {token}\n".encode())
        await asyncio.sleep(random.random() / WORK_PARTS)
        return answer(token)

    return app


async def serve(url: str, listener: int, file: str) -> None:
    """Answer on a listening socket that was handed down, until killed."""
    effects = os.open(file, os.O_WRONLY | os.O_APPEND)
    async with Idempotency.open(url, lease=LEASE_S) as keys:
        config = uvicorn.Config(application(keys, effects), log_level="critical", lifespan="off")
        await uvicorn.Server(config).serve(sockets=[socket.socket(fileno=listener)])


if __name__ == "__main__":
    arm_from_environment()
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
