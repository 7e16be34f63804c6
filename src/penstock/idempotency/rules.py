"""What a key's entry means to somebody who asks: pure functions over the entry and the time."""

from __future__ import annotations

from penstock.idempotency.model import Entry, Seen, Verdict
from penstock.idempotency.states import IDEMPOTENCY_KEY

__all__ = ["NOT_KEPT", "is_kept", "judge", "retry_after_s", "state_at"]

RETRY_AFTER_MAX_S = 5
MICROS = 1_000_000

# Answers that ask to come again: later, or with other credentials. A kept one would be the answer for a day.
NOT_KEPT = frozenset({401, 403, 407, 408, 409, 423, 425, 429})


def is_kept(status: int) -> bool:
    """Whether an answer with this status is kept; after any other the key is free again."""
    return status < 500 and status not in NOT_KEPT


def state_at(entry: Entry | None, now_us: int) -> str:
    """The state of a key now: time passes also where nobody has written it down yet."""
    if entry is None:
        return IDEMPOTENCY_KEY.initial
    state = entry.state
    if state == "InProgress" and entry.lease_until <= now_us:
        state = IDEMPOTENCY_KEY.after(state, "lease_expired")
    if entry.expires_at <= now_us:
        ends = {"Completed": "expired", "Indeterminate": "released"}
        state = IDEMPOTENCY_KEY.after(state, ends[state]) if state in ends else state
    return state


def judge(seen: Seen, fingerprint: str, *, may_take_over: bool) -> Verdict:
    """What becomes of a request: a different one is refused in every state, the same one by the key's state."""
    state = state_at(seen.entry, seen.now_us)
    if seen.entry is None or state == "Absent":
        return "claim"
    if seen.entry.fingerprint != fingerprint:
        return "mismatch"
    match state:
        case "Completed":
            return "replay"
        case "InProgress":
            return "in_flight"
        case _:
            return "take_over" if may_take_over else "indeterminate"


def retry_after_s(seen: Seen) -> int:
    """When to ask again for a key in flight: after as long as it has been running, within reason."""
    assert seen.entry is not None
    running_s = -((seen.entry.created_at - seen.now_us) // MICROS)
    leased_s = -((seen.now_us - seen.entry.lease_until) // MICROS)
    return max(1, min(running_s, leased_s, RETRY_AFTER_MAX_S))
