"""Arguments and options that several commands share, and how commands are added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

__all__ = ["App", "Cause", "Cursor", "Db", "Json", "Limit", "OperationId", "command", "group"]

Db = Annotated[
    str | None,
    typer.Option("--db", metavar="URL", help="The database. Default: PENSTOCK_DATABASE_URL or sqlite:///penstock.db."),
]
App = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE",
        help="Where the operations are: pkg.module or path/to/file.py. Default: PENSTOCK_APP.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout; everything else on stderr.")]
Limit = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="How many to show at most.")]
Cursor = Annotated[
    str | None, typer.Option("--cursor", metavar="CURSOR", help="Go on where an earlier page ended (its next cursor).")
]
Cause = Annotated[str | None, typer.Option("--cause", metavar="TEXT", help="Why, for the transition log.")]
OperationId = Annotated[
    str, typer.Argument(metavar="ID", help="The operation's id, or the first 8 characters or more of it.")
]


def command(app: typer.Typer, name: str, function: Callable[..., Any], *, example: str) -> None:
    """Add a command; its help is the function's docstring, and ends with an example."""
    app.command(name, epilog=f"Example: penstock {example}")(function)


def group(app: typer.Typer, name: str, *, summary: str, example: str) -> typer.Typer:
    """Add a group of commands."""
    made = typer.Typer(help=summary, epilog=f"Example: penstock {example}", no_args_is_help=True)
    app.add_typer(made, name=name)
    return made
