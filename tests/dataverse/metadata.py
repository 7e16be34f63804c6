"""What the remote says about its tables: definitions, columns, picklists, keys, lookups, and the messages they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import problems
from .odata import Segment, literal, parse_filter, parse_keys
from .problems import Refused
from .tables import Column, Table, stable_id
from .wire import API, Answer, Request, json_answer

__all__ = ["definitions", "message_filters"]

PICKLISTS = "Microsoft.Dynamics.CRM.PicklistAttributeMetadata"


def definitions(tables: Sequence[Table], request: Request, steps: Sequence[Segment]) -> Answer:
    """GET `EntityDefinitions` and what lies below one of them."""
    if steps[0].key is None:
        return _many(request, [_definition(table) for table in tables], "EntityDefinitions")
    table = _named(tables, steps[0].key)
    if len(steps) == 1:
        context = f"{request.base}{API}$metadata#EntityDefinitions/$entity"
        return json_answer(200, {"@odata.context": context, **_selected(_definition(table), request)})
    return _below(table, request, steps[1:])


def message_filters(tables: Sequence[Table], request: Request) -> Answer:
    """GET `sdkmessagefilters`: which bulk messages a table takes."""
    rows = [
        {
            "sdkmessagefilterid": stable_id("message", table.name, message),
            "sdkmessageid/name": message,
            "primaryobjecttypecode": table.name,
        }
        for table in tables
        for message in sorted(table.messages)
    ]
    return _many(request, rows, "sdkmessagefilters")


def _below(table: Table, request: Request, steps: Sequence[Segment]) -> Answer:
    columns = table.declared.values()
    match [step.name for step in steps], steps[0].key:
        case ["Attributes"], None:
            rows = [_attribute(table, column) for column in columns]
        case ["Attributes", kind], None if kind == PICKLISTS:
            rows = [_picklist(table, column) for column in columns if column.kind == "Picklist"]
        case ["Attributes"], str(key):
            return _one_column(table, request, key)
        case ["Keys"], None:
            rows = [_key(table, name) for name in table.keys]
        case ["ManyToOneRelationships"], None:
            rows = [_relationship(table, index) for index in range(len(table.lookups))]
        case _:
            raise Refused(problems.unknown_resource(steps[-1].name))
    return _many(request, rows, f"EntityDefinitions('{table.name}')/{steps[0].name}")


def _one_column(table: Table, request: Request, key: str) -> Answer:
    named = parse_keys(key)
    for column in table.declared.values():
        row = _attribute(table, column)
        if named in ({"LogicalName": column.name}, {"": row["MetadataId"]}):
            return json_answer(200, _selected(row, request))
    raise Refused(problems.unknown_resource(f"Attributes({key})"))


def _many(request: Request, rows: list[dict[str, Any]], what: str) -> Answer:
    query = request.query
    if "$filter" in query:
        test = parse_filter(query["$filter"], query)
        rows = [row for row in rows if test(row)]
    context = f"{request.base}{API}$metadata#{what}"
    return json_answer(200, {"@odata.context": context, "value": [_selected(row, request) for row in rows]})


def _selected(row: dict[str, Any], request: Request) -> dict[str, Any]:
    names = [name for name in request.query.get("$select", "").split(",") if name and not name.startswith("@")]
    unknown = [name for name in names if name not in row]
    if unknown:
        raise Refused(problems.bad_request(f"Could not find a property named '{unknown[0]}'."))
    expanded = request.query.get("$expand", "").partition("(")[0]
    always = {"MetadataId", "@odata.type", expanded}
    return {name: value for name, value in row.items() if not names or name in {*names, *always}}


def _named(tables: Sequence[Table], key: str) -> Table:
    name, _, value = key.partition("=")
    wanted = literal(value or name)
    for table in tables:
        if wanted in ({table.name} if name == "LogicalName" else {stable_id("table", table.name)}):
            return table
    raise Refused(problems.unknown_table(str(wanted)))


def _definition(table: Table) -> dict[str, Any]:
    return {
        "MetadataId": stable_id("table", table.name),
        "LogicalName": table.name,
        "SchemaName": table.name,
        "EntitySetName": table.entity_set,
        "PrimaryIdAttribute": table.primary_id,
        "PrimaryNameAttribute": next((name for name in table.declared if name == "name"), None),
        "TableType": "Elastic" if table.elastic else "Standard",
        "IsPrivate": False,
    }


def _attribute(table: Table, column: Column) -> dict[str, Any]:
    return {
        "@odata.type": f"#Microsoft.Dynamics.CRM.{column.kind}AttributeMetadata",
        "MetadataId": stable_id("column", table.name, column.name),
        "LogicalName": column.name,
        "SchemaName": column.name,
        "AttributeType": column.kind,
        "IsPrimaryId": column.name == table.primary_id,
        "MaxLength": column.length_max,
    }


def _picklist(table: Table, column: Column) -> dict[str, Any]:
    options = [
        {"Value": value, "Label": {"LocalizedLabels": [{"Label": label, "LanguageCode": 1033}]}}
        for value, label in column.options.items()
    ]
    return {**_attribute(table, column), "OptionSet": {"Options": options}}


def _key(table: Table, name: str) -> dict[str, Any]:
    return {
        "MetadataId": stable_id("key", table.name, name),
        "LogicalName": name,
        "SchemaName": name,
        "KeyAttributes": list(table.keys[name]),
        "EntityKeyIndexStatus": "Active",
    }


def _relationship(table: Table, index: int) -> dict[str, Any]:
    lookup = table.lookups[index]
    return {
        "MetadataId": stable_id("lookup", table.name, lookup.name),
        "ReferencingEntity": table.name,
        "ReferencingAttribute": lookup.name,
        "ReferencedEntity": lookup.table,
        "ReferencedAttribute": f"{lookup.table}id",
        "ReferencingEntityNavigationPropertyName": lookup.navigation or lookup.name,
    }
