"""`penstock ops`: show operations, rows and errors. Needs no code of the application.

What changes operations is in `control`, what follows them in `watch`, what they wait for in `waits`.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import control, erase, export, prune, waits, watch
from penstock.cli.inputs import InputFile, Meta, MetaFile, OperationName, Set, existing_file, metadata, overrides
from penstock.cli.options import App, Cursor, Db, Json, Limit, OperationId, OperationIdOrAll, Url, command, group
from penstock.cli.pages import answer_page
from penstock.cli.session import Place, about, ask, leaving_no_database, reached

if TYPE_CHECKING:
    from penstock.engine import Penstock
    from penstock.operations.model import ErrorGroup, FileCheck, Operation

__all__ = ["add_to"]

State = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help="Only rows in this state, such as Failed; can be repeated."),
]
Step = Annotated[str | None, typer.Option("--step", metavar="STEP", help="Only this step (name or index).")]
ErrorType = Annotated[
    str | None, typer.Option("--type", metavar="TYPE", help="Only errors of this type, such as Validation.")
]
Key = Annotated[str | None, typer.Option("--row-key", metavar="KEY", help="Only rows with this key.")]
First = Annotated[int | None, typer.Option("--first", min=1, metavar="N", help="Only rows from this number on.")]
Last = Annotated[int | None, typer.Option("--last", min=1, metavar="N", help="Only rows up to this number.")]
Row = Annotated[int | None, typer.Option("--row", min=1, metavar="N", help="Only this row.")]
Data = Annotated[bool, typer.Option("--data", help="Also show the rows' data.")]


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    ops = group(app, "ops", summary="Show and control operations.", example="ops list --status Failed")
    command(ops, "list", list_, example="ops list --status CompletedWithErrors --limit 5")
    command(ops, "show", show, example="ops show 0199a3c2-1b2f --row 17")
    command(ops, "rows", rows, example="ops rows 0199a3c2-1b2f --state Failed --data")
    command(ops, "errors", errors, example="ops errors 0199a3c2-1b2f --type Validation --limit 20")
    command(ops, "history", history, example="ops history 0199a3c2-1b2f --row 17")
    command(ops, "events", events, example="ops events 0199a3c2-1b2f")
    command(ops, "validate", validate, example="ops validate price-update prices.csv --app shop.py")
    waits.add_to_ops(ops)
    watch.add_to(ops)
    export.add_to(ops)
    control.add_to(ops)
    prune.add_to(ops)
    erase.add_to(ops)


def list_(
    *,
    name: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help="Only operations whose name contains this text.")
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="STATUS", help="Only operations in this state; can be repeated."),
    ] = None,
    created_by: Annotated[
        str | None,
        typer.Option("--created-by", metavar="TEXT", help="Only operations whose creator contains this text."),
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option("--since", metavar="TIME", help="Only operations created at or after this time (UTC)."),
    ] = None,
    until: Annotated[
        datetime | None, typer.Option("--until", metavar="TIME", help="Only operations created before this time (UTC).")
    ] = None,
    sort: Annotated[
        str, typer.Option("--sort", metavar="FIELD", help="Sort by created_at, name, status or total_rows.")
    ] = "created_at",
    ascending: Annotated[bool, typer.Option("--ascending", help="Sort upwards: oldest, smallest or A first.")] = False,
    limit: Limit = 20,
    cursor: Cursor = None,
    db: Db = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List operations, newest first."""
    from penstock import resources
    from penstock.cli import views

    answer_page(
        Place(db, url=url),
        lambda penstock, part: penstock.operations.list(
            name=name,
            status=status,
            created_by=created_by,
            created_from=_utc(since),
            created_to=_utc(until),
            sort=sort,
            descending=not ascending,
            cursor=part.cursor,
            limit=part.limit,
        ),
        resources.operation,
        views.operations,
        cursor=cursor,
        limit=limit,
        noun="operation",
        as_json=as_json,
    )


