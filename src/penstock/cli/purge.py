"""`penstock ops purge`: remove operations that ended long ago, with all that is stored about them."""

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
            "--older-than", metavar="AGE", help="Only those that ended so long ago: 90d, 12h; s, m, h, d or w."
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Remove operations that have ended for good: their rows, history, events and files.

    Work may go on meanwhile. A purge that was interrupted is finished by the next one.
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
    yield Text(f"Would remove {what} and {files}." if is_dry_run else f"Removed {what} and {files}.")
    if found.files_left:
        yield Text(f"{counted(found.files_left, 'file')} left for a later purge: stored lately, or not ours to remove.")
