"""The threads beside a worker's loop: the heartbeat that renews its lease, and the watch for a loop that is stuck.

While an `async def` step computes or waits without awaiting, nothing else on the loop runs: other rows, messages, and
whatever the host does on the same loop. A thread sees that, and in which step, because the loop cannot.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from penstock.clock import Clock
from penstock.db.database import Database
from penstock.errors import Unavailable
from penstock.operations.rows.runtime import OperationRuntime
from penstock.pipeline import BatchContext, Context

if TYPE_CHECKING:
    from penstock.operations.worker.worker import Worker

__all__ = ["LoopWatch", "Vitals"]

log = logging.getLogger("penstock.worker")

END_S = 5.0  # how long a last beat may take
LOOKS_EACH = 4  # looks until a call counts as blocking, so that a process that was suspended is not blamed
REPEAT_S = 60.0  # between two warnings about one step
OURS = "penstock.operations."


@dataclass(frozen=True, slots=True)
class Place:
    """What the loop's thread is doing: the line, and where known the operation, the step and the row."""

    line: str
    operation_id: str | None = None
    operation_name: str | None = None
    step_name: str | None = None
    row_number: int | None = None
    rows: int = 1

    def __str__(self) -> str:
        if self.operation_id is None:
            return f"code at {self.line}"
        row = "" if self.row_number is None else f" of row {self.row_number}"
        if self.rows > 1:
            row += f" and {self.rows - 1} more"
        return f"{self.step_name}{row} of operation {self.operation_name} ({self.operation_id}), at {self.line},"

    def fields(self) -> dict[str, Any]:
        """The same as fields of a log record."""
        found = {
            "operation_id": self.operation_id,
            "operation_name": self.operation_name,
            "row_number": self.row_number,
            "step_name": self.step_name,
        }
        return {name: value for name, value in found.items() if value is not None}


def find_place(frame: FrameType | None) -> Place:
    """Where a thread with this innermost frame is: the line of the user's function that we called, if it is in one."""
    innermost = called = frame
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith(OURS):
            called = frame
        else:
            with contextlib.suppress(Exception):  # the user's code may have done anything to its context
                if (place := _place(frame.f_locals, _line(called))) is not None:
                    return place
        frame = frame.f_back
    return Place(_line(innermost))


def _line(frame: FrameType | None) -> str:
    return "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _place(known: dict[str, Any], line: str) -> Place | None:
    """The call that a frame of ours makes, from its local variables; None when it makes none."""
    ctx = known.get("together", known.get("ctx"))
    if isinstance(ctx, BatchContext):
        rows = list(ctx.rows)  # the step may have emptied its own list
        first = rows[0].row_number if rows else None
        return Place(line, ctx.operation_id, ctx.operation_name, ctx.step_name, first, len(rows))
    if isinstance(ctx, Context):
        return Place(line, ctx.operation_id, ctx.operation_name, ctx.step_name, ctx.row_number)
    runtime = known.get("runtime")
    if isinstance(runtime, OperationRuntime) and "validator" in known:
        return Place(line, runtime.run.operation_id, runtime.run.operation_name, "validation")
    return None


