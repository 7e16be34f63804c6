"""`penstock ops`: looking at operations, their rows and their errors. Needs no code of the application.

What changes operations is in `control`, what follows them in `watch`, what they wait for in `waits`.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import control, purge, waits, watch
from penstock.cli.inputs import Meta, MetaFile, Set, existing_file, metadata, overrides
from penstock.cli.options import App, Cursor, Db, Json, Limit, OperationId, command, group
from penstock.cli.pages import answer_page
from penstock.cli.session import Place, ask, opened

if TYPE_CHECKING:
    from penstock.engine import Penstock
    from penstock.operations.model import FileCheck, Page

__all__ = ["add_to"]

State = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help="Only rows in this state, such as Failed; repeatable."),
]
Step = Annotated[str | None, typer.Option("--step", metavar="STEP", help="Only this step, by name or index.")]
ErrorType = Annotated[
    str | None, typer.Option("--type", metavar="TYPE", help="Only errors of this type, such as Validation.")
]
Key = Annotated[str | None, typer.Option("--row-key", metavar="KEY", help="Only rows with this key.")]
First = Annotated[int | None, typer.Option("--first", min=1, metavar="N", help="Only from this row on.")]
Last = Annotated[int | None, typer.Option("--last", min=1, metavar="N", help="Only up to this row.")]
Row = Annotated[int | None, typer.Option("--row", min=1, metavar="N", help="Only this row.")]
Data = Annotated[bool, typer.Option("--data", help="With the rows' data.")]


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    ops = group(app, "ops", summary="Look at operations and steer them.", example="ops list --status Failed")
    command(ops, "list", list_, example="ops list --status CompletedWithErrors --limit 5")
    command(ops, "show", show, example="ops show 0199a3c2-1b2f --row 17")
    command(ops, "rows", rows, example="ops rows 0199a3c2-1b2f --state Failed --data")
    command(ops, "errors", errors, example="ops errors 0199a3c2-1b2f --type Validation --limit 20")
    command(ops, "history", history, example="ops history 0199a3c2-1b2f --row 17")
    command(ops, "events", events, example="ops events 0199a3c2-1b2f")
    command(ops, "validate", validate, example="ops validate price-update prices.csv --app shop.py")
    waits.add_to_ops(ops)
    watch.add_to(ops)
    control.add_to(ops)
    purge.add_to(ops)


def list_(
    *,
    name: Annotated[str | None, typer.Option("--name", metavar="TEXT", help="Only names that contain this.")] = None,
    status: Annotated[
        list[str] | None, typer.Option("--status", metavar="STATUS", help="Only in this state; repeatable.")
    ] = None,
    created_by: Annotated[
        str | None, typer.Option("--created-by", metavar="TEXT", help="Only creators that contain this.")
    ] = None,
    since: Annotated[
        datetime | None, typer.Option("--since", metavar="TIME", help="Only created at or after this time (UTC).")
    ] = None,
    until: Annotated[
        datetime | None, typer.Option("--until", metavar="TIME", help="Only created before this time (UTC).")
    ] = None,
    sort: Annotated[
        str, typer.Option("--sort", metavar="FIELD", help="created_at, name, status or total_rows.")
    ] = "created_at",
    ascending: Annotated[bool, typer.Option("--ascending", help="Smallest or oldest first.")] = False,
    limit: Limit = 20,
    cursor: Cursor = None,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """List operations, newest first."""
    from penstock import resources
    from penstock.cli import views

    answer_page(
        Place(db),
        lambda penstock: penstock.operations.list(
            name=name,
            status=status,
            created_by=created_by,
            created_from=_utc(since),
            created_to=_utc(until),
            sort=sort,
            descending=not ascending,
            cursor=cursor,
            limit=limit,
        ),
        resources.operation,
        views.operations,
        noun="operation",
        as_json=as_json,
    )


def show(
    operation: OperationId,
    *,
    row: Annotated[int | None, typer.Option("--row", min=1, metavar="N", help="One row and its way so far.")] = None,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Show one operation, or one row of it with its way through the steps."""
    from penstock import resources
    from penstock.cli import views
    from penstock.cli.screen import Screen

    screen = Screen(as_json=as_json)
    if row is not None:
        found = ask(Place(db), lambda penstock: penstock.operations.row(operation, row))
        screen.answer(lambda: resources.row(found), lambda: [views.row(found)])
        return
    whole = ask(Place(db), lambda penstock: penstock.operations.get(operation))
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
    as_json: Json = False,
) -> None:
    """List rows in the order of the file."""
    from penstock import resources
    from penstock.cli import views

    answer_page(
        Place(db),
        lambda penstock: penstock.operations.rows(
            operation,
            state=state,
            step=step,
            error_type=error_type,
            row_key=row_key,
            first=first,
            last=last,
            data=data,
            cursor=cursor,
            limit=limit,
        ),
        resources.row,
        views.rows,
        noun="row",
        as_json=as_json,
    )


