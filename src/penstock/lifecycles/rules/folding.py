"""The fold of a log: from the checkpoint or the start, entry by entry, to what the instance must be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.lifecycles.rules.graph import Graph
from penstock.lifecycles.states import ACTIONS, InstanceFlag, entered

__all__ = ["Entry", "Folded", "fold_faults"]

_BY_KIND = {action.kind: action for action in ACTIONS.values()}


@dataclass(frozen=True, slots=True)
class Folded:
    """What an instance is after some entry."""

    sequence: int
    version: int
    state: int
    flags: InstanceFlag


@dataclass(frozen=True, slots=True)
class Entry:
    """A log entry as it is stored."""

    sequence: int
    kind: str
    version: int
    source: int | None
    event: int | None
    target: int
    flags: InstanceFlag


def fold_faults(
    graphs: Mapping[int, Graph], start: Folded | None, entries: Sequence[Entry], now: Folded
) -> Iterator[tuple[str, str]]:
    """Everything in a log that does not follow from what was before, and the instance from its log: (rule, message)."""
    at = start
    for entry in entries:
        expected = 1 if at is None else at.sequence + 1
        if entry.sequence != expected:
            yield "log_has_no_gaps", f"entry {entry.sequence} comes where {expected} is due"
        yield from _entry_faults(graphs, at, entry)
        at = Folded(entry.sequence, entry.version, entry.target, entry.flags)
    if at is None:
        yield "log_has_a_start", "there is no log entry and no checkpoint"
    elif at != now:
        yield "log_explains_the_instance", f"its log leads to {at}, and it is {now}"


def _entry_faults(graphs: Mapping[int, Graph], at: Folded | None, entry: Entry) -> Iterator[tuple[str, str]]:
    where = f"entry {entry.sequence} ({entry.kind})"
    if at is None:
        initial = graphs[entry.version].initial.id
        if (entry.kind, entry.source, entry.target) != ("started", None, initial):
            yield "log_has_a_start", f"{where} does not start the instance in its initial state"
        return
    if entry.source != at.state:
        yield "moves_are_joined", f"{where} leaves state {entry.source}; the one before led to {at.state}"
    if entry.version != at.version and entry.kind != "migrated":
        yield "versions_change_by_migration", f"{where} is of version {entry.version}; before it was {at.version}"
    if entry.kind == "moved":
        graph = graphs[entry.version]
        line = None if entry.source is None or entry.event is None else graph.move(entry.source, entry.event)
        if line is None or line.target.id != entry.target:
            yield "moves_are_in_the_table", f"{where} from {entry.source} by {entry.event} to {entry.target} is not"
        elif entry.flags != entered(at.flags, line.target.flags):
            yield "flags_follow", f"{where} leaves the flags {int(entry.flags)}; before they were {int(at.flags)}"
    elif entry.kind in _BY_KIND and entry.flags != _BY_KIND[entry.kind].applied(at.flags):
        yield "flags_follow", f"{where} leaves the flags {int(entry.flags)}; before they were {int(at.flags)}"
    if entry.kind not in ("moved", "forced", "migrated", "started") and entry.target != entry.source:
        yield "only_moves_move", f"{where} changes the state"
