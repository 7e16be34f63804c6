"""Logging in with an API key, for people with a browser: the session is a cookie that scripts cannot read."""

from __future__ import annotations

from fastapi import Request, Response
from pydantic import BaseModel, Field

from penstock.access.model import ROLES, Principal
from penstock.api.answers import JsonResponse
from penstock.api.credentials import Credentials
from penstock.api.guard import Ask
from penstock.api.routing import RouteTable
from penstock.errors import NotFound
from penstock.resources import Document

__all__ = ["ROUTES", "credentials_of"]

ROUTES = RouteTable("session")


class Login(BaseModel):
    """An API key."""

    key: str = Field(max_length=200)


def credentials_of(request: Request) -> Credentials:
    """What logs people in; `NotFound` where the application identifies its callers in another way."""
    access = request.app.state.access
    if not isinstance(access, Credentials):
        raise NotFound("there is no login here")
    return access


@ROUTES.post("/api/session", role="public")
async def log_in(request: Request, login: Login) -> Response:
    """Open a session with an API key."""
    principal, cookie = await credentials_of(request).log_in(request, login.key)
    return JsonResponse(_document(principal), headers={"set-cookie": cookie})


@ROUTES.delete("/api/session", role="public")
async def log_out(request: Request) -> Response:
    """End the session in this browser."""
    return Response(status_code=204, headers={"set-cookie": credentials_of(request).log_out(request)})


@ROUTES.get("/api/session", role="read")
async def who_am_i(ask: Ask) -> Response:
    """Who asks, with which roles and rights."""
    return JsonResponse(_document(ask.principal))


def _document(principal: Principal) -> Document:
    return {
        "name": principal.name,
        "roles": [role for role in ROLES if principal.has_role(role)],
        "operations": None if principal.operations is None else sorted(principal.operations),
        "tenant": principal.tenant,
    }
