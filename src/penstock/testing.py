"""What users need to test their own pipelines.

A step is a plain bound function on a pipeline instance, so most tests call it with a `context()`. `engine()` runs whole
operations on a throwaway SQLite database, on a clock that moves only when told:

    async with testing.engine([Invoices]) as engine:
        operation = await engine.run(Invoices, [{"id": 1}, {"id": 2}])
        assert operation.status == "Completed"
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import msgspec
from sqlalchemy import func, select

from penstock.clock import Entropy, ManualClock
from penstock.engine import Penstock
from penstock.lifecycles.guards import Guard
from penstock.lifecycles.model import Handler
from penstock.operations.intake import Source
from penstock.operations.model import Operation
from penstock.operations.operation_ids import number_of
from penstock.operations.service import Operations
from penstock.operations.tables import chunks
from penstock.operations.worker.worker import Worker
from penstock.pipeline import BatchContext, Context, Definition, Run, StepPlan, definition_of
from penstock.secret_keys import SecretKeys
from penstock.settings import Settings

__all__ = ["OPERATION_ID", "Engine", "ManualClock", "batch_context", "context", "engine", "json_lines"]

SEALED_WITH = "cGVuc3RvY2sudGVzdGluZyBpcyBmb3IgdGVzdHMgISE="  # callback addresses; no secret
OPERATION_ID = "01900000-0000-7000-8000-000000000000"

Rows = Source | Sequence[Mapping[str, Any]]


def context(
    operation: object,
    step: object = None,
    *,
    metadata: Any = None,
    outputs: Mapping[str, Any] | None = None,
    row_number: int = 1,
    row_key: str | None = None,
    attempt: int = 1,
    generation: int = 0,
    deadline: datetime | None = None,
    signal_key: str | None = None,
    public_url: str | None = None,
    operation_id: str = OPERATION_ID,
    is_cancelled: bool = False,
) -> Context[Any]:
    """A Context as the engine would hand it to a step of this operation; the first step unless one is named.

    `outputs` are those of earlier steps by name. They pass through their declared types, as after a restart.
    """
    definition = definition_of(operation)
    run = Run(
        operation_id,
        definition.name,
        definition.meta.parse(metadata),
        definition,
        is_cancelled=lambda: is_cancelled,
        public_url=public_url,
        secret_keys=SecretKeys(SEALED_WITH),
    )
    made: Context[Any] = Context(run, row_number, generation, _encoded(definition, outputs or {}), row_key=row_key)
    made.step = _step_of(definition, step)
    made.attempt, made.deadline, made.signal_key = attempt, deadline, signal_key
    return made


def batch_context(operation: object, step: object = None, *, size: int, **shared: Any) -> BatchContext[Any]:
    """The BatchContext of a batch of `size` rows; the other arguments are those of `context`, the same for each row."""
    first = shared.pop("row_number", 1)
    rows = [context(operation, step, row_number=first + i, **shared) for i in range(size)]
    if not rows:
        raise ValueError("a batch has at least one row")
    return BatchContext(rows[0].run, rows[0].step, rows, rows[0].attempt)


def json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Rows as the bytes of a JSON Lines file."""
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


