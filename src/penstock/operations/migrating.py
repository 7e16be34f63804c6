"""Moving an operation to a changed pipeline: its plan, its chunks' ledgers and all records that name a step.

It is one transaction, and nobody may be at work meanwhile: every chunk gets a new fence, so a claim that was on its way
fails. It is refused where a row would lose a step, or run one again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Column, func, select, update

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import Conflict, Fault, InvalidInput
from penstock.operations.auditing import log_act
from penstock.operations.chunk.step_map import Places, StepMap
from penstock.operations.chunk.store import is_dead, is_free, ledgers_of
from penstock.operations.moves import Head, head_of, note, touch
from penstock.operations.operation_ids import IS_THERE
from penstock.operations.tables import chunks, history, operations, row_records, signals
from penstock.pipeline import Definition

__all__ = ["migrate"]

LEDGERS_EACH = 16  # in memory at once
APART = 10_000  # no pipeline has so many steps
STEP_COLUMNS: tuple[tuple[Column[int], Column[int]], ...] = (
    (row_records.c.step, row_records.c.operation),
    (history.c.step, history.c.operation),
    (signals.c.consumed_step, signals.c.operation),
)


async def migrate(
    db: Database,
    number: int,
    definition: Definition,
    renamed: Mapping[str, str],
    *,
    actor: str,
    cause: str | None,
) -> None:
    """Let the operation go on with this definition; `renamed` says what steps of its own are called there.

    `Conflict` while somebody works on it, or when a row would lose or repeat a step; `InvalidInput` for a wrong map.
    """

    async def work(tx: Connection) -> None:
        await db.ring(tx)
        is_idle = is_free(db, operations.c.owner)
        head = await touch(
            tx, number, operations.c.state.not_in(("Stopping", "Completed")), is_idle, IS_THERE,
            owner=None, fence=operations.c.fence + 1, trouble=None,
        )  # fmt: skip
        if head is None:
            raise _refusal(await head_of(tx, number))
        plan = (await tx.execute(select(operations.c.plan).where(operations.c.number == number))).scalar_one()
        steps = _step_map(plan, definition, renamed)
        if not definition.differences(plan) and plan.get("version") == definition.version:
            raise Conflict(f"operation {head.id} fits this code as it is; there is nothing to migrate")
        new_plan = _migrated_plan(plan, definition, steps)
        await _lock_chunks(db, tx, head)
        await _require_faultless(tx, head, steps, plan, new_plan)
        await _write_ledgers(tx, number, steps)
        await _write_steps(tx, number, steps)
        await touch(tx, number, plan=new_plan)
        await note(db, tx, head, "migrated", actor=actor, cause=cause or _described(plan, new_plan, renamed))
        await log_act(db, tx, number, "migrate", actor=actor)

    await db.transaction(work, "migrate")


def _refusal(head: Head) -> Conflict:
    if head.owner is not None and head.state != "Stopping":
        return Conflict(f"worker {head.owner} reads the file of operation {head.id}; pause it first")
    return Conflict(f"operation {head.id} is {head.state}; nothing of it runs any more")


def _step_map(plan: Mapping[str, Any], definition: Definition, renamed: Mapping[str, str]) -> StepMap:
    """The map from the stored steps to those of the code; `InvalidInput` with everything wrong about the names."""
    before = [step["attribute"] for step in plan["steps"]]
    after = [step.attribute for step in definition.steps]
    faults = [
        Fault(f"the operation has no such step; it has: {', '.join(before)}", old)
        for old in renamed
        if old not in before
    ]
    faults += [
        Fault(f"the code has no step {new!r}; it has: {', '.join(after)}", old)
        for old, new in renamed.items()
        if new not in after
    ]
    targets = [renamed.get(name, name) for name in before]
    faults += [Fault(f"several steps would become {name!r}", name) for name in after if targets.count(name) > 1]
    if faults:
        raise InvalidInput(f"the map of steps is wrong: {'; '.join(map(str, faults))}", faults)
    return StepMap.of(before, after, dict(renamed))


def _migrated_plan(plan: Mapping[str, Any], definition: Definition, steps: StepMap) -> dict[str, Any]:
    """The plan with the steps of the code. Options stay as they were stored; those of new steps are the code's.

    A step that was renamed keeps its first name in effect keys, so that a remote still knows its calls.
    """
    made = definition.plan_document()
    for stored, place in zip(plan["steps"], steps.new_places[1:], strict=True):
        if place is None:
            continue
        step = made["steps"][place - 1]
        if step["kind"] == stored["kind"]:
            step["options"] = stored["options"]
        first_name = stored.get("effect_name", stored["attribute"])
        if first_name != step["attribute"]:
            step["effect_name"] = first_name
    made |= {"options": plan["options"], "row_key": plan["row_key"]}
    made["secret_fields"] = sorted({*plan.get("secret_fields", ()), *made["secret_fields"]})
    definition.as_planned(made)
    return made


async def _lock_chunks(db: Database, tx: Connection, head: Head) -> None:
    """Raise the fence of every chunk; `Conflict` when a live worker owns one."""
    mine = chunks.c.operation == head.number
    # An UPDATE of many would lock them in an order of its own.
    ids = (await tx.execute(select(chunks.c.id).where(mine).order_by(chunks.c.id).with_for_update())).all()
    owned = (chunks.c.owner.is_not(None), ~is_dead(db, chunks.c.owner))
    owner = (await tx.execute(select(chunks.c.owner).where(mine, *owned).limit(1))).scalar()
    done = await tx.execute(
        update(chunks)
        .where(mine, is_free(db, chunks.c.owner))
        .values(fence=chunks.c.fence + 1, version=chunks.c.version + 1, owner=None)
    )
    if owner is not None or done.rowcount != len(ids):
        raise Conflict(
            f"worker {owner} works on operation {head.id}; pause it, and try again when its steps have ended"
        )


async def _require_faultless(
    tx: Connection, head: Head, steps: StepMap, plan: Mapping[str, Any], new_plan: Mapping[str, Any]
) -> None:
    """`Conflict` with every reason why the operation cannot be migrated."""
    places = Places()
    async for _, ledger in ledgers_of(tx, head.number, steps=len(steps.before), each=LEDGERS_EACH):
        places.add(ledger)
    faults = [*steps.faults(places), *_kind_faults(steps, places, plan, new_plan)]
    gone = [place - 1 for place, after in enumerate(steps.new_places) if after is None]
    if gone and not faults:
        for step, operation in STEP_COLUMNS:
            query = select(func.count()).select_from(step.table).where(operation == head.number, step.in_(gone))
            if (await tx.execute(query)).scalar_one():
                faults.append(f"records of {', '.join(steps.before[each] for each in gone)} would be lost")
                break
    if faults:
        raise Conflict(f"operation {head.id} cannot be migrated: {'; '.join(faults)}")


def _kind_faults(steps: StepMap, places: Places, plan: Mapping[str, Any], new_plan: Mapping[str, Any]) -> Iterator[str]:
    for place, rows in sorted(places.begun.items()):
        after = steps.new_places[place]
        if rows and after is not None:
            old, new = plan["steps"][place - 1], new_plan["steps"][after - 1]
            if old["kind"] != new["kind"]:
                yield f"{rows:,} rows have begun {old['attribute']!r}, a {old['kind']} step, which is {new['kind']} now"


async def _write_ledgers(tx: Connection, number: int, steps: StepMap) -> None:
    async for chunk, ledger in ledgers_of(tx, number, steps=len(steps.before), each=LEDGERS_EACH):
        moved = steps.moved(ledger)
        await tx.execute(
            update(chunks).where(chunks.c.id == chunk).values(ledger=moved.encode(), steps_done=moved.steps_done())
        )


async def _write_steps(tx: Connection, number: int, steps: StepMap) -> None:
    """Give all records of steps the step's new index. Apart at first: two steps may change places."""
    changed = {old - 1: new - 1 for old, new in enumerate(steps.new_places) if new is not None and new != old}
    for step, operation in STEP_COLUMNS:
        for old, new in changed.items():
            await tx.execute(update(step.table).where(operation == number, step == old).values({step.key: new + APART}))
        if changed:
            apart = update(step.table).where(operation == number, step >= APART)
            await tx.execute(apart.values({step.key: step - APART}))


def _described(plan: Mapping[str, Any], new_plan: Mapping[str, Any], renamed: Mapping[str, str]) -> str:
    versions = f"version {plan.get('version') or 'none'} → {new_plan['version'] or 'none'}"
    names = [f"{old} → {new}" for old, new in renamed.items()]
    return "; ".join([versions, f"steps {', '.join(step['attribute'] for step in new_plan['steps'])}", *names])
