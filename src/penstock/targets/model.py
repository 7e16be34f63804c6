"""What goes into a bulk call and what comes out of it: plain values, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, Self, TypeAlias

from penstock.errors import InvalidInput, PenstockError

__all__ = [
    "DONE",
    "JUDGED",
    "TRANSIENT",
    "Answer",
    "BadInput",
    "Batch",
    "BulkOptions",
    "Capabilities",
    "ErrorKind",
    "Limit",
    "Mode",
    "Outcome",
    "Record",
    "RecordId",
    "Reference",
    "TargetError",
    "Verdict",
]

Record: TypeAlias = Mapping[str, Any]
RecordId: TypeAlias = Any
"""What a remote calls a record: a GUID as text, an integer, or a tuple or mapping of key columns."""


class BadInput(InvalidInput, ValueError):
    """The arguments of a bulk call are wrong; nothing was sent."""


class Mode(StrEnum):
    """What a bulk call does to its records."""

    CREATE = "create"
    UPDATE = "update"
    UPSERT = "upsert"
    DELETE = "delete"


class Outcome(StrEnum):
    """What became of one record."""

    CREATED = "created"
    UPDATED = "updated"
    UPSERTED = "upserted"  # created or updated: the remote did not say which
    UNCHANGED = "unchanged"
    DELETED = "deleted"
    FAILED = "failed"
    UNKNOWN = "unknown"  # it was sent, the answer was lost, and the remote could not be asked
    NOT_RUN = "not run"  # it was never sent: the call was stopped before
    SKIPPED = "skipped"  # it was left out: `duplicates` chose another record of the same key

    @property
    def is_success(self) -> bool:
        """Whether the remote now holds what was asked for."""
        return self in SUCCESSES


SUCCESSES = frozenset({Outcome.CREATED, Outcome.UPDATED, Outcome.UPSERTED, Outcome.UNCHANGED, Outcome.DELETED})


DONE = {
    Mode.CREATE: Outcome.CREATED,
    Mode.UPDATE: Outcome.UPDATED,
    Mode.UPSERT: Outcome.UPSERTED,
    Mode.DELETE: Outcome.DELETED,
}
"""What became of a record when all that is known is that the remote did as it was asked."""


class ErrorKind(StrEnum):
    """Why a remote refused: the classes of error that are treated differently."""

    THROTTLED = "throttled"  # wait as told, without limit
    TOKEN = "token"  # the credential is stale: refresh it, a few times
    PERMISSION = "permission"  # the credential may not do this: no retry
    CONNECTION = "connection"  # no answer, or none that can be trusted: a few times, after asking what happened
    SERVER = "server"  # it failed by itself, and repeating does no harm: a few times, then look for guilty records
    DEADLOCK = "deadlock"  # rolled back in favour of another: a few times
    RACE = "race"  # the remote is still building what the call needs: a few times
    TOO_BIG = "too big"  # too slow or too large as one batch: split it
    BUSINESS = "business"  # a plug-in, trigger or rule of the remote said no
    DATA = "data"  # the record is wrong for the table
    UNSUPPORTED = "unsupported"  # the table does not take this call
    OTHER = "other"  # anything else the remote said


JUDGED = frozenset({ErrorKind.DATA, ErrorKind.BUSINESS})
"""The remote looked at the record and said no."""
TRANSIENT = frozenset({ErrorKind.THROTTLED, ErrorKind.TOKEN, ErrorKind.CONNECTION, ErrorKind.DEADLOCK, ErrorKind.RACE})
"""Nothing is wrong with the record: another time it may be taken."""


class Limit(StrEnum):
    """Which of a remote's limits was hit, when it says so."""

    REQUESTS = "requests"  # too many calls in the window: bigger batches help
    TIME = "time"  # too much of the server's time: smaller or slower batches help
    CONCURRENCY = "concurrency"  # too many calls at once: fewer workers help


@dataclass(eq=False, repr=False)
class TargetError(PenstockError):
    """A remote refused a batch, or one record of it, or did not answer.

    A target raises it from `send` when the batch failed as a whole, and puts it into a `Verdict` when one record did.
    """

    message: str
    _: KW_ONLY
    kind: ErrorKind = ErrorKind.OTHER
    code: str | None = None
    """The remote's own code, as it spells it: `0x80040237`, `23505`, `409`."""
    retry_after_s: float | None = None
    limit: Limit | None = None
    maybe_applied: bool = False
    """The call may have taken effect although no answer came: it is never simply sent again."""
    suspects: tuple[int, ...] = ()
    """Positions in the batch that the remote named as the guilty ones."""
    details: Mapping[str, Any] = field(default_factory=dict)
    field: str | None = None

    def __post_init__(self) -> None:
        super().__init__(self.message)

    def but(self, **changes: Any) -> TargetError:
        """The same error with some of its facts changed."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the remote said of one record of a batch."""

    outcome: Outcome
    id: RecordId = None
    error: TargetError | None = None


