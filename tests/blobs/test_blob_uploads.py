"""Uploads: taken in, checked and sealed, or refused with the reason; what is cut off can be checked again."""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from blob_services import Opening, blobs_on

from penstock.blobs.names import blob_of, sealed_name, tenant_folder
from penstock.blobs.service import CHECKING_S, Blobs
from penstock.blobs.storage import Storage
from penstock.blobs.store import FileStore
from penstock.clock import ManualClock
from penstock.db.database import Database
from penstock.errors import Conflict, FileUnreadable, InvalidInput, NotFound
from penstock.listing import Page

CSV = b"id,name\n1,Ana\n2,Ben\n"
SHA = hashlib.sha256(CSV).hexdigest()


async def content(blobs: Blobs, blob: str, **given: Any) -> bytes:
    return b"".join([block async for block in blobs.read(blob, **given)])


async def moves(blobs: Blobs, blob: str) -> list[str]:
    return [line.event for line in await blobs.history(blob)]


def names(storage: Storage) -> list[str]:
    folders = [name for folder in storage.folders("sealed/") for name in storage.listed(folder)]
    return [each.name for each in (*storage.listed("staged/"), *folders)]


@pytest.mark.covers("GR-014", "GR-015", "GR-016")
async def test_an_upload_is_checked_sealed_and_logged(storage: Storage, on_sqlite: Opening):
    async with on_sqlite(storage) as blobs:
        made = await blobs.upload(CSV, file_name="rows.csv", actor="ben")
        assert (made.status, made.size_bytes, made.sha256, made.created_by) == ("Valid", len(CSV), SHA, "ben")
        assert made.content_type == "text/csv"
        assert await blobs.get(made.id) == made
        assert await moves(blobs, made.id) == ["created", "uploading", "validated"]
        assert await content(blobs, made.id) == CSV
        assert await content(blobs, made.id, start=8) == CSV[8:]
        assert names(storage) == [f"sealed/shared/{made.id}.{SHA}"], "nothing is left where it was staged"
        assert await blobs.verify(deep=True) == []


@pytest.mark.covers("GR-017")
async def test_a_refused_upload_keeps_the_reason_and_no_bytes(storage: Storage, on_sqlite: Opening):
    async with on_sqlite(storage, bytes_max=1000) as blobs:
        for name, given, code in (
            ("rows.csv", b"MZ\x90", "wrong_type"),
            ("rows.csv", b"a,b\n" * 1000, "too_large"),
            ("rows.pdf", b"%PDF-1.7", "type_not_allowed"),
        ):
            made = await blobs.upload(given, file_name=name)
            assert (made.status, made.rejection_code, made.has_bytes) == ("Rejected", code, False)
            assert (await blobs.history(made.id))[-1].cause == made.rejection_reason
            with pytest.raises(InvalidInput, match="only Valid blobs can be read"):
                await content(blobs, made.id)
        assert names(storage) == []
        assert await blobs.verify() == []


async def test_paths_open_files_and_blocks_are_taken_alike(folder: FileStore, on_sqlite: Opening, tmp_path: Path):
    (tmp_path / "rows.csv").write_bytes(CSV)

    async def blocks() -> AsyncIterator[bytes]:
        for byte in CSV:
            yield bytes([byte])

    async with on_sqlite(folder) as blobs:
        with (tmp_path / "rows.csv").open("rb") as stream:
            made = [
                await blobs.upload(tmp_path / "rows.csv"),
                await blobs.upload(str(tmp_path / "rows.csv")),
                await blobs.upload(stream),
                await blobs.upload(blocks(), file_name="rows.csv", size_bytes=len(CSV), sha256=SHA.upper()),
            ]
        assert {(each.status, each.file_name, each.sha256) for each in made} == {("Valid", "rows.csv", SHA)}
        assert len({each.storage_key for each in made}) == 4, "each has bytes of its own"
        with pytest.raises(InvalidInput, match="needs file_name"):
            await blobs.upload(CSV)
        with pytest.raises(InvalidInput, match="64 hexadecimal digits"):
            await blobs.upload(CSV, file_name="rows.csv", sha256="abc")


