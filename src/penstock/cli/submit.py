"""`penstock submit`: store a file for workers that run elsewhere, and say how to follow it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import typer

from penstock.cli.inputs import InputFile, Meta, MetaFile, OperationName, Set, existing_file, metadata, overrides
from penstock.cli.options import App, Db, Json, Url, command
from penstock.cli.session import Place, reached
from penstock.printable import short_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from penstock.operations.model import Operation

__all__ = ["add_to", "submit"]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "submit", submit, example="submit price-update prices.csv --app shop.py --meta currency=EUR")


def submit(
    operation: OperationName,
    file: InputFile,
    *,
    meta: Meta = None,
    meta_file: MetaFile = None,
    options: Set = None,
    db: Db = None,
    url: Url = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Store a file as a new operation for running workers, print its id, and exit without waiting.

    Metadata is checked here, rows by the workers. Exits with 0 when it is stored, with 1 when it is refused.
    """
    from penstock import resources
    from penstock.cli.screen import Screen

    place = Place(db, app, url)
    path, definitions = existing_file(file), place.definitions_for(operation)
    given, changed = metadata(meta, meta_file, definitions), overrides(options)

    async def store() -> Operation:
        async with reached(place, definitions=definitions, makes=True) as penstock:
            return await penstock.operations.create(operation, file=path, metadata=given, options=changed or None)

    made = asyncio.run(store())
    Screen(as_json=as_json).answer(lambda: resources.operation(made), lambda: _people(place, made))


def _people(place: Place, made: Operation) -> Iterator[RenderableType]:
    from rich.text import Text

    from penstock.cli import views

    yield Text(f"Operation {made.id} ({made.name})")
    yield Text("It is stored; a worker will run it.")
    name = short_id(made.id)
    yield from views.try_next([place.command("ops", "watch", name), place.command("ops", "show", name)])
