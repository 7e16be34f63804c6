"""An engine on a manual clock that may send to loopback, and a receiver there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from parcel_post import post_office
from receivers import Receiver, receiver

from penstock.testing import Engine


@pytest.fixture
async def hook() -> AsyncIterator[Receiver]:
    async with receiver() as made:
        yield made


@pytest.fixture
async def e(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    async with post_office(database_url, tmp_path) as made:
        yield made
