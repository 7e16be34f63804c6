"""`penstock ops cancel|pause|resume|retry|migrate|edit`: control operations, whichever process runs them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import App, Cause, Db, Json, OperationId, Url, command
from penstock.cli.problems import WrongUsage
from penstock.cli.session import Place, about, ask, database_of
from penstock.printable import counted, short_id

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.engine import Penstock
    from penstock.operations.model import Operation
    from penstock.operations.retrying import Eligibility, Retry
    from penstock.pipeline import Definition

__all__ = ["add_to", "cancel", "edit", "migrate", "pause", "resume", "retry", "row_numbers"]

ROWS_NAMED_MAX = 100_000
SKIPPED_SHOWN = 20


def add_to(ops: typer.Typer) -> None:
    """Add the commands."""
    command(ops, "cancel", cancel, example="ops cancel 0199a3c2-1b2f --cause 'wrong file'")
    command(ops, "pause", pause, example="ops pause 0199a3c2-1b2f --cause 'the shop is closed'")
    command(ops, "resume", resume, example="ops resume 0199a3c2-1b2f")
    command(ops, "retry", retry, example="ops retry 0199a3c2-1b2f --rows 3,7-9")
    command(ops, "migrate", migrate, example="ops migrate 0199a3c2-1b2f --map notify=notify_customer --app shop.py")
    command(ops, "edit", edit, example="ops edit 0199a3c2-1b2f 17 price=9.90 currency=EUR")
    command(ops, "fix", edit, example="ops fix 0199a3c2-1b2f 17 price=9.90", is_hidden=True)  # its first name


def cancel(
    operation: OperationId, *, cause: Cause = None, db: Db = None, url: Url = None, as_json: Json = False
) -> None:
    """Cancel an operation: no more rows start, and unfinished rows end as Cancelled."""
    _steer(
        Place(db, url=url), operation, lambda penstock, id: penstock.operations.cancel(id, cause=cause), as_json=as_json
    )


def pause(
    operation: OperationId, *, cause: Cause = None, db: Db = None, url: Url = None, as_json: Json = False
) -> None:
    """Pause an operation: running steps finish, no others start until it is resumed; deadlines still count."""
    _steer(
        Place(db, url=url), operation, lambda penstock, id: penstock.operations.pause(id, cause=cause), as_json=as_json
    )


def resume(
    operation: OperationId, *, cause: Cause = None, db: Db = None, url: Url = None, as_json: Json = False
) -> None:
    """Resume a paused operation; a worker continues it."""
    _steer(
        Place(db, url=url), operation, lambda penstock, id: penstock.operations.resume(id, cause=cause), as_json=as_json
    )


def migrate(
    operation: OperationId,
    *,
    renamed: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="OLD=NEW", help="A step and its name in the new code; repeatable."),
    ] = None,
    cause: Cause = None,
    db: Db = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Let an operation go on with changed code: its rows stay at their steps.

    Refused while a worker is at it (pause it first), and where a row would lose a step or run one again.
    """
    place = database_of(db, app)
    steps = dict(map(_renaming, renamed or ()))
    _steer(
        place,
        operation,
        lambda penstock, id: penstock.operations.migrate(id, steps, cause=cause),
        definitions=place.definitions(),
        as_json=as_json,
    )


def _renaming(given: str) -> tuple[str, str]:
    old, equals, new = given.partition("=")
    if not (old and equals and new):
        raise WrongUsage(f"--map takes OLD=NEW, the names of a step before and after; found {given!r}")
    return old, new


