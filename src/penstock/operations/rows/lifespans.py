"""The pipelines of this process: each is made when first needed, by entering its lifespan."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from penstock.errors import OperationUnready
from penstock.pipeline import Definition

__all__ = ["Lifespans"]

log = logging.getLogger("penstock")


LEAVE_S = 60.0  # how long it may take to leave all of them at the end


@dataclass(slots=True)
class _Lifespan:
    task: asyncio.Task[None]
    pipeline: asyncio.Future[object]
    is_over: bool = False  # its pipeline may not be used any more, though it may take long to be left


class Lifespans:
    """Lifespans by operation name, each entered once. One that could not be entered, or that ended by itself because
    something in it failed, is entered again when somebody asks.

    Each is entered and left by a task of its own, as task groups and cancel scopes inside it need.
    """

    def __init__(self) -> None:
        self._lifespans: dict[str, _Lifespan] = {}
        self._closing = asyncio.Event()

    async def pipeline(self, definition: Definition) -> object:
        """The pipeline of an operation; `OperationUnready` when its lifespan raises.

        A caller that is cancelled while it waits does not cancel the lifespan, for others may wait too.
        """
        while (found := self._lifespans.get(definition.name)) is not None and found.is_over:
            if self._closing.is_set():
                break
            await asyncio.wait([found.task])  # the next one may need what it closes
        if found is None:
            pipeline = asyncio.get_running_loop().create_future()
            pipeline.add_done_callback(_retrieve_error)
            task = asyncio.create_task(self._live(definition, pipeline))
            self._lifespans[definition.name] = _Lifespan(task, pipeline)
        return await asyncio.shield(self._lifespans[definition.name].pipeline)

    def has(self, definition: Definition, pipeline: object) -> bool:
        """Whether this pipeline's lifespan has not ended."""
        lifespan = self._lifespans.get(definition.name)
        if lifespan is None or lifespan.is_over:
            return False
        return lifespan.pipeline.done() and lifespan.pipeline.result() is pipeline

    async def _live(self, definition: Definition, pipeline: asyncio.Future[object]) -> None:
        failure: BaseException | None = None
        try:
            async with definition.lifespan() as entered:
                pipeline.set_result(entered)
                try:
                    await self._closing.wait()
                finally:
                    self._lifespans[definition.name].is_over = True
                    await definition.close_steps()
            if self._closing.is_set():
                return
        except BaseException as error:
            if pipeline.done() and (self._closing.is_set() or isinstance(error, KeyboardInterrupt | SystemExit)):
                raise
            failure = error
        del self._lifespans[definition.name]
        if pipeline.done():
            log.error("the lifespan of operation %r ended by itself", definition.name, exc_info=failure)
            return
        why = f"its lifespan raised {type(failure).__name__}: {failure}"
        unready = OperationUnready(f"operation {definition.name!r} is not ready: {why}")
        unready.__cause__ = failure
        pipeline.set_exception(unready)

    async def close(self) -> None:
        """Leave every lifespan; the first error is raised when all are left, or cut off because they take too long."""
        self._closing.set()
        tasks = {lifespan.task: name for name, lifespan in self._lifespans.items()}
        for lifespan in self._lifespans.values():
            if not lifespan.pipeline.done():
                lifespan.task.cancel()
        if not tasks:
            return
        left, hanging = await asyncio.wait(tasks, timeout=LEAVE_S)
        for task in hanging:
            log.error("the lifespan of operation %r is not left after %g s, and is cut off", tasks[task], LEAVE_S)
            task.cancel()
        ends = await asyncio.gather(*(task for task in tasks if task in left), return_exceptions=True)
        errors = [error for error in ends if error is not None]
        for error in errors[1:]:
            log.error("a lifespan could not be left: %s", error, exc_info=error)
        if errors:
            raise errors[0]


def _retrieve_error(pipeline: asyncio.Future[object]) -> None:
    """Retrieve an error, so that asyncio does not log it when no caller waits any more."""
    if not pipeline.cancelled():
        pipeline.exception()
