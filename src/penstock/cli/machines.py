"""`penstock machines`: the built-in transition tables."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Json, command
from penstock.cli.problems import WrongUsage
from penstock.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from penstock.machine import Machine

__all__ = ["add_to", "machines"]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "machines", machines, example="machines row-step --mermaid")


def machines(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="operation, row-step, idempotency-key, blob or delivery. Default: all."),
    ] = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print Mermaid state diagrams instead of tables.")] = False,
    as_json: Json = False,
) -> None:
    """Print the built-in state machines as tables."""
    from penstock.cli.built_in import built_in
    from penstock.cli.screen import Screen

    if mermaid and as_json:
        raise WrongUsage("--mermaid and --json cannot be used together")
    found = list(built_in().values()) if name is None else [_find(name)]
    if mermaid:
        typer.echo("\n".join(machine.to_mermaid() for machine in found), nl=False)
        return
    documents = [machine.to_json() for machine in found]
    Screen(as_json=as_json).answer(
        lambda: {"items": documents, "nextCursor": None} if name is None else documents[0], lambda: _tables(found)
    )


def _find(name: str) -> Machine:
    """The machine of this name, or `NotFound` with what may have been meant."""
    from penstock.cli.built_in import built_in, letters, machine_named

    found = machine_named(name)
    if found is not None:
        return found
    known = {letters(machine.name): machine for machine in built_in().values()}
    near = get_close_matches(letters(name), known, 1)
    hint = f"did you mean {known[near[0]].name!r}? " if near else ""
    raise NotFound(f"unknown machine {name!r}; {hint}known: {', '.join(built_in())}")


def _tables(found: Sequence[Machine]) -> Iterator[RenderableType]:
    from rich.text import Text

    from penstock.cli import views
    from penstock.cli.tables import table

    for machine in found:
        settled = ", ".join(state for state in machine.states if machine.is_settled(state))
        yield views.heading(machine.name)
        yield Text(f"initial state: {machine.initial}; settled states: {settled}\n", style="dim")
        yield table(
            "FROM", "EVENT", "TO",
            rows=[(views.state(t.source), t.event, views.state(t.target)) for t in machine.transitions],
        )  # fmt: skip
