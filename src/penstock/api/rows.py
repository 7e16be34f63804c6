"""Rows of an operation: lists, one with its steps, corrections, errors, and what rows wait for."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import Path, Query, Request, Response

from penstock import resources
from penstock.api.answers import JsonResponse, tag_of, tagged
from penstock.api.described import problems
from penstock.api.guard import Ask
from penstock.api.paging import Paging, answer_part
from penstock.api.routing import RouteTable
from penstock.api.schemas import (
    ROW_MAX,
    ErrorGroupShape,
    ErrorShape,
    ListOf,
    PageOf,
    RetryShape,
    RowChangesBody,
    RowShape,
    UnclaimedShape,
    WaitShape,
)
from penstock.errors import InvalidInput, PreconditionFailed
from penstock.listing import Page
from penstock.operations.model import Operation, RowError, RowView
from penstock.operations.signals import Unclaimed, Wait
from penstock.resources import Document

__all__ = ["ROUTES"]

ROUTES = RouteTable("rows")

RowNumber = Annotated[int, Path(ge=1, le=ROW_MAX, description="The row's number, from 1.")]
Step = Annotated[str | None, Query(alias="stepName", description="Only rows at this step: its name or index.")]
RowId = Annotated[str | None, Query(alias="rowId", description="Only rows with this key.")]
ErrorType = Annotated[str | None, Query(alias="errorType", description="Only this type, such as Validation.")]
First = Annotated[int | None, Query(ge=1, le=ROW_MAX, description="Only rows from this number on.")]
Last = Annotated[int | None, Query(ge=1, le=ROW_MAX, description="Only rows up to this number.")]


@ROUTES.get("/api/bulks/{id}/rows", role="read", response_model=PageOf[RowShape], responses=problems(422))
async def list_rows(
    ask: Ask,
    id: str,
    part: Paging,
    *,
    state: Annotated[list[str] | None, Query(description="Only rows in this state; can be repeated.")] = None,
    step: Step = None,
    row_id: RowId = None,
    error_type: ErrorType = None,
    first: First = None,
    last: Last = None,
    data: Annotated[bool, Query(description="Also the rows' data.")] = False,
) -> Response:
    """Rows in file order, each with the steps it has reached; filters mean its current state."""
    filters: dict[str, Any] = {
        "state": state,
        "step": step,
        "error_type": error_type,
        "row_key": row_id,
        "first": first,
        "last": last,
    }
    given = {name for name, value in filters.items() if value is not None}

    async def read(cursor: str | None, limit: int) -> Page[RowView]:
        return await ask.penstock.operations.rows(id, **filters, data=data, cursor=cursor, limit=limit)

    if part.by_cursor or not given:
        return await answer_part(part, read, resources.row, size=100, cursor_at=str)
    if given != {"state"}:
        return await answer_part(part, read, resources.row, size=100)
    counted, states = _counted(await ask.penstock.operations.get(id)), {each.casefold() for each in state or ()}

    async def count() -> int:
        return sum(counted[each] for each in states)

    is_counted = states <= counted.keys()
    return await answer_part(part, read, resources.row, size=100, count=count if is_counted else None)


def _counted(found: Operation) -> dict[str, int]:
    """How many rows are in each state that is counted, by its name in small letters."""
    return {
        "completed": found.successful_rows,
        "invalid": found.invalid_rows,
        "failed": found.failed_rows - found.invalid_rows - found.timed_out_rows,
        "timedout": found.timed_out_rows,
        "cancelled": found.cancelled_rows,
        "waitingforcompletion": found.waiting_rows,
    }


@ROUTES.get("/api/bulks/{id}/rows/{number}", role="read", response_model=RowShape, responses=problems(422))
async def get_row(request: Request, ask: Ask, id: str, number: RowNumber) -> Response:
    """One row with its data and every step it has reached."""
    return tagged(request, resources.row(await ask.penstock.operations.row(id, number)))


@ROUTES.patch(
    "/api/bulks/{id}/rows/{number}",
    role="operate",
    response_model=RetryShape,
    responses=problems(409, 412, 413, 422),
)
async def edit_row(request: Request, ask: Ask, id: str, number: RowNumber, body: RowChangesBody) -> Response:
    """Correct fields of a failed or invalid row and run it again.

    With `If-Match`, only if the row still has the ETag with which the caller got it.
    """
    operations, found = ask.penstock.operations, await ask.penstock.operations.get(id)
    generation = body.generation
    if (wanted := request.headers.get("if-match", "*")) != "*":
        seen = await operations.row(found.id, number)
        if tag_of(resources.row(seen)) not in [part.strip() for part in wanted.split(",")]:
            raise PreconditionFailed(f"row {number} has changed since it was read; read it again")
        generation = seen.generation if generation is None else generation
    retry = await operations.edit_row(found.id, number, body.changes, generation=generation)
    return JsonResponse(resources.retry(found.id, retry))


@ROUTES.get("/api/bulks/{id}/errors", role="read", response_model=PageOf[ErrorShape], responses=problems(422))
async def list_errors(
    ask: Ask,
    id: str,
    part: Paging,
    *,
    row_number: Annotated[int | None, Query(alias="rowNumber", ge=1, le=ROW_MAX, description="Only this row.")] = None,
    row_id: RowId = None,
    error_type: ErrorType = None,
    step: Step = None,
    first: First = None,
    last: Last = None,
    data: Annotated[bool, Query(description="Also the rows' data.")] = True,
    sort_by: Annotated[str, Query(alias="sortBy", description="rowNumber, nothing else.")] = "rowNumber",
    sort_descending: Annotated[bool, Query(alias="sortDescending", description="false, nothing else.")] = False,
) -> Response:
    """What is wrong now: rows that are Invalid, Failed or TimedOut, in file order."""
    if sort_by.casefold() != "rownumber" or sort_descending:
        raise InvalidInput("errors are sorted by rowNumber, ascending; there is no other order")
    found = await ask.penstock.operations.get(id)
    filters: dict[str, Any] = {"row": row_number, "row_key": row_id, "error_type": error_type, "step": step}
    filters |= {"first": first, "last": last}

    async def read(cursor: str | None, limit: int) -> Page[RowError]:
        return await ask.penstock.operations.errors(found.id, **filters, data=data, cursor=cursor, limit=limit)

    async def count() -> int:
        return found.failed_rows

    is_counted = all(value is None for value in filters.values())
    return await answer_part(part, read, partial(_error, found.id), size=20, count=count if is_counted else None)


def _error(operation: str, found: RowError) -> Document:
    return {"id": f"{operation}:{found.row}", "bulkOperationId": operation, **resources.error(found)}


@ROUTES.get(
    "/api/bulks/{id}/errors/groups", role="read", response_model=ListOf[ErrorGroupShape], responses=problems(422)
)
async def list_error_groups(ask: Ask, id: str, limit: Annotated[int, Query(ge=1, le=1000)] = 20) -> Response:
    """Errors counted, those that differ only in numbers, ids and quoted values as one."""
    found = await ask.penstock.operations.error_groups(id, limit=limit)
    return JsonResponse(resources.listing(found, resources.error_group))


@ROUTES.get("/api/waits", role="read", response_model=ListOf[WaitShape], responses=problems(422))
async def list_all_waits(
    ask: Ask,
    key: Annotated[str | None, Query(description="Only rows that wait for this key.")] = None,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Rows of all operations that wait for signals, with their keys and deadlines."""
    return await _waits(ask, None, key, cursor, limit)


