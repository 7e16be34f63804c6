"""The operations that run in this process, each with its code, built when first needed and forgotten when settled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

from sqlalchemy import Row, select

from penstock.clock import Clock, Entropy
from penstock.db.database import Database
from penstock.errors import InvalidInput, PenstockError
from penstock.operations.running.crew import Crew, Spawn
from penstock.operations.running.execution import Execution
from penstock.operations.running.gates import Share
from penstock.operations.running.lease import StartLimit
from penstock.operations.states import OPERATION
from penstock.operations.tables import operations
from penstock.pipeline import Definition, Run
from penstock.settings import Settings

__all__ = ["Broken", "Executions"]


class Broken(PenstockError):
    """The operation cannot go on with the code and files that are here now."""


class Executions:
    """Executions by operation number; pipelines are built once per process and shared."""

    def __init__(
        self,
        db: Database,
        definitions: Mapping[str, Definition],
        settings: Settings,
        *,
        clock: Clock,
        entropy: Entropy,
        spawn: Spawn,
        start_limit: StartLimit,
        beat: Callable[[], None],
    ) -> None:
        self._beat = beat
        self._db, self._definitions, self._settings = db, definitions, settings
        self._clock, self._entropy, self._spawn, self._start_limit = clock, entropy, spawn, start_limit
        self._made: dict[int, Execution] = {}
        self.share = Share()
        self._pipelines: dict[str, object] = {}
        self._stack = AsyncExitStack()
        self._threads = ThreadPoolExecutor(settings.sync_threads, thread_name_prefix="penstock-step")

    @property
    def names(self) -> list[str]:
        """The operations we have code for and may run: those whose steps' limits leave a part to us."""
        return [definition.name for definition in self._definitions.values() if self._has_part(definition)]

    @property
    def numbers(self) -> Set[int]:
        """The operations that are known here."""
        return self._made.keys()

    def _has_part(self, definition: Definition) -> bool:
        limits = (step.options.concurrency for step in definition.steps)
        return all(limit is None or self.share.of(limit) > 0 for limit in limits)

    def take_share(self, share: Share) -> None:
        """Hold our part of every step's limits."""
        if share != self.share:
            self.share = share
            for execution in self._made.values():
                _give(execution, share)

    @property
    def widest(self) -> int:
        """The largest number of rows that one of the running operations may have in flight."""
        return max((e.definition.options.max_row_concurrency for e in self._made.values()), default=0)

    async def get(self, number: int) -> Execution:
        """The operation with its code; `Broken` when its declaration no longer fits what was stored at creation."""
        if number not in self._made:
            async with self._db.read() as tx:
                row = (await tx.execute(select(operations).where(operations.c.number == number))).one()
            self._made[number] = await self._make(row)
            _give(self._made[number], self.share)
        return self._made[number]

    async def _make(self, row: Row[tuple[object, ...]]) -> Execution:
        declared = self._definitions[row.name.casefold()]
        try:
            definition = declared.as_planned(row.plan)
            meta = definition.meta.load(row.metadata)
        except InvalidInput as error:
            raise Broken(f"it does not fit its declaration any more: {error}") from error
        return Execution(
            number=row.number,
            file_format=row.file_format,
            file_key=row.file_key,
            definition=definition,
            pipeline=await self._pipeline(declared),
            run=Run(row.id, row.name, meta, definition, beat=self._beat, public_url=self._settings.public_url),
            columns=row.columns,
            crew=Crew(definition.options.max_row_concurrency, self._spawn),
            clock=self._clock,
            jitter=self._entropy.jitter,
            threads=self._threads,
            start_limit=self._start_limit,
            output_bytes_max=self._settings.output_bytes_max,
        )

    async def _pipeline(self, definition: Definition) -> object:
        if definition.name not in self._pipelines:
            self._pipelines[definition.name] = await self._stack.enter_async_context(definition.lifespan())
        return self._pipelines[definition.name]

    async def forget_settled(self, working: Collection[int]) -> None:
        """Operations that have ended, or were purged, need no place in memory."""
        idle = set(self._made) - set(working)
        if not idle:
            return
        async with self._db.read() as tx:
            is_open = operations.c.number.in_(idle) & operations.c.state.not_in(OPERATION.settled)
            opened = (await tx.execute(select(operations.c.number).where(is_open))).scalars().all()
        for number in idle - set(opened):
            del self._made[number]

    def set_cancelled(self, number: int) -> None:
        """Running steps of the operation may ask whether they should stop: they should."""
        if number in self._made:
            self._made[number].is_cancelled = True

    async def close(self) -> None:
        """Close what the pipelines hold open."""
        await self._stack.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _give(execution: Execution, share: Share) -> None:
    for step in execution.steps:
        step.take_share(share)
