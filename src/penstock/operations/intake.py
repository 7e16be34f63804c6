"""Creating an operation: everything is checked before anything is stored; when the call returns, it is durable."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from sqlalchemy import Insert, func, insert, select

from penstock.access.audit import Act, record
from penstock.blobs import queries as blob_queries
from penstock.blobs.checks.policy import NAME_CHARS
from penstock.blobs.checks.upload import Rejection
from penstock.blobs.model import BlobDescriptor
from penstock.blobs.service import Blobs
from penstock.blobs.uploading import check_and_seal, stage_stream
from penstock.clock import Clock, Entropy, operation_id
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.db.types import NotStorable, storable, storable_json
from penstock.db.unit import UnitOfWork
from penstock.errors import Fault, FileRejected, InvalidInput, MetadataInvalid, SettingsInvalid, Throttled
from penstock.formats import format_of
from penstock.journal import queries as journal
from penstock.operations.chunk.persist import persist
from penstock.operations.model import Operation
from penstock.operations.operation_ids import IS_THERE
from penstock.operations.pruning.removal import reference_of
from penstock.operations.states import OPERATION
from penstock.operations.tables import operations
from penstock.operations.validating.sources import refuse_without_rows
from penstock.operations.views import operation_views
from penstock.operations.visibility import Visible
from penstock.outbox.storing import subscribe
from penstock.pipeline import Definition
from penstock.pipeline.secret_values import mask_texts
from penstock.secret_keys import SecretKeys
from penstock.settings import Settings

__all__ = ["Source", "accept_metadata", "create", "name_of", "open_source", "require_room"]

DAY_US = 86_400_000_000
AGAIN_S = 60

Source = str | Path | bytes | BinaryIO
Link = Callable[[Connection], Awaitable[BlobDescriptor]]


async def require_room(db: Database, tenant: str, settings: Settings) -> None:
    """`Throttled` when the tenant has used up what it may submit: bytes a day, operations under way.

    Call this before a file is stored. Uploads at the same time may each find room.
    """
    bytes_max, open_max = settings.tenant_bytes_per_day, settings.tenant_open_operations_max
    if not bytes_max and not open_max:
        return

    async def used(tx: Connection) -> tuple[int, int]:
        mine = (*Visible(tenant).conditions, IS_THERE)
        is_new = operations.c.created_at > db.now() - DAY_US
        is_open = operations.c.state.not_in(sorted(OPERATION.settled))
        size = (await tx.execute(select(func.sum(operations.c.file_bytes)).where(*mine, is_new))).scalar()
        many = (await tx.execute(select(func.count()).select_from(operations).where(*mine, is_open))).scalar_one()
        return int(size or 0), many

    sent, under_way = await db.look(used)
    if bytes_max and sent >= bytes_max:
        raise Throttled(
            f"{sent:,} bytes were submitted within a day; the limit is {bytes_max:,}", retry_after_s=AGAIN_S
        )
    if open_max and under_way >= open_max:
        raise Throttled(f"{under_way} operations are under way; the limit is {open_max}", retry_after_s=AGAIN_S)


async def create(
    db: Database,
    blobs: Blobs,
    definition: Definition,
    pipeline: object,
    *,
    source: Source | BlobDescriptor,
    file_name: str | None,
    metadata: Any,
    overrides: Mapping[str, Any],
    created_by: str,
    tenant: str | None,
    clock: Clock,
    entropy: Entropy,
    settings: Settings,
    told: Sequence[Mapping[str, Any]] = (),
    unit: UnitOfWork | None = None,
) -> Operation:
    """Store the file as a blob, then the operation that runs over it; or use a blob that is Valid.

    `told` are subscriptions to the operation's events, stored with it. In a `unit` of the caller's the operation
    is there once that is committed.

    Unknown formats, metadata that does not fit, unknown options and files without rows are refused before anything is
    stored; of a stream that cannot be rewound, it is the reading that finds no row.
    """
    resolved = definition.for_run(overrides)
    meta = await accept_metadata(resolved, pipeline, metadata, bytes_max=settings.metadata_bytes_max)
    columns = _metadata_columns(resolved, meta, settings.secret_keys)
    new_id = operation_id(clock, entropy)
    name = file_name or (source.file_name if isinstance(source, BlobDescriptor) else name_of(source))
    try:
        storable(name, NAME_CHARS)
    except NotStorable as error:
        raise InvalidInput(f"the name of the file cannot be stored: {error}") from None
    file_format = format_of(name)
    columns |= {"file_name": name, "file_format": file_format}

    def look() -> None:
        opening = blobs.storage.open(source.stored) if isinstance(source, BlobDescriptor) else open_source(source)
        with opening as stream:
            refuse_without_rows(resolved, stream, file_name=name, file_format=file_format)

    await asyncio.to_thread(look)
    if isinstance(source, BlobDescriptor):
        link: Link = partial(blobs.refer, blob=source.id, owner=reference_of(new_id))
    else:
        link = await _stored(db, blobs, source, name, owner=reference_of(new_id), actor=created_by, unit=unit)

    async def insert_operation(tx: Connection) -> Operation:
        blob = await link(tx)
        await _insert(db, tx, new_id, resolved, blob, told=told, created_by=created_by, tenant=tenant, **columns)
        return await operation_views.get(db, tx, new_id)  # now: once it is committed, nothing may fail any more

    async def is_there() -> bool:
        async with db.connection() as tx:
            found = await tx.execute(select(operations.c.number).where(operations.c.id == new_id))
        return found.first() is not None

    if unit is not None:
        return await insert_operation(unit.connection)
    return await persist(db, insert_operation, "create", has_happened=is_there, clock=clock, patience_s=0)


async def _stored(
    db: Database, blobs: Blobs, source: Source, file_name: str, *, owner: str, actor: str, unit: UnitOfWork | None
) -> Link:
    """Store a file as a blob that belongs to the operation; it becomes Valid together with the operation.

    In a `unit` of the caller's the record of the blob is undone with it, and the sweep removes the bytes.
    """
    blobs.storage.require()
    made = blobs.new(file_name, actor=actor, is_temporary=True, limit=False)
    begin = partial(blobs.begin, made)
    begun = await (db.transaction(begin, "blob_create") if unit is None else begin(unit.connection))

    def store() -> Any:
        with open_source(source) as stream:
            return stage_stream(blobs.storage, begun, stream)

    try:
        staged = await asyncio.to_thread(store)
        sealed = await check_and_seal(blobs.storage, begun, staged, blobs.policy, looks_inside=False)
        if isinstance(sealed, Rejection):
            raise FileRejected(f"{file_name}: {sealed.reason}", code=sealed.code)
    except BaseException as error:
        if unit is None:
            await asyncio.shield(blobs.give_up(begun, error))
        raise
    after = begun.mark_as_valid(blobs.now(), sealed)

    async def link(tx: Connection) -> BlobDescriptor:
        valid = await blob_queries.move(db, tx, begun, after, "validated", actor=actor)
        await blob_queries.add_reference(db, tx, valid.id, owner)
        return valid

    return link


async def accept_metadata(definition: Definition, pipeline: object, metadata: Any, *, bytes_max: int) -> Any:
    """Metadata as workers will see it, once model and `validate_metadata` accept it; `MetadataInvalid` otherwise."""
    meta = definition.meta.parse(metadata)
    hook = definition.validate_metadata
    if hook is not None:
        try:
            answer = hook.call(pipeline, meta)
            if hook.is_async:
                await answer
        except (ValueError, AssertionError) as error:
            secrets = definition.meta.secrets(meta)
            why = mask_texts(str(error), secrets)
            cause = None if secrets else error
            raise MetadataInvalid(f"metadata of {definition.name!r}: {why}", [Fault(why)]) from cause
    document = definition.meta.dump(meta)
    try:
        size = len(storable_json(document))
    except NotStorable as error:
        raise MetadataInvalid(f"metadata of {definition.name!r}: {error}", [Fault(str(error))]) from None
    if size > bytes_max:
        raise MetadataInvalid(f"metadata of {definition.name!r} has {size:,} bytes; at most {bytes_max:,} are taken")
    return definition.meta.load(document)


def _metadata_columns(definition: Definition, meta: Any, keys: SecretKeys) -> dict[str, Any]:
    """Metadata as it is stored: to be shown, and where it holds secrets once more as a whole, encrypted."""
    shown = definition.meta.view(meta)
    if not definition.meta.secrets(meta):
        return {"metadata": shown}
    try:
        encrypted = keys.encrypt(msgspec.json.encode(definition.meta.dump(meta)))
    except SettingsInvalid as error:
        raise SettingsInvalid(f"metadata of {definition.name!r} holds secrets, and {error}") from error
    return {"metadata": shown, "encrypted_metadata": encrypted}


async def _insert(
    db: Database,
    tx: Connection,
    new_id: str,
    definition: Definition,
    blob: BlobDescriptor,
    *,
    told: Sequence[Mapping[str, Any]],
    created_by: str,
    tenant: str | None,
    **columns: Any,
) -> None:
    stored = blob.stored
    values = {
        "id": new_id,
        "name": definition.name,
        "state": OPERATION.initial,
        "reading": "open",
        "open_chunks": 1,
        "file_key": stored.key,
        "file_bytes": stored.size_bytes,
        "file_sha256": stored.sha256,
        "file_version": stored.version,
        "blob": blob.id,
        "plan": definition.plan_document(),
        "keep": definition.options.keep,
        "created_by": created_by,
        "tenant": tenant or None,  # the one without a name has none
        **columns,
    }
    await tx.send(db.prepared(_new_operation), values)
    await journal.record(
        db,
        tx,
        machine=OPERATION.name,
        subject=new_id,
        source=None,
        event="created",
        target=OPERATION.initial,
        actor=created_by,
    )
    if told:
        await subscribe(db, tx, told, subject=new_id, tenant=tenant or "")
    await db.ring(tx)
    details = {"name": definition.name, "fileName": columns["file_name"], "sha256": stored.sha256}
    act = Act(tenant or "", created_by, "operation.create", new_id, details)
    await record(db, tx, act)


def open_source(source: Source) -> AbstractContextManager[BinaryIO]:
    """A path, bytes or an open file as a binary stream."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
    if isinstance(source, str | Path):
        try:
            return Path(source).open("rb")
        except FileNotFoundError:
            raise FileRejected(f"{source}: no such file", code="missing") from None
        except OSError as error:
            raise FileRejected(f"{source}: {error.strerror}", code="unreadable") from error
    if isinstance(source, io.TextIOBase):
        raise InvalidInput("a file is taken as bytes, and this one was opened as text; open it with mode 'rb'")
    return nullcontext(source)


def name_of(source: Source) -> str:
    """The file name of a source, from which its format is known."""
    if isinstance(source, str | Path):
        return Path(source).name
    name = getattr(source, "name", None)
    if isinstance(name, str):
        return Path(name).name
    raise FileRejected("a file given as bytes needs file_name, so that its format is known", code="unknown_format")


def _new_operation(db: Database) -> Insert:
    return insert(operations).values(created_at=db.now())