@ROUTES.get("/api/bulks/{id}/waits", role="read", response_model=ListOf[WaitShape], responses=problems(422))
async def list_waits(
    ask: Ask,
    id: str,
    key: Annotated[str | None, Query(description="Only rows that wait for this key.")] = None,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Rows that wait for signals, with their keys and deadlines."""
    return await _waits(ask, (await ask.penstock.operations.get(id)).id, key, cursor, limit)


async def _waits(ask: Ask, operation: str | None, key: str | None, cursor: str | None, limit: int) -> Response:
    found: Page[Wait] = await ask.penstock.signals.waiting_page(operation, key=key, cursor=cursor, limit=limit)
    return JsonResponse(resources.listing(found.items, resources.wait, found.next_cursor))


@ROUTES.get(
    "/api/bulks/{id}/signals/unclaimed",
    role="read",
    response_model=ListOf[UnclaimedShape],
    responses=problems(422),
)
async def list_unclaimed_signals(
    ask: Ask,
    id: str,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Stored signals that no row has taken or is about to take, oldest first."""
    operation = id
    found: Page[Unclaimed] = await ask.penstock.signals.unclaimed_page(operation, cursor=cursor, limit=limit)
    return JsonResponse(resources.listing(found.items, resources.unclaimed, found.next_cursor))
