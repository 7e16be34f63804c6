"""A machine is a value: a table of (state, event) -> state.

Everything else derives from the table: what may happen next, the diagram, the guard in SQL, the import document
and the tests of what is refused. Nothing here knows a database, a clock or a feature.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

from penstock.errors import DeclarationError, IllegalMove

__all__ = ["Machine", "Transition"]


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
        states = tuple(dict.fromkeys(s for line in self.transitions for s in (line.source, line.target)))
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
        arrows = [f"    {a} --> {b} : {' / '.join(events)}" for (a, b), events in labels.items()]
        ends = [f"    {state} --> [*]" for state in self.states if state in self.settled]
        return "\n".join(["stateDiagram-v2", f"    [*] --> {self.initial}", *arrows, *ends]) + "\n"

    def to_json(self) -> dict[str, Any]:
        """The table as the document that `from_json` and the lifecycle import read."""
        return {
            "name": self.name,
            "states": [{"name": s, "initial": s == self.initial, "final": s in self.settled} for s in self.states],
            "events": [{"name": e} for e in self.events],
            "transitions": [{"from": t.source, "event": t.event, "to": t.target} for t in self.transitions],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The machine a `to_json` document describes."""
        states = document["states"]
        return cls(
            document["name"],
            tuple(Transition(t["from"], t["event"], t["to"]) for t in document["transitions"]),
            frozenset(s["name"] for s in states if s.get("final")),
            next(s["name"] for s in states if s.get("initial")),
        )
