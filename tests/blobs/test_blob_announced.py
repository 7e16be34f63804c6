"""Files that are announced first, and sent to us or directly to the storage."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, BinaryIO

import httpx
import pytest
from blob_services import Opening

from penstock.blobs.service import Blobs
from penstock.blobs.storage import Storage, StorageWriter
from penstock.clock import ManualClock
from penstock.errors import IllegalMove, NotFound

CSV = b"id,name\n1,Ana\n2,Ben\n"
SHA = hashlib.sha256(CSV).hexdigest()


async def content(blobs: Blobs, blob: str, **given: Any) -> bytes:
    return b"".join([block async for block in blobs.read(blob, **given)])


async def moves(blobs: Blobs, blob: str) -> list[str]:
    return [line.event for line in await blobs.history(blob)]


def names(storage: Storage) -> list[str]:
    folders = [name for folder in storage.folders("sealed/") for name in storage.listed(folder)]
    return [each.name for each in (*storage.listed("staged/"), *folders)]


async def test_an_announced_file_can_be_sent_to_us(storage: Storage, on_sqlite: Opening):
    async with on_sqlite(storage) as blobs:
        ticket = await blobs.initiate("rows.csv", sha256=SHA)
        assert (ticket.blob.status, ticket.url is None) == ("Pending", not storage.can_sign)
        with pytest.raises(NotFound, match="nothing was uploaded"):
            await blobs.confirm(ticket.blob.id)
        assert (await blobs.get(ticket.blob.id)).status == "Pending", "it is not held against it"
        made = await blobs.receive(ticket.blob.id, CSV)
        assert made.status == "Valid"
        assert await blobs.confirm(made.id) == made
        with pytest.raises(IllegalMove):
            await blobs.receive(made.id, b"id\n1\n")
        assert await content(blobs, made.id) == CSV


async def put(url: str, body: bytes) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        (await client.put(url, content=body)).raise_for_status()


@pytest.fixture
def s3(s3_url: str) -> Storage:
    from penstock.blobs.objects import ObjectStorage

    return ObjectStorage(s3_url)


async def test_an_announced_file_can_be_sent_to_the_store_directly(s3: Storage, on_sqlite: Opening):
    async with on_sqlite(s3) as blobs:
        ticket = await blobs.initiate("rows.csv", size_bytes=len(CSV), sha256=SHA)
        assert ticket.url is not None
        assert ticket.expires_at - blobs.now() == timedelta(minutes=15)
        await put(ticket.url, CSV)
        made = await blobs.confirm(ticket.blob.id)
        assert (made.status, made.sha256) == ("Valid", SHA)
        assert await moves(blobs, made.id) == ["created", "uploading", "validated"]
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(await blobs.download_url(made.id))).content == CSV


async def test_what_is_put_after_the_check_changes_nothing_and_is_swept(
    s3: Storage, on_sqlite: Opening, clock: ManualClock
):
    async with on_sqlite(s3) as blobs:
        ticket = await blobs.initiate("rows.csv")
        assert ticket.url is not None
        await put(ticket.url, CSV)
        made = await blobs.confirm(ticket.blob.id)
        await put(ticket.url, b"id,name\n9,Eve\n")
        assert await blobs.confirm(made.id) == made
        assert await content(blobs, made.id) == CSV
        assert f"staged/{made.id}" in names(s3)
        swept = await blobs.sweep()
        assert (swept.removed_objects, swept.missing) == (1, [])
        assert names(s3) == [f"sealed/shared/{made.id}.{SHA}"]


async def test_bytes_that_are_replaced_during_the_check_are_refused(s3: Storage, on_sqlite: Opening):
    async def replace(stream: BinaryIO) -> str | None:
        await put(url, b"id,name\n9,Eve\n9,Eve\n"[: len(CSV)])
        return None

    async with on_sqlite(s3, scanner=replace) as blobs:
        ticket = await blobs.initiate("rows.csv")
        url = str(ticket.url)
        await put(url, CSV)
        made = await blobs.confirm(ticket.blob.id)
        assert (made.status, made.rejection_code) == ("Rejected", "changed")
        assert names(s3) == []


async def test_bytes_that_were_sent_to_us_cannot_be_replaced_through_the_url(s3: Storage, on_sqlite: Opening):
    async def replace(stream: BinaryIO) -> str | None:
        await put(url, b"id,name\n9,Eve\n9,Eve\n"[: len(CSV)])
        return None

    async with on_sqlite(s3, scanner=replace) as blobs:
        ticket = await blobs.initiate("rows.csv")
        url = str(ticket.url)
        made = await blobs.receive(ticket.blob.id, CSV)
        assert (made.status, made.rejection_code) == ("Rejected", "changed")
        assert names(s3) == []


async def test_bytes_that_are_replaced_right_after_they_came_are_refused(
    s3: Storage, on_sqlite: Opening, monkeypatch: pytest.MonkeyPatch
):
    async with on_sqlite(s3) as blobs:
        ticket = await blobs.initiate("rows.csv")
        stage = s3.stage

        @contextmanager
        def replaced(blob: str) -> Iterator[StorageWriter]:
            with stage(blob) as writer:
                yield writer
            httpx.put(str(ticket.url), content=b"id,name\n9,Eve\n9,Eve\n"[: len(CSV)], trust_env=False)

        monkeypatch.setattr(s3, "stage", replaced)
        made = await blobs.receive(ticket.blob.id, CSV)
        assert (made.status, made.rejection_code) == ("Rejected", "changed")
        assert names(s3) == []


async def test_direct_uploads_are_checked_like_all_others(s3: Storage, on_sqlite: Opening):
    async with on_sqlite(s3, bytes_max=100) as blobs:
        for body, given, code in (
            (b"MZ\x90", {}, "wrong_type"),
            (b"id\n" * 100, {}, "too_large"),
            (CSV, {"sha256": "0" * 64}, "digest"),
            (CSV, {"size_bytes": 7}, "size"),
        ):
            ticket = await blobs.initiate("rows.csv", **given)
            await put(str(ticket.url), body)
            made = await blobs.confirm(ticket.blob.id)
            assert (made.status, made.rejection_code) == ("Rejected", code)
            assert await blobs.confirm(ticket.blob.id) == made
