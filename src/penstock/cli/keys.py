"""`penstock keys`: make, list and revoke the API keys of the HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.inputs import age
from penstock.cli.options import Db, Json, Limit, command, group
from penstock.cli.session import Place, ask
from penstock.printable import moment, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from rich.console import RenderableType

    from penstock.access.model import ApiKey
    from penstock.engine import Penstock

__all__ = ["add_to", "create", "list_keys", "revoke"]

KeyId = Annotated[str, typer.Argument(metavar="KEY", help="The key's id, as `penstock keys list` shows it.")]


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    keys = group(app, "keys", summary="Manage the API keys of the HTTP API.", example="keys create ci --role operate")
    command(keys, "create", create, example="keys create ci --role operate --operation price-update --expires-in 90d")
    command(keys, "list", list_keys, example="keys list")
    command(keys, "revoke", revoke, example="keys revoke 3f9a1c20b7de")


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is; stands in events and the audit log.")],
    *,
    role: Annotated[
        str, typer.Option("--role", metavar="ROLE", help="read, operate or admin; each may do what those before may.")
    ] = "read",
    operation: Annotated[
        list[str] | None,
        typer.Option("--operation", metavar="NAME", help="Only this operation; can be repeated. Default: all."),
    ] = None,
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="The tenant whose things it sees.")] = "",
    expires_in: Annotated[
        str | None,
        typer.Option(
            "--expires-in", metavar="AGE", help="How long it can be used, such as 90d (units: s, m, h, d, w)."
        ),
    ] = None,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Make a key and print it. It cannot be shown again: only a hash of it is stored."""
    from rich.text import Text

    from penstock.cli.screen import Screen

    lasts = None if expires_in is None else age("--expires-in", expires_in)

    async def make(penstock: Penstock) -> tuple[ApiKey, str]:
        return await penstock.keys.create(name, role=role, operations=operation, tenant=tenant, lasts=lasts)

    made, text = ask(Place(db), make)
    Screen(as_json=as_json).answer(lambda: _document(made, text), lambda: [Text(text)])
    if not as_json:
        typer.echo(f"Key {made.id} of {printable(made.name)}. Store it now: it is not shown again.", err=True)


def list_keys(limit: Limit = 100, db: Db = None, as_json: Json = False) -> None:
    """List keys, oldest first, with what they may do and when they were last used."""
    from penstock.cli.screen import Screen

    found = ask(Place(db), lambda penstock: penstock.keys.list(limit=limit))
    Screen(as_json=as_json).answer(
        lambda: {"items": [_document(key) for key in found], "nextCursor": None}, lambda: _people(found)
    )


def revoke(key: KeyId, db: Db = None, as_json: Json = False) -> None:
    """Revoke a key. Servers refuse it within 5 seconds."""
    from rich.text import Text

    from penstock.cli.screen import Screen

    found = ask(Place(db), lambda penstock: penstock.keys.revoke(key))
    said = f"Key {found.id} of {printable(found.name)} is revoked."
    Screen(as_json=as_json).answer(lambda: _document(found), lambda: [Text(said)])


def _document(key: ApiKey, text: str | None = None) -> dict[str, object]:
    from penstock.access_resources import api_key

    return api_key(key, now=_now(), text=text)


def _now() -> datetime:
    from datetime import UTC, datetime

    return datetime.now(UTC)


def _people(found: Sequence[ApiKey]) -> Iterable[RenderableType]:
    from rich.text import Text

    from penstock.cli.tables import table

    now = _now()
    rows = [
        (key.id, key.state_at(now), key.role, key.tenant, ", ".join(sorted(key.operations or ())) or "all",
         moment(key.expires_at) or "never", moment(key.last_used_at) or "never", key.name)
        for key in found
    ]  # fmt: skip
    columns = ("KEY", "STATE", "ROLE", "TENANT", "OPERATIONS", "EXPIRES", "LAST USED", "NAME")
    return [table(*columns, rows=rows, may_go=("LAST USED", "EXPIRES"))] if rows else [Text("No keys.")]
