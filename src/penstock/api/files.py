"""Files of an operation: what was uploaded, and its rows as a report, as data or by result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse

from penstock.api.described import problems, produces
from penstock.api.guard import Ask
from penstock.api.routing import RouteTable
from penstock.operations.exporting import RESULTS, Export, SourceFile

__all__ = ["ROUTES", "attachment"]

ROUTES = RouteTable("files")

PIECE_BYTES = 256 * 1024
_TYPES = ("text/csv", "application/x-ndjson", "application/json")

Raw = Annotated[bool, Query(description="Write cells as they are, also those that a spreadsheet takes for formulas.")]


@ROUTES.get(
    "/api/bulks/{id}/file",
    role="read",
    response_class=Response,
    responses=produces("application/octet-stream", description="The file as it was uploaded."),
)
async def get_file(request: Request, ask: Ask, id: str) -> Response:
    """The file as it was uploaded."""
    file = await ask.penstock.operations.source_file(id)
    tag = f'"{file.sha256}"'
    headers = {
        "content-disposition": attachment(file.name),
        "content-length": str(file.size_bytes),
        "etag": tag,
        "x-content-type-options": "nosniff",
    }
    if tag in request.headers.get("if-none-match", ""):
        file.stream.close()
        return Response(status_code=304, headers={"etag": tag})
    return StreamingResponse(_pieces(file), media_type="application/octet-stream", headers=headers)


async def _pieces(file: SourceFile) -> AsyncIterator[bytes]:
    try:
        while piece := await asyncio.to_thread(file.stream.read, PIECE_BYTES):
            yield piece
    finally:
        file.stream.close()


@ROUTES.get(
    "/api/bulks/{id}/export",
    role="read",
    response_class=Response,
    responses=problems(409, 422) | produces(*_TYPES, description="The rows that fit."),
)
async def export_bulk(
    ask: Ask,
    id: str,
    *,
    mode: Annotated[str, Query(description="report: states, errors and data; data: the rows' data alone.")] = "report",
    format: Annotated[str, Query(description="csv, jsonl or json.")] = "csv",
    state: Annotated[list[str] | None, Query(description="Only rows in this state; can be repeated.")] = None,
    error_type: Annotated[str | None, Query(alias="errorType", description="Only errors of this type.")] = None,
    step: Annotated[str | None, Query(alias="stepName", description="Only rows at this step.")] = None,
    raw: Raw = False,
) -> Response:
    """Rows as a file, of any number."""
    return _download(
        await ask.penstock.operations.export(
            id,
            mode=mode.casefold(),
            format=format.casefold(),
            state=state,
            error_type=error_type,
            step=step,
            neutral=not raw,
        )
    )


@ROUTES.get(
    "/api/bulks/{id}/results/{result}",
    role="read",
    response_class=Response,
    responses=problems(422) | produces(*_TYPES, description="The rows with this result."),
)
async def get_results(
    ask: Ask,
    id: str,
    result: Literal["successful", "failed", "unprocessed"],
    format: Annotated[str, Query(description="csv, jsonl or json.")] = "csv",
    raw: Raw = False,
) -> Response:
    """The rows that were successful, failed or unprocessed; together every row once."""
    found = await ask.penstock.operations.export(id, format=format.casefold(), state=RESULTS[result], neutral=not raw)
    return _download(found, name=found.file_name.replace("-report.", f"-{result}."))


def _download(found: Export, name: str | None = None) -> Response:
    headers = {
        "content-disposition": attachment(name or found.file_name),
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
    }
    return StreamingResponse(found.pieces, media_type=found.media_type, headers=headers)


def attachment(name: str) -> str:
    """A header that names a file, in any letters (RFC 6266)."""
    plain = "".join(
        letter if letter.isascii() and letter.isprintable() and letter not in '"\\/%' else "_" for letter in name
    )
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
