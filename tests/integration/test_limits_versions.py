"""Two releases of an operation at once: the workers of each share its limits among themselves."""

from __future__ import annotations

import asyncio
from collections import Counter

from approvals import clean
from patience import HANG_S
from several import Item, Witness, engines, items, shares_of
from test_limits_workers import ends, look, pass_time, units, until_later, working

from penstock import Context, Pipeline, operation, step


class Release:
    """The code of one version, the calls it makes, by operation, and who is inside of its limited step."""

    def __init__(self, version: int) -> None:
        self.witness, self.calls = Witness(), Counter[str]()
        mine = self

        @operation("limited", version=version, max_row_concurrency=8)
        class Limited(Pipeline[Item]):
            @step(concurrency=2)
            async def call(self, row: Item, ctx: Context) -> None:
                mine.calls[ctx.operation_id] += 1
                await mine.witness(row.id)

        self.kind = Limited


async def test_workers_of_two_releases_share_the_limit_of_a_step_with_those_of_their_own(database_url, tmp_path):
    one, two = Release(1), Release(2)
    releases = [[one.kind], [two.kind], [one.kind], [two.kind]]
    async with engines(*releases, url=database_url, folder=tmp_path) as them:
        old, new = them[::2], them[1::2]
        first, second = await old[0].create(one.kind, items(24)), await new[0].create(two.kind, items(24))
        async with asyncio.timeout(HANG_S), working(*them):
            for made, release, workers in ((first, one, old), (second, two, new)):
                while units(shares := await shares_of(them[0], made)) != [1, 1]:
                    release.witness.let_go()
                    await pass_time(1, *them)
                    await look(*them)
                assert set(shares) == {e.worker.lease.id for e in workers}
            await until_later(lambda: min(len(one.witness.inside), len(two.witness.inside)) >= 2, *them)
        one.witness.open()
        two.witness.open()
        for made, release in ((first, one), (second, two)):
            done = await ends(made, *them)
            assert (done.status, done.successful_rows, release.witness.most) == ("Completed", 24, 2)
            assert release.calls == {made.id: 24}
        assert await clean(them[0]) == []
