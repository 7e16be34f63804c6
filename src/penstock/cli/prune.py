"""`penstock ops prune|delete|hold|release`: what is kept of operations that have ended, and what is removed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.inputs import age
from penstock.cli.options import Cause, Db, Json, OperationId, command
from penstock.cli.session import about, ask, database_of
from penstock.printable import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from typing import Any

    from rich.console import RenderableType

    from penstock.engine import Penstock
    from penstock.operations.model import Operation, Pruned

__all__ = ["add_to", "delete", "hold", "prune", "release"]


def add_to(ops: typer.Typer) -> None:
    """Add the commands."""
    command(ops, "prune", prune, example="ops prune --older-than 90d --dry-run")
    command(ops, "delete", delete, example="ops delete 0199a3c2-1b2f")
    command(ops, "hold", hold, example='ops hold 0199a3c2-1b2f "audit 2031"')
    command(ops, "release", release, example="ops release 0199a3c2-1b2f")


def prune(
    *,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="AGE",
            help="Whole operations that ended at least this long ago, such as 90d or 12h, whatever policies say.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what would be deleted.")] = False,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Delete what the policies (`keep`) say is old enough, of operations that have ended.

    Operations that are held stay. Workers may keep running. An interrupted run is completed by the next one.
    """
    before = None if older_than is None else datetime.now(UTC) - age("--older-than", older_than)
    found = ask(database_of(db), lambda penstock: penstock.operations.prune(before, dry_run=dry_run))
    _answer(found, as_json=as_json, is_dry_run=dry_run)


def delete(operation: OperationId, *, db: Db = None, as_json: Json = False) -> None:
    """Delete one operation that has ended, with its rows, history, events and file."""
    found = ask(database_of(db), about(operation, lambda penstock, id: penstock.operations.delete(id)))
    _answer(found, as_json=as_json)


def hold(
    operation: OperationId,
    reason: Annotated[str, typer.Argument(metavar="REASON", help="Why nothing of it may be deleted.")],
    *,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Let nothing of an operation be deleted, whatever any policy says, until it is released."""
    _show(db, operation, lambda penstock, id: penstock.operations.hold(id, reason), as_json=as_json)


def release(operation: OperationId, *, cause: Cause = None, db: Db = None, as_json: Json = False) -> None:
    """End the hold of an operation; policies apply to it again."""
    _show(db, operation, lambda penstock, id: penstock.operations.release(id, cause=cause), as_json=as_json)


def _show(
    db: str | None,
    operation: str,
    request: Callable[[Penstock, str], Coroutine[Any, Any, Operation]],
    *,
    as_json: bool,
) -> None:
    from penstock import resources
    from penstock.cli import views
    from penstock.cli.screen import Screen

    found = ask(database_of(db), about(operation, request))
    Screen(as_json=as_json).answer(lambda: resources.operation(found), lambda: [views.operation(found)])


def _answer(found: Pruned, *, as_json: bool, is_dry_run: bool = False) -> None:
    from penstock import resources
    from penstock.cli.screen import Screen

    Screen(as_json=as_json).answer(
        lambda: resources.pruned(found, is_dry_run=is_dry_run), lambda: _sentences(found, is_dry_run=is_dry_run)
    )


def _sentences(found: Pruned, *, is_dry_run: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    what = f"{counted(found.operations, 'operation')} with {counted(found.rows, 'row')}"
    files = f"{counted(found.file_bytes, 'byte')} of files"
    verb = "Would delete" if is_dry_run else "Deleted"
    yield Text(f"{verb} {what} and {files}.")
    for part, many in sorted(found.parts.items()):
        yield Text(f"{verb} the {part} of {counted(many, 'operation')}.")
    if found.files_left:
        kept = counted(found.files_left, "file")
        yield Text(f"{kept} kept for later: not removable, or shared and stored within the last hour.")
