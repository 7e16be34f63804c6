"""Blobs: stored files, what uses and holds them, and what happened to them."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import Request
from starlette.responses import Response, StreamingResponse

from penstock.api.guard import Ask
from penstock.api.routing import RouteTable
from penstock.blobs.states import BLOB
from penstock.dashboard.pages import address, back_to, page, text_of

__all__ = ["ROUTES"]

ROUTES = RouteTable("dashboard")
PAGE = 50
OPERATION = "operation:"  # how the reference of an operation begins
YES = {"yes": True, "no": False}


@ROUTES.get("/dashboard/blobs", role="tenant", include_in_schema=False)
async def blobs_page(request: Request, ask: Ask) -> Response:
    """Stored files, newest first."""
    wanted = dict(request.query_params)
    found = await ask.penstock.blobs.list(
        status=text_of(wanted, "status"),
        file_name=text_of(wanted, "name"),
        sha256=text_of(wanted, "sha256"),
        is_used=YES.get(wanted.get("used", "")),
        is_held=YES.get(wanted.get("held", "")),
        cursor=text_of(wanted, "cursor"),
        limit=PAGE,
    )
    return page(
        request,
        ask,
        "blobs.html",
        current="blobs_page",
        wanted=wanted,
        found=found,
        states=BLOB.states,
        storage=ask.penstock.blobs.storage.place,
        more=address(request, "blobs_page", **{**wanted, "cursor": found.next_cursor}) if found.next_cursor else None,
        first=address(request, "blobs_page", **{**wanted, "cursor": None}) if wanted.get("cursor") else None,
    )


@ROUTES.get("/dashboard/blobs/{id}", role="tenant", include_in_schema=False)
async def blob_page(request: Request, ask: Ask, id: str) -> Response:
    """One blob: what it is, who uses and holds it, and its history."""
    blob = await ask.penstock.blobs.get(id)
    service = ask.penstock.blobs
    references = await service.references(blob.id)
    return page(
        request,
        ask,
        "blob.html",
        current="blobs_page",
        blob=blob,
        references=[(each, each.owner.removeprefix(OPERATION)) for each in references],
        holds=await service.holds(blob.id),
        events=await service.history(blob.id),
        can_delete="deleted" in BLOB.allowed(blob.status),
    )


@ROUTES.get("/dashboard/blobs/{id}/file", role="tenant", include_in_schema=False)
async def blob_file(ask: Ask, id: str) -> Response:
    """The bytes, always to be saved and never to be shown."""
    blob = await ask.penstock.blobs.get(id)
    size = blob.stored.size_bytes
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(blob.file_name, safe='')}",
        "content-length": str(size),
    }
    return StreamingResponse(ask.penstock.blobs.read(blob.id), media_type="application/octet-stream", headers=headers)


@ROUTES.post("/dashboard/blobs/{id}/delete", role="tenant", include_in_schema=False)
async def blob_delete(request: Request, ask: Ask, id: str) -> Response:
    """Delete the bytes for a reason; record and history stay."""
    blob = await ask.penstock.blobs.get(id)
    form = await request.form()
    await ask.penstock.blobs.delete(blob.id, text_of(form, "reason") or "", actor=ask.name)
    return back_to(request, "blob_page", "Deleted; its record and history stay.", id=blob.id)
