"""The example application works as its text says."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from shop import client_of, seen

EXAMPLE = Path(__file__).parents[2] / "examples" / "idempotent_orders.py"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("ORDERS_DB", str(tmp_path / "orders.db"))
    spec = importlib.util.spec_from_file_location("idempotent_orders", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "idempotent_orders", module)  # its annotations are looked up there
    spec.loader.exec_module(module)
    return module


async def test_an_order_that_is_sent_twice_is_placed_once(example: Any):
    sent, coming = asyncio.Queue[Any](), asyncio.Queue[Any]()
    coming.put_nowait({"type": "lifespan.startup"})
    life = asyncio.create_task(example.app({"type": "lifespan", "state": {}}, coming.get, sent.put))
    assert (await sent.get())["type"] == "lifespan.startup.complete"
    headers = {"Idempotency-Key": '"k-1"', "X-User": "ana"}
    order = {"article": "anvil", "quantity": 2}
    async with client_of(example.app) as client:
        first = await client.post("/orders", json=order, headers=headers)
        again = await client.post("/orders", json=order, headers=headers)
        assert (first.status_code, first.json()) == (201, {"number": 1, **order})
        assert seen(again) == seen(first)
        assert again.headers["idempotent-replayed"] == "true"
        wrong = await client.post(
            "/orders", json={"article": "awl", "quantity": 0}, headers={**headers, "X-User": "bob"}
        )
        assert wrong.status_code == 422
        assert (await client.get("/orders")).json() == [{"number": 1, **order}]
        assert (await client.get("/metrics")).json() == {"claimed": 2, "completed": 2, "replayed": 1}
    coming.put_nowait({"type": "lifespan.shutdown"})
    assert (await sent.get())["type"] == "lifespan.shutdown.complete"
    await life
