"""A blob moves exactly as its table says: the descriptor alone, and stored on every database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product

import pytest
from sqlalchemy import delete, insert, update
from sqlalchemy.exc import DBAPIError

from penstock.blobs import queries
from penstock.blobs.model import BlobDescriptor, StoredBytes
from penstock.blobs.states import BLOB
from penstock.blobs.tables import rows
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import Conflict, IllegalMove, InvalidInput

AT = datetime(2030, 1, 1, tzinfo=UTC)
ID = "01900000-0000-7000-8000-000000000000"
STORED = StoredBytes("sealed/shared/x@m", 4, "0" * 64, "v1")

# What each event is in the descriptor.
MARKS = {
    "uploading": lambda blob: blob.mark_as_uploading(),
    "validated": lambda blob: blob.mark_as_valid(AT, STORED),
    "rejected": lambda blob: blob.mark_as_rejected("it is a program", at=AT, code="wrong_type"),
    "expired": lambda blob: blob.mark_as_expired(AT),
    "deleted": lambda blob: blob.mark_as_deleted(AT, "GDPR Art. 17"),
}
PAIRS = sorted(product(BLOB.states, BLOB.events))


def blob(state: str = "Pending", **given: object) -> BlobDescriptor:
    made = BlobDescriptor(ID, "rows.csv", "text/csv", "ana", AT, AT, **given)
    if state == "Valid":
        made = made.mark_as_uploading().mark_as_valid(AT, STORED)
    elif state == "Deleted":
        made = made.mark_as_uploading().mark_as_rejected("no", at=AT).mark_as_deleted(AT, "done with")
    return replace(made, status=state)


@pytest.mark.covers("GR-014", "GR-027")
def test_a_blob_begins_as_pending_and_carries_its_status():
    assert blob().status == "Pending"
    assert not blob().is_settled


def test_every_event_of_the_table_is_a_method_of_the_descriptor():
    assert set(MARKS) == set(BLOB.events)


@pytest.mark.covers(
    "GR-001", "GR-003", "GR-015", "GR-016", "GR-017", "GR-018", "GR-019", "GR-020", "GR-021", "GR-022", "GR-023",
    "GR-025", "GR-026", "GR-028",
)  # fmt: skip
@pytest.mark.parametrize("state, event", PAIRS)
def test_a_descriptor_moves_as_its_table_says_and_refuses_everything_else(state: str, event: str):
    before = blob(state)
    if (state, event) in BLOB.moves:
        after = MARKS[event](before)
        assert after.status == BLOB.moves[state, event]
        assert before.status == state, "a descriptor is a value"
        return
    with pytest.raises(IllegalMove) as refused:
        MARKS[event](before)
    assert (refused.value.state, refused.value.event, refused.value.allowed) == (state, event, BLOB.allowed(state))


@pytest.mark.covers("GR-024")
@pytest.mark.parametrize("reason", ["", "  ", "\n"])
def test_a_deletion_needs_a_reason(reason: str):
    with pytest.raises(InvalidInput, match="give the reason"):
        blob("Valid").mark_as_deleted(AT, reason)
    deleted = blob("Valid").mark_as_deleted(AT, " GDPR Art. 17 ")
    assert (deleted.deleted_at, deleted.deletion_reason) == (AT, "GDPR Art. 17")


async def put(db: Database, made: BlobDescriptor) -> None:
    async def work(tx: Connection) -> None:
        await tx.execute(delete(rows))
        await tx.execute(insert(rows).values(**queries._columns(made)))

    await db.transaction(work)


@pytest.mark.covers("GR-001", "GR-002", "GR-003", "GR-022", "GR-023", "GR-026", "GR-028")
async def test_a_stored_blob_moves_exactly_as_its_table_says_and_every_move_is_logged(manual_database: Database):
    db = manual_database
    for state, event in PAIRS:
        before = blob(state, revision=7)
        await put(db, before)
        async with db.read() as tx:
            seen, since = await queries.find(tx, ID), len(await queries.events(tx, ID))
        assert seen == before
        target = BLOB.moves.get((state, event))
        after = replace(blob(target or "Valid"), deletion_reason="why" if target == "Deleted" else None)

        async def work(tx: Connection, seen=seen, after=after, event=event) -> BlobDescriptor:
            return await queries.move(db, tx, seen, after, event, actor="ana", cause="test")

        if target is None:
            with pytest.raises(IllegalMove):
                await db.transaction(work)
        else:
            assert (await db.transaction(work)).revision == 8
        async with db.read() as tx:
            now, log = await queries.find(tx, ID), (await queries.events(tx, ID))[since:]
        assert now.status == (target or state), (state, event)
        assert [(line.source, line.event, line.target, line.actor, line.cause) for line in log] == (
            [] if target is None else [(state, event, target, "ana", "test")]
        )


async def test_whoever_saw_an_older_blob_changes_nothing_and_logs_nothing(manual_database: Database):
    db = manual_database
    seen = blob(revision=3)
    for stored in (replace(seen, revision=4), replace(seen, status="Uploading")):
        await put(db, stored)

        async def work(tx: Connection) -> BlobDescriptor:
            return await queries.move(db, tx, seen, seen.mark_as_uploading(), "uploading", actor="ana")

        with pytest.raises(Conflict, match="was changed meanwhile"):
            await db.transaction(work)
        async with db.read() as tx:
            assert (await queries.find(tx, ID), await queries.events(tx, ID)) == (stored, [])


@pytest.mark.parametrize(
    "values",
    [{"state": "Done"}, {"state": "valid"}, {"state": "Valid"}, {"state": "Deleted"}, {"deleted_at": 1}],
)
async def test_the_database_refuses_a_blob_that_cannot_be(manual_database: Database, values: dict[str, object]):
    await put(manual_database, blob())
    with pytest.raises(DBAPIError):
        await manual_database.transaction(lambda tx: tx.execute(update(rows).values(**values)))
