"""The OpenAPI description: what FastAPI knows, and what it does not: problems, credentials, keys, examples."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from penstock.api.described import ALWAYS, EXAMPLE_ID, WITH_KEY, problem
from penstock.api.guard import GuardedRoute
from penstock.api.schemas import Problem

__all__ = ["describe"]

TEXT = """
Files of rows run through operations: each row is validated, goes through its steps and gets a result.

Send a key or token as `Authorization: Bearer …`. Errors are problem documents (RFC 9457) with a stable `code`.
Every POST and PATCH that needs a credential may have an `Idempotency-Key`: sent again with the same key, it is carried
out once.
"""
KEY_HEADER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "With it, the request is carried out once, however often it is sent.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[A-Za-z0-9_-]+$"},
}
EXAMPLES = {"id": EXAMPLE_ID, "name": "price-update", "number": 17, "key": "approval-17"}


def describe(app: FastAPI, root_path: str = "") -> dict[str, Any]:
    """The description of an application, as it is called under this path."""
    document = get_openapi(title="Penstock", version=version("penstock"), description=TEXT, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= problem.pop("$defs", {})
    schemas["Problem"] = problem
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    if root_path:
        document["servers"] = [{"url": root_path}]
    for route in app.routes:
        if isinstance(route, GuardedRoute) and route.include_in_schema:
            for method in route.methods or ():
                _complete(document["paths"][route.path_format][method.lower()], route, method)
    return document


def _complete(operation: dict[str, Any], route: GuardedRoute, method: str) -> None:
    if route.needs != "public":
        operation["security"] = [{"bearer": []}]
        operation["x-role"] = route.needs
    refusals = set(ALWAYS)
    if method in ("POST", "PATCH") and route.needs != "public":
        operation.setdefault("parameters", []).append(KEY_HEADER)
        refusals |= set(WITH_KEY)
    if "422" in operation["responses"]:  # FastAPI adds its own
        refusals.add(422)
    operation["responses"] |= {str(status): problem(status) for status in refusals}
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path" and parameter["name"] in EXAMPLES:
            parameter["example"] = EXAMPLES[parameter["name"]]
