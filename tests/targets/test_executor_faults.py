"""Random faults by seed: what the result says is what the remote did, nothing is applied twice, nothing forgotten."""

from __future__ import annotations

import random
from typing import Any

import pytest
from scripted import Lose, Refuse, Remote, executor, in_virtual_time, numbered, trouble, virtually

from penstock.targets import Answer, Batch, BulkOptions, BulkResult, Capabilities, ErrorKind, Mode, Outcome, Verdict

SCRIPTS = 300
PASSING = (ErrorKind.TOKEN, ErrorKind.CONNECTION, ErrorKind.DEADLOCK, ErrorKind.RACE)


class Weather:
    """Draws a remote and its faults from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.mode = rng.choice([Mode.CREATE, Mode.CREATE, Mode.UPSERT, Mode.UPDATE])
        self.count = rng.choice([0, 1, 5, 60, 250])
        share = rng.choice([0, 0, 0.01, 0.1, 0.5])
        self.guilty = {n for n in range(self.count) if rng.random() < share}
        self.rate = rng.choice([0, 0.1, 0.3, 0.6])
        is_idempotent = self.mode is not Mode.CREATE and rng.random() < 0.7
        self.capabilities = Capabilities(
            is_atomic=rng.random() < 0.6,
            is_idempotent=is_idempotent,
            can_reconcile=rng.random() < 0.6,
            records_max=rng.choice([None, 17]),
            id_field="n",
        )
        self.options = BulkOptions(
            batch_size=rng.choice([1, 7, 50, 100]),
            adapt_batch_size=rng.random() < 0.3,
            max_parallel_batches=rng.choice([None, 1, 3]),
            isolate=rng.random() < 0.85,
            continue_on_error=rng.random() < 0.85,
            deadline_s=rng.choice([None, None, 5.0]),
        )

    def remote(self) -> Remote:
        rng = self.rng
        return Remote(
            sources=("ana", "ben")[: rng.choice([1, 2])],
            width=rng.choice([1, 3]),
            capabilities=self.capabilities,
            latency_s=0.05,
            decide=lambda batch, _source: self.fault(batch),
            questions={n: trouble(rng.choice(PASSING)) for n in range(1, 40) if rng.random() < 0.3},
            bad=lambda n: trouble(ErrorKind.DATA, f"{n} is wrong") if n in self.guilty else None,
            sends_each=rng.random() < 0.5,
            hint=rng.choice([None, 1, 5]),
        )

    def fault(self, batch: Batch) -> Any:
        rng = self.rng
        if rng.random() > self.rate:
            return None
        match rng.choice(["refuse", "throttle", "big", "lose", "lose", "partly"]):
            case "refuse":
                return Refuse(trouble(rng.choice(PASSING)))
            case "throttle":
                return Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=rng.choice([None, 0.2, 3])))
            case "big":
                return Refuse(trouble(ErrorKind.TOO_BIG)) if len(batch) > 1 else None
            case "lose":
                whole = None if rng.random() < 0.5 else 0
                return Lose(whole if self.capabilities.is_atomic else rng.choice([whole, len(batch) // 2]))
            case _:
                return None if self.capabilities.is_atomic else self.partly

    async def partly(self, batch: Batch) -> Answer:
        """Some records are judged, the others shall come again."""
        verdicts = []
        for record in batch.records:
            n = record["n"]
            if self.rng.random() < 0.5:
                verdicts.append(Verdict(Outcome.FAILED, error=trouble(ErrorKind.THROTTLED, retry_after_s=0.1)))
            elif n in self.guilty:
                verdicts.append(Verdict(Outcome.FAILED, error=trouble(ErrorKind.DATA)))
            else:
                self.here.applied[n] += 1
                verdicts.append(self.here._verdict(batch.mode, n))
        return Answer(verdicts)

    async def run(self) -> tuple[BulkResult, Remote]:
        self.here = self.remote()
        start = executor(self.here).start(self.mode, "account", self.records(), self.options)
        return await start, self.here

    def records(self) -> Any:
        records = numbered(self.count)
        return records if self.rng.random() < 0.5 else iter(records)


@pytest.mark.parametrize("seed", range(SCRIPTS))
def test_the_result_is_what_the_remote_did(seed: int):
    weather = Weather(seed)
    result, remote = virtually(weather.run(), seed)
    outcomes = list(result.outcomes)
    for n, outcome in enumerate(outcomes):
        times = remote.applied[n]
        if outcome.is_success:
            assert times >= 1, f"{n} is called {outcome} and was not applied"
        elif outcome is Outcome.FAILED or outcome is Outcome.NOT_RUN:
            assert times == 0, f"{n} is called {outcome} and was applied"
        if not weather.capabilities.is_idempotent:
            assert times <= 1, f"{n} was applied {times} times"
        if n in weather.guilty:
            assert not outcome.is_success
        if outcome is Outcome.UNKNOWN:
            assert any(n in sent.numbers for sent in remote.calls)
    if result.stopped_reason is None:
        assert len(outcomes) == weather.count
        assert Outcome.NOT_RUN not in outcomes
    assert result.success_count + result.failure_count + result.unknown_count + result.not_run_count == len(outcomes)
    assert [error.index for error in result.errors] == [
        n for n, outcome in enumerate(outcomes) if outcome in (Outcome.FAILED, Outcome.UNKNOWN)
    ]
    assert not remote.overlaps
    assert remote.in_flight.total() == 0


@pytest.mark.parametrize("seed", range(40))
def test_without_faults_of_its_own_the_remote_gets_every_good_record_and_only_bad_ones_fail(seed: int):
    """Throttles, deadlocks and splits cost time; they never cost a record."""
    rng = random.Random(seed)
    guilty = {n for n in range(200) if rng.random() < 0.05}

    def fault(batch: Batch, _source: str) -> Refuse | None:
        kind = rng.choice([None, None, ErrorKind.THROTTLED, ErrorKind.TOO_BIG])
        is_meant = kind is not None and not (kind is ErrorKind.TOO_BIG and len(batch) == 1)
        return Refuse(trouble(kind, retry_after_s=1)) if is_meant and kind else None

    async def run() -> None:
        remote = Remote(
            width=3,
            decide=fault,
            sends_each=seed % 2 == 0,
            bad=lambda n: trouble(ErrorKind.DATA) if n in guilty else None,
        )
        result = await executor(remote).create_multiple("account", numbered(200), BulkOptions(batch_size=40))
        assert {error.index for error in result.errors} == guilty
        assert set(remote.applied) == set(range(200)) - guilty
        assert set(remote.applied.values()) == {1}

    virtually(run(), seed)


@in_virtual_time
async def test_many_calls_on_one_sick_pool_all_come_to_their_end():
    import asyncio

    rng = random.Random(7)
    remote = Remote(sources=("ana", "ben"), width=2)
    remote.decide = lambda batch, _source: (
        Refuse(trouble(rng.choice([*PASSING, ErrorKind.THROTTLED]), retry_after_s=1)) if rng.random() < 0.3 else None
    )
    runner = executor(remote)
    calls = [runner.create_multiple(f"table {n % 3}", numbered(300, n * 1000)) for n in range(10)]
    results = await asyncio.gather(*calls)
    assert all(result.success_count + result.failure_count == 300 for result in results)
    assert sum(result.success_count for result in results) == len(remote.applied)
    assert runner.pool.in_flight == 0
