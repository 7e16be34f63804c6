"""Every pair of every built-in machine: allowed as its table says, refused otherwise."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from penstock.blobs.states import BLOB
from penstock.errors import IllegalMove
from penstock.idempotency.states import IDEMPOTENCY_KEY
from penstock.machine import Machine
from penstock.operations.model import RowState, Status, StepState
from penstock.operations.sheet import VERDICTS
from penstock.operations.states import OPERATION, ROW_STEP
from penstock.outbox.states import DELIVERY

MACHINES = (OPERATION, ROW_STEP, IDEMPOTENCY_KEY, BLOB, DELIVERY)

# fmt: off
# The tables once more, as the documents draw them: state -> "event Target, event Target".
DRAWN = {
    "operation": {
        "Pending": "picked_up Validating, cancelled Cancelled",
        "Validating": "validated Running, rejected Failed, cancel_requested Stopping, broke Stopping, paused Paused",
        "Running": "finished Completed, finished_with_errors CompletedWithErrors, cancel_requested Stopping, "
                   "broke Stopping, paused Paused",
        "Paused": "resumed Running, reading_resumed Validating, finished Completed, "
                  "finished_with_errors CompletedWithErrors, cancel_requested Stopping, broke Stopping",
        "Stopping": "cancelled Cancelled, failed Failed",
        "CompletedWithErrors": "retry_requested Retrying",
        "Failed": "retry_requested Retrying",
        "Cancelled": "retry_requested Retrying",
        "Retrying": "resumed Running, cancel_requested Stopping, broke Stopping, paused Paused",
        "Completed": "",
    },
    "row step": {
        "Pending": "started Running, skipped Skipped, cancelled Cancelled",
        "Running": "succeeded Completed, failed Failed, timed_out TimedOut, parked WaitingForCompletion, "
                   "postponed Pending, owner_lost Pending, interrupted Pending, left_in_doubt Failed, "
                   "poisoned Failed, cancelled Cancelled",
        "WaitingForCompletion": "signalled Completed, poll_succeeded Completed, signal_failed Failed, "
                                "poll_failed Failed, timed_out TimedOut, poisoned Failed, cancelled Cancelled",
        "Failed": "reset Pending",
        "TimedOut": "reset Pending",
        "Cancelled": "reset Pending",
        "Completed": "",
        "Skipped": "",
    },
    "idempotency key": {
        "Absent": "claimed InProgress",
        "InProgress": "completed Completed, released Absent, lease_expired Indeterminate",
        "Indeterminate": "completed Completed, released Absent",
        "Completed": "expired Absent",
    },
    "blob": {
        "Pending": "uploading Uploading, expired Rejected",
        "Uploading": "validated Valid, rejected Rejected, expired Rejected",
        "Valid": "deleted Deleted",
        "Rejected": "deleted Deleted",
        "Deleted": "",
    },
    "delivery": {
        "Pending": "delivered Delivered, processed Processed, failed Failed, cancelled Cancelled",
        "Delivered": "processed Processed, failed Failed, cancelled Cancelled",
        "Failed": "resent Pending",
        "Processed": "",
        "Cancelled": "",
    },
}
# fmt: on


def drawn_moves(machine: Machine) -> dict[tuple[str, str], str]:
    lines = [(state, line.split()) for state, text in DRAWN[machine.name].items() for line in text.split(", ") if line]
    return {(state, event): target for state, (event, target) in lines}


def pairs() -> list[object]:
    return [
        pytest.param(machine, state, event, id=f"{machine.name}-{state}-{event}")
        for machine in MACHINES
        for state, event in product(machine.states, machine.events)
    ]


@pytest.mark.covers("SM-001", "SM-003", "SM-004", "SM-006", "SM-007", "SM-008", "SM-009", "SM-010", "SM-011")
@pytest.mark.covers("SM-026", "SM-027", "SM-028", "SM-031", "SM-032", "SM-033", "SM-034", "SM-035", "SM-036", "SM-037")
@pytest.mark.parametrize("machine, state, event", pairs())
def test_a_pair_moves_as_drawn_or_is_refused(machine: Machine, state: str, event: str):
    drawn = drawn_moves(machine)
    if (state, event) in drawn:
        assert machine.after(state, event) == drawn[state, event]
    else:
        with pytest.raises(IllegalMove) as refused:
            machine.after(state, event)
        assert refused.value.allowed == machine.allowed(state)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_machine_has_the_drawn_states_and_no_other(machine: Machine):
    assert set(machine.states) == set(DRAWN[machine.name])


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_state_can_be_reached_from_the_first(machine: Machine):
    reached, frontier = set(), {machine.initial}
    while frontier:
        reached |= frontier
        frontier = {target for (state, _), target in machine.moves.items() if state in reached} - reached
    assert reached == set(machine.states)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_state_that_nothing_leaves_is_settled(machine: Machine):
    assert {state for state in machine.states if not machine.allowed(state)} <= machine.settled


@pytest.mark.covers("SM-002", "SM-016", "SM-020")
def test_an_operation_begins_pending_and_rests_in_four_states():
    assert OPERATION.initial == "Pending"
    assert OPERATION.settled == {"Completed", "CompletedWithErrors", "Failed", "Cancelled"}


def test_a_settled_operation_is_left_only_by_a_retry():
    assert {e for state in OPERATION.settled for e in OPERATION.allowed(state)} == {"retry_requested"}


def test_a_settled_step_is_left_only_by_a_reset_and_never_after_success():
    assert {e for state in ROW_STEP.settled for e in ROW_STEP.allowed(state)} == {"reset"}
    assert ROW_STEP.allowed("Completed") == ROW_STEP.allowed("Skipped") == ()


def test_an_operation_never_ends_cancelled_or_broken_past_the_drain():
    assert OPERATION.sources("failed") == ("Stopping",)
    assert set(OPERATION.sources("cancelled")) == {"Pending", "Stopping"}


def test_bytes_that_were_never_sent_are_never_deleted():
    assert "deleted" not in BLOB.allowed("Pending")


def test_the_types_of_states_are_those_of_the_tables():
    assert set(get_args(Status)) == set(OPERATION.states)
    assert set(get_args(StepState)) == set(ROW_STEP.states)
    assert set(get_args(RowState)) == set(VERDICTS.values())
