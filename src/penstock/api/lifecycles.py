"""Lifecycles: their definitions, and their instances."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Body as BodyOf
from fastapi import Path, Query, Request, Response
from pydantic import Field

from penstock import lifecycle_resources, resources
from penstock.api.answers import JsonResponse, tagged
from penstock.api.described import problems, produces
from penstock.api.guard import Ask
from penstock.api.problems import MEDIA_TYPE
from penstock.api.routing import RouteTable
from penstock.api.schemas import Body, CauseBody, ListOf
from penstock.errors import NotFound
from penstock.graphs.writing import document_of
from penstock.lifecycles.model import Outcome
from penstock.lifecycles.overview import overview
from penstock.lifecycles.states import InstanceFlag

__all__ = ["ROUTES"]

ROUTES = RouteTable("lifecycles")

Json = dict[str, Any]
Environment = Annotated[str | None, Query(max_length=200, description="Needed where several environments have it.")]
VersionName = Annotated[str | None, Query(max_length=200, description="A version's label or number; the latest.")]
Cursor = Annotated[str | None, Query(max_length=1000)]
Limit = Annotated[int, Query(ge=1, le=1000)]
Name = Annotated[str, Path(max_length=200)]
Guid = Annotated[str, Path(max_length=100, description="The guid, or 8 characters or more of its beginning.")]


class StartBody(Body):
    """A new instance."""

    reference: str | None = Field(default=None, min_length=1, max_length=200)
    data: dict[str, Any] | None = None
    version: str | None = Field(default=None, max_length=200)
    environment: str | None = Field(default=None, max_length=200)
    cause: str | None = Field(default=None, max_length=2000)
    correlation: str | None = Field(default=None, max_length=200)


class TriggerBody(Body):
    """An event; `requestKey` makes it safe to send it again."""

    event: str = Field(min_length=1, max_length=200)
    request_key: str | None = Field(default=None, min_length=1, max_length=200)
    cause: str | None = Field(default=None, max_length=2000)
    correlation: str | None = Field(default=None, max_length=200)
    metadata: dict[str, Any] | None = None


class TriggerManyBody(Body):
    """One event for many instances."""

    guids: list[str] = Field(min_length=1, max_length=10_000)
    event: str = Field(min_length=1, max_length=200)
    cause: str | None = Field(default=None, max_length=2000)
    correlation: str | None = Field(default=None, max_length=200)


class ForceBody(Body):
    """A state, whatever the table says; the log says why."""

    state: str = Field(min_length=1, max_length=200)
    cause: str = Field(min_length=1, max_length=2000)


# --- definitions


@ROUTES.get("/api/lifecycles", role="read", response_model=ListOf[Json])
async def list_lifecycles(ask: Ask) -> Response:
    """The definitions with their latest versions, and how many instances each has."""
    found = await overview(ask.penstock.lifecycles)
    return JsonResponse(
        resources.listing(found, lambda each: {**lifecycle_resources.version(each[0]), "instances": each[1]})
    )


@ROUTES.post(
    "/api/lifecycles",
    role="admin",
    status_code=201,
    response_model=Json,
    responses=problems(409, 413, 422),
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}},
)
async def import_lifecycle(
    request: Request, ask: Ask, strict: Annotated[bool, Query(description="Count warnings as faults.")] = False
) -> Response:
    """Import a definition as a published version; the document is kept byte for byte."""
    found = await ask.penstock.lifecycles.import_text(await request.body(), strict=strict, actor=ask.name)
    return JsonResponse(lifecycle_resources.imported(found), status_code=200 if found.unchanged else 201)


@ROUTES.get("/api/lifecycles/{name}", role="read", response_model=Json, responses=problems(422))
async def get_lifecycle(
    request: Request, ask: Ask, name: Name, version: VersionName = None, environment: Environment = None
) -> Response:
    """One version: its states, events and transitions, and how many instances are where."""
    lifecycles = ask.penstock.lifecycles
    graph = await lifecycles.graph(name, version=version, environment=environment)
    counts = await lifecycles.counts(definition=graph.version.definition.id, version=graph.version.number)
    document = {**lifecycle_resources.version(graph.version), "document": document_of(graph.document())}
    return tagged(request, {**document, "counts": [lifecycle_resources.count(each) for each in counts]})


@ROUTES.get("/api/lifecycles/{name}/versions", role="read", response_model=ListOf[Json], responses=problems(422))
async def list_lifecycle_versions(ask: Ask, name: Name, environment: Environment = None) -> Response:
    """The versions of a definition, newest first."""
    found = await ask.penstock.lifecycles.versions(name, environment=environment)
    return JsonResponse(resources.listing(found, lifecycle_resources.version))


@ROUTES.get(
    "/api/lifecycles/{name}/document",
    role="read",
    response_class=Response,
    responses=problems(422) | produces("application/json", description="The document."),
)
async def get_lifecycle_document(
    ask: Ask, name: Name, version: VersionName = None, environment: Environment = None
) -> Response:
    """The document that a version was imported from, byte for byte."""
    found = await ask.penstock.lifecycles.export(name, version=version, environment=environment)
    return Response(found, media_type="application/json")


@ROUTES.get(
    "/api/lifecycles/{name}/diagram",
    role="read",
    response_class=Response,
    responses=problems(422) | produces("image/svg+xml", "text/plain", description="The picture."),
)
async def get_lifecycle_diagram(
    ask: Ask,
    name: Name,
    version: VersionName = None,
    environment: Environment = None,
    form: Literal["mermaid", "svg"] = "svg",
) -> Response:
    """A version drawn, as SVG or as a Mermaid state diagram."""
    found = await ask.penstock.lifecycles.diagram(name, version=version, environment=environment, form=form)
    return Response(found, media_type="image/svg+xml" if form == "svg" else "text/plain; charset=utf-8")


@ROUTES.get("/api/lifecycles/{name}/diff", role="read", response_model=ListOf[Json], responses=problems(422))
async def diff_lifecycle(
    ask: Ask,
    name: Name,
    before: Annotated[str, Query(max_length=200)],
    after: Annotated[str | None, Query(max_length=200)] = None,
    environment: Environment = None,
) -> Response:
    """What a version adds, removes and changes, compared with an earlier one."""
    found = await ask.penstock.lifecycles.diff(name, before, after, environment=environment)
    return JsonResponse(resources.listing(found, lifecycle_resources.change))


# --- instances


@ROUTES.post(
    "/api/lifecycles/{name}/instances",
    role="operate",
    status_code=201,
    response_model=Json,
    responses=problems(409, 413, 422),
)
async def start_instance(
    request: Request, ask: Ask, name: Name, body: Annotated[StartBody | None, BodyOf()] = None
) -> Response:
    """Start an instance. A reference has one instance in a version: started again, it is found."""
    given = body or StartBody()
    found = await ask.penstock.lifecycles.start(
        name,
        given.reference,
        data=given.data,
        version=given.version,
        environment=given.environment,
        actor=ask.name,
        cause=given.cause,
        correlation=given.correlation,
    )
    location = request.url_for("get_instance", guid=found.guid).path
    return JsonResponse(lifecycle_resources.instance(found), status_code=201, headers={"location": location})


@ROUTES.get("/api/lifecycle-instances", role="read", response_model=ListOf[Json], responses=problems(422))
async def list_instances(
    ask: Ask,
    *,
    definition: Annotated[str | None, Query(max_length=200)] = None,
    version: VersionName = None,
    environment: Environment = None,
    state: Annotated[str | None, Query(max_length=200)] = None,
    last_event: Annotated[str | None, Query(alias="lastEvent", max_length=200)] = None,
    reference: Annotated[str | None, Query(max_length=200)] = None,
    flags: Annotated[list[str] | None, Query(description="Only with all of these, such as Active.")] = None,
    without_flags: Annotated[list[str] | None, Query(alias="withoutFlags", description="None of these.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Instances that fit, in the order they were started."""
    page = await ask.penstock.lifecycles.instances(
        definition=definition,
        version=version,
        environment=environment,
        state=state,
        last_event=last_event,
        reference=reference,
        all_of=_flags(flags),
        none_of=_flags(without_flags),
        cursor=cursor,
        limit=limit,
    )
    return JsonResponse(resources.listing(page.items, lifecycle_resources.instance, page.next_cursor))


