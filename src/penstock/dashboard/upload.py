"""The upload: pick an operation, give a file and its metadata, look at what is wrong with them, start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.responses import Response

from penstock.api.guard import Ask, Caller
from penstock.api.routing import RouteTable
from penstock.dashboard.drafts import Draft, Drafts
from penstock.dashboard.forms import PREFIX, FormField, fields_for, filled_in
from penstock.dashboard.pages import back_to, page, text_of
from penstock.errors import Fault, FileRejected, InvalidInput, MetadataInvalid
from penstock.operations.model import FileCheck, RowError
from penstock.pipeline import Definition

__all__ = ["ROUTES"]

ROUTES = RouteTable("dashboard")
ERRORS = 100
SAMPLE_COLUMNS = 12


@ROUTES.get("/dashboard/upload", role="operate", include_in_schema=False)
async def upload_page(request: Request, ask: Ask) -> Response:
    """Which operation?"""
    known = list(ask.penstock.definitions.values())
    return page(
        request,
        ask,
        "upload.html",
        current="upload_page",
        definitions=sorted(known, key=lambda each: each.name.casefold()),
        columns={each.name: _columns(each) for each in known},
    )


@ROUTES.get("/dashboard/upload/{name}", role="operate", include_in_schema=False)
async def upload_form(request: Request, ask: Ask, name: str) -> Response:
    """Which file, and which metadata?"""
    return _form(request, ask, ask.penstock.operations.definition(name))


@ROUTES.post("/dashboard/upload/{name}", role="operate", is_upload=True, include_in_schema=False)
async def upload_file(request: Request, ask: Ask, name: str) -> Response:
    """Check the file, or start."""
    definition = ask.penstock.operations.definition(name)
    async with request.form(max_files=1) as form:
        draft = await _draft(request, ask, form)
        fields = fields_for(definition.meta)
        given = {field.id: str(form.get(field.id, "")) for field in fields}
        is_start = form.get("do") == "start"
    metadata, faults = filled_in(fields, given | (_secrets(draft, fields, given) if draft is not None else {}))
    if draft is None:
        return _form(request, ask, definition, given=given, faults=[Fault("choose a file", "file"), *faults])
    if faults:
        return _form(request, ask, definition, given=given, faults=faults, draft=draft)
    service = ask.penstock.operations
    if not is_start:
        with draft.open() as file:
            check = await service.validate(
                definition, file=file, file_name=draft.name, metadata=metadata, limit_errors=ERRORS, data=True
            )
        return _form(request, ask, definition, given=given, faults=check.metadata_faults, draft=draft, check=check)
    try:
        with draft.open() as file:
            made = await service.create(
                definition, file=file, file_name=draft.name, metadata=metadata, created_by=ask.name
            )
    except (MetadataInvalid, FileRejected) as error:
        wrong = error.faults or (Fault(str(error), "file" if isinstance(error, FileRejected) else None),)
        return _form(request, ask, definition, given=given, faults=wrong, draft=draft)
    _drafts(request).drop(draft.token)
    return back_to(request, "operation_page", "Started.", operation=made.id)


def _drafts(request: Request) -> Drafts:
    state = request.app.state
    if not hasattr(state, "drafts"):
        state.drafts = Drafts(state.penstock.clock, state.penstock.entropy)
    found: Drafts = state.drafts
    return found


async def _draft(request: Request, ask: Caller, form: Mapping[str, Any]) -> Draft | None:
    """The file that was sent now, or checked before."""
    sent, token = form.get("file"), text_of(form, "draft")
    found = None if token is None else _drafts(request).find(ask.principal, token)
    if isinstance(sent, UploadFile) and sent.filename:
        return await _drafts(request).keep(ask.principal, sent.filename, sent.file, found)
    if found is None and token is not None:
        raise InvalidInput("the file that was checked is not kept any more: go back and choose it again")
    return found


def _secrets(draft: Draft, fields: list[FormField], given: Mapping[str, str]) -> dict[str, str]:
    """The secrets of a draft, with those that are given now. A page never repeats them, so it comes back without."""
    draft.secrets.update({each.id: given[each.id] for each in fields if each.kind == "password" and given[each.id]})
    return draft.secrets


def _form(
    request: Request,
    ask: Caller,
    definition: Definition,
    *,
    given: Mapping[str, str] | None = None,
    faults: Any = (),
    draft: Draft | None = None,
    check: FileCheck | None = None,
) -> Response:
    fields = fields_for(definition.meta)
    by_field = {fault.field: fault.message for fault in faults if fault.field}
    named = {"file", *(field.name for field in fields)}
    is_wrong = bool(faults) or (check is not None and not check.is_valid)
    return page(
        request,
        ask,
        "upload_form.html",
        status=422 if faults else 200,
        current="upload_page",
        definition=definition,
        fields=fields,
        values=_values(fields, given),
        by_field=by_field,
        other_faults=[fault for fault in faults if fault.field not in named],
        columns=_columns(definition),
        draft=draft,
        check=check,
        grid=_grid(check.errors) if check is not None else (),
        is_wrong=is_wrong,
        stage=1 if check is None else 2,
    )


def _values(fields: list[FormField], given: Mapping[str, str] | None) -> dict[str, str]:
    """What each field shows: what was filled in, else its default; a secret is never repeated."""
    if given is None:
        return {field.id: field.default for field in fields}
    return {field.id: "" if field.kind == "password" else given.get(PREFIX + field.name, "") for field in fields}


def _columns(definition: Definition) -> list[tuple[str, bool]]:
    """The columns that a file may have, and whether each must be there."""
    return [(field.inputs[0] if field.inputs else field.name, field.is_required) for field in definition.row.fields]


def _grid(errors: tuple[RowError, ...]) -> tuple[list[str], list[tuple[RowError, list[tuple[str, Any, str]], str]]]:
    """The wrong rows as a grid: its columns, and per row its cells with what is wrong with each, and with the whole."""
    names = list(
        dict.fromkeys(
            name
            for error in errors
            for name in (
                *(fault.field for fault in error.faults if fault.field),
                *(error.data if isinstance(error.data, dict) else ()),
            )
        )
    )
    wrong_first = list(dict.fromkeys(fault.field for error in errors for fault in error.faults if fault.field))
    shown = [*wrong_first, *(name for name in names if name not in wrong_first)][:SAMPLE_COLUMNS]
    lines = []
    for error in errors:
        data = error.data if isinstance(error.data, dict) else {}
        why = {name: "; ".join(f.message for f in error.faults if f.field == name) for name in shown}
        rest = [str(fault) for fault in error.faults if fault.field not in shown]
        whole = "; ".join(rest) if error.faults else error.message
        lines.append((error, [(name, data.get(name), why[name]) for name in shown], whole))
    return shown, lines
