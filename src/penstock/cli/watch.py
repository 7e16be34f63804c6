"""`penstock ops watch`: show the progress of an operation that other processes run."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.documents import print_document
from penstock.cli.options import Db, Json, OperationId, Url, command
from penstock.cli.run import EXIT_CODES
from penstock.cli.session import Place, about, ask
from penstock.errors import Unavailable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from penstock.cli.progress import Display
    from penstock.engine import Penstock
    from penstock.operations.model import Operation

__all__ = ["add_to", "watch"]

log = logging.getLogger("penstock.cli")


def add_to(ops: typer.Typer) -> None:
    """Add the command."""
    command(ops, "watch", watch, example="ops watch @last --json", exits=(0, 1, 2, 3, 4, 130))


def watch(
    operation: OperationId,
    *,
    every_s: Annotated[
        float, typer.Option("--every", min=0.05, metavar="SECONDS", help="Seconds between updates.")
    ] = 0.5,
    db: Db = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show the progress of an operation until it has ended; with --json one line per change.

    The exit code is that of `penstock run`. Interrupting this command does not stop the operation.
    """
    from penstock.cli import views
    from penstock.cli.screen import Screen

    with _display(as_json=as_json) as show:
        found = ask(Place(db, url=url), about(operation, lambda penstock, id: _follow(penstock, id, show, every_s)))
    if not as_json:
        Screen().show(views.operation(found))
    raise typer.Exit(EXIT_CODES[found.status])


async def _follow(penstock: Penstock, operation: str, show: Display, every_s: float) -> Operation:
    now = await penstock.operations.get(operation)
    show(now)
    while not now.is_settled:
        await asyncio.sleep(every_s)
        try:
            now = await penstock.operations.get(now.id)
        except Unavailable as error:
            log.warning("progress is unknown: %s", error)
        else:
            show(now)
    return now


def _display(*, as_json: bool) -> AbstractContextManager[Display]:
    from penstock.cli.progress import NoProgress, display
    from penstock.resources import operation as resource

    class Lines(NoProgress):
        """One JSON document to a line, whenever something has changed."""

        last: Operation | None = None

        def __call__(self, operation: Operation) -> None:
            if operation != self.last:
                self.last = operation
                print_document(json.dumps(resource(operation), ensure_ascii=False, default=str))

    return Lines() if as_json else display(is_wanted=True)
