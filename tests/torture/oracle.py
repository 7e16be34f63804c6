"""What must be true of an operation after the storm: rules over the evidence, each yielding what it finds amiss."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from penstock.operations.model import RowView, StepView

from .facts import Evidence
from .journal import Effect
from .ordeal import BARRIERS, ONCE, POLL_TIMEOUT_S, SIGNAL_TIMEOUT_S, Parcel, is_stubborn, is_wanted, worth

__all__ = ["RULES", "Finding", "cancel_latency_s", "judge", "late_starts"]

CANCEL_S = 5.0
THAW_S = 0.25  # a frozen call may still begin in the instant after its thaw; nobody can prevent that
CLOCK_S = 0.1
POISON_LOST = 4


@dataclass(frozen=True)
class Finding:
    """Something that must not be."""

    rule: str
    message: str
    operation: str | None = None

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}" + (f" (operation {self.operation})" if self.operation else "")


def judge(evidence: Evidence) -> list[Finding]:
    """Every rule's findings."""
    return [Finding(rule.__name__, message, evidence.operation.id) for rule in RULES for message in rule(evidence)]


def starts(evidence: Evidence) -> list[Effect]:
    """Where user code of a step began."""
    return [effect for effect in evidence.effects if effect.what == "start"]


def _place(effect: Effect) -> str:
    return f"row {effect.row} {effect.step} generation {effect.generation} attempt {effect.attempt} by {effect.who}"


# --- rows


def rows_are_conserved(evidence: Evidence) -> Iterator[str]:
    """Rows are numbered 1 to N; N is the file's when it was read to the end; each has a verdict."""
    operation, numbers = evidence.operation, list(evidence.rows)
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"its rows are numbered {numbers}"
    created = evidence.acknowledged("create")
    sent = created[0].detail["rows"] if created else None
    was_cut_short = evidence.had("cancel_requested", "cancelled", "broke", "rejected")
    if sent is not None and len(numbers) != sent and not (was_cut_short and len(numbers) < sent):
        yield f"it has {len(numbers)} rows, {sent} were sent"
    states = Counter(row.state for row in evidence.rows.values())
    told = {
        "Completed": operation.successful_rows,
        "Invalid": operation.invalid_rows,
        "TimedOut": operation.timed_out_rows,
        "Cancelled": operation.cancelled_rows,
        "Failed": operation.failed_rows - operation.invalid_rows - operation.timed_out_rows,
    }
    if +Counter(told) != states:
        yield f"its counters say {told}, its rows {dict(states)}"


def verdicts_follow_from_the_data(evidence: Evidence) -> Iterator[str]:
    """Each row's verdict and outputs are what its data leads to, or an error that the faults explain."""
    for row in evidence.rows.values():
        wrong = _objection(evidence, row)
        if wrong:
            yield f"row {row.number} is {row.state} at {row.step_name}: {wrong}"


def _objection(evidence: Evidence, row: RowView) -> str | None:
    current = row.steps[-1]
    try:
        parcel = Parcel.model_validate(row.data)
    except ValidationError:
        return None if row.state in ("Invalid", "Cancelled") else "its data is not valid"
    if row.state == "Completed":
        return _wrong_outputs(evidence, row, parcel)
    if row.state == "TimedOut":
        return _wrong_timeout(current)
    return _unexplained(evidence, row, parcel, current)


def _wrong_outputs(evidence: Evidence, row: RowView, parcel: Parcel) -> str | None:
    for step in row.steps[1:]:
        if step.name == "approve":
            taken = [s for s in evidence.signals if (s.row, s.step) == (row.number, step.index) and s.outcome == "ok"]
            wanted = taken[-1].payload if taken else "no signal was taken"
        elif step.name == "enrich" and not is_wanted(parcel):
            wanted = None
        else:
            wanted = worth(step.name, parcel)
        if step.output != wanted and not _was_edited(evidence, row.number):
            return f"{step.name} left {step.output!r}, expected {wanted!r}"
        if step.state not in ("Completed", "Skipped"):
            return f"{step.name} is {step.state}"
    return None


def _was_edited(evidence: Evidence, row: int) -> bool:
    """Whether steps that ran before an edit left outputs of the old data."""
    return any(line.row == row and line.event == "edited" for line in evidence.history)


def _wrong_timeout(step: StepView) -> str | None:
    limit = {"approve": SIGNAL_TIMEOUT_S, "ship": POLL_TIMEOUT_S}.get(step.name)
    if limit is None:
        return "the step has no time limit"
    assert step.started_at is not None
    assert step.ended_at is not None
    waited = (step.ended_at - step.started_at).total_seconds()
    return None if waited >= limit - CLOCK_S else f"it waited {waited:.3f} s of {limit:g}"


def _unexplained(evidence: Evidence, row: RowView, parcel: Parcel, step: StepView) -> str | None:
    """None when the faults or the data explain why a valid row did not succeed."""
    message = step.message or ""
    match row.state, step.error_type:
        case "Cancelled", _:
            is_explained = evidence.had("cancel_requested", "broke")
        case "Invalid", "Poison":
            is_explained = "validator" in message  # its readers were killed again and again at this very row
        case "Failed", "StepFailure" if "stubborn" in message:
            is_explained = is_stubborn(parcel) and row.generation == 0
        case "Failed", "StepFailure":
            # Earlier outputs are of the data before the edit.
            is_explained = step.name == "finish" and _was_edited(evidence, row.number)
        case "Failed", "InDoubt":
            is_explained = step.name in ONCE
        case "Failed", "Poison":
            is_explained = evidence.lost.get(row.number, 0) >= POISON_LOST
        case "Failed", "SignalFailure":
            place = (row.number, step.index, row.generation, "failed")
            is_explained = place in {(s.row, s.step, s.generation, s.outcome) for s in evidence.signals}
        case _:
            is_explained = False
    return None if is_explained else f"nothing explains {step.error_type}: {message}"


# --- attempts


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
    return any(0 <= effect.t - thaw < THAW_S for thaw in evidence.thawed.get(effect.who, ()))


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


# --- cancel


def cancel_binds(evidence: Evidence) -> Iterator[str]:
    """I-25: nothing starts later than five seconds after a cancel was acknowledged, unless it was retried since."""
    latency = cancel_latency_s(evidence)
    if latency is not None and latency > CANCEL_S:
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


# --- signals


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


Rule = Callable[[Evidence], Iterator[str]]

RULES: Sequence[Rule] = (
    rows_are_conserved,
    verdicts_follow_from_the_data,
    no_step_starts_after_its_completion_was_seen,
    attempts_are_written_ahead,
    once_is_once,
    effect_keys_are_stable,
    steps_come_in_order,
    cancel_binds,
    acknowledged_signals_are_kept,
    consumed_signals_ended_a_wait,
    no_wait_times_out_beside_a_signal,
)
