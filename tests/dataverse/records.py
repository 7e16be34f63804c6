"""Operations on single records, and reading many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from . import problems
from .odata import parse_filter, same_text
from .payload import Draft, Identity, identify, read_draft, read_object, view
from .problems import Refused
from .store import VERSION, Row
from .tables import Table
from .wire import API, Answer, Request, json_answer
from .writing import Work, absent, check_privilege, check_row, create, delete, resolve, update

__all__ = ["add", "patch", "read", "read_many", "remove"]

PAGE_ROWS_MAX = 5000
QUOTE = "'"
OPTIONS = {"$select", "$filter", "$orderby", "$top", "$count", "$skiptoken", "tag", "partitionId"}


def add(work: Work, table: Table) -> Answer:
    """POST to an entity set."""
    check_privilege(work, f"prvCreate{table.name}")
    body = read_object(work.request)
    return _written(work, table, _create(work, table, read_draft(table, body), body), is_new=True)


def patch(work: Work, table: Table, key: str) -> Answer:
    """PATCH a record: update or insert, unless `If-Match` or `If-None-Match` allows only one of them."""
    identity = _identity(work, table, key)
    body = read_object(work.request)
    draft = read_draft(table, body)
    if identity.key is None:
        if "if-match" in work.request.headers:
            raise Refused(absent(table, identity))
        check_privilege(work, f"prvCreate{table.name}")
        named = Draft({**draft.values, **identity.columns}, draft.binds)
        return _written(work, table, _create(work, table, named, view(table, body, key)), is_new=True)
    _check_conditions(work, table, identity.key)
    check_privilege(work, f"prvWrite{table.name}")
    with work.store.unit():
        check_row(work, table, draft.values, view(table, body, key))
        row = update(work, table, identity.key, resolve(work, draft))
    return _written(work, table, row, is_new=False)


def remove(work: Work, table: Table, key: str) -> Answer:
    """DELETE a record."""
    check_privilege(work, f"prvDelete{table.name}")
    identity = _identity(work, table, key)
    with work.store.unit():
        check_row(work, table, {}, view(table, {}, key))
        if identity.key is not None:
            _check_version(work, table, identity.key)
        delete(work, table, identity)
    return Answer(204, {"OData-Version": "4.0"})


def read(work: Work, table: Table, key: str) -> Answer:
    """GET one record."""
    check_privilege(work, f"prvRead{table.name}")
    identity = _identity(work, table, key)
    row = work.store.get(table, identity.key) if identity.key else None
    if row is None:
        raise Refused(absent(table, identity))
    context = f"{_root(work.request)}$metadata#{table.entity_set}/$entity"
    return json_answer(200, {"@odata.context": context, **shown(table, row, work.request.query)})


def read_many(work: Work, table: Table) -> Answer:
    """GET the records that pass a filter, in order, a page at a time."""
    check_privilege(work, f"prvRead{table.name}")
    query = work.request.query
    unknown = {name for name in query if not name.startswith("@")} - OPTIONS
    if unknown:
        raise Refused(problems.bad_request(f"The query option {sorted(unknown)[0]} is not served here."))
    rows: list[Row] = list(work.store.rows(table.name).values())
    if "partitionId" in query:
        rows = [row for row in rows if row.get("partitionid") == query["partitionId"]]
    if "$filter" in query:
        test = parse_filter(query["$filter"], query)
        rows = [row for row in rows if test(row)]
    rows = _ordered(table, rows, query.get("$orderby", ""))[: _number(query, "$top", len(rows))]
    return json_answer(200, _page(work.request, table, rows), _applied(work.request))


def shown(table: Table, row: Mapping[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
    """A row as an answer shows it: the selected columns, always with its id."""
    names = [name.strip() for name in query.get("$select", "").split(",") if name.strip()]
    unknown = [name for name in names if name not in row]
    if unknown:
        raise Refused(problems.bad_request(f"Could not find a property named '{unknown[0]}' on type '{table.name}'."))
    wanted = {VERSION, table.primary_id, *names} if names else row.keys()
    return {name: value for name, value in row.items() if name in wanted}


def _identity(work: Work, table: Table, key: str) -> Identity:
    partition = work.request.query.get("partitionId")
    if partition:
        key = f"{table.primary_id}={key},partitionid='{partition.replace(QUOTE, QUOTE * 2)}'"
    return identify(work.store, table, key)


def _create(work: Work, table: Table, draft: Draft, body: Mapping[str, Any]) -> Row:
    with work.store.unit():
        check_row(work, table, draft.values, {n: v for n, v in body.items() if not n.startswith("@")})
        return create(work, table, resolve(work, draft))


def _check_conditions(work: Work, table: Table, key: str) -> None:
    if work.request.headers.get("if-none-match") == "*":
        raise Refused(problems.duplicate_id())
    _check_version(work, table, key)


def _check_version(work: Work, table: Table, key: str) -> None:
    wanted = work.request.headers.get("if-match", "*")
    if wanted not in {"*", work.store.rows(table.name)[key][VERSION]}:
        raise Refused(problems.version_mismatch())


def _written(work: Work, table: Table, row: Row, *, is_new: bool) -> Answer:
    entity = f"{_root(work.request)}{table.entity_set}({row[table.primary_id]})"
    headers = {"OData-Version": "4.0", "OData-EntityId": entity}
    if work.request.preferences.get("return") != "representation":
        return Answer(204, headers)
    context = f"{_root(work.request)}$metadata#{table.entity_set}/$entity"
    body = {"@odata.context": context, **shown(table, row, work.request.query)}
    return json_answer(201 if is_new else 200, body, {**headers, "Preference-Applied": "return=representation"})


def _ordered(table: Table, rows: list[Row], orderby: str) -> list[Row]:
    for piece in reversed([piece.split() for piece in orderby.split(",") if piece.strip()]):
        name, is_falling = piece[0], piece[1:] == ["desc"]
        if name not in table.declared:
            raise Refused(problems.bad_request(f"Could not find a property named '{name}' on type '{table.name}'."))
        rows = sorted(rows, key=lambda row: (row[name] is not None, same_text(row[name])), reverse=is_falling)
    return rows


def _page(request: Request, table: Table, rows: list[Row]) -> dict[str, Any]:
    query = request.query
    size = min(PAGE_ROWS_MAX, int(request.preferences.get("odata.maxpagesize", PAGE_ROWS_MAX)))
    start = _number(query, "$skiptoken", 0)
    page: dict[str, Any] = {"@odata.context": f"{_root(request)}$metadata#{table.entity_set}"}
    if query.get("$count") == "true":
        page["@odata.count"] = len(rows)
    page["value"] = [shown(table, row, query) for row in rows[start : start + size]]
    if start + size < len(rows):
        rest = "&".join(f"{quote(n)}={quote(v)}" for n, v in query.items() if n != "$skiptoken")
        page["@odata.nextLink"] = f"{_root(request)}{table.entity_set}?{rest}&$skiptoken={start + size}"
    return page


def _number(query: Mapping[str, str], option: str, default: int) -> int:
    text = query.get(option, str(default))
    if not text.isdecimal():
        raise Refused(problems.bad_request(f"The query option {option} takes a whole number, not '{text}'."))
    return int(text)


def _applied(request: Request) -> dict[str, str]:
    size = request.preferences.get("odata.maxpagesize")
    return {"Preference-Applied": f"odata.maxpagesize={size}"} if size else {}


def _root(request: Request) -> str:
    return f"{request.base}{API}"
