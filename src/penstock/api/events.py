"""What happened: the moves of operations, as a list to follow and as a live stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

import msgspec
from fastapi import Header, Query, Request, Response

from penstock import resources
from penstock.api.answers import JsonResponse
from penstock.api.described import problems
from penstock.api.guard import Ask
from penstock.api.routing import RouteTable
from penstock.api.schemas import ROW_MAX, EventShape
from penstock.api.streaming import event_stream
from penstock.api.watching import Sighting, Watchers
from penstock.operations.model import Event
from penstock.resources import Document

__all__ = ["ROUTES", "event_document"]

ROUTES = RouteTable("events")

LIMIT_MAX = 500
RECONNECT_MS = 2000
_STREAM = {200: {"description": "Server-sent events.", "content": {"text/event-stream": {}}}}

Since = Annotated[
    int | None,
    Query(ge=0, le=ROW_MAX, description="Only moves behind this sequence number; without it, the newest ones."),
]
Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX)]


@ROUTES.get("/api/events", role="read", response_model=list[EventShape], responses=problems(422))
async def list_events(ask: Ask, since: Since = None, limit: Limit = 100) -> Response:
    """Moves of all operations. Go on with the last `sequence` you have: none is missed."""
    return JsonResponse(
        [event_document(event) for event in await ask.penstock.operations.events(since=since, limit=limit)]
    )


@ROUTES.get("/api/bulks/{id}/events", role="read", response_model=list[EventShape], responses=problems(422))
async def list_bulk_events(ask: Ask, id: str, since: Since = None, limit: Limit = 100) -> Response:
    """Moves of one operation."""
    found = await ask.penstock.operations.get(id)
    moves = await ask.penstock.operations.events(found.id, since=since, limit=limit)
    return JsonResponse([event_document(event) for event in moves])


def event_document(found: Event) -> Document:
    """A move, and the same in BulkSharp's names."""
    cause = f": {found.cause}" if found.cause else ""
    return resources.event(found) | {
        "operationName": found.operation_name,
        "type": _TYPES.get(found.target, "StatusChanged") if found.source is not None else "Created",
        "severity": _SEVERITIES.get(found.target, "Info"),
        "message": f"{found.source or 'new'} -> {found.target}{cause}",
        "timestamp": resources.instant(found.at),
    }


_TYPES = {"Completed": "Completed", "CompletedWithErrors": "Completed", "Failed": "Failed"}
_SEVERITIES = {"Failed": "Error", "CompletedWithErrors": "Warning", "Cancelled": "Warning"}


# --- live


@ROUTES.get(
    "/api/bulks/{id}/stream",
    role="read",
    response_class=Response,
    responses=problems(422) | _STREAM | {204: {"description": "It has ended, and the caller has seen all of it."}},
)
async def stream_bulk(
    request: Request,
    ask: Ask,
    id: str,
    last_event_id: Annotated[int | None, Header(ge=0, le=ROW_MAX)] = None,
) -> Response:
    """The progress of an operation until it ends, as server-sent events.

    `move` has a state change, with its sequence number as id; `progress` the operation whenever it has changed; `end`
    is the last. With `Last-Event-ID`, the moves behind it are sent first. A stream that ends without `end` has lasted
    for five minutes: connect again.
    """
    found = await ask.penstock.operations.get(id)
    missed = await ask.penstock.operations.events(found.id, since=last_event_id or 0, limit=LIMIT_MAX)
    if found.is_settled and not missed and last_event_id is not None:
        return Response(status_code=204)
    watchers: Watchers = request.app.state.watchers
    return event_stream(request, ask.principal, _stream(watchers, found.id, missed))


async def _stream(watchers: Watchers, operation: str, missed: list[Event]) -> AsyncGenerator[bytes]:
    last = missed[-1].sequence if missed else 0
    yield f"retry: {RECONNECT_MS}\n\n".encode() + b"".join(map(_move, missed))
    async with aclosing(watchers.watch(operation)) as sightings:
        async for sighting in sightings:
            if sighting is None:
                yield b": still here\n\n"
                continue
            moves = [move for move in sighting.moves if move.sequence > last]
            last = moves[-1].sequence if moves else last
            yield b"".join(map(_move, moves)) + _written(sighting)
            if sighting.operation.is_settled:
                return


def _written(sighting: Sighting) -> bytes:
    progress = _message("progress", resources.operation(sighting.operation))
    return progress + _message("end", {"status": sighting.operation.status}) * sighting.operation.is_settled


def _move(event: Event) -> bytes:
    return f"id: {event.sequence}\n".encode() + _message("move", event_document(event))


def _message(kind: str, document: Document) -> bytes:
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode(document, enc_hook=str) + b"\n\n"
