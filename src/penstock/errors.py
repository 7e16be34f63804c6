"""Every error Penstock raises, split by what the caller should do about it.

PenstockError
├── InvalidInput            correct what you sent
│   ├── DeclarationError    an operation or a step is declared wrongly
│   ├── DefinitionInvalid   the document of a lifecycle or machine has faults
│   ├── FileRejected        the file as a whole cannot be read
│   ├── MetadataInvalid     the metadata does not fit the operation
│   ├── SettingsInvalid     a setting or option is unknown or out of range
│   │   └── DatabaseRefused the database does not let this user in
│   ├── TooLarge            send less at once
│   └── RowInvalid          raised by your validators: this row is wrong
├── NotFound                look elsewhere
│   ├── FileChanged         a stored file is not the one that was checked
│   └── NoSuchWait          no row could ever wait for that signal
├── Conflict                the record is not in a state for that
│   ├── IllegalMove         a machine's table does not list that move
│   ├── PreconditionFailed  it has changed since you read it: read it again
│   └── KeyRefused          an idempotency key is in use, or was used for something else
├── AccessRefused           send a credential that may do this
│   ├── Unauthenticated     the credential is missing, wrong or over
│   └── Forbidden           the credential has not the role or the right
├── Unavailable             retry later
│   ├── DatabaseUnready     the schema needs `penstock db upgrade`
│   ├── DatabaseUnsafe      the server's settings could lose commits
│   ├── DiskFull            make room on the disk of the database or the storage folder
│   ├── FileUnreadable      this process cannot read a stored file
│   ├── SecretsUnreadable   this process has not the key to stored secrets
│   ├── Throttled           too many requests; it says when to come again
│   └── OperationUnready    an operation's lifespan raises
├── DatabaseDamaged         restore the database: what it holds cannot be read
├── StepFailed              raised by your steps: this row cannot succeed
└── RetryLater              raised by your steps: ask again after a while
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

__all__ = [
    "AccessRefused",
    "Conflict",
    "DatabaseDamaged",
    "DatabaseRefused",
    "DatabaseUnready",
    "DatabaseUnsafe",
    "DeclarationError",
    "DefinitionInvalid",
    "DiskFull",
    "Fault",
    "FileChanged",
    "FileRejected",
    "FileUnreadable",
    "Forbidden",
    "IllegalMove",
    "InvalidInput",
    "KeyRefused",
    "MetadataInvalid",
    "NoSuchWait",
    "NotFound",
    "OperationUnready",
    "PenstockError",
    "PreconditionFailed",
    "RetryLater",
    "RowInvalid",
    "SecretsUnreadable",
    "SettingsInvalid",
    "StepFailed",
    "Throttled",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a row, a header or metadata; `field` is None when it is about the whole."""

    message: str
    field: str | None = None

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class PenstockError(Exception):
    """The base class of all errors raised by Penstock."""


class InvalidInput(PenstockError):
    """The input is invalid; `faults` lists every fault that was found."""

    def __init__(self, message: str, faults: Iterable[Fault] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)


class DeclarationError(InvalidInput):
    """An operation, a step or a row model is declared in a way that cannot work."""


class DefinitionInvalid(InvalidInput):
    """The document of a lifecycle or machine has faults; each names its path in the document."""


class FileRejected(InvalidInput):
    """The file as a whole cannot be read; `code` is a short stable word for the reason."""

    def __init__(self, message: str, *, code: str = "unreadable", faults: Iterable[Fault] = ()) -> None:
        super().__init__(message, faults)
        self.code = code


class MetadataInvalid(InvalidInput):
    """The metadata does not fit the operation's metadata model."""


class SettingsInvalid(InvalidInput):
    """A setting or an option is unknown, of the wrong type or out of range."""


class DatabaseRefused(SettingsInvalid):
    """The database refuses the user, the password or the name that its URL has."""


class TooLarge(InvalidInput):
    """What was sent has more bytes, rows or parts than are accepted at once."""


