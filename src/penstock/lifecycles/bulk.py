"""Triggers in bulk: a thousand instances in a transaction, set by set, with an outcome for each in the order given."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from msgspec import structs

from penstock.db.connection import Connection
from penstock.db.types import NotStorable, storable
from penstock.errors import InvalidInput
from penstock.lifecycles.changes import Change, Stamp, checked_data, write_many
from penstock.lifecycles.log import entries_at
from penstock.lifecycles.model import Outcome, Trigger
from penstock.lifecycles.queries import graph_of
from penstock.lifecycles.records import INSTANCES_EACH, Record, prior_requests, records_of
from penstock.lifecycles.rules.deciding import decide
from penstock.lifecycles.rules.graph import Graph, LifecycleTransition
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.tables import REQUEST_KEY_CHARS
from penstock.lifecycles.triggering import conflict, duplicate, guard_denial, move_of, moved

__all__ = ["trigger_many"]

GUARDS_AT_ONCE = 50

Numbered = dict[int, Trigger]
"""Triggers by their place in the input."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to do about some triggers: those that are settled already, and the moves to write, by their places."""

    outcomes: dict[int, Outcome]
    moves: dict[int, tuple[Change, LifecycleTransition]]


async def trigger_many(scope: Scope, triggers: Iterable[Trigger], stamp: Stamp, *, retries: int = 0) -> list[Outcome]:
    """What became of each trigger. One transaction for each slice, so a failure leaves whole slices behind it done.

    An instance that is named several times takes its events in order. With a trigger that cannot be stored, nothing
    moves. While a server writes a slice, the next one is looked at, unless it names the same instances.
    """
    turns = list(_turns([_checked(each) for each in triggers]))
    outcomes: dict[int, Outcome] = {}
    ahead: asyncio.Task[_Plan] | None = None
    try:
        for turn, following in zip_longest(turns, turns[1:]):
            plan = await (ahead or _plan(scope, turn, stamp))
            ahead = None
            if following and not scope.db.dialect.is_file and _instances(turn).isdisjoint(_instances(following)):
                ahead = asyncio.create_task(_plan(scope, following, stamp))
            outcomes |= await _turn(scope, turn, plan, stamp, retries)
    finally:
        if ahead is not None:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)
    for kind, many in Counter(outcome.kind for outcome in outcomes.values()).items():
        scope.tally["lifecycle_transitions_total", kind] += many
    return [outcomes[place] for place in range(len(outcomes))]


def _checked(each: Trigger) -> Trigger:
    """The trigger, or `InvalidInput` when its request key or its metadata cannot be stored."""
    if each.request_key is not None:
        try:
            storable(each.request_key, REQUEST_KEY_CHARS)
        except NotStorable as error:
            raise InvalidInput(f"the request key of a trigger for {each.instance!r:.60}: {error}") from None
    return each if each.metadata is None else structs.replace(each, metadata=checked_data(each.metadata, "metadata"))


def _turns(triggers: Sequence[Trigger]) -> Iterator[Numbered]:
    """The triggers in turns that name each instance once, in the order in which they were given."""
    for first in range(0, len(triggers), INSTANCES_EACH):
        turns: list[Numbered] = []
        seen: dict[str, int] = {}
        for place, each in enumerate(triggers[first : first + INSTANCES_EACH], first):
            turn = seen.get(each.instance, 0)
            seen[each.instance] = turn + 1
            if turn == len(turns):
                turns.append({})
            turns[turn][place] = each
        yield from turns


def _instances(turn: Numbered) -> set[str]:
    return {each.instance for each in turn.values()}


async def _turn(scope: Scope, todo: Numbered, plan: _Plan, stamp: Stamp, retries: int) -> dict[int, Outcome]:
    outcomes = plan.outcomes | await _write(scope, plan.moves)
    for _ in range(retries):
        again = {place: todo[place] for place, outcome in outcomes.items() if outcome.kind == "conflict"}
        if not again:
            break
        plan = await _plan(scope, again, stamp.again())
        outcomes |= plan.outcomes | await _write(scope, plan.moves)
    return outcomes


