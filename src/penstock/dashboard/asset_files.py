"""Stylesheet, scripts and icon: files of the package."""

from __future__ import annotations

import hashlib
from importlib import resources

from fastapi import Request
from starlette.responses import Response

from penstock.api.routing import RouteTable
from penstock.errors import NotFound

__all__ = ["ROUTES", "VERSION"]

ROUTES = RouteTable("dashboard")
TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
FILES = {
    file.name: file.read_bytes()
    for file in resources.files("penstock.dashboard").joinpath("assets").iterdir()
    if file.name.rpartition(".")[2] in TYPES
}
VERSION = hashlib.sha256(b"".join(FILES[name] for name in sorted(FILES))).hexdigest()[:12]


@ROUTES.get("/dashboard/assets/{name}", role="public", include_in_schema=False)
async def dashboard_asset(request: Request, name: str) -> Response:
    """One file; its address changes with its content, so it may be kept for good."""
    if name not in FILES:
        raise NotFound("there is no such file")
    is_current = request.query_params.get("v") == VERSION
    kept = "public, max-age=31536000, immutable" if is_current else "no-cache"
    return Response(
        FILES[name],
        media_type=TYPES[name.rpartition(".")[2]],
        headers={"cache-control": kept, "x-content-type-options": "nosniff"},
    )
