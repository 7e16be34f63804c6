"""The monitor: one bounded pass that fires timers, calls this process's subscribers and gives up what is spent.

Several processes may run it at once: a timer moves its instance by the same compare-and-set as everybody else, and a
delivery is claimed before it is handed over.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from sqlalchemy import select, update

from penstock.clock import micros
from penstock.db.connection import Connection
from penstock.errors import Conflict, NotFound
from penstock.graphs.durations import format_duration
from penstock.graphs.names import name_key
from penstock.lifecycles import claiming, delivering
from penstock.lifecycles.changes import Stamp
from penstock.lifecycles.lists import flag_conditions
from penstock.lifecycles.model import Delivery, Handler
from penstock.lifecycles.queries import graph_of
from penstock.lifecycles.rules.effects import effect_name
from penstock.lifecycles.rules.graph import Graph
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.states import BLOCKING, InstanceFlag, LogFlag
from penstock.lifecycles.tables import instances, timers
from penstock.lifecycles.triggering import DueTimer, trigger

__all__ = ["Tick", "tick"]

log = logging.getLogger("penstock.lifecycles")

RETRY_US = 60_000_000
RETRY_US_MAX = 3_600_000_000
ERROR_CHARS = 500


@dataclass(frozen=True, slots=True)
class Tick:
    """What one pass of the monitor did."""

    timers_fired: int = 0
    timers_refused: int = 0
    processed: int = 0
    failed: int = 0
    given_up: int = 0

    @classmethod
    def total(cls, ticks: Iterable[Tick]) -> Tick:
        """What several passes did together."""
        sums = zip(*(astuple(tick) for tick in ticks), strict=True)
        return cls(*map(sum, sums))

    @property
    def is_idle(self) -> bool:
        """Whether there was nothing to do."""
        return self == Tick()


async def tick(scope: Scope, handlers: Mapping[str, Handler], *, limit: int, lease_us: int) -> Tick:
    """One pass over what is due now, at most `limit` timers and as many deliveries for each subscriber."""
    fired, refused = await _fire_timers(scope, limit)
    processed, failed = 0, 0
    for consumer, handler in handlers.items():
        some = await claiming.claim(scope, consumer, limit=limit, lease_us=lease_us)
        done, undone = await _hand_over(scope, [(handler, each) for each in some], lease_us=lease_us)
        processed, failed = processed + done, failed + undone
    done, undone = await _run_effects(scope, limit=limit, lease_us=lease_us)
    processed, failed = processed + done, failed + undone
    given_up = await delivering.fail_spent(scope, limit=limit) + await delivering.cancel_strays(scope, limit=limit)
    return Tick(fired, refused, processed, failed, given_up)


async def _run_effects(scope: Scope, *, limit: int, lease_us: int) -> tuple[int, int]:
    """Carry out effects whose functions this process has; those behind them come in the same pass."""
    done = failed = 0
    while scope.effects and done + failed < limit:
        some = await claiming.claim_effects(scope, scope.effects, limit=limit - done - failed, lease_us=lease_us)
        if not some:
            break
        calls = [(scope.effects[effect_name(each.consumer)], each) for each in some]
        now_done, undone = await _hand_over(scope, calls, lease_us=lease_us)
        done, failed = done + now_done, failed + undone
    return done, failed


async def _hand_over(scope: Scope, calls: Sequence[tuple[Handler, Delivery]], *, lease_us: int) -> tuple[int, int]:
    """Call handlers with what was claimed together, each within the lease: how many were processed, how many failed."""
    done = failed = 0
    held = {delivery.message_id for _, delivery in calls}
    until = min((micros(each.due_at) for _, each in calls if each.due_at is not None), default=0)
    for handler, delivery in calls:
        if scope.clock.now_us() + round(scope.call_timeout_s * 1e6) > until:
            held, until = await claiming.renew(scope, delivery.claim, lease_us=lease_us)
        if delivery.message_id in held and await _handed_over(scope, handler, delivery):
            done += 1
        else:
            failed += 1
    return done, failed


async def _handed_over(scope: Scope, handler: Handler, delivery: Delivery) -> bool:
    try:
        answer = handler(delivery)
        if inspect.isawaitable(answer):
            await answer
    except Exception as error:
        log.warning("consumer %s failed on %s", delivery.consumer, delivery.message_id, exc_info=True)
        reason = f"{type(error).__name__}: {error}"[:ERROR_CHARS]
        await _settled(delivering.fail(scope, delivery.message_id, reason, token=delivery.claim))
        return False
    return await _settled(delivering.acknowledge(scope, delivery.message_id, "processed", token=delivery.claim))


async def _settled(settling: Awaitable[Delivery]) -> bool:
    """Whether our answer counted: it does not when it came after the lease, and somebody else has the delivery."""
    try:
        await settling
    except (Conflict, NotFound) as error:
        log.warning("an acknowledgement came too late: %s", error)
        return False
    return True


# --- timers


async def _fire_timers(scope: Scope, limit: int) -> tuple[int, int]:
    left = set[int]()  # states whose timers are for processes that have their guards
    while True:
        due, graphs = await _due(scope, limit, left)
        missing = {row.state: guard for row in due if (guard := _missing_guard(scope, graphs[row.version], row.state))}
        if not missing:
            break
        left |= missing.keys()  # they must not keep others from their turn
        _tell_of(scope, missing.values())
    fired = refused = 0
    for row in due:
        outcome = await _fire(scope, graphs[row.version], row)
        fired += outcome == "applied"
        refused += outcome not in ("applied", "duplicate", "conflict")
    return fired, refused


async def _due(scope: Scope, limit: int, left: Collection[int]) -> tuple[Sequence[Any], dict[int, Graph]]:
    """The timers that are due, longest first, but those of some states; and the graphs of their instances."""
    query = (
        select(timers.c.instance, timers.c.sequence, timers.c.firings, instances.c.version, instances.c.state)
        .join(instances, (instances.c.tenant == timers.c.tenant) & (instances.c.id == timers.c.instance))
        .where(timers.c.tenant == scope.tenant, timers.c.due_at <= scope.db.now(), instances.c.state.not_in(left))
        .where(*flag_conditions(InstanceFlag.NONE, InstanceFlag.NONE, BLOCKING))
        .order_by(timers.c.due_at)
        .limit(limit)
    )
    async with scope.db.read() as tx:
        due = (await tx.execute(query)).all()
        return due, {version: await graph_of(tx, scope, version) for version in {row.version for row in due}}


def _missing_guard(scope: Scope, graph: Graph, state: int) -> str | None:
    """The guard of a state's timer, if this process does not have it."""
    timeout = graph.by_id[state].timeout
    moves = () if timeout is None else graph.leaving(state)
    fired = (move for move in moves if timeout and name_key(move.event.name) == name_key(timeout.event))
    asked = (name for move in fired for name in (move.guard, *move.gates))
    return next((name for name in asked if name is not None and name not in scope.guards), None)


