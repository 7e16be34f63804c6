"""Errors as pages, where a page was asked for; everything else stays a problem document."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from penstock.api import problems
from penstock.api.guard import ANONYMOUS, Caller, identify
from penstock.dashboard.pages import address, error_page, has_login
from penstock.errors import NotFound, PenstockError, Unauthenticated

__all__ = ["add_page_handlers"]

PREFIX = "/dashboard"


def add_page_handlers(app: FastAPI) -> None:
    """Let errors on pages be answered with pages."""
    app.add_exception_handler(PenstockError, _on_ours)
    app.add_exception_handler(404, _on_missing)


async def _on_ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, PenstockError)
    return await _page(request, error) if _is_page(request) else problems.answer(error)


async def _on_missing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if _is_page(request):
        return await _page(request, NotFound("there is no such page"))
    return await problems.on_http(request, error)


def _is_page(request: Request) -> bool:
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    return path == PREFIX or path.startswith(f"{PREFIX}/")


async def _page(request: Request, error: PenstockError) -> Response:
    if isinstance(error, Unauthenticated) and has_login(request) and request.method == "GET":
        return RedirectResponse(address(request, "login_page", then=_here(request)), status_code=303)
    try:
        principal = await identify(request)
    except PenstockError:  # a credential that is refused: that is the error
        principal = None
    return error_page(request, Caller(request.app.state.penstock, principal or ANONYMOUS), error)


def _here(request: Request) -> str | None:
    """The page that was asked for, to come back to after a login; streams and the first page are none."""
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    is_stream = path.endswith("/live")
    return None if is_stream or path == PREFIX else path + (f"?{request.url.query}" if request.url.query else "")
