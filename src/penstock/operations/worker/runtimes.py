"""The runtimes of operations in this process: made when needed, dropped when nothing of the operation is in work."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row, select

from penstock.blobs.model import StoredBytes
from penstock.errors import InvalidInput, OperationUnready, PenstockError
from penstock.operations.rows.lifespans import Lifespans
from penstock.operations.rows.runtime import CannotRun, DoesNotFit, OperationRuntime, load_metadata
from penstock.operations.rows.step_threads import StepThreads
from penstock.operations.rows.task_pool import TaskPool
from penstock.operations.states import OPERATION
from penstock.operations.tables import operations
from penstock.pipeline import Definition, Run

if TYPE_CHECKING:
    from penstock.operations.worker.worker import Worker

__all__ = ["OperationRuntimes"]

LIFESPAN_WAIT_S = 1.0  # for one that is being entered; meanwhile nothing else is claimed


class OperationRuntimes:
    """Runtimes by operation number."""

    def __init__(
        self,
        worker: Worker,
        definitions: Mapping[str, Definition],
        lifespans: Lifespans,
        jitter: random.Random,
        capabilities: Mapping[type, object],
    ) -> None:
        self._worker, self._db, self.definitions, self._lifespans = worker, worker.db, definitions, lifespans
        self._jitter, self._capabilities = jitter, capabilities
        self._made: dict[int, tuple[Mapping[str, Any], OperationRuntime]] = {}  # with the plans they were made by
        self._idle: set[int] = set()  # not asked for since `forget_idle` was last called
        self.widest = 0  # the largest number of rows that one of them may have in flight
        self._threads = StepThreads(worker.settings.sync_threads)

    @property
    def names(self) -> list[str]:
        """The operations we have code for."""
        return [definition.name for definition in self.definitions.values()]

    async def get(self, number: int, plan: Mapping[str, Any] | None = None) -> OperationRuntime:
        """The operation's runtime; made anew if it was made by another plan than this, or if its lifespan has ended.

        `CannotRun` when the code does not fit what is stored, or cannot be started.
        """
        self._idle.discard(number)
        if not self._is_current(number, plan):
            if number in self._made and not self.is_live(self._made[number][1]) and number in self._worker.working:
                self._worker.halt("Paused", number)
                self._made[number][1].end()
                raise CannotRun("its lifespan has ended, and rows that were begun before are still running")
            async with self._db.connection() as tx:
                row = (await tx.execute(select(operations).where(operations.c.number == number))).one_or_none()
            if row is None:
                raise CannotRun("the operation has been removed")
            try:
                made = await self._make(row)
            except DoesNotFit:
                raise
            except PenstockError as error:
                raise CannotRun(str(error)) from error
            except Exception as error:  # models and options are the user's code
                raise CannotRun(f"{type(error).__name__}: {error}") from error
            if not self._is_current(number, row.plan):  # nobody else has made it meanwhile
                self._made[number] = row.plan, made
                self.widest = max(self.widest, made.definition.options.max_row_concurrency)
        return self._made[number][1]

    def _is_current(self, number: int, plan: Mapping[str, Any] | None) -> bool:
        if number not in self._made:
            return False
        made_by, made = self._made[number]
        return plan in (None, made_by) and self.is_live(made)

    def is_live(self, runtime: OperationRuntime) -> bool:
        """Whether the lifespan of its pipeline has not ended."""
        return self._lifespans.has(runtime.definition, runtime.pipeline)

    async def _make(self, row: Row[Any]) -> OperationRuntime:
        declared = self.definitions[row.name.casefold()]
        if found := declared.differences(row.plan):
            raise DoesNotFit(found)
        worker, settings = self._worker, self._worker.settings
        try:
            definition = declared.as_planned(row.plan)
            keys = settings.secret_keys
            meta = load_metadata(definition, row.id, row.metadata, row.encrypted_metadata, keys)
        except InvalidInput as error:
            raise CannotRun(f"it does not fit its declaration any more: {error}") from error
        return OperationRuntime(
            number=row.number,
            file_format=row.file_format,
            file=StoredBytes(row.file_key, row.file_bytes, row.file_sha256, row.file_version),
            definition=definition,
            pipeline=await self._pipeline(declared),
            run=Run(
                row.id,
                row.name,
                meta,
                definition,
                beat=worker.loop_is_alive,
                public_url=settings.public_url,
                capabilities=self._capabilities,
                secret_keys=keys,
                tenant=row.tenant or "",
            ),
            columns=row.columns,
            task_pool=TaskPool(definition.options.max_row_concurrency, worker.tasks.spawn),
            clock=worker.clock,
            jitter=self._jitter,
            threads=self._threads,
            start_limit=worker.lease.start_limit,
            output_bytes_max=settings.output_bytes_max,
            trace_ratio=settings.trace_ratio,
        )

    async def _pipeline(self, definition: Definition) -> object:
        # On a clock that stands still nothing is tried again later.
        try:
            async with asyncio.timeout(LIFESPAN_WAIT_S if self._worker.clock.is_real else None):
                return await self._lifespans.pipeline(definition)
        except TimeoutError:
            raise OperationUnready(
                f"operation {definition.name!r} is not ready: its lifespan is being entered, or left"
            ) from None

    async def forget_idle(self, working: Collection[int]) -> None:
        """Drop the runtimes of operations of which nothing was in work since the last call: they wait, or have ended.

        One with limits is kept until its operation has ended, for it knows of the last calls.
        """
        idle = set(self._made) - set(working)
        limited = {number for number in idle if self._made[number][1].limiters}
        for number in (idle & self._idle - limited) | await self._settled(limited):
            self._made.pop(number, None)
        self._idle = idle
        self.widest = max((made.definition.options.max_row_concurrency for _, made in self._made.values()), default=0)

    async def _settled(self, numbers: Collection[int]) -> set[int]:
        """Those that have ended or were removed."""
        if not numbers:
            return set()
        async with self._db.connection() as tx:
            is_open = operations.c.number.in_(numbers) & operations.c.state.not_in(OPERATION.settled)
            return set(numbers).difference((await tx.execute(select(operations.c.number).where(is_open))).scalars())

    def set_cancelled(self, number: int) -> None:
        """Tell running steps of the operation, when they ask, that they should stop."""
        if number in self._made:
            self._made[number][1].is_cancelled = True

    def close(self) -> None:
        """Stop the threads, without waiting for them."""
        self._threads.close()
