"""`penstock config`: the effective settings, and where each comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import App, Db, Json, command
from penstock.cli.session import Place
from penstock.errors import Fault
from penstock.printable import printable

if TYPE_CHECKING:
    from rich.text import Text

    from penstock.cli.tables import FittedTable

__all__ = ["add_to", "config"]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "config", config, example="config --json")


def config(
    db: Db = None,
    app: App = None,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Print a new key for the setting secret_key, and nothing else.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print all settings with their values and origins; secrets are masked."""
    from penstock.cli.screen import Screen
    from penstock.secret_keys import new_key as made_key

    if new_key:
        key = made_key()
        Screen(as_json=as_json).answer(lambda: {"key": key}, lambda: [key])
        return
    items, faults = _items(Place(db, app))
    shown = [{"field": fault.field, "message": fault.message} for fault in faults]
    Screen(as_json=as_json).answer(
        lambda: {"items": items, "nextCursor": None, "faults": shown},
        lambda: [_table(items), *map(_fault_line, faults)],
    )


def _fault_line(fault: Fault) -> Text:
    from rich.text import Text

    return Text(f"wrong: {printable(str(fault))}", style="red")


def _items(place: Place) -> tuple[list[dict[str, Any]], list[Fault]]:
    """Every setting, and what else was given that other commands refuse."""
    from penstock.settings import LISTED, Settings, effective, layers, masked, origins

    found = layers(database_url=place.db, app=place.app)
    settings, faults = effective(found)
    come_from = origins(found)
    items = [
        {
            "name": name,
            "value": masked(getattr(settings, name)),
            "origin": come_from[name],
            "description": field.description,
        }
        for name, field in Settings.model_fields.items()
    ]
    return items, [Fault(fault.message.removesuffix(LISTED), fault.field) for fault in faults]


def _table(items: list[dict[str, Any]]) -> FittedTable:
    from penstock.cli.tables import table
    from penstock.printable import compact

    return table(
        "SETTING", "VALUE", "FROM", "MEANING",
        rows=[
            (i["name"], "" if i["value"] is None else compact(i["value"]), i["origin"], i["description"])
            for i in items
        ],
        may_go=("MEANING",),
    )  # fmt: skip
