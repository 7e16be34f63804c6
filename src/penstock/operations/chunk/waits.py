"""The end of a row's wait, whoever ends it."""

from __future__ import annotations

from penstock.operations.chunk.ledger import COMPLETED, STATES
from penstock.operations.chunk.owned import OwnedChunk
from penstock.operations.states import ROW_STEP

__all__ = ["end_wait", "waited_out"]


def end_wait(
    owned: OwnedChunk,
    i: int,
    place: int,
    event: str,
    now: int,
    *,
    error_type: str | None = None,
    message: str | None = None,
) -> None:
    """End the wait of row i by an event; where that completes the step, the row moves on to the next one."""
    ledger = owned.ledger
    track = ledger.tracks[place]
    state = ROW_STEP.after("WaitingForCompletion", event)
    track.took[i] = max(1, now - ledger.base - track.began[i])
    track.state[i] = STATES.index(state)
    ledger.in_flight[i] = 0
    if track.state[i] == COMPLETED:
        ledger.at[i] = place + 1
    owned.end_checks(i, place, now)
    record = owned.record(i, place, state, now)
    record.due_at = record.deadline = None
    record.set_error(error_type, message)


def waited_out(seconds: float) -> str:
    """The message of a wait that timed out."""
    return f"nobody answered within {seconds:g} s"
