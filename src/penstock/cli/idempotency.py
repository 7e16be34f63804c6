"""`penstock idempotency`: look after the keys that an application's middleware keeps in the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Db, Json, Limit, command, group
from penstock.cli.session import Place, ask
from penstock.errors import NotFound
from penstock.printable import counted, printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from penstock.engine import Penstock
    from penstock.idempotency.model import KeyRecord

__all__ = ["add_to", "forget", "show", "sweep", "unsettled"]

Key = Annotated[str, typer.Argument(metavar="KEY", help="The key as the client sent it, without quotes.")]
Caller = Annotated[
    list[str] | None,
    typer.Option("--caller", metavar="TEXT", help="A part of what tells the caller, such as its tenant; repeatable."),
]


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    keys = group(
        app,
        "idempotency",
        summary="Look after the idempotency keys of an application.",
        example="idempotency unsettled",
    )
    command(keys, "unsettled", unsettled, example="idempotency unsettled --json")
    command(keys, "show", show, example="idempotency show 8e03978e --caller acme --caller ana")
    command(keys, "forget", forget, example="idempotency forget 8e03978e --caller acme --caller ana")
    command(keys, "sweep", sweep, example="idempotency sweep")


def unsettled(limit: Limit = 100, db: Db = None, as_json: Json = False) -> None:
    """List keys whose request was cut off, oldest first: nobody knows whether it was carried out."""
    from penstock import resources
    from penstock.cli.screen import Screen

    found = ask(Place(db), lambda penstock: penstock.idempotency.unsettled(limit))
    Screen(as_json=as_json).answer(lambda: resources.listing(found, resources.idempotency_key), lambda: _people(found))


def show(key: Key, caller: Caller = None, db: Db = None, as_json: Json = False) -> None:
    """Show the state of a key and how long it is kept."""
    from penstock import resources
    from penstock.cli.screen import Screen

    found = ask(Place(db), lambda penstock: penstock.idempotency.get(key, scope=tuple(caller or ())))
    if found is None:
        raise NotFound(f"idempotency key {key!r} is free: this caller has not used it, or it was kept for long enough")
    Screen(as_json=as_json).answer(lambda: resources.idempotency_key(found), lambda: _people([found]))


def forget(key: Key, caller: Caller = None, db: Db = None, as_json: Json = False) -> None:
    """Make a key free, so that its request can be carried out again.

    Refused while a request with it is running.
    """
    from rich.text import Text

    from penstock.cli.screen import Screen

    is_forgotten = ask(Place(db), lambda penstock: penstock.idempotency.forget(key, scope=tuple(caller or ())))
    said = f"{printable(key)} is free now." if is_forgotten else f"{printable(key)} was free already."
    Screen(as_json=as_json).answer(lambda: {"key": key, "wasForgotten": is_forgotten}, lambda: [Text(said)])


def sweep(db: Db = None, as_json: Json = False) -> None:
    """Remove the keys that were kept for long enough; the middleware does so by itself once a minute."""
    from rich.text import Text

    from penstock.cli.screen import Screen

    removed = ask(Place(db), _sweep)
    Screen(as_json=as_json).answer(lambda: {"removed": removed}, lambda: [Text(f"{counted(removed, 'key')} removed.")])


async def _sweep(penstock: Penstock) -> int:
    total = 0
    while found := await penstock.idempotency.sweep():
        total += found
    return total


def _people(found: Iterable[KeyRecord]) -> Iterable[RenderableType]:
    from rich.text import Text

    from penstock.cli.tables import table

    rows = [
        (record.state, f"{record.created_at:%Y-%m-%d %H:%M:%S}", f"{record.expires_at:%Y-%m-%d %H:%M:%S}",
         record.label, record.key)
        for record in found
    ]  # fmt: skip
    return [table("STATE", "SINCE", "KEPT UNTIL", "REQUEST", "KEY", rows=rows)] if rows else [Text("No keys.")]
