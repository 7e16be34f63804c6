"""The input of a bulk call: its arguments are checked before anything is sent, its records read a few at a time.

They are cut into batches; records of one key stay apart and in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterable, Callable, Hashable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from penstock.errors import Fault
from penstock.targets.ids import EMPTY_GUID
from penstock.targets.model import BadInput, BulkOptions, ErrorKind, Mode, TargetError
from penstock.targets.rules.duplicates import DuplicateKeys

if TYPE_CHECKING:
    from penstock.targets.target import Target

__all__ = [
    "Batcher",
    "InputReader",
    "NextBatch",
    "Records",
    "checked_options",
    "checked_records",
    "checked_table",
    "faults_in",
    "is_cancelled",
    "named_options",
    "refuse_faults",
]

log = logging.getLogger("penstock.targets")

Records: TypeAlias = Iterable[Any] | AsyncIterable[Any]
Options = TypeVar("Options", bound=BulkOptions)

NAMED_MAX = 20
HELD_MAX = 1000
"""Records that wait for others of their key before reading pauses."""
POLICIES = ("keep-order", "first", "last", "error")


def checked_table(table: Any) -> str:
    """The name of a table, or why it is none."""
    if not isinstance(table, str):
        raise TypeError(f"a table is named by text, not by {type(table).__name__}")
    if not table.strip():
        raise BadInput("the name of the table is empty")
    return table


def checked_records(mode: Mode, records: Any) -> Records:
    """Something to iterate over, or why it is not; one record or id by itself is a common mistake."""
    if isinstance(records, deque):
        return list(records)  # it cannot be sliced
    is_one = isinstance(records, str | bytes | Mapping)
    if is_one or not isinstance(records, Iterable | AsyncIterable):
        what = "ids" if mode is Mode.DELETE else "records"
        given = "None" if records is None else f"{'one ' if is_one else ''}{type(records).__name__}"
        raise TypeError(f"{what} must be a list or a stream, not {given}")
    return records


def is_cancelled() -> bool:
    """Whether the running task itself was cancelled, not something that it waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def named_options(target: Target, given: Mapping[str, Any]) -> BulkOptions:
    """Options that were given by name, as options of the target's own kind."""
    known = [field.name for field in fields(target.options_type)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise BadInput(f"{target.name} has no option {', '.join(unknown)}; it has: {', '.join(known)}")
    return target.options_type(**given)


def checked_options(options: Options, batch_size: int) -> Options:
    """Options that can be followed; a batch size below one becomes the target's, with a warning."""
    for name in ("batch_size", "batch_size_max", "max_parallel_batches"):
        value = getattr(options, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise TypeError(f"{name} must be a whole number, not {value!r}")
    for name, least in (("batch_size_max", 1), ("max_parallel_batches", 1), ("max_errors", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise BadInput(f"{name} must be at least {least} or None, not {value}")
    if options.batch_seconds_target <= 0:
        raise BadInput(f"batch_seconds_target must be more than 0, not {options.batch_seconds_target}")
    if options.deadline_s is not None and options.deadline_s <= 0:
        raise BadInput(f"deadline_s must be more than 0 or None, not {options.deadline_s}")
    if options.duplicates not in POLICIES:
        raise BadInput(f"duplicates must be one of {', '.join(POLICIES)}, not {options.duplicates!r}")
    if options.batch_size is not None and options.batch_size >= 1:
        return options
    if options.batch_size is not None:
        log.warning("batch_size must be at least 1, not %d; %d is used", options.batch_size, batch_size)
    return replace(options, batch_size=batch_size)


def faults_in(mode: Mode, id_field: str | None, records: Sequence[Any]) -> dict[int, TargetError]:
    """The records that cannot be sent, by position: no record at all, or one without the id it needs."""
    if mode is Mode.DELETE:
        return _without_id(records, "the id is missing", None)
    strange = {kind for kind in set(map(type, records)) if not issubclass(kind, Mapping)}
    if strange:
        return {
            position: _fault(f"a record must be a mapping, not {type(record).__name__}", "BadRecord")
            for position, record in enumerate(records)
            if type(record) in strange
        }
    if mode is Mode.UPDATE and id_field is not None:
        ids = [record.get(id_field) for record in records]
        return _without_id(ids, f"the record has no {id_field!r}, which says what to update", id_field)
    return {}


def _without_id(ids: Sequence[Any], message: str, field: str | None) -> dict[int, TargetError]:
    if all(ids) and EMPTY_GUID not in ids:
        return {}
    absent = [position for position, found in enumerate(ids) if found is None or found in ("", EMPTY_GUID)]
    return {position: _fault(message, "MissingId", field) for position in absent}


def refuse_faults(faults: Mapping[int, TargetError]) -> None:
    """Refuse a list of records, naming every fault found in it."""
    if not faults:
        return
    named = ", ".join(map(str, list(faults)[:NAMED_MAX]))
    more = f" and {len(faults) - NAMED_MAX} more" if len(faults) > NAMED_MAX else ""
    raise BadInput(
        f"nothing was sent; wrong at index {named}{more}: {next(iter(faults.values())).message}",
        [Fault(f"index {position}: {fault.message}", fault.field) for position, fault in faults.items()],
    )


def _fault(message: str, code: str, field: str | None = None) -> TargetError:
    return TargetError(message, kind=ErrorKind.DATA, code=code, field=field)


class InputReader:
    """What was read and not yet taken. An input that raises ends there; `error` keeps what it raised."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.list = records if isinstance(records, Sequence) else None
        self.total = len(records) if isinstance(records, Sized) else None
        self._iterator: Any = None
        self._unread: list[Any] = []
        self.taken_count = 0
        self.is_over = False
        self.error: BaseException | None = None

    @property
    def read_count(self) -> int:
        return self.taken_count + len(self._unread)

    async def is_empty(self) -> bool:
        """Whether there is nothing at all to read."""
        if not self.read_count:
            await self.read(1)
        return not self.read_count

    async def read(self, size: int) -> None:
        """Read until `size` records wait to be taken, or the input ends."""
        wanted = size - len(self._unread)
        if self.is_over or wanted <= 0:
            return
        try:
            if self.list is not None:
                self._unread.extend(self.list[self.read_count : self.read_count + wanted])
            elif isinstance(self._records, AsyncIterable):
                self._iterator = self._iterator or aiter(self._records)
                while len(self._unread) < size:
                    self._unread.append(await anext(self._iterator))
            else:
                self._iterator = self._iterator or iter(self._records)
                self._unread.extend(islice(self._iterator, wanted))  # what came before an error stays
        except StopAsyncIteration:
            pass
        except asyncio.CancelledError as cancelled:
            if is_cancelled():
                raise
            self.error = cancelled  # something that the input waited for was cancelled, not the call
        except Exception as error:
            self.error = error
        self.is_over = len(self._unread) < size

    async def aclose(self, patience_s: float) -> None:
        """Let an async input that is not at its end clean up; what goes wrong then is logged."""
        aclose = getattr(self._iterator, "aclose", None)
        if aclose is None or self.is_over:
            return
        try:
            async with asyncio.timeout(patience_s):
                await aclose()
        except Exception:
            log.exception("the input could not be closed")

    def take(self, size: int) -> tuple[range, list[Any]]:
        """Up to `size` records that were read, with their positions in the input."""
        records, self._unread = self._unread[:size], self._unread[size:]
        indexes = range(self.taken_count, self.taken_count + len(records))
        self.taken_count += len(records)
        return indexes, records


@dataclass(slots=True)
class NextBatch:
    """Records for one batch, and those that no batch is made of."""

    indexes: Sequence[int] = ()
    records: Sequence[Any] = ()
    identities: Sequence[Hashable | None] | None = None
    refused: list[tuple[int, Any, TargetError]] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)


class Batcher:
    """The input as pieces.

    `check` finds records that cannot be sent; `duplicate_keys` is None when nothing identifies records; `size` is
    None when their bytes do not matter.
    """

    def __init__(
        self,
        reader: InputReader,
        *,
        check: Callable[[Sequence[Any]], Mapping[int, TargetError]],
        duplicate_keys: DuplicateKeys | None = None,
        size: Callable[[Any], int] | None = None,
        bytes_max: int | None = None,
    ) -> None:
        self._reader = reader
        self._check, self._duplicate_keys = check, duplicate_keys
        self._size, self._bytes_max = size, bytes_max
        self._ready: deque[tuple[int, Any, Hashable | None]] = deque()
        self._released = asyncio.Event()

    async def take(self, size: int) -> NextBatch | None:
        """The next piece with at most `size` records; None at the end. Waits while all records at hand must wait."""
        while True:
            if self._ready:
                return self._from_ready(size)
            if not self._is_blocked:
                await self._reader.read(size)
                piece = self._next(size)
                if piece.records or piece.refused or piece.skipped:
                    return piece
            if self._ready or not (self._reader.is_over or self._is_blocked):
                continue
            if not self._held_count:
                return None
            self._released.clear()
            await self._released.wait()

    def release(self, identities: Sequence[Hashable | None] | None) -> None:
        """Records of these keys are settled; others of the same keys may go."""
        if self._duplicate_keys is not None and identities is not None:
            self._ready.extend(self._duplicate_keys.release(identities))
            self._released.set()

    @property
    def _held_count(self) -> int:
        return self._duplicate_keys.held_count if self._duplicate_keys is not None else 0

    @property
    def _is_blocked(self) -> bool:
        return self._held_count >= HELD_MAX

    def _next(self, size: int) -> NextBatch:
        indexes, records = self._reader.take(size)
        faults = self._check(records)
        if not faults and self._duplicate_keys is None:
            return self._fitting(NextBatch(indexes, records))
        if not faults and (identities := self._claimed(records)) is not None:
            return self._fitting(NextBatch(indexes, records, identities))
        return self._sorted_out(indexes, records, faults)

    def _claimed(self, records: Sequence[Any]) -> Sequence[Hashable | None] | None:
        """The keys of all these records, taken; None when they must be looked at one by one."""
        assert self._duplicate_keys is not None
        try:
            identities = self._duplicate_keys.identities(records)
            return identities if self._duplicate_keys.claim_all(identities) else None
        except Exception:
            return None

    def _sorted_out(self, indexes: range, records: Sequence[Any], faults: Mapping[int, TargetError]) -> NextBatch:
        """Look at records one by one: each is made ready, held, skipped or refused."""
        piece, keys = NextBatch(), self._duplicate_keys
        for position, (index, record) in enumerate(zip(indexes, records, strict=True)):
            fault, identity, claim = faults.get(position), None, "go"
            if fault is None and keys is not None:
                try:
                    identity = keys.identity(record)
                    claim = keys.claim(index, record, identity)
                except Exception as error:
                    fault = _fault(f"the record has no usable key: {error!r}", "BadRecord")
            if claim == "refuse":
                fault = _fault("an earlier record has the same key", "DuplicateKey")
            if fault is not None:
                piece.refused.append((index, record, fault))
            elif claim == "go":
                self._ready.append((index, record, identity))
            elif claim == "skip":
                piece.skipped.append(index)
        return piece

    def _from_ready(self, size: int) -> NextBatch:
        taken = [self._ready.popleft() for _ in range(min(size, len(self._ready)))]
        indexes, records, identities = (list(column) for column in zip(*taken, strict=True))
        return self._fitting(NextBatch(indexes, records, identities if self._duplicate_keys is not None else None))

    def _fitting(self, piece: NextBatch) -> NextBatch:
        """As much of a piece as one call can carry; the rest is ready for the next. What cannot be sized is refused."""
        try:
            fits = self._fits(piece.records)
        except Exception:
            return self._fitting(self._sizeable(piece))
        if fits == len(piece.records):
            return piece
        keys = piece.identities or [None] * len(piece.records)
        rest = zip(piece.indexes[fits:], piece.records[fits:], keys[fits:], strict=True)
        self._ready.extendleft(reversed(list(rest)))
        return NextBatch(piece.indexes[:fits], piece.records[:fits], keys[:fits], piece.refused)

    def _sizeable(self, piece: NextBatch) -> NextBatch:
        assert self._size is not None
        wrong = dict[int, TargetError]()
        for position, record in enumerate(piece.records):
            try:
                self._size(record)
            except Exception as error:
                wrong[position] = _fault(f"the record cannot be encoded: {error!r}", "BadRecord")
        refused = [(piece.indexes[n], piece.records[n], fault) for n, fault in wrong.items()]
        kept = [n for n in range(len(piece.records)) if n not in wrong]
        indexes, records = [piece.indexes[n] for n in kept], [piece.records[n] for n in kept]
        identities = None
        if piece.identities is not None:
            self.release([piece.identities[n] for n in wrong])
            identities = [piece.identities[n] for n in kept]
        return NextBatch(indexes, records, identities, [*piece.refused, *refused])

    def _fits(self, records: Sequence[Any]) -> int:
        """How many of the records one call can carry; a record that is too big by itself goes alone."""
        if self._size is None or self._bytes_max is None:
            return len(records)
        totals = enumerate(accumulate(map(self._size, records)))
        too_many = (position for position, total in totals if position and total > self._bytes_max)
        return next(too_many, len(records))
