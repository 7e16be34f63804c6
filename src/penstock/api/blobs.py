"""Uploaded files, for those who look after all of a tenant's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from penstock import blob_resources, resources
from penstock.api.answers import JsonResponse, tagged
from penstock.api.described import problems, produces
from penstock.api.files import attachment
from penstock.api.guard import Ask
from penstock.api.routing import RouteTable
from penstock.api.schemas import Body, ListOf

__all__ = ["ROUTES"]

ROUTES = RouteTable("blobs")

Json = dict[str, Any]
BlobId = Annotated[str, Path(max_length=100, description="The blob's id.")]
_FILE = {"schema": {"type": "string", "format": "binary"}}
_BYTES = {"requestBody": {"required": True, "content": {"application/octet-stream": _FILE}}}


class AnnounceBody(Body):
    """A file that will be sent; `sizeBytes` and `sha256` are what it must have."""

    file_name: str = Field(min_length=1, max_length=200)
    content_type: str | None = Field(default=None, max_length=200)
    size_bytes: int | None = Field(default=None, ge=0, le=2**53)
    sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")


class ReasonBody(Body):
    """Why."""

    reason: str = Field(min_length=1, max_length=2000)


class HoldBody(ReasonBody):
    """Why, and by which name the hold is known."""

    name: str = Field(default="legal", min_length=1, max_length=100)


@ROUTES.get("/api/blobs", role="tenant", response_model=ListOf[Json], responses=problems(422))
async def list_blobs(
    ask: Ask,
    *,
    status: Annotated[list[str] | None, Query(description="Only in this state; can be repeated.")] = None,
    file_name: Annotated[str | None, Query(alias="fileName", max_length=200)] = None,
    sha256: Annotated[str | None, Query(max_length=64)] = None,
    is_held: Annotated[bool | None, Query(alias="isHeld")] = None,
    is_used: Annotated[bool | None, Query(alias="isUsed")] = None,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
) -> Response:
    """Uploaded files, newest first."""
    page = await ask.penstock.blobs.list(
        status=status,
        file_name=file_name,
        sha256=sha256,
        is_held=is_held,
        is_used=is_used,
        cursor=cursor,
        limit=limit,
    )
    return JsonResponse(resources.listing(page.items, blob_resources.blob, page.next_cursor))


@ROUTES.post(
    "/api/blobs",
    role="tenant",
    is_answer_kept=False,
    status_code=201,
    response_model=Json,
    responses=problems(409, 413, 422),
)
async def announce_blob(request: Request, ask: Ask, body: AnnounceBody) -> Response:
    """Announce a file: it is then sent to the address in the answer, or to `content`, and confirmed."""
    found = await ask.penstock.blobs.initiate(
        body.file_name,
        content_type=body.content_type,
        size_bytes=body.size_bytes,
        sha256=body.sha256,
        bytes_max=ask.penstock.settings.upload_bytes_max or None,
        actor=ask.name,
    )
    location = request.url_for("get_blob", id=found.blob.id).path
    return JsonResponse(blob_resources.ticket(found), status_code=201, headers={"location": location})


@ROUTES.get("/api/blobs/{id}", role="tenant", response_model=Json)
async def get_blob(request: Request, ask: Ask, id: BlobId) -> Response:
    """One file, with what uses it, what holds it and what happened to it."""
    blobs = ask.penstock.blobs
    found = await blobs.get(id)
    parts = await blobs.references(id), await blobs.holds(id), await blobs.history(id)
    return tagged(request, blob_resources.detailed(found, *parts))


@ROUTES.route(
    "PUT",
    "/api/blobs/{id}/content",
    role="tenant",
    is_upload=True,
    response_model=Json,
    responses=problems(409, 413, 422),
    openapi_extra=_BYTES,
)
async def send_blob_content(request: Request, ask: Ask, id: BlobId) -> Response:
    """Send the bytes of an announced file; they are stored and checked while they arrive."""
    return JsonResponse(blob_resources.blob(await ask.penstock.blobs.receive(id, request.stream(), actor=ask.name)))


@ROUTES.get(
    "/api/blobs/{id}/content",
    role="tenant",
    response_class=Response,
    responses=problems(409, 422) | produces("application/octet-stream", description="The bytes."),
)
async def get_blob_content(ask: Ask, id: BlobId) -> Response:
    """The bytes of a valid file."""
    found = await ask.penstock.blobs.get(id)
    size = found.stored.size_bytes
    headers = {
        "content-disposition": attachment(found.file_name),
        "content-length": str(size),
        "x-content-type-options": "nosniff",
    }
    blocks: AsyncIterator[bytes] = ask.penstock.blobs.read(id)
    return StreamingResponse(blocks, media_type="application/octet-stream", headers=headers)


@ROUTES.post("/api/blobs/{id}/confirm", role="tenant", response_model=Json, responses=problems(409))
async def confirm_blob(ask: Ask, id: BlobId) -> Response:
    """Check what was sent to the storage directly."""
    return JsonResponse(blob_resources.blob(await ask.penstock.blobs.confirm(id, actor=ask.name)))


@ROUTES.post("/api/blobs/{id}/delete", role="tenant", response_model=Json, responses=problems(409, 413, 422))
async def delete_blob(ask: Ask, id: BlobId, body: ReasonBody) -> Response:
    """Delete the bytes of a file for a reason; its record and log stay. Refused while something uses or holds it."""
    return JsonResponse(blob_resources.blob(await ask.penstock.blobs.delete(id, body.reason, actor=ask.name)))


@ROUTES.post("/api/blobs/{id}/hold", role="tenant", response_model=ListOf[Json], responses=problems(409, 413, 422))
async def hold_blob(ask: Ask, id: BlobId, body: HoldBody) -> Response:
    """Keep a file from being deleted until the hold is released; the holds there are then."""
    found = await ask.penstock.blobs.hold(id, body.reason, name=body.name, actor=ask.name)
    return JsonResponse(resources.listing(found, blob_resources.hold))


@ROUTES.post("/api/blobs/{id}/release", role="tenant", response_model=ListOf[Json], responses=problems(409, 413, 422))
async def release_blob(ask: Ask, id: BlobId, body: HoldBody) -> Response:
    """Release a hold; the holds that are left."""
    found = await ask.penstock.blobs.release(id, body.reason, name=body.name, actor=ask.name)
    return JsonResponse(resources.listing(found, blob_resources.hold))