class Engine:
    """An engine and one worker on a manual clock; nothing happens between calls, and no time passes by itself."""

    worker: Worker

    def __init__(self, penstock: Penstock, clock: ManualClock) -> None:
        self.penstock, self.clock = penstock, clock

    async def __aenter__(self) -> Self:
        self._ending = AsyncExitStack()
        self.worker = await self._ending.enter_async_context(self.penstock.worker())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._ending.aclose()

    @property
    def operations(self) -> Operations:
        """The engine's operations."""
        return self.penstock.operations

    async def create(self, operation: object, rows: Rows, **given: Any) -> Operation:
        """Take in a file, or rows given as mappings; `given` is passed on to `operations.create`."""
        if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
            given = {"file_name": "rows.jsonl", **given}
            return await self.operations.create(operation, file=json_lines(rows), **given)
        return await self.operations.create(operation, file=rows, **given)

    async def work_until_idle(self) -> None:
        """Work until nothing can be done now; rows that are due later stay as they are."""
        # Twice: a look that starts nothing may have moved an operation on, and a task may just have failed.
        quiet_looks = 0
        while quiet_looks < 2:
            started = await self.worker.tick()
            quiet_looks = 0 if started or self.worker.is_busy else quiet_looks + 1
            if self.worker.is_busy:
                await self._wake_or_look_round()

    async def _wake_or_look_round(self) -> None:
        """Wait for the end of something; rows that run may be cancelled or paused meanwhile."""
        try:
            async with asyncio.timeout(self.penstock.settings.control_poll_s):
                await self.worker.wake.wait()
        except TimeoutError:
            await self.worker.look_round()

    async def advance(self, seconds: float) -> None:
        """Move time forward. The worker's lease moves along: it was not away, time just passed."""
        self.clock.advance(seconds)
        await self.worker.lease.beat()

    async def deliver(self) -> int:
        """Call handlers and send webhooks for all that has happened, as far as they are due; how many attempts."""
        return await self.penstock.events.deliver()

    async def run(self, operation: object, rows: Rows, **given: Any) -> Operation:
        """Create an operation and work until it is settled, skipping the time in which it only waits."""
        made = await self.create(operation, rows, **given)
        await self.work_until_idle()
        while not (now := await self.operations.get(made.id)).is_settled:
            await self.skip_wait(now)
            await self.work_until_idle()
        return now

    async def skip_wait(self, operation: Operation) -> None:
        """Move time to the moment when something of this operation is due."""
        await self.advance(await self._wait_s(operation))

    async def restart(self) -> None:
        """Stop the worker in good order, as for a deployment, and start another."""
        await self._ending.aclose()
        await self.__aenter__()

    async def crash(self) -> None:
        """Kill the worker where it stands, wait until its lease has run out, and start another.

        Nothing more is written by the dead one: its rows stay in flight until the next one finds them.
        """
        await self.worker.vanish()
        await self._ending.aclose()
        self.clock.advance(self.penstock.settings.lease_s + 1)
        await self.__aenter__()

    async def _wait_s(self, operation: Operation) -> float:
        async with self.penstock.db.connection() as tx:
            mine = (chunks.c.operation == await number_of(tx, operation.id), chunks.c.is_open == 1)
            due = (await tx.execute(select(func.min(chunks.c.due_at)).where(*mine))).scalar()
        wait_us = 0 if due is None else due - self.clock.now_us()
        if wait_us <= 0:
            trouble = (await self.operations.get(operation.id)).trouble
            raise AssertionError(
                f"operation {operation.id} is {operation.status}, and this engine cannot go on with it"
                + (f": {trouble}" if trouble else "")
            )
        return wait_us / 1e6


@asynccontextmanager
async def engine(
    operations: Iterable[object],
    *,
    tmp_path: Path | None = None,
    url: str | None = None,
    settings: Settings | None = None,
    clock: ManualClock | None = None,
    guards: Mapping[str, Guard] = MappingProxyType({}),
    effects: Mapping[str, Handler] = MappingProxyType({}),
    handlers: Mapping[str, object] = MappingProxyType({}),
) -> AsyncIterator[Engine]:
    """An engine with these operations; its database and files are in `tmp_path`, or in a folder that goes with it.

    Chance is the same in every run. Give `url` to use a database of your own, `settings` for other sizes, `guards` and
    `effects` for lifecycles, which are at `engine.penstock.lifecycles`, and `handlers` of events.
    """
    with ExitStack() as stack:
        folder = tmp_path or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-")))
        settings = _placed(settings or Settings(), folder, url)
        clock = clock or ManualClock()
        entropy = Entropy(jitter=random.Random(0))
        opened = Penstock.open(
            operations=operations,
            settings=settings,
            clock=clock,
            entropy=entropy,
            guards=guards,
            effects=effects,
            handlers=handlers,
        )
        async with opened as penstock, Engine(penstock, clock) as made:
            yield made


def _placed(settings: Settings, folder: Path, url: str | None) -> Settings:
    """Settings with a database and a storage folder."""
    files = str((folder / "files").absolute())
    return settings.model_copy(
        update={"database_url": url or f"sqlite:///{folder / 'penstock.db'}", "storage_url": files}
    )


def _step_of(definition: Definition, step: object) -> StepPlan:
    if step is None:
        return definition.steps[0]
    found = definition.find_step(step) if isinstance(step, str) else definition.plan_of(step)
    if found is None:
        known = ", ".join(plan.attribute for plan in definition.steps)
        raise ValueError(f"operation {definition.name!r} has no step {step!r}; it has: {known}")
    return found


def _encoded(definition: Definition, outputs: Mapping[str, Any]) -> dict[int, bytes]:
    plans = [(_step_of(definition, name), value) for name, value in outputs.items()]
    return {plan.index: data for plan, value in plans if (data := plan.output.encode(value)) is not None}
