"""What may happen to an instance beside its own machine: flags, the actions that set them, and kinds of log entries."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import Literal

from penstock.graphs.flags import StateFlag

__all__ = ["ACTIONS", "BLOCKING", "TERMINAL", "Action", "EntryKind", "InstanceFlag", "LogFlag", "entered"]


class InstanceFlag(IntFlag):
    """Where an instance stands in its life, whatever its state."""

    NONE = 0
    ACTIVE = 1
    SUSPENDED = 2
    COMPLETED = 4
    FAILED = 8
    ARCHIVED = 16


class LogFlag(IntFlag):
    """How a log entry came about."""

    NONE = 0
    SYSTEM = 1
    MANUAL = 2
    RETRY = 4
    ROLLBACK = 8


TERMINAL = InstanceFlag.COMPLETED | InstanceFlag.FAILED | InstanceFlag.ARCHIVED
"""With one of these an instance takes no event: until it is reopened, or never again when it is archived."""
BLOCKING = TERMINAL | InstanceFlag.SUSPENDED

EntryKind = Literal[
    "started", "moved", "forced", "migrated", "data_changed",
    "suspended", "resumed", "completed", "failed", "archived", "reopened",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Action:
    """A change of flags alone: bits that are added and bits that are removed; all others stay."""

    kind: EntryKind
    adds: InstanceFlag = InstanceFlag.NONE
    removes: InstanceFlag = InstanceFlag.NONE

    def applied(self, flags: InstanceFlag) -> InstanceFlag:
        """The flags after it."""
        return (flags | self.adds) & ~self.removes


ACTIONS = {
    "suspend": Action("suspended", adds=InstanceFlag.SUSPENDED),
    "resume": Action("resumed", removes=InstanceFlag.SUSPENDED),
    "complete": Action("completed", adds=InstanceFlag.COMPLETED),
    "fail": Action("failed", adds=InstanceFlag.FAILED),
    "archive": Action("archived", adds=InstanceFlag.ARCHIVED),
    "reopen": Action("reopened", adds=InstanceFlag.ACTIVE, removes=InstanceFlag.COMPLETED | InstanceFlag.FAILED),
}


def entered(flags: InstanceFlag, state: StateFlag) -> InstanceFlag:
    """The flags after a move into a state: an end completes, and other states leave the flags as they are."""
    if StateFlag.FINAL in state:
        return (flags | InstanceFlag.COMPLETED) & ~InstanceFlag.ACTIVE
    return flags
