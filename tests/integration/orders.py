"""The lifecycle of an order, for tests: a document that can be varied, and an engine that knows its guard."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from penstock import Penstock
from penstock.clock import Clock, ManualClock
from penstock.lifecycles import Deny, Guard, GuardContext
from penstock.lifecycles.model import Handler
from penstock.settings import Settings

STATES = [
    {"name": "New", "is_initial": True, "category": "business"},
    {"name": "Paid", "category": "business"},
    {"name": "Held", "category": "system"},
    {"name": "Shipped", "is_final": True},
    {"name": "Lost", "is_final": True, "category": "error"},
]
TRANSITIONS = [
    {"from": "New", "event": "pay", "to": "Paid"},
    {"from": "Paid", "event": "ship", "to": "Shipped", "guard": "in_stock", "flags": ["Critical"]},
    {"from": "Paid", "event": "hold", "to": "Held"},
    {"from": "Held", "event": "release", "to": "Paid"},
    {"from": "Held", "event": "remind", "to": "Held"},
    {"from": "New", "event": "lose", "to": "Lost"},
]


def document(**changes: Any) -> dict[str, Any]:
    """The order's document with other values for some of its keys; None removes one."""
    whole = {
        "environment": "Production",
        "definition": {"name": "Order", "version": "1.0.0", "description": "What becomes of an order"},
        "states": STATES,
        "transitions": TRANSITIONS,
    }
    return {key: value for key, value in {**whole, **changes}.items() if value is not None}


def text(**changes: Any) -> str:
    """The document as JSON."""
    return json.dumps(document(**changes), indent=2)


def in_stock(context: GuardContext) -> bool | Deny:
    """The order's guard."""
    return True if context.data.get("stock", 1) else Deny("nothing in stock")


GUARDS: Mapping[str, Guard] = {"in_stock": in_stock}


@asynccontextmanager
async def opened(
    url: str,
    tmp_path: Path,
    clock: Clock | None = None,
    guards: Mapping[str, Guard] = GUARDS,
    effects: Mapping[str, Handler] = MappingProxyType({}),
    **given: Any,
) -> AsyncIterator[Penstock]:
    """An engine on a clock that moves when told."""
    settings = Settings(database_url=url, storage_url=str(tmp_path / "files"), **given)
    clock = clock or ManualClock()
    async with Penstock.open(settings=settings, clock=clock, guards=guards, effects=effects) as penstock:
        yield penstock