class RowInvalid(InvalidInput):
    """Raise this in `validate_row` or a validator: the row is wrong and will not be processed.

    `RowInvalid("end before start", field="end")` reports a fault, `RowInvalid(faults={"end": "…", "start": "…"})` two.
    """

    def __init__(
        self, message: str = "", *, field: str | None = None, faults: Mapping[str, str] | Sequence[Fault] = ()
    ) -> None:
        listed = [Fault(text, name) for name, text in faults.items()] if isinstance(faults, Mapping) else list(faults)
        if message:
            listed.insert(0, Fault(message, field))
        super().__init__("; ".join(map(str, listed)), listed)


def faults_of(error: InvalidInput) -> list[Fault]:
    """The faults that an error names, as texts; none where a user's class holds what is no fault."""
    try:
        given: Iterable[Any] = error.faults
        named = [fault if isinstance(fault, Fault) else Fault(str(fault)) for fault in given]
        return [Fault(str(fault.message), None if fault.field is None else str(fault.field)) for fault in named]
    except BaseException:  # it may hold anything, or not even have called our `__init__`
        return []


class NotFound(PenstockError):
    """No record has that id or name."""


class FileChanged(NotFound):
    """The bytes of a stored file were replaced after they had been checked; those that were checked are gone."""


class NoSuchWait(NotFound):
    """No row could ever wait for this signal; `is_over` when the operation has ended or is stopping."""

    def __init__(self, message: str, *, is_over: bool = False) -> None:
        super().__init__(message)
        self.is_over = is_over


class Conflict(PenstockError):
    """The record exists, but the request is not possible in its current state."""


class IllegalMove(Conflict):
    """A machine's table does not list this event for the record's state."""

    def __init__(self, machine: str, subject: str, state: str, event: str, allowed: Sequence[str]) -> None:
        self.machine, self.subject, self.state, self.event, self.allowed = (
            machine,
            subject,
            state,
            event,
            tuple(allowed),
        )
        may = f"possible: {', '.join(allowed)}" if allowed else "nothing is, because it is settled"
        super().__init__(f"{subject} is {state}, and {event!r} is not possible in this state; {may}")


class PreconditionFailed(Conflict):
    """The record is not any more as the caller has seen it."""


class KeyRefused(Conflict):
    """An idempotency key does not admit this request; `reason` says why.

    `in_flight`: it is running, ask again after `retry_after_s`. `mismatch`: the key was used for another request.
    `indeterminate`: it was cut off, and nobody knows how far it came. `lost`: another attempt has taken over.
    """

    def __init__(self, reason: str, message: str, *, key: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.reason, self.key, self.retry_after_s = reason, key, retry_after_s


class AccessRefused(PenstockError):
    """Whoever asks may not do this."""


class Unauthenticated(AccessRefused):
    """There is no credential, or it is wrong, expired or revoked."""


class Forbidden(AccessRefused):
    """The credential is good, and has not the role or the right that this needs."""


class Unavailable(PenstockError):
    """Something Penstock depends on is not ready; the same call may succeed later."""


class DatabaseUnready(Unavailable):
    """The database's schema is missing, older or newer than this release."""


class DatabaseUnsafe(Unavailable):
    """The database's settings could lose committed data."""


class DiskFull(Unavailable):
    """There is no room for what should be written; it was not, and the same call succeeds once there is room."""


class FileUnreadable(Unavailable):
    """A stored file exists, but this process cannot read it; another process may be able to."""


class SecretsUnreadable(Unavailable):
    """Secrets in an operation's metadata are encrypted with a key that this process has not; another may."""


class Throttled(Unavailable):
    """Too many requests at once; come again after `retry_after_s`."""

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class OperationUnready(Unavailable):
    """An operation's lifespan raises, so its code cannot be called in this process now."""


class DatabaseDamaged(PenstockError):
    """The database's file is damaged, or is no database: it has to be restored, and nothing else helps."""


class StepFailed(PenstockError):
    """Raise this in a step: the row has failed and no retry would help."""


class RetryLater(PenstockError):
    """Raise this in a step: not now; try again after `after` seconds, without spending a retry.

    Less than a tenth of a second counts as one; `ValueError` when it is negative or not finite.
    """

    def __init__(self, message: str = "", *, after: float | timedelta) -> None:
        super().__init__(message)
        self.after = after.total_seconds() if isinstance(after, timedelta) else float(after)
        if not 0 <= self.after < math.inf:
            raise ValueError(
                f"RetryLater(after={self.after:g}) cannot work: it needs a finite number of seconds, 0 or more"
            )
