"""A state graph as a document describes it, checked: every name is known, every pair has one target."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from penstock.errors import Fault
from penstock.graphs.flags import StateFlag, TransitionFlag
from penstock.graphs.names import name_key

__all__ = ["ACTIONS_MAX", "ACTION_CHARS_MAX", "GraphDocument", "StateAction", "StateLine", "Timeout", "TransitionLine"]


ACTIONS_MAX = 50  # on entering or leaving one state
ACTION_CHARS_MAX = 80


@dataclass(frozen=True, slots=True)
class Timeout:
    """How long an instance may stay in a state before an event fires, once or again and again."""

    duration_us: int
    event: str
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class StateAction:
    """What is asked (a gate) or done (an effect) when an instance enters or leaves a state; a function's name."""

    kind: Literal["gate", "effect"]
    name: str


@dataclass(frozen=True, slots=True)
class StateLine:
    """One state of a document; its actions are in their order."""

    name: str
    flags: StateFlag = StateFlag.NONE
    category: str | None = None
    timeout: Timeout | None = None
    on_entry: tuple[StateAction, ...] = ()
    on_exit: tuple[StateAction, ...] = ()

    def content(self) -> list[Any]:
        """What makes this state differ from another of its name."""
        timeout = self.timeout and [self.timeout.duration_us, name_key(self.timeout.event), self.timeout.repeats]
        found = [name_key(self.name), int(self.flags), name_key(self.category or ""), timeout]
        if self.on_entry or self.on_exit:  # what has none has the digest that it always had
            found.append([[[each.kind, each.name] for each in plan] for plan in (self.on_entry, self.on_exit)])
        return found


@dataclass(frozen=True, slots=True)
class TransitionLine:
    """One transition of a document."""

    source: str
    event: str
    target: str
    guard: str | None = None
    condition: Mapping[str, Any] | None = None
    flags: TransitionFlag = TransitionFlag.NONE

    def content(self) -> list[Any]:
        """What makes this transition differ from another for its pair."""
        names = [name_key(self.source), name_key(self.event), name_key(self.target)]
        return [*names, self.guard, self.condition, int(self.flags)]


@dataclass(frozen=True, slots=True)
class GraphDocument:
    """A definition's document, checked; names in transitions are spelled as the states and events are."""

    name: str
    environment: int
    number: int
    label: str | None
    description: str | None
    states: tuple[StateLine, ...]
    events: tuple[str, ...]
    transitions: tuple[TransitionLine, ...]
    warnings: tuple[Fault, ...] = ()

    @property
    def initial(self) -> StateLine:
        """The state in which instances start."""
        return next(state for state in self.states if StateFlag.INITIAL in state.flags)

    def digest(self) -> str:
        """The same for documents that behave the same: order, spelling of case, layout and description do not count."""
        content = [
            sorted((state.content() for state in self.states), key=_by_name),
            sorted(map(name_key, self.events)),
            sorted((line.content() for line in self.transitions), key=_by_name),
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _by_name(content: list[Any]) -> list[str]:
    return [part for part in content[:2] if isinstance(part, str)]
