"""A short campaign on each store: racing clients, servers that are killed. `tests.torture.idempotency` is longer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from torture.idempotency import Tally, Wanted, campaign, judge, prepare


@pytest.mark.covers("I-34", "I-35", "I-36", "I-42")
def test_every_key_has_one_effect_and_one_answer_while_servers_are_killed(store_url: str, tmp_path: Path):
    asyncio.run(prepare(store_url))
    tally = asyncio.run(campaign(store_url, tmp_path, Wanted(duplicates=60, per_key=5, kills=3)))
    assert tally.findings == []
    assert tally.kills >= 1
    assert len(tally.answers) + len(tally.uncertain) >= 12


CALL, TRANSFER = ("/calls", "key-1"), ("/transfers", "key-1")
TOKEN, OTHER = "a" * 32, "b" * 32
ANSWER = TOKEN.encode() + b" and more"


@pytest.mark.parametrize(
    ("which", "tokens", "answers", "is_uncertain", "found"),
    [
        (CALL, [TOKEN], {ANSWER}, False, ""),
        (CALL, [TOKEN], set(), True, ""),
        (CALL, [], set(), True, ""),
        (CALL, [TOKEN], {ANSWER}, True, ""),
        (TRANSFER, [TOKEN], {ANSWER}, False, ""),
        (CALL, [TOKEN, OTHER], {ANSWER}, False, "had 2 effects"),
        (CALL, [TOKEN, TOKEN], set(), True, "had 2 effects"),
        (CALL, [TOKEN], {ANSWER, ANSWER + b"!"}, False, "answered in 2 ways"),
        (CALL, [], {ANSWER}, False, "an effect that is not there"),
        (TRANSFER, [OTHER], {ANSWER}, False, "an effect that is not there"),
        (TRANSFER, [TOKEN], {ANSWER}, True, "left in doubt"),
        (TRANSFER, [], set(), False, "left in doubt"),
    ],
)
def test_the_campaign_sees_what_is_amiss(
    which: tuple[str, str], tokens: list[str], answers: set[bytes], is_uncertain: bool, found: str
):
    tally = Tally()
    tally.answers[which] |= answers
    tally.uncertain |= {which} if is_uncertain else set()
    judge({which: tokens}, [which], tally)
    assert bool(tally.findings) == bool(found)
    assert found in " ".join(tally.findings)
