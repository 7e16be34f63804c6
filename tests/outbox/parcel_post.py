"""An operation for tests of deliveries: parcels, of which those without weight fail."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel
from receivers import Receiver

from penstock import Context, Pipeline, StepFailed, operation, step
from penstock.secret_keys import new_key
from penstock.settings import Settings
from penstock.testing import Engine, engine

LOOPBACK = "127.0.0.0/8"


class Parcel(BaseModel):
    name: str
    weight: int = 1


@operation("send-parcels")
class SendParcels(Pipeline[Parcel]):
    @step
    async def send(self, parcel: Parcel, ctx: Context) -> None:
        if not parcel.weight:
            raise StepFailed("it weighs nothing")


@asynccontextmanager
async def post_office(
    url: str,
    folder: Path,
    *operations: object,
    handlers: Mapping[str, object] = MappingProxyType({}),
    **settings: Any,
) -> AsyncIterator[Engine]:
    given = {"secret_key": new_key(), "webhook_networks": LOOPBACK, "webhook_timeout_s": 60, **settings}
    placed: dict[str, Any] = {"url": url, "tmp_path": folder, "settings": Settings.model_validate(given)}
    async with engine(operations or [SendParcels], **placed, handlers=handlers) as opened:
        yield opened


async def sent(e: Engine, *parcels: dict[str, Any], of: object = SendParcels, **given: Any) -> str:
    """The id of an operation over these parcels that has ended."""
    return (await e.run(of, list(parcels or ({"name": "a"},)), **given)).id


def told(hook: Receiver) -> list[dict[str, Any]]:
    return [json.loads(request.body) for request in hook.requests]


def moves(hook: Receiver, operation: str | None = None) -> list[str]:
    return [event["data"]["event"] for event in told(hook) if operation in (None, event["subject"])]