class LoopWatch:
    """Watches the loop on which it was started, from a thread of its own.

    A step that blocks the loop for `warn_s` is named in the log. When the loop has been stuck for `stall_s`, `on_stall`
    is called on that thread, and `is_stalled` is true until the loop runs again.
    """

    def __init__(
        self, clock: Clock, *, warn_s: float, stall_s: float, on_stall: Callable[[Place, float], None]
    ) -> None:
        self._clock, self._warn_s, self._stall_s, self._on_stall = clock, warn_s, stall_s, on_stall
        self._look_s = min(warn_s, stall_s) / LOOKS_EACH
        self.is_stalled = False
        self._alive_at = clock.monotonic()
        self._last: Place | None = None
        self._looks = 0  # in a row that found the loop at the same place
        self._warned_at: dict[tuple[str, str], float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-loop-watch", daemon=True)

    def start(self) -> None:
        """Start the thread; call this on the loop."""
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._tick()
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; returns when it has ended."""
        self._stop.set()
        self._thread.join()

    def loop_is_alive(self) -> None:
        """Called when the loop runs, and by a step that makes progress while it blocks the loop."""
        self._alive_at = self._clock.monotonic()

    def _tick(self) -> None:
        self.loop_is_alive()
        if not self._stop.is_set():
            self._loop.call_later(self._look_s, self._tick)

    def _run(self) -> None:
        while not self._stop.wait(self._look_s):
            try:
                self._look()
            except Exception:
                log.exception("the watch of the event loop failed; it looks again")

    def _look(self) -> None:
        stuck_s = self._clock.monotonic() - self._alive_at
        if stuck_s < 2 * self._look_s:
            self._last, self._looks = None, 0
            if self.is_stalled:
                self.is_stalled = False
                log.warning("the event loop runs again; what was taken over meanwhile is dropped, the rest goes on")
            return
        place = find_place(sys._current_frames().get(self._loop_thread))
        self._looks = self._looks + 1 if _is_same(place, self._last) else 1
        self._last = place
        if self._looks == LOOKS_EACH and stuck_s >= self._warn_s:
            self._warn(place, stuck_s)
        if stuck_s > self._stall_s and not self.is_stalled:
            self.is_stalled = True
            self._on_stall(place, stuck_s)

    def _warn(self, place: Place, stuck_s: float) -> None:
        """Name a step that blocks; once in a while, not for each of its rows."""
        if place.operation_id is None or place.step_name is None:
            return  # the host's own code, or ours
        key, now = (place.operation_id, place.step_name), self._clock.monotonic()
        if now - self._warned_at.get(key, -REPEAT_S) < REPEAT_S:
            return
        self._warned_at = {other: at for other, at in self._warned_at.items() if now - at < REPEAT_S} | {key: now}
        log.warning(
            "%s has blocked the event loop for %.1f s; all other rows of this worker stand still meanwhile. "
            "Await what it waits for, or declare it with def, so that it runs on a thread",
            place,
            stuck_s,
            extra=place.fields(),
        )


def _is_same(place: Place, last: Place | None) -> bool:
    """Whether it is the same call, on whatever line."""
    return last is not None and place.fields() == last.fields()


class Vitals:
    """Both threads of a worker, made on its loop; the worker fails when its lease is gone for good, or its heartbeat.

    When the loop is stuck, a worker that owns its process ends it; another one does not renew its lease until the loop
    runs again.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker, self._loop = worker, asyncio.get_running_loop()
        settings = worker.settings
        self.loop_watch = LoopWatch(
            worker.clock, warn_s=settings.stall_warning_s, stall_s=settings.stall_s, on_stall=self._has_stalled
        )
        self._stop = threading.Event()
        self._heartbeat = threading.Thread(target=self._run_heartbeat, name="penstock-heartbeat", daemon=True)

    def start(self) -> None:
        """Start both threads."""
        self.loop_watch.start()
        self._heartbeat.start()

    async def stop(self) -> None:
        """Stop both threads; returns when they have ended, or the last beat gets no answer for long."""
        self._stop.set()
        await asyncio.to_thread(self._heartbeat.join, END_S)
        await asyncio.to_thread(self.loop_watch.stop)

    # --- called on the threads

    def _run_heartbeat(self) -> None:
        """Beat until stopped; should that end before, the worker fails: it would never start anything again."""
        try:
            asyncio.run(self._beats())
        except BaseException as error:
            log.critical("worker %s: its heartbeat has ended", self._worker.lease.id, exc_info=True)
            if not self._stop.is_set():
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the worker with it
            self._loop.call_soon_threadsafe(self._worker.tasks.fail, error)

    async def _beats(self) -> None:
        """Renew the lease until stopped, as long as the loop is not stuck."""
        settings = self._worker.settings
        db = Database.connect(settings.database_address, clock=self._worker.clock, pool_size=1)
        try:
            while not await asyncio.to_thread(self._stop.wait, settings.heartbeat_s):
                if not self.loop_watch.is_stalled:
                    await self._beat(db)
        finally:
            await db.close()

    async def _beat(self, db: Database) -> None:
        worker = self._worker
        try:
            if not await worker.lease.beat(db):
                lost = Unavailable("this worker's record is gone from the database")
                log.critical("worker %s: %s", worker.lease.id, lost)
                self._fail(lost)
                self._stop.set()
            worker.outage.worked("heartbeat")
        except Unavailable as error:
            # The lease lasts for a while; `may_start` says for how long.
            worker.outage.failed("heartbeat", error)
        except Exception:
            log.exception("the heartbeat failed; it is tried again")

    def _has_stalled(self, place: Place, stuck_s: float) -> None:
        what = f"worker {self._worker.lease.id}: {place} has blocked the event loop for {stuck_s:.0f} s"
        if self._worker.owns_process:
            log.critical("%s; the process ends, and its rows go to others", what, extra=place.fields())
            os._exit(os.EX_TEMPFAIL)  # nothing else stops a step that never yields; its row counts as lost
        log.error("%s; its lease is not renewed until the loop runs again", what, extra=place.fields())