async def test_memory_does_not_grow_with_the_upload(folder: FileStore, on_sqlite: Opening):
    class Long(io.RawIOBase):
        """Many megabytes, of which nobody asks for more than one at once."""

        left, largest = 40, 0

        def read(self, size: int = -1, /) -> bytes:
            self.largest = max(self.largest, size)
            self.left -= 1
            return b"1,a\n" * (size // 4) if self.left > 0 else b""

    source = Long()
    async with on_sqlite(folder) as blobs:
        made = await blobs.upload(source, file_name="rows.csv")
    assert (made.status, made.size_bytes) == ("Valid", 39 * source.largest)
    assert source.largest <= 1024 * 1024


async def test_a_stream_that_breaks_off_is_refused_and_leaves_nothing(storage: Storage, on_sqlite: Opening):
    async def broken() -> AsyncIterator[bytes]:
        yield b"id,name\n"
        raise ConnectionResetError("the client is gone")

    async with on_sqlite(storage) as blobs:
        with pytest.raises(ConnectionResetError):
            await blobs.upload(broken(), file_name="rows.csv")
        (made,) = (await blobs.list()).items
        assert (made.status, made.rejection_code) == ("Rejected", "not_stored")
        assert "the client is gone" in str(made.rejection_reason)
        assert names(storage) == []


async def test_a_scanner_has_the_last_word(folder: FileStore, on_sqlite: Opening):
    asked: list[bytes] = []

    def scan(stream: BinaryIO) -> str | None:
        asked.append(stream.read())
        return "Eicar-Test-Signature" if b"EICAR" in asked[-1] else None

    async def scan_later(stream: BinaryIO) -> str | None:
        await asyncio.sleep(0)
        return scan(stream)

    for scanner in (scan, scan_later):
        async with on_sqlite(folder, scanner=scanner) as blobs:
            assert (await blobs.upload(CSV, file_name="rows.csv")).status == "Valid"
            found = await blobs.upload(b"id\nX5O!P%@AP-EICAR\n", file_name="rows.csv")
            assert (found.status, found.rejection_code) == ("Rejected", "scanner")
            assert found.rejection_reason == "Eicar-Test-Signature"
            asked.clear()
            assert (await blobs.upload(b"MZ\x90", file_name="rows.csv")).rejection_code == "wrong_type"
            assert asked == [], "what is refused anyway is not scanned"


# --- checks that are cut off


async def test_a_storage_that_does_not_answer_rejects_nothing(
    folder: FileStore, on_sqlite: Opening, monkeypatch: pytest.MonkeyPatch
):
    def away(*given: object, **named: object) -> None:
        raise FileUnreadable("the network is away")

    async with on_sqlite(folder) as blobs:
        ticket = await blobs.initiate("rows.csv")
        with folder.stage(ticket.blob.id) as target:
            target.write(CSV)
        with monkeypatch.context() as patch:
            patch.setattr(folder, "seal", away)
            with pytest.raises(FileUnreadable):
                await blobs.confirm(ticket.blob.id)
        assert (await blobs.get(ticket.blob.id)).status == "Uploading"
        assert (await blobs.confirm(ticket.blob.id)).status == "Valid"


@pytest.mark.parametrize("error", [ConnectionRefusedError, asyncio.CancelledError])
async def test_a_scanner_that_raises_rejects_nothing(folder: FileStore, on_sqlite: Opening, error: type[BaseException]):
    faults = [error()]

    async def scan(stream: BinaryIO) -> str | None:
        if faults:
            raise faults.pop()
        return None

    async with on_sqlite(folder, scanner=scan) as blobs:
        with pytest.raises(error):
            await blobs.upload(CSV, file_name="rows.csv")
        (made,) = (await blobs.list()).items
        assert made.status == "Uploading"
        assert (await blobs.confirm(made.id)).status == "Valid", "nobody has to wait for the end of a lease"


async def test_a_file_that_cannot_be_read_for_its_digest_can_be_confirmed_again(
    folder: FileStore, on_sqlite: Opening, monkeypatch: pytest.MonkeyPatch
):
    def away(*given: object) -> None:
        raise OSError("input/output error")

    async with on_sqlite(folder) as blobs:
        ticket = await blobs.initiate("rows.csv")
        with folder.stage(ticket.blob.id) as target:
            target.write(CSV)
        with monkeypatch.context() as patch:
            patch.setattr("penstock.blobs.service.look_at_staged", away)
            with pytest.raises(OSError, match="input/output"):
                await blobs.confirm(ticket.blob.id)
        assert (await blobs.confirm(ticket.blob.id)).status == "Valid"


async def test_a_check_that_was_cut_off_can_be_begun_again_when_its_lease_is_over(
    folder: FileStore, on_sqlite: Opening, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    class Killed(BaseException):
        """The process is gone."""

    def die(*given: object) -> None:
        raise Killed

    async with on_sqlite(folder) as blobs:
        ticket = await blobs.initiate("rows.csv")
        with folder.stage(ticket.blob.id) as target:
            target.write(CSV)
        with monkeypatch.context() as patch:
            patch.setattr("penstock.blobs.service.look_at_staged", die)
            with pytest.raises(Killed):
                await blobs.confirm(ticket.blob.id)
        assert await moves(blobs, ticket.blob.id) == ["created", "uploading"], "that it was begun is stored"
        with pytest.raises(Conflict, match="is being stored or checked"):
            await blobs.confirm(ticket.blob.id)
        clock.advance(CHECKING_S + 1)
        assert (await blobs.confirm(ticket.blob.id)).status == "Valid"


# --- on every database


async def test_two_who_confirm_at_once_settle_it_once(manual_database: Database, folder: FileStore, clock: ManualClock):
    blobs = blobs_on(manual_database, folder, clock)
    ticket = await blobs.initiate("rows.csv")
    with folder.stage(ticket.blob.id) as target:
        target.write(CSV)
    found = await asyncio.gather(*(blobs.confirm(ticket.blob.id) for _ in range(4)), return_exceptions=True)
    assert {type(each) for each in found} <= {type(ticket.blob), Conflict}
    assert (await blobs.confirm(ticket.blob.id)).status == "Valid"
    assert await moves(blobs, ticket.blob.id) == ["created", "uploading", "validated"]


@pytest.mark.parametrize("body, status", [(CSV, "Valid"), (b"id\nEICAR\n", "Rejected")])
async def test_a_file_may_be_held_while_it_is_uploaded(
    manual_database: Database, folder: FileStore, clock: ManualClock, body: bytes, status: str
):
    async def scan(stream: BinaryIO) -> str | None:
        (being,) = (await blobs.list()).items
        await blobs.hold(being.id, "case 12/7")
        await blobs.unreference(being.id, "invoice:7")
        return "Eicar" if b"EICAR" in stream.read() else None

    blobs = blobs_on(manual_database, folder, clock, scanner=scan)
    made = await blobs.upload(body, file_name="rows.csv")
    assert made.status == status
    assert await blobs.get(made.id) == made
    assert [each.name for each in await blobs.holds(made.id)] == ["legal"]
    assert await blobs.verify(deep=True) == []


async def test_who_uploads_is_named_at_every_move(manual_database: Database, folder: FileStore, clock: ManualClock):
    blobs = blobs_on(manual_database, folder, clock)
    ticket = await blobs.initiate("rows.csv", actor="ben")
    sent = [
        await blobs.upload(CSV, file_name="rows.csv", actor="ben"),
        await blobs.upload(b"MZ\x90", file_name="rows.csv", actor="ben"),
        await blobs.receive(ticket.blob.id, CSV, actor="ben"),
    ]
    other = await blobs.initiate("rows.csv", actor="ben")
    with folder.stage(other.blob.id) as target:
        target.write(CSV)
    sent.append(await blobs.confirm(other.blob.id, actor="ben"))
    broken = await blobs.initiate("rows.csv", actor="ben")
    with pytest.raises(FileNotFoundError):
        await blobs.receive(broken.blob.id, Path("missing.csv"), actor="cleo")
    for made in sent:
        assert {line.actor for line in await blobs.history(made.id)} == {"ben"}
    assert [line.actor for line in await blobs.history(broken.blob.id)] == ["ben", "cleo", "cleo"]


async def test_lists_are_filtered_and_paged_newest_first(
    manual_database: Database, folder: FileStore, clock: ManualClock
):
    blobs = blobs_on(manual_database, folder, clock)
    made = []
    for n, body in enumerate((CSV, b"MZ\x90", CSV, CSV)):
        made.append(await blobs.upload(body, file_name=f"rows{n}.csv", actor="ben" if n else "ana"))
        clock.advance(60)
    pending = (await blobs.initiate("rows4.csv")).blob

    async def ids(**given: Any) -> list[str]:
        page = await blobs.list(**given)
        assert isinstance(page, Page)
        return [each.file_name[4] for each in page.items]

    assert await ids() == ["4", "3", "2", "1", "0"]
    assert await ids(status="Valid") == ["3", "2", "0"]
    assert await ids(status=["Pending", "Rejected"]) == ["4", "1"]
    assert await ids(created_by="ana") == ["4", "0"]
    assert await ids(sha256=SHA, file_name="rows2.csv") == ["2"]
    assert await ids(created_from=made[1].created_at, created_to=made[3].created_at) == ["2", "1"]
    await blobs.hold(made[0].id, "a case")
    await blobs.reference(made[2].id, "invoice:7")
    assert (await ids(is_held=True), await ids(is_held=False)) == (["0"], ["4", "3", "2", "1"])
    assert await ids(is_used=True) == ["2"]
    first = await blobs.list(limit=2)
    second = await blobs.list(limit=2, cursor=first.next_cursor)
    third = await blobs.list(limit=2, cursor=second.next_cursor)
    assert [each.id for page in (first, second, third) for each in page.items] == [
        pending.id, *(each.id for each in reversed(made)),
    ]  # fmt: skip
    assert third.next_cursor is None
    with pytest.raises(InvalidInput, match="no blob is ever 'Done'"):
        await blobs.list(status="Done")


async def test_a_tenant_sees_nothing_of_another(manual_database: Database, folder: FileStore, clock: ManualClock):
    mine = blobs_on(manual_database, folder, clock).tenant("acme")
    theirs = mine.tenant("../evil/ü" + "x" * 50)
    made = await mine.upload(CSV, file_name="rows.csv")
    assert made.storage_key is not None
    assert made.storage_key.startswith(f"sealed/tenant-acme/{made.id}.{SHA}@")
    for call in (theirs.get, theirs.history, theirs.holds, theirs.references, theirs.confirm, theirs.download_url):
        with pytest.raises(NotFound):
            await call(made.id)
    for call in (theirs.delete, theirs.hold, theirs.release):
        with pytest.raises(NotFound):
            await call(made.id, "because")
    with pytest.raises(NotFound):
        await theirs.reference(made.id, "invoice:7")
    assert (await theirs.list()).items == []
    other = await theirs.upload(CSV, file_name="rows.csv")
    assert await content(theirs, other.id) == CSV
    assert await mine.verify(deep=True) == []
    with pytest.raises(InvalidInput, match="a tenant is printable text"):
        mine.tenant("a\nb")


@pytest.mark.parametrize("tenant", ["", "acme", "..", "../..", "a/b", "ü" * 64, "tenant", "\\", "."])
def test_names_are_generated_and_no_tenant_leaves_its_folder(tenant: str):
    name = sealed_name(tenant, "01900000-0000-7000-8000-000000000000", SHA)
    assert name.startswith("sealed/")
    assert name.count("/") == 2
    assert not {".", ".."} & set(name.split("/"))
    assert len(name) < 230
    assert blob_of(name) == "01900000-0000-7000-8000-000000000000"
    assert tenant == "" or tenant_folder(tenant) != tenant_folder("")
    assert blob_of("sealed/shared/notes.txt") is None
