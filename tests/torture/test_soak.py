"""A soak of compressed time, in small: what is created every day is removed every day, and nothing grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from .soak import growing, soak


@pytest.mark.databases("sqlite")
async def test_nothing_grows_under_a_constant_load(tmp_path: Path):
    days = [day async for day in soak(tmp_path, per_day=2, days=8, keep_days=3)]
    assert [day.tables["penstock_operation"] for day in days] == [2, *[4] * 7], "of three days"
    assert growing(days[3], days[7]) == []
    assert growing(days[0], days[3]), "it would be seen"
