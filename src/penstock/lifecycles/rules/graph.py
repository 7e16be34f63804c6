"""A version's graph as it is stored, ready to be asked; and the machine and the document that it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from penstock.errors import NotFound
from penstock.graphs.flags import StateFlag, TransitionFlag
from penstock.graphs.model import GraphDocument, StateAction, StateLine, Timeout, TransitionLine
from penstock.graphs.names import name_key, similar
from penstock.lifecycles.model import Version
from penstock.machine import Machine, Transition

__all__ = ["Graph", "LifecycleEvent", "LifecycleState", "LifecycleTransition", "effects_of"]


@dataclass(frozen=True, slots=True)
class LifecycleState:
    """A state of one version."""

    id: int
    name: str
    flags: StateFlag
    category: str | None = None
    timeout: Timeout | None = None
    on_entry: tuple[StateAction, ...] = ()
    on_exit: tuple[StateAction, ...] = ()

    @property
    def is_final(self) -> bool:
        """Whether an instance that enters it is complete."""
        return StateFlag.FINAL in self.flags


@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """An event of one version."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class LifecycleTransition:
    """A transition of one version: the only one for its source and event."""

    id: int
    source: LifecycleState
    event: LifecycleEvent
    target: LifecycleState
    guard: str | None = None
    condition: Mapping[str, Any] | None = None
    flags: TransitionFlag = TransitionFlag.NONE

    @property
    def is_guarded(self) -> bool:
        """Whether somebody has to be asked: a condition, a guard, or gates."""
        return self.guard is not None or self.condition is not None or bool(self.source.on_exit or self.target.on_entry)

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates that it passes, in their order: those of the state it leaves, then those of the one it enters."""
        return tuple(each.name for each in (*self.source.on_exit, *self.target.on_entry) if each.kind == "gate")


def effects_of(leaves: LifecycleState | None, enters: LifecycleState) -> tuple[str, ...]:
    """What is done after a move, in its order; nothing is left by an instance that starts."""
    left = () if leaves is None else leaves.on_exit
    if not left and not enters.on_entry:
        return ()
    return tuple(each.name for each in (*left, *enters.on_entry) if each.kind == "effect")


@dataclass(frozen=True)
class Graph:
    """The states, events and transitions of one version. Names are found ignoring case."""

    version: Version
    states: tuple[LifecycleState, ...]
    events: tuple[LifecycleEvent, ...]
    transitions: tuple[LifecycleTransition, ...]
    by_id: Mapping[int, LifecycleState] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", {state.id: state for state in self.states})

    @cached_property
    def _states(self) -> dict[str, LifecycleState]:
        return {name_key(state.name): state for state in self.states}

    @cached_property
    def _events(self) -> dict[str, LifecycleEvent]:
        return {name_key(event.name): event for event in self.events}

    @cached_property
    def _event_names(self) -> dict[int, str]:
        return {event.id: event.name for event in self.events}

    @cached_property
    def _moves(self) -> dict[tuple[int, int], LifecycleTransition]:
        return {(line.source.id, line.event.id): line for line in self.transitions}

    @cached_property
    def _outgoing(self) -> dict[int, list[LifecycleTransition]]:
        found: dict[int, list[LifecycleTransition]] = {}
        for line in self.transitions:
            found.setdefault(line.source.id, []).append(line)
        return found

    def state(self, name: str) -> LifecycleState:
        """The state of this name; `NotFound` suggests what may have been meant."""
        found = self._states.get(name_key(name))
        if found is None:
            raise NotFound(f"{self.version.title} has no state {name!r}{similar(name, self._states_named())}")
        return found

    def event(self, name: str) -> LifecycleEvent:
        """The event of this name; `NotFound` suggests what may have been meant."""
        found = self.find_event(name)
        if found is None:
            raise NotFound(f"{self.version.title} has no event {name!r}{similar(name, (e.name for e in self.events))}")
        return found

    def find_state(self, name: str) -> LifecycleState | None:
        """The state of this name, or None."""
        return self._states.get(name_key(name))

    def find_event(self, name: str) -> LifecycleEvent | None:
        """The event of this name, or None."""
        return self._events.get(name_key(name))

    def event_name(self, event: int | None) -> str | None:
        """What the event with this id is called."""
        return None if event is None else self._event_names.get(event)

    @property
    def initial(self) -> LifecycleState:
        """The state in which instances start."""
        return next(state for state in self.states if StateFlag.INITIAL in state.flags)

    @property
    def final_states(self) -> tuple[LifecycleState, ...]:
        """The states that complete an instance."""
        return tuple(state for state in self.states if state.is_final)

    @property
    def final_state(self) -> LifecycleState | None:
        """The first of the final states."""
        return next(iter(self.final_states), None)

    def transition(self, state: str, event: str) -> LifecycleTransition | None:
        """The transition for a state and an event, or None; `NotFound` for names that are not there."""
        return self.move(self.state(state).id, self.event(event).id)

    def move(self, state: int, event: int) -> LifecycleTransition | None:
        """The transition for ids of a state and an event."""
        return self._moves.get((state, event))

    def outgoing(self, state: str) -> tuple[LifecycleTransition, ...]:
        """The transitions that leave a state."""
        return self.leaving(self.state(state).id)

    def leaving(self, state: int) -> tuple[LifecycleTransition, ...]:
        """The transitions that leave the state with this id."""
        return tuple(self._outgoing.get(state, ()))

    def machine(self) -> Machine:
        """The graph as a machine."""
        return Machine(
            self.version.definition.name,
            tuple(Transition(line.source.name, line.event.name, line.target.name) for line in self.transitions),
            frozenset(state.name for state in self.final_states),
            self.initial.name,
            declared=tuple(state.name for state in self.states),
        )

    def document(self) -> GraphDocument:
        """The graph as a document describes it."""
        version, definition = self.version, self.version.definition
        return GraphDocument(
            definition.name,
            definition.environment,
            version.number,
            version.label,
            definition.description,
            tuple(_line_of(state) for state in self.states),
            tuple(event.name for event in self.events),
            tuple(
                TransitionLine(t.source.name, t.event.name, t.target.name, t.guard, t.condition, t.flags)
                for t in self.transitions
            ),
        )

    def _states_named(self) -> list[str]:
        return [state.name for state in self.states]


def _line_of(state: LifecycleState) -> StateLine:
    return StateLine(state.name, state.flags, state.category, state.timeout, state.on_entry, state.on_exit)
