"""A remote that counts calls in sliding windows is driven at the rate it permits, and seldom has to say no."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping

import pytest
from dataverse.limits import Quota, Window
from dataverse.problems import LimitName, Problem, throttled
from scripted import LoopClock, Refuse, Remote, executor, in_virtual_time, numbered, trouble

from penstock.clock import Entropy
from penstock.targets import (
    Answer,
    Batch,
    BulkExecutor,
    BulkOptions,
    ErrorKind,
    Limit,
    Outcome,
    Pool,
    Target,
    TargetError,
    UniformVerdicts,
    Verdict,
)
from penstock.targets.quotas import use_quotas
from penstock.targets.rules.limits import Share
from penstock.targets.sql_quotas import LEASE_S

LIMITS = {"0x80072322": Limit.REQUESTS, "0x80072321": Limit.TIME, "0x80072326": Limit.CONCURRENCY}


class Metered(Target):
    """Answers everything, within the service protection limits of the platform."""

    name = "metered"

    def __init__(self, users: int, quota: Quota, *, latency_s: float = 0.02, width: int = 5) -> None:
        self.sources = [f"app-{n}" for n in range(users)]
        self.width = width
        self.windows = {user: Window(quota) for user in self.sources}
        self._latency_s = latency_s
        self._random = random.Random(users)
        self.admitted: list[float] = []
        self.refused: list[float] = []
        self.refused_users: Counter[str] = Counter()
        self.limits: Counter[Limit] = Counter()

    async def send(self, batch: Batch, source: str) -> Answer:
        loop = asyncio.get_running_loop()
        window, latency_s = self.windows[source], self._latency_s * (0.5 + self._random.random())
        problem = window.admit(loop.time())
        if problem is not None:
            self.refused.append(loop.time())
            self.refused_users[source] += 1
            self.limits[LIMITS[problem.code]] += 1
            raise TargetError(
                problem.message,
                kind=ErrorKind.THROTTLED,
                retry_after_s=float(problem.headers["Retry-After"]),
                limit=LIMITS[problem.code],
            )
        self.admitted.append(loop.time())
        await asyncio.sleep(latency_s)
        window.leave(loop.time(), latency_s)
        return Answer(UniformVerdicts(Verdict(Outcome.CREATED), len(batch)))

    def settled(self, from_s: float, to_s: float) -> tuple[float, float]:
        """Calls a second and the share of refusals, in a span since the first call."""
        start_s = self.admitted[0]
        admitted, refused = (
            sum(from_s <= at_s - start_s < to_s for at_s in times) for times in (self.admitted, self.refused)
        )
        return admitted / (to_s - from_s), refused / (admitted + refused)


async def drive(target: Metered, seconds: float, during: Callable[[float], None] = lambda _: None) -> None:
    """Send records without end, for so long; `during` is told the time."""
    loop = asyncio.get_running_loop()
    start_s = loop.time()

    def endless() -> Iterator[dict[str, int]]:
        while True:
            during(loop.time() - start_s)
            yield {"n": 1}

    executor = BulkExecutor(target, pool=Pool.of(target, clock=LoopClock(), entropy=Entropy(jitter=random.Random(1))))
    options = BulkOptions(batch_size=1, deadline_s=seconds, keep_ids=False)
    await executor.create_multiple("thing", endless(), options)


@pytest.mark.covers("BX-001", "BX-018", "BX-057")
@pytest.mark.parametrize("users", [1, 2, 4])
@pytest.mark.parametrize("window_s", [1, 10])
def test_with_every_user_the_permitted_rate_is_reached_and_less_than_one_call_in_a_hundred_refused(
    users: int, window_s: float
):
    @in_virtual_time
    async def reached() -> None:
        target = Metered(users, Quota(requests=round(10 * window_s), window_s=window_s))
        await drive(target, 200)
        rate, refused = target.settled(100, 200)
        assert rate >= 0.95 * 10 * users
        assert refused < 0.01

    reached()


class FixedWindow(Window):
    """Counts calls from one full multiple of the window to the next."""

    def _forget(self, now: float) -> None:
        begin_s = now - now % self.quota.window_s
        while self._starts and self._starts[0] < begin_s:
            self._starts.popleft()

    def _wait(self, now: float) -> tuple[float, LimitName]:
        is_full = len(self._starts) >= self.quota.requests
        return (self.quota.window_s - now % self.quota.window_s if is_full else 0), "requests"


@pytest.mark.covers("BX-057")
@pytest.mark.parametrize("window", [Window, FixedWindow])
@pytest.mark.parametrize("requests, window_s", [(5, 1), (10, 1), (25, 2), (50, 5), (100, 10), (200, 20)])
def test_in_the_first_minute_nearly_all_that_is_permitted_is_used(requests: int, window_s: float, window: type[Window]):
    @in_virtual_time
    async def used() -> None:
        quota = Quota(requests=requests, window_s=window_s)
        target = Metered(1, quota)
        target.windows = {"app-0": window(quota)}
        await drive(target, 60)
        assert len(target.admitted) >= 0.95 * requests * 60 / window_s
        assert len(target.refused) <= 6

    used()


@pytest.mark.covers("BX-057")
@pytest.mark.parametrize("window_s", [1, 5])
@pytest.mark.parametrize("width, latency_s", [(1, 0.005), (1, 0.02), (5, 0.1), (10, 0.1)])
def test_so_it_is_for_few_calls_at_once_and_for_slow_ones(window_s: float, width: int, latency_s: float):
    @in_virtual_time
    async def used() -> None:
        target = Metered(1, Quota(requests=round(20 * window_s), window_s=window_s), latency_s=latency_s, width=width)
        await drive(target, 60)
        assert len(target.admitted) >= 0.95 * 20 * 60
        assert len(target.refused) <= 6

    used()


@pytest.mark.covers("BX-001", "BX-057")
@pytest.mark.parametrize("users", [2, 4])
@pytest.mark.parametrize("latency_s", [0.02, 0.1])
def test_so_it_is_for_each_of_several_users(users: int, latency_s: float):
    @in_virtual_time
    async def used() -> None:
        target = Metered(users, Quota(requests=100, window_s=5), latency_s=latency_s)
        await drive(target, 60)
        assert len(target.admitted) >= 0.95 * users * 20 * 60
        assert max(target.refused_users[user] for user in target.sources) <= 6

    used()


@in_virtual_time
@pytest.mark.covers("BX-057")
async def test_a_short_load_ends_as_soon_as_the_window_permits():
    target = Metered(1, Quota(requests=50, window_s=5))
    executor = BulkExecutor(target, pool=Pool.of(target, clock=LoopClock(), entropy=Entropy(jitter=random.Random(1))))
    result = await executor.create_multiple("thing", numbered(400), BulkOptions(batch_size=1))
    assert result.duration_s <= 35 / 0.95  # 400 calls, 50 of them in every 5 s, the first at once
    assert len(target.refused) <= 2


@in_virtual_time
@pytest.mark.covers("BX-001", "BX-057")
async def test_the_limits_of_the_platform_are_used_to_the_full_from_the_start():
    target = Metered(1, Quota())
    await drive(target, 900)
    rate, refused = target.settled(0, 900)
    assert rate >= 0.98 * 20
    assert refused < 0.002


class Unnamed(Metered):
    """Does not say when it takes calls again, nor which limit was hit."""

    async def send(self, batch: Batch, source: str) -> Answer:
        try:
            return await super().send(batch, source)
        except TargetError as error:
            raise TargetError(error.message, kind=error.kind) from error


class Bucket(Window):
    """Holds so many tokens as a window takes calls; a call takes one, and they come back one by one."""

    def __init__(self, quota: Quota) -> None:
        super().__init__(quota)
        self._tokens, self._at_s = float(quota.requests), 0.0

    def admit(self, now: float) -> Problem | None:
        per_second = self.quota.requests / self.quota.window_s
        self._tokens = min(self.quota.requests, self._tokens + (now - self._at_s) * per_second)
        self._at_s = now
        if self._tokens < 1:
            return throttled("requests", (1 - self._tokens) / per_second)
        self._tokens -= 1
        return None


@pytest.mark.covers("BX-057")
@pytest.mark.parametrize("window", [Window, FixedWindow, Bucket])
@pytest.mark.parametrize("requests, window_s", [(10, 1), (100, 5), (20, 10)])
def test_a_remote_that_never_says_when_to_come_again_is_soon_driven_at_most_of_what_it_permits(
    requests: int, window_s: float, window: type[Window]
):
    @in_virtual_time
    async def used() -> None:
        quota = Quota(requests=requests, window_s=window_s)
        target = Unnamed(1, quota)
        target.windows = {"app-0": window(quota)}
        await drive(target, 900)
        assert target.settled(300, 900)[0] >= 0.8 * requests / window_s
        assert len(target.refused) <= 60

    used()


class Strict(Window):
    """Counts calls that it refused as well, and names a wait that is much too short."""

    def admit(self, now: float) -> Problem | None:
        self._forget(now)
        is_full = len(self._starts) >= self.quota.requests
        self._starts.append(now)
        return throttled("requests", 1) if is_full else None


@pytest.mark.covers("BX-057")
@pytest.mark.parametrize("requests, window_s, share", [(10, 10, 0.3), (60, 60, 0.5), (100, 60, 0.5)])
def test_a_remote_that_counts_refused_calls_and_names_too_short_a_wait_is_not_kept_full_of_them(
    requests: int, window_s: float, share: float
):
    @in_virtual_time
    async def used() -> None:
        quota = Quota(requests=requests, window_s=window_s)
        target = Metered(1, quota, width=4)
        target.windows = {"app-0": Strict(quota)}
        await drive(target, 600)
        assert target.settled(60, 600)[0] >= share * requests / window_s

    used()


class Members:
    """Who uses each quota at the moment, as the processes on one database tell each other."""

    def __init__(self) -> None:
        self.leases: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)


class Member:
    """One of those processes."""

    def __init__(self, name: str, members: Members) -> None:
        self._name, self._members = name, members

    async def renew(self, remote: str, throttled_s: Mapping[str, float]) -> Mapping[str, Share]:
        return {source: self._share(source, seconds) for source, seconds in throttled_s.items()}

    def _share(self, source: str, seconds: float) -> Share:
        now_s = asyncio.get_running_loop().time()
        leases = self._members.leases[source]
        leases[self._name] = (now_s + LEASE_S, now_s + seconds)
        here = sorted(name for name, (until_s, _) in leases.items() if until_s >= now_s)
        throttled_until_s = max((leases[name][1] for name in here if name != self._name), default=now_s)
        return Share(here.index(self._name), len(here), max(0.0, throttled_until_s - now_s))


@pytest.mark.covers("BX-057")
@pytest.mark.parametrize("latency_s, requests, window_s", [(0.02, 50, 5), (0.02, 100, 10), (0.1, 100, 10)])
def test_two_processes_use_a_quota_to_the_full_and_who_stays_takes_most_of_what_the_other_leaves(
    requests: int, window_s: float, latency_s: float
):
    @in_virtual_time
    async def used() -> None:
        target, members = Metered(1, Quota(requests=requests, window_s=window_s), latency_s=latency_s), Members()
        target.quota = "metered"

        async def process(name: str, seconds: float) -> None:
            use_quotas(Member(name, members))
            await drive(target, seconds)

        await asyncio.gather(process("one", 360), process("two", 120))
        rate, refused = target.settled(30, 120)
        assert rate >= 0.9 * requests / window_s
        assert refused < 0.02
        rate, refused = target.settled(180, 360)
        assert rate >= 0.7 * requests / window_s
        assert refused < 0.02

    used()


@pytest.mark.covers("BX-057")
@pytest.mark.parametrize("later_s", [0.3, 1.1, 1.7, 2.4, 3.1, 4.2, 30.3])
@pytest.mark.parametrize("latency_s, requests, window_s", [(0.1, 20, 1), (0.02, 50, 5), (0.1, 50, 5), (0.1, 100, 10)])
def test_two_processes_use_most_of_a_quota_whenever_the_second_comes(
    requests: int, window_s: float, latency_s: float, later_s: float
):
    """Neither comes back while the other is throttled: the remote would lengthen that for both, again and again."""

    @in_virtual_time
    async def used() -> None:
        target, members = Metered(1, Quota(requests=requests, window_s=window_s), latency_s=latency_s), Members()
        target.quota = "metered"

        async def process(name: str, later_s: float, seconds: float) -> None:
            use_quotas(Member(name, members))
            await asyncio.sleep(later_s)
            await drive(target, seconds)

        await asyncio.gather(process("one", 0, 360), process("two", later_s, 120))
        permitted = requests / window_s
        assert target.settled(30, 120)[0] >= 0.7 * permitted
        assert target.settled(180, 360)[0] >= 0.8 * permitted

    used()


@pytest.mark.covers("BX-057")
@pytest.mark.parametrize("later_s", [(0, 0), (0, 1.1), (0, 2.4), (0, 4.2), (0, 31.2), (0, 0.7, 2.9)])
@pytest.mark.parametrize("latency_s", [0.1, 0.5, 1, 2])
def test_several_processes_use_nearly_all_that_is_permitted_from_the_first_minute_on(
    latency_s: float, later_s: tuple[float, ...]
):
    """None learns the window from the part of it that the others left, nor from a throttle that they made longer."""

    @in_virtual_time
    async def used() -> None:
        width = max(5, round(25 * latency_s))
        target, members = Metered(1, Quota(requests=50, window_s=5), latency_s=latency_s, width=width), Members()
        target.quota = "metered"

        async def process(number: int, later_s: float) -> None:
            use_quotas(Member(f"{number}", members))
            await asyncio.sleep(later_s)
            await drive(target, 120 - later_s)

        await asyncio.gather(*(process(number, each_s) for number, each_s in enumerate(later_s)))
        assert target.settled(0, 60)[0] >= 0.85 * 10
        assert target.settled(30, 120)[0] >= 0.85 * 10
        assert len(target.refused) <= 60

    used()


@in_virtual_time
@pytest.mark.covers("BX-057")
async def test_a_limit_on_the_time_of_the_server_is_kept_as_well():
    target = Metered(1, Quota(execution_s=4, window_s=20))
    await drive(target, 300)
    rate, refused = target.settled(150, 300)
    assert set(target.limits) == {Limit.TIME}
    assert rate * 0.02 >= 0.95 * 4 / 20
    assert refused < 0.01


@in_virtual_time
@pytest.mark.covers("BX-057")
async def test_a_limit_that_is_raised_or_lowered_is_found_again():
    target = Metered(1, Quota(requests=10, window_s=1))

    def change(elapsed_s: float) -> None:
        permitted = 10 if elapsed_s < 100 else 20 if elapsed_s < 800 else 5
        target.windows["app-0"].quota = Quota(requests=permitted, window_s=1)

    await drive(target, 1200, change)
    assert target.settled(700, 800)[0] >= 0.9 * 20
    assert target.settled(1100, 1200)[0] >= 0.9 * 5


@in_virtual_time
@pytest.mark.covers("BX-057")
async def test_a_throttle_now_and_then_slows_nobody_down():
    target = Metered(1, Quota(), latency_s=0.1)

    def fill_now_and_then(elapsed_s: float) -> None:
        is_full = elapsed_s > 30 * (1 + len(target.refused))
        target.windows["app-0"].quota = Quota(requests=0 if is_full else 10**6, window_s=1)

    await drive(target, 120, fill_now_and_then)
    assert len(target.refused) >= 3
    assert target.settled(0, 120)[0] >= 0.9 * 5 / 0.1


@pytest.mark.parametrize("slow", range(14, 30))
def test_paced_calls_that_take_longer_or_shorter_than_the_pace_all_get_their_turn(slow: int):
    throttle = Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=1, limit=Limit.REQUESTS))

    async def take_long(_: Batch) -> None:
        await asyncio.sleep(2)

    @in_virtual_time
    async def all_sent() -> None:
        remote = Remote(width=1, script={6: throttle, 12: throttle, slow: take_long})
        result = await executor(remote).create_multiple("thing", numbered(28), BulkOptions(batch_size=1))
        assert result.success_count == 28

    all_sent()
