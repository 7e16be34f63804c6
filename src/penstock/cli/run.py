"""`penstock run`: store a file, run it in this process and print the result."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.completion import complete_operation_id
from penstock.cli.inputs import (
    FILE_ARGUMENT,
    NAME_ARGUMENT,
    Meta,
    MetaFile,
    Set,
    existing_file,
    metadata,
    overrides,
)
from penstock.cli.options import App, Db, Json, command
from penstock.cli.problems import INTERRUPTED, ONLY_SIGNALS_AWAITED, WrongUsage
from penstock.cli.session import Place, exact_id, opened
from penstock.cli.stopping import stop_on_signals
from penstock.cli.worker_processes import worker_processes
from penstock.errors import NotFound, Unavailable
from penstock.printable import counted, short_id

if TYPE_CHECKING:
    from penstock.cli.progress import Display
    from penstock.engine import Penstock
    from penstock.operations.model import ErrorGroup, Operation
    from penstock.pipeline import Definition

__all__ = ["EXIT_CODES", "add_to", "only_waits_remain", "run"]

# Anything else than these is an operation that stays, because we were interrupted.
EXIT_CODES = {"Completed": 0, "CompletedWithErrors": 3, "Failed": 1, "Cancelled": 4}
GROUPS_SHOWN = 5
LOOK_S = 0.25


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    example = "run price-update prices.csv --app shop.py --meta currency=EUR"
    command(app, "run", run, example=example, exits=(0, 1, 2, 3, 4, 5, 75, 130))


def run(
    operation: Annotated[str | None, NAME_ARGUMENT] = None,
    file: Annotated[str | None, FILE_ARGUMENT] = None,
    *,
    meta: Meta = None,
    meta_file: MetaFile = None,
    options: Set = None,
    continue_id: Annotated[
        str | None,
        typer.Option(
            "--continue",
            metavar="ID",
            help="Continue an existing operation until it has ended.",
            autocompletion=complete_operation_id,
        ),
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Exit with 5 as soon as all remaining rows wait for signals.")
    ] = False,
    workers: Annotated[
        int, typer.Option("--workers", metavar="N", min=1, max=64, help="Number of processes, including this one.")
    ] = 1,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Do not show progress on stderr.")] = False,
    db: Db = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Run a file through an operation, wait until it has ended, and print the result.

    The file is stored first. An interrupted operation continues where it stopped, with --continue.
    """
    from penstock.cli.progress import display

    place = Place(db, app)
    request = _request(
        place, operation=operation, file=file, continue_id=continue_id, meta=meta, meta_file=meta_file, options=options
    )
    with display(is_wanted=not no_progress) as show:
        found, groups, is_leaving = asyncio.run(_work(place, request, show, no_wait=no_wait, workers=workers))
    _answer(place, found, groups, is_leaving=is_leaving, as_json=as_json)
    raise typer.Exit(EXIT_CODES.get(found.status, ONLY_SIGNALS_AWAITED if is_leaving else INTERRUPTED))


def _announce(place: Place, operation: Operation, show: Display) -> None:
    """Say which operation this is before any row runs, so that it can be found whatever happens to this process."""
    show.say(f"Operation {operation.id} ({operation.name})")
    show.say("To continue it after an interruption:")
    show.say(f"  {place.command('run', '--continue', operation.id, app=True)}")


async def _stop_when_only_signals_remain(
    penstock: Penstock, operation: str, stop: asyncio.Event, *, is_wanted: bool
) -> bool:
    """Set `stop` as soon as every row that is left waits for a signal that nobody has sent yet; says whether it was.

    A row whose step is polled does not count: this process asks the checks, and nobody might when it has gone.
    """
    while is_wanted and not stop.is_set():
        with contextlib.suppress(Unavailable):  # whoever works on it says so
            now = await penstock.operations.get(operation)
            if only_waits_remain(now) and await penstock.signals.are_all_outstanding(operation):
                stop.set()
                return True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), LOOK_S)
    return False


def only_waits_remain(operation: Operation) -> bool:
    """Whether every row has its verdict but those that wait."""
    undecided = operation.total_rows - operation.processed_rows - operation.cancelled_rows
    return operation.status == "Running" and 0 < undecided == operation.waiting_rows


@dataclass(frozen=True)
class Request:
    """What is to be run: an operation over a file, or an operation that exists."""

    definitions: tuple[Definition, ...]
    definition: Definition | None = None
    file: Path | None = None
    metadata: dict[str, Any] | None = None
    options: dict[str, str] | None = None
    continue_id: str | None = None


