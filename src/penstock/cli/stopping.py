"""Stopping when the terminal or the system asks: gracefully at first, at once when it asks again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["stop_on_signals", "stop_when_stdin_closes"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signals(doing: str = "finishing running rows") -> Iterator[asyncio.Event]:
    """An event that the first SIGINT or SIGTERM sets; a second one ends the process. `doing` is what is said then."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def on_signal() -> None:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        # Only now does a second signal do what this says.
        print(f"penstock: {doing}; press Ctrl-C again to stop now", file=sys.stderr, flush=True)
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


def stop_when_stdin_closes() -> None:
    """Send this process SIGTERM when its stdin ends; whoever reads stdin from here on finds it empty."""
    watched = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)

    def watch() -> None:
        while os.read(watched, 1024):
            pass
        # Whether it is the first word or the second is for the handler to say.
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="stdin", daemon=True).start()
