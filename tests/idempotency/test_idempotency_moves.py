"""A stored key moves exactly as its table says, on every store."""

from __future__ import annotations

from itertools import product

import pytest

from penstock.clock import ManualClock
from penstock.idempotency.model import Address, Entry, Wish
from penstock.idempotency.rules import state_at
from penstock.idempotency.states import IDEMPOTENCY_KEY
from penstock.idempotency.store import Store

LEASE_S, RETENTION_S = 30, 3600
PAIRS = list(product(IDEMPOTENCY_KEY.states, IDEMPOTENCY_KEY.events))


def wish(owner: str = "first", fingerprint: str = "f" * 64) -> Wish:
    return Wish(owner, fingerprint, "POST /orders", LEASE_S * 1_000_000, RETENTION_S * 1_000_000)


async def put(store: Store, address: Address, state: str) -> None:
    """Bring a key into a state by the moves of the table."""
    if state == "Absent":
        return
    await store.insert(address, wish())
    event = {"Completed": "completed", "Indeterminate": "lease_expired"}.get(state)
    if event:
        assert await store.move(address, event, owner="first", answer=b"answer", retention_us=RETENTION_S * 1_000_000)


async def state_of(store: Store, address: Address) -> str:
    seen = await store.read(address)
    return state_at(seen.entry, seen.now_us)


async def entry_of(store: Store, address: Address) -> Entry | None:
    return (await store.read(address)).entry


async def take(store: Store, address: Address, event: str, owner: str) -> bool:
    if event == "claimed":
        return await store.insert(address, wish(owner="second")) is None
    return await store.move(address, event, owner=owner, answer=b"new", retention_us=RETENTION_S * 1_000_000)


@pytest.mark.covers("GR-001", "GR-003", "GR-004", "GR-005", "GR-006", "GR-007", "GR-009", "GR-010", "GR-013")
async def test_a_key_takes_every_move_of_the_table_and_refuses_every_other(store: Store):
    for number, (state, event) in enumerate(PAIRS):
        address = Address.of(f"key-{number}")
        await put(store, address, state)
        assert await state_of(store, address) == state
        before = await entry_of(store, address)
        target = IDEMPOTENCY_KEY.moves.get((state, event))
        assert await take(store, address, event, "first") == (target is not None), f"{state} and {event}"
        assert await state_of(store, address) == (target or state), f"{state} and {event}"
        if target is None:
            assert await entry_of(store, address) == before, f"{state} took something of {event}"


async def test_no_move_is_taken_from_somebody_with_another_token(store: Store):
    for number, (state, event) in enumerate(PAIRS):
        if state == "Absent" or event == "claimed":
            continue
        address = Address.of(f"key-{number}")
        await put(store, address, state)
        before = await entry_of(store, address)
        assert not await take(store, address, event, "stranger"), f"{state} and {event}"
        assert await entry_of(store, address) == before


async def test_a_move_that_is_due_later_waits_for_its_time(store: Store, clock: ManualClock):
    cases = {("InProgress", "lease_expired"): LEASE_S, ("Completed", "expired"): RETENTION_S}
    cases[("Indeterminate", "released")] = RETENTION_S
    for (state, event), seconds in cases.items():
        address = Address.of(f"{state} {event}")
        await put(store, address, state)
        clock.advance(seconds - 0.001)
        assert not await store.move(address, event, owner="first", only_due=True)
        assert await state_of(store, address) == state
        clock.advance(0.001)
        assert await state_of(store, address) == IDEMPOTENCY_KEY.moves[state, event]
        assert await store.move(address, event, owner="first", only_due=True)
        assert await state_of(store, address) == IDEMPOTENCY_KEY.moves[state, event]


