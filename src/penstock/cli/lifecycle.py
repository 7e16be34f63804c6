"""`penstock lifecycle import|export|diff|list|versions|show|diagram…`: definitions of lifecycles."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import lifecycle_instances
from penstock.cli.inputs import output_file
from penstock.cli.lifecycle_session import Environment, Tenant, VersionOption, ask_lifecycles
from penstock.cli.options import Db, Json, command, group
from penstock.cli.session import Place
from penstock.printable import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.lifecycles.model import Count, Import
    from penstock.lifecycles.rules.comparing import Change
    from penstock.lifecycles.rules.graph import Graph
    from penstock.lifecycles.service import Lifecycles

__all__ = ["add_to"]

Name = Annotated[str, typer.Argument(metavar="NAME", help="The definition's name; case does not matter.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    made = group(
        app,
        "lifecycle",
        summary="Define state machines, start instances of them, and move them.",
        example="lifecycle import order.json",
    )
    command(made, "import", import_file, example="lifecycle import order.json")
    command(made, "export", export, example="lifecycle export order --version 1.0.0")
    command(made, "diff", diff, example="lifecycle diff order 1.0.0 1.1.0")
    command(made, "list", list_definitions, example="lifecycle list")
    command(made, "versions", versions, example="lifecycle versions order")
    command(made, "show", show, example="lifecycle show order")
    command(made, "diagram", diagram, example="lifecycle diagram order --svg > order.svg")
    command(made, "categories", categories, example="lifecycle categories")
    lifecycle_instances.add_to(made)


def import_file(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A JSON document; - reads standard input.")],
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse what there would be warnings about.")] = False,
    tenant: Tenant = "",
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Import a definition from a JSON document; the same again changes nothing."""
    from penstock import lifecycle_resources
    from penstock.cli.screen import Screen

    place = Place(db)
    original = sys.stdin.buffer.read() if file == "-" else None

    async def question(lifecycles: Lifecycles) -> Import:
        if original is not None:
            return await lifecycles.import_text(original, strict=strict)
        return await lifecycles.import_file(file, strict=strict)

    found = ask_lifecycles(place, tenant, question, makes=True)

    def people() -> Iterator[RenderableType]:
        from rich.text import Text

        from penstock.cli import views

        title = f"{found.name} {found.label or found.version_code} in {found.environment_label}"
        if found.unchanged:
            yield Text(f"{title} is there already; nothing was changed.")
        else:
            parts = (counted(found.states, "state"), counted(found.events, "event"))
            yield Text(
                f"Imported {title}: {', '.join(parts)}, {counted(found.transitions, 'transition')}.", style="green"
            )
        yield from (Text(f"  warning: {warning}", style="yellow") for warning in found.warnings)
        yield from views.try_next([place.command("lifecycle", "show", found.name)])

    Screen(as_json=as_json).answer(lambda: lifecycle_resources.imported(found), people)


