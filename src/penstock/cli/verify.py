"""`penstock verify`: recompute counters and states from the stored records, and compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Db, Json, OperationIdOrAll, command
from penstock.cli.session import Place, ask, exact_id

if TYPE_CHECKING:
    from penstock.engine import Penstock
    from penstock.operations.model import VerifyReport

__all__ = ["add_to", "verify"]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "verify", verify, example="verify 0199a3c2-1b2f --deep")


def verify(
    operation: OperationIdOrAll = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also read the stored files and compare their checksums.")
    ] = False,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Recompute all counters and states from the stored records, and report differences.

    Exits with 0 when there are none, with 1 when there are some.
    """
    from penstock import resources
    from penstock.cli import views
    from penstock.cli.screen import Screen

    found = ask(Place(db), lambda penstock: _verify(penstock, operation, deep=deep))
    Screen(as_json=as_json).answer(lambda: resources.verify_report(found), lambda: views.verify_report(found))
    raise typer.Exit(0 if found.is_clean else 1)


async def _verify(penstock: Penstock, operation: str | None, *, deep: bool) -> VerifyReport:
    return await penstock.verify(None if operation is None else await exact_id(penstock, operation), deep=deep)
