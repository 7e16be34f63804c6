"""What a shell may offer when the user presses TAB: names of operations, and ids of those that exist.

Completion must neither fail nor print: whatever goes wrong, nothing is offered.
"""

from __future__ import annotations

import contextlib
import io

import typer

__all__ = ["complete_operation_id", "complete_operation_name"]

IDS_OFFERED = 20


def complete_operation_name(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The operations of the application named by --app or PENSTOCK_APP."""
    from penstock.cli.session import Place

    with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
        known = Place(ctx.params.get("db"), ctx.params.get("app")).definitions()
        return [(d.name, _first_line(d.description)) for d in known if d.name.startswith(incomplete)]
    return []


def complete_operation_id(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The newest operations, with what they are."""
    from penstock.cli.session import LAST, Place, ask

    with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
        place = Place(ctx.params.get("db"))
        newest = ask(place, lambda penstock: penstock.operations.list(limit=IDS_OFFERED)).items
        offered = [(LAST, "the newest operation"), *((o.id, f"{o.name}, {o.status}") for o in newest)]
        return [(value, what) for value, what in offered if value.startswith(incomplete)]
    return []


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]
