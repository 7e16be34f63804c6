"""Which operation is meant by an id, or by the beginning of one."""

from __future__ import annotations

import pytest
from approvals import Calls, approvals, papers

from penstock.errors import NoSuchWait, NotFound
from penstock.operations.model import Operation
from penstock.testing import engine


def shared_beginning(made: list[Operation]) -> str:
    first = made[0].id
    return first[: next(n for n in range(36) if len({one.id[: n + 1] for one in made}) > 1)]


@pytest.fixture
async def e(database_url, tmp_path):
    async with engine([approvals(Calls())], url=database_url, tmp_path=tmp_path) as made:
        yield made


async def test_the_beginning_of_an_id_is_enough_when_it_is_the_only_one(e):
    made = await e.create("approvals", papers(1))
    assert (await e.operations.get(made.id[:8])).id == made.id


async def test_a_beginning_that_several_ids_have_is_refused_with_what_they_are(e):
    made = [await e.create("approvals", papers(1)) for _ in range(2)]  # no time passes: they begin alike
    beginning = shared_beginning(made)
    with pytest.raises(NotFound) as refused:
        await e.operations.get(beginning)
    first, *lines = str(refused.value).splitlines()
    assert first == f"several operations have ids that begin with {beginning!r}; give more of it:"
    created = f"{made[0].created_at:%Y-%m-%d %H:%M:%S} UTC"
    expected = {f"  {one.id}  approvals  Pending  created {created}" for one in made}
    assert set(lines) == expected
    with pytest.raises(NoSuchWait, match="several operations"):
        await e.penstock.signals.complete(beginning, "paper-p1")


async def test_of_very_many_ids_with_one_beginning_some_are_listed(e):
    made = [await e.create("approvals", papers(1)) for _ in range(12)]
    with pytest.raises(NotFound) as refused:
        await e.operations.get(shared_beginning(made))
    assert len(str(refused.value).splitlines()) == 12
    assert str(refused.value).endswith("  and others")


async def test_a_beginning_that_is_too_short_says_how_long_it_must_be(e):
    made = await e.create("approvals", papers(1))
    with pytest.raises(NotFound, match="the beginning of an id has 8 characters or more"):
        await e.operations.get(made.id[:7])
