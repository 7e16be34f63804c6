"""Signal keys: the template a signalled step declares, filled for a row and recognised in a signal."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from string import Formatter
from typing import Any, Protocol

__all__ = ["KeyTemplate"]

PLACES = ("row_number", "operation_id")


class Model(Protocol):
    """What a row or metadata model says of its fields."""

    @property
    def names(self) -> Collection[str]:
        """The names of the fields."""

    @property
    def secret_names(self) -> Collection[str]:
        """Those of them that hold secrets."""


@dataclass(frozen=True, slots=True)
class KeyTemplate:
    """A key such as "carrier-{row.imei}", as pairs of literal text and the field that follows it."""

    text: str
    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def parse(cls, text: str) -> KeyTemplate:
        """The template, or ValueError for braces that do not match, or anything but a plain field in them."""
        parts = []
        for literal, field, spec, conversion in Formatter().parse(text):
            if field is not None and (not field or spec or conversion):
                raise ValueError("takes plain fields only, such as {row.imei} or {row_number}")
            parts.append((literal, field))
        if not text:
            raise ValueError("must not be empty")
        return cls(text, tuple(parts))

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields it uses, in order."""
        return tuple(field for _, field in self.parts if field is not None)

    def faults(self, row: Model | None, meta: Model | None) -> Iterator[str]:
        """What is wrong with its fields, given the two models; nothing is said of the fields of one that is None."""
        models = {source: model for source, model in (("row", row), ("meta", meta)) if model is not None}
        secret = {f"{source}.{name}" for source, model in models.items() for name in model.secret_names}
        known = (*(f"{source}.{name}" for source, model in models.items() for name in model.names), *PLACES)
        unknowable = {"row", "meta"} - models.keys()
        for field in self.fields:
            if field.partition(".")[0] in unknowable:
                continue
            if field not in known:
                yield f"has {{{field}}}, which does not exist; there are: {', '.join(known)}"
            elif field in secret:
                yield f"has {{{field}}}, which is a secret; a key is stored and shown"

    def render(self, value_of: Callable[[str], Any]) -> str:
        """The key, with `value_of` answering for each field; ValueError where a value is missing."""
        return "".join(
            literal + ("" if field is None else _filled(field, value_of(field))) for literal, field in self.parts
        )

    def matches(self, key: str) -> bool:
        """Whether some row could wait for this key."""
        texts = [""]  # before, between and behind the fields
        for literal, field in self.parts:
            texts[-1] += re.escape(literal)
            texts += [""] if field else []
        # A field may be any text, so it may end where the next literal first stands: no other place is tried.
        inner = "".join(f"(?>.+?{text})" for text in texts[1:-1])
        pattern = f"{texts[0]}{inner}.+{texts[-1]}" if len(texts) > 1 else texts[0]
        return re.fullmatch(pattern, key, re.DOTALL) is not None


def _filled(field: str, value: Any) -> str:
    text = "" if value is None else str(value)
    if not text:
        raise ValueError(f"the signal key needs {field}, which is empty")
    return text