def show(
    operation: OperationId,
    *,
    row: Annotated[int | None, typer.Option("--row", min=1, metavar="N", help="Show this row and its steps.")] = None,
    db: Db = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show one operation, or one of its rows with all steps."""
    from penstock import resources
    from penstock.cli import views
    from penstock.cli.screen import Screen

    screen = Screen(as_json=as_json)
    if row is not None:
        found = ask(Place(db, url=url), about(operation, lambda penstock, id: penstock.operations.row(id, row)))
        screen.answer(lambda: resources.row(found), lambda: [views.row(found)])
        return
    whole = ask(Place(db, url=url), about(operation, lambda penstock, id: penstock.operations.get(id)))
    screen.answer(lambda: resources.operation(whole), lambda: [views.operation(whole)])


def rows(
    operation: OperationId,
    *,
    state: State = None,
    step: Step = None,
    error_type: ErrorType = None,
    row_key: Key = None,
    first: First = None,
    last: Last = None,
    data: Data = False,
    limit: Limit = 20,
    cursor: Cursor = None,
    db: Db = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List rows in file order."""
    from penstock import resources
    from penstock.cli import views

    answer_page(
        Place(db, url=url),
        lambda penstock, part: penstock.operations.rows(
            part.operation,
            state=state,
            step=step,
            error_type=error_type,
            row_key=row_key,
            first=first,
            last=last,
            data=data,
            cursor=part.cursor,
            limit=part.limit,
        ),
        resources.row,
        views.rows,
        operation=operation,
        cursor=cursor,
        limit=limit,
        noun="row",
        as_json=as_json,
    )


def errors(
    operation: OperationId,
    *,
    groups: Annotated[bool, typer.Option("--groups", help="Count errors by kind instead of listing them.")] = False,
    row: Row = None,
    row_key: Key = None,
    error_type: ErrorType = None,
    step: Step = None,
    first: First = None,
    last: Last = None,
    data: Data = False,
    limit: Limit = 20,
    cursor: Cursor = None,
    db: Db = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List the errors of rows in file order."""
    from penstock import resources
    from penstock.cli import views

    if groups:
        _answer_groups(Place(db, url=url), operation, limit=limit, as_json=as_json)
        return
    answer_page(
        Place(db, url=url),
        lambda penstock, part: penstock.operations.errors(
            part.operation,
            row=row,
            row_key=row_key,
            error_type=error_type,
            step=step,
            first=first,
            last=last,
            data=data,
            cursor=part.cursor,
            limit=part.limit,
        ),
        resources.error,
        views.errors,
        operation=operation,
        cursor=cursor,
        limit=limit,
        noun="error",
        as_json=as_json,
    )


def _answer_groups(place: Place, operation: str, *, limit: int, as_json: bool) -> None:
    from penstock import resources
    from penstock.cli import views
    from penstock.cli.problems import WrongUsage
    from penstock.cli.screen import Screen

    most = place.settings().page_max
    if limit > most:
        raise WrongUsage(f"--limit with --groups is {most} at most (setting page_max); found {limit}")

    async def look(penstock: Penstock, id: str) -> tuple[Operation, list[ErrorGroup]]:
        return await penstock.operations.get(id), await penstock.operations.error_groups(id, limit=limit)

    whole, found = ask(place, about(operation, look))
    Screen(as_json=as_json).answer(
        lambda: resources.listing(found, resources.error_group),
        lambda: [
            views.error_groups(found) if found else views.nothing("error"),
            *views.more_groups(whole, found, "add a larger --limit"),
        ],
    )


def history(
    operation: OperationId,
    *,
    row: Row = None,
    step: Step = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    db: Db = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List earlier events of rows: failed attempts, retries, edits, lost workers."""
    from penstock import resources
    from penstock.cli import views

    answer_page(
        Place(db, url=url),
        lambda penstock, part: penstock.operations.history(
            part.operation, row=row, step=step, cursor=part.cursor, limit=part.limit
        ),
        resources.history_entry,
        views.history,
        operation=operation,
        cursor=cursor,
        limit=limit,
        noun="line",
        as_json=as_json,
    )


def events(
    operation: OperationIdOrAll = None,
    *,
    limit: Limit = 20,
    cursor: Cursor = None,
    db: Db = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List state changes of operations, oldest first."""
    from penstock import resources
    from penstock.cli import views

    answer_page(
        Place(db, url=url),
        lambda penstock, part: penstock.operations.events_page(
            part.operation or None, cursor=part.cursor, limit=part.limit
        ),
        resources.event,
        views.events,
        operation=operation,
        cursor=cursor,
        limit=limit,
        noun="event",
        as_json=as_json,
    )


def validate(
    operation: OperationName,
    file: InputFile,
    *,
    meta: Meta = None,
    meta_file: MetaFile = None,
    options: Set = None,
    limit: Limit = 20,
    db: Db = None,
    url: Url = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Check metadata, header and all rows of a file without running or storing anything.

    Exits with 0 when everything is valid, with 1 when not.
    """
    from penstock import resources
    from penstock.cli import views
    from penstock.cli.screen import Screen

    place = Place(db, app, url)
    path, definitions = existing_file(file), place.definitions_for(operation)
    given, changed = metadata(meta, meta_file, definitions), overrides(options)

    async def look(at: Place) -> FileCheck:
        async with reached(at, definitions=definitions, makes=True) as penstock:
            return await penstock.operations.validate(
                operation, file=path, metadata=given, options=changed or None, limit_errors=limit
            )

    with leaving_no_database(place) as at:
        found = asyncio.run(look(at))
    Screen(as_json=as_json).answer(lambda: resources.file_check(found), lambda: views.file_check(found))
    raise typer.Exit(0 if found.is_valid else 1)


def _utc(given: datetime | None) -> datetime | None:
    return None if given is None else given.replace(tzinfo=UTC)
