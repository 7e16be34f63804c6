"""The core with one rule taken out, under seeded schedules: which faults does the oracle see, and by which rule?

`python -m tests.torture.planted --seeds 16` prints a line for each; the faults are some of those
that the files `integration/test_planted_faults_*` plant one scenario each.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from sqlalchemy import Integer, bindparam, literal, update

from penstock.operations import control, moves, retrying
from penstock.operations.chunk import owned, store
from penstock.operations.chunk.ledger import CANCELLED
from penstock.operations.chunk.store import Lost
from penstock.operations.inbox import applying, matching, settling
from penstock.operations.rows import segments
from penstock.operations.rows.gates import FOREVER, StartLimit
from penstock.operations.running.actor import ChunkActor
from penstock.operations.running.planning import next_due
from penstock.operations.tables import chunks, operations
from penstock.operations.worker import lease as leasing

from .schedules import play

__all__ = ["FAULTS", "LATE", "caught"]

Plant = Callable[[], AbstractContextManager[Any]]

FAULTS: dict[str, Plant] = {}
# Faults that lose nothing and are seen within a few seeds: a sweep would have hidden them.
LATE = ("no look after parking", "park and let go in one commit")


def fault(name: str) -> Callable[[Plant], Plant]:
    """Name a way of planting."""

    def add(plant: Plant) -> Plant:
        FAULTS[name] = plant
        return plant

    return add


def caught(name: str, seeds: Iterable[int]) -> tuple[int, str] | None:
    """The first seed whose schedule goes wrong with this fault, and what was found; None when none does."""
    for seed in seeds:
        with FAULTS[name]():
            try:
                found = [str(finding) for finding in play(seed)]
            except Exception as error:  # the engine itself noticed
                found = [f"{type(error).__name__}: {error}"]
        if found:
            return seed, found[0]
    return None


class Unlimited(StartLimit):
    """User code may always start."""

    until_ns = property(lambda self: FOREVER, lambda self, until: None)


# --- closing and letting go


@fault("end without the operation row")
def _end_without_the_referee() -> Any:
    async def close(db: Any, tx: Any, chunk: Any, writing: Any, **_: Any) -> None:
        await store.flush(db, tx, chunk, writing, is_open=0, owner=None)

    return patch.object(store, "close", close)


@fault("release past new messages")
def _let_go_past_mail() -> Any:
    past_new_ones = store._FLUSH.where(chunks.c.message_count >= bindparam("seen_messages")).values(owner=None)
    return patch.object(store, "_RELEASE", past_new_ones)


@fault("no look after parking")
def _no_look_after_parking() -> Any:
    flush = ChunkActor._flush

    async def blind(actor: ChunkActor, **given: Any) -> None:
        await flush(actor, **given)
        actor._must_look = False

    return patch.object(ChunkActor, "_flush", blind)


@fault("park and let go in one commit")
def _park_and_go() -> Any:
    flush = ChunkActor._flush

    async def park_and_go(actor: ChunkActor, **given: Any) -> None:
        if not actor.progress.has_parked or any(actor.owned.ledger.in_flight):
            return await flush(actor, **given)
        writing, due = actor.owned.writing(), next_due(actor.owned)
        await actor.db.transaction(
            lambda tx: store.flush(actor.db, tx, actor.owned, writing, owner=None, due_at=due), "park"
        )
        raise Lost("let go in the same breath")

    return patch.object(ChunkActor, "_flush", park_and_go)


@fault("a paused operation cannot finish")
def _paused_cannot_finish() -> Any:
    finish = moves.finish_if_over

    async def not_while_paused(db: Any, tx: Any, head: Any, **given: Any) -> Any:
        return head if head.state == "Paused" else await finish(db, tx, head, **given)

    return patch.object(store, "finish_if_over", not_while_paused)


# --- stopping


@fault("cancel straight to Cancelled")
def _cancel_at_once() -> Any:
    async def at_once(db: Any, number: int, **_: Any) -> Any:
        async def stop(tx: Any) -> Any:
            await tx.execute(update(operations).where(operations.c.number == number).values(state="Cancelled"))
            return await moves.head_of(tx, number)

        return await db.transaction(stop)

    return patch.object(control, "cancel", at_once)


@fault("Stopping waits for something to be due")
def _drain_when_due() -> Any:
    candidates = store.candidates

    async def only_due(db: Any, tx: Any, **given: Any) -> Any:
        return [chunk for chunk in await candidates(db, tx, **given) if chunk.operation_state != "Stopping"]

    return patch.object(store, "candidates", only_due)


# --- signals


@fault("signals outlive their generation")
def _old_signals() -> Any:
    def hears(signal: matching.Signal, *, key: str | None, row: int, since: int | None) -> bool:
        return signal.key == key and signal.row in (None, row)

    return patch.multiple(matching, accepts=hears, since=lambda: literal(0))


@fault("no pass-on of shared keys")
def _no_pass_on() -> Any:
    return patch.object(settling, "wake", _nobody)


@fault("a higher row takes the signal first")
def _higher_row_first() -> Any:
    async def nobody_else(*_: Any, **__: Any) -> list[Any]:
        return []

    return patch.object(settling, "waiters", nobody_else)


@fault("timeout before the look")
def _time_first() -> Any:
    settle = settling.settle

    async def time_first(db: Any, tx: Any, chunk: Any, raw_of: Any, now: int, **given: Any) -> Any:
        applying.apply_deadlines(chunk, now)
        return await settle(db, tx, chunk, raw_of, now, **given)

    return patch.object(settling, "settle", time_first)


@fault("no sweep after a caller's death")
def _no_sweep() -> Any:
    return patch.object(settling, "sweep", _nobody)


async def _nobody(*_: Any) -> int:
    """Wakes nobody."""
    return 0


# --- intents, leases and fences


@fault("an at-most-once step inside a longer span")
def _once_among_others() -> Any:
    return patch.object(segments, "stands_alone", lambda step: step.kind != "plain")


@fault("a begun at-most-once call is cancelled")
def _once_cancelled() -> Any:
    def cancel(chunk: Any, i: int, place: int, now: int) -> None:
        chunk.ledger.tracks[place].state[i], chunk.ledger.in_flight[i] = CANCELLED, 0

    return patch.object(owned, "_leave_in_doubt", cancel)


@fault("no intent on disk")
def _no_intent() -> Any:
    flush = ChunkActor._flush

    async def unwritten(actor: ChunkActor, *, is_intent: bool = False) -> None:
        if not is_intent:
            await flush(actor)

    return patch.object(ChunkActor, "_flush", unwritten)


@fault("a start without a look at the lease")
def _no_look_at_the_lease() -> Any:
    return patch.object(leasing, "StartLimit", Unlimited)


@fault("a write without the fence")
def _no_fence() -> Any:
    any_fence = (chunks.c.id == bindparam("the_chunk"), chunks.c.fence != -bindparam("the_fence", type_=Integer))
    return patch.object(store, "_FLUSH", update(chunks).where(*any_fence).values(version=chunks.c.version + 1))


@fault("a retry opens chunks outside its transaction")
def _retry_in_two() -> Any:
    async def later(*_: Any, **__: Any) -> None:
        """The caller dies before it comes to the second transaction."""

    return patch.object(retrying, "_request", later)


def main() -> int:
    """Try every fault, or those named."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.planted", description=__doc__)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--quiet-only", action="store_true", help="only schedules in which nobody dies")
    parser.add_argument("names", nargs="*", help="parts of names; all faults unless given")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    names = [name for name in FAULTS if not given.names or any(part in name for part in given.names)]
    seeds = range(2, 2 * given.seeds + 1, 2) if given.quiet_only else range(1, given.seeds + 1)
    missed = 0
    for name in names:
        found = caught(name, seeds)
        missed += found is None
        print(f"{name}: {'not seen' if found is None else f'seed {found[0]}, {found[1][:100]}'}", flush=True)
    print(f"{len(names) - missed} of {len(names)} faults seen within {given.seeds} seeds")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