async def _plan(scope: Scope, todo: Numbered, stamp: Stamp) -> _Plan:
    """Look at the instances, decide, and ask the guards."""
    async with scope.db.connection() as look:
        records = await records_of(look, scope, [each.instance for each in todo.values()])
        graphs = {v: await graph_of(look, scope, v) for v in {record.version for record in records.values()}}
        outcomes = await _duplicates(look, scope, todo, records)
    planned: dict[int, tuple[Change, LifecycleTransition]] = {}
    alike: dict[tuple[Any, ...], tuple[Change, LifecycleTransition]] = {}
    guarded: list[tuple[int, Change, LifecycleTransition, Graph]] = []
    for place, each in todo.items():
        record = records.get(each.instance)
        if record is None:
            outcomes[place] = Outcome("not_found", each.instance, each.event, reason="no instance has this guid")
        if record is None or place in outcomes:
            continue
        graph, stamped = graphs[record.version], _stamped(stamp, each)
        situation = record.version, record.state, int(record.flags), each.event
        if stamped is stamp and situation in alike:
            like, found = alike[situation]
            change = structs.replace(like, record=record)
        else:
            decided = decide(graph, record.guid, record.state, record.flags, each.event)
            if isinstance(decided, Outcome):
                outcomes[place] = decided
                continue
            found, change = decided, move_of(record, graph, decided, stamped)
            if stamped is stamp:
                alike[situation] = change, found
        if found.is_guarded:
            guarded.append((place, change, found, graph))
        planned[place] = (change, found)
    denied = await _denials(scope, guarded)
    return _Plan(outcomes | denied, {place: plan for place, plan in planned.items() if place not in denied})


def _stamped(stamp: Stamp, each: Trigger) -> Stamp:
    if each.request_key is None and each.metadata is None:
        return stamp
    return replace(stamp, request_key=each.request_key, metadata=each.metadata or stamp.metadata)


async def _duplicates(tx: Connection, scope: Scope, todo: Numbered, records: dict[str, Record]) -> dict[int, Outcome]:
    keyed = {
        records[each.instance].id: each.request_key
        for each in todo.values()
        if each.request_key is not None and each.instance in records
    }
    if not keyed:
        return {}
    prior = await prior_requests(tx, scope, keyed)
    if not prior:
        return {}
    entries = await entries_at(tx, scope, prior)
    outcomes = {}
    for place, each in todo.items():
        record = records.get(each.instance)
        if record is not None and each.request_key is not None and record.id in entries:
            outcomes[place] = duplicate(entries[record.id], each.event)
    return outcomes


async def _denials(
    scope: Scope, guarded: Sequence[tuple[int, Change, LifecycleTransition, Graph]]
) -> dict[int, Outcome]:
    """Ask the guards, some at once."""
    denied: dict[int, Outcome] = {}
    for first in range(0, len(guarded), GUARDS_AT_ONCE):
        some = guarded[first : first + GUARDS_AT_ONCE]
        answers = await asyncio.gather(
            *(guard_denial(scope, change.record, graph, found, change.stamp) for _, change, found, graph in some)
        )
        denied |= {place: answer for (place, *_), answer in zip(some, answers, strict=True) if answer is not None}
    return denied


async def _write(scope: Scope, planned: dict[int, tuple[Change, LifecycleTransition]]) -> dict[int, Outcome]:
    if not planned:
        return {}
    changes = [change for change, _ in planned.values()]
    written = await scope.db.transaction(partial(_written, scope, changes), "lifecycle_trigger_many")
    return {
        place: moved(change, found) if change.record.id in written else conflict(change, found)
        for place, (change, found) in planned.items()
    }


async def _written(scope: Scope, changes: Sequence[Change], tx: Connection) -> set[int]:
    return await write_many(tx, scope, changes)
