"""One JSON text becomes one row, or the list of everything that is wrong with it.

Decoders are lenient in ways that would change data silently: they keep the last of two equal keys, read 1e400 as
infinity, and let NaN, NUL and half a surrogate pair through. `is_plain` shows cheaply, for many rows at once, that
none of this can be the case; `decode_row` looks closely at the rest.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import Fault
from penstock.formats.model import Limits, RawRow

__all__ = ["Decoded", "decode_row", "is_plain", "oversized"]

# A key's colon stands behind its quote or behind white space. So neither these nor all colons are fewer than the keys
# in a text, and if the objects decoded from it have as many keys, then no key was dropped as a repetition.
KEY_ENDS = ('":', " :", "\t:", "\n:", "\r:")
ESCAPES_TO_EXAMINE = ("\\u0000", "\\ud", "\\uD")
NUL_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)

FAULTS_MAX = 20
CONTAINERS = (dict, list)
KINDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


@dataclass(slots=True)
class Decoded:
    """What became of a JSON text; `row` is the text itself where it is no usable object.

    `broken_at` is the index at which it stops being JSON, `repeated` the keys that an object has twice.
    """

    row: RawRow
    faults: list[Fault] = field(default_factory=list)
    broken_at: int | None = None
    repeated: list[str] = field(default_factory=list)


def is_plain(text: str, rows: Sequence[Any], limits: Limits) -> bool:
    """Whether `rows`, decoded from `text` by any decoder that refuses NaN and infinity, are surely good rows.

    No means only that they must be looked at one by one, or closely.
    """
    if set(map(type, rows)) != {dict} or ("\\" in text and any(escape in text for escape in ESCAPES_TO_EXAMINE)):
        return False
    bounds = [text.count(":"), sum(text.count(end) for end in KEY_ENDS if end[0] in text)]
    if "[" not in text and sum(map(len, rows)) in bounds:
        return True  # flat rows
    try:
        return sum(count_keys(row, limits.json_depth_max) for row in rows) in bounds
    except RecursionError:
        return False


def decode_row(text: str, limits: Limits) -> Decoded:
    """The row in one JSON text, every fault of it noted; raises nothing."""
    if len(text.encode()) > limits.row_bytes_max:
        return Decoded(text[: limits.row_bytes_max], [oversized(limits)])
    too_deep = Decoded(text, [Fault(f"is nested more than {limits.json_depth_max} levels deep")])
    if depth(text) > limits.json_depth_max:
        return too_deep
    try:
        return examine(text)
    except RecursionError:  # the limit is set higher than the interpreter's own
        return too_deep


def examine(text: str) -> Decoded:
    audit = Audit()
    try:
        value = audit.decode(text)
    except json.JSONDecodeError as error:
        return Decoded(text, [Fault(f"is not JSON: {error.msg} at character {error.pos + 1}")], broken_at=error.pos)
    if not isinstance(value, dict):
        audit.note(f"is {KINDS.get(type(value), 'a number')}, not an object")
    if NUL_ESCAPE.search(text):
        audit.note("contains a NUL character")
    if "\\u" in text and has_lone_surrogate(value):
        audit.note("contains half of a surrogate pair, which is no character")
    for key in audit.repeated:
        audit.note("appears twice in one object", printable(key))
    return Decoded(text if audit.faults else value, list(audit.faults)[:FAULTS_MAX], repeated=list(audit.repeated))


def oversized(limits: Limits) -> Fault:
    """The fault of a row that is too large to be read."""
    return Fault(f"is larger than {limits.row_bytes_max:,} bytes")


def printable(key: str) -> str:
    """A key as it can be stored and shown anywhere."""
    return (key if key.isprintable() else ascii(key)[1:-1])[:100]


def count_keys(value: dict[str, Any] | list[Any], levels: int) -> int:
    """The keys of all objects in a value that has at most so many levels."""
    if not levels:
        raise RecursionError("nested deeper than allowed")
    own, members = (len(value), value.values()) if isinstance(value, dict) else (0, value)
    return own + sum([count_keys(member, levels - 1) for member in members if type(member) in CONTAINERS])


def depth(text: str) -> int:
    """How deep arrays and objects are nested, without recursion."""
    if text.count("{") + text.count("[") == 0:
        return 0
    level = deepest = 0
    for token in TOKEN.findall(text):
        if token in "[{":
            level += 1
            deepest = max(deepest, level)
        elif token in "]}":
            level -= 1
    return deepest


def has_lone_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


class Audit:
    """A strict decoder that goes on behind a fault, so that all of them are found."""

    def __init__(self) -> None:
        # Dictionaries serve as ordered sets: a hostile row may have the same fault a hundred thousand times.
        self.faults: dict[Fault, None] = {}
        self.repeated: dict[str, None] = {}
        self.decode = json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_constant=self._constant,
            parse_float=self._float,
            parse_int=self._int,
        ).decode

    def note(self, message: str, field: str | None = None) -> None:
        self.faults[Fault(message, field)] = None

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for key, member in pairs:
            if key in value:
                self.repeated[key] = None
            value[key] = member
        return value

    def _constant(self, name: str) -> None:
        self.note(f"contains {name}, which is not JSON")

    def _float(self, text: str) -> float:
        value = float(text)
        if math.isinf(value):
            self.note(f"contains {text[:40]}, a number too large to be held")
        return value

    def _int(self, text: str) -> int:
        try:
            return int(text)
        except ValueError:
            self.note(f"contains a number of {len(text):,} digits")
            return 0