def _flags(names: list[str] | None) -> InstanceFlag:
    found = InstanceFlag.NONE
    for name in names or ():
        try:
            found |= InstanceFlag[name.upper()]
        except KeyError:
            known = ", ".join((flag.name or "").capitalize() for flag in InstanceFlag if flag)
            raise NotFound(f"no such flag: {name!r}; known: {known}") from None
    return found


@ROUTES.post(
    "/api/lifecycle-instances/trigger", role="operate", response_model=ListOf[Json], responses=problems(413, 422)
)
async def trigger_instances(ask: Ask, body: TriggerManyBody) -> Response:
    """Send one event to many instances; what became of each, in the order given."""
    found = await ask.penstock.lifecycles.trigger_many(
        body.guids, body.event, actor=ask.name, cause=body.cause, correlation=body.correlation
    )
    return JsonResponse(resources.listing(found, lifecycle_resources.outcome))


@ROUTES.get("/api/lifecycle-instances/{guid}", role="read", response_model=Json, responses=problems(422))
async def get_instance(request: Request, ask: Ask, guid: Guid) -> Response:
    """One instance."""
    return tagged(request, lifecycle_resources.instance(await ask.penstock.lifecycles.get(guid)))


@ROUTES.get("/api/lifecycle-instances/{guid}/log", role="read", response_model=ListOf[Json], responses=problems(422))
async def list_instance_log(ask: Ask, guid: Guid, cursor: Cursor = None, limit: Limit = 100) -> Response:
    """Every change of an instance."""
    page = await ask.penstock.lifecycles.log(guid, cursor=cursor, limit=limit)
    return JsonResponse(resources.listing(page.items, lifecycle_resources.log_entry, page.next_cursor))


