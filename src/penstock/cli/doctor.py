"""`penstock doctor`: check the installation, and say what to do about problems."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import typer

from penstock.cli.options import Db, Json, command
from penstock.cli.session import Place, require_database
from penstock.printable import counted, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from penstock.operations.proof.symptoms import Diagnosis, Facts, Symptom

__all__ = ["add_to", "doctor"]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "doctor", doctor, example="doctor --db postgresql://penstock@localhost/penstock")


def doctor(db: Db = None, as_json: Json = False) -> None:
    """Check the database, workers, open operations and file storage, and suggest what to do.

    Exits with 0 when there are no problems, with 1 when there are.
    """
    from penstock import resources
    from penstock.cli.screen import Screen
    from penstock.clock import SystemClock
    from penstock.operations.proof.doctor import diagnose

    place = Place(db)
    require_database(place)
    found = asyncio.run(diagnose(place.settings(), SystemClock()))
    Screen(as_json=as_json).answer(lambda: resources.diagnosis(found), lambda: _people(found))
    raise typer.Exit(0 if found.is_healthy else 1)


def _people(found: Diagnosis) -> Iterator[RenderableType]:
    from rich.text import Text

    from penstock.cli import views

    yield views.facts(_seen(found.facts))
    for symptom in found.symptoms:
        yield _described(symptom)
    problems = sum(symptom.is_problem for symptom in found.symptoms)
    if problems:
        yield Text(f"\n{counted(problems, 'problem')} found.", style="red")
    else:
        yield Text("\nNo problems found.", style="green")


def _seen(facts: Facts) -> dict[str, str]:
    if facts.trouble is not None:
        return {"Database": "not reachable", "Storage": facts.storage}
    if facts.damage is not None:
        return {"Database": "damaged", "Storage": facts.storage}
    counts = Counter(worker.state for worker in facts.workers)
    return {
        "Database": f"{facts.database} {facts.version}",
        "Schema": facts.revision or "missing",
        "Workers": ", ".join(f"{number} {state}" for state, number in counts.items()) or "none",
        "Open operations": f"{len(facts.operations):,}",
        "Kept": (facts.keep or "everything, for ever") + (f"; {facts.held:,} held" if facts.held else ""),
        "Storage": facts.storage,
    }


def _described(symptom: Symptom) -> RenderableType:
    from rich.text import Text

    style = "red" if symptom.is_problem else "yellow"
    title = Text(f"\n{'Problem' if symptom.is_problem else 'Note'}: {printable(symptom.what)}\n", style=style)
    return title.append(f"  why:  {symptom.why}\n  do:   {printable(symptom.remedy)}", style="default")
