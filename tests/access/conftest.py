"""What tests of access share: an engine on a manual clock, and a second process on the same database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.testing import Engine, engine


@pytest.fixture
async def e(database_url: str, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Engine]:
    """An engine without operations."""
    async with engine([], url=database_url, tmp_path=tmp_path, clock=clock) as made:
        yield made


@pytest.fixture
async def other(database_url: str, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Engine]:
    """Another process on the same database, as far as its caches go."""
    async with engine([], url=database_url, tmp_path=tmp_path, clock=clock) as made:
        yield made
