"""`penstock machines`: the built-in transition tables."""

from __future__ import annotations

import re
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

__all__ = ["add_to", "built_in", "machines"]


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


def built_in() -> dict[str, Machine]:
    """The machines of this release, by name."""
    from penstock.blobs.states import BLOB
    from penstock.idempotency.states import IDEMPOTENCY_KEY
    from penstock.operations.states import OPERATION, ROW_STEP
    from penstock.outbox.states import DELIVERY

    return {machine.name: machine for machine in (OPERATION, ROW_STEP, IDEMPOTENCY_KEY, BLOB, DELIVERY)}


def _find(name: str) -> Machine:
    """The machine meant by "row step", "row-step", "RowStep", "row_step"…"""
    known = {_letters(machine.name): machine for machine in built_in().values()}
    if _letters(name) in known:
        return known[_letters(name)]
    near = get_close_matches(_letters(name), known, 1)
    hint = f"did you mean {known[near[0]].name!r}? " if near else ""
    raise NotFound(f"unknown machine {name!r}; {hint}known: {', '.join(built_in())}")


def _letters(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())


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
