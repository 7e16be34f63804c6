"""One row: every attempt across generations, its data and outputs; correct it, run it again, or end its wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import Request
from starlette.responses import Response

from penstock.api.guard import Ask, Caller
from penstock.api.routing import RouteTable
from penstock.dashboard.pages import back_to, page
from penstock.dashboard.row_form import changed_fields
from penstock.errors import Fault, RowInvalid
from penstock.operations.model import Change, HistoryEntry, RowView, StepView
from penstock.operations.states import OPERATION

__all__ = ["ROUTES", "Moment", "story"]

ROUTES = RouteTable("dashboard")
HISTORY = 500
CAN_RUN_AGAIN = ("Failed", "TimedOut", "Cancelled", "Invalid")
FIELD = "field."
GENERATION = "generation"


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened to a row."""

    generation: int
    step: str
    state: str
    attempt: int = 0
    at: datetime | None = None
    began: datetime | None = None
    ended: datetime | None = None
    error_type: str | None = None
    message: str | None = None
    faults: Sequence[Fault] = ()
    output: Any = None
    actor: str | None = None
    changes: Sequence[Change] = ()
    signal_key: str | None = None
    deadline: datetime | None = None


_WAS = {"edited": "Corrected", "retried": "Retried", "owner_lost": "Lost with its worker", "postponed": "Put off"}
_BEGINS = ("edited", "retried")  # a generation


def story(row: RowView, history: Sequence[HistoryEntry]) -> list[Moment]:
    """Everything that happened to a row, generation by generation: what began it, then its steps with every attempt.

    A step that was done in an earlier generation is told there.
    """
    told: list[tuple[tuple[int, bool, int, int], Moment]] = []
    begun: dict[int, datetime] = {}
    for entry in history:
        begins = entry.event in _BEGINS
        if entry.error_type or entry.message:
            told.append(((entry.generation, True, entry.step, entry.attempt), _earlier(entry)))
        if begins or (entry.event in _WAS and not entry.message):
            generation = entry.generation + begins
            begun[generation] = entry.asked_at or entry.at
            told.append(((generation, not begins, entry.step, entry.attempt), _turn(entry, generation)))
    for step in row.steps:
        generation = _generation_of(row, step, begun)
        told.append(((generation, True, step.index, step.attempt), _now(row, step, generation)))
    return [moment for _, moment in sorted(told, key=lambda each: each[0])]


def _generation_of(row: RowView, step: StepView, begun: Mapping[int, datetime]) -> int:
    """In which generation a step came to its present state: the last that had begun by then."""
    if step.index == row.step:
        return row.generation
    at = step.started_at or step.ended_at
    return max((generation for generation, since in begun.items() if at is not None and since <= at), default=0)


def _earlier(entry: HistoryEntry) -> Moment:
    return Moment(
        entry.generation,
        entry.step_name,
        "Invalid" if entry.error_type == "Validation" else "Failed",
        entry.attempt,
        entry.at,
        error_type=entry.error_type,
        message=entry.message,
    )


def _turn(entry: HistoryEntry, generation: int) -> Moment:
    return Moment(
        generation,
        entry.step_name,
        _WAS[entry.event],
        at=entry.asked_at or entry.at,
        actor=entry.actor,
        changes=entry.changes,
    )


def _now(row: RowView, step: StepView, generation: int) -> Moment:
    return Moment(
        generation,
        step.name,
        "Invalid" if step.index == -1 and row.state == "Invalid" else step.state,
        step.attempt,
        step.ended_at or step.started_at,
        step.started_at,
        step.ended_at,
        step.error_type,
        step.message,
        step.faults,
        step.output,
        signal_key=step.signal_key,
        deadline=step.deadline,
    )


@ROUTES.get("/dashboard/operations/{operation}/rows/{row}", role="read", include_in_schema=False)
async def row_page(request: Request, ask: Ask, operation: str, row: int) -> Response:
    """Everything about one row."""
    return await _page(request, ask, operation, row)


@ROUTES.post("/dashboard/operations/{operation}/rows/{row}/fix", role="operate", include_in_schema=False)
async def row_fix(request: Request, ask: Ask, operation: str, row: int) -> Response:
    """Correct fields and run the row again."""
    id = (await ask.penstock.operations.get(operation)).id
    form = await request.form()
    given = {key.removeprefix(FIELD): str(value) for key, value in form.items() if key.startswith(FIELD)}
    before = (await ask.penstock.operations.row(id, row)).data
    changes = changed_fields(before if isinstance(before, Mapping) else {}, given)
    seen = str(form.get(GENERATION, ""))
    if not changes:
        return back_to(request, "row_page", "Nothing was changed.", tone="warn", operation=id, row=row)
    try:
        await ask.penstock.operations.edit_row(
            id, row, changes, generation=int(seen) if seen.isdecimal() else None, actor=ask.name
        )
    except RowInvalid as error:
        return await _page(request, ask, id, row, given=given, faults=error.faults)
    return back_to(
        request,
        "row_page",
        "Corrected; the row runs again in a moment: reload the page to see it.",
        operation=id,
        row=row,
    )


@ROUTES.post("/dashboard/operations/{operation}/rows/{row}/retry", role="operate", include_in_schema=False)
async def row_retry(request: Request, ask: Ask, operation: str, row: int) -> Response:
    """Run the row again as it is."""
    id = (await ask.penstock.operations.get(operation)).id
    form = await request.form()
    await ask.penstock.operations.retry(id, rows=[row], confirm_doubt="confirm_doubt" in form, actor=ask.name)
    return back_to(
        request, "row_page", "The row runs again in a moment: reload the page to see it.", operation=id, row=row
    )


async def _page(
    request: Request,
    ask: Caller,
    id: str,
    row: int,
    *,
    given: Mapping[str, str] | None = None,
    faults: Sequence[Fault] = (),
) -> Response:
    service = ask.penstock.operations
    op = await service.get(id)
    id = op.id
    found = await service.row(id, row)
    past = await service.history(id, row=row, limit=HISTORY)
    current = next((step for step in found.steps if step.index == found.step), None)
    can_run_again = found.state in CAN_RUN_AGAIN and (
        "retry_requested" in OPERATION.allowed(op.status) or op.status in ("Running", "Retrying", "Paused")
    )
    wrong = {
        fault.field: fault.message
        for fault in (faults or (current.faults if current is not None and can_run_again else ()))
        if fault.field
    }
    data = found.data if isinstance(found.data, Mapping) else None
    return page(
        request,
        ask,
        "row.html",
        status=422 if faults else 200,
        current="operations_page",
        op=op,
        row=found,
        moments=story(found, past.items),
        data=data,
        raw=None if data is not None else found.data,
        given=given or {},
        wrong=wrong,
        faults=faults,
        current_step=current,
        can_run_again=can_run_again,
        in_doubt=current is not None and current.error_type == "InDoubt",
        before=row - 1 if row > 1 else None,
        after=row + 1 if row < op.rows_read else None,
    )
