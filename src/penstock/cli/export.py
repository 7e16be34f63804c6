"""`penstock ops export`: rows as a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.inputs import output_file
from penstock.cli.options import Db, Json, OperationId, Url, command
from penstock.cli.problems import WrongUsage
from penstock.cli.session import Place, about, ask

if TYPE_CHECKING:
    from typing import BinaryIO

    from penstock.engine import Penstock

__all__ = ["add_to", "export"]


def add_to(ops: typer.Typer) -> None:
    """Add the command."""
    command(ops, "export", export, example="ops export 0199a3c2-1b2f --state Failed --out failed.csv")


def export(
    operation: OperationId,
    *,
    mode: Annotated[
        str, typer.Option("--mode", metavar="MODE", help="report: states, errors and data; data: the rows' data alone.")
    ] = "report",
    format: Annotated[str, typer.Option("--format", metavar="FORMAT", help="csv, jsonl or json.")] = "csv",
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only rows in this state, such as Failed; can be repeated."),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Write to a file instead of stdout; needed with --json.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Write cells as they are, also those that a spreadsheet takes for formulas.")
    ] = False,
    db: Db = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Write rows to a file or to stdout, of any number."""
    from penstock.cli.screen import Screen

    if as_json and out is None:
        raise WrongUsage("--json needs --out: stdout has the document")

    place = None if out is None else output_file("--out", out)

    async def write(penstock: Penstock, id: str) -> int:
        found = await penstock.operations.export(id, mode=mode, format=format, state=state, neutral=not raw)
        written, target = 0, None
        try:
            async for piece in found.pieces:
                target = target or _opened(place)
                written += target.write(piece)
        finally:
            if target is not None and place is not None:
                target.close()
        if target is None and place is not None:
            _opened(place).close()
        return written

    written = ask(Place(db, url=url), about(operation, write))
    if as_json:
        Screen(as_json=True).document({"file": out, "bytes": written})


def _opened(place: Path | None) -> BinaryIO:
    return sys.stdout.buffer if place is None else place.open("wb")
