"""Creating an operation: everything is checked before anything is stored; when the call returns, it is durable."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from sqlalchemy import insert

from penstock.blobs.store import FileStore, Stored
from penstock.clock import Clock, Entropy, operation_id
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import Fault, FileRejected, MetadataInvalid, SettingsInvalid
from penstock.formats import format_of
from penstock.journal import queries as journal
from penstock.operations.states import OPERATION
from penstock.operations.tables import operations
from penstock.operations.validating.without_rows import refuse_without_rows
from penstock.outbox.storing import subscribe
from penstock.pipeline import Definition
from penstock.pipeline.secret_values import mask_texts
from penstock.secret_keys import SecretKeys

__all__ = ["Source", "accept_metadata", "create", "name_of", "open_source"]

Source = str | Path | bytes | BinaryIO


async def create(
    db: Database,
    files: FileStore,
    definition: Definition,
    pipeline: object,
    *,
    source: Source,
    file_name: str | None,
    metadata: Any,
    overrides: Mapping[str, Any],
    created_by: str,
    clock: Clock,
    entropy: Entropy,
    keys: SecretKeys,
    metadata_bytes_max: int,
    told: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Store the file, then the operation that runs over it; returns its id.

    `told` are subscriptions to the operation's events, stored with it.

    Unknown formats, metadata that does not fit, unknown options and files without rows are refused before anything is
    stored; of a stream that cannot be rewound, it is the reading that finds no row.
    """
    resolved = definition.for_run(overrides)
    meta = await accept_metadata(resolved, pipeline, metadata, bytes_max=metadata_bytes_max)
    columns = _metadata_columns(resolved, meta, keys)
    name = file_name or name_of(source)
    file_format = format_of(name)

    def store() -> Stored:
        with open_source(source) as stream:
            refuse_without_rows(resolved, stream, file_name=name, file_format=file_format)
            return files.put(stream)

    stored = await asyncio.to_thread(store)
    return await db.transaction(
        _insertion(
            db,
            operation_id(clock, entropy),
            resolved,
            stored,
            file_name=name,
            file_format=file_format,
            created_by=created_by,
            told=told,
            **columns,
        ),
        "create",
    )


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
    size = len(msgspec.json.encode(document))
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


def _insertion(
    db: Database,
    new_id: str,
    definition: Definition,
    stored: Stored,
    *,
    created_by: str,
    told: Sequence[Mapping[str, Any]],
    **columns: Any,
) -> Any:
    async def insert_operation(tx: Connection) -> str:
        await tx.execute(
            insert(operations).values(
                id=new_id,
                name=definition.name,
                state=OPERATION.initial,
                reading="open",
                open_chunks=1,
                file_key=stored.key,
                file_bytes=stored.size_bytes,
                file_sha256=stored.sha256,
                plan=definition.plan_document(),
                created_by=created_by,
                created_at=db.now(),
                **columns,
            )
        )
        await journal.record(
            tx,
            machine=OPERATION.name,
            subject=new_id,
            source=None,
            event="created",
            target=OPERATION.initial,
            at=db.now(),
            actor=created_by,
        )
        if told:
            await subscribe(db, tx, told, subject=new_id)
        await db.ring(tx)
        return new_id

    return insert_operation


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
    return nullcontext(source)


def name_of(source: Source) -> str:
    """The file name of a source, from which its format is known."""
    if isinstance(source, str | Path):
        return Path(source).name
    name = getattr(source, "name", None)
    if isinstance(name, str):
        return Path(name).name
    raise FileRejected("a file given as bytes needs file_name, so that its format is known", code="unknown_format")
