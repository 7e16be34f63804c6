"""Files that were uploaded to be checked: whose they are, how many are kept, for how long, and who reads them."""

from __future__ import annotations

import asyncio
import io
import weakref

from patience import HANG_S

from penstock.access.model import Principal
from penstock.clock import Clock, Entropy, ManualClock
from penstock.dashboard import drafts as module
from penstock.dashboard.drafts import KEPT_EACH, KEPT_S, Draft, Drafts

ANA, BEN = Principal("ana", frozenset({"operate"})), Principal("ben", frozenset({"operate"}))


def made(clock: Clock | None = None, kept_s: float = KEPT_S) -> Drafts:
    return Drafts(clock or ManualClock(), Entropy(), kept_s=kept_s)


async def kept(drafts: Drafts, owner: Principal, content: bytes = b"a,b\n") -> Draft:
    return await drafts.keep(owner, "a.csv", io.BytesIO(content))


async def test_who_uploads_much_pushes_out_nobody_else():
    drafts = made()
    first = await kept(drafts, BEN)
    own = [await kept(drafts, ANA) for _ in range(KEPT_EACH + 20)]
    assert drafts.find(BEN, first.token) is first
    assert [each for each in own if drafts.find(ANA, each.token)] == own[-KEPT_EACH:]
    assert drafts.find(BEN, own[-1].token) is None


async def test_large_drafts_of_one_owner_make_room_for_newer_ones(monkeypatch):
    monkeypatch.setattr(module, "BYTES_EACH", 100)
    drafts = made()
    small, large, huge = [await kept(drafts, ANA, b"x" * size) for size in (30, 70, 500)]
    assert drafts.find(ANA, huge.token) is huge
    assert drafts.find(ANA, large.token) is None
    assert drafts.find(ANA, small.token) is None


async def test_a_draft_goes_when_its_time_is_over_also_if_nobody_comes():
    drafts = made(kept_s=0.0)
    gone = asyncio.Event()
    weakref.finalize(await kept(drafts, ANA), gone.set)
    async with asyncio.timeout(HANG_S):
        await gone.wait()


async def test_a_draft_is_not_found_after_half_an_hour():
    clock = ManualClock()
    drafts = made(clock)
    draft = await kept(drafts, ANA)
    clock.advance(KEPT_S)
    assert drafts.find(ANA, draft.token) is None


async def test_readers_of_a_draft_do_not_disturb_each_other_and_read_on_after_it_was_let_go():
    drafts = made()
    content = bytes(range(256)) * 1000
    draft = await kept(drafts, ANA, content)
    one, two = draft.open(), draft.open()
    assert one.read(1000) == content[:1000]
    assert two.read() == content
    drafts.drop(draft.token)
    assert one.read() == content[1000:]
    assert (one.seek(-3, io.SEEK_END), one.read()) == (len(content) - 3, content[-3:])


async def test_the_file_of_a_draft_is_closed_when_nobody_has_it_any_more():
    drafts = made()
    draft = await kept(drafts, ANA)
    file, reader, token = draft.file, draft.open(), draft.token
    del draft
    drafts.drop(token)
    assert not file.closed
    del reader
    assert file.closed


async def test_a_mounted_application_that_is_gone_leaves_no_files():
    drafts = made()
    file = (await kept(drafts, ANA)).file
    del drafts
    assert file.closed
