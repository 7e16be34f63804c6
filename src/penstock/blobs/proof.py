"""`verify` for blobs: their records against their logs and their bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import exists, select

from penstock.blobs import queries
from penstock.blobs.model import BlobDescriptor, Finding
from penstock.blobs.states import BLOB
from penstock.blobs.storage import Storage, digest_of
from penstock.blobs.tables import holds, references, rows
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import FileUnreadable, NotFound
from penstock.journal.queries import Entry
from penstock.journal.tables import transitions

__all__ = ["log_fits", "verify_blobs"]

READ_EACH = 200
LISTED_MAX = 1000


async def verify_blobs(db: Database, storage: Storage, *, deep: bool) -> list[Finding]:
    """Every difference; work may go on meanwhile. `deep` also reads all bytes and compares their digests."""
    found: list[Finding] = []
    last = ""
    while True:
        async with db.read() as tx:
            some = await queries.all_after(tx, after=last, limit=READ_EACH)
            logs = await _logs(tx, [blob.id for blob in some]) if some else {}
        if not some:
            break
        for blob in some:
            found += log_fits(blob, logs.get(blob.id, ()))
            found += await asyncio.to_thread(_bytes_are_stored, storage, blob, deep)
        last = some[-1].id
    async with db.read() as tx:
        found += await _orphans(tx)
    return found


def log_fits(blob: BlobDescriptor, log: Sequence[Entry]) -> Iterator[Finding]:
    """The log leads by the table's moves from the first state to the present one."""
    state: str | None = None
    for line in log:
        if line.source != state:
            yield Finding("blob_log_fits", blob.id, f"its log goes on from {line.source} where it was {state}")
        elif line.source is not None and line.source != line.target:
            wanted = BLOB.moves.get((line.source, line.event))
            if wanted != line.target:
                yield Finding(
                    "blob_log_fits", blob.id, f"its log goes from {line.source} by {line.event} to {line.target}"
                )
        state = line.target
    if state != blob.status:
        yield Finding("blob_log_fits", blob.id, f"it is {blob.status}, and by its log {state}")


def _bytes_are_stored(storage: Storage, blob: BlobDescriptor, deep: bool) -> list[Finding]:
    """A Valid blob has its bytes."""
    if blob.status != "Valid":
        return []
    stored, said = blob.stored, None
    try:
        opened = storage.peek(stored.key)
        with opened.stream as stream:
            if opened.size_bytes != stored.size_bytes:
                said = f"its object has {opened.size_bytes} bytes, expected {stored.size_bytes}"
            elif deep and (digest := digest_of(stream)) != stored.sha256:
                said = f"its object has the digest {digest}, expected {stored.sha256}"
    except (NotFound, FileUnreadable, OSError) as error:
        said = str(error)
    return [] if said is None else [Finding("blob_bytes_are_stored", blob.id, said)]


async def _logs(tx: Connection, blobs: Sequence[str]) -> Mapping[str, list[Entry]]:
    columns = [transitions.c[name] for name in Entry.__dataclass_fields__]
    mine = transitions.c.machine == BLOB.name, transitions.c.subject.in_(blobs)
    found: dict[str, list[Entry]] = {}
    for row in await tx.execute(select(*columns).where(*mine).order_by(transitions.c.sequence)):
        found.setdefault(row.subject, []).append(Entry(**row._mapping))
    return found


async def _orphans(tx: Connection) -> list[Finding]:
    """References and holds of blobs that are not there, or are over."""
    found = []
    for table, what, states in ((references, "is used", ("Valid",)), (holds, "is held", BLOB.states[:-1])):
        is_known = exists().where(rows.c.id == table.c.blob, rows.c.state.in_(states))
        strays = await tx.execute(select(table.c.blob).where(~is_known).limit(LISTED_MAX))
        found += [
            Finding("blob_uses_fit", blob, f"it {what}, and is over or does not exist") for blob in strays.scalars()
        ]
    return found