def _tell_of(scope: Scope, guards: Iterable[str]) -> None:
    """Say, once for each guard, why its timers are left alone."""
    for guard in set(guards) - scope.missing_guards:
        scope.missing_guards.add(guard)
        log.warning("timers with the guard %r are due; they are left to processes that have it", guard)


async def _fire(scope: Scope, graph: Graph, timer: Any) -> str:
    timeout = graph.by_id[timer.state].timeout
    if timeout is None:
        return "conflict"  # it left the state since
    stamp = Stamp(
        "timer",
        f"{format_duration(timeout.duration_us)} in {graph.by_id[timer.state].name}",
        # Who fires it a second time, because two were at it, is told of the first.
        request_key=f"timer:{timer.sequence}:{timer.firings}",
        flags=LogFlag.SYSTEM,
    )
    due = DueTimer(timer.sequence, timer.firings, timeout.repeats)
    try:
        outcome = await trigger(scope, timer.instance, timeout.event, stamp, timer=due)
    except NotFound:
        return "conflict"  # it was deleted since
    if outcome.kind in ("guard_denied", "not_allowed", "unknown_event"):
        log.warning("a timer was refused: %s", outcome)
        wait = timeout.duration_us if timeout.repeats else min(RETRY_US * 2 ** min(timer.firings, 20), RETRY_US_MAX)
        await scope.db.transaction(lambda tx: _put_off(tx, scope, timer, wait), "lifecycle_timer")
    return outcome.kind


async def _put_off(tx: Connection, scope: Scope, timer: Any, wait_us: int) -> None:
    """Try a refused timer again later, unless somebody else has put it off, or the instance has moved."""
    await tx.execute(
        update(timers)
        .where(
            timers.c.tenant == scope.tenant,
            timers.c.instance == timer.instance,
            timers.c.sequence == timer.sequence,
            timers.c.firings == timer.firings,
        )
        .values(firings=timers.c.firings + 1, due_at=scope.db.now() + wait_us)
    )
