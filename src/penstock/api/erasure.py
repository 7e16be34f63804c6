"""Erasing what is personal, for admins."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Response
from pydantic import BaseModel, ConfigDict, Field

from penstock import resources
from penstock.api.answers import JsonResponse
from penstock.api.described import problems
from penstock.api.guard import Ask
from penstock.api.routing import RouteTable
from penstock.api.schemas import ROW_MAX

__all__ = ["ROUTES"]

ROUTES = RouteTable("bulks")

RowNumber = Annotated[int, Field(ge=1, le=ROW_MAX)]


class Erasure(BaseModel):
    """Which rows; all of the operation without any."""

    model_config = ConfigDict(extra="forbid")

    rowNumbers: list[RowNumber] | None = Field(default=None, min_length=1, max_length=100_000)


@ROUTES.post("/api/bulks/{id}/erase", role="admin", response_model=dict[str, Any], responses=problems(404, 409, 422))
async def erase_bulk(ask: Ask, id: str, body: Annotated[Erasure | None, Body()] = None) -> Response:
    """Erase data, outputs, history, texts and file of an operation that has ended, or of some rows; counters stay."""
    rows = None if body is None else body.rowNumbers
    found = await ask.penstock.operations.erase(id, rows=rows, actor=ask.name)
    return JsonResponse(resources.pruned(found, is_dry_run=False))
