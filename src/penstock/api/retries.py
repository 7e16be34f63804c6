"""Running failed rows again: all or some, whether that is possible, and what happened before."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import Query, Response

from penstock import resources
from penstock.api.answers import JsonResponse
from penstock.api.described import problems
from penstock.api.guard import Ask
from penstock.api.paging import Paging, answer_part
from penstock.api.routing import RouteTable
from penstock.api.schemas import ROW_MAX, Eligibility, HistoryShape, PageOf, RetryShape, RowNumbersBody
from penstock.errors import Fault, InvalidInput
from penstock.listing import Page
from penstock.operations.model import HistoryEntry
from penstock.resources import Document

__all__ = ["ROUTES"]

ROUTES = RouteTable("retries")


@ROUTES.post("/api/bulks/{id}/retry", role="operate", response_model=RetryShape, responses=problems(409))
async def retry_bulk(ask: Ask, id: str) -> Response:
    """Run all failed rows again that can be, from the step that failed."""
    found = await ask.penstock.operations.get(id)
    return JsonResponse(
        resources.retry(found.id, await ask.penstock.operations.retry(found.id)),
    )


@ROUTES.post("/api/bulks/{id}/retry/rows", role="operate", response_model=RetryShape, responses=problems(409, 413, 422))
async def retry_rows(ask: Ask, id: str, body: RowNumbersBody) -> Response:
    """Run some rows again; those in doubt only with `confirmDoubt`."""
    wrong = [number for number in body.row_numbers if not 1 <= number <= ROW_MAX]
    if wrong:
        faults = [Fault(f"{number} is no row number", "rowNumbers") for number in wrong[:20]]
        raise InvalidInput("rows are numbered from 1: " + "; ".join(map(str, faults)), faults)
    found = await ask.penstock.operations.get(id)
    retry = await ask.penstock.operations.retry(found.id, rows=body.row_numbers, confirm_doubt=body.confirm_doubt)
    return JsonResponse(resources.retry(found.id, retry))


@ROUTES.get("/api/bulks/{id}/retry/eligibility", role="read", response_model=Eligibility)
async def get_retry_eligibility(ask: Ask, id: str) -> Response:
    """Whether all failed rows could run again now, and every reason against it."""
    found = await ask.penstock.operations.get(id)
    return JsonResponse(resources.eligibility(found.id, await ask.penstock.operations.can_retry(found.id)))


@ROUTES.get("/api/bulks/{id}/retry/history", role="read", response_model=PageOf[HistoryShape], responses=problems(422))
async def list_retry_history(
    ask: Ask,
    id: str,
    part: Paging,
    row_number: Annotated[int | None, Query(alias="rowNumber", ge=1, le=ROW_MAX, description="Only this row.")] = None,
    step: Annotated[str | None, Query(alias="stepName", description="Only this step: its name or index.")] = None,
) -> Response:
    """What happened to rows before their present state: failed attempts, retries, edits."""
    found = await ask.penstock.operations.get(id)

    async def read(cursor: str | None, limit: int) -> Page[HistoryEntry]:
        return await ask.penstock.operations.history(found.id, row=row_number, step=step, cursor=cursor, limit=limit)

    return await answer_part(part, read, partial(_entry, found.id), size=100)


def _entry(operation: str, found: HistoryEntry) -> Document:
    document = resources.history_entry(found)
    return {"bulkOperationId": operation, **document, "failedAt": document["createdAt"]}
