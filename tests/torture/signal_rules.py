"""Signals after the storm: what was acknowledged is kept, ends one wait, and is heard in time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from .facts import Evidence

__all__ = [
    "acknowledged_signals_are_kept",
    "consumed_signals_ended_a_wait",
    "delivered_signals_are_consumed",
    "lower_rows_are_served_first",
    "no_wait_times_out_beside_a_signal",
    "signals_are_heard_at_once",
]

# A lease, a late write and some looks round; far less than a wait's time limit, at which everything is heard at last.
HEARD_S = 8.0
CLOCK_US = 100_000  # clocks differ by less
PARKED_S = 6.0  # after the end of its body a wait is surely on disk


def acknowledged_signals_are_kept(evidence: Evidence) -> Iterator[str]:
    """I-19, I-21: every signal that was answered is stored once; a repeat was answered with the first one's id."""
    stored = Counter(signal.token for signal in evidence.signals)
    by_id: dict[str, set[str]] = defaultdict(set)
    for line in evidence.acknowledged("signal"):
        if stored[line.answer["id"]] != 1:
            yield f"signal {line.answer['id']} was acknowledged and is stored {stored[line.answer['id']]} times"
        if line.detail["id"] is not None:
            by_id[line.detail["id"]].add(line.answer["id"])
    for token, answers in by_id.items():
        if len(answers) > 1:
            yield f"signal {token} was answered with {len(answers)} different ids"


def delivered_signals_are_consumed(evidence: Evidence) -> Iterator[str]:
    """A signal that was answered as delivered to a waiting row did end a wait."""
    consumed = {signal.token for signal in evidence.signals if signal.is_consumed}
    for line in evidence.acknowledged("signal"):
        if line.answer["outcome"] == "delivered" and line.answer["id"] not in consumed:
            yield f"signal {line.answer['id']} for {line.detail['key']} was answered as delivered, and no row took it"


def consumed_signals_ended_a_wait(evidence: Evidence) -> Iterator[str]:
    """Every consumed signal names a wait that it ended, and every wait that a signal ended has one."""
    taken = {(s.row, s.generation): s for s in evidence.signals if s.is_consumed}
    if len(taken) != sum(s.is_consumed for s in evidence.signals):
        yield "two signals ended the same wait"
    for wait in evidence.waits:
        signal = taken.get((wait.row, wait.generation))
        if wait.state == "Completed" and (signal is None or signal.outcome != "ok" or signal.key != wait.key):
            yield f"row {wait.row} was approved in generation {wait.generation} by {signal}"
        if signal is not None and signal.accepted_at < wait.since:
            yield f"row {wait.row} took signal {signal.token} of an earlier generation in {wait.generation}"
        if wait.state in ("TimedOut", "Cancelled") and signal is not None:
            yield f"row {wait.row} is {wait.state}, but took signal {signal.token}"


def _ahead(evidence: Evidence) -> int:
    """How far the database's clock is ahead of the journals': on SQLite a process whose clock is off may have set it.

    A signal is accepted a moment before its sender hears of it.
    """
    at = {line.answer["id"]: line.at for line in evidence.acknowledged("signal")}
    return max((s.accepted_at - at[s.token] for s in evidence.signals if s.token in at), default=0)


def no_wait_times_out_beside_a_signal(evidence: Evidence) -> Iterator[str]:
    """Rule 6: a signal that was acknowledged before a wait timed out was for somebody, and that row would hear it."""
    ahead = _ahead(evidence)
    told = {line.answer["id"]: line.at + ahead for line in evidence.acknowledged("signal")}
    lying = [signal for signal in evidence.signals if not signal.is_consumed and signal.token in told]
    for wait in evidence.waits:
        for signal in lying if wait.state == "TimedOut" else ():
            is_for_it = signal.key == wait.key and signal.accepted_at >= wait.since
            if is_for_it and told[signal.token] < wait.at - CLOCK_US:
                late = (wait.at - told[signal.token]) / 1e6
                yield f"row {wait.row} timed out {late:.3f} s after signal {signal.token} was acknowledged"


def signals_are_heard_at_once(evidence: Evidence) -> Iterator[str]:
    """Rules 3 and 5: an acknowledged signal needs no sweep and no deadline to be heard by a row that waits for it."""
    if evidence.quiet_since is None or evidence.had("paused"):
        return
    told, ahead = {line.answer["id"]: line for line in reversed(evidence.acknowledged("signal"))}, _ahead(evidence)
    waits = {(e.row, e.generation): e.t for e in evidence.effects if e.step == "approve" and e.what == "end"}
    for signal in evidence.signals:
        line, began = told.get(signal.token), waits.get((signal.row or 0, signal.generation or 0))
        if line is None or began is None or signal.consumed_at is None:
            continue
        late_s = line.t + (signal.consumed_at - line.at - ahead) / 1e6 - max(line.t, began, evidence.quiet_since)
        if late_s > HEARD_S * evidence.patience:
            yield f"row {signal.row} heard signal {signal.token} {late_s:.1f} s late"


def lower_rows_are_served_first(evidence: Evidence) -> Iterator[str]:
    """T11b: nobody takes a signal that a lower row has long been waiting for."""
    told, ahead = {line.answer["id"]: line for line in reversed(evidence.acknowledged("signal"))}, _ahead(evidence)
    taken = {(s.row, s.generation): s for s in evidence.signals}
    parked = {(e.row, e.generation): e.t for e in evidence.effects if e.step == "approve" and e.what == "end"}
    for signal in evidence.signals:
        line = told.get(signal.token)
        if line is None or signal.consumed_at is None:
            continue
        for wait in evidence.waits:
            own = taken.get((wait.row, wait.generation))
            parked_t = parked.get((wait.row, wait.generation), line.t) + PARKED_S * evidence.patience
            began_at = line.at + ahead + (parked_t - line.t) * 1e6
            is_after = own is not None and own.consumed_at is not None and own.consumed_at > signal.consumed_at
            could = wait.key == signal.key and wait.since <= signal.accepted_at and began_at < signal.consumed_at
            if wait.row < (signal.row or 0) and could and is_after:
                yield f"row {signal.row} took signal {signal.token}, for which row {wait.row} had long been waiting"
