"""Lists of instances: every filter gives what it says, page by page, whichever index the database goes by."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from orders import opened, text

from penstock.clock import ManualClock
from penstock.lifecycles import InstanceFlag, Lifecycles
from penstock.lifecycles.lists import MERGED_MAX, flag_values

ACTIVE, SUSPENDED, COMPLETED = InstanceFlag.ACTIVE, InstanceFlag.SUSPENDED, InstanceFlag.COMPLETED
NONE = InstanceFlag.NONE
SECOND = {"definition": "order", "version": "2.0.0"}


@pytest.fixture
async def lifecycles(database_url: str, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Lifecycles]:
    """Twenty instances of two versions, in several states and with several flags; and some of another tenant."""
    async with opened(database_url, tmp_path, clock) as made:
        found = made.lifecycles
        for version in ("1.0.0", "2.0.0"):
            await found.import_text(text(definition={"name": "Order", "version": version}))
            await found.start_many("order", (f"{version} {n}" for n in range(10)))
        guids = [each.guid for each in (await found.instances(limit=100)).items]
        await found.trigger_many(guids[::3], "pay")
        await found.trigger_many(guids[1::5], "lose")
        for guid in guids[::4]:
            await found.suspend(guid)
        other = found.tenant("other")
        await other.import_text(text())
        await other.start_many("order", ["x", "y"])
        yield found


async def pages(lifecycles: Lifecycles, limit: int, **filters: Any) -> list[int]:
    found, cursor = [], None
    while True:
        page = await lifecycles.instances(**filters, limit=limit, cursor=cursor)
        assert len(page.items) <= limit
        found += [each.id for each in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return found


@pytest.mark.covers("LC-054", "LC-055", "LC-103", "LC-128", "LC-129", "I-33")
async def test_each_filter_gives_what_it_says_in_the_order_of_starts(lifecycles: Lifecycles):
    everything = (await lifecycles.instances(limit=100)).items
    assert len(everything) == 20
    wanted: list[tuple[dict[str, Any], Any]] = [
        ({"state": "paid"}, lambda i: i.state == "Paid"),
        ({"state": "lost", **SECOND}, lambda i: (i.state, i.version) == ("Lost", 20000)),
        ({"last_event": "pay"}, lambda i: i.last_event == "pay"),
        ({"definition": "order", "version": "1.0.0"}, lambda i: i.version == 10000),
        ({"definition": "order"}, lambda i: True),
        ({"all_of": ACTIVE | SUSPENDED}, lambda i: ACTIVE in i.flags and SUSPENDED in i.flags),
        ({"any_of": SUSPENDED | COMPLETED}, lambda i: bool(i.flags & (SUSPENDED | COMPLETED))),
        ({"none_of": SUSPENDED | COMPLETED}, lambda i: not i.flags & (SUSPENDED | COMPLETED)),
        ({"none_of": SUSPENDED, "state": "New"}, lambda i: SUSPENDED not in i.flags and i.state == "New"),
        ({"all_of": SUSPENDED, **SECOND}, lambda i: SUSPENDED in i.flags and i.version == 20000),
        ({"reference": "2.0.0 3", "none_of": COMPLETED}, lambda i: i.reference == "2.0.0 3"),
        ({"state": "nowhere"}, lambda i: False),
        ({"all_of": SUSPENDED, "none_of": SUSPENDED}, lambda i: False),
    ]  # fmt: skip
    for filters, fits in wanted:
        expected = [each.id for each in everything if fits(each)]
        for limit in (1, 3, 100):
            assert await pages(lifecycles, limit, **filters) == expected, filters
        if not {"state", "last_event", "reference"} & filters.keys():
            assert await lifecycles.count(**filters) == len(expected), filters


def test_the_values_that_fit_are_those_whose_bits_do():
    assert flag_values(NONE, NONE, NONE) == list(range(32))
    assert flag_values(ACTIVE, NONE, SUSPENDED | COMPLETED | InstanceFlag.FAILED) == [1, 17]
    assert len(flag_values(NONE, SUSPENDED | COMPLETED, NONE)) == 24
    assert len(flag_values(NONE, NONE, NONE)) <= MERGED_MAX