async def test_a_lease_is_renewed_by_its_owner_only_and_only_in_progress(store: Store, clock: ManualClock):
    for state in IDEMPOTENCY_KEY.states:
        address = Address.of(state)
        await put(store, address, state)
        assert not await store.renew(address, "stranger", 1_000_000)
        assert await store.renew(address, "first", 60_000_000) == (state == "InProgress")
    clock.advance(59)
    assert await state_of(store, Address.of("InProgress")) == "InProgress"


async def test_a_key_is_taken_over_only_when_its_lease_has_run_out_and_by_one(store: Store, clock: ManualClock):
    address = Address.of("cut off")
    await put(store, address, "InProgress")
    seen = await entry_of(store, address)
    assert seen is not None
    assert not await store.take_over(address, seen, wish("second"))
    clock.advance(LEASE_S)
    assert await store.take_over(address, seen, wish("second"))
    assert not await store.take_over(address, seen, wish("third"))
    entry = await entry_of(store, address)
    assert entry is not None
    assert (entry.state, entry.owner, entry.attempt) == ("InProgress", "second", 2)
    assert not await store.move(address, "completed", owner="first", answer=b"late", retention_us=1)


async def test_a_late_owner_completes_a_key_that_nobody_took_over(store: Store, clock: ManualClock):
    address = Address.of("late")
    await put(store, address, "Indeterminate")
    clock.advance(60)
    assert await store.move(address, "completed", owner="first", answer=b"late", retention_us=1_000_000)
    entry = await entry_of(store, address)
    assert entry is not None
    assert (entry.state, entry.answer) == ("Completed", b"late")


async def test_a_claim_that_is_repeated_because_its_answer_was_lost_finds_itself(store: Store):
    address = Address.of("repeated")
    assert await store.insert(address, wish()) is None
    again = await store.insert(address, wish())
    entry = await entry_of(store, address)
    assert entry is not None
    assert again is None or again.entry == entry
    assert (entry.owner, entry.attempt) == ("first", 1)


async def test_an_answer_comes_back_byte_by_byte(store: Store):
    for number, answer in enumerate([b"", b"\0", bytes(range(256)) * 4096, None]):
        address = Address.of(f"key-{number}")
        await store.insert(address, wish())
        await store.move(address, "completed", owner="first", answer=answer, retention_us=1_000_000)
        entry = await entry_of(store, address)
        assert entry is not None
        assert entry.answer == answer


async def test_a_sweep_removes_what_was_kept_long_enough_in_small_passes(store: Store, clock: ManualClock):
    for state in ("InProgress", "Completed", "Indeterminate"):
        for number in range(3):
            await put(store, Address.of(f"{state} {number}"), state)
    assert await store.sweep(100) == 0
    clock.advance(RETENTION_S)
    running = Address.of("still running")
    await put(store, running, "InProgress")
    removed = [await store.sweep(4) for _ in range(4)]
    assert removed == [4, 4, 1, 0]
    assert await state_of(store, running) == "InProgress"


async def test_an_erased_answer_is_gone_and_its_key_is_not(store: Store):
    mine, theirs = Address.of("key", ("acme", "ana")), Address.of("key", ("acme", "bob"))
    for address in (mine, theirs):
        await put(store, address, "Completed")
    assert await store.erase(mine.scope, 10) == 1
    assert await store.erase(mine.scope, 10) == 0
    gone, kept = await entry_of(store, mine), await entry_of(store, theirs)
    assert gone is not None
    assert kept is not None
    assert (gone.state, gone.answer, kept.answer) == ("Completed", None, b"answer")


async def test_keys_that_were_cut_off_are_listed(store: Store, clock: ManualClock):
    await put(store, Address.of("given up"), "Indeterminate")
    clock.advance(1)
    await put(store, Address.of("lapsed"), "InProgress")
    clock.advance(LEASE_S)
    await put(store, Address.of("running"), "InProgress")
    await put(store, Address.of("done"), "Completed")
    assert [entry.key for entry in await store.unsettled(10)] == ["given up", "lapsed"]
    assert len(await store.unsettled(1)) == 1
