"""The guard without HTTP: the work of a block is done once for each key, on every store."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from penstock.clock import ManualClock
from penstock.errors import Conflict, InvalidInput, KeyRefused, SettingsInvalid
from penstock.idempotency import Address, Idempotency
from penstock.idempotency.service import Replay
from penstock.idempotency.store import Store


async def done(keys: Idempotency, key: str = "key", fingerprint: str = "f", answer: bytes = b"answer") -> bytes | None:
    async with keys.guard(key, fingerprint) as attempt:
        if not attempt.is_replay:
            attempt.answer = answer
    return attempt.answer


async def refusal(keys: Idempotency, key: str = "key", fingerprint: str = "f", **options: bool) -> KeyRefused:
    with pytest.raises(KeyRefused) as caught:
        async with keys.guard(key, fingerprint, **options):
            raise AssertionError("the block must not run")
    return caught.value


@pytest.mark.covers("GR-006", "GR-008", "I-35")
async def test_the_block_runs_once_and_repeats_get_its_answer(keys: Idempotency):
    assert await done(keys, answer=b"first") == b"first"
    assert await done(keys, answer=b"second") == b"first"


@pytest.mark.covers("GR-011", "I-35")
async def test_a_second_caller_is_refused_while_the_first_is_at_work(keys: Idempotency, clock: ManualClock):
    async with keys.guard("key", "f"):
        clock.advance(2.5)
        error = await refusal(keys)
        assert (error.reason, error.retry_after_s) == ("in_flight", 3)
        assert (await refusal(keys, fingerprint="other")).reason == "mismatch"


async def test_the_key_of_another_request_is_refused_in_every_state(keys: Idempotency, clock: ManualClock):
    await done(keys, "completed")
    with pytest.raises(asyncio.CancelledError):
        async with keys.guard("cut off", "f"):
            raise asyncio.CancelledError
    for key in ("completed", "cut off"):
        for options in ({}, {"may_take_over": True}):
            assert (await refusal(keys, key, "other", **options)).reason == "mismatch"


@pytest.mark.covers("GR-007")
async def test_an_exception_gives_the_key_back(keys: Idempotency):
    with pytest.raises(ZeroDivisionError):
        async with keys.guard("key", "f"):
            raise ZeroDivisionError
    assert await keys.get("key") is None
    assert await done(keys, answer=b"second") == b"second"


async def test_a_cancelled_block_leaves_the_key_indeterminate(keys: Idempotency):
    begun = asyncio.Event()

    async def work() -> None:
        async with keys.guard("key", "f"):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await refusal(keys)).reason == "indeterminate"
    found = await keys.get("key")
    assert found is not None
    assert found.state == "Indeterminate"


async def test_work_that_may_be_done_again_is_when_its_owner_fell_silent(keys: Idempotency, clock: ManualClock):
    silent = await keys.claim(Address.of("key"), "f")
    assert not isinstance(silent, Replay)
    clock.advance(30)
    assert (await keys.get("key")).state == "Indeterminate"
    taken = await keys.claim(Address.of("key"), "f", may_take_over=True)
    assert not isinstance(taken, Replay)
    assert (silent.attempt, taken.attempt, silent.effect_key == taken.effect_key) == (1, 2, True)
    with pytest.raises(KeyRefused, match="taken idempotency key 'key' over"):
        await silent.complete(b"late")
    await taken.complete(b"taken over")
    again = await keys.claim(Address.of("key"), "f")
    assert again == Replay(b"taken over")


async def test_a_late_owner_that_nobody_followed_still_answers(keys: Idempotency, clock: ManualClock):
    late = await keys.claim(Address.of("key"), "f")
    assert not isinstance(late, Replay)
    clock.advance(31)
    claims = [keys.claim(Address.of("key"), "f") for _ in range(2)]
    for claim in claims:
        with pytest.raises(KeyRefused, match="nobody knows whether it was carried out"):
            await claim
    await late.complete(b"late")
    assert await keys.claim(Address.of("key"), "f") == Replay(b"late")


async def test_a_lease_is_renewed_while_the_work_goes_on(real_store: Store, monkeypatch: pytest.MonkeyPatch):
    renewed, renew = asyncio.Event(), real_store.renew

    async def told(address: Address, owner: str, lease_us: int) -> bool:
        is_ours = await renew(address, owner, lease_us)
        renewed.set()
        return is_ours

    monkeypatch.setattr(real_store, "renew", told)
    keys = Idempotency(real_store, lease=0.3)
    async with keys.guard("key", "f"):
        first = (await real_store.read(Address.of("key"))).entry
        await renewed.wait()
        second = (await real_store.read(Address.of("key"))).entry
    assert first is not None
    assert second is not None
    assert second.lease_until > first.lease_until
    assert second.owner == first.owner


@pytest.mark.covers("GR-005", "I-35")
async def test_of_many_callers_at_once_one_does_the_work(real_store: Store):
    keys = Idempotency(real_store)
    outcomes: Counter[str] = Counter()
    begun = asyncio.Barrier(20)

    async def call() -> None:
        await begun.wait()
        try:
            async with keys.guard("key", "f") as attempt:
                outcomes["replay" if attempt.is_replay else "work"] += 1
        except KeyRefused as error:
            outcomes[error.reason] += 1

    await asyncio.gather(*(call() for _ in range(20)))
    assert outcomes["work"] == 1
    assert sum(outcomes.values()) == 20
    assert set(outcomes) <= {"work", "replay", "in_flight"}


@pytest.mark.covers("GR-009", "I-34")
async def test_a_key_is_free_again_after_its_retention_and_not_before(keys: Idempotency, clock: ManualClock):
    await done(keys, answer=b"first")
    clock.advance(86_399)
    assert await done(keys, answer=b"second") == b"first"
    clock.advance(1)
    assert await keys.get("key") is None
    assert await done(keys, fingerprint="other", answer=b"third") == b"third"


async def test_an_indeterminate_key_is_free_after_its_retention(keys: Idempotency, clock: ManualClock):
    await keys.claim(Address.of("key"), "f")
    clock.advance(86_400)
    assert await done(keys) == b"answer"


@pytest.mark.covers("I-37", "X-02")
async def test_callers_neither_see_nor_block_each_others_keys(keys: Idempotency):
    async with keys.guard("key", "f", scope=("acme", "ana")) as first:
        first.answer = b"ana's"
        async with keys.guard("key", "other", scope=("acme", "bob")) as second:
            assert not second.is_replay
            second.answer = b"bob's"
    async with keys.guard("key", "f", scope=("acme", "ana")) as again:
        assert again.answer == b"ana's"
    assert await keys.get("key") is None
    assert await keys.forget("key", scope=("acme",)) is False


async def test_a_key_is_shown_as_it_is(keys: Idempotency, clock: ManualClock):
    assert await keys.get("key") is None
    async with keys.guard("key", "f", label="POST /orders\n\0") as attempt:
        running = await keys.get("key")
        attempt.answer = b""
    finished = await keys.get("key")
    assert running is not None
    assert finished is not None
    assert (running.state, running.has_answer, running.attempt) == ("InProgress", False, 1)
    assert running.label == "POST /orders??"
    assert (finished.state, finished.has_answer, finished.lease_until) == ("Completed", True, None)
    assert (finished.expires_at - finished.created_at).total_seconds() == 86_400


async def test_a_forgotten_key_can_be_used_again(keys: Idempotency, clock: ManualClock):
    assert await keys.forget("key") is False
    await done(keys)
    assert await keys.forget("key") is True
    assert await done(keys, answer=b"second") == b"second"
    await keys.claim(Address.of("silent"), "f")
    with pytest.raises(Conflict, match="still running"):
        await keys.forget("silent")
    clock.advance(30)
    assert [record.key for record in await keys.unsettled()] == ["silent"]
    assert await keys.forget("silent") is True
    assert await keys.unsettled() == []


@pytest.mark.covers("X-15")
async def test_an_erased_answer_is_gone_and_the_work_is_not_done_again(keys: Idempotency):
    async with keys.guard("key", "f", scope=("ana",)) as attempt:
        attempt.answer = b"personal"
    assert await keys.erase(scope=("ana",)) == 1
    async with keys.guard("key", "f", scope=("ana",)) as again:
        assert (again.is_replay, again.answer) == (True, None)


async def test_each_happening_is_told_and_a_listener_that_fails_stops_nothing(store: Store, clock: ManualClock):
    told: Counter[str] = Counter()

    def listen(happening: str) -> None:
        told[happening] += 1
        raise RuntimeError("no metrics today")

    keys = Idempotency(store, observe=listen)
    await done(keys)
    await done(keys)
    await refusal(keys, fingerprint="other")
    with pytest.raises(ZeroDivisionError):
        async with keys.guard("failing"):
            raise ZeroDivisionError
    await keys.claim(Address.of("silent"), "f")
    with pytest.raises(KeyRefused):
        await keys.claim(Address.of("silent"), "f")
    clock.advance(30)
    with pytest.raises(KeyRefused):
        await keys.claim(Address.of("silent"), "f")
    taken = await keys.claim(Address.of("silent"), "f", may_take_over=True)
    assert not isinstance(taken, Replay)
    await taken.abandon()
    assert told == {
        "claimed": 3, "completed": 1, "replayed": 1, "mismatch": 1, "released": 1, "in_flight": 1, "indeterminate": 1,
        "taken_over": 1, "abandoned": 1,
    }  # fmt: skip


@pytest.mark.databases("sqlite")
async def test_what_cannot_be_is_refused(store: Store):
    with pytest.raises(SettingsInvalid, match="lease is a time above 0"):
        Idempotency(store, lease=0)
    with pytest.raises(SettingsInvalid, match="retention is a time above 0"):
        Idempotency(store, retention=-1)
    with pytest.raises(InvalidInput, match="1 to 255 characters; found 0"):
        await Idempotency(store).get("")
