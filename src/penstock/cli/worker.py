"""`penstock worker`: claim what is due and run it, until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import App, Db, Json, command
from penstock.cli.session import Place, log_to_stderr, opened
from penstock.cli.stopping import stop_on_signals, stop_when_stdin_closes
from penstock.errors import DatabaseUnready, DatabaseUnsafe, SettingsInvalid, Unavailable

if TYPE_CHECKING:
    from penstock.pipeline import Definition

__all__ = ["add_to", "pause_after", "pauses", "worker"]

log = logging.getLogger("penstock.worker")

PAUSE_S = 0.5
PAUSE_MAX_S = 15.0


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    example = "worker --app shop.py --db postgresql://penstock@localhost/penstock"
    command(app, "worker", worker, example=example, exits=(0, 1, 2, 75))


def worker(
    stop_with_stdin: Annotated[
        bool,
        typer.Option(
            "--stop-with-stdin",
            help="Stop when stdin is closed, as it is when the process that started this one has ended.",
        ),
    ] = False,
    db: Db = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Run the application's operations as they are submitted, until SIGTERM or Ctrl-C.

    After the first signal running rows may finish (setting shutdown_s), and other rows are released to other workers. A
    second signal ends the process at once. With --json one document is printed at the end.
    """
    from penstock import failpoints
    from penstock.cli.screen import Screen

    failpoints.arm_from_environment()
    if stop_with_stdin:
        stop_when_stdin_closes()
    place = Place(db, app)
    definitions = place.definitions()
    settings = place.settings()
    if settings.storage_fault is not None:  # said at once, not when the database is there
        raise SettingsInvalid(settings.storage_fault)
    log_to_stderr(settings.log_level, with_time=True, as_json=settings.log_format == "json")
    starts = asyncio.run(_serve(place, definitions))
    if as_json:
        names = sorted(definition.name for definition in definitions)
        Screen(as_json=True).document({"process": os.getpid(), "operations": names, "starts": starts})


async def _serve(place: Place, definitions: tuple[Definition, ...]) -> int:
    """Work until told to stop, beginning anew whenever the database was away; says how often work was begun."""
    from penstock.settings import masked

    starts, names = 0, ", ".join(sorted(definition.name for definition in definitions))
    where = masked(place.settings().database_url)
    with stop_on_signals() as stop:
        between = pauses()
        while not stop.is_set():
            before = starts
            try:
                async with (
                    opened(place, definitions=definitions, makes=True) as penstock,
                    penstock.worker(owns_process=True) as hands,
                ):
                    starts += 1
                    log.info("worker %s (process %d) runs %s on %s", hands.lease.id, os.getpid(), names, where)
                    await hands.run(stop)
            except (DatabaseUnready, DatabaseUnsafe):
                raise
            except Unavailable as error:
                if starts > before:
                    between = pauses()
                await pause_after(stop, next(between), error)
    log.info("stopped; results are recorded, unfinished rows are released")
    return starts


async def pause_after(stop: asyncio.Event, pause_s: float, error: Unavailable) -> None:
    """Say what is missing, and wait before the next try."""
    log.warning("%s; trying again in %.1f s", error, pause_s)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), pause_s)


def pauses() -> Iterator[float]:
    """How long to wait before each new try: longer every time, up to a limit."""
    pause_s = PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, PAUSE_MAX_S)
