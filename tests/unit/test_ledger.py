"""The ledger keeps every row's way through the steps and gives back exactly what was put in."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operations.chunk.ledger import (
    CANCELLED,
    COMPLETED,
    FAILED,
    INVALID,
    PENDING,
    RUNNING,
    SKIPPED,
    STATES,
    TIMED_OUT,
    WAITING,
    Ledger,
    compress,
    decompress,
)
from penstock.operations.counts import Counts
from penstock.operations.states import ROW_STEP

BASE = 1_900_000_000_000_000
OPEN = (PENDING, WAITING)
ENDS = (FAILED, TIMED_OUT, CANCELLED)


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    rows, steps = draw(st.integers(1, 30)), draw(st.integers(1, 4))
    chance = random.Random(draw(st.integers(0, 2**32)))
    ledger = Ledger(rows, steps, BASE)
    for i in range(rows):
        _walk(ledger, i, chance)
    return ledger


def _walk(ledger: Ledger, i: int, chance: random.Random) -> None:
    """Put a row somewhere it could really be."""
    if chance.random() < 0.2:
        ledger.reject(i, chance.choice((INVALID, FAILED)))
        return
    ledger.at[i] = place = chance.randint(1, ledger.steps + 1)
    ledger.generation[i], ledger.lost[i] = chance.choice((0, 0, 3)), chance.choice((0, 0, 255))
    for done in range(1, place):
        track = ledger.tracks[done]
        track.state[i] = chance.choice((COMPLETED, SKIPPED))
        track.attempt[i], track.began[i], track.took[i] = 1, chance.choice((0, 200, 70_000, 2**33)), 1
        if chance.random() < 0.3:
            track.outputs[i] = b'{"n":1}'
    if place <= ledger.steps:
        ledger.tracks[place].state[i] = chance.choice((*OPEN, *ENDS))
        ledger.tracks[place].attempt[i] = chance.choice((0, 1, 300))
        ledger.in_flight[i] = int(ledger.tracks[place].state[i] in OPEN and chance.random() < 0.3)


def everything(ledger: Ledger) -> list[object]:
    tracks = [(bytes(t.state), t.attempt, t.began, t.took, t.outputs) for t in ledger.tracks]
    columns = bytes(ledger.at), bytes(ledger.in_flight), bytes(ledger.lost), ledger.generation
    return [ledger.rows, ledger.steps, ledger.base, *columns, tracks]


def read(data: bytes, ledger: Ledger) -> Ledger:
    return Ledger.decode(data, rows=ledger.rows, steps=ledger.steps, base=ledger.base)


@given(ledgers())
def test_steps_are_done_that_rows_have_behind_them_and_all_of_a_row_that_has_failed(ledger: Ledger):
    def done(i: int) -> int:
        has_failed = ledger.is_terminal(i) and ledger.state(i) not in (COMPLETED, CANCELLED)
        return ledger.steps if has_failed else max(0, ledger.at[i] - 1)

    assert ledger.steps_done() == sum(map(done, range(ledger.rows)))


@given(ledgers())
def test_a_ledger_comes_back_as_it_was_written(ledger: Ledger):
    assert everything(read(ledger.encode(), ledger)) == everything(ledger)


@given(ledgers())
def test_the_counts_are_those_of_the_rows_taken_one_by_one(ledger: Ledger):
    states = [ledger.state(i) for i in range(ledger.rows)]
    assert ledger.counts() == Counts(
        succeeded=states.count(COMPLETED),
        invalid=states.count(INVALID),
        failed=states.count(FAILED),
        timed_out=states.count(TIMED_OUT),
        cancelled=states.count(CANCELLED),
        waiting=states.count(WAITING),
    )


@given(ledgers())
def test_a_chunk_is_over_when_no_row_is_unfinished(ledger: Ledger):
    terminal = {i for i in range(ledger.rows) if ledger.is_terminal(i)}
    assert set(ledger.unfinished()) == set(range(ledger.rows)) - terminal
    assert ledger.is_over == (len(terminal) == ledger.rows)
    settled = {i for i in range(ledger.rows) if ROW_STEP.is_settled(STATES[ledger.state(i)])}
    assert terminal == settled


@given(ledgers())
def test_taking_back_an_intent_leaves_no_trace(ledger: Ledger):
    rows = [i for i in ledger.unfinished() if not ledger.in_flight[i]]
    before = everything(ledger)
    ledger.start(rows)
    assert all(ledger.in_flight[i] for i in rows)
    assert not rows or everything(ledger) != before
    ledger.undo_start(rows)
    assert everything(ledger) == before


def test_a_fresh_chunk_is_an_empty_block_of_valid_rows_at_the_first_step():
    ledger = Ledger.decode(b"", rows=3, steps=2, base=BASE)
    assert [ledger.state(i) for i in range(3)] == [PENDING] * 3
    assert bytes(ledger.at) == b"\x01\x01\x01"
    assert bytes(ledger.tracks[0].state) == bytes([COMPLETED] * 3)
    assert list(ledger.unfinished()) == [0, 1, 2]
    assert ledger.counts() == Counts()


def test_rows_that_nobody_has_looked_at_come_back_so():
    ledger = Ledger(3, 2, BASE)
    ledger.await_validation()
    again = Ledger.decode(ledger.encode(), rows=3, steps=2, base=0)
    assert [again.next_place(i) for i in range(3)] == [0, 0, 0]
    assert not again.is_fresh
    again.start([0, 1, 2])
    again.undo_start([0, 1, 2])
    assert Ledger.decode(again.encode(), rows=3, steps=2, base=0).next_place(1) == 0


def test_an_intended_row_is_running_and_one_attempt_further():
    ledger = Ledger(2, 1, BASE)
    ledger.start([1])
    assert [ledger.state(0), ledger.state(1)] == [PENDING, RUNNING]
    assert ledger.tracks[1].attempt == [0, 1]


@pytest.mark.covers("SM-038")
def test_an_invalid_row_ends_at_validation_and_is_failed_on_the_wire():
    ledger = Ledger(2, 3, BASE)
    ledger.reject(0)
    assert ledger.is_terminal(0)
    assert STATES[ledger.state(0)] == "Failed"
    assert list(ledger.unfinished()) == [1]
    assert ledger.counts() == Counts(invalid=1)


def test_every_code_stands_for_a_state_of_the_row_step_machine():
    assert set(STATES) == set(ROW_STEP.states)


@pytest.mark.covers("SM-094", "SM-097")
def test_failed_rows_are_the_invalid_the_failed_and_the_timed_out():
    counts = Counts(succeeded=5, invalid=1, failed=2, timed_out=3, cancelled=7, waiting=9)
    assert counts.unsuccessful == 6
    assert counts + Counts(succeeded=1, cancelled=1) == Counts(6, 1, 2, 3, 8, 9)


def test_a_thousand_rows_that_simply_succeeded_take_a_few_bytes_each():
    ledger, chance = Ledger(1000, 3, BASE), random.Random(7)
    for i in range(1000):
        ledger.at[i] = 4
        for place in (1, 2, 3):
            track = ledger.tracks[place]
            track.state[i], track.attempt[i], track.began[i], track.took[i] = COMPLETED, 1, i * 12, chance.randint(1, 9)
    assert len(ledger.encode()) < 10_000


def test_a_block_of_a_later_release_is_refused_not_misread():
    import msgspec

    data = msgspec.msgpack.decode(decompress(Ledger(1, 1, BASE).encode()))
    later = compress(msgspec.msgpack.encode([99, *data[1:]]))
    with pytest.raises(ValueError, match="ledger of format 99; this release reads 1"):
        Ledger.decode(later, rows=1, steps=1, base=0)


@given(st.lists(st.one_of(st.integers(0, 255), st.integers(0, 2**32), st.integers(0, 2**63 - 1)), min_size=1))
def test_times_of_every_size_come_back(values: list[int]):
    ledger = Ledger(len(values), 1, BASE)
    ledger.tracks[1].began = list(values)
    ledger.tracks[1].attempt = [1] * len(values)
    assert read(ledger.encode(), ledger).tracks[1].began == values
