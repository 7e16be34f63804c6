"""Which processes of this host are alive, and the removal of dead workers' records."""

from __future__ import annotations

import os
import socket

from sqlalchemy import delete, select

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.operations.tables import workers

__all__ = ["host_name", "is_process_alive", "remove_dead_workers"]


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
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


async def remove_dead_workers(db: Database, *, long_dead_s: float) -> int:
    """Remove workers of this host whose process is gone, and any that are long dead; returns how many of this host.

    Removing a record is what makes a lease end early: the dead worker's chunks can be claimed at once.
    """
    async with db.read() as tx:
        found = await tx.execute(select(workers.c.id, workers.c.process).where(workers.c.host == host_name()))
        gone = [worker for worker, process in found if not is_process_alive(process)]

    async def remove(tx: Connection) -> None:
        if gone:
            await tx.execute(delete(workers).where(workers.c.id.in_(gone)))
        await tx.execute(delete(workers).where(workers.c.lease_until < db.now() - round(long_dead_s * 1e6)))

    await db.transaction(remove, "remove_dead_workers")
    return len(gone)
