"""`penstock db`: the schema and the settings of the database."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import typer

from penstock.cli.options import Db, Json, command, group
from penstock.cli.session import Place, require_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from penstock.db.upgrade import Report

__all__ = ["add_to", "check", "upgrade"]


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    db = group(app, "db", summary="Prepare and check the database.", example="db upgrade")
    command(db, "upgrade", upgrade, example="db upgrade --db postgresql://penstock@localhost/penstock")
    command(db, "check", check, example="db check --json")


def upgrade(db: Db = None, as_json: Json = False) -> None:
    """Create the database schema, or upgrade it to this release."""
    from rich.text import Text

    from penstock.cli.screen import Screen
    from penstock.clock import SystemClock
    from penstock.db.upgrade import upgrade as bring_up

    before, after = asyncio.run(bring_up(Place(db).settings().database_address, SystemClock()))
    changed = "was created" if before is None else f"was upgraded from {before}"
    said = f"The schema is up to date ({after})." if before == after else f"The schema {changed}; it is now at {after}."
    Screen(as_json=as_json).answer(lambda: {"before": before, "after": after}, lambda: [Text(said)])


def check(db: Db = None, as_json: Json = False) -> None:
    """Check the database's version, settings and schema, on SQLite every page too, and list all problems.

    Exits with 0 when there are no problems, with 1 when there are.
    """
    from penstock.cli.screen import Screen
    from penstock.clock import SystemClock
    from penstock.db.upgrade import check as look

    place = Place(db)
    require_database(place)
    report = asyncio.run(look(place.settings().database_address, SystemClock(), pages=True))
    Screen(as_json=as_json).answer(lambda: _document(report), lambda: _people(report))
    raise typer.Exit(1 if report.problems else 0)


def _document(report: Report) -> dict[str, object]:
    return {
        "database": report.database,
        "version": report.version,
        "revision": report.revision,
        "isOk": not report.problems,
        "findings": [
            {"setting": f.setting, "found": f.found, "right": f.right, "isOk": f.is_ok} for f in report.findings
        ],
        "problems": list(report.problems),
    }


def _people(report: Report) -> Iterator[RenderableType]:
    from rich.text import Text

    from penstock.cli.tables import table

    yield Text(f"{report.database} {report.version}, schema {report.revision or 'missing'}\n")
    yield table(
        "SETTING", "FOUND", "EXPECTED", "",
        rows=[
            (f.setting, f.found, f.right, Text("ok", "green") if f.is_ok else Text("wrong", "red"))
            for f in report.findings
        ],
    )  # fmt: skip
    for problem in report.problems:
        yield Text(f"\n{problem}", style="red")
