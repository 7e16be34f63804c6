"""The installation itself: its state machines, its health for operators, proofs, and the description of this API."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response

from penstock import resources
from penstock.api.answers import JsonResponse
from penstock.api.described import problems
from penstock.api.guard import Ask
from penstock.api.openapi import describe
from penstock.api.routing import RouteTable
from penstock.api.schemas import DiagnosisShape
from penstock.machines import built_in, machine_named
from penstock.resources import Document

__all__ = ["ROUTES"]

ROUTES = RouteTable("system")


@ROUTES.get("/api/machines", role="read", response_model=dict[str, Any])
async def list_machines() -> Response:
    """The built-in state machines."""
    return JsonResponse({"items": [machine.to_json() for machine in built_in().values()], "nextCursor": None})


@ROUTES.get("/api/machines/{name}", role="read", response_model=dict[str, Any])
async def get_machine(name: str) -> Response:
    """One state machine."""
    return JsonResponse(machine_named(name).to_json())


@ROUTES.get("/api/doctor", role="system", response_model=DiagnosisShape)
async def get_diagnosis(ask: Ask) -> Response:
    """Checks of the database, workers, open operations and file storage, with what to do."""
    return JsonResponse(resources.diagnosis(await ask.penstock.diagnose()))


@ROUTES.get("/api/verify", role="admin", response_model=dict[str, Any], responses=problems(422))
async def verify(
    ask: Ask,
    operation: Annotated[str | None, Query(description="Only this operation.")] = None,
    deep: Annotated[bool, Query(description="Also read the stored files.")] = False,
) -> Response:
    """Re-derive what is stored from the records, and report every difference."""
    of = None if operation is None else (await ask.penstock.operations.get(operation)).id
    return JsonResponse(resources.verify_report(await ask.penstock.operations.verify(of, deep=deep)))


@ROUTES.get("/openapi.json", role="read", include_in_schema=False)
async def get_openapi(request: Request) -> Response:
    """This API as OpenAPI describes it."""
    return _description(request)


@ROUTES.get("/openapi/v1.json", role="read", include_in_schema=False)
async def get_openapi_v1(request: Request) -> Response:
    """The same, where BulkSharp has it."""
    return _description(request)


def _description(request: Request) -> Response:
    """The description for the path under which the application was called last; routes do not change."""
    state, root_path = request.app.state, request.scope.get("root_path", "")
    kept: tuple[str, Document] | None = getattr(state, "description", None)
    if kept is None or kept[0] != root_path:
        kept = state.description = (root_path, describe(request.app, root_path))
    return JsonResponse(kept[1])
