"""Logging in with an API key, and out again."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from penstock.api.guard import Ask
from penstock.api.routing import RouteTable
from penstock.api.session import credentials_of
from penstock.dashboard.pages import back_to, page, text_of
from penstock.errors import Throttled, Unauthenticated

__all__ = ["ROUTES"]

ROUTES = RouteTable("dashboard")
PAGES = "/dashboard"


@ROUTES.get("/dashboard/login", role="public", include_in_schema=False)
async def login_page(request: Request, ask: Ask) -> Response:
    """The form."""
    credentials_of(request)
    return page(request, ask, "login.html", then=_then(request.query_params.get("then")), wrong="")


@ROUTES.post("/dashboard/login", role="public", include_in_schema=False)
async def login(request: Request, ask: Ask) -> Response:
    """Open a session, and go where one wanted to go."""
    form = await request.form()
    then = _then(text_of(form, "then"))
    try:
        _, cookie = await credentials_of(request).log_in(request, text_of(form, "key") or "")
    except (Unauthenticated, Throttled) as error:
        return page(request, ask, "login.html", status=422, then=then, wrong=str(error))
    root = request.scope.get("root_path", "")
    return RedirectResponse(f"{root}{then}", status_code=303, headers={"set-cookie": cookie})


@ROUTES.post("/dashboard/logout", role="public", include_in_schema=False)
async def logout(request: Request) -> Response:
    """End the session in this browser."""
    cookie = credentials_of(request).log_out(request)
    response = back_to(request, "login_page", "You are logged out.")
    response.headers.append("set-cookie", cookie)
    return response


def _then(given: str | None) -> str:
    """A page of ours to go to; nothing else is gone to."""
    is_ours = given is not None and (given == PAGES or given.startswith((f"{PAGES}/", f"{PAGES}?")))
    return given if given is not None and is_ours else PAGES
