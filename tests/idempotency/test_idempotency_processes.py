"""A short campaign on each store: racing clients, servers that are killed. `tests.torture.idempotency` is longer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from torture.idempotency import Wanted, campaign, prepare


@pytest.mark.covers("I-34", "I-35", "I-36", "I-42")
def test_every_key_has_one_effect_and_one_answer_while_servers_are_killed(store_url: str, tmp_path: Path):
    asyncio.run(prepare(store_url))
    tally = asyncio.run(campaign(store_url, tmp_path, Wanted(duplicates=60, per_key=5, kills=3)))
    assert tally.findings == []
    assert tally.kills >= 1
    assert len(tally.answers) + len(tally.uncertain) >= 12