def export(
    name: Name,
    *,
    version: VersionOption = None,
    env: Environment = None,
    out: Annotated[str | None, typer.Option("--out", metavar="FILE", help="Write to a file instead.")] = None,
    tenant: Tenant = "",
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Print the document that a version was imported from, byte for byte."""
    from penstock.cli.screen import Screen

    place = None if out is None else output_file("--out", out)
    found = ask_lifecycles(Place(db), tenant, lambda it: it.export(name, version=version, environment=env))
    if place is not None:
        place.write_bytes(found)
    elif as_json:
        Screen(as_json=True).document(json.loads(found))
    else:
        sys.stdout.write(found.decode())


def diff(
    name: Name,
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="The earlier version, by label or number.")],
    after: Annotated[
        str | None, typer.Argument(metavar="AFTER", help="The later version; the latest if left out.")
    ] = None,
    *,
    env: Environment = None,
    tenant: Tenant = "",
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Say what a version adds, removes and changes, compared with an earlier one."""
    from penstock import lifecycle_resources, resources
    from penstock.cli.screen import Screen

    found = ask_lifecycles(Place(db), tenant, lambda it: it.diff(name, before, after, environment=env))
    Screen(as_json=as_json).answer(
        lambda: resources.listing(found, lifecycle_resources.change), lambda: _changes(found)
    )


def _changes(found: list[Change]) -> Iterator[RenderableType]:
    from rich.text import Text

    styles = {"+": "green", "-": "red", "~": "yellow"}
    yield from (Text(str(each), style=styles[each.sign]) for each in found)
    if not found:
        yield Text("The two versions are the same.")


def list_definitions(*, tenant: Tenant = "", db: Db = None, as_json: Json = False) -> None:
    """List the definitions, with their latest version and how many instances they have."""
    from penstock import lifecycle_resources, resources
    from penstock.cli import lifecycle_views, views
    from penstock.cli.screen import Screen
    from penstock.lifecycles.overview import overview

    shown = ask_lifecycles(Place(db), tenant, overview)
    Screen(as_json=as_json).answer(
        lambda: resources.listing(shown, lambda each: {**lifecycle_resources.version(each[0]), "instances": each[1]}),
        lambda: [lifecycle_views.definitions(shown) if shown else views.nothing("definition")],
    )


def versions(name: Name, *, env: Environment = None, tenant: Tenant = "", db: Db = None, as_json: Json = False) -> None:
    """List the versions of a definition, newest first."""
    from penstock import lifecycle_resources, resources
    from penstock.cli import lifecycle_views
    from penstock.cli.screen import Screen

    found = ask_lifecycles(Place(db), tenant, lambda it: it.versions(name, environment=env))
    Screen(as_json=as_json).answer(
        lambda: resources.listing(found, lifecycle_resources.version), lambda: [lifecycle_views.versions(found)]
    )


def show(
    name: Name,
    *,
    version: VersionOption = None,
    env: Environment = None,
    tenant: Tenant = "",
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Draw a definition, or a built-in machine: its states, where each leads, and how many are in it."""
    from penstock import lifecycle_resources
    from penstock.cli import lifecycle_views
    from penstock.cli.built_in import graph_of
    from penstock.cli.screen import Screen
    from penstock.machines import find_machine

    async def question(it: Lifecycles) -> tuple[Graph, list[Count]]:
        machine = find_machine(name)
        if machine is not None and not await _is_defined(it, name):
            return graph_of(machine), []
        graph = await it.graph(name, version=version, environment=env)
        counts = await it.counts(definition=graph.version.definition.id, version=graph.version.number)
        return graph, counts

    graph, counts = ask_lifecycles(Place(db), tenant, question)

    def document() -> dict[str, Any]:
        from penstock.graphs.writing import document_of

        made = {**lifecycle_resources.version(graph.version), "document": document_of(graph.document())}
        return {**made, "counts": [lifecycle_resources.count(each) for each in counts]}

    Screen(as_json=as_json).answer(document, lambda: lifecycle_views.graph(graph, counts))


async def _is_defined(it: Lifecycles, name: str) -> bool:
    """Whether a definition has this name: one of our machines is meant only if none has."""
    from penstock.graphs.names import name_key

    return any(name_key(each.name) == name_key(name) for each in await it.definitions())


def diagram(
    name: Name,
    *,
    version: VersionOption = None,
    env: Environment = None,
    svg: Annotated[bool, typer.Option("--svg", help="Draw an SVG picture instead of Mermaid text.")] = False,
    tenant: Tenant = "",
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Print a version as a Mermaid state diagram, or as an SVG picture."""
    from penstock.cli.screen import Screen

    form = "svg" if svg else "mermaid"

    async def question(it: Lifecycles) -> str:
        from penstock.cli.built_in import graph_of
        from penstock.lifecycles.rules.drawing import to_svg
        from penstock.machines import find_machine

        machine = find_machine(name)
        if machine is not None and not await _is_defined(it, name):
            return to_svg(graph_of(machine).document()) if svg else machine.to_mermaid()
        return await it.diagram(name, version=version, environment=env, form=form)

    found = ask_lifecycles(Place(db), tenant, question)
    if as_json:
        Screen(as_json=True).document({"form": form, "diagram": found})
    else:
        typer.echo(found, nl=False)


def categories(*, tenant: Tenant = "", db: Db = None, as_json: Json = False) -> None:
    """List the categories that group states."""
    from rich.text import Text

    from penstock import resources
    from penstock.cli.screen import Screen

    found = ask_lifecycles(Place(db), tenant, lambda it: it.categories())
    Screen(as_json=as_json).answer(
        lambda: resources.listing(found, lambda each: {"id": each.id, "name": each.name}),
        lambda: [Text(each.name) for each in found] or [Text("There are no categories.")],
    )
