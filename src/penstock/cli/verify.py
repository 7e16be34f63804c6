"""`penstock verify`: re-derive every counter and state from the records, and compare."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Db, Json, command
from penstock.cli.session import Place, ask

if TYPE_CHECKING:
    from penstock.engine import Penstock
    from penstock.operations.model import VerifyReport

__all__ = ["add_to", "verify"]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "verify", verify, example="verify 0199a3c2-1b2f --deep")


def verify(
    operation: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="One operation, by its id or its beginning; all if left out.")
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also read the stored files and compare their digests.")] = False,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Re-derive every counter and state from the records, and compare.

    Exits with 0 when all agree, with 1 when there are differences.
    """
    from penstock import resources
    from penstock.cli import views
    from penstock.cli.screen import Screen

    found = ask(Place(db), lambda penstock: _verify(penstock, operation, deep=deep))
    Screen(as_json=as_json).answer(lambda: resources.verify_report(found), lambda: views.verify_report(found))
    raise typer.Exit(0 if found.is_clean else 1)


async def _verify(penstock: Penstock, operation: str | None, *, deep: bool) -> VerifyReport:
    """The operations, and the lifecycles of every tenant unless one operation was named."""
    from penstock.operations.model import Difference

    found = await penstock.operations.verify(operation, deep=deep)
    if operation is not None:
        return found
    differences = list(found.differences)
    for tenant in await penstock.lifecycles.tenants():
        _, wrong = await penstock.lifecycles.tenant(tenant).verify()
        differences += [Difference(each.rule, each.message, None, None, None) for each in wrong]
    return replace(found, differences=tuple(differences))
