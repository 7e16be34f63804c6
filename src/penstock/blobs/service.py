"""`penstock.blobs`: uploaded files, from the first byte to their deletion."""

from __future__ import annotations

import asyncio
import builtins
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from penstock.access.audit import Act, record
from penstock.blobs import queries, sweeping
from penstock.blobs.checks.policy import BlobPolicy
from penstock.blobs.checks.types import content_type_of
from penstock.blobs.checks.upload import Rejection
from penstock.blobs.model import (
    BlobDescriptor,
    BlobEvent,
    Finding,
    Hold,
    Reference,
    StoredBytes,
    Swept,
    UploadTicket,
    given_reason,
)
from penstock.blobs.proof import verify_blobs
from penstock.blobs.storage import BLOCK_BYTES, Storage
from penstock.blobs.tables import OWNER_CHARS, TENANT_CHARS, rows
from penstock.blobs.uploading import ByteSource, Staged, check_and_seal, found_again, look_at_staged, stage
from penstock.clock import Clock, Entropy, from_micros, operation_id
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.db.unit import UnitOfWork
from penstock.errors import Conflict, InvalidInput, NotFound, PenstockError
from penstock.listing import Page

__all__ = ["Blobs"]

T = TypeVar("T")

TICKET_S = 900.0
DOWNLOAD_S = 300.0
UNFINISHED_S = 86_400.0  # an upload that is not finished by then expires
STORING_S = 86_400.0  # as long as a stream may take
CHECKING_S = 900.0  # a check that takes longer was cut off, and may be begun again
REFERENCES_MAX = 1000

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Blobs:
    """Files of one tenant: uploads, their checks, what uses them, and their deletion."""

    db: Database
    storage: Storage
    policy: BlobPolicy
    clock: Clock
    entropy: Entropy
    actor: str
    page_max: int
    of_tenant: str = ""

    def __post_init__(self) -> None:
        if len(self.of_tenant) > TENANT_CHARS or not self.of_tenant.isprintable():
            raise InvalidInput(
                f"a tenant is printable text of at most {TENANT_CHARS} characters: {self.of_tenant!r:.80}"
            )

    def tenant(self, name: str) -> Blobs:
        """The blobs of another tenant; none of these calls sees more than one tenant's."""
        return replace(self, of_tenant=name)

    # --- taking in

    async def upload(
        self,
        source: ByteSource,
        *,
        file_name: str | None = None,
        content_type: str | None = None,
        size_bytes: int | None = None,
        sha256: str | None = None,
        bytes_max: int | None = None,
        actor: str | None = None,
    ) -> BlobDescriptor:
        """Store and check a file: a path, bytes, an open file, or blocks that come one after the other.

        The blob comes back as Valid, or as Rejected with the reason. `size_bytes` and `sha256` are what it must have.
        """
        made = self.new(
            file_name or _name_of(source),
            content_type=content_type,
            size_bytes=size_bytes,
            sha256=sha256,
            bytes_max=bytes_max,
            actor=actor,
        )

        async def begin(tx: Connection) -> BlobDescriptor:
            begun = await self.begin(made, tx)
            await self._audit(tx, "create", made.id, made.created_by, fileName=made.file_name)
            return begun

        return await self._take_in(await self._write(begin, "blob_create"), source, actor=made.created_by)

    async def initiate(
        self,
        file_name: str,
        *,
        content_type: str | None = None,
        size_bytes: int | None = None,
        sha256: str | None = None,
        bytes_max: int | None = None,
        expires_in: float | timedelta = TICKET_S,
        actor: str | None = None,
    ) -> UploadTicket:
        """Announce a file that will be sent to the storage directly, or to `receive`; then `confirm` it."""
        self.storage.require()
        made = self.new(
            file_name, content_type=content_type, size_bytes=size_bytes, sha256=sha256, bytes_max=bytes_max, actor=actor
        )
        span = _span("expires_in", expires_in)
        url = None
        if self.storage.can_sign:
            url = await asyncio.to_thread(self.storage.sign_upload, made.id, span)

        async def create(tx: Connection) -> None:
            await queries.create(self.db, tx, made)
            await self._audit(tx, "create", made.id, made.created_by, fileName=made.file_name)

        await self._write(create, "blob_create")
        return UploadTicket(made, self.now() + span, url)

    async def receive(self, blob: str, source: ByteSource, *, actor: str | None = None) -> BlobDescriptor:
        """Store and check the bytes of an announced blob; nothing is left to confirm then."""
        found = await self.get(blob)
        who = actor or self.actor
        begun = await self._begin(found, STORING_S, who)
        return await self._take_in(begun, source, actor=who, has_url=self.storage.can_sign)

    async def confirm(self, blob: str, *, actor: str | None = None) -> BlobDescriptor:
        """Check what was sent to the storage directly. Of a blob that is settled, it only says how.

        `NotFound` while nothing was sent, `Conflict` while somebody else checks it; both leave it as it is.
        """
        found = await self.get(blob)
        if found.is_settled:
            return found
        try:
            (await asyncio.to_thread(self.storage.open_staged, blob)).stream.close()
        except NotFound:
            now = await self.get(blob)  # somebody may be confirming it, or have done so
            if now.is_settled:
                return now
            self._require_free(now)
            raise
        who = actor or self.actor
        begun = await self._begin(found, CHECKING_S, who)
        async with self._let_go_unless_done(begun):
            staged = await asyncio.to_thread(look_at_staged, self.storage, begun)
        return await self._settle(begun, staged, who)

    def new(
        self,
        file_name: str,
        *,
        content_type: str | None = None,
        size_bytes: int | None = None,
        sha256: str | None = None,
        bytes_max: int | None = None,
        actor: str | None = None,
        is_temporary: bool = False,
        limit: bool = True,
    ) -> BlobDescriptor:
        """The descriptor of a blob that is about to be made; nothing is stored."""
        if sha256 is not None and not _SHA256.fullmatch(sha256 := sha256.lower()):
            raise InvalidInput(f"sha256 is 64 hexadecimal digits; found {sha256!r:.80}")
        limits = [each for each in (bytes_max, self.policy.bytes_max if limit else None) if each is not None]
        now = self.now()
        return BlobDescriptor(
            id=operation_id(self.clock, self.entropy),
            tenant=self.of_tenant,
            file_name=file_name,
            content_type=content_type_of(file_name, content_type)[:100],
            bytes_max=min(limits, default=None),
            expected_bytes=size_bytes,
            expected_sha256=sha256,
            is_temporary=is_temporary,
            created_by=actor or self.actor,
            created_at=now,
            expires_at=now + timedelta(seconds=UNFINISHED_S),
        )

    async def begin(self, made: BlobDescriptor, tx: Connection) -> BlobDescriptor:
        """Store a new blob whose bytes come now, inside a transaction."""
        await queries.create(self.db, tx, made)
        lease = made.created_at + timedelta(seconds=STORING_S)
        after = made.mark_as_uploading(lease_until=lease)
        return await queries.move(self.db, tx, made, after, "uploading", actor=made.created_by)

    async def give_up(self, begun: BlobDescriptor, error: BaseException, *, actor: str | None = None) -> None:
        """Reject a blob whose bytes could not be stored, as far as that is possible now; else it expires."""
        with suppress(PenstockError, OSError):
            await asyncio.to_thread(self.storage.remove_staged, begun.id)
            await self._reject(
                begun, Rejection("not_stored", f"it could not be stored: {error}"), actor or begun.created_by
            )

    async def _take_in(
        self, begun: BlobDescriptor, source: ByteSource, *, actor: str, has_url: bool = False
    ) -> BlobDescriptor:
        """Store, check and settle. Where somebody `has_url`, what is checked is what the storage has."""
        try:
            staged = await stage(self.storage, begun, source)
            if has_url and isinstance(staged, Staged):
                staged = await asyncio.to_thread(found_again, self.storage, begun, staged)
        except BaseException as error:
            await asyncio.shield(self.give_up(begun, error, actor=actor))
            raise
        return await self._settle(begun, staged, actor)

    async def _begin(self, found: BlobDescriptor, lease_s: float, actor: str) -> BlobDescriptor:
        """Become the one who stores or checks the bytes; whoever was cut off can be followed when its lease is over."""
        lease = self.now() + timedelta(seconds=lease_s)

        async def work(tx: Connection) -> BlobDescriptor:
            if found.status != "Uploading":
                after = found.mark_as_uploading(lease_until=lease)
                return await queries.move(self.db, tx, found, after, "uploading", actor=actor)
            self._require_free(found)
            return await queries.renew(tx, found, lease)

        return await self._write(work, "blob_begin")

    def _require_free(self, found: BlobDescriptor) -> None:
        if found.status == "Uploading" and found.lease_until is not None and found.lease_until > self.now():
            raise Conflict(f"blob {found.id} is being stored or checked; ask again later")

    @asynccontextmanager
    async def _let_go_unless_done(self, begun: BlobDescriptor) -> AsyncIterator[None]:
        """Let others check the bytes when we cannot now, whatever the reason."""
        try:
            yield
        except (Exception, asyncio.CancelledError):
            await asyncio.shield(self._let_go(begun))
            raise

    async def _let_go(self, begun: BlobDescriptor) -> None:
        async def work(tx: Connection) -> None:
            await queries.renew(tx, await queries.lock_upload(tx, begun), None)

        with suppress(PenstockError):
            await self._write(work, "blob_let_go")

    async def _settle(self, begun: BlobDescriptor, staged: Staged | Rejection, actor: str) -> BlobDescriptor:
        """Valid or Rejected. Where that cannot be said now, `confirm` may be called for it.

        Sealed bytes whose blob was changed meanwhile are left to the sweep.
        """
        async with self._let_go_unless_done(begun):
            sealed: StoredBytes | Rejection
            if isinstance(staged, Rejection):
                sealed = staged
            else:
                sealed = await check_and_seal(self.storage, begun, staged, self.policy)
            if isinstance(sealed, Rejection):
                return await self._clear(await self._reject(begun, sealed, actor))
            valid = await self._accept(begun, sealed, actor)
        await self._tidy(begun.id)
        return valid

    async def _accept(self, begun: BlobDescriptor, sealed: StoredBytes, actor: str) -> BlobDescriptor:
        async def move(tx: Connection) -> BlobDescriptor:
            mine = await queries.lock_upload(tx, begun)
            after = mine.mark_as_valid(self.now(), sealed)
            return await queries.move(self.db, tx, mine, after, "validated", actor=actor)

        return await self._write(move, "blob_validated")

    async def _reject(self, begun: BlobDescriptor, why: Rejection, actor: str) -> BlobDescriptor:
        async def move(tx: Connection) -> BlobDescriptor:
            mine = await queries.lock_upload(tx, begun)
            after = mine.mark_as_rejected(why.reason, at=self.now(), code=why.code)
            cause, details = after.rejection_reason, {"code": why.code}
            return await queries.move(self.db, tx, mine, after, "rejected", actor=actor, cause=cause, details=details)

        return await self._write(move, "blob_rejected")

    async def _tidy(self, blob: str) -> None:
        """Remove staged bytes that are sealed; what stays is removed by the sweep."""
        with suppress(PenstockError, OSError):
            await asyncio.to_thread(self.storage.remove_staged, blob)

    async def _clear(self, over: BlobDescriptor) -> BlobDescriptor:
        """Remove the bytes of a blob that is over; what cannot be removed now is removed by the sweep."""
        with suppress(PenstockError, OSError):
            return await sweeping.clear(self.db, self.storage, over)
        return over

    # --- looking

    async def get(self, blob: str) -> BlobDescriptor:
        """The blob with this id."""
        async with self.db.read() as tx:
            return await queries.find(tx, blob, tenant=self.of_tenant)

    async def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        file_name: str | None = None,
        sha256: str | None = None,
        created_by: str | None = None,
        created_from: datetime | None = None,
        created_to: datetime | None = None,
        is_held: bool | None = None,
        is_used: bool | None = None,
        is_temporary: bool | None = None,
        cursor: str | None = None,
        limit: int = 20,
    ) -> Page[BlobDescriptor]:
        """Blobs that fit every filter given, newest first."""
        if limit < 1:
            raise InvalidInput(f"limit is {limit}; a page has at least 1 entry")
        async with self.db.read() as tx:
            return await queries.list_blobs(
                tx,
                tenant=self.of_tenant,
                status=status,
                file_name=file_name,
                sha256=sha256,
                created_by=created_by,
                created_from=created_from,
                created_to=created_to,
                is_held=is_held,
                is_used=is_used,
                is_temporary=is_temporary,
                cursor=cursor,
                limit=min(limit, self.page_max),
            )

    async def history(self, blob: str) -> builtins.list[BlobEvent]:
        """All that happened to a blob, in order."""
        async with self.db.read() as tx:
            await queries.find(tx, blob, tenant=self.of_tenant)
            return await queries.events(tx, blob)

    async def download_url(self, blob: str, *, expires_in: float | timedelta = DOWNLOAD_S) -> str:
        """A URL from which the bytes of a Valid blob can be had for a while, if the storage can give one.

        What it serves is data of users: serve it as an attachment, never inside a page.
        """
        stored = (await self.get(blob)).stored
        if not self.storage.can_sign:
            raise Conflict(f"the storage {self.storage.place} gives no URLs; use `blobs.read`")
        span = _span("expires_in", expires_in)
        return await asyncio.to_thread(self.storage.sign_download, stored.key, span)

    async def read(self, blob: str, *, start: int = 0) -> AsyncIterator[bytes]:
        """The bytes of a Valid blob, block by block, from an offset on; `FileChanged` when they are not the same."""
        stored = (await self.get(blob)).stored
        stream = await asyncio.to_thread(self.storage.opened, stored)
        try:
            await asyncio.to_thread(stream.seek, start)
            while block := await asyncio.to_thread(stream.read, BLOCK_BYTES):
                yield block
        finally:
            await asyncio.to_thread(stream.close)

    # --- what uses a blob, and what keeps it

    async def reference(self, blob: str, owner: str, *, tx: UnitOfWork | None = None) -> None:
        """Note that something uses a Valid blob, so that it is not deleted; `owner` is a name such as `invoice:7`."""
        if not 0 < len(owner) <= OWNER_CHARS:
            raise InvalidInput(f"an owner has 1 to {OWNER_CHARS} characters: {owner!r:.80}")

        async def work(inner: Connection) -> None:
            await self.refer(inner, blob, owner)

        await self._write(work, "blob_reference", tx)

    async def refer(self, tx: Connection, blob: str, owner: str) -> BlobDescriptor:
        """`reference` inside a transaction of ours; the blob."""
        is_valid = await queries.lock(tx, blob, rows.c.state == "Valid", tenant=self.of_tenant)
        found = await queries.find(tx, blob, tenant=self.of_tenant)
        if not is_valid:
            why = f": {found.rejection_reason}" if found.rejection_reason else ""
            raise Conflict(f"blob {blob} is {found.status}{why}; only Valid blobs can be used")
        await queries.add_reference(self.db, tx, blob, owner)
        return found

    async def unreference(self, blob: str, owner: str, *, tx: UnitOfWork | None = None) -> bool:
        """Note that something does not use a blob any more; False when it did not."""

        async def work(inner: Connection) -> bool:
            await self._locked(inner, blob)
            return await queries.drop_reference(inner, blob, owner)

        return await self._write(work, "blob_unreference", tx)

    async def references(self, blob: str, *, limit: int = REFERENCES_MAX) -> builtins.list[Reference]:
        """What uses a blob."""
        async with self.db.read() as tx:
            await queries.find(tx, blob, tenant=self.of_tenant)
            return await queries.references_of(tx, blob, limit=limit)

    async def hold(
        self, blob: str, reason: str, *, name: str = "legal", actor: str | None = None, tx: UnitOfWork | None = None
    ) -> builtins.list[Hold]:
        """Keep a blob from being deleted until the hold is released; the holds there are then. Twice is once."""
        placed = Hold(name, given_reason(reason), actor or self.actor, self.now())

        async def work(inner: Connection) -> builtins.list[Hold]:
            found = await self._locked(inner, blob)
            if found.status == "Deleted":
                raise Conflict(f"blob {blob} is Deleted; there is nothing left to hold")
            if await queries.place_hold(self.db, inner, found, placed):
                await self._audit(inner, "hold", blob, placed.placed_by, hold=name, reason=placed.reason)
            return await queries.holds_of(inner, blob)

        return await self._write(work, "blob_hold", tx)

    async def release(
        self, blob: str, reason: str, *, name: str = "legal", actor: str | None = None, tx: UnitOfWork | None = None
    ) -> builtins.list[Hold]:
        """Release a hold; the holds that are left."""
        why = given_reason(reason)

        async def work(inner: Connection) -> builtins.list[Hold]:
            found = await self._locked(inner, blob)
            if await queries.remove_hold(inner, blob, name):
                who = actor or self.actor
                await queries.note(self.db, inner, found, "released", actor=who, cause=why, details={"hold": name})
                await self._audit(inner, "release", blob, who, hold=name, reason=why)
            return await queries.holds_of(inner, blob)

        return await self._write(work, "blob_release", tx)

    async def holds(self, blob: str) -> builtins.list[Hold]:
        """The holds on a blob."""
        async with self.db.read() as tx:
            await queries.find(tx, blob, tenant=self.of_tenant)
            return await queries.holds_of(tx, blob)

    async def delete(
        self, blob: str, reason: str, *, actor: str | None = None, tx: UnitOfWork | None = None
    ) -> BlobDescriptor:
        """Delete the bytes of a blob for a reason; its record and log stay. Twice is once.

        `Conflict` while something uses or holds it. The bytes go after the commit; inside a `tx` of yours they are left
        to the next sweep.
        """

        async def work(inner: Connection) -> BlobDescriptor:
            found = await self._locked(inner, blob)
            if found.status == "Deleted":
                return found
            after = found.mark_as_deleted(self.now(), reason)
            await queries.refuse_if_used(inner, blob)
            who, why = actor or self.actor, after.deletion_reason
            deleted = await queries.move(self.db, inner, found, after, "deleted", actor=who, cause=why)
            await self._audit(inner, "delete", blob, who, reason=why)
            return deleted

        deleted = await self._write(work, "blob_delete", tx)
        return deleted if tx is not None else await self._clear(deleted)

    # --- looking after all of them

    async def sweep(self) -> Swept:
        """Expire unfinished uploads, remove bytes that belong to no blob, find blobs without bytes; of all tenants."""
        return await sweeping.sweep(self.db, self.storage, clock=self.clock, actor=self.actor)

    async def verify(self, *, deep: bool = False) -> builtins.list[Finding]:
        """Compare the records of all blobs with their logs and bytes; `deep` also reads the bytes."""
        return await verify_blobs(self.db, self.storage, deep=deep)

    async def _audit(self, tx: Connection, action: str, blob: str, actor: str, **details: str | None) -> None:
        await record(self.db, tx, Act(self.of_tenant, actor, f"blob.{action}", blob, details))

    async def _locked(self, tx: Connection, blob: str) -> BlobDescriptor:
        await queries.lock(tx, blob, tenant=self.of_tenant)
        return await queries.find(tx, blob, tenant=self.of_tenant)

    async def _write(self, work: Callable[[Connection], Awaitable[T]], point: str, unit: UnitOfWork | None = None) -> T:
        return await (self.db.transaction(work, point) if unit is None else work(unit.connection))

    def now(self) -> datetime:
        """The time on the database's clock."""
        return from_micros(self.clock.now_us())


def _span(name: str, given: float | timedelta) -> timedelta:
    span = given if isinstance(given, timedelta) else timedelta(seconds=given)
    if not timedelta(seconds=1) <= span <= timedelta(days=7):
        raise InvalidInput(f"{name} is {span}; it is from 1 second to 7 days")
    return span


def _name_of(source: ByteSource) -> str:
    name = source if isinstance(source, str | Path) else getattr(source, "name", None)
    if isinstance(name, str | Path):
        return Path(name).name
    raise InvalidInput("a file given as bytes needs file_name")
