"""One worker process: it works until SIGTERM, and dies at the point it was told to die at."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock import Penstock, failpoints
from penstock.errors import Unavailable
from penstock.settings import Settings

from . import clocks
from .journal import Began, FileJournal, Journal
from .kinds import OPERATIONS, let_lifespans_fail
from .lifecycle_callers import stumble
from .ordeal import set_witness

__all__ = ["GAVE_UP", "live", "prepared"]

GAVE_UP = "gave up: "


def live(given: Mapping[str, Any]) -> None:
    """The life of a worker: `given` names it, its journal's folder, its settings and its point of death."""
    with prepared(given) as journal:
        set_witness(journal.note)
        let_lifespans_fail(given["failing"])
        asyncio.run(_work(journal, Settings(**given["settings"])))


@contextmanager
def prepared(given: Mapping[str, Any]) -> Iterator[Journal]:
    """What every forked process begins with: a journal, chance of its own, and its failpoint armed."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    random.seed()
    if given["clock"]:
        clocks.follow(given["clock"])
    journal = FileJournal(Path(given["folder"]), given["who"])
    point = given.get("point")
    if point:
        os.environ[failpoints.KILL_VARIABLE] = point
    failpoints.arm_from_environment()
    with failpoints.armed(_noting(journal, point)):
        try:
            yield journal
        except Unavailable as error:
            print(f"{GAVE_UP}{error}", file=sys.stderr)
            sys.exit(os.EX_TEMPFAIL)


def _noting(journal: Journal, wish: str | None) -> Callable[[str], None]:
    """Write down every point that is passed, then die at the one that was asked for."""
    point, _, count = (wish or "").partition("=")
    hits = 0
    kill = failpoints.kill_at(point, int(count or 1))

    def action(name: str) -> None:
        nonlocal hits
        hits += name == point
        journal.hit(name, kills=name == point and hits == int(count or 1))
        kill(name)

    return action


async def _work(journal: Journal, settings: Settings) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _show_tasks)
    opened = Penstock.open(operations=OPERATIONS, settings=settings, effects={"stumble": stumble})
    async with opened as penstock, penstock.worker() as worker:
        journal.write(Began(journal.moment(), journal.who, worker.lease.id))
        await worker.run(stop)


def _show_tasks() -> None:
    """Print where each task stands, for a process that should have ended."""
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)