def _request(
    place: Place,
    *,
    operation: str | None,
    file: str | None,
    continue_id: str | None,
    meta: list[str] | None,
    meta_file: str | None,
    options: list[str] | None,
) -> Request:
    """Everything that can be refused before a database is opened."""
    if continue_id is not None:
        if operation or file or meta or meta_file or options:
            raise WrongUsage(
                "--continue continues an operation as it was created; "
                "leave out OPERATION, FILE, --meta, --meta-file and --set"
            )
        return Request(place.definitions(), continue_id=continue_id)
    if operation is None or file is None:
        raise WrongUsage("name an operation and a file: penstock run OPERATION FILE, or --continue ID")
    definition = place.definition(operation)
    given = metadata(meta, meta_file, (definition,))
    return Request((definition,), definition, existing_file(file), given, overrides(options) or None)


async def _work(
    place: Place, request: Request, show: Display, *, no_wait: bool, workers: int
) -> tuple[Operation, Sequence[ErrorGroup], bool]:
    """The operation as it stands at the end, its errors, and whether it was left because only signals are awaited."""
    with stop_on_signals() as stop:
        async with opened(place, definitions=request.definitions, makes=request.continue_id is None) as penstock:
            operation, is_leaving = await _begin(penstock, request), False
            if not operation.is_settled:
                _announce(place, operation, show)
                show(operation)
                async with worker_processes(place, workers - 1, stop) as processes:
                    leaving = asyncio.create_task(
                        _stop_when_only_signals_remain(penstock, operation.id, stop, is_wanted=no_wait)
                    )
                    try:
                        operation = await penstock.run_until_done(
                            operation.id, watch=show, stop=stop, owns_process=True
                        )
                    finally:
                        stop.set()
                        is_leaving = await leaving
                show(operation)
                if processes.failure is not None and not operation.is_settled:
                    raise Unavailable(f"{processes.failure}. {_left_open(place, operation)}")
            return operation, await penstock.operations.error_groups(operation.id, limit=GROUPS_SHOWN), is_leaving


async def _begin(penstock: Penstock, request: Request) -> Operation:
    if request.definition is not None and request.file is not None:
        return await penstock.operations.create(
            request.definition, file=request.file, metadata=request.metadata, options=request.options
        )
    assert request.continue_id is not None
    operation = await penstock.operations.get(await exact_id(penstock, request.continue_id))
    if operation.name.casefold() not in penstock.definitions:
        known = ", ".join(definition.name for definition in request.definitions)
        raise NotFound(
            f"the operation's name is {operation.name!r}, which the application does not declare; it declares: {known}"
        )
    return operation


def _left_open(place: Place, operation: Operation) -> str:
    """How an operation that is not settled stands, and the command that goes on with it."""
    done = (
        f"{operation.processed_rows:,} of {operation.total_rows:,} rows done" if operation.total_rows else "not begun"
    )
    command_line = place.command("run", "--continue", operation.id, app=True)
    return f"Operation {operation.id} is {operation.status} ({done}). To continue it:\n  {command_line}"


def _say_farewell(place: Place, operation: Operation, *, is_leaving: bool) -> None:
    why = (
        f"all remaining rows wait for signals ({counted(operation.waiting_rows, 'row')})"
        if is_leaving
        else "interrupted"
    )
    print(f"penstock: {why}. {_left_open(place, operation)}", file=sys.stderr)


def _answer(
    place: Place, operation: Operation, groups: Sequence[ErrorGroup], *, is_leaving: bool, as_json: bool
) -> None:
    from penstock.cli import views
    from penstock.cli.screen import Screen
    from penstock.resources import operation as resource

    screen = Screen(as_json=as_json)
    if operation.is_settled:
        all_groups = place.command("ops", "errors", short_id(operation.id), "--groups")
        screen.show(*views.verdict(operation, groups, next_steps(place, operation), all_groups=all_groups))
    else:
        _say_farewell(place, operation, is_leaving=is_leaving)
    if as_json:
        screen.document(resource(operation))


def next_steps(place: Place, operation: Operation) -> list[str]:
    """Commands that are worth a try after this verdict."""
    name = short_id(operation.id)
    tries = [place.command("ops", "show", name)]
    if operation.failed_rows:
        by_state = {
            "Failed": operation.failed_rows - operation.invalid_rows - operation.timed_out_rows,
            "Invalid": operation.invalid_rows,
            "TimedOut": operation.timed_out_rows,
        }
        states = [word for state, rows in by_state.items() if rows for word in ("--state", state)]
        tries = [place.command("ops", "errors", name), place.command("ops", "rows", name, *states)]
    return [*tries, place.command("verify", name)]
