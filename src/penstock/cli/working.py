"""Working in this process until an operation is settled or a signal asks us to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from penstock.errors import Unavailable

if TYPE_CHECKING:
    from penstock.cli.progress import Display
    from penstock.engine import Penstock
    from penstock.operations.model import Operation

__all__ = ["stop_on_signals", "work"]

log = logging.getLogger("penstock.cli")

LOOK_EVERY_S = 0.25
SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def work(penstock: Penstock, operation: str, stop: asyncio.Event, show: Display) -> Operation:
    """Work until the operation is settled or `stop` is set; rows in hand are finished first.

    Stopping is an event rather than a cancellation, which would tear the worker away from a chunk it is just claiming.
    """
    async with penstock.worker() as worker:
        watcher = asyncio.create_task(_watch(penstock, operation, stop, show))
        try:
            await worker.run(stop)
        finally:
            stop.set()
            await watcher
    return await penstock.operations.get(operation)


async def _watch(penstock: Penstock, operation: str, stop: asyncio.Event, show: Display) -> None:
    try:
        while not stop.is_set():
            try:
                now = await penstock.operations.get(operation)
            except Unavailable as error:
                log.warning("progress is unknown: %s", error)
            else:
                show(now)
                if now.is_settled:
                    return
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_EVERY_S)
    finally:
        stop.set()


@contextmanager
def stop_on_signals() -> Iterator[asyncio.Event]:
    """An event that the first SIGINT or SIGTERM sets; a second one ends the process."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def on_signal() -> None:
        print("penstock: finishing the rows in hand; once more to stop at once", file=sys.stderr, flush=True)
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        stop.set()

    before = [signal.getsignal(number) for number in SIGNALS]
    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
