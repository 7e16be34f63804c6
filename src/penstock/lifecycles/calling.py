"""Calls of users' functions: guards, effects and handlers. One that hangs or blocks must stop nobody else."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from penstock.outbox.threads import LimitedThreads
from penstock.pipeline.signatures import is_async

__all__ = ["LimitedCall", "limited"]


class LimitedCall:
    """A user's function of one argument, sync or async, with a time limit; a plain function runs on a thread."""

    def __init__(self, function: Callable[[Any], Any], timeout_s: float) -> None:
        self._function, self._timeout_s, self._threads = function, timeout_s, LimitedThreads()

    async def __call__(self, argument: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                if is_async(self._function):
                    return await self._function(argument)
                answer = await self._threads.call(self._function, argument)
                return await answer if inspect.isawaitable(answer) else answer
        except TimeoutError as error:
            if limit.expired():
                raise TimeoutError(f"it took longer than {self._timeout_s:g} s") from error
            raise


def limited(functions: Mapping[str, Callable[[Any], Any]], timeout_s: float) -> dict[str, LimitedCall]:
    """The same functions, each with a time limit."""
    return {name: LimitedCall(function, timeout_s) for name, function in functions.items()}
