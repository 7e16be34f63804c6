"""What SQLite's errors mean for a batch."""

from __future__ import annotations

import re

from penstock.targets.model import ErrorKind, TargetError

__all__ = ["kind_of", "refusal"]

# fmt: off
PREFIXES = (
    ("SQLITE_CONSTRAINT_TRIGGER", ErrorKind.BUSINESS),   # RAISE in a trigger
    ("SQLITE_CONSTRAINT",         ErrorKind.DATA),
    ("SQLITE_MISMATCH",           ErrorKind.DATA),
    ("SQLITE_TOOBIG",             ErrorKind.DATA),
    ("SQLITE_BUSY",               ErrorKind.DEADLOCK),   # another writer did not let go in time
    ("SQLITE_LOCKED",             ErrorKind.DEADLOCK),
    ("SQLITE_SCHEMA",             ErrorKind.RACE),
    ("SQLITE_READONLY",           ErrorKind.PERMISSION),
    ("SQLITE_PERM",               ErrorKind.PERMISSION),
    ("SQLITE_AUTH",               ErrorKind.PERMISSION),
    ("SQLITE_NOMEM",              ErrorKind.TOO_BIG),
    ("SQLITE_CANTOPEN",           ErrorKind.CONNECTION),
    ("SQLITE_IOERR",              ErrorKind.CONNECTION),
)
# fmt: on
GONE = re.compile(r"no such (table|column)|has no column named")
CONSTRAINT = re.compile(r"constraint failed: (?P<what>.+)")
COLUMN = re.compile(r"^[^.,]+\.(?P<column>[^.,]+)$")


def kind_of(name: str | None, message: str) -> ErrorKind:
    """The class of an error by SQLite's name for it."""
    if name == "SQLITE_ERROR" and GONE.search(message):
        return ErrorKind.RACE  # it was there a moment ago: someone is changing the table
    return next((kind for prefix, kind in PREFIXES if (name or "").startswith(prefix)), ErrorKind.OTHER)


def refusal(error: BaseException) -> TargetError:
    """Any error as a target's. SQLite's own have a name; those without are the driver's about a value."""
    if isinstance(error, TargetError):
        return error
    name, message = getattr(error, "sqlite_errorname", None), str(error)
    if name is None:
        return TargetError(f"the driver cannot send a value: {message}", kind=ErrorKind.DATA, code="BAD_TYPE")
    failed = CONSTRAINT.search(message)
    column = COLUMN.match(failed["what"]) if failed else None
    return TargetError(
        message,
        kind=kind_of(name, message),
        code=name,
        field=column["column"] if column else None,
        details={"constraint": failed["what"]} if failed else {},
    )
