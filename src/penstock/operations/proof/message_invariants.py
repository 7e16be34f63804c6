"""What must be true of signals, requests, and the history of each generation; and the reading of these facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Row, Select, bindparam, func, or_, select

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.operations.chunk.records import StepRecord
from penstock.operations.inbox.matching import Signal, accepts, is_awaited
from penstock.operations.proof.invariants import ChunkFacts, Finding
from penstock.operations.tables import chunks, history, requests, row_records, signals

__all__ = ["MESSAGE_RULES", "OVERLOOKED_US", "MessageReader", "Messages"]

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
        elif (
            generation is None
            or record.generation < generation
            or not any(facts.lines.get((row, generation, event)) for event in _NEW_GENERATION)
        ):
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


OVERLOOKED_US = 10_000_000  # two sweeps
FREE_MAX = 10_000  # free signals that are read for the waits of a few chunks
LISTED_MAX = 1000


@dataclass(frozen=True, slots=True)
class Messages:
    """What is stored for a few neighbouring chunks; `now` as in `MessageReader`."""

    signals: Sequence[SignalFacts]
    requests: Mapping[int, Sequence[RequestFacts]]
    lines: Mapping[tuple[int, int, str], int]
    now: int | None

    def of(self, row: Row[Any], chunk: ChunkFacts, kinds: Sequence[str]) -> MessageFacts:
        """The part that concerns one chunk."""
        rows = range(chunk.first_row, chunk.first_row + chunk.row_count)
        is_idle = self.now is not None and chunk.is_open and chunk.owner is None and row.due_at > self.now
        return MessageFacts(
            chunk,
            kinds,
            [s for s in self.signals if s.consumed_row is None or s.consumed_row in rows],
            self.requests.get(chunk.id, ()),
            {key: count for key, count in self.lines.items() if key[0] in rows},
            _overlooked_at(self.now) if is_idle else None,
        )


def _overlooked_at(now: int | None) -> int | None:
    return None if now is None else now - OVERLOOKED_US


class MessageReader:
    """Reads the signals, requests and history of one operation in one snapshot; `now` if a worker is there to sweep."""

    def __init__(self, db: Database, tx: Connection, operation: int, *, now: int | None) -> None:
        self._db, self._tx, self._operation, self._now = db, tx, operation, now

    async def read(self, batch: Sequence[Row[Any]]) -> Messages:
        """What is stored for these chunks, which follow each other."""
        rows = {"first": batch[0].first_row, "last": batch[-1].first_row + batch[-1].row_count - 1}
        ids = [chunk.id for chunk in batch]
        taken = await self._sent(_TAKEN, **rows)
        return Messages(
            [*(SignalFacts(*row) for row in taken), *await self._free(ids)],
            await self._requests(ids),
            {(row, generation, event): count for row, generation, event, count in await self._sent(_LINES, **rows)},
            self._now,
        )

    async def _sent(self, statement: Select[Any], **given: Any) -> list[tuple[Any, ...]]:
        return (await self._tx.send(statement, {"of": self._operation, **given})).rows

    async def strays(self) -> list[Finding]:
        """Signals that were taken and requests that were made where the operation has no row or chunk."""
        of_signals: list[Finding] = [
            (row, f"signal {signal} was taken by a row that does not exist")
            for signal, row in await self._sent(_TAKEN_BY_NO_ROW)
        ]
        return of_signals + [
            (None, f"request {request} is for chunk {chunk}, which is not the operation's")
            for request, chunk in await self._sent(_FOR_NO_CHUNK)
        ]

    async def _free(self, ids: Sequence[int]) -> list[SignalFacts]:
        """Free signals that waiting rows of these chunks accept."""
        if self._now is None:
            return []
        is_free = (signals.c.consumed_at.is_(None), signals.c.accepted_at < _overlooked_at(self._now))
        query = _SIGNALS.where(*is_free, is_awaited(row_records.c.chunk.in_(ids))).limit(FREE_MAX)
        return [SignalFacts(*row) for row in await self._tx.execute(query, {"of": self._operation})]

    async def _requests(self, ids: Sequence[int]) -> dict[int, list[RequestFacts]]:
        found: dict[int, list[RequestFacts]] = {}
        for chunk, *asked in (await self._tx.send_listed(self._db.prepared(_requests_of), {"chunks": ids})).rows:
            found.setdefault(chunk, []).append(RequestFacts(*asked))
        return found


def _requests_of(db: Database) -> Select[Any]:
    columns = [requests.c[name] for name in ("chunk", *RequestFacts.__dataclass_fields__)]
    return select(*columns).where(db.dialect.among(requests.c.chunk, "chunks"))


_IN_ROWS = (bindparam("first", type_=BigInteger), bindparam("last", type_=BigInteger))
_SIGNALS = (
    select(*(signals.c[name] for name in SignalFacts.__dataclass_fields__))
    .where(signals.c.operation == bindparam("of"))
    .order_by(signals.c.id)
)
_TAKEN = _SIGNALS.where(signals.c.consumed_row.between(*_IN_ROWS))
_LINES = (
    select(history.c.row, history.c.generation, history.c.event, func.count())
    .where(history.c.operation == bindparam("of"), history.c.row.between(*_IN_ROWS))
    .group_by(history.c.row, history.c.generation, history.c.event)
)
_END = select(func.max(chunks.c.first_row + chunks.c.row_count)).where(chunks.c.operation == bindparam("of"))
_TAKEN_BY_NO_ROW = (
    select(signals.c.id, signals.c.consumed_row)
    .where(signals.c.operation == bindparam("of"))
    .where(or_(signals.c.consumed_row < 1, signals.c.consumed_row >= func.coalesce(_END.scalar_subquery(), 1)))
    .limit(LISTED_MAX)
)
_FOR_NO_CHUNK = (
    select(requests.c.id, requests.c.chunk)
    .where(requests.c.operation == bindparam("of"))
    .where(requests.c.chunk.not_in(select(chunks.c.id).where(chunks.c.operation == bindparam("of"))))
    .limit(LISTED_MAX)
)