def errors(
    operation: OperationId,
    *,
    groups: Annotated[bool, typer.Option("--groups", help="Count errors of one kind instead of listing them.")] = False,
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
    as_json: Json = False,
) -> None:
    """List what is wrong with rows, in the order of the file."""
    from penstock import resources
    from penstock.cli import views
    from penstock.cli.screen import Screen

    if groups:
        found = ask(Place(db), lambda penstock: penstock.operations.error_groups(operation, limit=limit))
        screen = Screen(as_json=as_json)
        screen.answer(
            lambda: resources.listing(found, resources.error_group),
            lambda: [views.error_groups(found) if found else views.nothing("error")],
        )
        return
    answer_page(
        Place(db),
        lambda penstock: penstock.operations.errors(
            operation,
            row=row,
            row_key=row_key,
            error_type=error_type,
            step=step,
            first=first,
            last=last,
            data=data,
            cursor=cursor,
            limit=limit,
        ),
        resources.error,
        views.errors,
        noun="error",
        as_json=as_json,
    )


def history(
    operation: OperationId,
    *,
    row: Row = None,
    step: Step = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """List what happened to rows before: attempts that were tried again, resets, lost workers."""
    from penstock import resources
    from penstock.cli import views

    answer_page(
        Place(db),
        lambda penstock: penstock.operations.history(operation, row=row, step=step, cursor=cursor, limit=limit),
        resources.history_entry,
        views.history,
        noun="line",
        as_json=as_json,
    )


def events(
    operation: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="The operation's id or its beginning; all operations if left out."),
    ] = None,
    *,
    limit: Limit = 20,
    cursor: Cursor = None,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """List the moves of an operation from state to state, oldest first."""
    from penstock import resources
    from penstock.cli import views
    from penstock.cli.problems import WrongUsage
    from penstock.operations.model import Page

    if cursor is not None and not cursor.isdigit():
        raise WrongUsage(f"{cursor!r} is not a cursor of this list")

    async def moves(penstock: Penstock) -> Page[Any]:
        exact = None if operation is None else (await penstock.operations.get(operation)).id
        found = await penstock.operations.events(exact, since=int(cursor or 0), limit=limit + 1)
        return Page(found[:limit], str(found[limit - 1].sequence) if len(found) > limit else None)

    answer_page(Place(db), moves, resources.event, views.events, noun="event", as_json=as_json)


def validate(
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="The operation's name.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to look at.")],
    *,
    meta: Meta = None,
    meta_file: MetaFile = None,
    options: Set = None,
    limit: Limit = 20,
    db: Db = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Check metadata, header and every row of a file without running or storing anything.

    Exits with 0 when all of it is valid, with 1 when not.
    """
    from penstock import resources
    from penstock.cli import views
    from penstock.cli.screen import Screen

    place = Place(db, app)
    definition, path = place.definition(operation), existing_file(file)
    given, changed = metadata(meta, meta_file), overrides(options)

    async def look() -> FileCheck:
        async with opened(place, definitions=(definition,), makes=True) as penstock:
            return await penstock.operations.validate(
                definition, file=path, metadata=given, options=changed or None, limit_errors=limit
            )

    found = asyncio.run(look())
    Screen(as_json=as_json).answer(lambda: resources.file_check(found), lambda: views.file_check(found))
    raise typer.Exit(0 if found.is_valid else 1)


def _utc(given: datetime | None) -> datetime | None:
    return None if given is None else given.replace(tzinfo=UTC)
