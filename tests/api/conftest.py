"""An API over an engine on which nothing happens by itself, and clients of it that need no network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from parcel_service import Parcels

from penstock.access.model import Principal
from penstock.api import Authenticator, Trusted, create_app
from penstock.testing import Engine, engine

ANA = Principal("ana", frozenset({"admin"}))
EVERYBODY_IS_ANA = Trusted(ANA)


@pytest.fixture
async def works(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    """An engine with the parcels' operation."""
    async with engine([Parcels], url=database_url, tmp_path=tmp_path) as opened:
        yield opened


Connect = Callable[..., httpx.AsyncClient]


@pytest.fixture
async def connect(works: Engine) -> AsyncIterator[Connect]:
    """Makes clients; everybody is `ana` unless another access is given."""
    made: list[httpx.AsyncClient] = []

    def client(access: Authenticator | None = EVERYBODY_IS_ANA, **options: Any) -> httpx.AsyncClient:
        app = create_app(works.penstock, access=access, **options)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        made.append(httpx.AsyncClient(transport=transport, base_url="http://penstock.test"))
        return made[-1]

    yield client
    for each in made:
        await each.aclose()


@pytest.fixture
def api(connect: Connect) -> httpx.AsyncClient:
    """A client that may do everything."""
    return connect()
