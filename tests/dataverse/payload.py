"""Reading what a client wants to write: members checked against the table's declaration, before any row is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from . import problems
from .odata import GUID, parse_keys, parse_path
from .problems import Refused
from .store import Store, row_key
from .tables import EDM, Lookup, Table
from .wire import API, Request

__all__ = ["Draft", "Identity", "identify", "read_draft", "read_object", "targets", "view"]

SILENT = ("@odata.id", "@odata.type", "@odata.etag", "@odata.context")


@dataclass(frozen=True)
class Identity:
    """Which record is meant: column values that name it, and its key in the store if it is there."""

    columns: Mapping[str, Any]
    key: str | None
    is_alternate: bool


@dataclass(frozen=True)
class Draft:
    """Column values of one record, and the references that are still to be looked up."""

    values: Mapping[str, Any]
    binds: Mapping[Lookup, str] = field(default_factory=dict)

    def resolved(self, store: Store) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        """The values with references as ids, and the (table, id) of each record that does not exist."""
        found, missing = dict(self.values), []
        for lookup, reference in self.binds.items():
            table = next(table for table in store.tables if table.name == lookup.table)
            identity = identify(store, table, _reference_key(table, reference))
            row = store.get(table, identity.key) if identity.key else None
            if row is None:
                missing.append((table.name, str(identity.columns.get(table.primary_id, reference))))
            else:
                found[lookup.value] = row[table.primary_id]
        return found, missing


def read_object(request: Request) -> dict[str, Any]:
    """The JSON object in a request's body."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise Refused(
            problems.bad_request("A request with a body needs the content type application/json.").with_status(415)
        )
    try:
        body = request.json()
    except ValueError as error:
        raise Refused(problems.bad_payload("", f"Exception : {error}")) from error
    if not isinstance(body, dict):
        raise Refused(problems.bad_payload("", "a JSON object is needed"))
    return body


def targets(table: Table, request: Request) -> list[dict[str, Any]]:
    """The targets of a bulk action; each must say its type."""
    found = read_object(request).get("Targets")
    if not isinstance(found, list) or not found or not all(isinstance(target, dict) for target in found):
        raise Refused(problems.bad_request("The parameter 'Targets' must be a list of records that is not empty."))
    for target in found:
        if str(target.get("@odata.type", "")).removeprefix("#") != f"Microsoft.Dynamics.CRM.{table.name}":
            what = f"Targets need '@odata.type' to be 'Microsoft.Dynamics.CRM.{table.name}'"
            raise Refused(problems.bad_payload(table.entity_set, what))
    return found


def read_draft(table: Table, body: Mapping[str, Any]) -> Draft:
    """The draft in a JSON object; every member must be declared and have its column's type."""
    values: dict[str, Any] = {}
    binds: dict[Lookup, str] = {}
    for name, value in body.items():
        if name in table.binds:
            if value is None:
                values[table.binds[name].value] = None
            else:
                binds[table.binds[name]] = value
        elif name in table.declared:
            values[name] = _checked(table, name, value)
        elif name not in SILENT:
            what = f"The property '{name}' does not exist on type 'Microsoft.Dynamics.CRM.{table.name}'."
            raise Refused(problems.bad_payload(table.entity_set, f"InnerException : {what}"))
    return Draft(values, binds)


def identify(store: Store, table: Table, key: str) -> Identity:
    """The record that a key in parentheses names."""
    given = parse_keys(key)
    columns = {name or table.primary_id: value for name, value in given.items()}
    own = {table.primary_id, "partitionid"}
    if table.primary_id in columns and columns.keys() <= own:
        found = row_key(columns[table.primary_id], columns.get("partitionid"))
        return Identity(columns, found if store.get(table, found) else None, is_alternate=False)
    known = {name: _checked(table, name, value) for name, value in columns.items() if name in table.declared}
    return Identity(columns, store.find(table, {**columns, **known}), is_alternate=True)


def identify_target(store: Store, table: Table, target: Mapping[str, Any]) -> Identity | None:
    """The record that a target names by `@odata.id` or its primary id; None when it names none."""
    if "@odata.id" in target:
        return identify(store, table, _reference_key(table, target["@odata.id"]))
    if target.get(table.primary_id) is None:
        return None
    id = _checked(table, table.primary_id, target[table.primary_id])
    key = row_key(id, target.get("partitionid"))
    columns = {name: target[name] for name in ("partitionid",) if name in target}
    return Identity({table.primary_id: id, **columns}, key if store.get(table, key) else None, is_alternate=False)


def view(table: Table, body: Mapping[str, Any], key: str | None = None) -> dict[str, Any]:
    """A record as fault scripts see it: its members and what names it, without annotations; never fails."""
    shown = {name: value for name, value in body.items() if not name.startswith("@")}
    try:
        given = parse_keys(_reference_key(table, body["@odata.id"]) if "@odata.id" in body else key or "")
    except Refused:
        return shown
    return {**shown, **{name or table.primary_id: value for name, value in given.items()}}


def _reference_key(table: Table, reference: str) -> str:
    path = unquote(urlsplit(str(reference)).path).removeprefix(API).lstrip("/")
    steps = parse_path(path)
    if len(steps) != 1 or steps[0].name != table.entity_set or not steps[0].key:
        raise Refused(
            problems.bad_payload(table.entity_set, f"'{reference}' is no reference to a record of {table.name}")
        )
    return steps[0].key


def _checked(table: Table, name: str, value: Any) -> Any:
    column = table.declared[name]
    is_guid = column.kind == "Uniqueidentifier" and value is not None
    if not column.takes(value) or (is_guid and not GUID.fullmatch(value)):
        what = f"Cannot convert the literal '{value}' to the expected type '{EDM[column.kind]}'. ({name})"
        raise Refused(problems.bad_payload(table.entity_set, f"InnerException : {what}"))
    return value.lower() if is_guid else value
