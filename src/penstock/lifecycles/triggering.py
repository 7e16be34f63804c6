"""Trigger: an event moves an instance, in one transaction with its log entry, its timers and its deliveries.

Guards are asked before the transaction, on the instance as it was read. The transaction is a compare-and-set on
(state, revision), and everything about an instance changes its revision: so it only commits what the guards saw.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from sqlalchemy import select

from penstock.db.connection import Connection
from penstock.errors import InvalidInput
from penstock.graphs.flags import TransitionFlag
from penstock.graphs.names import name_key
from penstock.lifecycles.changes import Change, Stamp, write
from penstock.lifecycles.guards import GuardContext, denial
from penstock.lifecycles.log import entries_at
from penstock.lifecycles.model import Available, LogEntry, Outcome
from penstock.lifecycles.queries import graph_of
from penstock.lifecycles.records import Record, named, record_of
from penstock.lifecycles.rules.deciding import decide
from penstock.lifecycles.rules.graph import Graph, LifecycleTransition
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.states import LogFlag, entered
from penstock.lifecycles.tables import timers

log = logging.getLogger("penstock.lifecycles")

__all__ = ["DueTimer", "available", "can", "conflict", "duplicate", "guard_denial", "move_of", "reading", "trigger"]


@dataclass(frozen=True, slots=True)
class DueTimer:
    """A timer as it was found due: the log entry that set it, how often it was refused, whether it fires again."""

    sequence: int
    firings: int
    repeats: bool


@asynccontextmanager
async def reading(scope: Scope, tx: Connection | None) -> AsyncIterator[Connection]:
    """The caller's transaction, or a connection on which each statement stands alone."""
    if tx is not None:
        yield tx
    else:
        async with scope.db.connection() as connection:
            yield connection


async def trigger(
    scope: Scope,
    instance: str | int,
    event: str,
    stamp: Stamp,
    *,
    retries: int = 0,
    tx: Connection | None = None,
    timer: DueTimer | None = None,
) -> Outcome:
    """Move an instance by an event; what is refused comes back as a value.

    A conflict with another change is tried again `retries` times, from the start. When a timer fires it, it is a
    conflict also that the timer was cancelled or put off since it was found due.
    """
    if retries < 0:
        raise InvalidInput(f"retries is {retries}; it is 0 or more")
    outcome = await _try(scope, instance, event, stamp, tx, timer=timer)
    while outcome.kind == "conflict" and retries > 0:
        retries -= 1
        outcome = await _try(scope, instance, event, stamp.again(), tx, timer=timer)
    scope.tally["lifecycle_transitions_total", outcome.kind] += 1
    if not outcome.applied:
        log.info("refused: %s (actor %s, correlation %s)", outcome, stamp.actor, stamp.correlation)
    return outcome


async def _try(
    scope: Scope, instance: str | int, event: str, stamp: Stamp, tx: Connection | None, *, timer: DueTimer | None
) -> Outcome:
    async with reading(scope, tx) as look:
        record = await record_of(look, scope, instance, stamp.request_key)
        graph = await graph_of(look, scope, record.version)
        if record.prior is not None:
            entry = (await entries_at(look, scope, {record.id: record.prior}))[record.id]
            return duplicate(entry, event)
        # After the record: whoever cancels or sets a timer from here on raises the revision.
        if timer is not None and not await _is_due(look, scope, record, timer):
            return Outcome("conflict", record.guid, event, reason="its timer was cancelled or put off meanwhile")
    found = decide(graph, record.guid, record.state, record.flags, event)
    if isinstance(found, Outcome):
        return found
    denied = await guard_denial(scope, record, graph, found, stamp)
    if denied is not None:
        return denied
    is_spent = timer is not None and not timer.repeats and found.target == found.source
    change = move_of(record, graph, found, stamp, arms=not is_spent)
    if tx is not None:
        is_written = await write(tx, scope, change)
    else:
        is_written = await scope.db.transaction(partial(_written, scope, change), "lifecycle_trigger")
    return moved(change, found) if is_written else conflict(change, found)


