r"""A FastAPI application with the idempotency middleware alone: nothing else of Penstock is used.

Start it with `uvicorn idempotent_orders:app --app-dir examples` and send an order twice:

    curl -i localhost:8000/orders -H 'X-User: ana' -H 'Idempotency-Key: "k-1"' \
        -H 'Content-Type: application/json' -d '{"article": "anvil", "quantity": 2}'

The second answer has the same bytes, and `Idempotent-Replayed: true`. Orders and keys are in `orders.db`.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import MutableMapping
from contextlib import closing
from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, Field

from penstock.idempotency import Claim, IdempotencyMiddleware, idempotent

FILE = os.environ.get("ORDERS_DB", "orders.db")
happenings: Counter[str] = Counter()


class Order(BaseModel):
    article: str
    quantity: int = Field(gt=0)


def caller(scope: MutableMapping[str, Any]) -> str:
    """Who sends a request. A real application asks what its authentication has found."""
    return dict(scope["headers"]).get(b"x-user", b"").decode("latin-1")


with closing(sqlite3.connect(FILE)) as file, file:
    file.execute("CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, article TEXT, quantity INTEGER)")

app = FastAPI(title="Orders")
app.add_middleware(
    IdempotencyMiddleware,
    keys=f"sqlite:///{FILE}",
    caller=caller,
    observe=lambda happening: happenings.update([happening]),
)


@app.post("/orders", status_code=201)
@idempotent(required=True, may_run_again=True)
async def order(order: Order, request: Request) -> dict[str, Any]:
    """The order and the answer to it are committed together."""
    claim: Claim = request.scope["penstock.idempotency"]
    async with claim.transaction() as tx:
        added = await tx.execute(
            "INSERT INTO orders (article, quantity) VALUES (:article, :quantity) RETURNING number", order.model_dump()
        )
        number = added.scalar_one()
    return {"number": number, **order.model_dump()}


@app.get("/orders")
async def orders() -> list[dict[str, Any]]:
    """All orders."""
    with closing(sqlite3.connect(FILE)) as file:
        file.row_factory = sqlite3.Row
        return [dict(row) for row in file.execute("SELECT * FROM orders ORDER BY number")]


@app.get("/metrics")
async def metrics() -> dict[str, int]:
    """What happened to keys since the start: claimed, completed, replayed, in_flight, mismatch and so on."""
    return dict(happenings)
