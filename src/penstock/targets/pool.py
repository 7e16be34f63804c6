"""Who may call now: the slots of all sources, shared fairly by all bulk calls that use the pool."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from threading import Lock
from typing import Any, Self
from weakref import WeakKeyDictionary, WeakValueDictionary

from penstock.clock import Clock, Entropy, SystemClock
from penstock.errors import Unavailable
from penstock.targets.model import BadInput, ErrorKind, TargetError
from penstock.targets.rules.limits import RateLimit, Share, Source, Throttles, Width
from penstock.targets.rules.retry import RetryPolicy
from penstock.targets.target import Target

__all__ = ["CallQueue", "Pool", "PoolExhausted", "Priority"]

log = logging.getLogger("penstock.targets")

WAKE_JITTER = 0.02
WAKE_JITTER_MAX_S = 1.0
TOLD_S = 0.1
"""How long before a throttle ends we ask whether another process was throttled for longer."""


POOLS: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[tuple[Any, ...], Pool]] = WeakKeyDictionary()
"""The pools of quotas, and of targets without one; those of another loop may be in use in another thread."""
CHOOSING = Lock()


class Priority(Enum):
    """Where in the line of its bulk call a batch waits."""

    NEW = auto()  # behind what was begun
    PIECE = auto()  # of a batch that was split: behind other pieces
    RETRY = auto()  # first: a remote in trouble is tried by one batch, not by all of them in turn


class CallQueue:
    """One bulk call in the pool: how much it may take, what it has, and who of it waits."""

    def __init__(self, width_max: int | None) -> None:
        self.width_max = width_max
        self.in_flight = 0
        self.in_flight_max = 0
        self.waited_s = 0.0
        self._counted_s = 0.0
        self._begun: deque[asyncio.Future[Source]] = deque()
        self._fresh: deque[asyncio.Future[Source]] = deque()

    @property
    def is_full(self) -> bool:
        return self.width_max is not None and self.in_flight >= self.width_max

    @property
    def is_waiting(self) -> bool:
        for line in (self._begun, self._fresh):
            while line and line[0].done():
                line.popleft()
        return bool(self._begun or self._fresh)

    def line_up(self, priority: Priority) -> asyncio.Future[Source]:
        """Take a place in the line."""
        future: asyncio.Future[Source] = asyncio.get_running_loop().create_future()
        match priority:
            case Priority.NEW:
                self._fresh.append(future)
            case Priority.PIECE:
                self._begun.append(future)
            case Priority.RETRY:
                self._begun.appendleft(future)
        return future

    def next(self) -> asyncio.Future[Source]:
        return (self._begun or self._fresh).popleft()

    def count_wait(self, held_before_s: float, held_s: float) -> None:
        """Add time in which every source was throttled; what several waited for together counts once."""
        self.waited_s += max(0.0, held_s - max(held_before_s, self._counted_s))
        self._counted_s = max(held_s, self._counted_s)


class TableGate:
    """Tables on which a batch met a race: whoever met it first tries alone until it is through or gives up."""

    def __init__(self) -> None:
        self._holders: dict[str, object] = {}
        self._freed = asyncio.Event()

    def begin(self, table: str, who: object) -> None:
        """`who` met a race; it holds the table unless someone already does."""
        self._holders.setdefault(table, who)

    def end(self, table: str, who: object) -> None:
        """`who` is through or has given up; does nothing unless it held the table."""
        if self.is_held_by(table, who):
            del self._holders[table]
            self._freed.set()

    def is_held_by(self, table: str, who: object) -> bool:
        return self._holders.get(table) is who

    def is_held(self, table: str, who: object) -> bool:
        """Whether someone else holds the table."""
        return table in self._holders and not self.is_held_by(table, who)

    async def wait_until_free(self, table: str, who: object) -> None:
        while self.is_held(table, who):
            self._freed.clear()
            await self._freed.wait()


class SourceRefresh:
    """One renewal at a time for each source of a target; a call that started before the last one asks for none."""

    def __init__(self) -> None:
        self._locks: defaultdict[tuple[int, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._done: Counter[tuple[int, str]] = Counter()

    def generation(self, target: Target, source: str) -> int:
        """How often the source was renewed; a call remembers it when it starts."""
        return self._done[id(target), source]

    async def renew(self, target: Target, source: str, generation: int) -> None:
        """Renew unless that was done since; a renewal that fails is logged, and the next call will tell."""
        key = id(target), source
        async with self._locks[key]:
            if self._done[key] != generation:
                return
            try:
                await target.refresh(source)
            except Exception as error:
                log.warning("source %r could not be renewed: %r", source, error)
            self._done[key] += 1


class PoolExhausted(Unavailable):
    """No slot became free in time."""


class Pool:
    """Slots for calls to one remote. Share a pool between executors, and all their calls share its limits.

    Bulk calls take turns, however many batches each has waiting. A source is never used beyond its width, and not at
    all while it is throttled or gets no answers.
    """

    def __init__(
        self,
        sources: Sequence[str],
        *,
        width: int = 4,
        width_max: int = 52,
        rate_limit: RateLimit | None = None,
        policy: RetryPolicy | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        entropy: Entropy | None = None,
    ) -> None:
        self.policy = policy or RetryPolicy()
        self.clock, self.sleep, self.entropy = clock or SystemClock(), sleep, entropy or Entropy()
        self._sources = {name: Source(name, Width(width, width_max), self.policy, rate_limit) for name in sources}
        if not self._sources:
            raise ValueError("a pool needs at least one source")
        self._throttles = Throttles(self._sources)
        self._alarm_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin()
        self.shared_until_s = float("-inf")
        """When our shares of quotas that others use too are to be renewed."""

    def _begin(self) -> None:
        """Nobody waits and nothing is in flight."""
        self._turns: deque[CallQueue] = deque()
        self._alarm: asyncio.Future[None] | None = None
        self._was_throttled = asyncio.Event()
        self.table_gate = TableGate()
        self.source_refresh = SourceRefresh()
        self._silent_since_s: float | None = None
        self._tried_until_s = 0.0
        for source in self._sources.values():
            source.in_flight = 0

    def enter(self) -> None:
        """A bulk call begins; in another loop than before, what the last one left under way is forgotten."""
        loop = asyncio.get_running_loop()
        if self._is_used_beside(loop):
            raise BadInput("another thread uses this pool now: give each of them a pool, or none, of its own")
        if self._loop not in (None, loop):
            self._begin()
        self._loop = loop

    def _is_used_beside(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self._loop is not None and self._loop is not loop and self._loop.is_running()

    @classmethod
    def of(cls, target: Target, **settings: Any) -> Self:
        """A pool with the sources and limits of a target; `settings` are the other arguments of `Pool`."""
        limits: dict[str, Any] = {name: getattr(target, name) for name in ("width", "width_max", "rate_limit")}
        return cls(target.sources, **limits, **settings)

    @classmethod
    def shared(cls, target: Target, policy: RetryPolicy | None = None) -> Pool:
        """The pool of a target, the same for all who use it, and for targets in the same loop that use its quota alike.

        Threads beside each other have pools of their own. `policy` is for a pool that is made here.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # nobody calls yet
            loop = None
        with CHOOSING:
            own = target.slot_pool
            if own is not None and loop is not None and own._is_used_beside(loop):
                own = None
            pool = own or cls.of(target, policy=policy)
            if loop is not None:
                limits = (target.width, target.width_max, target.rate_limit)
                key = (target.quota or id(target), *target.sources, limits)
                pools = POOLS.setdefault(loop, WeakValueDictionary())
                if own is None or target.quota is not None:
                    pool = pools.setdefault(key, pool)
                pools[key] = pool
                pool.enter()
            object.__setattr__(target, "slot_pool", pool)  # a target may be frozen
        return pool

    @property
    def width(self) -> int:
        """Calls at once over all sources, at the moment."""
        return sum(source.width_now for source in self._sources.values())

    @property
    def in_flight(self) -> int:
        """Slots taken."""
        return sum(source.in_flight for source in self._sources.values())

    @property
    def is_broken(self) -> bool:
        """Whether no source has answered for a while."""
        return all(source.breaker.is_open for source in self._sources.values())

    @property
    def silent_s(self) -> float:
        """For how long the remote has given nobody an answer; 0 when it answered the last call.

        Time in which nobody called does not count.
        """
        return 0.0 if self._silent_since_s is None else self.clock.monotonic() - self._silent_since_s

    @property
    def throttled_until_s(self) -> float | None:
        """When the first source may send again, on the pool's clock; None unless all are throttled."""
        return self._throttles.all_until_s(self.clock.monotonic())

    def is_throttled(self, source: str) -> bool:
        """Whether the remote wants to be left alone by this source."""
        return self._throttles.until_s(source, self.clock.monotonic()) is not None

    def throttled_s(self) -> dict[str, float]:
        """For how long each source is still throttled."""
        now = self.clock.monotonic()
        return {name: max(0.0, (self._throttles.until_s(name, now) or now) - now) for name in self._sources}

    def set_shares(self, shares: Mapping[str, Share]) -> None:
        """Use no more than our shares of the sources' quotas, and leave alone those that others found throttled."""
        now = self.clock.monotonic()
        for name, share in shares.items():
            self._sources[name].set_share(share)
            if share.throttled_s > 0:
                self._sources[name].pace.heard(now, share.throttled_s)
                self._throttles.record(name, now + share.throttled_s, now)
        self._renew_before_a_throttle_ends(now)
        self._serve()

    def plan_sharing(self, now_s: float, each_s: float) -> None:
        """Renew our shares after so long, or shortly before the next throttle ends."""
        self._was_throttled.clear()
        self.shared_until_s = now_s + each_s
        self._renew_before_a_throttle_ends(now_s)

    def _renew_before_a_throttle_ends(self, now_s: float) -> None:
        left_s = (seconds - TOLD_S for seconds in self.throttled_s().values() if seconds > 2 * TOLD_S)
        self.shared_until_s = min([self.shared_until_s, *(now_s + seconds for seconds in left_s)])

    async def sharing_is_due(self) -> None:
        """Wait until our shares are to be renewed: then, or at the next throttle."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self.shared_until_s - self.clock.monotonic())):
                await self._was_throttled.wait()

    async def acquire(
        self, queue: CallQueue, priority: Priority = Priority.NEW, policy: RetryPolicy | None = None
    ) -> str:
        """Wait for a slot and say on which source; `PoolExhausted` when all stayed taken for too long."""
        if not self._turns and not queue.is_full:
            now = self.clock.monotonic()
            source = self._pick(now)
            if source is not None:
                self._take(queue, source, now)
                return source.name
        return await self._wait(queue, priority, (policy or self.policy).acquire_timeout_s)

    def release(self, queue: CallQueue, source: str) -> None:
        """Give a slot back."""
        queue.in_flight -= 1
        self._sources[source].in_flight -= 1
        self._serve()

    def answered(self, source: str, hint: int | None = None) -> None:
        """A call went well; `hint` is the width the remote recommends."""
        known = self._sources[source]
        self._silent_since_s = None
        known.breaker.answered()
        if hint is not None:
            known.width.hinted(hint)
        # Answers to calls from before a throttle say nothing about the time after it.
        if self._throttles.until_s(source, self.clock.monotonic()) is None:
            known.throttles_in_a_row = 0
            known.width.answered()
        self._serve()

    def refused(self, source: str, error: TargetError, policy: RetryPolicy | None = None) -> None:
        """A call failed: the source is slowed, or left alone, as the cause and the caller's policy demand."""
        known = self._sources[source]
        now = self.clock.monotonic()
        if error.kind in (ErrorKind.CONNECTION, ErrorKind.TOKEN):
            known.breaker.failed(now)
        else:
            known.breaker.answered()
            if error.kind is not ErrorKind.THROTTLED and self._throttles.until_s(source, now) is None:
                known.throttles_in_a_row = 0
        if error.kind is ErrorKind.CONNECTION:
            self._got_no_answer(now, (policy or self.policy).silent_pause_s(error.retry_after_s))
        else:
            self._silent_since_s = None
        if error.kind is ErrorKind.THROTTLED:
            self._throttle(known, error, now, policy or self.policy)
        elif error.kind is ErrorKind.DEADLOCK:
            known.width.collided()
        self._serve()

    def _got_no_answer(self, now: float, pause_s: float) -> None:
        if self._silent_since_s is None:
            self._silent_since_s = now
        # Who waits for the remote is back by then, also on a busy machine.
        self._tried_until_s = max(self._tried_until_s, now + 2 * pause_s)

    def _throttle(self, source: Source, error: TargetError, now: float, policy: RetryPolicy) -> None:
        source.pace.refused()
        seconds = policy.throttle_s(error.retry_after_s)
        # Calls under way when the throttle began report it too; one throttle lowers the width once.
        if self._throttles.until_s(source.name, now) is None:
            seconds = policy.throttle_s(error.retry_after_s, in_vain=source.throttles_in_a_row)
            source.throttles_in_a_row += 1
            source.width.throttled(error.limit)
            source.pace.throttled(now, seconds, error.limit, is_guess=error.retry_after_s is None)
            log.warning("%r is throttled for %.1f s (%s)", source.name, seconds, error.limit or "no limit named")
            pace = source.pace.per_second(now + seconds)
            if pace is not None:
                log.info("%r then goes on with %.1f calls a second", source.name, pace)
        jitter = min(WAKE_JITTER * seconds, WAKE_JITTER_MAX_S) * self.entropy.jitter.random()
        self._throttles.record(source.name, now + seconds + jitter, now)
        self.shared_until_s = now
        self._was_throttled.set()

    async def _wait(self, queue: CallQueue, priority: Priority, timeout_s: float) -> str:
        future = queue.line_up(priority)
        if queue not in self._turns:
            self._turns.append(queue)
        held_before_s = self._held_s()
        try:
            self._serve()
            while not future.done():
                await asyncio.wait((future,), timeout=timeout_s)
                # Who waits for slots of its own, or for a throttle to end, does not want for slots.
                now = self.clock.monotonic()
                is_usable = any(self._blocked_until_s(source, now) is None for source in self._sources.values())
                if not future.done() and not queue.in_flight and is_usable:
                    raise PoolExhausted(f"no slot was free in {timeout_s:g} s")
            return future.result().name
        except BaseException:
            if future.done() and not future.cancelled():
                self.release(queue, future.result().name)
            future.cancel()
            raise
        finally:
            queue.count_wait(held_before_s, self._held_s())
            self._serve()

    def _set_alarm(self, now: float) -> None:
        """Serve those who wait when the next source may be used again; what may be used `now` has been given away."""
        ends = [end for source in self._sources.values() if (end := self._blocked_until_s(source, now)) is not None]
        due_s = min(ends) if ends and any(queue.is_waiting for queue in self._turns) else None
        if self._alarm is not None and (due_s is None or due_s < self._alarm_s):
            self._alarm.cancel()
            self._alarm = None
        if self._alarm is None and due_s is not None:
            self._alarm_s = due_s
            self._alarm = asyncio.ensure_future(self._ring(due_s - now))

    async def _ring(self, seconds: float) -> None:
        await self.sleep(seconds)
        self._alarm = None
        self._serve()

    def _held_s(self) -> float:
        return self._throttles.held_s(self.clock.monotonic())

    def _blocked_until_s(self, source: Source, now: float) -> float | None:
        ends = (self._throttles.until_s(source.name, now), source.breaker.until_s(now), source.paced_until_s(now))
        return max((end for end in ends if end is not None), default=None)

    def _serve(self) -> None:
        """Give free slots to the queues in turn, and set the alarm for those who wait on.

        Both look at one instant: a source that becomes usable between two looks would be neither given away nor waited
        for, and with nothing in flight everybody would stand still.
        """
        now = self.clock.monotonic()
        passed = 0
        while self._turns and passed < len(self._turns):
            queue = self._turns[0]
            if not queue.is_waiting:
                self._turns.popleft()
                continue
            source = None if queue.is_full else self._pick(now)
            if source is None:
                passed += 1
            else:
                passed = 0
                self._take(queue, source, now)
                queue.next().set_result(source)
            self._turns.rotate(-1)
        self._set_alarm(now)

    def _pick(self, now: float) -> Source | None:
        """The least loaded source that may be used."""
        free = [
            source
            for source in self._sources.values()
            if source.has_room(now) and self._blocked_until_s(source, now) is None
        ]
        return min(free, key=lambda source: source.in_flight / source.width_now, default=None)

    def _take(self, queue: CallQueue, source: Source, now: float) -> None:
        if not self.in_flight and now > self._tried_until_s:  # nobody has called for a while
            self._silent_since_s = None
        source.began(now)
        queue.in_flight += 1
        queue.in_flight_max = max(queue.in_flight_max, queue.in_flight)
