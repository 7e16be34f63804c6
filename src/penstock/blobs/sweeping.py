"""The sweep: uploads nobody finishes expire, bytes that belong to no blob go, blobs that lost their bytes are found.

A blob's record is stored before its first byte, and the sweep reads records after it has listed objects; so an object
whose record is not there, or is over, belongs to nobody. It goes when it is a day old. One storage serves one database.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial

from penstock.blobs import queries
from penstock.blobs.model import BlobDescriptor, Swept
from penstock.blobs.names import SEALED, STAGED, blob_of, tenant_folder
from penstock.blobs.storage import ListedObject, Storage, split_key
from penstock.clock import Clock, from_micros
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import Conflict, FileUnreadable, NotFound, PenstockError

__all__ = ["Sweeper", "clear", "sweep"]

log = logging.getLogger("penstock.blobs")

RECORDS_EACH = 100
OBJECTS_EACH = 500
ORPHAN_S = 86_400.0
PASS_STEPS = 5  # by a worker at a time, for it has more to do
LISTING_EVERY_S = 6 * 3600.0  # a list of all objects costs requests
SWEEPER = "sweep"


async def sweep(db: Database, storage: Storage, *, clock: Clock, actor: str = SWEEPER) -> Swept:
    """One whole sweep, of all tenants."""
    swept = Swept()
    work = _Sweep(db, storage, clock, actor, swept)
    async with aclosing(work.steps(lists_objects=True)) as steps:
        async for _ in steps:
            await asyncio.sleep(0)
    return swept


class Sweeper:
    """The sweep of a worker, some steps at a time."""

    def __init__(self, db: Database, storage: Storage, clock: Clock) -> None:
        self._db, self._storage, self._clock = db, storage, clock
        self._steps: AsyncGenerator[None] | None = None
        self._next_listing = clock.monotonic() + LISTING_EVERY_S

    async def tick(self) -> None:
        """Go on with the sweep that is under way, or begin the next."""
        if self._steps is None:
            is_due = self._clock.monotonic() >= self._next_listing
            if is_due:
                self._next_listing = self._clock.monotonic() + LISTING_EVERY_S
            work = _Sweep(self._db, self._storage, self._clock, SWEEPER, Swept())
            self._steps = work.steps(lists_objects=is_due)
        try:
            for _ in range(PASS_STEPS):
                await anext(self._steps)
        except StopAsyncIteration:
            self._steps = None
        except BaseException:
            self._steps = None
            raise

    async def close(self) -> None:
        """Give up what is under way."""
        if self._steps is not None:
            await self._steps.aclose()
            self._steps = None


async def clear(db: Database, storage: Storage, blob: BlobDescriptor) -> BlobDescriptor:
    """Remove the bytes of a blob that is over, then note it."""
    if not blob.has_bytes:
        return blob
    await asyncio.to_thread(_remove_bytes, storage, blob)
    await db.transaction(partial(_note_without_bytes, blob), "blob_clear")
    return replace(blob, has_bytes=False, revision=blob.revision + 1)


async def _note_without_bytes(blob: BlobDescriptor, tx: Connection) -> bool:
    return await queries.without_bytes(tx, blob)


def _remove_bytes(storage: Storage, blob: BlobDescriptor) -> int:
    removed = storage.remove_staged(blob.id)
    if blob.storage_key is not None:
        removed += storage.remove(blob.storage_key) or 0
    return removed


@dataclass(frozen=True)
class _Sweep:
    """One sweep, and what it has done so far."""

    db: Database
    storage: Storage
    clock: Clock
    actor: str
    swept: Swept

    async def steps(self, *, lists_objects: bool) -> AsyncGenerator[None]:
        """The parts of a sweep, each of them short."""
        while found := await self._expire_some():
            yield
            if found < RECORDS_EACH:
                break
        before = self.clock.now_us() - round(ORPHAN_S * 1e6)
        for blob in await self._read(partial(queries.unused_temporary, before=before, limit=RECORDS_EACH)):
            with suppress(Conflict):  # something uses it now
                await self._delete(blob, "no operation uses it any more")
            yield
        last = ""
        while over := await self._read(partial(queries.due_to_clear, after=last, limit=RECORDS_EACH)):
            await self._clear_some(over)
            last = over[-1].id
            yield
        while await self.db.transaction(
            partial(queries.forget_temporary, before=before, limit=RECORDS_EACH), "blob_forget"
        ):
            yield
        if lists_objects:
            async for _ in self._list_staged():
                yield
            for folder, tenant in (await self._folders()).items():
                async for _ in self._compare_folder(folder, tenant):
                    yield

    async def _expire_some(self) -> int:
        """Expire uploads that nobody has finished; their bytes are removed with those of others that are over."""
        async with self.db.read() as tx:
            found = await queries.due_to_expire(self.db, tx, limit=RECORDS_EACH)
        for blob in found:
            after = blob.mark_as_expired(from_micros(self.clock.now_us()))
            cause = after.rejection_reason
            move = partial(
                queries.move, self.db, before=blob, after=after, event="expired", actor=self.actor, cause=cause
            )
            try:
                await self.db.transaction(move, "blob_expire")
                self.swept.expired += 1
            except Conflict:
                continue  # somebody goes on with it
        return len(found)

    async def _clear_some(self, over: Sequence[BlobDescriptor]) -> None:
        for blob in over:
            try:
                removed = await asyncio.to_thread(_remove_bytes, self.storage, blob)
                await self.db.transaction(partial(_note_without_bytes, blob), "blob_clear")
            except (PenstockError, OSError) as error:
                log.warning("the bytes of blob %s cannot be removed: %s", blob.id, error)
                self.swept.is_complete = False
            else:
                self.swept.removed_objects += bool(removed)
                self.swept.removed_bytes += removed

    # --- objects against records

    async def _list_staged(self) -> AsyncGenerator[None]:
        after = ""
        while found := await self._listed(STAGED, after):
            known = await self._records_of(found)
            orphans = [each for each in found if not _is_staged(known.get(blob_of(each.name) or ""))]
            await self._remove_orphans(orphans)
            after = found[-1].name
            yield

    async def _compare_folder(self, folder: str, tenant: str | None) -> AsyncGenerator[None]:
        """Go through the objects of a tenant and its records side by side; both are in the order of ids."""
        after, last_id = "", ""
        while True:
            found = await self._listed(folder, after)
            known = await self._records_of(found)
            orphans = [each for each in found if not _is_sealed(each, known.get(blob_of(each.name) or ""))]
            await self._remove_orphans(orphans)
            is_last = len(found) < OBJECTS_EACH
            if tenant is not None:
                until = None if is_last else blob_of(found[-1].name)
                names = {each.name for each in found}
                async for _ in self._find_missing(tenant, names, after=last_id, until=until):
                    yield
                last_id = until or last_id
            if is_last:
                return
            after = found[-1].name
            yield

    async def _find_missing(
        self, tenant: str, names: set[str], *, after: str, until: str | None
    ) -> AsyncGenerator[None]:
        """Valid blobs whose object is not among the names that were listed."""
        while some := await self._read(
            partial(queries.valid_between, tenant=tenant, after=after, until=until, limit=OBJECTS_EACH)
        ):
            for blob in some:
                if split_key(blob.stored.key)[0] not in names:
                    await self._settle_missing(blob)
            after = some[-1].id
            yield

    async def _settle_missing(self, blob: BlobDescriptor) -> None:
        """Delete a blob that has lost its bytes; one that is used or held is only reported."""
        try:
            (await asyncio.to_thread(self.storage.peek, blob.stored.key)).stream.close()
            return  # it was stored after the list was made, or lies elsewhere
        except NotFound:
            pass
        except (FileUnreadable, OSError) as error:
            log.warning("blob %s cannot be read: %s", blob.id, error)
            self.swept.is_complete = False
            return
        try:
            self.swept.deleted_without_bytes += await self._delete(blob, "its bytes are missing from the storage")
        except Conflict:
            self.swept.missing.append(blob.id)

    async def _delete(self, blob: BlobDescriptor, reason: str) -> bool:
        """Delete a Valid blob; False when it is not Valid any more, `Conflict` while something uses or holds it."""

        async def work(tx: Connection) -> bool:
            await queries.lock(tx, blob.id)
            found = await queries.find(tx, blob.id)
            if found.status != "Valid":
                return False
            await queries.refuse_if_used(tx, blob.id)
            after = found.mark_as_deleted(from_micros(self.clock.now_us()), reason)
            await queries.move(self.db, tx, found, after, "deleted", actor=self.actor, cause=reason)
            return True

        return await self.db.transaction(work, "blob_delete")

    async def _remove_orphans(self, orphans: Sequence[ListedObject]) -> None:
        old = self.clock.now_us() - round(ORPHAN_S * 1e6)
        for orphan in orphans:
            if orphan.modified_us > old or blob_of(orphan.name) is None:
                continue
            try:
                removed = await asyncio.to_thread(self._remove_object, orphan.name)
            except (PenstockError, OSError) as error:
                log.warning("the object %s belongs to no blob, and cannot be removed: %s", orphan.name, error)
                self.swept.is_complete = False
            else:
                self.swept.removed_objects += 1
                self.swept.removed_bytes += removed or 0

    def _remove_object(self, name: str) -> int | None:
        return self.storage.remove(self.storage.key_of(name))

    async def _listed(self, prefix: str, after: str) -> list[ListedObject]:
        return await asyncio.to_thread(lambda: self.storage.listed(prefix, after=after, limit=OBJECTS_EACH))

    async def _records_of(self, found: Sequence[ListedObject]) -> dict[str, BlobDescriptor]:
        ids = [blob for each in found if (blob := blob_of(each.name)) is not None]
        if not ids:
            return {}
        return {blob.id: blob for blob in await self._read(partial(queries.find_many, blobs=ids))}

    async def _folders(self) -> dict[str, str | None]:
        """The folders of all tenants; None for one that no record of ours points to."""
        found: dict[str, str | None] = dict.fromkeys(await asyncio.to_thread(self.storage.folders, SEALED))
        async with self.db.read() as tx:
            tenants = await queries.tenants(tx)
        return found | {tenant_folder(tenant): tenant for tenant in tenants}

    async def _read(self, query: Callable[[Connection], Awaitable[list[BlobDescriptor]]]) -> list[BlobDescriptor]:
        async with self.db.read() as tx:
            return await query(tx)


def _is_staged(blob: BlobDescriptor | None) -> bool:
    return blob is not None and blob.status in ("Pending", "Uploading")


def _is_sealed(listed: ListedObject, blob: BlobDescriptor | None) -> bool:
    """Whether the object is one that a blob has, or is about to have."""
    if blob is None:
        return False
    if blob.status == "Valid":
        return blob.storage_key is not None and split_key(blob.storage_key)[0] == listed.name
    return blob.status == "Uploading"
