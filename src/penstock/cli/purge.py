"""`penstock ops purge`: delete operations that ended long ago, with everything stored about them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.inputs import age
from penstock.cli.options import Db, Json, command
from penstock.cli.printable import counted
from penstock.cli.session import Place, ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from penstock.operations.model import Purged

__all__ = ["add_to", "purge"]


def add_to(ops: typer.Typer) -> None:
    """Add the command."""
    command(ops, "purge", purge, example="ops purge --older-than 90d --dry-run")


def purge(
    *,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than",
            metavar="AGE",
            help="Only operations that ended at least this long ago, such as 90d or 12h (units: s, m, h, d, w).",
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what would be deleted.")] = False,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Delete operations that ended long ago, with their rows, history, events and files.

    Workers may keep running. An interrupted purge is completed by the next one.
    """
    from penstock import resources
    from penstock.cli.screen import Screen

    before = datetime.now(UTC) - age("--older-than", older_than)
    found = ask(Place(db), lambda penstock: penstock.operations.purge(before, dry_run=dry_run))
    Screen(as_json=as_json).answer(
        lambda: resources.purged(found, is_dry_run=dry_run), lambda: _sentences(found, is_dry_run=dry_run)
    )


def _sentences(found: Purged, *, is_dry_run: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    what = f"{counted(found.operations, 'operation')} with {counted(found.rows, 'row')}"
    files = f"{counted(found.file_bytes, 'byte')} of files"
    yield Text(f"Would delete {what} and {files}." if is_dry_run else f"Deleted {what} and {files}.")
    if found.files_left:
        kept = counted(found.files_left, "file")
        yield Text(f"{kept} kept for a later purge: not removable, or shared and stored within the last hour.")
