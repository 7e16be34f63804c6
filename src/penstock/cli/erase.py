"""`penstock ops erase`: remove what is personal about an operation that has ended, or about some of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.control import row_numbers
from penstock.cli.options import Db, Json, OperationId, command
from penstock.cli.session import about, ask, database_of
from penstock.printable import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.engine import Penstock
    from penstock.operations.model import Pruned

__all__ = ["add_to", "erase"]


def add_to(ops: typer.Typer) -> None:
    """Add the command."""
    command(ops, "erase", erase, example="ops erase 0199a3c2-1b2f --rows 17")


def erase(
    operation: OperationId,
    *,
    rows: Annotated[
        str | None, typer.Option("--rows", metavar="LIST", help="Only these rows, such as 3,7-9. Default: all of it.")
    ] = None,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Erase row data, outputs, history, error texts, metadata and the file of an operation that has ended.

    Its counters and states stay, and so does the audit log. With --rows, the file goes too, because the rows are in it.
    """
    from penstock import resources
    from penstock.cli.screen import Screen

    named = None if rows is None else list(row_numbers(rows))

    async def request(penstock: Penstock, id: str) -> Pruned:
        return await penstock.operations.erase(id, rows=named)

    found = ask(database_of(db), about(operation, request))
    Screen(as_json=as_json).answer(
        lambda: resources.pruned(found, is_dry_run=False), lambda: _sentences(found, is_whole=named is None)
    )


def _sentences(found: Pruned, *, is_whole: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text("Erased the operation." if is_whole else f"Erased {counted(found.rows, 'row')}.")
    if found.files_left:
        yield Text("The file could not be removed now: run the same again later.")
