"""Calls that block, each on a thread of its own: those that hang must not fill the pool that everything else uses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

__all__ = ["on_thread"]


async def on_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that blocks. Who stops waiting leaves its thread behind, which does not keep a process alive."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def run() -> None:
        try:
            settle = partial(_set, result, function(*arguments), None)
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
