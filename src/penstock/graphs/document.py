"""The import document of a lifecycle: read from text or a value, with all its faults at once, each with its path.

{"environment": "Production",
 "definition": {"name": "order", "version": "1.0.0"},
 "states": [{"name": "New", "is_initial": true}, {"name": "Paid", "is_final": true}],
 "transitions": [{"from": "New", "event": "pay", "to": "Paid", "guard": "is_covered"}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import IntFlag
from typing import Any, TypeVar

from penstock.errors import DefinitionInvalid, Fault
from penstock.graphs.checks import graph_warnings
from penstock.graphs.conditions import condition_faults
from penstock.graphs.durations import parse_duration
from penstock.graphs.flags import StateFlag, TransitionFlag, find_flag, flag_words
from penstock.graphs.model import (
    ACTION_CHARS_MAX,
    ACTIONS_MAX,
    GraphDocument,
    StateAction,
    StateLine,
    Timeout,
    TransitionLine,
)
from penstock.graphs.names import NAME_CHARS_MAX, name_key, similar
from penstock.graphs.versions import (
    DEFAULT_ENVIRONMENT,
    DEFAULT_NUMBER,
    LABEL_CHARS_MAX,
    environment_code,
    label_number,
    version_number,
)

__all__ = ["check_document", "parse_document"]

F = TypeVar("F", bound=IntFlag)

HINTS_MAX = 20  # looking for a similar name costs, and a document with more faults has another problem

TOP_KEYS = ("environment", "definition", "states", "events", "transitions")
DEFINITION_KEYS = ("name", "version", "version_code", "description")
STATE_KEYS = (
    "name", "is_initial", "is_final", "category", "flags",
    "timeout", "timeout_mode", "timeout_event", "on_entry", "on_exit",
)  # fmt: skip
ACTION_KEYS = ("gate", "effect")
EVENT_KEYS = ("name",)
TRANSITION_KEYS = ("from", "event", "to", "guard", "when", "flags")

# A category of such a name says what its states are.
_CATEGORY_FLAGS = {"error": StateFlag.ERROR, "system": StateFlag.SYSTEM}


def parse_document(text: str | bytes, *, strict: bool = False) -> GraphDocument:
    """The graph that a JSON text describes, or `DefinitionInvalid` with every fault."""
    check = _Check()
    try:
        value = json.loads(text, object_pairs_hook=check.members, parse_constant=check.constant)
    except (ValueError, RecursionError) as error:
        raise DefinitionInvalid(f"the document is not JSON: {error}", [Fault(str(error))]) from None
    return check.document(value, strict=strict)


def check_document(value: Any, *, strict: bool = False) -> GraphDocument:
    """The graph that a JSON value describes, or `DefinitionInvalid` with every fault; strict, warnings are faults."""
    return _Check().document(value, strict=strict)


class _Check:
    """The faults and warnings of one document."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.warnings: list[Fault] = []
        self.states: dict[str, str] = {}
        self.events: dict[str, str] = {}
        self.timeouts: list[tuple[str, str, str]] = []

    def fault(self, path: str, message: str) -> None:
        self.faults.append(Fault(message, path or None))

    # --- JSON

    def members(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """An object of the text; a key that stands there twice would silently hide the first."""
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            for name in dict.fromkeys(name for name in names if names.count(name) > 1):
                self.fault("", f"the key {name!r} stands twice in one object")
        return found

    def constant(self, word: str) -> Any:
        raise ValueError(f"{word} is not a JSON value")

    # --- the document

    def document(self, value: Any, *, strict: bool) -> GraphDocument:
        given = self.mapping(value, "", TOP_KEYS)
        environment = self.environment(given)
        name, label, number, description = self.definition(given.get("definition"))
        states = self.state_lines(given.get("states"))
        declared = self.event_names(given.get("events"))
        lines = self.transition_lines(given.get("transitions"))
        events = tuple(dict.fromkeys((*declared, *(line.event for line in lines))))
        self.timeout_events(lines)
        self.initial_gates(states)
        self.refuse()
        states = self.with_initial(states)
        found = GraphDocument(name, environment, number, label, description, states, events, lines)
        self.warnings += graph_warnings(found)
        if strict:
            self.faults += self.warnings
            self.refuse()
        return replace(found, warnings=tuple(self.warnings))

    def refuse(self) -> None:
        if self.faults:
            count = f"{len(self.faults)} faults" if len(self.faults) > 1 else "a fault"
            raise DefinitionInvalid(f"the document has {count}: {'; '.join(map(str, self.faults))}", self.faults)

    def environment(self, given: Mapping[str, Any]) -> int:
        if given.get("environment") in (None, ""):
            return DEFAULT_ENVIRONMENT
        try:
            return environment_code(given["environment"])
        except ValueError as error:
            self.fault("environment", str(error))
            return DEFAULT_ENVIRONMENT

    def definition(self, value: Any) -> tuple[str, str | None, int, str | None]:
        given = self.mapping(value, "definition", DEFINITION_KEYS)
        name = self.name(given.get("name"), "definition.name") if given or value == {} else None
        label, number = given.get("version"), DEFAULT_NUMBER
        if label is not None and (not isinstance(label, str) or not 0 < len(label.strip()) <= LABEL_CHARS_MAX):
            self.fault("definition.version", f"is text such as '1.0.0'; found {label!r:.60}")
            label = None
        explicit = given.get("version_code")
        try:
            if explicit is not None:
                number = version_number(explicit)
            elif label is not None:
                number = label_number(label)
        except ValueError as error:
            self.fault("definition.version" if explicit is None else "definition.version_code", str(error))
        description = given.get("description")
        if description is not None and not isinstance(description, str):
            self.fault("definition.description", f"is text; found {description!r:.60}")
        return name or "", label.strip() if label else None, number, description

    def state_lines(self, value: Any) -> tuple[StateLine, ...]:
        given = self.array(value, "states")
        if not given and isinstance(value, list | None):
            self.fault("states", "a definition has at least one state")
        lines = [line for place, each in enumerate(given) if (line := self.state(each, f"states[{place}]"))]
        marked = [line.name for line in lines if StateFlag.INITIAL in line.flags]
        if len(marked) > 1:
            self.fault("states", f"only one state is initial; marked are {', '.join(map(repr, marked))}")
        return tuple(lines)

    def state(self, value: Any, path: str) -> StateLine | None:
        given = self.mapping(value, path, STATE_KEYS)
        name = self.name(given.get("name"), f"{path}.name") if given or value == {} else None
        flags = self.flags(given.get("flags"), f"{path}.flags", StateFlag)
        for key, flag in (("is_initial", StateFlag.INITIAL), ("is_final", StateFlag.FINAL)):
            if self.boolean(given.get(key), f"{path}.{key}"):
                flags |= flag
        category = given.get("category")
        if category is not None:
            category = self.name(category, f"{path}.category")
            flags |= _CATEGORY_FLAGS.get(name_key(category or ""), StateFlag.NONE)
        timeout = self.timeout(given, path, name)
        on_entry, on_exit = (self.actions(given.get(key), f"{path}.{key}") for key in ("on_entry", "on_exit"))
        if name is None:
            return None
        if name_key(name) in self.states:
            self.fault(f"{path}.name", f"{self.states[name_key(name)]!r} is there already; names ignore case")
            return None
        self.states[name_key(name)] = name
        return StateLine(name, flags, category, timeout, on_entry, on_exit)

    def actions(self, value: Any, path: str) -> tuple[StateAction, ...]:
        """The ordered gates and effects of a state."""
        found = []
        given = self.array(value, path)
        if len(given) > ACTIONS_MAX:
            self.fault(path, f"has {len(given)} actions where {ACTIONS_MAX} fit")
        for place, each in enumerate(given):
            at = f"{path}[{place}]"
            action = self.mapping(each, at, ACTION_KEYS)
            kinds = [kind for kind in ACTION_KEYS if action.get(kind) is not None]
            if isinstance(each, Mapping) and len(kinds) != 1:
                self.fault(at, "is either a gate or an effect, such as {'gate': 'in_stock'}; found " + f"{each!r:.60}")
            for kind in kinds:
                name = self.name(action[kind], f"{at}.{kind}")
                if name is not None and len(name) > ACTION_CHARS_MAX:
                    self.fault(f"{at}.{kind}", f"has {len(name)} characters where {ACTION_CHARS_MAX} fit")
                elif name is not None and len(kinds) == 1:
                    found.append(StateAction("gate" if kind == "gate" else "effect", name))
        return tuple(found)

    def initial_gates(self, states: tuple[StateLine, ...]) -> None:
        """Nobody is asked when an instance starts, so a gate before the initial state would be passed by."""
        marked = [place for place, state in enumerate(states) if StateFlag.INITIAL in state.flags]
        for place in marked or range(min(1, len(states))):
            gates = [each.name for each in states[place].on_entry if each.kind == "gate"]
            if gates:
                why = "instances start there without being asked; give the transitions that lead back a guard"
                self.fault(f"states[{place}].on_entry", f"has the gate {gates[0]!r} in the initial state; {why}")

    def timeout(self, given: Mapping[str, Any], path: str, state: str | None) -> Timeout | None:
        written, mode, event = given.get("timeout"), given.get("timeout_mode"), given.get("timeout_event")
        if written is None:
            for key in ("timeout_mode", "timeout_event"):
                if given.get(key) is not None:
                    self.fault(f"{path}.{key}", "stands without a timeout")
            return None
        duration = None
        try:
            duration = parse_duration(written) if isinstance(written, str) else None
            if duration is None:
                self.fault(f"{path}.timeout", f"is an ISO 8601 duration such as 'PT2H'; found {written!r:.60}")
        except ValueError as error:
            self.fault(f"{path}.timeout", str(error))
        if mode is not None and (not isinstance(mode, str) or mode.lower() not in ("once", "repeat")):
            self.fault(f"{path}.timeout_mode", f"is 'once' or 'repeat'; found {mode!r:.60}")
            mode = None
        name = self.name(event, f"{path}.timeout_event")
        if duration is None or name is None:
            return None
        if state is not None:
            self.timeouts.append((f"{path}.timeout_event", state, name))
        return Timeout(duration, name, repeats=(mode or "once").lower() == "repeat")

    def timeout_events(self, lines: Iterable[TransitionLine]) -> None:
        """An event that fires in a state must lead out of it."""
        pairs = {(name_key(line.source), name_key(line.event)) for line in lines}
        for path, state, event in self.timeouts:
            if (name_key(state), name_key(event)) not in pairs:
                self.fault(path, f"{state!r} has no transition for {event!r}")

    def event_names(self, value: Any) -> list[str]:
        names = []
        for place, each in enumerate(self.array(value, "events")):
            path = f"events[{place}]"
            if isinstance(each, Mapping):
                path, each = f"{path}.name", self.mapping(each, path, EVENT_KEYS).get("name")  # noqa: PLW2901
            name = self.name(each, path)
            if name is None:
                continue
            if name_key(name) in self.events:
                self.fault(path, f"{self.events[name_key(name)]!r} is there already; names ignore case")
                continue
            names.append(name)
            self.events[name_key(name)] = name
        return names

    def transition_lines(self, value: Any) -> tuple[TransitionLine, ...]:
        found: dict[tuple[str, str], tuple[int, TransitionLine]] = {}
        for place, each in enumerate(self.array(value, "transitions")):
            line = self.transition(each, f"transitions[{place}]")
            if line is None:
                continue
            first, twin = found.setdefault((name_key(line.source), name_key(line.event)), (place, line))
            if first == place:
                continue
            if twin.content() == line.content():
                self.warnings.append(Fault(f"is the same as transitions[{first}]", f"transitions[{place}]"))
            else:
                pair = f"({line.source!r}, {line.event!r})"
                self.fault(
                    f"transitions[{place}]",
                    f"{pair} leads to {twin.target!r} by transitions[{first}] already; a pair has one target",
                )
        return tuple(line for _, line in found.values())

    def transition(self, value: Any, path: str) -> TransitionLine | None:
        given = self.mapping(value, path, TRANSITION_KEYS)
        if not given and value != {}:
            return None
        source, target = (self.known_state(given.get(end), f"{path}.{end}") for end in ("from", "to"))
        event = self.name(given.get("event"), f"{path}.event")
        guard = given.get("guard")
        if guard is not None and (not isinstance(guard, str) or not 0 < len(guard) <= NAME_CHARS_MAX):
            self.fault(f"{path}.guard", f"is the name of a guard; found {guard!r:.60}")
        condition = given.get("when")
        if condition is not None:
            self.faults += condition_faults(condition, f"{path}.when")
        flags = self.flags(given.get("flags"), f"{path}.flags", TransitionFlag)
        if source is None or target is None or event is None:
            return None
        event = self.events.setdefault(name_key(event), event)
        return TransitionLine(source, event, target, guard, condition, flags)

    def with_initial(self, states: tuple[StateLine, ...]) -> tuple[StateLine, ...]:
        if any(StateFlag.INITIAL in state.flags for state in states):
            return states
        first = states[0]
        self.warnings.append(Fault(f"no state is marked as initial; {first.name!r}, the first, is", "states"))
        return (replace(first, flags=first.flags | StateFlag.INITIAL), *states[1:])

    # --- values

    def mapping(self, value: Any, path: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            found = "nothing" if value is None else f"{value!r:.60}"
            self.fault(path, f"{'is' if path else 'the document is'} an object with {', '.join(keys)}; found {found}")
            return {}
        for key in value:
            if key not in keys:
                place = f"{path}.{key}" if path else str(key)
                self.fault(place, "unknown key" + (similar(str(key), keys) or f"; known are {', '.join(keys)}"))
        return value

    def array(self, value: Any, path: str) -> list[Any]:
        if value is not None and not isinstance(value, list):
            self.fault(path, f"is a list; found {value!r:.60}")
        return value if isinstance(value, list) else []

    def name(self, value: Any, path: str) -> str | None:
        if value is None:
            self.fault(path, "is missing")
        elif not isinstance(value, str) or not value.strip():
            self.fault(path, f"is a name; found {value!r:.60}")
        elif len(value.strip()) > NAME_CHARS_MAX:
            self.fault(path, f"has {len(value.strip())} characters where {NAME_CHARS_MAX} fit")
        elif not value.isprintable():
            self.fault(path, f"has characters that cannot be printed; found {value!r:.60}")
        else:
            return value.strip()
        return None

    def known_state(self, value: Any, path: str) -> str | None:
        name = self.name(value, path)
        if name is None:
            return None
        found = self.states.get(name_key(name))
        if found is None:
            hint = similar(name, self.states.values()) if len(self.faults) < HINTS_MAX else ""
            self.fault(path, f"no state {name!r}{hint}")
        return found

    def boolean(self, value: Any, path: str) -> bool:
        if value is not None and not isinstance(value, bool):
            self.fault(path, f"is true or false; found {value!r:.60}")
        return value is True

    def flags(self, value: Any, path: str, kind: type[F]) -> F:
        flags = kind(0)
        for place, word in enumerate(self.array(value, path)):
            flag = find_flag(kind, word) if isinstance(word, str) else None
            if flag is None:
                known = flag_words(kind)
                hint = similar(word, known) if isinstance(word, str) else ""
                self.fault(f"{path}[{place}]", f"no flag {word!r:.60}" + (hint or f"; known are {', '.join(known)}"))
            else:
                flags |= flag
        return flags
