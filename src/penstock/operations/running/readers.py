"""From an operation that nobody reads to a reading at work: taking it, opening its file, and what may go wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from penstock.errors import FileUnreadable, NotFound, Unavailable
from penstock.operations import chunks as store
from penstock.operations.reading import Reading, take
from penstock.operations.referee import HEAD, Head
from penstock.operations.running.draining import abandon_readings, give_back_reading
from penstock.operations.running.execution import Execution
from penstock.operations.running.executions import CannotRun
from penstock.operations.tables import operations

if TYPE_CHECKING:
    from penstock.operations.running.worker import Worker

__all__ = ["Readers"]


class Readers:
    """How one worker comes to read files."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._db, self._owner = worker, worker.db, worker.lease.id

    async def start(self) -> bool:
        """Begin to read what nobody reads; says whether anything was begun."""
        worker = self._worker
        await abandon_readings(self._db, actor=self._owner)
        room = store.READINGS_MAX - len(worker.readings)
        if room <= 0 or not worker.executions.names:
            return False
        found = await self._find(room)
        if found and worker.clock.is_real:
            await worker.look_round()  # within the last second others may have come, who can help
        started = False
        for seen, had_trouble in found:
            started = await self._start(seen, had_trouble=had_trouble) or started
        return started

    async def _find(self, limit: int) -> list[tuple[Head, bool]]:
        """Operations to be read, and whether somebody could not."""
        worker = self._worker
        query = (
            select(*HEAD, operations.c.trouble)
            .where(
                operations.c.state.in_(("Pending", "Validating")),
                operations.c.reading == "open",
                operations.c.name.in_(worker.executions.names),
                operations.c.number.not_in((*worker.readings, *worker.set_aside.numbers)),
                store.is_free(self._db, operations.c.owner),
            )
            .order_by(operations.c.number)
            .limit(limit)
        )
        async with self._db.read() as tx:
            return [(Head(*row[:-1]), row.trouble is not None) for row in await tx.execute(query)]

    async def _start(self, seen: Head, *, had_trouble: bool) -> bool:
        worker = self._worker
        try:
            execution = await worker.executions.get(seen.number)
        except CannotRun as error:
            await worker.troubles.put_aside(seen.number, error)
            return False
        head = await take(self._db, seen, owner=self._owner, chunk_rows=worker.settings.chunk_rows)
        if head is None:
            return False
        worker.readings[head.number] = None
        worker.tasks.spawn(self._hold(head, execution, had_trouble=had_trouble))
        return True

    async def _hold(self, head: Head, execution: Execution, *, had_trouble: bool) -> None:
        worker = self._worker
        try:
            await self._read(head, execution, had_trouble=had_trouble)
        except Unavailable as error:
            worker.outage.failed("work", error)  # the reading is given up within a second, and begun again
        finally:
            worker.readings.pop(head.number, None)
            worker.wake.set()

    async def _read(self, head: Head, execution: Execution, *, had_trouble: bool) -> None:
        worker = self._worker
        try:
            with worker.files.open(execution.file_key) as source:
                reading = worker.readings[head.number] = Reading(
                    self._db,
                    execution,
                    head,
                    owner=self._owner,
                    limits=worker.limits,
                    chunk_rows=worker.settings.chunk_rows,
                    patience_s=worker.settings.lease_s,
                    turn=worker.turns.turn,
                    helpers=lambda: worker.peers.workers - 1,
                )
                if worker.is_stopping:
                    reading.halt()
                await worker.troubles.take_up(head.number, had_trouble=had_trouble)
                await reading.run(source)
        except NotFound as error:
            await worker.troubles.break_operation(head.number, str(error))
            await give_back_reading(self._db, head, actor=self._owner)
        except (FileUnreadable, OSError) as error:
            await worker.troubles.put_aside(head.number, error)
            await give_back_reading(self._db, head, actor=self._owner)
