"""Operations: submit, check, list, look at, steer."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Body, Query, Request, Response

from penstock import resources
from penstock.api.answers import JsonResponse, tagged
from penstock.api.described import problems
from penstock.api.guard import Ask
from penstock.api.paging import Paging, answer_part
from penstock.api.routing import RouteTable
from penstock.api.schemas import BulkBody, BulkCreated, BulkStatus, CauseBody, CheckReport, PageOf
from penstock.api.uploads import CHECK_BODY, UPLOAD_BODY, received
from penstock.errors import InvalidInput
from penstock.listing import Page, parse_number_cursor
from penstock.operations.model import FileCheck, Operation
from penstock.resources import Document

__all__ = ["ROUTES"]

ROUTES = RouteTable("bulks")

# BulkSharp's names of what operations are sorted by, beside our own; all ignore case.
SORTS = {"createdat": "created_at", "operationname": "name", "name": "name", "status": "status"}
SORTS |= {"totalrows": "total_rows", "created_at": "created_at", "total_rows": "total_rows"}

Cause = Annotated[CauseBody | None, Body()]


@ROUTES.get("/api/bulks", role="read", response_model=PageOf[BulkBody], responses=problems(422))
async def list_bulks(
    ask: Ask,
    part: Paging,
    *,
    operation_name: Annotated[
        str | None, Query(alias="operationName", description="Only operations whose name contains this.")
    ] = None,
    created_by: Annotated[
        str | None, Query(alias="createdBy", description="Only operations whose creator contains this.")
    ] = None,
    status: Annotated[list[str] | None, Query(description="Only operations in this state; can be repeated.")] = None,
    from_date: Annotated[
        datetime | None, Query(alias="fromDate", description="Only operations created at this time or later.")
    ] = None,
    to_date: Annotated[
        datetime | None, Query(alias="toDate", description="Only operations created before this time.")
    ] = None,
    sort_by: Annotated[
        str, Query(alias="sortBy", description="createdAt, operationName, status or totalRows.")
    ] = "createdAt",
    sort_descending: Annotated[bool, Query(alias="sortDescending", description="Newest or largest first.")] = True,
) -> Response:
    """Operations, newest first unless told otherwise."""
    filters: dict[str, Any] = {
        "name": operation_name,
        "created_by": created_by,
        "status": status,
        "created_from": _instant(from_date),
        "created_to": _instant(to_date),
    }
    sort = _sort(sort_by)

    async def read(cursor: str | None, limit: int) -> Page[Operation]:
        place = _offset(cursor)
        return await ask.penstock.operations.list(
            **filters, sort=sort, descending=sort_descending, limit=limit, **place
        )

    async def count() -> int:
        return await ask.penstock.operations.count(**filters)

    return await answer_part(
        part, read, resources.operation, size=20, count=count, cursor_at=lambda offset: f"+{offset}"
    )


def _offset(cursor: str | None) -> dict[str, Any]:
    """A place in the list: pages begin at an offset, written with a plus; parts behind a cursor."""
    if cursor is not None and cursor.startswith("+"):
        return {"offset": parse_number_cursor(cursor.removeprefix("+"))}
    return {"cursor": cursor}


def _sort(given: str) -> str:
    try:
        return SORTS[given.casefold()]
    except KeyError:
        known = "createdAt, operationName, status, totalRows"
        raise InvalidInput(f"operations cannot be sorted by {given!r}; they can by: {known}") from None


def _instant(given: datetime | None) -> datetime | None:
    if given is None:
        return None
    try:
        return given.replace(tzinfo=UTC) if given.tzinfo is None else given.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(f"{given} is out of range") from None


@ROUTES.post(
    "/api/bulks",
    role="operate",
    status_code=202,
    is_upload=True,
    response_model=BulkCreated,
    responses=problems(409, 413, 415, 422),
    openapi_extra=UPLOAD_BODY,
)
async def create_bulk(request: Request, ask: Ask) -> Response:
    """Submit a file: it is stored when this answers, and a worker runs it. `Location` says where to look."""
    async with received(request, ask.penstock.settings, needs_file=True) as upload:
        assert upload.file is not None
        made = await ask.penstock.operations.create(
            ask.penstock.operations.definition(upload.operation),
            file=upload.file,
            file_name=upload.file_name,
            metadata=upload.metadata,
            options=upload.options,
            created_by=ask.creator(upload.created_by),
        )
    location = request.url_for("get_bulk", id=made.id).path
    document = resources.operation(made) | {"operationId": made.id}
    return JsonResponse(document, status_code=202, headers={"location": location})


@ROUTES.post(
    "/api/bulks/validate",
    role="operate",
    is_upload=True,
    is_repeatable=True,
    is_answer_kept=False,
    response_model=CheckReport,
    responses=problems(413, 415, 422),
    openapi_extra=CHECK_BODY,
)
async def validate_bulk(request: Request, ask: Ask) -> Response:
    """Check metadata and a file with all its rows, and store nothing. Without a file, the metadata is checked."""
    async with received(request, ask.penstock.settings, needs_file=False) as upload:
        found = await ask.penstock.operations.validate(
            ask.penstock.operations.definition(upload.operation),
            file=upload.file,
            file_name=upload.file_name,
            metadata=upload.metadata,
            options=upload.options,
        )
    return JsonResponse(_check(found))


def _check(found: FileCheck) -> Document:
    """Our report, and the same in BulkSharp's names."""
    file_errors = [found.file_fault.message] if found.file_fault else []
    file_errors += [f"row {error.row}: {error.message}" for error in found.errors]
    metadata_errors = [str(fault) for fault in found.metadata_faults]
    names = {"valid": found.is_valid, "metadataErrors": metadata_errors, "fileErrors": file_errors}
    return names | resources.file_check(found)


