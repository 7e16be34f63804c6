"""Rows that wait for a word from outside: approve or decline one, or many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Request
from starlette.responses import Response

from penstock.api.guard import Ask, Caller
from penstock.api.problems import problem
from penstock.api.routing import RouteTable
from penstock.dashboard.forms import json_of
from penstock.dashboard.pages import address, back_to, page, text_of
from penstock.errors import InvalidInput, PenstockError
from penstock.operations.signals import Wait
from penstock.printable import counted

__all__ = ["ROUTES"]

ROUTES = RouteTable("dashboard")
PAGE = 100


@ROUTES.get("/dashboard/waits", role="read", include_in_schema=False)
async def waits_page(request: Request, ask: Ask) -> Response:
    """Every row that waits for a signal, of one operation or of all."""
    wanted = dict(request.query_params)
    operation = text_of(wanted, "operation")
    id = None if operation is None else (await ask.penstock.operations.get(operation)).id
    found = await ask.penstock.signals.waiting(
        id, key=text_of(wanted, "key"), after=text_of(wanted, "after") or 0, limit=PAGE + 1
    )
    shown = await _named(ask, found[:PAGE])
    more = address(request, "waits_page", **{**wanted, "after": found[PAGE - 1].cursor}) if len(found) > PAGE else None
    return page(
        request,
        ask,
        "waits.html",
        current="waits_page",
        wanted=wanted,
        waits=shown,
        more=more,
        first=address(request, "waits_page", **{**wanted, "after": None}) if wanted.get("after") else None,
    )


@ROUTES.post("/dashboard/waits", role="operate", include_in_schema=False)
async def waits_answer(request: Request, ask: Ask) -> Response:
    """Approve or decline the waits that were chosen."""
    form = await request.form()
    asked = text_of(form, "operation")
    operation = None if asked is None else (await ask.penstock.operations.get(asked)).id

    def back(said: str, *, tone: str) -> Response:
        """To the page that the answer was given on."""
        row = text_of(form, "row")
        if row and row.isdecimal() and operation:
            return back_to(request, "row_page", said, tone=tone, operation=operation, row=row)
        return back_to(request, "waits_page", said, tone=tone, operation=operation, key=text_of(form, "key"))

    chosen = [str(each) for each in form.getlist("wait")]
    is_yes, reason = form.get("do") == "approve", text_of(form, "reason")
    if not chosen:
        return back("Choose at least one wait.", tone="warn")
    if not is_yes and reason is None:
        return back("Give a reason: it becomes the error of the rows you decline.", tone="warn")
    payloads = _payloads(ask, text_of(form, "payload"), reason)
    done, failures = 0, []
    for each in chosen:
        waiting, _, rest = each.partition(":")
        try:
            id = (await ask.penstock.operations.get(waiting)).id
            if is_yes:
                await _approve(ask, id, f"{id}:{rest}", payloads)
            else:
                await ask.penstock.signals.fail(id, f"{id}:{rest}", reason or "", actor=ask.name)
            done += 1
        except PenstockError as error:
            failures.append(problem(error)["detail"])
    said = f"{counted(done, 'row')} {'approved' if is_yes else 'declined'}."
    if failures:
        said += f" {len(failures)} could not be: {failures[0]}"
    return back(said, tone="bad" if failures else "ok")


def _payloads(ask: Caller, given: str | None, reason: str | None) -> list[Any]:
    """What the step gets: the JSON that was given, else who said yes and why, or nothing where that does not fit."""
    if given is None:
        return [{"by": ask.name, **({"reason": reason} if reason else {})}, None]
    try:
        return [json_of(given)]
    except ValueError as error:
        raise InvalidInput(f"the payload is no JSON: {error}") from None


async def _approve(ask: Caller, id: str, key: str, payloads: list[Any]) -> None:
    for payload in payloads[:-1]:
        try:
            await ask.penstock.signals.complete(id, key, payload=payload, actor=ask.name)
            return
        except InvalidInput:  # the step takes another payload
            continue
    await ask.penstock.signals.complete(id, key, payload=payloads[-1], actor=ask.name)


async def _named(ask: Caller, found: Sequence[Wait]) -> list[tuple[Wait, str]]:
    """The waits, each with the name of its operation."""
    names: dict[str, str] = {}
    for wait in found:
        if wait.operation_id not in names:
            names[wait.operation_id] = (await ask.penstock.operations.get(wait.operation_id)).name
    return [(wait, names[wait.operation_id]) for wait in found]
