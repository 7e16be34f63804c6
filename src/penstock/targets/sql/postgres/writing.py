"""One group written by the quickest way PostgreSQL has for it.

New rows whose keys are given go straight into the table by COPY. Otherwise rows travel as one array a column, which is
a single round trip, or, when there are many of them, by COPY into a stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.targets.model import Mode, Outcome, Verdict
from penstock.targets.sql.keys import KeysAlike, ids_of
from penstock.targets.sql.postgres.error_mapping import driven
from penstock.targets.sql.postgres.statements import ORDINAL, ORDINAL_NAME, Plan, from_arrays, from_stage, make_stage
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.target import CREATED, DONE, UNCHANGED, TableBatch, created_or_updated, left_out, not_found
from penstock.targets.verdicts import UniformVerdicts

__all__ = ["STAGE_FROM", "ids_in_table", "plan_for", "stage", "write_group"]

STAGE_FROM = 2000
"""Rows from which a stage is quicker than arrays."""


def plan_for(connection: Any, work: TableBatch, group: RowGroup) -> Plan:
    """How this group is written."""
    version = connection.get_server_version().major
    return Plan(work.table, work.key, group.columns, work.options.update_only_changed, version)


async def write_group(connection: Any, work: TableBatch, group: RowGroup) -> tuple[str, Sequence[Verdict]]:
    """Write a group and return the transaction's id and the verdicts, in the order of the rows."""
    plan = plan_for(connection, work, group)
    columns = [work.table.columns[name] for name in group.columns]
    is_special = work.table.has_row_security or work.table.has_insert_trigger
    is_copied = not (is_special or any(column.is_copied_as_text for column in columns))
    if work.mode is Mode.CREATE and not plan.generated and is_copied:
        return await _copy(connection, work, group)
    if len(group) >= STAGE_FROM or any(column.is_array or column.is_given_as_text for column in columns):
        are_plain = not any(column.is_copied_as_text for column in columns)
        is_numbered = not (work.mode is Mode.UPSERT and plan.by_value and are_plain)
        name = await stage(connection, work, group, is_numbered=is_numbered)
        told = await connection.fetchrow(plan.write(work.mode, from_stage(name, columns)))
    else:
        told = await driven(connection.fetchrow(plan.write(work.mode, from_arrays(columns)), *group.values))
    return told["xid"], _verdicts(plan, work, group, told)


async def stage(
    connection: Any, work: TableBatch, group: RowGroup, *, is_numbered: bool, more: Sequence[str] = ()
) -> str:
    """Put the rows where statements can reach them; ordinals count from 1."""
    columns = [work.table.columns[name] for name in group.columns]
    if is_numbered:
        more = (f"{ORDINAL} integer", *more)
    else:  # nothing is compared, so lengths need not be looked at again when rows leave the stage
        columns = [replace(column, type=column.full_type) for column in columns]
    name, making = make_stage(columns, more)
    await connection.execute(making)
    ordinals = [range(1, len(group) + 1)] if is_numbered else []
    rows = zip(*ordinals, *group.values, strict=True)
    names = [ORDINAL_NAME, *group.columns] if is_numbered else list(group.columns)
    await driven(connection.copy_records_to_table(name, records=rows, columns=names))
    return name


async def _copy(connection: Any, work: TableBatch, group: RowGroup) -> tuple[str, Sequence[Verdict]]:
    xid = await connection.fetchval("SELECT pg_current_xact_id()::text")
    rows, columns = group.rows, list(group.columns)
    await driven(
        connection.copy_records_to_table(work.table.name, schema_name=work.table.schema, records=rows, columns=columns)
    )
    is_known = bool(work.key) and set(work.key) <= set(group.columns)
    ids = ids_of([group.column(name) for name in work.key]) if is_known else None
    return xid, UniformVerdicts(CREATED, len(group), ids)


async def ids_in_table(connection: Any, work: TableBatch, group: RowGroup) -> dict[int, Any]:
    """The primary keys of an upsert's rows by their places in the group, when it went by another key."""
    plan, columns = plan_for(connection, work, group), [work.table.columns[name] for name in work.key]
    arrays = [group.column(name) for name in work.key]
    if any(column.is_copied_as_text or column.is_array for column in columns):
        keys = RowGroup(work.key, arrays, group.positions)
        source, arrays = from_stage(await stage(connection, work, keys, is_numbered=True), columns), []
    else:
        source = from_arrays(columns)
    rows = await driven(connection.fetch(plan.find_ids(source, work.foreign_ids), *arrays))
    return {row[0] - 1: row[1] if len(row) == 2 else tuple(row)[1:] for row in rows}


def _verdicts(plan: Plan, work: TableBatch, group: RowGroup, told: Any) -> Sequence[Verdict]:
    if told.get("written", len(group)) != len(group):
        raise left_out(work)  # which of them, row by row will tell
    if work.mode is Mode.CREATE:
        ids = ids_of([told[f"k{n}"] for n in range(len(work.key))]) if "k0" in told else None
        return UniformVerdicts(CREATED, len(group), ids)
    if work.mode is Mode.UPSERT and plan.by_value:
        return _by_value(work, group, [told[f"k{n}"] for n in range(len(work.key))])
    if told.get("alike"):
        raise KeysAlike.at(group.positions[ordinal - 1] for ordinal in told["alike"])
    verdicts = [DONE[work.mode]] * len(group)
    others = {"created": CREATED, "unchanged": UNCHANGED, "left_out": Verdict(Outcome.FAILED, error=left_out(work))}
    for name, verdict in others.items():
        for ordinal in told[name] or ():
            verdicts[ordinal - 1] = verdict
    for ordinal in told["missing"] or ():
        verdicts[ordinal - 1] = not_found(work, group, ordinal - 1)
    return verdicts


def _by_value(work: TableBatch, group: RowGroup, created: list[list[Any] | None]) -> Sequence[Verdict]:
    updated = DONE[Mode.UPSERT]
    if created[0] is None or len(created[0]) == len(group):
        return UniformVerdicts(updated if created[0] is None else CREATED, len(group))
    new = set(ids_of([values or [] for values in created]))
    keys = ids_of([group.column(name) for name in work.key])
    return created_or_updated(map(new.__contains__, keys))
