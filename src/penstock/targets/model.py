"""What goes into a bulk call and what comes out of it: plain values, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from penstock.errors import InvalidInput, PenstockError

__all__ = [
    "BadInput",
    "BulkOptions",
    "ErrorKind",
    "Limit",
    "Mode",
    "Outcome",
    "Record",
    "RecordId",
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


SUCCESSES = frozenset({Outcome.CREATED, Outcome.UPDATED, Outcome.UNCHANGED, Outcome.DELETED})


class ErrorKind(StrEnum):
    """Why a remote refused: the classes of error that are treated differently."""

    THROTTLED = "throttled"  # wait as told, without limit
    TOKEN = "token"  # the credential is stale: refresh it, a few times
    PERMISSION = "permission"  # the credential may not do this: no retry
    CONNECTION = "connection"  # no answer, or none that can be trusted: a few times, after asking what happened
    DEADLOCK = "deadlock"  # rolled back in favour of another: a few times
    RACE = "race"  # the remote is still building what the call needs: a few times
    TOO_BIG = "too big"  # too slow or too large as one batch: split it
    BUSINESS = "business"  # a plug-in, trigger or rule of the remote said no
    DATA = "data"  # the record is wrong for the table
    UNSUPPORTED = "unsupported"  # the table does not take this call
    OTHER = "other"  # anything else the remote said


class Limit(StrEnum):
    """Which of a remote's limits was hit, when it says so."""

    REQUESTS = "requests"  # too many calls in the window: bigger batches help
    TIME = "time"  # too much of the server's time: smaller or slower batches help
    CONCURRENCY = "concurrency"  # too many calls at once: fewer workers help


class TargetError(PenstockError):
    """A remote refused a batch, or one record of it, or did not answer.

    A target raises it from `send` when the batch failed as a whole, and puts it into a `Verdict` when one record did.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: ErrorKind = ErrorKind.OTHER,
        code: str | None = None,
        retry_after_s: float | None = None,
        limit: Limit | None = None,
        maybe_applied: bool = False,
        suspects: tuple[int, ...] = (),
        field: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.code = code
        """The remote's own code, as it spells it: `0x80040237`, `23505`, `409`."""
        self.retry_after_s = retry_after_s
        self.limit = limit
        self.maybe_applied = maybe_applied
        """The call may have taken effect although no answer came: it is never simply sent again."""
        self.suspects = suspects
        """Positions in the batch that the remote named as the guilty ones."""
        self.field = field
        self.details = details or {}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the remote said of one record of a batch."""

    outcome: Outcome
    id: RecordId = None
    error: TargetError | None = None


@dataclass(frozen=True, kw_only=True)
class BulkOptions:
    """How a bulk call behaves, on every target; a target may add its own in a subclass."""

    batch_size: int = 100
    """Records in a batch; with `adapt_batch_size` the size it starts from."""
    adapt_batch_size: bool = False
    """Let the seconds that batches take steer the size between 1 and `batch_size_max`."""
    batch_size_max: int = 1000
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
