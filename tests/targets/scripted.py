"""A remote in memory that follows a script of faults and writes down what it applied, and time that costs nothing."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from penstock.clock import Entropy
from penstock.targets import (
    Answer,
    Batch,
    BulkExecutor,
    BulkOptions,
    Capabilities,
    ErrorKind,
    Mode,
    Outcome,
    Pool,
    RetryPolicy,
    Target,
    TargetError,
    Verdict,
)

__all__ = [
    "LoopClock",
    "Lose",
    "Refuse",
    "Remote",
    "Sent",
    "Stuck",
    "executor",
    "in_virtual_time",
    "numbered",
    "pool_of",
    "trouble",
    "virtually",
]

DONE = {Mode.CREATE: Outcome.CREATED, Mode.UPDATE: Outcome.UPDATED, Mode.DELETE: Outcome.DELETED}
SPINS_MAX = 200_000


class Stuck(Exception):
    """Nothing is ready and nothing will ever be, or the loop goes round in circles."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Jumps to the next timer when nothing is ready; with a seed it shuffles what is ready."""

    def __init__(self, seed: int | None = None) -> None:
        self._now_s = 1000.0
        self._spins = 0
        self._rng = random.Random(seed) if seed is not None else None
        super().__init__()

    def time(self) -> float:
        return self._now_s

    def _run_once(self) -> None:
        self._spins += 1
        if self._spins > SPINS_MAX:
            raise Stuck(f"{SPINS_MAX} rounds of the loop")
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0].cancelled():
            heapq.heappop(scheduled)._scheduled = False
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
        if not ready:
            if not scheduled:
                raise Stuck("a wait that nobody ends")
            self._now_s = max(self._now_s, scheduled[0].when())
        elif self._rng is not None:
            self._rng.shuffle(ready)
        super()._run_once()  # type: ignore[misc]


class LoopClock:
    """The time of the running loop."""

    is_real = False

    def now_us(self) -> int:
        return round(self.monotonic() * 1e6)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


def virtually(work: Coroutine[Any, Any, Any], seed: int | None = None) -> Any:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(seed)) as runner:
        return runner.run(work)


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test whose waits cost nothing."""

    @wraps(test)
    def run(*given: Any, **named: Any) -> None:
        virtually(test(*given, **named))

    return run


def numbered(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Records, each with a number of its own."""
    return [{"n": n, "name": f"record {n}"} for n in range(start, start + count)]


def trouble(kind: ErrorKind, message: str = "", **facts: Any) -> TargetError:
    """A refusal of this kind."""
    return TargetError(message or f"{kind} says the remote", kind=kind, **facts)


@dataclass(frozen=True)
class Refuse:
    """The call fails and changes nothing."""

    error: TargetError


@dataclass(frozen=True)
class Lose:
    """The answer never comes: the call takes effect first, or not at all, or for its first records only."""

    applied: int | None = None
    """How many records take effect; None is all of them."""
    kind: ErrorKind = ErrorKind.CONNECTION


Fault = Refuse | Lose | Callable[[Batch], Any]


