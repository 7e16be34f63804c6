"""What an event would do to an instance, as far as the table and the flags say."""

from __future__ import annotations

from penstock.lifecycles.model import Outcome
from penstock.lifecycles.rules.graph import Graph, LifecycleTransition
from penstock.lifecycles.states import TERMINAL, InstanceFlag

__all__ = ["decide"]


def decide(graph: Graph, guid: str, state: int, flags: InstanceFlag, event: str) -> LifecycleTransition | Outcome:
    """The transition that the event asks for, or why there is none."""
    source = graph.by_id[state].name
    found = graph.find_event(event)
    if found is None:
        known = ", ".join(each.name for each in graph.events[:20]) or "none"
        reason = f"{graph.version.title} has no such event; it has: {known}"
        return Outcome("unknown_event", guid, event, source, reason=reason)
    if flags & TERMINAL:
        named = ", ".join(flag.name or "" for flag in flags & TERMINAL).capitalize()
        is_archived = InstanceFlag.ARCHIVED in flags
        so = "an archived instance takes no event any more" if is_archived else "`reopen` comes first"
        return Outcome("terminal", guid, found.name, source, reason=f"{named}; {so}")
    if InstanceFlag.SUSPENDED in flags:
        return Outcome("suspended", guid, found.name, source, reason="`resume` comes first")
    transition = graph.move(state, found.id)
    if transition is None:
        allowed = tuple(line.event.name for line in graph.leaving(state))
        return Outcome("not_allowed", guid, found.name, source, allowed=allowed)
    return transition
