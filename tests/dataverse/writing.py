"""Writing one record: privileges, rules and scripts are asked before the store is touched."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from . import problems
from .faults import Struck
from .payload import Draft, Identity
from .problems import Problem, Refused
from .store import Row, Store
from .tables import Table, stable_id
from .wire import Request

__all__ = ["Work", "check_privilege", "check_row", "create", "delete", "resolve", "update"]

BYPASS = "mscrm.bypassbusinesslogicexecution"
BYPASS_STEPS = "mscrm.bypassbusinesslogicexecutionstepids"
BYPASS_PRIVILEGE = "prvBypassCustomBusinessLogic"


@dataclass(frozen=True)
class Work:
    """One operation under way: the request, who asks, what is scripted for the call, what the user may not do."""

    store: Store
    request: Request
    user: str
    struck: Struck
    denied: Collection[str] = ()

    def of(self, request: Request) -> Work:
        """The same work for one part of a batch: its own headers count, those of the batch do not."""
        return replace(self, request=request)

    @property
    def is_plugin_bypassed(self) -> bool:
        return "customsync" in self.request.headers.get(BYPASS, "").lower()

    @property
    def wants_duplicate_detection(self) -> bool:
        """Detection is off unless the client says that it is not to be suppressed."""
        return self.request.headers.get("mscrm.suppressduplicatedetection", "").lower() == "false"

    def suffers(self, problem: Problem | None) -> bool:
        """Whether a scripted problem hits; custom logic that is bypassed does not run."""
        return problem is not None and not (problem.is_plugin and self.is_plugin_bypassed)


def check_privilege(work: Work, *privileges: str) -> None:
    """Refuse what the user may not do, bypassing custom logic included."""
    wanted = list(privileges)
    if BYPASS in work.request.headers or BYPASS_STEPS in work.request.headers:
        wanted.append(BYPASS_PRIVILEGE)
    for privilege in wanted:
        if privilege in work.denied:
            raise Refused(problems.privilege_missing(stable_id("user", work.user), privilege))


def check_row(work: Work, table: Table, values: Mapping[str, Any], shown: Mapping[str, Any]) -> None:
    """Refuse what a script or the table's rules say of one record."""
    scripted = work.struck.on_row(shown)
    if scripted is not None and not scripted.is_applied and work.suffers(scripted):
        raise Refused(scripted)
    for name, value in values.items():
        column = table.declared.get(name)
        if column is None or value is None:
            continue
        if column.length_max is not None and len(str(value)) > column.length_max:
            raise Refused(problems.too_long(table.name, name, column.length_max))
        if column.options and value not in column.options:
            raise Refused(problems.out_of_range(table.name, name, value, column.options))


def resolve(work: Work, draft: Draft) -> dict[str, Any]:
    """The draft's values with its references looked up; all must exist."""
    values, missing = draft.resolved(work.store)
    if missing:
        raise Refused(problems.missing(missing[0][0], [id for _, id in missing]))
    return values


def create(work: Work, table: Table, values: Mapping[str, Any], index: int = 0) -> Row:
    """Add a record."""
    if work.wants_duplicate_detection and work.store.duplicates(table, values, None):
        raise Refused(problems.duplicate_detected())
    return work.store.insert(table, values, index)


def update(
    work: Work, table: Table, key: str, values: Mapping[str, Any], index: int = 0, *, replace: bool = False
) -> Row:
    """Change a record that is there; what names it cannot be changed."""
    old = work.store.rows(table.name)[key]
    changed = {name: value for name, value in values.items() if name not in {table.primary_id, "partitionid"}}
    if work.wants_duplicate_detection and work.store.duplicates(table, {**old, **changed}, key):
        raise Refused(problems.duplicate_detected())
    return work.store.update(table, key, changed, index, replace=replace)


def delete(work: Work, table: Table, identity: Identity, index: int = 0) -> None:
    """Remove a record, which must be there."""
    if identity.key is None:
        raise Refused(absent(table, identity))
    work.store.delete(table, identity.key, index)


def absent(table: Table, identity: Identity) -> Problem:
    """How the remote says that there is no such record."""
    if identity.is_alternate:
        return problems.key_not_found(table.name)
    return problems.missing(table.name, [str(identity.columns[table.primary_id])])
