"""The built-in state machines, by name."""

from __future__ import annotations

import re
from difflib import get_close_matches

from penstock.blobs.states import BLOB
from penstock.errors import NotFound
from penstock.idempotency.states import IDEMPOTENCY_KEY
from penstock.machine import Machine
from penstock.operations.states import OPERATION, ROW_STEP
from penstock.outbox.states import DELIVERY

__all__ = ["built_in", "find_machine", "machine_named"]


def built_in() -> dict[str, Machine]:
    """The machines of this release, by name."""
    return {machine.name: machine for machine in (OPERATION, ROW_STEP, IDEMPOTENCY_KEY, BLOB, DELIVERY)}


def find_machine(name: str) -> Machine | None:
    """The machine meant by "row step", "row-step", "RowStep", "row_step"…"""
    return _by_letters().get(_letters(name))


def machine_named(name: str) -> Machine:
    """The same, or `NotFound` with what may have been meant."""
    known = _by_letters()
    found = known.get(_letters(name))
    if found is not None:
        return found
    near = get_close_matches(_letters(name), known, 1)
    hint = f"did you mean {known[near[0]].name!r}? " if near else ""
    raise NotFound(f"unknown machine {name!r}; {hint}known: {', '.join(built_in())}")


def _by_letters() -> dict[str, Machine]:
    return {_letters(machine.name): machine for machine in built_in().values()}


def _letters(name: str) -> str:
    """A name without what its spellings differ in."""
    return re.sub(r"[^a-z]", "", name.lower())
