"""How two versions of a definition differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.graphs.durations import format_duration
from penstock.graphs.flags import words_of
from penstock.graphs.model import GraphDocument, StateLine, TransitionLine
from penstock.graphs.names import name_key

__all__ = ["Change", "compare"]


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: `+` added, `-` removed, `~` changed."""

    sign: str
    what: str
    name: str
    details: str = ""

    def __str__(self) -> str:
        return f"{self.sign} {self.what} {self.name}" + (f": {self.details}" if self.details else "")


def compare(before: GraphDocument, after: GraphDocument) -> list[Change]:
    """What was added, removed and changed, states first; the order and case of names do not count."""
    changes = list(_named("state", _states(before), _states(after)))
    old, new = ({name_key(event): event for event in each.events} for each in (before, after))
    changes += (Change("-", "event", name) for key, name in old.items() if key not in new)
    changes += (Change("+", "event", name) for key, name in new.items() if key not in old)
    changes += _named("transition", _transitions(before), _transitions(after))
    return changes


def _named(what: str, old: dict[str, tuple[str, str]], new: dict[str, tuple[str, str]]) -> Iterator[Change]:
    for key, (name, details) in old.items():
        if key not in new:
            yield Change("-", what, name)
        elif new[key][1] != details:
            yield Change("~", what, new[key][0], f"{details or 'plain'} -> {new[key][1] or 'plain'}")
    for key, (name, details) in new.items():
        if key not in old:
            yield Change("+", what, name, details)


def _states(document: GraphDocument) -> dict[str, tuple[str, str]]:
    return {name_key(state.name): (state.name, _state_details(state)) for state in document.states}


def _transitions(document: GraphDocument) -> dict[str, tuple[str, str]]:
    return {
        f"{name_key(line.source)}\0{name_key(line.event)}": (f"{line.source} --{line.event}-->", _line_details(line))
        for line in document.transitions
    }


def _state_details(state: StateLine) -> str:
    parts = words_of(state.flags)
    if state.category:
        parts.append(f"category {name_key(state.category)}")
    if state.timeout:
        times = "every" if state.timeout.repeats else "after"
        parts.append(f"{name_key(state.timeout.event)} {times} {format_duration(state.timeout.duration_us)}")
    for when, plan in (("entry", state.on_entry), ("exit", state.on_exit)):
        if plan:
            parts.append(f"on {when} " + " then ".join(f"{each.kind} {each.name}" for each in plan))
    return ", ".join(parts)


def _line_details(line: TransitionLine) -> str:
    parts = [f"to {name_key(line.target)}"]
    if line.guard:
        parts.append(f"guard {line.guard}")
    if line.condition:
        parts.append(f"when {line.condition}")
    return ", ".join([*parts, *words_of(line.flags)])
