"""Worker processes beside a command: started with it, replaced when they end, stopped when it stops.

They hold the reading end of a pipe as their stdin. Its other end closes with this process, however it ends, and a
worker whose stdin closes stops as if it were sent SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from penstock.printable import printable

if TYPE_CHECKING:
    from penstock.cli.session import Place

__all__ = ["QUICK_ENDS_MAX", "QUICK_S", "Restarts", "WorkerProcesses", "worker_processes"]

QUICK_S = 60.0  # a process that ends sooner than this has a fault that a restart may not help
QUICK_ENDS_MAX = 5
PAUSE_S = 0.2
STOP_MARGIN_S = 15.0  # beyond the time that a stopping worker gives its running steps
OUTPUT_CHARS = 2000
OUTPUT_LINES = 12


@dataclass
class Restarts:
    """When a process that ended by itself is started again."""

    quick_ends: int = 0

    def pause_s(self, lived_s: float) -> float | None:
        """How long to wait first: twice as long after each quick end; None when there were too many in a row."""
        self.quick_ends = self.quick_ends + 1 if lived_s < QUICK_S else 1
        return None if self.quick_ends >= QUICK_ENDS_MAX else PAUSE_S * 2 ** (self.quick_ends - 1)


@asynccontextmanager
async def worker_processes(place: Place, count: int, stop: asyncio.Event) -> AsyncIterator[WorkerProcesses]:
    """Keep so many `penstock worker` processes beside this one until `stop` is set, and wait for their end.

    `stop` is set when they end again and again; `failure` then says why.
    """
    reading, writing = os.pipe()
    processes = WorkerProcesses(place, stdin=reading, stop=stop)
    # This process is the first.
    kept = [asyncio.create_task(processes.keep(number)) for number in range(2, count + 2)]
    try:
        yield processes
    finally:
        stop.set()
        await asyncio.gather(*kept)
        os.close(reading)
        os.close(writing)


class WorkerProcesses:
    """The processes beside this one. Each end that was not asked for is told at once."""

    def __init__(self, place: Place, *, stdin: int, stop: asyncio.Event) -> None:
        settings = place.settings()
        # Not on the command line, where every user of the machine could read a password.
        given = {"DATABASE_URL": settings.database_url, "APP": settings.app, "STORAGE_URL": settings.storage_url}
        self._environment = {**os.environ, "PENSTOCK_LOG_LEVEL": "warning"}
        self._environment |= {f"PENSTOCK_{name}": value for name, value in given.items() if value is not None}
        self._stop_s = settings.shutdown_s + STOP_MARGIN_S
        self._stdin, self._stop = stdin, stop
        self.failure: str | None = None

    async def keep(self, number: int) -> None:
        """Run one process, and another one whenever it ends, until told to stop."""
        restarts = Restarts()
        while not self._stop.is_set():
            began = time.monotonic()
            end = await self._run_one(number)
            if self._stop.is_set():
                return
            pause_s = restarts.pause_s(time.monotonic() - began)
            if pause_s is None:
                self.failure = (
                    f"worker process {number} ended {QUICK_ENDS_MAX} times in a row, each time within {QUICK_S:.0f} s "
                    f"of its start; the last one {end}"
                )
                self._stop.set()
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause_s)

    async def _run_one(self, number: int) -> str:
        """Run one process to its end and say how it ended; told to the user unless it was asked to stop."""
        # A file and not a pipe: a step that prints must not fail because nobody reads any more.
        with tempfile.TemporaryFile() as stderr:
            try:
                process = await self._start(stderr)
            except OSError as error:
                end = f"could not be started: {error}"
                _tell(f"worker process {number} {end}", "")
                return end
            await self._until_end(process)
            end = _described(process.returncode or 0)
            is_expected = self._stop.is_set() and process.returncode in (0, -signal.SIGTERM)
            if not is_expected:
                _tell(f"worker process {number} (pid {process.pid}) {end}", _last_lines(stderr))
            return end

    async def _start(self, stderr: IO[bytes]) -> Process:
        # In a session of its own, so that Ctrl-C reaches this process alone, which then stops the others.
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "penstock", "worker", "--stop-with-stdin",
            stdin=self._stdin, stdout=DEVNULL, stderr=stderr, env=self._environment, start_new_session=True,
        )  # fmt: skip

    async def _until_end(self, process: Process) -> None:
        """Wait for the end, and bring it about when told to stop."""
        ended, told = asyncio.ensure_future(process.wait()), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({ended, told}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                process.terminate()
                await asyncio.wait({ended}, timeout=self._stop_s)
            if not ended.done():
                process.kill()
            await ended
        finally:
            told.cancel()


def _described(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _last_lines(stderr: IO[bytes]) -> str:
    """The end of what a process wrote; read without moving the place at which it writes."""
    size = os.fstat(stderr.fileno()).st_size
    end = os.pread(stderr.fileno(), OUTPUT_CHARS, max(0, size - OUTPUT_CHARS)).decode(errors="replace")
    return "\n".join(f"    {printable(line)}" for line in end.strip().splitlines()[-OUTPUT_LINES:])


def _tell(what: str, output: str) -> None:
    shown = f". Its last output:\n{output}" if output else ""
    print(f"penstock: {what}{shown}", file=sys.stderr, flush=True)
