"""Pools that share a quota with other processes keep to their part of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import Refuse, Remote, executor, in_virtual_time, numbered, trouble

from penstock.targets import (
    Answer,
    Batch,
    BulkExecutor,
    BulkOptions,
    ErrorKind,
    Outcome,
    RateLimit,
    RetryPolicy,
    Target,
    Verdict,
)
from penstock.targets.quotas import use_quotas
from penstock.targets.rules.limits import Share


class Board:
    """Who is here, as each process tells."""

    def __init__(self, members: int, rank: int, heard: dict[str, float]) -> None:
        self.members, self.rank, self.heard = members, rank, heard
        self.renewals = 0

    async def renew(self, remote: str, throttled_s: Mapping[str, float]) -> Mapping[str, Share]:
        self.renewals += 1
        now_s = asyncio.get_running_loop().time()
        for source, seconds in throttled_s.items():
            if seconds:
                self.heard[source] = now_s + seconds
        return {
            source: Share(self.rank, self.members, max(0.0, self.heard.get(source, 0.0) - now_s))
            for source in throttled_s
        }


def counted(remote: Remote) -> Remote:
    remote.quota = "remote"
    return remote


async def run(remote: Remote, board: Board | None, records: int) -> float:
    """One process of several: its own pool, and its own word on the board."""
    use_quotas(board)
    result = await executor(remote).create_multiple("account", numbered(records), BulkOptions(batch_size=1))
    assert result.is_success
    return result.duration_s


@in_virtual_time
async def test_two_processes_together_use_a_user_no_wider_than_one():
    remote = counted(Remote(width=5))
    heard: dict[str, float] = {}
    await asyncio.gather(*(run(remote, Board(2, rank, heard), 60) for rank in range(2)))
    assert remote.in_flight_max == {"ana": 5}


@in_virtual_time
async def test_a_declared_rate_is_shared():
    remote = counted(Remote(width=5))
    remote.rate_limit = RateLimit(10)
    took = await asyncio.gather(*(run(remote, Board(2, rank, {}), 50) for rank in range(2)))
    assert min(took) >= 9.9  # a hundred calls, ten a second


@in_virtual_time
async def test_a_throttle_of_one_process_is_kept_by_the_other():
    throttle = Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=60))
    one, two = counted(Remote(script={3: throttle})), counted(Remote(latency_s=1.0))
    heard: dict[str, float] = {}
    await asyncio.gather(run(one, Board(2, 0, heard), 20), run(two, Board(2, 1, heard), 40))
    paused = [call.at_s for call in two.calls if 15 < call.at_s - two.calls[0].at_s < 55]
    assert paused == []


@in_virtual_time
async def test_a_throttle_that_comes_while_the_quota_is_asked_about_is_told_at_once():
    class Slow(Board):
        """Answers its second question only after the throttle has come, with what it knew before."""

        def __init__(self) -> None:
            super().__init__(1, 0, {})
            self.told: list[tuple[float, float]] = []

        async def renew(self, remote: str, throttled_s: Mapping[str, float]) -> Mapping[str, Share]:
            self.told.append((asyncio.get_running_loop().time(), throttled_s["ana"]))
            await asyncio.sleep(0.6 if len(self.told) == 2 else 0)
            return {source: Share() for source in throttled_s}

    throttle = Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=30))
    board = Slow()
    await run(counted(Remote(width=1, latency_s=0.3, script={5: throttle})), board, 20)
    throttled_at_s = board.told[0][0] + 5 * 0.3
    assert board.told[1][0] < throttled_at_s < board.told[1][0] + 0.6
    assert board.told[2] == (pytest.approx(board.told[1][0] + 0.6), pytest.approx(29.9))


@pytest.mark.parametrize("policy", [None, RetryPolicy(retries_max=1)], ids=["", "with a policy"])
async def test_targets_of_one_quota_in_one_process_take_its_share_once(policy: RetryPolicy | None):
    in_flight = most = 0

    class Counting(Target):
        quota, width = "crm", 2

        async def send(self, batch: Batch, source: str) -> Answer:
            nonlocal in_flight, most
            in_flight += 1
            most = max(most, in_flight)
            for _ in range(5):
                await asyncio.sleep(0)
            in_flight -= 1
            return Answer([Verdict(Outcome.CREATED)] * len(batch))

    one, two = Counting(), Counting()
    executors = [BulkExecutor(one), BulkExecutor(two, policy=policy)]
    options = BulkOptions(batch_size=1)
    await asyncio.gather(*(used.create_multiple("account", numbered(20), options) for used in executors))
    assert most == 2


async def test_targets_of_one_quota_renew_their_own_tokens():
    class Renewing(Target):
        quota, width = "crm", 1
        is_stale = True

        async def send(self, batch: Batch, source: str) -> Answer:
            if self.is_stale:
                raise trouble(ErrorKind.TOKEN)
            return Answer([Verdict(Outcome.CREATED)] * len(batch))

        async def refresh(self, source: str) -> None:
            self.is_stale = False

    policy = RetryPolicy(wait_first_s=0, retries_max=1)
    executors = [BulkExecutor(Renewing(), policy=policy) for _ in range(2)]
    results = await asyncio.gather(*(used.create_multiple("account", numbered(1)) for used in executors))
    assert all(result.is_success for result in results)


async def test_targets_of_one_quota_in_two_threads_do_not_share_slots():
    class Plain(Target):
        quota = "crm"

        async def send(self, batch: Batch, source: str) -> Answer:
            return Answer([Verdict(Outcome.CREATED)] * len(batch))

    one, two = Plain(), Plain()
    for target in (one, two):
        await target.create_multiple("account", numbered(1))
    assert one.slot_pool is two.slot_pool
    await asyncio.to_thread(lambda: asyncio.run(_created(two)))
    assert one.slot_pool is not two.slot_pool


async def _created(target: Target) -> None:
    await target.create_multiple("account", numbered(1))


async def test_targets_that_declare_different_limits_keep_their_own():
    slow, fast = counted(Remote()), counted(Remote())
    slow.rate_limit = RateLimit(1)
    assert BulkExecutor(slow).pool is not BulkExecutor(fast).pool


@in_virtual_time
async def test_a_target_without_a_quota_says_nothing_to_others():
    board = Board(2, 0, {})
    await run(Remote(), board, 5)
    assert board.renewals == 0


@in_virtual_time
async def test_while_others_cannot_be_asked_the_last_share_holds(caplog: pytest.LogCaptureFixture):
    class Broken(Board):
        async def renew(self, remote: str, throttled_s: Mapping[str, float]) -> Mapping[str, Share]:
            raise OSError("the database is away")

    await run(counted(Remote()), Broken(2, 0, {}), 5)
    assert "cannot be shared at the moment" in caplog.text


@in_virtual_time
async def test_a_call_goes_on_though_who_keeps_the_quotas_has_ended():
    class Ended(Board):
        async def renew(self, remote: str, throttled_s: Mapping[str, float]) -> Mapping[str, Share]:
            asked = asyncio.get_running_loop().create_future()
            asked.cancel()  # as all that runs in an event loop is, when that loop ends
            return await asked

    async with asyncio.timeout(60):
        await run(counted(Remote()), Ended(2, 0, {}), 5)


@given(st.integers(1, 60), st.integers(1, 60))
def test_all_shares_together_are_the_whole(width: int, members: int):
    parts = [Share(rank, members).of(width) for rank in range(members)]
    assert sum(parts) == max(width, members)
    assert max(parts) - min(parts) <= 1