def retry(
    operation: OperationId,
    *,
    rows: Annotated[
        str | None,
        typer.Option("--rows", metavar="LIST", help="Only these rows, such as 3,7-9. Default: all failed rows."),
    ] = None,
    confirm_doubt: Annotated[
        bool,
        typer.Option(
            "--confirm-doubt",
            help="Also run rows that are InDoubt: their step may already have taken effect. Needs --rows.",
        ),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only report whether a retry is possible, and why not.")
    ] = False,
    db: Db = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Run failed rows again from the step that failed; a worker runs them.

    Exits with 0 when the retry is accepted (with --check: possible), with 1 when not.
    """
    if check:
        if rows is not None or confirm_doubt:
            raise WrongUsage("--check reports on all failed rows and cannot be used with --rows or --confirm-doubt")
        _check(Place(db, url=url), operation, as_json=as_json)
        return
    if confirm_doubt and rows is None:
        raise WrongUsage("--confirm-doubt needs --rows: name the rows that you have checked")
    named = None if rows is None else list(row_numbers(rows))
    _ask_again(
        Place(db, url=url),
        operation,
        lambda penstock, id: penstock.operations.retry(id, rows=named, confirm_doubt=confirm_doubt),
        as_json=as_json,
    )


def edit(
    operation: OperationId,
    row: Annotated[int, typer.Argument(min=1, metavar="ROW", help="The row's number.")],
    changes: Annotated[
        list[str],
        typer.Argument(metavar="FIELD=VALUE...", help="New values: FIELD=TEXT, or FIELD:=JSON for other types."),
    ],
    *,
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation",
            min=0,
            metavar="N",
            help="Refuse unless the row is in this generation (0: never retried or edited).",
        ),
    ] = None,
    db: Db = None,
    url: Url = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Change fields of a failed or invalid row and run it again; the old values stay in the history.

    With --app the row is validated at once; a worker validates it in any case.
    """
    place = Place(db, app, url)
    given = dict(map(_change, changes))
    _ask_again(
        place,
        operation,
        lambda penstock, id: penstock.operations.edit_row(id, row, given, generation=generation),
        definitions=() if place.server else place.definitions_if_named(),
        as_json=as_json,
    )


def _steer(
    place: Place,
    operation: str,
    request: Callable[[Penstock, str], Coroutine[Any, Any, Operation]],
    *,
    definitions: tuple[Definition, ...] = (),
    as_json: bool,
) -> None:
    from penstock import resources
    from penstock.cli import views
    from penstock.cli.screen import Screen

    found = ask(place, about(operation, request), definitions=definitions)

    def people() -> Iterator[RenderableType]:
        yield views.operation(found)
        if not found.is_settled:
            yield from views.try_next([place.command("ops", "watch", short_id(found.id))])

    Screen(as_json=as_json).answer(lambda: resources.operation(found), people)


def _check(place: Place, operation: str, *, as_json: bool) -> None:
    from rich.text import Text

    from penstock import resources
    from penstock.cli.screen import Screen

    async def look(penstock: Penstock, id: str) -> tuple[str, Eligibility]:
        found = await penstock.operations.get(id)
        return found.id, await penstock.operations.can_retry(found.id)

    exact, found = ask(place, about(operation, look))

    def people() -> Iterator[RenderableType]:
        if found.is_eligible:
            yield Text(f"A retry is possible: {counted(found.rows, 'row')} would run again.", style="green")
            return
        yield Text("A retry is not possible:", style="red")
        yield from (Text(f"  - {reason}") for reason in found.reasons)

    Screen(as_json=as_json).answer(lambda: resources.eligibility(exact, found), people)
    raise typer.Exit(0 if found.is_eligible else 1)


def _ask_again(
    place: Place,
    operation: str,
    request: Callable[[Penstock, str], Coroutine[Any, Any, Retry]],
    *,
    definitions: tuple[Definition, ...] = (),
    as_json: bool,
) -> None:
    """Hand in a request for rows to run again, and say what it came to."""
    from rich.text import Text

    from penstock import resources
    from penstock.cli import views
    from penstock.cli.screen import Screen

    async def hand_in(penstock: Penstock, id: str) -> tuple[str, Retry]:
        exact = (await penstock.operations.get(id)).id
        return exact, await request(penstock, exact)

    exact, found = ask(place, about(operation, hand_in), definitions=definitions)

    def people() -> Iterator[RenderableType]:
        yield Text(f"{counted(found.submitted, 'row')} will run again as soon as a worker is free.")
        if found.skipped:
            yield Text(f"{counted(found.skipped, 'row')} skipped:")
            yield from (Text(f"  row {row}: {why}") for row, why in list(found.reasons.items())[:SKIPPED_SHOWN])
        yield from views.try_next([place.command("ops", "watch", short_id(exact))])

    Screen(as_json=as_json).answer(lambda: resources.retry(exact, found), people)


def row_numbers(written: str) -> Iterator[int]:
    """Row numbers from a list such as 3,7-9."""
    total = 0
    for part in written.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if found is None:
            raise WrongUsage(f"--rows takes numbers and ranges, such as 3,7-9; found {part.strip()!r}")
        first, last = int(found[1]), int(found[2] or found[1])
        if not 1 <= first <= last:
            raise WrongUsage(f"--rows: numbers start at 1 and ranges go upwards; found {part.strip()!r}")
        total += last - first + 1
        if total > ROWS_NAMED_MAX:
            raise WrongUsage(f"--rows takes {ROWS_NAMED_MAX:,} rows at most; leave it out for all")
        yield from range(first, last + 1)


def _change(written: str) -> tuple[str, Any]:
    name, equals, value = written.partition("=")
    if not equals or not name.rstrip(":"):
        raise WrongUsage(f"a change is FIELD=VALUE or FIELD:=JSON; found {written!r}")
    if not name.endswith(":"):
        return name, value
    try:
        return name[:-1], json.loads(value)
    except ValueError as error:
        raise WrongUsage(f"{written!r}: what follows := is JSON; {error}") from None