@ROUTES.get("/api/bulks/{id}", role="read", response_model=BulkBody)
async def get_bulk(request: Request, ask: Ask, id: str) -> Response:
    """One operation with its counters."""
    return tagged(request, resources.operation(await ask.penstock.operations.get(id)))


@ROUTES.get("/api/bulks/{id}/status", role="read", response_model=BulkStatus)
async def get_bulk_status(request: Request, ask: Ask, id: str) -> Response:
    """How far an operation is."""
    found = await ask.penstock.operations.get(id)
    document = {
        "status": found.status,
        "processedRows": found.processed_rows,
        "totalRows": found.total_rows,
        "errorCount": found.failed_rows,
        "completedAt": resources.instant(found.finished_at),
        "progress": resources.progress(found),
    }
    return tagged(request, document)


@ROUTES.post(
    "/api/bulks/{id}/cancel", role="operate", is_repeatable=True, response_model=BulkBody, responses=problems(409, 422)
)
async def cancel_bulk(ask: Ask, id: str, body: Cause = None) -> Response:
    """Stop an operation for good: no more rows start, and unfinished rows end as Cancelled."""
    cancel = ask.penstock.operations.cancel
    return _answer(await cancel(id, cause=body.cause if body else None))


@ROUTES.post(
    "/api/bulks/{id}/pause", role="operate", is_repeatable=True, response_model=BulkBody, responses=problems(409, 422)
)
async def pause_bulk(ask: Ask, id: str, body: Cause = None) -> Response:
    """Start no more steps until it is resumed; deadlines go on."""
    pause = ask.penstock.operations.pause
    return _answer(await pause(id, cause=body.cause if body else None))


@ROUTES.post(
    "/api/bulks/{id}/resume", role="operate", is_repeatable=True, response_model=BulkBody, responses=problems(409, 422)
)
async def resume_bulk(ask: Ask, id: str, body: Cause = None) -> Response:
    """Go on where a paused operation stopped."""
    resume = ask.penstock.operations.resume
    return _answer(await resume(id, cause=body.cause if body else None))


def _answer(found: Operation) -> Response:
    return JsonResponse(resources.operation(found))
