"""Penstock's own machines and what moved by them, as values of lifecycles, so that both look alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.errors import InvalidInput, NotFound
from penstock.graphs.document import check_document
from penstock.lifecycles.model import Definition, DeliveryMove, LogEntry, Version
from penstock.lifecycles.rules.graph import Graph, LifecycleEvent, LifecycleState, LifecycleTransition
from penstock.lifecycles.states import InstanceFlag, LogFlag
from penstock.machines import built_in

if TYPE_CHECKING:
    from penstock.engine import Penstock
    from penstock.machine import Machine
    from penstock.operations.model import Event

__all__ = ["Moves", "graph_of", "moves_of"]

MOVES_SHOWN = 1000
_NEVER = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class Moves:
    """What happened to one operation or delivery."""

    machine: str
    subject: str
    name: str
    entries: list[LogEntry]

    @property
    def state(self) -> str:
        """Where it is now."""
        return self.entries[-1].target if self.entries else built_in()[self.machine].initial


def graph_of(machine: Machine) -> Graph:
    """A machine as the graph of a version."""
    document = check_document(machine.to_json())
    definition = Definition(0, machine.name, document.environment, None, _NEVER, _NEVER)
    version = Version(0, definition, document.number, None, "Published", document.digest(), "penstock", _NEVER, _NEVER)
    states = {line.name: LifecycleState(n, line.name, line.flags) for n, line in enumerate(document.states)}
    events = {name: LifecycleEvent(n, name) for n, name in enumerate(document.events)}
    lines = (
        LifecycleTransition(n, states[line.source], events[line.event], states[line.target])
        for n, line in enumerate(document.transitions)
    )
    return Graph(version, tuple(states.values()), tuple(events.values()), tuple(lines))


async def moves_of(penstock: Penstock, subject: str, tenant: str = "") -> Moves | None:
    """What happened to the delivery or the operation of this id; None where there is none."""
    try:
        moves = await penstock.lifecycles.tenant(tenant).deliveries.history(subject)
        return Moves("delivery", subject, "delivery", _entries("delivery", subject, moves))
    except NotFound:
        pass
    try:
        operation = await penstock.operations.get(subject)
    except (NotFound, InvalidInput):  # it is too long for an id
        return None
    events = await penstock.operations.events(operation.id, limit=MOVES_SHOWN)
    return Moves("operation", operation.id, operation.name, _entries("operation", operation.id, events))


def _entries(machine: str, subject: str, moves: Sequence[DeliveryMove | Event]) -> list[LogEntry]:
    """Moves of the one transition log as entries of a lifecycle's."""
    return [
        LogEntry(
            subject, number, "moved", move.source, move.event, move.target, _flags(built_in()[machine], move.target),
            LogFlag.NONE, move.actor, move.cause, None, None, None, 0, move.at,
        )
        for number, move in enumerate(moves, 1)
    ]  # fmt: skip


def _flags(machine: Machine, state: str) -> InstanceFlag:
    if state in ("Failed", "CompletedWithErrors"):
        return InstanceFlag.FAILED
    return InstanceFlag.COMPLETED if machine.is_settled(state) else InstanceFlag.ACTIVE