@dataclass(frozen=True, kw_only=True)
class BulkOptions:
    """How a bulk call behaves, on every target; a target may add its own in a subclass."""

    batch_size: int | None = None
    """Records in a batch; None is what suits the target. With `adapt_batch_size` the size it starts from."""
    adapt_batch_size: bool = False
    """Let the seconds that batches take steer the size between 1 and `batch_size_max`."""
    batch_size_max: int | None = None
    """None is ten times the batch size."""
    batch_seconds_target: float = 2.0
    max_parallel_batches: int | None = None
    """The width of this call; None is the pool's. It never exceeds the pool's."""
    isolate: bool = True
    """Split a batch that failed as a whole until only the guilty records fail; False fails them all."""
    continue_on_error: bool = True
    """False stops the call at the first failed record; the rest are reported as not run."""
    max_errors: int | None = None
    """Stop the call when more records than this have failed or are unknown; the rest are reported as not run."""
    deadline_s: float | None = None
    """Give up after so many seconds, with partial results; None waits out any throttle."""
    duplicates: Literal["keep-order", "first", "last", "error"] = "keep-order"
    """What to do with several records of one key: send them one after the other, only one of them, or refuse."""
    keep_ids: bool = True
    """Whether the result keeps created ids; `on_outcomes` sees them in any case."""
    on_outcomes: Callable[[list[tuple[int, Verdict]]], None] | None = None
    """Called after every batch with (input index, verdict) of its records, for callers that keep their own account."""
    references: Mapping[str, str] = field(default_factory=dict)
    """Columns that refer to other records and the table they refer to, for diagnostics and for waves."""

    def __new__(cls, **given: Any) -> Self:
        options = super().__new__(cls)
        # A field that was given counts in `laid_over`, also with the value that is its default.
        object.__setattr__(options, "_given", frozenset(given))
        return options

    def laid_over(self, base: BulkOptions) -> BulkOptions:
        """These options where they were given, and those of `base` elsewhere; of the more specific class."""
        mine, its = type(self), type(base)
        if not (issubclass(mine, its) or issubclass(its, mine)):
            raise BadInput(f"{mine.__name__} cannot be laid over {its.__name__}: give options of one kind")
        given: frozenset[str] = getattr(self, "_given")  # noqa: B009 - no field of the dataclass
        names = dict.fromkeys(getattr(base, "_given"), base) | dict.fromkeys(given, self)  # noqa: B009
        kind = mine if issubclass(mine, its) else its
        return kind(**{name: getattr(owner, name) for name, owner in names.items()})


@dataclass(frozen=True, slots=True)
class Batch:
    """One call to a remote; `records` are ids when the mode is delete.

    `key` is the same for every try of the same records, so that a remote can recognise a resend.
    """

    table: str
    mode: Mode
    records: Sequence[Any]
    options: BulkOptions
    key: str
    call_id: str = ""
    indexes: Sequence[int] = ()
    """The places of the records in the input of the bulk call."""

    def __len__(self) -> int:
        return len(self.records)

    def record_key(self, position: int) -> str:
        """A key of one record: the same in every batch that carries it, unlike that of any other record."""
        return f"{self.call_id}/{self.indexes[position]}" if self.indexes else f"{self.key}/{position}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a remote said to a batch: a verdict for every record, in the batch's order."""

    verdicts: Sequence[Verdict]
    width_hint: int | None = None
    """How many calls at once the remote now recommends for this source."""
    counts_exact: bool = True
    """Whether `created` and `updated` are what the remote said, not what was there shortly before."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """How a table behaves under one mode."""

    is_atomic: bool = True
    """A failed batch changed nothing; False when the remote answers record by record."""
    is_idempotent: bool = False
    """Sending a batch again after a lost answer leaves the remote as one sending would, and answers the same."""
    can_reconcile: bool = False
    """`reconcile` can say what became of a batch whose answer was lost."""
    asked_records_max: int | None = None
    """Records that `reconcile` is given at once; None is the whole batch. Each call of it takes a slot and counts for
    the rate, so a target that makes a request for each record says 1."""
    records_max: int | None = None
    bytes_max: int | None = None
    id_field: str | None = None
    """The column that identifies a record, required in every record of an update."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A field of a record that refers to another record."""

    field: str
    table: str
    id: RecordId
