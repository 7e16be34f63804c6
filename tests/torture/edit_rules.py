"""Edits after the storm: what was accepted stands, unless a later one of the same field was accepted too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .facts import Evidence

__all__ = ["accepted_edits_are_kept"]

STOPPED = "refused: the operation was stopped"  # the one reason not to apply what was accepted


@dataclass(frozen=True)
class Edit:
    """A caller's wish that one field of one row have this value; no two wishes are for the same value."""

    value: str
    asked_at: float
    told_at: float | None = None  # when it was answered, if it was
    is_accepted: bool = False
    is_refused: bool = False

    def precedes(self, other: Edit) -> bool:
        """Whether it was answered before the other was asked for, so that the other must win."""
        return self.is_accepted and self.told_at is not None and self.told_at < other.asked_at


def accepted_edits_are_kept(evidence: Evidence) -> Iterator[str]:
    """An accepted edit is never undone by anything but a later one of the same field."""
    for (row, field), edits in _edits(evidence).items():
        if row not in evidence.rows or not isinstance(evidence.rows[row].data, Mapping):
            continue
        stands = evidence.rows[row].data.get(field)
        winner = edits.get(stands)
        if winner is not None and winner.is_refused:
            yield f"row {row}: {field} is {stands!r}, which was refused"
        for edit in edits.values():
            if not edit.is_accepted or edit is winner:
                continue
            outcome = _outcome(evidence, row, edit.value)
            if outcome == STOPPED:
                continue
            if outcome is None or outcome.startswith("refused"):
                yield f"row {row}: {field} {edit.value!r} was accepted, but its request came to {outcome!r}"
            elif winner is None or winner.precedes(edit):
                yield f"row {row}: {field} {edit.value!r} was accepted, but it is {stands!r} again"


def _edits(evidence: Evidence) -> dict[tuple[int, str], dict[Any, Edit]]:
    """Every edit by row and field, then by value."""
    found: dict[tuple[int, str], dict[Any, Edit]] = defaultdict(dict)
    for line in evidence.said:
        if line.verb != "edit" or "field" not in line.detail:
            continue
        edits, value = found[line.detail["rows"][0], line.detail["field"]], line.detail["value"]
        before = edits.get(value)
        is_unknown = (line.refusal or "").startswith("unknown")
        if before is None:
            edits[value] = Edit(value, line.t)
        else:
            is_refused = line.refusal is not None and not is_unknown
            edits[value] = Edit(value, before.asked_at, line.t, line.is_acknowledged, is_refused)
    return found


def _outcome(evidence: Evidence, row: int, value: str) -> str | None:
    """What became of the request that first brought this value; later ones repeat it with the rest of the row."""
    mine = (request for request in evidence.requests if request.row == row and value in request.values)
    request = next(mine, None)
    return None if request is None else request.outcome or "nothing yet"
