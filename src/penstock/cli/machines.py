"""`penstock machines`: the built-in transition tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Json, command
from penstock.cli.problems import WrongUsage

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
    from penstock.cli.screen import Screen
    from penstock.machines import built_in, machine_named

    if mermaid and as_json:
        raise WrongUsage("--mermaid and --json cannot be used together")
    found = list(built_in().values()) if name is None else [machine_named(name)]
    if mermaid:
        typer.echo("\n".join(machine.to_mermaid() for machine in found), nl=False)
        return
    documents = [machine.to_json() for machine in found]
    Screen(as_json=as_json).answer(
        lambda: {"items": documents, "nextCursor": None} if name is None else documents[0], lambda: _tables(found)
    )


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
