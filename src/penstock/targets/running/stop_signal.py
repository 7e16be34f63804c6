"""Whether a bulk call must end early, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock.targets.results import StoppedReason

__all__ = ["StopSignal"]

Told = TypeVar("Told")

BY_CALLER: frozenset[StoppedReason] = frozenset({"cancelled", "deadline"})


class StopSignal:
    """The first reason to stop counts. Those who must know at once register with `on_stop`."""

    def __init__(self) -> None:
        self.reason: StoppedReason | None = None
        self.error: BaseException | None = None
        self._told_by_caller = asyncio.Event()
        self._hooks: list[Callable[[], None]] = []

    @property
    def is_set(self) -> bool:
        """Whether the call must end."""
        return self.reason is not None

    def stop(self, reason: StoppedReason, error: BaseException | None = None) -> None:
        """End the call. When it is already ending, a caller's reason still limits the wait for what is in flight."""
        if reason in BY_CALLER:
            self._told_by_caller.set()
        if self.reason is None:
            self.reason, self.error = reason, error
            for hook in self._hooks:
                hook()

    def on_stop(self, hook: Callable[[], None]) -> None:
        """Call `hook` when the call must end."""
        self._hooks.append(hook)

    async def wait_for_caller(self) -> None:
        """Return when the caller wants the call to end: from then on what is in flight has only the grace."""
        await self._told_by_caller.wait()

    async def guard(self, work: Coroutine[Any, Any, Told]) -> Told | None:
        """Do something unless the call must end before it is done; then it is cancelled, and None."""
        task = asyncio.ensure_future(work)
        self.on_stop(lambda: None if task.done() else _cancel(task))
        if self.is_set:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not self.is_set or (current is not None and current.cancelling()):
                raise
            return None


def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
