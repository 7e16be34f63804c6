"""Attempts after the storm: what started when, compared with what was recorded and what callers were told."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from .facts import Evidence
from .journal import Effect
from .ordeal import BARRIERS, ONCE

__all__ = [
    "attempts_are_written_ahead",
    "cancel_binds",
    "cancel_latency_s",
    "effect_keys_are_stable",
    "late_starts",
    "no_step_starts_after_its_completion_was_seen",
    "once_is_once",
    "starts",
    "steps_come_in_order",
]

CANCEL_S = 5.0
THAW_S = 0.25  # a frozen call may still begin in the instant after its thaw; nobody can prevent that


def starts(evidence: Evidence) -> list[Effect]:
    """Where user code of a step began."""
    return [effect for effect in evidence.effects if effect.what == "start"]


def _place(effect: Effect) -> str:
    return f"row {effect.row} {effect.step} generation {effect.generation} attempt {effect.attempt} by {effect.who}"


def no_step_starts_after_its_completion_was_seen(evidence: Evidence) -> Iterator[str]:
    """I-06: what the database showed as settled is never started again in that generation."""
    for effect in starts(evidence):
        seen = _seen(evidence, effect)
        if seen is not None and effect.t > seen and not _is_just_thawed(evidence, effect):
            yield f"{_place(effect)} started {effect.t - seen:.3f} s after it was seen settled"


def late_starts(evidence: Evidence) -> int:
    """Starts of that kind in the instant after a thaw: allowed, and counted."""
    late = (e for e in starts(evidence) if (seen := _seen(evidence, e)) is not None and e.t > seen)
    return sum(_is_just_thawed(evidence, effect) for effect in late)


def _seen(evidence: Evidence, effect: Effect) -> float | None:
    index = evidence.operation.steps.index(effect.step)
    sightings = evidence.sightings
    times = (
        sightings.completed.get((effect.row, index)),
        sightings.settled.get((effect.row, index, effect.generation)),
    )
    return min((t for t in times if t is not None), default=None)


def _is_just_thawed(evidence: Evidence, effect: Effect) -> bool:
    return any(0 <= effect.t - thaw < THAW_S * evidence.patience for thaw in evidence.thawed.get(effect.who, ()))


def attempts_are_written_ahead(evidence: Evidence) -> Iterator[str]:
    """I-07: an attempt's number is on disk before it starts, so none starts twice and none beyond what is recorded."""
    by_step: dict[tuple[int, str, int], list[Effect]] = defaultdict(list)
    for effect in starts(evidence):
        if effect.step in BARRIERS:
            by_step[effect.row, effect.step, effect.generation].append(effect)
    recorded = _recorded_attempts(evidence)
    last = {(row, step): generation for row, step, generation in sorted(by_step)}
    for (row, step, generation), effects in by_step.items():
        numbers = Counter(effect.attempt for effect in effects)
        for number, times in numbers.items():
            if times > 1:
                yield f"row {row} {step} generation {generation}: attempt {number} started {times} times"
        limit = recorded.get((row, step, generation))
        if limit is None and generation == last[row, step]:
            limit = recorded.get((row, step, -1))
        if limit is not None and max(numbers) > limit:
            yield f"row {row} {step} generation {generation}: attempt {max(numbers)} started, {limit} are recorded"


def _recorded_attempts(evidence: Evidence) -> dict[tuple[int, str, int], int]:
    """By row, step and generation; -1 is the last one that ran, whichever that was."""
    found = {(row.number, step.name, -1): step.attempt for row in evidence.rows.values() for step in row.steps}
    for line in evidence.history:
        if line.event in ("retried", "edited"):
            found[line.row, line.step_name, line.generation] = line.attempt
    return found


def once_is_once(evidence: Evidence) -> Iterator[str]:
    """A step that runs at most once starts at most once in a generation."""
    times = Counter((e.row, e.step, e.generation) for e in starts(evidence) if e.step in ONCE)
    for (row, step, generation), many in times.items():
        if many > 1:
            yield f"row {row} {step} generation {generation} started {many} times"


def effect_keys_are_stable(evidence: Evidence) -> Iterator[str]:
    """I-09: the same key in every attempt, on every worker."""
    for effect in evidence.effects:
        if effect.key != f"{effect.operation}:{effect.row}:{effect.step}":
            yield f"{_place(effect)} was given the key {effect.key!r}"


def steps_come_in_order(evidence: Evidence) -> Iterator[str]:
    """I-05: a step starts only after the one before it has ended, or was seen skipped."""
    ended: set[tuple[int, str]] = set()
    order = evidence.operation.steps
    for effect in evidence.effects:
        if effect.what == "end":
            ended.add((effect.row, effect.step))
        index = order.index(effect.step)
        if effect.what == "start" and index:
            before = order[index - 1] if order[index - 1] != "enrich" else order[index - 2]
            if (effect.row, before) not in ended:
                yield f"{_place(effect)} started before {before} had ended"


def cancel_binds(evidence: Evidence) -> Iterator[str]:
    """I-25: nothing starts later than five seconds after a cancel was acknowledged, unless it was retried since."""
    latency = cancel_latency_s(evidence)
    if latency is not None and latency > CANCEL_S * evidence.patience:
        yield f"a step started {latency:.2f} s after the cancel was acknowledged"


def cancel_latency_s(evidence: Evidence) -> float | None:
    """How long after the first acknowledged cancel a step still started, up to the next retry; None without one."""
    cancels = [line.t for line in evidence.acknowledged("cancel") if line.answer in ("Stopping", "Cancelled")]
    if not cancels:
        return None
    again = min(
        (line.t for line in evidence.said if line.verb in ("retry", "edit") and line.t > cancels[0]), default=None
    )
    late = [e.t - cancels[0] for e in starts(evidence) if e.t > cancels[0] and (again is None or e.t < again)]
    return max(late, default=0.0)
