"""Tables of routes: each names the role it needs, and the application is made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from penstock.api.guard import Needs, guarded

__all__ = ["Route", "RouteTable", "add_routes", "route_of"]

F = TypeVar("F", bound=Callable[..., Any])

_SCOPE_KEY = "penstock.route"


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path: the role it needs, what answers it, and how FastAPI describes it.

    `is_upload`: its body is a file. `is_repeatable`: carried out twice, it does no harm. `is_answer_kept` is False when
    the answer holds what must not be stored: a secret, or data of rows.
    """

    method: str
    path: str
    role: Needs
    endpoint: Callable[..., Any]
    options: Mapping[str, Any]
    is_upload: bool = False
    is_repeatable: bool = False
    is_answer_kept: bool = True

    @property
    def name(self) -> str:
        """Its name in the OpenAPI document: stable, and the name of a method in generated clients."""
        return str(self.options.get("operation_id") or self.endpoint.__name__)


class RouteTable:
    """The routes of one module; `role` has no default, so no route is without one."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self._routes: list[Route] = []

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def route(
        self,
        method: str,
        path: str,
        *,
        role: Needs,
        is_upload: bool = False,
        is_repeatable: bool = False,
        is_answer_kept: bool = True,
        **options: Any,
    ) -> Callable[[F], F]:
        """Let a function answer a method of a path; see `Route`, and `options` are FastAPI's."""

        def add(endpoint: F) -> F:
            named = {"tags": [self.tag], "operation_id": _camel(endpoint.__name__), **options}
            self._routes.append(Route(method, path, role, endpoint, named, is_upload, is_repeatable, is_answer_kept))
            return endpoint

        return add

    def get(self, path: str, *, role: Needs, **options: Any) -> Callable[[F], F]:
        """Answer GET."""
        return self.route("GET", path, role=role, **options)

    def post(self, path: str, *, role: Needs, **options: Any) -> Callable[[F], F]:
        """Answer POST."""
        return self.route("POST", path, role=role, **options)

    def patch(self, path: str, *, role: Needs, **options: Any) -> Callable[[F], F]:
        """Answer PATCH."""
        return self.route("PATCH", path, role=role, **options)

    def delete(self, path: str, *, role: Needs, **options: Any) -> Callable[[F], F]:
        """Answer DELETE."""
        return self.route("DELETE", path, role=role, **options)


def add_routes(app: FastAPI, routes: Iterable[Route]) -> None:
    """Make the application's routes, each behind its guard."""
    app.state.declared_routes = {}
    for route in routes:
        app.state.declared_routes[route.method, route.path] = route
        app.router.add_api_route(
            route.path,
            route.endpoint,
            methods=[route.method],
            route_class_override=guarded(route.role),
            **route.options,
        )


def route_of(scope: Scope) -> Route | None:
    """The route that the application will choose for this request; None when it has none."""
    if _SCOPE_KEY not in scope:
        scope[_SCOPE_KEY] = _find(scope["app"], scope)
    found: Route | None = scope[_SCOPE_KEY]
    return found


def _find(app: FastAPI, scope: Scope) -> Route | None:
    for route in app.routes:
        if isinstance(route, APIRoute) and route.matches(scope)[0] is Match.FULL:
            declared: dict[tuple[str, str], Route] = app.state.declared_routes
            return declared.get((scope["method"], route.path))
    return None


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest if word)
