"""The operation that a signal is for, and whether a row of it could ever wait for its key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from penstock.db.connection import Connection
from penstock.errors import InvalidInput, NoSuchWait, NotFound
from penstock.operations.chunk.records import SIGNAL_KEY_MAX
from penstock.operations.operation_ids import find
from penstock.operations.states import OPERATION
from penstock.operations.tables import operations
from penstock.operations.visibility import EVERYTHING, Visible
from penstock.pipeline import KeyTemplate

__all__ = ["ROW_MAX", "TAKES_NO_SIGNALS", "Subject", "is_row_number", "refuse_unknown_key", "subject_of", "unscope"]

ROW_MAX = 2**63 - 1
TAKES_NO_SIGNALS = ("Stopping", *sorted(OPERATION.settled))  # states of an operation


@dataclass(frozen=True, slots=True)
class Subject:
    """The operation that a signal is for."""

    number: int
    id: str
    name: str
    state: str
    plan: Any
    tenant: str | None

    def step_name(self, step: int) -> str:
        """What the step with this index is called."""
        return str(self.plan["steps"][step]["name"])

    def steps_for(self, key: str) -> list[int]:
        """The signalled steps, by index, for which a row could wait with this key."""
        found = [(index, step["options"]["key"]) for index, step in self._signalled()]
        return [index for index, template in found if template is None or KeyTemplate.parse(template).matches(key)]

    @property
    def key_templates(self) -> list[str | None]:
        """The templates of its signalled steps; None where a method makes the key."""
        return [step["options"]["key"] for _, step in self._signalled()]

    def _signalled(self) -> list[tuple[int, Any]]:
        return [(index, step) for index, step in enumerate(self.plan["steps"]) if step["kind"] == "signal"]


_SUBJECT = select(*(operations.c[name] for name in Subject.__dataclass_fields__))


async def subject_of(tx: Connection, operation: str, visible: Visible = EVERYTHING) -> Subject:
    """The operation a signal is for; `NoSuchWait` when there is none."""
    try:
        return Subject(**await find(tx, _SUBJECT, operation, visible))
    except NotFound as error:
        raise NoSuchWait(str(error)) from None


def unscope(subject: Subject, key: str, row: int | None) -> tuple[str, int | None]:
    """The user's part of a key given as operationId:key:rowNumber, and that row; other keys as they are."""
    prefix, _, number = key.rpartition(":")
    if not prefix.startswith(f"{subject.id}:") or not is_row_number(number):
        return key, row
    own = [KeyTemplate.parse(t) for t in subject.key_templates if t is not None and "{operation_id}" in t]
    if any(template.matches(key) for template in own):
        return key, row
    return prefix.removeprefix(f"{subject.id}:"), int(number)


def is_row_number(text: str) -> bool:
    """Whether the text is a number that a row may have, in digits."""
    return text.isdecimal() and len(text) <= len(str(ROW_MAX)) and 1 <= int(text) <= ROW_MAX


def refuse_unknown_key(subject: Subject, key: str) -> None:
    """Raise if no row of the operation could ever wait for this key."""
    if not key or len(key) > SIGNAL_KEY_MAX:
        raise InvalidInput(f"a signal key has 1 to {SIGNAL_KEY_MAX} characters; found {len(key)}")
    if subject.state in TAKES_NO_SIGNALS:
        raise NoSuchWait(f"operation {subject.id} is {subject.state}; it takes no more signals", is_over=True)
    templates = subject.key_templates
    if not templates:
        raise NoSuchWait(f"operation {subject.id} has no step that waits for a signal")
    if not subject.steps_for(key):
        raise NoSuchWait(f"no row could wait for {key!r}; keys look like: {', '.join(map(repr, templates))}")
