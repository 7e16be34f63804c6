"""A machine is a value: a table of (state, event) -> state.

Everything else derives from the table: what may happen next, the diagram, the guard in SQL, the import document
and the tests of what is refused. Nothing here knows a database, a clock or a feature.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

from penstock.errors import DeclarationError, IllegalMove
from penstock.graphs.document import check_document
from penstock.graphs.flags import StateFlag

__all__ = ["Machine", "Transition"]

_ESCAPES = str.maketrans({'"': "#quot;", ";": "#59;", ":": "#58;"})
_WORD = re.compile(r"(?!state\b|end\b|note\b)[A-Za-z_]\w*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Transition:
    """One line of a machine's table."""

    source: str
    event: str
    target: str


@dataclass(frozen=True)
class Machine:
    """A named transition table; a pair (state, event) has at most one target.

    The *settled* states are ends that may be left only on request. The initial state is the first one named,
    unless another is given.
    """

    name: str
    transitions: tuple[Transition, ...]
    settled: frozenset[str]
    initial: str
    declared: tuple[str, ...] = field(default=(), compare=False, repr=False)  # those without transitions need naming
    states: tuple[str, ...] = field(init=False)
    moves: Mapping[tuple[str, str], str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        moves: dict[tuple[str, str], str] = {}
        for line in self.transitions:
            if (line.source, line.event) in moves:
                raise DeclarationError(
                    f"machine {self.name!r} maps ({line.source}, {line.event}) twice; a pair has one target"
                )
            moves[line.source, line.event] = line.target
        used = (state for line in self.transitions for state in (line.source, line.target))
        states = tuple(dict.fromkeys((*self.declared, *used)))
        for state in (self.initial, *sorted(self.settled)):
            if state not in states:
                raise DeclarationError(f"machine {self.name!r} has no state {state!r}; it has: {', '.join(states)}")
        object.__setattr__(self, "states", states)
        object.__setattr__(self, "moves", MappingProxyType(moves))

    @classmethod
    def of(
        cls, name: str, *lines: tuple[str, str, str], settled: Iterable[str] = (), initial: str | None = None
    ) -> Self:
        """Build a machine from (from, event, to) lines; the first state named is the initial one unless told."""
        if not lines:
            raise DeclarationError(f"machine {name!r} has no transitions")
        return cls(name, tuple(Transition(*line) for line in lines), frozenset(settled), initial or lines[0][0])

    @property
    def events(self) -> tuple[str, ...]:
        """Every event of the table, in order of appearance."""
        return tuple(dict.fromkeys(line.event for line in self.transitions))

    def after(self, state: str, event: str, *, subject: str | None = None) -> str:
        """The state that follows, or `IllegalMove` naming what would be allowed."""
        try:
            return self.moves[state, event]
        except KeyError:
            raise IllegalMove(self.name, subject or self.name, state, event, self.allowed(state)) from None

    def allowed(self, state: str) -> tuple[str, ...]:
        """The events this state admits, in table order."""
        return tuple(line.event for line in self.transitions if line.source == state)

    def sources(self, event: str) -> tuple[str, ...]:
        """The states that admit this event: the guard of its compare-and-set."""
        return tuple(line.source for line in self.transitions if line.event == event)

    def targets(self, event: str) -> Mapping[str, str]:
        """From each state that admits this event to the state that follows."""
        return {line.source: line.target for line in self.transitions if line.event == event}

    def is_settled(self, state: str) -> bool:
        """Whether a record in this state is at rest."""
        return state in self.settled

    def to_mermaid(self) -> str:
        """The table as a Mermaid state diagram; arrows between the same two states share one line."""
        labels: dict[tuple[str, str], list[str]] = {}
        for line in self.transitions:
            labels.setdefault((line.source, line.target), []).append(line.event)
        # Mermaid knows states by single words; others get one, and the name is shown.
        ids = {state: state if _WORD.fullmatch(state) else f"s{n}" for n, state in enumerate(self.states, 1)}
        named = [f'    state "{_quoted(state)}" as {word}' for state, word in ids.items() if word != state]
        named += [f"    {state}" for state in self.states if ids[state] == state and state not in self._connected()]
        arrows = [f"    {ids[a]} --> {ids[b]} : {_quoted(' / '.join(events))}" for (a, b), events in labels.items()]
        ends = [f"    {ids[state]} --> [*]" for state in self.states if state in self.settled]
        return "\n".join(["stateDiagram-v2", *named, f"    [*] --> {ids[self.initial]}", *arrows, *ends]) + "\n"

    def _connected(self) -> set[str]:
        return {state for line in self.transitions for state in (line.source, line.target)} | {self.initial}

    def to_json(self) -> dict[str, Any]:
        """The table as a lifecycle's import document, which `from_json` reads too."""
        return {
            "definition": {"name": self.name},
            "states": [
                {"name": s, "is_initial": s == self.initial, "is_final": s in self.settled} for s in self.states
            ],
            "events": list(self.events),
            "transitions": [{"from": t.source, "event": t.event, "to": t.target} for t in self.transitions],
        }

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """The machine that a lifecycle's import document describes, or `DefinitionInvalid` with every fault in it."""
        graph = check_document(document)
        return cls(
            graph.name,
            tuple(Transition(line.source, line.event, line.target) for line in graph.transitions),
            frozenset(state.name for state in graph.states if StateFlag.FINAL in state.flags),
            graph.initial.name,
            declared=tuple(state.name for state in graph.states),
        )


def _quoted(text: str) -> str:
    """Text that Mermaid takes as it is."""
    return text.translate(_ESCAPES)
