"""What uses or holds a blob keeps it; what nobody needs goes; what nobody finished expires; the log tells all of it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from blob_services import blobs_on
from sqlalchemy import delete, text

from penstock.blobs import sweeping
from penstock.blobs.model import BlobDescriptor
from penstock.blobs.proof import log_fits
from penstock.blobs.service import UNFINISHED_S, Blobs
from penstock.blobs.states import BLOB
from penstock.blobs.storage import Storage
from penstock.blobs.store import FileStore
from penstock.blobs.sweeping import Sweeper
from penstock.blobs.tables import rows
from penstock.clock import ManualClock
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import Conflict, FileUnreadable, IllegalMove, InvalidInput, NotFound
from penstock.journal.queries import Entry

CSV = b"id,name\n1,Ana\n2,Ben\n"


@pytest.fixture
def blobs(manual_database: Database, folder: FileStore, clock: ManualClock) -> Blobs:
    """Blobs on each database in turn."""
    return blobs_on(manual_database, folder, clock)


def files(storage: Storage) -> list[str]:
    folders = [each for folder in storage.folders("sealed/") for each in storage.listed(folder)]
    return [each.name for each in (*storage.listed("staged/"), *folders)]


async def valid(blobs: Blobs, name: str = "rows.csv", body: bytes = CSV) -> BlobDescriptor:
    made = await blobs.upload(body, file_name=name)
    assert made.status == "Valid", made.rejection_reason
    return made


@pytest.mark.covers("GR-018", "GR-019", "GR-024", "GR-026")
async def test_a_deletion_removes_the_bytes_and_keeps_the_reason_and_the_log(blobs: Blobs):
    made = await valid(blobs)
    rejected = await blobs.upload(b"MZ\x90", file_name="rows.csv")
    for blob, before in ((made, "validated"), (rejected, "rejected")):
        deleted = await blobs.delete(blob.id, "GDPR Art. 17", actor="ben")
        assert (deleted.status, deleted.deletion_reason, deleted.has_bytes) == ("Deleted", "GDPR Art. 17", False)
        assert await blobs.get(blob.id) == deleted
        last = (await blobs.history(blob.id))[-1]
        assert (last.event, last.actor, last.cause) == ("deleted", "ben", "GDPR Art. 17")
        assert [line.event for line in await blobs.history(blob.id)] == ["created", "uploading", before, "deleted"]
        again = await blobs.delete(blob.id, "once more")
        assert again.deletion_reason == "GDPR Art. 17", "twice is once"
    assert files(blobs.storage) == []
    with pytest.raises(InvalidInput, match="only Valid blobs"):
        await blobs.download_url(made.id)
    with pytest.raises(InvalidInput, match="give the reason"):
        await blobs.delete((await valid(blobs)).id, " ")


@pytest.mark.covers("GR-020", "GR-021")
async def test_a_blob_that_was_never_sent_cannot_be_deleted(blobs: Blobs):
    ticket = await blobs.initiate("rows.csv")
    with pytest.raises(IllegalMove) as refused:
        await blobs.delete(ticket.blob.id, "changed my mind")
    assert refused.value.allowed == BLOB.allowed("Pending") == ("uploading", "expired")
    assert await blobs.get(ticket.blob.id) == ticket.blob, "not even its revision has changed"


async def test_what_is_used_or_held_cannot_be_deleted(blobs: Blobs):
    made = await valid(blobs)
    await blobs.reference(made.id, "invoice:7")
    await blobs.reference(made.id, "invoice:7")
    await blobs.reference(made.id, "invoice:8")
    assert [each.owner for each in await blobs.references(made.id)] == ["invoice:7", "invoice:8"]
    await blobs.hold(made.id, "case 12/7", actor="ben")
    assert [(each.name, each.reason, each.placed_by) for each in await blobs.holds(made.id)] == [
        ("legal", "case 12/7", "ben")
    ]
    with pytest.raises(Conflict, match=r"is held: 'legal' \(case 12/7\); release it first"):
        await blobs.delete(made.id, "old")
    assert await blobs.release(made.id, "the case is closed") == []
    with pytest.raises(Conflict, match="is used by invoice:7, invoice:8"):
        await blobs.delete(made.id, "old")
    assert await blobs.unreference(made.id, "invoice:7")
    assert not await blobs.unreference(made.id, "invoice:7")
    assert await blobs.unreference(made.id, "invoice:8")
    assert (await blobs.delete(made.id, "old")).status == "Deleted"
    told = [(line.event, line.cause) for line in await blobs.history(made.id)][3:]
    assert told == [("held", "case 12/7"), ("released", "the case is closed"), ("deleted", "old")]
    assert await blobs.verify(deep=True) == []


async def test_only_a_valid_blob_can_be_used_and_no_deleted_one_held(blobs: Blobs):
    pending = (await blobs.initiate("rows.csv")).blob
    rejected = await blobs.upload(b"MZ\x90", file_name="rows.csv")
    deleted = await blobs.delete((await valid(blobs)).id, "old")
    for blob, found in ((pending, "Pending"), (rejected, "Rejected: the file is a Windows"), (deleted, "Deleted")):
        with pytest.raises(Conflict, match=f"is {found}"):
            await blobs.reference(blob.id, "invoice:7")
    with pytest.raises(Conflict, match="nothing left to hold"):
        await blobs.hold(deleted.id, "case")
    with pytest.raises(NotFound):
        await blobs.reference("01900000-0000-7000-8000-000000000000", "invoice:7")


async def test_of_a_deletion_and_a_use_at_once_one_wins(blobs: Blobs):
    for _ in range(5):
        made = await valid(blobs)
        deleted, used = await asyncio.gather(
            blobs.delete(made.id, "old"), blobs.reference(made.id, "invoice:7"), return_exceptions=True
        )
        now = await blobs.get(made.id)
        if isinstance(deleted, Conflict):
            assert (now.status, used) == ("Valid", None)
            await blobs.unreference(made.id, "invoice:7")
        else:
            assert (now.status, type(used)) == ("Deleted", Conflict)
            assert await blobs.references(made.id) == []


async def test_references_holds_and_deletions_join_a_transaction(blobs: Blobs):
    one, two = await valid(blobs), await valid(blobs)

    async def undone() -> None:
        async with blobs.db.unit() as tx:
            await blobs.reference(one.id, "invoice:7", tx=tx)
            await blobs.hold(one.id, "case", tx=tx)
            await blobs.delete(two.id, "old", tx=tx)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await undone()
    assert (await blobs.references(one.id), await blobs.holds(one.id)) == ([], [])
    assert (await blobs.get(two.id)) == two
    async with blobs.db.unit() as tx:
        await tx.execute(text("SELECT 1"))
        await blobs.reference(one.id, "invoice:7", tx=tx)
        await blobs.delete(two.id, "old", tx=tx)
    assert len(await blobs.references(one.id)) == 1
    assert (await blobs.get(two.id)).has_bytes, "its bytes are left to the sweep"
    await blobs.sweep()
    assert not (await blobs.get(two.id)).has_bytes
    assert files(blobs.storage) == [str(one.storage_key).partition("@")[0]]


# --- the sweep


async def test_uploads_that_nobody_finishes_expire_with_their_bytes(blobs: Blobs, clock: ManualClock):
    unsent = (await blobs.initiate("rows.csv")).blob
    sent = (await blobs.initiate("rows.csv")).blob
    with blobs.storage.stage(sent.id) as target:
        target.write(CSV)
    cut_off = await blobs.db.transaction(lambda tx: blobs.begin(blobs.new("rows.csv"), tx))
    clock.advance(UNFINISHED_S - 1)
    assert (await blobs.sweep()).expired == 0
    clock.advance(2)
    swept = await blobs.sweep()
    assert (swept.expired, swept.removed_objects, swept.removed_bytes) == (3, 1, len(CSV))
    for blob in (unsent, sent, cut_off):
        found = await blobs.get(blob.id)
        assert (found.status, found.rejection_code, found.has_bytes) == ("Rejected", "expired", False)
        assert (await blobs.history(blob.id))[-1].event == "expired"
    assert files(blobs.storage) == []
    with pytest.raises(IllegalMove):
        await blobs.receive(unsent.id, CSV)
    assert await blobs.verify() == []


def orphan(storage: Storage, name: str) -> None:
    path = Path(storage.place) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"orphan")


async def test_bytes_without_a_record_and_records_without_bytes_are_swept(blobs: Blobs):
    kept = await valid(blobs)
    lost, used = await valid(blobs), await valid(blobs)
    await blobs.reference(used.id, "invoice:7")
    theirs = await blobs.tenant("acme").upload(CSV, file_name="rows.csv")
    for blob in (lost, used, theirs):
        assert blobs.storage.remove(str(blob.storage_key)) == len(CSV)
    digest = str(kept.sha256)
    nobody = "01900000-0000-7000-8000-000000000000"
    orphans = (f"sealed/shared/{nobody}.{digest}", f"sealed/tenant-gone/{nobody}.{digest}", f"staged-{nobody}")
    for name in (*orphans, f"sealed/shared/{kept.id}.{'0' * 64}", "sealed/shared/notes.txt"):
        orphan(blobs.storage, name)
    assert {each.blob for each in await blobs.verify()} == {lost.id, used.id, theirs.id}
    swept = await blobs.sweep()
    assert (swept.removed_objects, swept.deleted_without_bytes, swept.missing) == (4, 2, [used.id])
    assert sorted(files(blobs.storage)) == [f"sealed/shared/{kept.id}.{digest}", "sealed/shared/notes.txt"]
    found = await blobs.get(lost.id)
    assert (found.status, found.deletion_reason) == ("Deleted", "its bytes are missing from the storage")
    assert (await blobs.get(used.id)).status == "Valid", "what uses it must hear of it"
    assert (await blobs.get(kept.id)) == kept
    assert [each.blob for each in await blobs.verify()] == [used.id]


async def test_a_file_of_an_operation_goes_when_its_operation_is_gone_and_its_hold_released(
    blobs: Blobs, clock: ManualClock
):
    made = blobs.new("rows.csv", is_temporary=True)
    begun = await blobs.db.transaction(lambda tx: blobs.begin(made, tx))
    own = await blobs._take_in(begun, CSV, actor="ana")
    await blobs.hold(own.id, "case 12/7")
    clock.advance(2 * UNFINISHED_S)
    await blobs.sweep()
    assert (await blobs.get(own.id)).status == "Valid"
    await blobs.release(own.id, "closed")
    await blobs.sweep()
    found = await blobs.get(own.id)
    assert (found.status, found.deletion_reason, found.has_bytes) == ("Deleted", "no operation uses it any more", False)
    kept = await valid(blobs)
    clock.advance(2 * UNFINISHED_S)
    await blobs.sweep()
    assert (await blobs.get(kept.id)).status == "Valid", "what was uploaded by itself stays"


async def test_young_objects_stay(manual_database: Database, folder: FileStore):
    """Their record may be in a database that was restored, or be made by a clock that is ahead."""
    from penstock.clock import SystemClock

    blobs = blobs_on(manual_database, folder, SystemClock())
    name = f"sealed/shared/01900000-0000-7000-8000-000000000000.{'0' * 64}"
    orphan(folder, name)
    assert (await blobs.sweep()).removed_objects == 0
    then = (folder_path := Path(folder.place) / name).stat().st_mtime - 86_400 - 60
    os.utime(folder_path, (then, then))
    assert (await blobs.sweep()).removed_objects == 1


async def test_a_sweep_goes_through_more_than_one_page(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
):
    monkeypatch.setattr(sweeping, "OBJECTS_EACH", 2)
    monkeypatch.setattr(sweeping, "RECORDS_EACH", 2)
    made = []
    for _ in range(7):
        made.append(await valid(blobs))
        clock.advance(1)
    for blob in made[::3]:
        blobs.storage.remove(str(blob.storage_key))
    for n in range(5):
        orphan(blobs.storage, f"sealed/shared/01900000-0000-7000-8000-00000000000{n}.{'0' * 64}")
        await blobs.initiate(f"rows{n}.csv")
    clock.advance(UNFINISHED_S + 1)
    swept = await blobs.sweep()
    assert (swept.expired, swept.removed_objects, swept.deleted_without_bytes) == (5, 5, 3)
    assert len(files(blobs.storage)) == 4


async def test_a_worker_sweeps_a_little_at_a_time(blobs: Blobs, monkeypatch: pytest.MonkeyPatch, clock: ManualClock):
    monkeypatch.setattr(sweeping, "PASS_STEPS", 1)
    monkeypatch.setattr(sweeping, "RECORDS_EACH", 2)
    sweeper = Sweeper(blobs.db, blobs.storage, clock)
    for _ in range(4):
        await blobs.initiate("rows.csv")
    orphan(blobs.storage, f"sealed/shared/01900000-0000-7000-8000-000000000000.{'0' * 64}")
    clock.advance(UNFINISHED_S + 1)
    await sweeper.tick()
    assert len((await blobs.list(status="Rejected")).items) == 2
    for _ in range(20):
        await sweeper.tick()
    assert len((await blobs.list(status="Rejected")).items) == 4
    assert files(blobs.storage) == [], "the objects were listed too, because that was due"
    await sweeper.close()


async def test_a_storage_that_is_away_deletes_no_record(blobs: Blobs, monkeypatch: pytest.MonkeyPatch):
    made = await valid(blobs)

    def away(key: str) -> Any:
        raise FileUnreadable("the network is away")

    blobs.storage.remove(str(made.storage_key))
    with monkeypatch.context() as patch:
        patch.setattr(blobs.storage, "peek", away)
        swept = await blobs.sweep()
    assert (swept.is_complete, swept.deleted_without_bytes) == (False, 0)
    assert (await blobs.get(made.id)).status == "Valid"


# --- verify


async def test_verify_tells_of_bytes_that_were_replaced(blobs: Blobs):
    made = await valid(blobs)
    path = Path(blobs.storage.place) / str(made.storage_key).partition("@")[0]
    path.write_bytes(CSV[::-1])
    assert await blobs.verify() == []
    (found,) = await blobs.verify(deep=True)
    assert (found.rule, found.blob) == ("blob_bytes_are_stored", made.id)
    path.write_bytes(CSV + b"3,Eve\n")
    (found,) = await blobs.verify()
    assert "26 bytes, expected 20" in found.message


async def test_verify_tells_of_references_to_what_is_not_there(blobs: Blobs):
    made = await valid(blobs)
    await blobs.reference(made.id, "invoice:7")
    await blobs.hold(made.id, "case")

    async def lose(tx: Connection) -> None:
        await tx.execute(delete(rows))

    await blobs.db.transaction(lose)
    assert [(each.rule, each.blob) for each in await blobs.verify()] == [("blob_uses_fit", made.id)] * 2


def test_a_log_that_does_not_lead_to_the_state_is_noticed(clock: ManualClock):
    from test_blob_states import blob

    def line(source: str | None, event: str, target: str) -> Entry:
        return Entry(1, "blob", "b", source, event, target, 0, "ana", None, None)

    begun = [line(None, "created", "Pending"), line("Pending", "uploading", "Uploading")]
    held = line("Valid", "held", "Valid")
    whole = [*begun, line("Uploading", "validated", "Valid"), held]
    assert list(log_fits(blob("Valid"), whole)) == []
    for log in ([], begun, [*begun, line("Pending", "validated", "Valid")], [*begun, line("Uploading", "x", "Valid")]):
        assert len(list(log_fits(blob("Valid"), log))) >= 1
