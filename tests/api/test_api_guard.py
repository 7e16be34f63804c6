"""Every route has a rule, and nothing but public routes answers without a credential."""

from __future__ import annotations

import httpx
import pytest
from fastapi.routing import APIRoute

from penstock.access.model import Principal, Role
from penstock.api import Trusted, create_app
from penstock.api.guard import GuardedRoute
from penstock.api.table import ROUTES
from penstock.testing import Engine

pytestmark = pytest.mark.databases("sqlite")

PUBLIC = {"/health/live", "/health/ready", "/api/session", "/api/signals/{token}", "/api/signals/{token}/fail"}


def test_every_route_of_the_application_stands_in_the_table_with_its_role(works: Engine):
    app = create_app(works.penstock)
    made = {
        (method, route.path, route.needs)
        for route in app.routes
        if isinstance(route, GuardedRoute)
        for method in route.methods
    }
    assert len(made) == len([route for route in app.routes if isinstance(route, APIRoute)]) == len(app.routes)
    assert {(route.method, route.path, route.role) for route in ROUTES} <= made


def test_only_what_says_how_the_process_is_is_public():
    assert {route.path for route in ROUTES if route.role == "public"} <= PUBLIC | {"/metrics"}


def test_what_changes_something_needs_more_than_the_right_to_read():
    changing = [route for route in ROUTES if route.method != "GET" and route.path not in PUBLIC]
    assert not [route.path for route in changing if route.role not in ("operate", "admin", "tenant", "system")]


async def test_without_an_authenticator_every_route_that_is_not_public_refuses(connect):
    api = connect(access=None)
    for route in ROUTES:
        answer = await api.request(route.method, route.path.replace("{", "").replace("}", ""))
        if route.role != "public":
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated"), route.path
            assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("role", ["read", "operate"])
async def test_a_role_that_does_not_suffice_is_refused_before_anything_is_looked_up(connect, role: Role):
    api = connect(Trusted(Principal("bob", frozenset({role}))))
    for route in ROUTES:
        wanted = {"tenant": "admin", "system": "admin", "monitor": "read"}.get(route.role, route.role)
        if wanted != "public" and not Principal("", frozenset({role})).has_role(wanted):
            answer = await api.request(route.method, route.path.replace("{", "").replace("}", ""))
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), route.path


async def test_a_path_that_is_not_there_is_answered_with_a_problem_document(api: httpx.AsyncClient):
    answer = await api.get("/api/nothing")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert answer.json() == {
        "type": "urn:penstock:problem:not-found",
        "title": "Not Found",
        "status": 404,
        "detail": "Not Found",
        "code": "not-found",
        "error": "Not Found",
    }


async def test_health_answers_without_a_credential(connect):
    api = connect(access=None)
    assert (await api.get("/health/live")).json() == {"status": "live"}
    assert (await api.get("/health/ready")).json() == {"status": "ready"}
