"""Lifecycles: definitions as diagrams with live counts, instances, their timelines, and the events they can take."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.responses import Response

from penstock.api.guard import Ask
from penstock.api.routing import RouteTable
from penstock.api.streaming import event_stream
from penstock.dashboard.diagrams import machine_picture
from penstock.dashboard.live import Scene, Update
from penstock.dashboard.operations import live_of
from penstock.dashboard.pages import address, back_to, page, part, text_of
from penstock.errors import InvalidInput
from penstock.graphs.flags import StateFlag, words_of
from penstock.lifecycles.rules.graph import Graph
from penstock.lifecycles.service import Lifecycles
from penstock.lifecycles.states import BLOCKING, InstanceFlag

__all__ = ["ROUTES"]

ROUTES = RouteTable("dashboard")
PAGE = 50
LOG = 200
ACTIONS = ("suspend", "resume", "complete", "fail", "archive", "reopen")


@ROUTES.get("/dashboard/lifecycles", role="read", include_in_schema=False)
async def lifecycles_page(request: Request, ask: Ask) -> Response:
    """Every definition, with how many instances it has."""
    lifecycles = ask.penstock.lifecycles
    found = []
    for definition in await lifecycles.definitions():
        versions = await lifecycles.versions(definition.id)
        counts = await lifecycles.counts(definition=definition.id)
        active = sum(count.instances for count in counts if InstanceFlag.ACTIVE in count.flags)
        found.append((definition, versions, sum(count.instances for count in counts), active))
    return page(request, ask, "lifecycles.html", current="lifecycles_page", definitions=found)


@ROUTES.get("/dashboard/lifecycles/{definition}", role="read", include_in_schema=False)
async def lifecycle_page(request: Request, ask: Ask, definition: int) -> Response:
    """One definition: its diagram, and its instances."""
    lifecycles, wanted = ask.penstock.lifecycles, dict(request.query_params)
    version = text_of(wanted, "version")
    versions = await lifecycles.versions(definition)
    graph = await lifecycles.graph(definition, version=version)
    instances = await lifecycles.instances(
        definition=definition,
        version=version,
        state=text_of(wanted, "state"),
        reference=text_of(wanted, "reference"),
        cursor=text_of(wanted, "cursor"),
        limit=PAGE,
    )

    def with_(**changes: Any) -> str:
        return address(request, "lifecycle_page", definition=definition, **{**wanted, **changes})

    return page(
        request,
        ask,
        "lifecycle.html",
        current="lifecycles_page",
        wanted=wanted,
        graph=graph,
        versions=versions,
        picture=await _picture(lifecycles, graph),
        instances=instances,
        flags_of=words_of,
        more=with_(cursor=instances.next_cursor) if instances.next_cursor else None,
        first=with_(cursor=None) if wanted.get("cursor") else None,
        live=address(request, "lifecycle_live", definition=definition, version=version),
    )


@ROUTES.get("/dashboard/lifecycles/{definition}/live", role="read", include_in_schema=False)
async def lifecycle_live(request: Request, ask: Ask, definition: int) -> Response:
    """The diagram with its counts, as they change."""
    lifecycles, version = ask.penstock.lifecycles, text_of(request.query_params, "version")
    graph = await lifecycles.graph(definition, version=version)

    async def render(scene: Scene) -> Update:
        picture = await _picture(lifecycles, graph)
        return Update({"diagram": part(request, "lifecycle_diagram.html", picture=picture)})

    key = ("lifecycle", ask.principal.tenant, graph.version.id)
    return event_stream(request, ask.principal, live_of(request).stream(key, render))


async def _picture(lifecycles: Lifecycles, graph: Graph) -> str:
    counts: dict[str, int] = {state.name: 0 for state in graph.states}
    of = graph.version
    for count in await lifecycles.counts(definition=of.definition.id, version=of.number):
        counts[count.state] = counts.get(count.state, 0) + count.instances
    return machine_picture(graph.machine(), counts=counts, errors=_errors(graph))


def _errors(graph: Graph) -> set[str]:
    return {state.name for state in graph.states if StateFlag.ERROR in state.flags}


@ROUTES.get("/dashboard/instances/{guid}", role="read", include_in_schema=False)
async def instance_page(request: Request, ask: Ask, guid: str) -> Response:
    """One instance: where it is, how it came there, and where it can go."""
    lifecycles = ask.penstock.lifecycles
    instance = await lifecycles.get(guid)
    entries = await lifecycles.log(instance.guid, newest_first=True, limit=LOG)
    graph = await lifecycles.graph(instance.definition_id, version=instance.version)
    is_blocked = bool(instance.flags & BLOCKING)
    return page(
        request,
        ask,
        "instance.html",
        current="lifecycles_page",
        instance=instance,
        graph=graph,
        entries=entries.items,
        has_more=entries.next_cursor is not None,
        flags_of=words_of,
        available=[] if is_blocked else await lifecycles.available_events(instance.guid, actor=ask.name),
        is_blocked=is_blocked,
        actions=_possible(instance.flags),
        picture=machine_picture(graph.machine(), errors=_errors(graph), here=instance.state),
    )


def _possible(flags: InstanceFlag) -> list[str]:
    """The actions that would change something."""
    terminal = InstanceFlag.COMPLETED | InstanceFlag.FAILED
    possible = {
        "suspend": not flags & BLOCKING,
        "resume": InstanceFlag.SUSPENDED in flags,
        "complete": not flags & terminal,
        "fail": not flags & terminal,
        "archive": InstanceFlag.ARCHIVED not in flags,
        "reopen": bool(flags & terminal),
    }
    return [name for name, is_possible in possible.items() if is_possible]


@ROUTES.post("/dashboard/instances/{guid}/trigger", role="operate", include_in_schema=False)
async def instance_trigger(request: Request, ask: Ask, guid: str) -> Response:
    """Move an instance by an event."""
    form = await request.form()
    event = text_of(form, "event")
    if event is None:
        raise InvalidInput("name the event")
    outcome = await ask.penstock.lifecycles.trigger(guid, event, actor=ask.name, cause=text_of(form, "cause"))
    if not outcome.applied:
        return back_to(request, "instance_page", str(outcome), tone="bad", guid=guid)
    return back_to(request, "instance_page", f"{event}: {outcome.source} → {outcome.target}", guid=guid)


@ROUTES.post("/dashboard/instances/{guid}/{action}", role="operate", include_in_schema=False)
async def instance_action(request: Request, ask: Ask, guid: str, action: str) -> Response:
    """Suspend, resume, complete, fail, archive or reopen an instance."""
    if action not in ACTIONS:
        raise InvalidInput(f"an instance has these actions: {', '.join(ACTIONS)}; found {action!r:.40}")
    cause = text_of(await request.form(), "cause")
    await getattr(ask.penstock.lifecycles, action)(guid, actor=ask.name, cause=cause)
    return back_to(request, "instance_page", f"Done: {action}.", guid=guid)
