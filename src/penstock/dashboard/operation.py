"""One operation: how far it is, where its rows are, what went wrong, and what can be done about it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import Request
from starlette.responses import Response

from penstock.api.guard import Ask, Caller
from penstock.api.routing import RouteTable
from penstock.api.streaming import event_stream
from penstock.dashboard.charts import flow_picture, throughput_picture
from penstock.dashboard.live import Scene, Update
from penstock.dashboard.operations import live_of
from penstock.dashboard.pages import address, back_to, page, part, text_of
from penstock.errors import InvalidInput
from penstock.operations.model import Event, Operation, Page, RowView
from penstock.operations.pace import Look
from penstock.operations.states import OPERATION
from penstock.operations.views.chunk_view import VALIDATION, VERDICTS
from penstock.operations.views.error_views import ERROR_TYPES
from penstock.printable import counted

__all__ = ["ROUTES"]

ROUTES = RouteTable("dashboard")
ROWS = 25
GROUPS = 12
EVENTS = 200
THROUGHPUT_S = 4.0  # how old its picture may be: chunks are read for it
RETRYABLE = OPERATION.sources("retry_requested")


@dataclass(frozen=True, slots=True)
class Phase:
    """Reading and checking the file, or running its rows: how much is done, how fast, and how long the rest takes."""

    name: str
    state: str  # next, now, over
    done: int
    total: int | None
    rate: float | None = None
    left_s: float | None = None
    took_s: float | None = None


@ROUTES.get("/dashboard/operations/{operation}", role="read", include_in_schema=False)
async def operation_page(request: Request, ask: Ask, operation: str) -> Response:
    """Everything about one operation."""
    wanted = dict(request.query_params)
    service = ask.penstock.operations
    found = await service.get(operation)
    rows = await _rows(ask, found.id, wanted)
    events = await service.events(found.id, limit=EVENTS)
    values = await _values(request, ask, found.id)
    return page(
        request,
        ask,
        "operation.html",
        current="operations_page",
        wanted=wanted,
        rows=rows,
        events=events,
        unclaimed=await ask.penstock.signals.unclaimed(found.id, limit=10) if found.waiting_rows else (),
        states=tuple(VERDICTS.values()),
        step_names=(VALIDATION, *found.steps),
        error_types=ERROR_TYPES,
        next_rows=_with(request, found.id, wanted, cursor=rows.next_cursor) if rows.next_cursor else None,
        first_rows=_with(request, found.id, wanted, cursor=None) if wanted.get("cursor") else None,
        live=address(request, "operation_live", operation=found.id),
        **values,
    )


@ROUTES.get("/dashboard/operations/{operation}/live", role="read", include_in_schema=False)
async def operation_live(request: Request, ask: Ask, operation: str) -> Response:
    """The same, as it changes; it ends when the operation is settled."""
    id = (await ask.penstock.operations.get(operation)).id

    async def render(scene: Scene) -> Update:
        values = await _values(request, ask, id, scene)
        parts = {
            name: part(request, f"operation_{name}.html", **values)
            for name in ("status", "spoken", "progress", "stats", "flow", "throughput", "groups")
        }
        return Update(parts, values["actions"], values["op"].is_settled)

    return event_stream(request, ask.principal, live_of(request).stream(("operation", id), render))


async def _values(request: Request, ask: Caller, id: str, scene: Scene | None = None) -> dict[str, Any]:
    """What the live parts show."""
    scene = scene or live_of(request).scene(("operation", id))
    service = ask.penstock.operations
    op = await service.get(id)
    look = Look.at(op)
    scene.pace.note(look, ask.penstock.clock.monotonic())

    async def throughput() -> str:
        found = await service.throughput(id)
        return "" if found is None or sum(found.rows) < 2 else throughput_picture(found)

    return {
        "op": op,
        "phases": _phases(op, await scene.moves(op.status, lambda: service.events(id, limit=EVENTS)), scene),
        "flow": flow_picture(await service.flow(id)),
        "throughput": await scene.keep("throughput", 0.0 if op.is_settled else THROUGHPUT_S, throughput),
        "groups": await service.error_groups(id, limit=GROUPS) if op.failed_rows else [],
        "actions": actions(op),
    }


def actions(op: Operation) -> list[str]:
    """What can be asked of it now."""
    allowed = OPERATION.allowed(op.status)
    possible = {
        "pause": "paused" in allowed,
        "resume": op.status == "Paused",
        "cancel": "cancel_requested" in allowed or ("cancelled" in allowed and op.status == "Pending"),
        "retry": "retry_requested" in allowed and _has_rows_to_retry(op),
    }
    return [name for name, is_possible in possible.items() if is_possible]


def _has_rows_to_retry(op: Operation) -> bool:
    """Whether its file was read, and a row failed in a step or was cancelled; invalid rows must be corrected."""
    return op.total_rows > 0 and op.failed_rows - op.invalid_rows + op.cancelled_rows > 0


def _phases(op: Operation, events: list[Event], scene: Scene) -> list[Phase]:
    """Both phases; rate and rest only of the one that is under way."""
    at = {event.event: event.at for event in events}
    read_at = at.get("validated")
    is_reading = op.status in ("Pending", "Validating") or (op.status == "Paused" and not op.total_rows)
    look = Look.at(op)
    rate, left_s = scene.pace.rate, scene.pace.left_s(look)
    if op.status == "Running" and rate is None and op.started_at is not None and read_at is not None:
        rate, left_s = _average(op, look, read_at, scene)
    reading = Phase(
        "Validating",
        "now" if is_reading else "over",
        op.rows_read,
        op.total_rows or None,
        rate=rate if is_reading else None,
        took_s=_seconds(at.get("picked_up"), read_at),
    )
    running = Phase(
        "Running",
        "next" if is_reading else "over" if op.is_settled else "now",
        op.processed_rows,
        op.total_rows or None,
        rate=None if is_reading or op.is_settled else rate,
        left_s=None if is_reading or op.is_settled else left_s,
        took_s=_seconds(read_at, op.finished_at),
    )
    return [reading, running]


def _average(op: Operation, look: Look, since: datetime, scene: Scene) -> tuple[float | None, float | None]:
    """The rate since the rows began to run, for who looks for the first time."""
    seconds = scene.clock.now_us() / 1e6 - since.timestamp()
    if op.retry_count or seconds <= 0 or not look.done or look.total is None:
        return None, None
    rate = look.done / seconds
    return rate, max(0, look.total - look.done - look.waiting) / rate


def _seconds(began: datetime | None, ended: datetime | None) -> float | None:
    return None if began is None or ended is None else max(0.0, (ended - began).total_seconds())


async def _rows(ask: Caller, id: str, wanted: dict[str, str]) -> Page[RowView]:
    return await ask.penstock.operations.rows(
        id,
        state=text_of(wanted, "state"),
        step=text_of(wanted, "step"),
        error_type=text_of(wanted, "error"),
        row_key=text_of(wanted, "key"),
        first=_row_number(wanted, "from"),
        last=_row_number(wanted, "to"),
        cursor=text_of(wanted, "cursor"),
        limit=ROWS,
    )


def _row_number(wanted: dict[str, str], name: str) -> int | None:
    text = text_of(wanted, name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise InvalidInput(f"{name} takes the number of a row; found {text!r:.40}")
    return int(text)


def _with(request: Request, id: str, wanted: dict[str, str], **changes: str | None) -> str:
    return address(request, "operation_page", operation=id, **{**wanted, **changes}) + "#rows"


# --- what can be done


@ROUTES.post("/dashboard/operations/{operation}/{action}", role="operate", include_in_schema=False)
async def operation_action(request: Request, ask: Ask, operation: str, action: str) -> Response:
    """Pause, resume, cancel, or run failed rows again."""
    id = (await ask.penstock.operations.get(operation)).id
    form = await request.form()
    service, cause = ask.penstock.operations, text_of(form, "cause")
    match action:
        case "pause":
            await service.pause(id, cause=cause, actor=ask.name)
            said = "Paused: rows that run end, and none begins until you resume."
        case "resume":
            await service.resume(id, cause=cause, actor=ask.name)
            said = "Resumed."
        case "cancel":
            await service.cancel(id, cause=cause, actor=ask.name)
            said = "Cancelled: no row begins any more."
        case "retry":
            retry = await service.retry(
                id,
                rows=[int(number) for number in form.getlist("row") if isinstance(number, str) and number.isdecimal()]
                if "selected" in form
                else None,
                confirm_doubt="confirm_doubt" in form,
                actor=ask.name,
            )
            said = f"{counted(retry.submitted, 'row')} will run again."
            if retry.skipped:
                reasons = "; ".join(f"row {row}: {why}" for row, why in list(retry.reasons.items())[:3])
                said += f" {counted(retry.skipped, 'row')} left out ({reasons})."
        case _:
            raise InvalidInput(f"an operation can be paused, resumed, cancelled or retried; found {action!r:.40}")
    return back_to(request, "operation_page", said, operation=id)
