"""The facts `penstock doctor` judges: the database, its records, the workers and the storage folder."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Row, func, select

from penstock.blobs.opening import open_storage
from penstock.blobs.queries import unswept
from penstock.blobs.storage import Storage
from penstock.clock import Clock
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.db.upgrade import HEAD, REVISIONS, check
from penstock.errors import DatabaseDamaged, FileUnreadable, NotFound, PenstockError, SecretsUnreadable, SettingsInvalid
from penstock.operations.chunk.store import is_dead, is_free
from penstock.operations.inbox.matching import has_signal
from penstock.operations.inbox.settling import AT_WORK
from penstock.operations.proof.symptoms import Diagnosis, Facts, Health, OpenOperation, WorkerFacts, examine
from penstock.operations.pruning.applying import LOOK_AGAIN_S, Policy, due_operations
from penstock.operations.states import OPERATION
from penstock.operations.tables import chunks, operations, row_records, signals, workers
from penstock.operations.worker_records import code_of_live_workers, host_name, is_process_alive, misfits
from penstock.outbox.proving import health
from penstock.retention import keep_text
from penstock.secret_keys import SecretKeys
from penstock.services import SymptomSource
from penstock.settings import Settings

__all__ = ["diagnose"]

OVERDUE_S = 10.0  # workers look every second and sweep every five: what is due for longer is stuck
UNSWEPT_S = 3600.0  # workers sweep every minute
OPEN_OPERATIONS_MAX = 1000
ENCRYPTED_MAX = 1000
REMOVAL_OVERDUE_S = 3 * LOOK_AGAIN_S  # workers look for what is due once in that time
ROOM_BYTES = 16 * 1024 * 1024  # less than this is as good as full


async def diagnose(settings: Settings, clock: Clock, sources: Iterable[SymptomSource] = ()) -> Diagnosis:
    """Examine this installation; writes no record, and what is wrong is a symptom, never an error."""
    return examine(await collect(settings, clock, sources))


async def collect(settings: Settings, clock: Clock, sources: Iterable[SymptomSource] = ()) -> Facts:
    """Everything the checks look at, as far as it can be seen."""
    storage = open_storage(settings)
    facts = Facts(
        storage=storage.place,
        storage_fault=settings.storage_fault,
        storage_trouble=None if settings.storage_fault else await asyncio.to_thread(_storage_trouble, storage),
        crowded=await asyncio.to_thread(_crowded, (settings.storage_folder, settings.database_file)),
    )
    try:
        report = await check(settings.database_address, clock)
        facts = replace(
            facts,
            database=report.database,
            version=report.version,
            settings=report.findings,
            revision=report.revision,
            revision_needed=HEAD,
            is_newer=report.revision is not None and report.revision not in REVISIONS,
        )
        return facts if report.revision != HEAD else await _with_records(facts, settings, clock, sources)
    except DatabaseDamaged as error:
        return replace(facts, damage=str(error))
    except PenstockError as error:
        return replace(facts, trouble=str(error))


async def _with_records(facts: Facts, settings: Settings, clock: Clock, sources: Iterable[SymptomSource]) -> Facts:
    db = Database.connect(settings.database_address, clock=clock, pool_size=1)
    try:
        async with db.read() as tx:
            before = clock.now_us()
            now = (await tx.execute(select(db.now()))).scalar_one()
            ahead_us = now - (before + clock.now_us()) // 2
            known = [_worker(row, now, settings) for row in await tx.execute(select(workers))]
            found = await _open_operations(db, tx, now)
            busy = await _busy_workers(db, tx)
            locked, why = await _locked(tx, settings.secret_keys)
            held = (await tx.execute(select(func.count()).where(operations.c.hold.is_not(None)))).scalar_one()
            outbox = await health(tx, now, settings.secret_keys)
            late, left = await unswept(db, tx, since_us=round(UNSWEPT_S * 1e6))
        overdue = 0
        async for _ in due_operations(db, Policy(settings.keep), now - round(REMOVAL_OVERDUE_S * 1e6)):
            overdue += 1
            if overdue == OPEN_OPERATIONS_MAX:
                break
        others = [symptom for source in sources for symptom in await source(db)]
    finally:
        await db.close()
    files = None if settings.storage_fault else open_storage(settings)
    seen = await asyncio.to_thread(lambda: tuple(_with_file(opened, files, key) for opened, key in found))
    return replace(
        facts,
        clock_ahead_us=ahead_us,
        workers=tuple(known),
        busy_workers=busy,
        others=tuple(others),
        keep=keep_text(settings.keep),
        held=held,
        overdue_removals=overdue,
        operations=seen,
        outbox=outbox,
        locked=locked,
        locked_why=why,
        late_uploads=late,
        left_bytes=left,
    )


async def _locked(tx: Connection, keys: SecretKeys) -> tuple[tuple[str, ...], str]:
    """Of the newest operations with secrets, those whose secrets cannot be decrypted here, and why."""
    query = select(operations.c.id, operations.c.encrypted_metadata).where(operations.c.encrypted_metadata.is_not(None))
    locked, why = [], ""
    for row in await tx.execute(query.order_by(operations.c.number.desc()).limit(ENCRYPTED_MAX)):
        try:
            keys.decrypt(row.encrypted_metadata)
        except SecretsUnreadable as error:
            locked.append(row.id)
            why = str(error)
    return tuple(locked), why


def _worker(row: Row[Any], now: int, settings: Settings) -> WorkerFacts:
    is_gone = row.host == host_name() and not is_process_alive(row.process)
    state: Health = "live"
    if is_gone or row.lease_until < now:
        state = "dead"
    elif row.lease_until - now < (settings.lease_s - 2 * settings.heartbeat_s) * 1e6:
        state = "lagging"
    return WorkerFacts(row.id, row.host.partition("/")[0], row.process, state)


async def _busy_workers(db: Database, tx: Connection) -> int:
    """How many live workers own anything."""
    owned = select(chunks.c.owner).where(chunks.c.owner.is_not(None)).union(select(operations.c.owner))
    query = select(func.count()).select_from(workers).where(workers.c.id.in_(owned), workers.c.lease_until >= db.now())
    return int((await tx.execute(query)).scalar_one())


async def _open_operations(db: Database, tx: Connection, now: int) -> list[tuple[OpenOperation, str]]:
    """Operations that are not settled with what of them is stuck, and the keys of their files."""
    overdue = now - round(OVERDUE_S * 1e6)
    is_lost = (chunks.c.is_open == 1, chunks.c.owner.is_not(None), is_dead(db, chunks.c.owner))
    is_due = (chunks.c.is_open == 1, chunks.c.due_at <= overdue, is_free(db, chunks.c.owner))
    is_waiting = (row_records.c.state == "WaitingForCompletion",)
    is_signalled = (*is_waiting, has_signal(signals.c.accepted_at <= overdue))
    rows = func.count(row_records.c.row.distinct())
    lost = await _by_operation(tx, chunks.c.operation, func.count(), is_lost)
    due = await _by_operation(tx, chunks.c.operation, func.count(), is_due)
    signalled = await _by_operation(tx, row_records.c.operation, rows, is_signalled)
    late = await _by_operation(tx, row_records.c.operation, rows, (*is_waiting, row_records.c.deadline <= overdue))
    is_lost_file = (operations.c.reading == "open") & operations.c.owner.is_not(None) & is_dead(db, operations.c.owner)
    query = (
        select(operations, is_lost_file.label("is_lost_file"))
        .where(operations.c.state.not_in(sorted(OPERATION.settled)))
        .order_by(operations.c.number)
        .limit(OPEN_OPERATIONS_MAX)
    )
    live = await code_of_live_workers(db, tx)
    found = []
    for row in await tx.execute(query):
        others, is_fitted = misfits(row.name, row.plan, live)
        is_at_work = row.state in AT_WORK  # nothing of a paused operation is due
        is_unread = (
            row.state in ("Pending", "Validating")
            and row.reading == "open"
            and row.owner is None
            and row.created_at <= overdue
        )
        opened = OpenOperation(
            id=row.id,
            name=row.name,
            state=row.state,
            lost_chunks=lost.get(row.number, 0) + int(row.is_lost_file),
            overdue_chunks=due.get(row.number, 0) * is_at_work + is_unread,
            overdue_signals=signalled.get(row.number, 0) * is_at_work,
            overdue_waits=late.get(row.number, 0) * is_at_work,
            trouble=row.trouble,
            misfits=tuple(map(str, others)),
            is_fitted=is_fitted,
        )
        found.append((opened, row.file_key))
    return found


async def _by_operation(
    tx: Connection, operation: ColumnElement[int], what: ColumnElement[int], where: Iterable[ColumnElement[bool]]
) -> dict[int, int]:
    found = await tx.execute(select(operation, what).where(*where).group_by(operation))
    return {number: int(count) for number, count in found}


def _with_file(operation: OpenOperation, files: Storage | None, key: str) -> OpenOperation:
    """The operation, and whether its file is there and can be read."""
    try:
        if files is not None:
            files.peek(key).stream.close()
    except NotFound:
        return replace(operation, has_file=False)
    except (FileUnreadable, SettingsInvalid) as error:
        return replace(operation, file_trouble=str(error))
    return operation


def _crowded(places: Iterable[Path | None]) -> tuple[tuple[str, int], ...]:
    """The folders among these with little room left."""
    folders = {place if (place := _nearest(path)).is_dir() else place.parent for path in places if path is not None}
    found = ((str(folder), shutil.disk_usage(folder).free) for folder in sorted(folders))
    return tuple((folder, free) for folder, free in found if free < ROOM_BYTES)


def _nearest(path: Path) -> Path:
    """The path itself, or the first folder above it that is there."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


def _storage_trouble(storage: Storage) -> str | None:
    """Why nothing could be stored."""
    try:
        return storage.trouble()
    except PenstockError as error:
        return str(error)
