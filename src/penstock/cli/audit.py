"""`penstock audit`: who did what, and a mark by which to see later that nothing of it was changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Cursor, Db, Json, Limit, command, group
from penstock.cli.session import Place, ask
from penstock.errors import Conflict, InvalidInput
from penstock.printable import compact, moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from penstock.access.chain import Entry
    from penstock.engine import Penstock

__all__ = ["add_to", "list_entries", "mark"]

Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME", help="The tenant whose log is meant.")]


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    audit = group(app, "audit", summary="Look at the log of who did what.", example="audit list --actor ana")
    command(audit, "list", list_entries, example="audit list --subject 0199a3c2-1b2f-7d4e-9c51-3f2a8b7c6d5e")
    command(audit, "mark", mark, example="audit mark --compare 1042:9f8e…")


def list_entries(
    *,
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="ID", help="Only what was done to this operation or key.")
    ] = None,
    actor: Annotated[str | None, typer.Option("--actor", metavar="NAME", help="Only what they did.")] = None,
    tenant: Tenant = "",
    limit: Limit = 100,
    cursor: Cursor = None,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """List what was done, newest first; `penstock verify` checks that nothing of it was changed."""
    from penstock import resources
    from penstock.access_resources import audit_entry
    from penstock.cli.screen import Screen

    found = ask(
        Place(db),
        lambda penstock: penstock.audit.list(tenant=tenant, subject=subject, actor=actor, cursor=cursor, limit=limit),
    )
    Screen(as_json=as_json).answer(
        lambda: resources.listing(found.items, audit_entry, found.next_cursor), lambda: _people(found.items)
    )


def mark(
    *,
    compare: Annotated[
        str | None, typer.Option("--compare", metavar="MARK", help="A mark of an earlier day: is it still true?")
    ] = None,
    tenant: Tenant = "",
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Print a mark of the log as it is now, to be kept elsewhere.

    Compared later, it shows that nothing before it was changed.
    """
    from rich.text import Text

    from penstock.cli.screen import Screen

    async def look(penstock: Penstock) -> str:
        if compare is not None:
            number, _, digest = compare.partition(":")
            if not number.isdecimal():
                raise InvalidInput(f"a mark looks like 1042:9f8e…; found {compare!r}")
            if not await penstock.audit.has(int(number), digest, tenant):
                raise Conflict(f"the log has not the mark {compare}: it was changed, or is another")
        number_now, digest_now = await penstock.audit.end(tenant)
        return f"{number_now}:{digest_now}"

    found = ask(Place(db), look)
    Screen(as_json=as_json).answer(lambda: {"mark": found}, lambda: [Text(found)])


def _people(found: Sequence[Entry]) -> Iterable[RenderableType]:
    from rich.text import Text

    from penstock.cli.tables import table
    from penstock.clock import from_micros

    rows = [
        (str(entry.sequence), moment(from_micros(entry.at)), entry.actor, entry.action, entry.subject,
         compact(entry.details or ""))
        for entry in found
    ]  # fmt: skip
    columns = ("NO", "AT", "WHO", "DID", "TO", "DETAILS")
    return [table(*columns, rows=rows, numbers=("NO",), may_go=("NO",))] if rows else [Text("No entries.")]
