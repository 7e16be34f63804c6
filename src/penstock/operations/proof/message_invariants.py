"""What must be true of signals, requests, and the history of each generation. Pure rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.operations.chunk.records import StepRecord
from penstock.operations.inbox.matching import Signal, accepts
from penstock.operations.proof.chunk_invariants import ChunkFacts, Finding

__all__ = ["MESSAGE_RULES", "MessageFacts", "RequestFacts", "SignalFacts"]

_NEW_GENERATION = ("retried", "edited")


@dataclass(frozen=True, slots=True)
class SignalFacts(Signal):
    """A signal and, once it was taken, by which step of which row in which generation."""

    outcome: str
    consumed_row: int | None
    consumed_step: int | None
    consumed_generation: int | None

    @property
    def is_taken(self) -> bool:
        """Whether it has ended a wait."""
        return self.consumed_row is not None


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """A request to run rows again; `row` is None for all failed rows of the chunk."""

    id: int
    row: int | None
    generation: int
    outcome: str | None


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """One chunk, and the signals and requests for its rows.

    `lines` counts history lines by (row, generation, event). `overlooked_at` is the time before which a stored signal
    must have been found by a sweep; None when no worker was there to sweep, or the chunk is not idle.
    """

    chunk: ChunkFacts
    kinds: Sequence[str]
    signals: Sequence[SignalFacts]
    requests: Sequence[RequestFacts]
    lines: Mapping[tuple[int, int, str], int]
    overlooked_at: int | None

    def is_signalled(self, step: int) -> bool:
        """Whether a step waits for a signal."""
        return 0 <= step < len(self.kinds) and self.kinds[step] == "signal"


def consumed_signals_ended_their_wait(facts: MessageFacts) -> Iterator[Finding]:
    """A signal that was taken names a step whose record says that a signal ended it."""
    for signal in facts.signals:
        if not signal.is_taken or signal.consumed_row is None or signal.consumed_step is None:
            continue
        row, step, generation = signal.consumed_row, signal.consumed_step, signal.consumed_generation
        record = facts.chunk.records.get((row, step))
        if record is None:
            yield row, f"signal {signal.id} was taken at step {step}, but there is no record of it"
        elif record.generation == generation:
            yield from _ended_otherwise(signal, record)
        elif generation is None or record.generation < generation or not _is_past(facts, row, generation):
            yield row, f"signal {signal.id} was taken in generation {generation}, which the row has not been through"


def _ended_otherwise(signal: SignalFacts, record: StepRecord) -> Iterator[Finding]:
    right: list[tuple[str, str | None]] = [("Failed", "SignalFailure")]
    if signal.outcome == "ok":
        right = [("Completed", None), ("Failed", "StepFailure")]  # the latter by a payload that does not fit the step
    found = (record.state, record.error_type if record.state == "Failed" else None)
    if found not in right:
        yield record.row, f"took signal {signal.id} ({signal.outcome}) at step {record.step}, which is {record.state}"
    elif signal.accepted_at < (record.since or 0):
        yield record.row, f"took signal {signal.id} at step {record.step}, which was there before its generation began"
    elif record.signal_key != signal.key:
        yield (
            record.row,
            f"waited for {record.signal_key!r} at step {record.step}, but took a signal for {signal.key!r}",
        )


def _is_past(facts: MessageFacts, row: int, generation: int) -> bool:
    return any(facts.lines.get((row, generation, event)) for event in _NEW_GENERATION)


def ended_waits_have_signals(facts: MessageFacts) -> Iterator[Finding]:
    """A wait that a signal ended has that signal, once."""
    taken = Counter((s.consumed_row, s.consumed_step, s.consumed_generation) for s in facts.signals if s.is_taken)
    for (row, step), record in facts.chunk.records.items():
        if not facts.is_signalled(step) or record.signal_key is None:
            continue
        is_ended = record.state == "Completed" or (record.state == "Failed" and record.error_type == "SignalFailure")
        if is_ended and not taken[row, step, record.generation]:
            yield row, f"is {record.state} at step {step}, which a signal must have ended, but it took none"


def no_signal_is_left_waiting(facts: MessageFacts) -> Iterator[Finding]:
    """No row waits for a signal that was stored long ago."""
    if facts.overlooked_at is None:
        return
    free = [signal for signal in facts.signals if not signal.is_taken and signal.accepted_at < facts.overlooked_at]
    for (row, step), record in facts.chunk.records.items():
        if record.state != "WaitingForCompletion" or record.signal_key is None:
            continue
        mine = (signal for signal in free if accepts(signal, key=record.signal_key, row=row, since=record.since))
        overlooked = next(mine, None)
        if overlooked is not None:
            yield row, f"waits at step {step} for {record.signal_key!r}, but signal {overlooked.id} has long been there"


def generations_have_history(facts: MessageFacts) -> Iterator[Finding]:
    """A row's history says once how each of its earlier generations ended."""
    chunk = facts.chunk
    ended = Counter[tuple[int, int]]()
    for (row, generation, event), count in facts.lines.items():
        ended[row, generation] += count if event in _NEW_GENERATION else 0
    for i, generation in enumerate(chunk.ledger.generation):
        row = chunk.row(i)
        for past in range(generation):
            if ended[row, past] != 1:
                yield (
                    row,
                    f"is in generation {generation}, its history tells {ended[row, past]} times of {past}'s end",
                )
    for (row, past), count in ended.items():
        i = row - chunk.first_row
        if count and 0 <= i < chunk.row_count and past >= chunk.ledger.generation[i]:
            yield row, f"is in generation {chunk.ledger.generation[i]}, its history tells of the end of {past}"


def requests_have_outcomes(facts: MessageFacts) -> Iterator[Finding]:
    """A request for a closed chunk has its outcome, and a row that it was applied to went on."""
    chunk = facts.chunk
    for request in facts.requests:
        if request.outcome is None and not chunk.is_open:
            yield request.row, f"request {request.id} was left for a closed chunk and has no outcome"
        if request.row is None:
            continue
        i = request.row - chunk.first_row
        if not 0 <= i < chunk.row_count:
            yield request.row, f"request {request.id} is for a row of another chunk"
        elif (request.outcome or "").startswith("applied") and chunk.ledger.generation[i] <= request.generation:
            yield request.row, f"is in generation {request.generation} still, but request {request.id} was applied"


MessageRule = Callable[[MessageFacts], Iterator[Finding]]

MESSAGE_RULES: Sequence[MessageRule] = (
    consumed_signals_ended_their_wait,
    ended_waits_have_signals,
    no_signal_is_left_waiting,
    generations_have_history,
    requests_have_outcomes,
)