@dataclass(frozen=True)
class Sent:
    """One call that arrived."""

    what: str
    source: str
    numbers: tuple[Any, ...]
    key: str
    at_s: float

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(eq=False)
class Remote(Target):
    """A table of numbered records. `script` gives the fault of the nth call of a kind, or decides by the call."""

    name: str = "remote"
    sources: Sequence[str] = ("ana",)
    width: int = 4
    width_max: int = 52
    capabilities: Capabilities = field(default_factory=lambda: Capabilities(id_field="n"))
    latency_s: float = 0.01
    script: Mapping[int, Fault] = field(default_factory=dict)
    """By the number of the call of `send` and `send_each`, from 1."""
    decide: Callable[[Batch, str], Fault | None] = lambda _batch, _source: None
    """Asked for calls the script does not name."""
    questions: Mapping[int, TargetError] = field(default_factory=dict)
    """Faults of the nth `reconcile`."""
    descriptions: Mapping[int, TargetError] = field(default_factory=dict)
    bad: Callable[[Any], TargetError | None] = lambda _number: None
    """What is wrong with the record of this number."""
    existing: set[Any] = field(default_factory=set)
    sends_each: bool = False
    has_identity: bool = True
    hint: int | None = None
    exact: bool = True

    def __post_init__(self) -> None:
        self.applied: Counter[Any] = Counter()
        self.log: list[Sent] = []
        self.asked = 0
        self.described = 0
        self.refreshed: list[str] = []
        self.in_flight: Counter[str] = Counter()
        self.in_flight_max: Counter[str] = Counter()
        self.total_max = 0
        self.overlaps: list[Any] = []
        self._numbers_in_flight: Counter[Any] = Counter()

    # What the executor sees.

    @property
    def can_send_each(self) -> bool:
        return self.sends_each

    async def describe(self, table: str, mode: Mode, options: BulkOptions, source: str) -> Capabilities:
        self.described += 1
        if self.described in self.descriptions:
            raise self.descriptions[self.described]
        return self.capabilities

    async def send(self, batch: Batch, source: str) -> Answer:
        return await self._call("send", batch, source, self.capabilities.is_atomic)

    async def send_each(self, batch: Batch, source: str) -> Answer:
        return await self._call("each", batch, source, False)

    async def reconcile(self, batch: Batch, source: str) -> Sequence[Verdict | None]:
        self.asked += 1
        self.log.append(self._sent("ask", batch, source))
        await asyncio.sleep(self.latency_s)
        if self.asked in self.questions:
            raise self.questions[self.asked]
        numbers = [self.number(record) for record in batch.records]
        return [self._verdict(batch.mode, number) if self.applied[number] else None for number in numbers]

    async def refresh(self, source: str) -> None:
        self.refreshed.append(source)
        await asyncio.sleep(self.latency_s)

    def identity(self, table: str, mode: Mode, record: Any) -> Any:
        return self.number(record) if self.has_identity else None

    def number(self, record: Any) -> Any:
        """What identifies a record here."""
        return record["n"] if isinstance(record, Mapping) else record

    # What happens to a call.

    async def _call(self, what: str, batch: Batch, source: str, is_atomic: bool) -> Answer:
        sent = self._sent(what, batch, source)
        self.log.append(sent)
        fault = self.script.get(len(self.calls), None) or self.decide(batch, source)
        self._begin(sent)
        try:
            await asyncio.sleep(self.latency_s)
            if callable(fault):
                fault = await fault(batch)
        finally:
            self._end(sent)
        if isinstance(fault, Refuse):
            raise fault.error
        if isinstance(fault, Answer):
            return fault
        return self._judge(batch, sent, is_atomic, fault)

    def _judge(self, batch: Batch, sent: Sent, is_atomic: bool, fault: Lose | None) -> Answer:
        wrong = {number: error for number in sent.numbers if (error := self.bad(number)) is not None}
        if wrong and is_atomic:
            if fault is not None:
                raise trouble(fault.kind, maybe_applied=True)
            raise next(iter(wrong.values()))
        taken = sent.numbers if fault is None or fault.applied is None else sent.numbers[: fault.applied]
        verdicts = [
            Verdict(Outcome.FAILED, error=wrong[number]) if number in wrong else self._verdict(batch.mode, number)
            for number in sent.numbers
        ]
        for number in taken:
            if number not in wrong:
                self.applied[number] += 1
        if fault is not None:
            raise trouble(fault.kind, maybe_applied=True)
        return Answer(verdicts, width_hint=self.hint, counts_exact=self.exact)

    def _verdict(self, mode: Mode, number: Any) -> Verdict:
        if mode is Mode.UPSERT:
            return Verdict(Outcome.UPDATED if number in self.existing else Outcome.CREATED, number)
        return Verdict(DONE[mode], f"id-{number}" if mode is Mode.CREATE else number)

    def _sent(self, what: str, batch: Batch, source: str) -> Sent:
        numbers = tuple(self.number(record) for record in batch.records)
        return Sent(what, source, numbers, batch.key, asyncio.get_running_loop().time())

    def _begin(self, sent: Sent) -> None:
        self.in_flight[sent.source] += 1
        self.in_flight_max[sent.source] = max(self.in_flight_max[sent.source], self.in_flight[sent.source])
        self.total_max = max(self.total_max, self.in_flight.total())
        self.overlaps += [number for number in sent.numbers if self._numbers_in_flight[number]]
        self._numbers_in_flight.update(sent.numbers)

    def _end(self, sent: Sent) -> None:
        self.in_flight[sent.source] -= 1
        self._numbers_in_flight.subtract(sent.numbers)

    # What tests ask.

    @property
    def calls(self) -> list[Sent]:
        """The calls that carried records."""
        return [sent for sent in self.log if sent.what != "ask"]

    @property
    def sizes(self) -> list[int]:
        """The sizes of those calls."""
        return [len(sent) for sent in self.calls]


def executor(target: Target, *, policy: RetryPolicy | None = None, pool: Pool | None = None) -> BulkExecutor:
    """An executor on the loop's time; chance always says nought, so waits have their shortest length."""
    return BulkExecutor(target, pool=pool or pool_of(target, policy), policy=policy)


def pool_of(target: Target, policy: RetryPolicy | None = None) -> Pool:
    """A pool on the loop's time."""
    return Pool.of(
        target, policy=policy or RetryPolicy(jitter=0), clock=LoopClock(), entropy=Entropy(jitter=NoChance())
    )


class NoChance(random.Random):
    """Draws nought every time."""

    def random(self) -> float:
        return 0.0
