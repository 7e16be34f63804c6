"""Arguments and options that several commands share, and how commands are added."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from penstock.cli.completion import complete_operation_id
from penstock.cli.problems import EXIT_MEANINGS

__all__ = [
    "ID_HELP",
    "App",
    "Cause",
    "Cursor",
    "Db",
    "Group",
    "Json",
    "Limit",
    "OperationId",
    "OperationIdOrAll",
    "Url",
    "command",
    "group",
    "help_end",
]

Db = Annotated[
    str | None,
    typer.Option(
        "--db", metavar="URL", help="The database URL. Default: PENSTOCK_DATABASE_URL or sqlite:///penstock.db."
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Ask this server instead of a database, with the key in PENSTOCK_API_KEY. Default: PENSTOCK_URL.",
    ),
]
App = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE",
        help="The code that declares the operations: pkg.module or path/to/file.py. Default: PENSTOCK_APP.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout; all other output goes to stderr.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Show at most this many entries.")]
Cursor = Annotated[
    str | None,
    typer.Option("--cursor", metavar="CURSOR", help="Continue after an earlier page: the cursor that it printed."),
]
Cause = Annotated[str | None, typer.Option("--cause", metavar="TEXT", help="The reason, kept in the event log.")]
ID_HELP = "The operation's id, its first 8 characters or more, @last or @last:NAME."
OperationId = Annotated[str, typer.Argument(metavar="ID", help=ID_HELP, autocompletion=complete_operation_id)]
OperationIdOrAll = Annotated[
    str | None,
    typer.Argument(metavar="ID", help=f"{ID_HELP} All operations if left out.", autocompletion=complete_operation_id),
]


class _Command(TyperCommand):
    """A command whose help shows no type where it says nothing: for flags, and for arguments, which have names."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class Group(TyperGroup):
    """The same for a group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


def _without_types(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: None
        elif parameter.is_flag and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


def command(
    app: typer.Typer,
    name: str,
    function: Callable[..., Any],
    *,
    example: str,
    exits: Iterable[int] = (),
    is_hidden: bool = False,
) -> None:
    """Add a command; its help is the function's docstring, and ends with an example and its exit codes."""
    paragraphs = (function.__doc__ or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    add = app.command(name, cls=_Command, help=text.strip(), epilog=help_end(example, exits), hidden=is_hidden)
    add(function)


def help_end(example: str, exits: Iterable[int] = ()) -> str:
    """The end of a help text: an example, and what the exit codes mean."""
    lines = [f"{code}: {EXIT_MEANINGS[code]}" for code in exits]
    return "\n".join([f"Example: penstock {example}", *(["\nExit codes:"] if lines else []), *lines])


def group(app: typer.Typer, name: str, *, summary: str, example: str) -> typer.Typer:
    """Add a group of commands."""
    made = typer.Typer(cls=Group, help=summary, epilog=help_end(example), no_args_is_help=True)
    app.add_typer(made, name=name)
    return made