async def _is_due(tx: Connection, scope: Scope, record: Record, timer: DueTimer) -> bool:
    query = select(timers.c.instance).where(
        timers.c.tenant == scope.tenant,
        timers.c.instance == record.id,
        timers.c.sequence == timer.sequence,
        timers.c.firings == timer.firings,
    )
    return (await tx.execute(query)).first() is not None


async def _written(scope: Scope, change: Change, tx: Connection) -> bool:
    return await write(tx, scope, change)


def move_of(
    record: Record, graph: Graph, transition: LifecycleTransition, stamp: Stamp, *, arms: bool = True
) -> Change:
    """The change that a transition makes of an instance."""
    return Change(
        record,
        "moved",
        record.version,
        graph.version.definition.id,
        transition.target,
        entered(record.flags, transition.target.flags),
        _flagged(stamp, transition),
        leaves=transition.source,
        event=transition.event.id,
        last_event=transition.event.id,
        arms=arms,
    )


def _flagged(stamp: Stamp, transition: LifecycleTransition) -> Stamp:
    """Transitions that are the system's, or take something back, say so in the log."""
    flags = stamp.flags
    if TransitionFlag.SYSTEM in transition.flags:
        flags |= LogFlag.SYSTEM
    if TransitionFlag.ROLLBACK in transition.flags:
        flags |= LogFlag.ROLLBACK
    return stamp if flags == stamp.flags else replace(stamp, flags=flags)


def moved(change: Change, transition: LifecycleTransition) -> Outcome:
    """The outcome of a move that was written."""
    return Outcome(
        "applied",
        change.record.guid,
        transition.event.name,
        transition.source.name,
        transition.target.name,
        change.sequence,
    )


def conflict(change: Change, transition: LifecycleTransition) -> Outcome:
    """The outcome of a move that came too late."""
    return Outcome(
        "conflict",
        change.record.guid,
        transition.event.name,
        transition.source.name,
        reason=f"it was changed by somebody else since revision {change.record.revision}",
    )


def duplicate(entry: LogEntry, event: str) -> Outcome:
    """The outcome of a request that made this entry before: what it came to then. A key stands for one event only."""
    if name_key(entry.event or "") != name_key(event):
        reason = (
            f"its request key {entry.request_key!r} was used for {entry.event!r}; another request needs another key"
        )
        return Outcome("conflict", entry.guid, event, reason=reason)
    return Outcome("duplicate", entry.guid, entry.event or event, entry.source, entry.target, entry.sequence)


async def guard_denial(
    scope: Scope, record: Record, graph: Graph, transition: LifecycleTransition, stamp: Stamp
) -> Outcome | None:
    """The outcome of a denied transition; None when nothing stands in its way."""
    if not transition.is_guarded:
        return None
    context = GuardContext(
        named(record, graph),
        transition.event.name,
        transition.source.name,
        transition.target.name,
        stamp.actor,
        stamp.metadata or {},
        stamp.correlation,
    )
    why = await denial(transition, scope.guards, context)
    if why is None:
        return None
    return Outcome(
        "guard_denied", record.guid, transition.event.name, transition.source.name, transition.target.name, reason=why
    )


async def can(scope: Scope, instance: str | int, event: str, stamp: Stamp) -> Outcome:
    """What a trigger would come to now, without moving anything."""
    async with reading(scope, None) as look:
        record = await record_of(look, scope, instance)
        graph = await graph_of(look, scope, record.version)
    found = decide(graph, record.guid, record.state, record.flags, event)
    if isinstance(found, Outcome):
        return found
    denied = await guard_denial(scope, record, graph, found, stamp)
    return denied or Outcome("allowed", record.guid, found.event.name, found.source.name, found.target.name)


async def available(scope: Scope, instance: str | int, stamp: Stamp) -> list[Available]:
    """Every event that the instance's state admits, and what its guard says now."""
    async with reading(scope, None) as look:
        record = await record_of(look, scope, instance)
        graph = await graph_of(look, scope, record.version)
    found = []
    for transition in graph.leaving(record.state):
        decided = decide(graph, record.guid, record.state, record.flags, transition.event.name)
        blocked = decided if isinstance(decided, Outcome) else None
        blocked = blocked or await guard_denial(scope, record, graph, transition, stamp)
        reason = None if blocked is None else blocked.reason
        found.append(Available(transition.event.name, transition.target.name, blocked is None, reason))
    return found
