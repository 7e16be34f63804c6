"""Pages: templates in which everything is text unless we made it, addresses that work under any prefix, notices."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse, RedirectResponse, Response

from penstock.api.credentials import Credentials
from penstock.api.guard import Caller, Needs, may
from penstock.api.problems import problem
from penstock.dashboard import asset_files, charts, words
from penstock.errors import Fault, InvalidInput, PenstockError

__all__ = ["NAV", "address", "back_to", "error_page", "has_login", "page", "part", "text_of"]

NOTICE = "penstock_notice"
NOTICE_CHARS_MAX = 1500

# What the menu shows: the name of a page's route, its title, and the role that is needed to see it.
NAV: tuple[tuple[str, str, Needs], ...] = (
    ("operations_page", "Operations", "read"),
    ("upload_page", "Upload", "operate"),
    ("waits_page", "Waits", "read"),
    ("lifecycles_page", "Lifecycles", "read"),
    ("blobs_page", "Blobs", "tenant"),
    ("deliveries_page", "Deliveries", "read"),
    ("webhooks_page", "Webhooks", "tenant"),
    ("system_page", "System", "system"),
    ("machines_page", "Machines", "read"),
)


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("penstock.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= words.FILTERS
    made.globals |= {"bar": charts.bar, "percent": words.percent, "span": words.span}
    made.globals |= {"VERSION": asset_files.VERSION}
    return made


TEMPLATES = _environment()


def address(request: Request, name: str, /, **given: Any) -> str:
    """The path of a page by the name of its route; what is no part of the path becomes its query."""
    route = next(each for each in request.app.routes if getattr(each, "name", None) == name)
    inside = {key: str(value) for key, value in given.items() if key in route.param_convertors}
    query = {key: value for key, value in given.items() if key not in inside and value not in (None, "", [])}
    # Not `url_for`: in an application that is mounted it leaves out where.
    path = request.scope.get("root_path", "") + request.app.url_path_for(name, **inside)
    return f"{path}?{urlencode(query, doseq=True)}" if query else path


def page(request: Request, ask: Caller, template: str, *, status: int = 200, **values: Any) -> Response:
    """A whole page."""
    notice = _notice(request)
    response = HTMLResponse(
        TEMPLATES.get_template(template).render(
            request=request,
            ask=ask,
            url=_addresses(request),
            menu=[(name, title) for name, title, needs in NAV if may(ask.principal, needs)],
            notice=notice,
            has_login=has_login(request),
            **values,
        ),
        status_code=status,
        headers={"cache-control": "no-store"},
    )
    if notice is not None:
        response.delete_cookie(NOTICE, path=request.scope.get("root_path", "") or "/")
    return response


def part(request: Request, template: str, **values: Any) -> Markup:
    """Part of a page, as it is sent to those who look at it."""
    return Markup(TEMPLATES.get_template(template).render(url=_addresses(request), **values))  # escaped by the template


def _addresses(request: Request) -> Callable[..., str]:
    def url(name: str, /, **given: Any) -> str:
        return address(request, name, **given)

    return url


def back_to(
    request: Request, name: str, message: str = "", /, *, tone: str = "ok", anchor: str = "", **given: Any
) -> Response:
    """Go to a page after something was done, which says so."""
    target = address(request, name, **given) + (f"#{anchor}" if anchor else "")
    response = RedirectResponse(target, status_code=303)
    if message:
        text = json.dumps([tone, message[:NOTICE_CHARS_MAX]]).encode()
        response.set_cookie(
            NOTICE,
            base64.urlsafe_b64encode(text).decode().rstrip("="),
            max_age=60,
            path=request.scope.get("root_path", "") or "/",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
    return response


def _notice(request: Request) -> tuple[str, str] | None:
    """What was done a moment ago; whatever else the cookie holds is ignored."""
    try:
        tone, message = json.loads(base64.urlsafe_b64decode(request.cookies[NOTICE] + "=="))
    except (KeyError, ValueError, TypeError, binascii.Error):
        return None
    return (tone, message) if tone in ("ok", "bad", "warn") and isinstance(message, str) else None


def error_page(request: Request, ask: Caller, error: PenstockError) -> Response:
    """Why something cannot be shown or done."""
    document = problem(error)
    faults: Sequence[Fault] = error.faults if isinstance(error, InvalidInput) else ()
    return page(
        request,
        ask,
        "error.html",
        status=document["status"],
        title=document["title"],
        detail=document["detail"],
        faults=faults,
    )


def has_login(request: Request) -> bool:
    """Whether people log in here, and not with an application around it, or not at all."""
    return isinstance(request.app.state.access, Credentials)


def text_of(given: Mapping[str, Any], name: str) -> str | None:
    """A field of a query or form; None when it is empty."""
    value = given.get(name)
    return value.strip() or None if isinstance(value, str) else None
