"""Signals after the storm: what was acknowledged is kept, ends one wait, and is heard in time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from .facts import Evidence

__all__ = ["acknowledged_signals_are_kept", "consumed_signals_ended_a_wait", "no_wait_times_out_beside_a_signal"]


def acknowledged_signals_are_kept(evidence: Evidence) -> Iterator[str]:
    """I-19, I-21: every signal that was answered is stored once; a repeat was answered with the first one's id."""
    stored = Counter(signal.token for signal in evidence.signals)
    by_id: dict[str, set[str]] = defaultdict(set)
    for line in evidence.acknowledged("signal"):
        if stored[line.answer["id"]] != 1:
            yield f"signal {line.detail['id']} was acknowledged and is stored {stored[line.answer['id']]} times"
        by_id[line.detail["id"]].add(line.answer["id"])
    for token, answers in by_id.items():
        if len(answers) > 1:
            yield f"signal {token} was answered with {len(answers)} different ids"


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


def no_wait_times_out_beside_a_signal(evidence: Evidence) -> Iterator[str]:
    """Rule 6: a signal that was acknowledged before a wait timed out was for somebody, and that row would hear it."""
    told = {line.answer["id"]: line.at for line in evidence.acknowledged("signal")}
    lying = [signal for signal in evidence.signals if not signal.is_consumed and signal.token in told]
    for wait in evidence.waits:
        for signal in lying if wait.state == "TimedOut" else ():
            if signal.key == wait.key and signal.accepted_at >= wait.since and told[signal.token] < wait.at:
                late = (wait.at - told[signal.token]) / 1e6
                yield f"row {wait.row} timed out {late:.3f} s after signal {signal.token} was acknowledged"
