"""What is odd about a graph that could still be run: states nobody reaches, dead ends, no end at all."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import Fault
from penstock.graphs.flags import StateFlag
from penstock.graphs.model import GraphDocument
from penstock.graphs.names import name_key

__all__ = ["graph_warnings"]


def graph_warnings(document: GraphDocument) -> Iterator[Fault]:
    """One warning for each oddity, with its path in the document."""
    exits: dict[str, set[str]] = {name_key(state.name): set() for state in document.states}
    for line in document.transitions:
        exits[name_key(line.source)].add(name_key(line.target))
    reached = _reachable(name_key(document.initial.name), exits)
    for place, state in enumerate(document.states):
        key, path = name_key(state.name), f"states[{place}]"
        is_final = StateFlag.FINAL in state.flags
        if key not in reached:
            yield Fault(f"{state.name!r} cannot be reached from {document.initial.name!r}", path)
        if is_final and exits[key]:
            yield Fault(f"{state.name!r} is final, and yet it has exits; `reopen` comes before they can be used", path)
        if not is_final and not exits[key]:
            yield Fault(f"{state.name!r} is a dead end: it is not final and has no exit", path)
        elif not is_final and exits[key] == {key}:
            yield Fault(f"{state.name!r} is a dead end: it is not final and leads to itself only", path)
    if not any(StateFlag.FINAL in state.flags for state in document.states):
        yield Fault("no state is final, so no instance ever completes by itself", "states")
    used = {name_key(line.event) for line in document.transitions}
    for place, event in enumerate(document.events):
        if name_key(event) not in used:
            yield Fault(f"{event!r} is used by no transition", f"events[{place}]")


def _reachable(start: str, exits: dict[str, set[str]]) -> set[str]:
    reached, todo = {start}, [start]
    while todo:
        fresh = exits[todo.pop()] - reached
        reached |= fresh
        todo += fresh
    return reached