@ROUTES.get("/api/lifecycle-instances/{guid}/events", role="read", response_model=ListOf[Json], responses=problems(422))
async def list_available_events(ask: Ask, guid: Guid) -> Response:
    """The events that the instance's state admits, and what its guards say now."""
    found = await ask.penstock.lifecycles.available_events(guid, actor=ask.name)
    return JsonResponse(resources.listing(found, lifecycle_resources.available))


@ROUTES.post(
    "/api/lifecycle-instances/{guid}/trigger",
    role="operate",
    response_model=Json,
    responses=problems(409, 413, 422),
)
async def trigger_instance(ask: Ask, guid: Guid, body: TriggerBody) -> Response:
    """Move an instance by an event. A refusal is 409 and says why, and what would go."""
    found = await ask.penstock.lifecycles.trigger(
        guid,
        body.event,
        request_key=body.request_key,
        actor=ask.name,
        cause=body.cause,
        correlation=body.correlation,
        metadata=body.metadata,
    )
    return _answer(found)


def _answer(found: Outcome) -> Response:
    document = lifecycle_resources.outcome(found)
    if found.applied:
        return JsonResponse(document)
    status = 404 if found.kind == "not_found" else 409
    refusal = {
        "type": f"urn:penstock:problem:{found.kind.replace('_', '-')}",
        "title": "The event was refused",
        "status": status,
        "detail": str(found),
        "code": found.kind.replace("_", "-"),
        "error": str(found),
    }
    return JsonResponse(refusal | document, status_code=status, media_type=MEDIA_TYPE)


@ROUTES.post(
    "/api/lifecycle-instances/{guid}/actions/{action}",
    role="operate",
    response_model=Json,
    responses=problems(409, 413, 422),
)
async def act_on_instance(
    ask: Ask,
    guid: Guid,
    action: Literal["suspend", "resume", "complete", "fail", "archive", "reopen"],
    body: Annotated[CauseBody | None, BodyOf()] = None,
) -> Response:
    """Change the flags of an instance; its state stays."""
    act = getattr(ask.penstock.lifecycles, action)
    found = await act(guid, actor=ask.name, cause=body.cause if body else None)
    return JsonResponse(lifecycle_resources.instance(found))


@ROUTES.post(
    "/api/lifecycle-instances/{guid}/force",
    role="admin",
    response_model=Json,
    responses=problems(409, 413, 422),
)
async def force_instance(ask: Ask, guid: Guid, body: ForceBody) -> Response:
    """Put an instance into a state, whatever its table says."""
    found = await ask.penstock.lifecycles.force(guid, body.state, cause=body.cause, actor=ask.name)
    return JsonResponse(lifecycle_resources.instance(found))


@ROUTES.delete("/api/lifecycle-instances/{guid}", role="admin", status_code=204, responses=problems(409, 422))
async def delete_instance(ask: Ask, guid: Guid, force: bool = False) -> Response:
    """Delete an instance with its log; one that has not ended needs `force`."""
    await ask.penstock.lifecycles.delete(guid, force=force, actor=ask.name)
    return Response(status_code=204)
