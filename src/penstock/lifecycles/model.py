"""Lifecycles as values: definitions and versions, instances, log entries, outcomes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from penstock.errors import Conflict, Fault
from penstock.graphs.versions import environment_label
from penstock.lifecycles.states import EntryKind, InstanceFlag, LogFlag

__all__ = [
    "Available",
    "Category",
    "Count",
    "Definition",
    "Delivery",
    "DeliveryMove",
    "Difference",
    "Handler",
    "Import",
    "Instance",
    "LogEntry",
    "Migration",
    "Outcome",
    "OutcomeKind",
    "Start",
    "Started",
    "Trigger",
    "Version",
]


@dataclass(frozen=True, slots=True)
class Category:
    """A group of states, for reports."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Definition:
    """One lifecycle in one environment."""

    id: int
    name: str
    environment: int
    description: str | None
    created_at: datetime
    modified_at: datetime

    @property
    def environment_label(self) -> str:
        """What the environment is called."""
        return environment_label(self.environment)


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a definition; `Published` ones never change."""

    id: int
    definition: Definition
    number: int
    label: str | None
    status: Literal["Draft", "Published"]
    digest: str
    created_by: str
    created_at: datetime
    published_at: datetime | None

    @property
    def is_draft(self) -> bool:
        """Whether it can still be edited, and not be used."""
        return self.status == "Draft"

    @property
    def title(self) -> str:
        """Definition and version as people name them."""
        return f"{self.definition.name} {self.label or self.number}"


@dataclass(frozen=True, slots=True)
class Import:
    """What an import came to: which version it is, what was made, and what is odd about it."""

    definition_id: int
    version_id: int
    name: str
    environment: int
    version_code: int
    label: str | None
    states: int
    events: int
    transitions: int
    unchanged: bool
    warnings: tuple[Fault, ...] = ()

    @property
    def environment_label(self) -> str:
        """What the environment is called."""
        return environment_label(self.environment)


@dataclass(frozen=True, slots=True)
class Instance:
    """One run of a lifecycle. Keep the guid: all calls take it."""

    id: int
    guid: str
    definition: str
    definition_id: int
    environment: int
    version_id: int
    version: int
    state: str
    last_event: str | None
    flags: InstanceFlag
    reference: str | None
    revision: int
    data: Mapping[str, Any]
    created_at: datetime
    modified_at: datetime
    entered_at: datetime

    @property
    def environment_label(self) -> str:
        """What the environment of its definition is called."""
        return environment_label(self.environment)


class Start(Struct, frozen=True):
    """What one instance of a bulk start begins with."""

    reference: str | None = None
    data: Mapping[str, Any] | None = None


class Started(Struct, frozen=True):
    """An instance that a bulk start made, or found by its reference."""

    id: int
    guid: str
    reference: str | None
    created: bool


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of the transition log; `sequence` counts from 1 within its instance."""

    guid: str
    sequence: int
    kind: EntryKind
    source: str | None
    event: str | None
    target: str
    instance_flags: InstanceFlag
    flags: LogFlag
    actor: str
    cause: str | None
    correlation: str | None
    request_key: str | None
    metadata: Mapping[str, Any] | None
    version: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Delivery:
    """Word of one move for one consumer. `claim` is the token of the attempt that is under way."""

    message_id: str
    consumer: str
    entry: LogEntry
    state: str
    attempts: int
    attempts_max: int
    due_at: datetime | None
    claim: str | None
    error: str | None
    created_at: datetime
    modified_at: datetime


Handler = Callable[[Delivery], Awaitable[None] | None]
"""What is called with a delivery: a consumer in this process, or an effect. It has failed when it raises."""


@dataclass(frozen=True, slots=True)
class DeliveryMove:
    """One move of a delivery, as the transition log has it."""

    source: str | None
    event: str
    target: str
    actor: str
    cause: str | None
    at: datetime


OutcomeKind = Literal[
    "applied", "allowed", "duplicate", "unknown_event", "not_allowed", "guard_denied",
    "conflict", "suspended", "terminal", "not_found",
]  # fmt: skip


class Outcome(Struct, frozen=True):
    """What became of a trigger. Refusals are values: `kind` says which, `reason` why, `allowed` what would go."""

    kind: OutcomeKind
    guid: str
    event: str
    source: str | None = None
    target: str | None = None
    sequence: int | None = None
    reason: str | None = None
    allowed: tuple[str, ...] = ()

    @property
    def applied(self) -> bool:
        """Whether the event has moved the instance, now or when the same request came first."""
        return self.kind in ("applied", "duplicate")

    def or_raise(self) -> Outcome:
        """The outcome itself; `Conflict` when it is a refusal."""
        if self.kind in ("applied", "duplicate", "allowed"):
            return self
        raise Conflict(str(self))

    def __str__(self) -> str:
        may = f"; it can take: {', '.join(self.allowed) or 'nothing'}" if self.kind == "not_allowed" else ""
        why = f": {self.reason}" if self.reason else ""
        where = f" in {self.source!r}" if self.source else ""
        to = f" -> {self.target!r}" if self.target and self.kind in ("applied", "duplicate", "allowed") else ""
        return f"instance {self.guid}{where}, event {self.event!r}: {self.kind.replace('_', ' ')}{to}{why}{may}"


class Trigger(Struct, frozen=True):
    """One event for one instance, in a bulk call."""

    instance: str
    event: str
    request_key: str | None = None
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Available:
    """An event that an instance's state admits, where it leads, and why its guard would deny it now."""

    event: str
    target: str
    is_allowed: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Count:
    """How many instances of a version are in a state with these flags."""

    version: int
    state: str
    flags: InstanceFlag
    instances: int


@dataclass(frozen=True, slots=True)
class Migration:
    """What moving instances to another version does, or would do: how many from each state to which."""

    source: int
    target: int
    moves: Mapping[tuple[str, str], int] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    is_dry_run: bool = False
    skipped: int = 0

    @property
    def instances(self) -> int:
        """How many instances move."""
        return sum(self.moves.values())


@dataclass(frozen=True, slots=True)
class Difference:
    """Something about an instance that does not follow from its log."""

    rule: str
    guid: str
    message: str
