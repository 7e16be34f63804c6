"""Tables of routes: each names the role it needs, and the application is made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import FastAPI

from penstock.api.guard import Needs, guarded

__all__ = ["Route", "RouteTable", "add_routes"]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path: the role it needs, what answers it, and how FastAPI describes it."""

    method: str
    path: str
    role: Needs
    endpoint: Callable[..., Any]
    options: Mapping[str, Any]

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

    def route(self, method: str, path: str, *, role: Needs, **options: Any) -> Callable[[F], F]:
        """Let a function answer a method of a path; `options` are FastAPI's."""

        def add(endpoint: F) -> F:
            named = {"tags": [self.tag], "operation_id": _camel(endpoint.__name__), **options}
            self._routes.append(Route(method, path, role, endpoint, named))
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
    for route in routes:
        app.router.add_api_route(
            route.path,
            route.endpoint,
            methods=[route.method],
            route_class_override=guarded(route.role),
            **route.options,
        )


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest if word)
