"""Which processes of this host are alive, and the removal of dead workers' records."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from sqlalchemy import Select, delete, select

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.operations.model import Misfit
from penstock.operations.tables import workers
from penstock.pipeline.fitting import differences

__all__ = ["WorkerCode", "code_of_live_workers", "host_name", "is_process_alive", "misfits", "remove_dead_workers"]

WorkerCode = tuple[str, Mapping[str, Any]]  # a worker, and by operation the version and steps it has the code of


async def code_of_live_workers(db: Database, tx: Connection) -> list[WorkerCode]:
    """What live workers say of their code; workers of earlier releases say nothing."""
    found = await tx.send(db.prepared(_live))
    return [(id, code) for id, code in found.rows if code is not None]


def _live(db: Database) -> Select[Any]:
    return select(workers.c.id, workers.c.code).where(workers.c.lease_until >= db.now()).order_by(workers.c.id)


def misfits(name: str, plan: Mapping[str, Any], live: Iterable[WorkerCode]) -> tuple[tuple[Misfit, ...], bool]:
    """The workers whose code does not fit an operation, and whether that of another does."""
    found, is_fitted = [], False
    for worker, code in live:
        if name in code:
            wrong = differences(plan, code[name])
            found += [Misfit(worker, wrong)] if wrong else []
            is_fitted |= not wrong
    return tuple(found), is_fitted


def host_name() -> str:
    """The host, its boot and its process namespace: a process can see whether another with the same name is alive."""
    boot, namespace = "", ""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return f"{socket.gethostname()}-{os.getpid()}"[:255]  # unknown: no other process has this name
    return f"{socket.gethostname()}/{boot}/{namespace}"[:255]


def is_process_alive(process: int) -> bool:
    """Whether a process of this host still runs."""
    try:
        with suppress(PermissionError):
            os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


async def remove_dead_workers(db: Database, *, long_dead_s: float) -> int:
    """Remove workers of this host whose process is gone, and any that are long dead; returns how many of this host.

    Removing a record is what makes a lease end early: the dead worker's chunks can be claimed at once.
    """
    async with db.connection() as tx:
        found = await tx.execute(select(workers.c.id, workers.c.process).where(workers.c.host == host_name()))
        gone = [worker for worker, process in found if not is_process_alive(process)]

    async def remove(tx: Connection) -> None:
        if gone:
            await tx.execute(delete(workers).where(workers.c.id.in_(gone)))
        await tx.execute(delete(workers).where(workers.c.lease_until < db.now() - round(long_dead_s * 1e6)))

    await db.transaction(remove, "remove_dead_workers")
    return len(gone)
