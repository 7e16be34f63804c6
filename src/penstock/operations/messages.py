"""The texts of errors: cut to size, and grouped. Pure."""

from __future__ import annotations

import re
import zlib

__all__ = ["MESSAGE_MAX", "cut", "error_group", "in_doubt", "message_of", "shown"]

MESSAGE_MAX = 2000
_DOUBT = ", so it may or may not have taken effect"


def in_doubt(what: str) -> str:
    """The message of a call that is in doubt, from what is known of it."""
    return cut(what, MESSAGE_MAX - len(_DOUBT)) + _DOUBT


def message_of(error: BaseException) -> str:
    """An exception's own text, which may be empty."""
    try:
        return str(error)
    except BaseException:  # a user's exception may fail even at this
        return "(its text could not be made)"


def shown(value: object) -> str:
    """A value that a user's function gave, as an error may show it."""
    try:
        return cut(repr(value), 200)
    except BaseException:  # as above
        return f"an object of {type(value).__name__}"


def cut(text: str, limit: int = MESSAGE_MAX) -> str:
    """Text of at most `limit` characters, safe for every database, the cut marked."""
    text = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    if len(text) <= limit:
        return text
    mark = f"… ({len(text)} characters)"
    return text[: limit - len(mark)] + mark


_VARIABLE = re.compile(
    r"""'[^']*'|"[^"]*"|(?<=\)=)\([^)]*\)|\b0x[0-9a-f]+\b|\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\d+""", re.IGNORECASE
)


def error_group(message: str) -> str:
    """A short key that is the same for messages that differ only in numbers, ids and quoted values."""
    return f"{zlib.crc32(_VARIABLE.sub('#', message).encode()):08x}"
