"""Calls that block, each on a thread of its own: those that hang must not fill the pool that everything else uses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any

__all__ = ["HUNG_MAX", "LimitedThreads", "on_thread"]

HUNG_MAX = 4  # calls that did not come back in time: no more are made until one does


async def on_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that blocks. Who stops waiting leaves its thread behind, which does not keep a process alive."""
    loop, context = asyncio.get_running_loop(), copy_context()
    result: asyncio.Future[Any] = loop.create_future()

    def run() -> None:
        try:
            settle = partial(_set, result, context.run(function, *arguments), None)
        except Exception as error:
            settle = partial(_set, result, None, error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle)

    threading.Thread(target=run, daemon=True, name=getattr(function, "__qualname__", "call")).start()
    return await result


def _set(result: asyncio.Future[Any], outcome: Any, error: Exception | None) -> None:
    if result.done():
        return  # nobody waits any more
    if error is None:
        result.set_result(outcome)
    else:
        result.set_exception(error)


class LimitedThreads:
    """Calls of one owner's functions on threads. One that nobody waits for any more counts as hung until it returns."""

    def __init__(self) -> None:
        self._hung = 0

    async def call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Call a function that blocks; `TimeoutError` while `HUNG_MAX` earlier calls hang."""
        if self._hung >= HUNG_MAX:
            raise TimeoutError(f"{self._hung} earlier calls have not come back")
        loop, waited = asyncio.get_running_loop(), [True]

        def call() -> Any:
            try:
                return function(argument)
            finally:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._returned, waited)

        try:
            return await on_thread(call)
        except asyncio.CancelledError:
            waited[0] = False
            self._hung += 1
            raise

    def _returned(self, waited: list[bool]) -> None:
        if not waited[0]:
            self._hung -= 1
