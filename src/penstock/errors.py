"""Every error Penstock raises, split by what the caller should do about it.

PenstockError
├── InvalidInput            fix what you sent
│   ├── DeclarationError    an operation or a step is declared wrongly
│   ├── DefinitionInvalid   the document of a lifecycle or machine has faults
│   ├── FileRejected        the file as a whole cannot be read
│   ├── MetadataInvalid     the metadata does not fit the operation
│   ├── SettingsInvalid     a setting or option is unknown or out of range
│   └── RowInvalid          raised by your validators: this row is wrong
├── NotFound                look elsewhere
│   └── NoSuchWait          no row could ever wait for that signal
├── Conflict                the record is not in a state for that
│   └── IllegalMove         a machine's table does not list that move
├── Unavailable             retry later
│   ├── DatabaseUnready     the schema needs `penstock db upgrade`
│   ├── DatabaseUnsafe      the server's settings could lose commits
│   ├── FileUnreadable      this process cannot read a stored file
│   └── OperationUnready    an operation's lifespan raises
├── StepFailed              raised by your steps: this row cannot succeed
└── RetryLater              raised by your steps: ask again after a while
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

__all__ = [
    "Conflict",
    "DatabaseUnready",
    "DatabaseUnsafe",
    "DeclarationError",
    "DefinitionInvalid",
    "Fault",
    "FileRejected",
    "FileUnreadable",
    "IllegalMove",
    "InvalidInput",
    "MetadataInvalid",
    "NoSuchWait",
    "NotFound",
    "OperationUnready",
    "PenstockError",
    "RetryLater",
    "RowInvalid",
    "SettingsInvalid",
    "StepFailed",
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
    """The root of all errors raised by Penstock."""


class InvalidInput(PenstockError):
    """What was sent is wrong; `faults` names every fault that was found."""

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


class NotFound(PenstockError):
    """No record has that id or name."""


class NoSuchWait(NotFound):
    """No row could ever wait for this signal; `is_over` when the operation has ended or is stopping."""

    def __init__(self, message: str, *, is_over: bool = False) -> None:
        super().__init__(message)
        self.is_over = is_over


class Conflict(PenstockError):
    """The record exists, but its state does not admit the request."""


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
        may = ", ".join(allowed) if allowed else "nothing, it is settled"
        super().__init__(f"{subject} in {state!r} cannot take {event!r}; it can take: {may}")


class Unavailable(PenstockError):
    """Something Penstock depends on is not ready; the same call may succeed later."""


class DatabaseUnready(Unavailable):
    """The database's schema is missing, older or newer than this release."""


class DatabaseUnsafe(Unavailable):
    """The database's settings would lose commits that Penstock calls durable."""


class FileUnreadable(Unavailable):
    """A stored file is there, but this process may not or cannot read it; another may."""


class OperationUnready(Unavailable):
    """An operation's lifespan raises, so that nothing of its code can be called here now."""


class StepFailed(PenstockError):
    """Raise this in a step: the row has failed and no retry would help."""


class RetryLater(PenstockError):
    """Raise this in a step: not now; try again after `after` seconds, without spending a retry."""

    def __init__(self, message: str = "", *, after: float | timedelta) -> None:
        super().__init__(message)
        self.after = after.total_seconds() if isinstance(after, timedelta) else float(after)
