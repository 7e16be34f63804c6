"""A graph as the document that describes it."""

from __future__ import annotations

from typing import Any

from penstock.graphs.durations import format_duration
from penstock.graphs.flags import StateFlag, words_of
from penstock.graphs.model import GraphDocument, StateLine, TransitionLine
from penstock.graphs.versions import environment_label

__all__ = ["document_of"]


def document_of(graph: GraphDocument) -> dict[str, Any]:
    """The import document that `check_document` reads as this graph."""
    definition: dict[str, Any] = {"name": graph.name}
    if graph.label is not None:
        definition["version"] = graph.label
    definition["version_code"] = graph.number
    if graph.description is not None:
        definition["description"] = graph.description
    return {
        "environment": environment_label(graph.environment),
        "definition": definition,
        "states": [_state(state) for state in graph.states],
        "events": list(graph.events),
        "transitions": [_transition(line) for line in graph.transitions],
    }


def _state(state: StateLine) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": state.name,
        "is_initial": StateFlag.INITIAL in state.flags,
        "is_final": StateFlag.FINAL in state.flags,
    }
    if state.category is not None:
        made["category"] = state.category
    others = state.flags & ~(StateFlag.INITIAL | StateFlag.FINAL)
    if others:
        made["flags"] = words_of(others)
    if state.timeout is not None:
        made["timeout"] = format_duration(state.timeout.duration_us)
        made["timeout_mode"] = "repeat" if state.timeout.repeats else "once"
        made["timeout_event"] = state.timeout.event
    for key, plan in (("on_entry", state.on_entry), ("on_exit", state.on_exit)):
        if plan:
            made[key] = [{each.kind: each.name} for each in plan]
    return made


def _transition(line: TransitionLine) -> dict[str, Any]:
    made: dict[str, Any] = {"from": line.source, "event": line.event, "to": line.target}
    if line.guard is not None:
        made["guard"] = line.guard
    if line.condition is not None:
        made["when"] = line.condition
    if line.flags:
        made["flags"] = words_of(line.flags)
    return made
