"""Scripted misfortune: what goes wrong, and at which calls.

server.faults.add(throttled("requests", retry_after_s=3), table="account", call=2)
server.faults.add(Drop(is_applied=True), action="CreateMultiple", times=1)
server.faults.add(plugin_aborted("no"), row=lambda row: row["name"] == "bad")
server.faults.add(sql_timeout(), rows_over=50)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .problems import Problem

__all__ = ["Call", "Drop", "Fault", "Faults", "Held", "MissingParts", "Slow", "Truncated"]

RowTest = Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Drop:
    """The connection goes away without an answer, before or after the call took effect.

    A late one takes effect when the next call that writes has come in.
    """

    is_applied: bool = False
    is_reset: bool = False
    is_late: bool = False


@dataclass(frozen=True)
class Slow:
    """The answer takes longer, on the server's own sleep; the call has already taken effect unless told otherwise."""

    seconds: float
    is_applied: bool = True


@dataclass(frozen=True)
class Held:
    """The call waits for a gate to open; `arrived` is set when it is there."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    is_applied: bool = False


@dataclass(frozen=True)
class Truncated:
    """The call took effect, but its answer ends after so many bytes of the body."""

    bytes: int = 10


@dataclass(frozen=True)
class MissingParts:
    """A batch took effect, but its answer lacks so many of its last parts."""

    count: int = 1


Event = Problem | Drop | Slow | Held | Truncated | MissingParts


@dataclass(frozen=True)
class Call:
    """One request on the wire as scripts see it: a batch is one call, its parts are its rows."""

    action: str
    table: str | None
    user: str
    rows: Sequence[Mapping[str, Any]] = ()


@dataclass
class Fault:
    """One line of the script: the event, the calls it is about, how often it has happened."""

    event: Event
    table: str | None = None
    action: str | None = None
    user: str | None = None
    call: int | Collection[int] | None = None
    times: int | None = None
    row: RowTest | None = None
    rows_over: int | None = None
    seen: int = 0
    fired: int = 0

    def strikes(self, call: Call) -> bool:
        """Count a call this line is about, and say whether it goes wrong."""
        if not self._concerns(call):
            return False
        self.seen += 1
        wanted = {self.call} if isinstance(self.call, int) else self.call
        is_due = wanted is None or self.seen in wanted
        if not is_due or (self.times is not None and self.fired >= self.times):
            return False
        self.fired += 1
        return True

    def _concerns(self, call: Call) -> bool:
        named = ((self.table, call.table), (self.action, call.action), (self.user, call.user))
        return (
            all(wanted in {None, found} for wanted, found in named)
            and (self.rows_over is None or len(call.rows) > self.rows_over)
            and (self.row is None or any(map(self.row, call.rows)))
        )


@dataclass(frozen=True)
class Struck:
    """The lines of the script that hit one call."""

    faults: Sequence[Fault] = ()

    def whole(self, kind: type[Any]) -> list[Any]:
        """The events of a kind that hit the call as a whole."""
        return [fault.event for fault in self.faults if fault.row is None and isinstance(fault.event, kind)]

    def on_row(self, row: Mapping[str, Any]) -> Problem | None:
        """What is scripted for one row of the call."""
        hits = (fault.event for fault in self.faults if fault.row is not None and fault.row(row))
        return next((event for event in hits if isinstance(event, Problem)), None)


@dataclass
class Faults:
    """The script. Lines are tried in order; each counts the calls it is about from when it was added."""

    script: list[Fault] = field(default_factory=list)

    def add(
        self,
        event: Event,
        *,
        table: str | None = None,
        action: str | None = None,
        user: str | None = None,
        call: int | Collection[int] | None = None,
        times: int | None = None,
        row: RowTest | None = None,
        rows_over: int | None = None,
    ) -> Fault:
        """Script an event.

        `call` is the number (from 1) or numbers of the calls concerned, `times` how often it happens at most. With
        `row` it concerns calls that hold such a row: an atomic call is refused, an elastic call or a batch fails that
        row alone. `rows_over` concerns calls of more rows than that.
        """
        if row is not None and not isinstance(event, Problem):
            raise TypeError(f"a row can only be refused: give a problem, not {event!r}")
        fault = Fault(event, table, action, user, call, times, row, rows_over)
        self.script.append(fault)
        return fault

    def clear(self) -> None:
        """Nothing goes wrong from now on."""
        self.script.clear()

    def strike(self, call: Call) -> Struck:
        """What goes wrong with a call."""
        return Struck([fault for fault in self.script if fault.strikes(call)])
