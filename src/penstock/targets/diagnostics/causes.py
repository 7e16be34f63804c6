"""The mistakes that can be told from a remote's error: by its kind, its code or its words."""

from __future__ import annotations

import re
from enum import StrEnum

from penstock.targets.diagnostics.error_parsing import ParsedError
from penstock.targets.model import TRANSIENT, ErrorKind

__all__ = ["Cause", "cause_of"]


class Cause(StrEnum):
    """Why a record cannot be taken, as far as its data and the remote's words tell."""

    SELF_REFERENCE = "SELF_REFERENCE"
    SAME_BATCH_REFERENCE = "SAME_BATCH_REFERENCE"
    MISSING_REFERENCE = "MISSING_REFERENCE"
    DUPLICATE_IN_BATCH = "DUPLICATE_IN_BATCH"
    DUPLICATE_IN_TARGET = "DUPLICATE_IN_TARGET"
    REQUIRED_MISSING = "REQUIRED_MISSING"
    TOO_LONG = "TOO_LONG"
    BAD_TYPE = "BAD_TYPE"
    PERMISSION = "PERMISSION"
    PLUGIN = "PLUGIN"
    TIMEOUT_SIZE = "TIMEOUT_SIZE"
    PARENT_FAILED = "PARENT_FAILED"


SUGGESTIONS = {
    Cause.SELF_REFERENCE: "create the record without this reference, then set it in a second pass",
    Cause.SAME_BATCH_REFERENCE: "send the referenced record in an earlier batch: order the records in waves",
    Cause.MISSING_REFERENCE: "create the referenced record first, or correct or drop the reference",
    Cause.DUPLICATE_IN_BATCH: "send only one record of this key, or use upsert with a policy for duplicates",
    Cause.DUPLICATE_IN_TARGET: "the remote already holds this key: use upsert or update, or leave the record out",
    Cause.REQUIRED_MISSING: "give the field a value",
    Cause.TOO_LONG: "shorten the value, or widen the column",
    Cause.BAD_TYPE: "convert the value to the type of the column",
    Cause.PERMISSION: "grant the credential the right to do this, or use another credential",
    Cause.PLUGIN: "read the message: a plug-in, trigger or rule of the remote refused the record",
    Cause.TIMEOUT_SIZE: "use smaller batches, or let the batch size adapt",
    Cause.PARENT_FAILED: "mend the record it refers to, then send both again",
}


# How a cause shows in an error: by the remote's code, or by its words. Codes of Dataverse, PostgreSQL, MariaDB and
# SQLite, in this order and in lower case. 1451 and "still referenced" are not among them: there the parent exists, and
# it is the delete that is wrong. Nor are 0x80040217 and 23503: they also say such things.
PATTERNS = (
    (Cause.DUPLICATE_IN_BATCH, "21000", r"cannot affect row a second time|duplicate keys? in (?:the|one) request"),
    (
        Cause.DUPLICATE_IN_TARGET,
        "0x80040237 0x80060892 0x80040333 23505 1062 1555 2067",
        r"duplicate (?:key|entry|record)|already exists|matching key values|UNIQUE constraint failed",
    ),
    (
        Cause.MISSING_REFERENCE,
        "1452 787",
        r"\bIds? ?= ?\{?[0-9a-f-]{36}|is not present in table|FOREIGN KEY constraint failed|child row: a foreign key"
        r"|insert or update on table .* violates foreign key",
    ),
    (
        Cause.REQUIRED_MISSING,
        "23502 1048 1364 1299",
        r"null value in column|cannot be null|doesn't have a default value|NOT NULL constraint failed"
        r"|required (?:field|attribute)|is required\b|must not be (?:null|empty)",
    ),
    (
        Cause.TOO_LONG,
        "0x80044331 22001 1406",
        r"value too long|data too long|exceed\w* (?:the )?max\w* (?:allowed )?length|longer than",
    ),
    (
        Cause.BAD_TYPE,
        "0x80048d19 22p02 22003 22007 22008 42804 1366 1292 1264 3091",
        r"invalid input (?:syntax|value)|datatype mismatch|cannot convert|incorrect \w+ value|out of range"
        r"|cannot store \w+ value",
    ),
)
KINDS = {
    ErrorKind.PERMISSION: Cause.PERMISSION,
    ErrorKind.BUSINESS: Cause.PLUGIN,
    ErrorKind.TOO_BIG: Cause.TIMEOUT_SIZE,
}


def cause_of(error: BaseException) -> Cause | None:
    """What an error is about, by its code first and its words second; None when neither is known."""
    parsed = ParsedError.of(error)
    if parsed.kind in TRANSIENT:
        return None
    if parsed.kind in KINDS:
        return KINDS[parsed.kind]
    by_code = (cause for cause, codes, _ in PATTERNS if parsed.code in codes.split())
    by_words = (cause for cause, _, words in PATTERNS if re.search(words, parsed.text, re.IGNORECASE))
    return next(by_code, None) or next(by_words, None)
