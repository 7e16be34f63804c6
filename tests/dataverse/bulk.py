"""The four bulk actions: one transaction on standard tables, row by row on elastic ones."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import problems
from .odata import same_text
from .payload import Draft, Identity, identify_target, read_draft, targets, view
from .problems import Refused
from .tables import Table
from .wire import Answer, json_answer
from .writing import Work, absent, check_privilege, check_row, create, delete, resolve, update

__all__ = ["ACTIONS", "act"]

Target = Mapping[str, Any]
CONFLICT = 409  # rows of elastic tables fail with the codes of the store behind them
Write = Callable[[int, Mapping[str, Any]], None]
ACTIONS = {
    "CreateMultiple": ("prvCreate",),
    "UpdateMultiple": ("prvWrite",),
    "UpsertMultiple": ("prvCreate", "prvWrite"),
    "DeleteMultiple": ("prvDelete",),
}


@dataclass(frozen=True)
class _Planned:
    """A row of a call: as it came, as it is to be written, and the id that failures name."""

    target: Target
    draft: Draft
    id: str


def act(work: Work, table: Table, action: str) -> Answer:
    """Run one bulk action and answer as the Web API does: ids for create, nothing for the others."""
    if action == "DeleteMultiple" and not table.elastic:
        raise Refused(problems.not_implemented(action))
    if not table.has_bulk:
        raise Refused(problems.not_enabled(action, table.name))
    check_privilege(work, *(f"{verb}{table.name}" for verb in ACTIONS[action]))
    rows = targets(table, work.request)
    if action == "CreateMultiple":
        ids = _create(work, table, rows)
        context = f"{work.request.base}/api/data/v9.2/$metadata#Microsoft.Dynamics.CRM.CreateMultipleResponse"
        return json_answer(200, {"@odata.context": context, "Ids": ids}, _session(table))
    {"UpdateMultiple": _update, "UpsertMultiple": _upsert, "DeleteMultiple": _delete}[action](work, table, rows)
    return Answer(204, {"OData-Version": "4.0", **_session(table)})


def _session(table: Table) -> dict[str, str]:
    return {"x-ms-session-token": f"0:{uuid.uuid4().hex[:8]}#1"} if table.elastic else {}


def _create(work: Work, table: Table, rows: Sequence[Target]) -> list[str]:
    drafts = [read_draft(table, row) for row in rows]
    ids = [draft.values.get(table.primary_id) or str(uuid.uuid4()) for draft in drafts]

    def write(index: int, values: Mapping[str, Any]) -> None:
        create(work, table, {**values, table.primary_id: ids[index]}, index)

    _write(work, table, [_Planned(*one) for one in zip(rows, drafts, ids, strict=True)], write)
    return ids


def _update(work: Work, table: Table, rows: Sequence[Target]) -> None:
    if any("@odata.id" in row for row in rows):
        raise Refused(problems.bad_request("UpdateMultiple does not take alternate keys."))
    found = [_named(work, table, row) for row in rows]
    gone = [identity.columns[table.primary_id] for identity in found if identity.key is None]
    if gone and not table.elastic:
        raise Refused(problems.missing(table.name, gone))
    done: set[str] = set()

    def write(index: int, values: Mapping[str, Any]) -> None:
        key = found[index].key
        if key is None:
            raise Refused(absent(table, found[index]))
        if key not in done:  # of several targets for one record the first counts, the others are passed over
            update(work, table, key, values, index)
            done.add(key)

    planned = [_Planned(row, read_draft(table, row), _id(table, one)) for row, one in zip(rows, found, strict=True)]
    _write(work, table, planned, write)


def _upsert(work: Work, table: Table, rows: Sequence[Target]) -> None:
    found = [identify_target(work.store, table, row) for row in rows]
    named = [_name(identity) for identity in found if identity]
    if len(set(named)) < len(named):
        raise Refused(problems.duplicate_id().with_status(400))

    def write(index: int, values: Mapping[str, Any]) -> None:
        identity = found[index]
        if identity and identity.key:
            update(work, table, identity.key, values, index, replace=table.elastic)
        else:
            create(work, table, {**values, **(identity.columns if identity else {})}, index)

    planned = [_Planned(row, _agreeing(table, row, one), _id(table, one)) for row, one in zip(rows, found, strict=True)]
    _write(work, table, planned, write)


def _delete(work: Work, table: Table, rows: Sequence[Target]) -> None:
    found = [_named(work, table, row) for row in rows]

    def write(index: int, values: Mapping[str, Any]) -> None:
        delete(work, table, found[index], index)

    planned = [_Planned(row, Draft({}), _id(table, one)) for row, one in zip(rows, found, strict=True)]
    _write(work, table, planned, write)


def _write(work: Work, table: Table, rows: Sequence[_Planned], write: Write) -> None:
    if table.elastic:
        _write_each(work, table, rows, write)
        return
    for row in rows:
        check_row(work, table, row.draft.values, view(table, row.target))
    # References are looked up before the first row is written: rows of one call cannot refer to each other.
    resolved = [row.draft.resolved(work.store) for row in rows]
    gone = [reference for _, missing in resolved for reference in missing]
    if gone:
        raise Refused(problems.missing(gone[0][0], [id for name, id in gone if name == gone[0][0]]))
    with work.store.unit():
        for index, (values, _) in enumerate(resolved):
            write(index, values)


def _write_each(work: Work, table: Table, rows: Sequence[_Planned], write: Write) -> None:
    failures = {}
    for index, row in enumerate(rows):
        try:
            with work.store.unit():
                check_row(work, table, row.draft.values, view(table, row.target))
                write(index, resolve(work, row.draft))
            lost = work.struck.on_row(view(table, row.target))
            if lost is not None and lost.is_applied:
                failures[index] = (row.id, lost.status)
        except Refused as refused:
            failures[index] = (row.id, CONFLICT if refused.problem.status == 412 else refused.problem.status)
    if failures:
        raise Refused(problems.partial(failures, len(rows)))


def _id(table: Table, identity: Identity | None) -> str:
    return str(identity.columns.get(table.primary_id, "")) if identity else ""


def _named(work: Work, table: Table, row: Target) -> Identity:
    identity = identify_target(work.store, table, row)
    if identity is None:
        raise Refused(problems.bad_request(f"Every target needs the column {table.primary_id}."))
    return identity


def _name(identity: Identity) -> tuple[Any, ...]:
    return (identity.key,) if identity.key else tuple(sorted((n, same_text(v)) for n, v in identity.columns.items()))


def _agreeing(table: Table, row: Target, identity: Identity | None) -> Draft:
    draft = read_draft(table, row)
    named = identity.columns if identity else {}
    if any(named.get(name, value) != value for name, value in draft.values.items()):
        raise Refused(problems.bad_payload(table.entity_set, "the key in '@odata.id' differs from the key in the body"))
    return draft
