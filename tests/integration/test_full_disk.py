"""A disk without room: said once, tried again, and when there is room work goes on and that is said too."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from pathlib import Path

import pytest
from approvals import clean
from patience import HANG_S
from several import CALM, Item, items, until

from penstock import Context, Pipeline, operation, step
from penstock.blobs.store import FileStore
from penstock.clock import ManualClock
from penstock.db.database import Database
from penstock.db.full_disk import AGAIN_S, FullDisk
from penstock.errors import DiskFull, Unavailable
from penstock.operations.proof import doctor
from penstock.operations.proof.doctor import diagnose
from penstock.settings import Settings
from penstock.testing import engine


@operation("work")
class Work(Pipeline[Item]):
    @step
    async def work(self, row: Item, ctx: Context) -> None: ...


def said(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records)


async def test_a_full_disk_is_said_once_and_the_operation_goes_on_when_there_is_room(
    database_url, tmp_path, monkeypatch, caplog
):
    caplog.set_level(logging.INFO)
    transaction, tries, is_full = Database.transaction, [], True

    async def without_room(self: Database, work, point: str = "transaction"):
        async def crowded(tx):
            answer = await work(tx)
            if is_full and point in ("append", "claim"):
                tries.append(point)
                raise DiskFull("the disk of the database is full: no space left")
            return answer

        return await transaction(self, crowded, point)

    async with engine([Work], url=database_url, tmp_path=tmp_path, settings=CALM) as e:
        made = await e.create(Work, items(5))
        monkeypatch.setattr(Database, "transaction", without_room)
        working = asyncio.create_task(e.work_until_idle())
        await until(lambda: len(tries) > 2 or working.done())
        is_full = False
        await asyncio.wait_for(working, HANG_S)
        await e.advance(60)
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
        assert await clean(e) == []
    assert tries
    assert said(caplog, "is full") == 1
    assert said(caplog, "there is room on the disk again") == 1
    assert said(caplog, "the database is away") == 0


def test_a_smaller_write_that_fits_in_does_not_end_it(caplog):
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    disk = FullDisk(clock.monotonic)
    for point in ("append", "beat", "append"):
        disk.met(point, DiskFull("the disk is full"))
    disk.passed("beat")
    assert (said(caplog, "is full"), said(caplog, "room")) == (1, 1), "what is said of room is said with the first"
    assert disk.is_full
    disk.passed("append")
    disk.passed("append")
    assert said(caplog, "there is room on the disk again") == 1
    disk.met("append", DiskFull("the disk is full"))
    clock.advance(AGAIN_S + 1)
    disk.met("append", DiskFull("the disk is full"))
    assert said(caplog, "the disk is full") == 3


def test_a_storage_folder_without_room_says_so_and_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    refused = pytest.raises(DiskFull, match=r"the storage folder .* is full: No space left on device")
    with refused as caught, FileStore(tmp_path).stage("b1") as target:
        target.write(b"rows")
    assert isinstance(caught.value, Unavailable)
    assert [path for path in tmp_path.iterdir() if not path.name.startswith("storage-")] == []


async def test_doctor_tells_of_a_disk_with_little_room(tmp_path, monkeypatch, clock):
    settings = Settings(database_url=f"sqlite:///{tmp_path / 'penstock.db'}")
    async with engine([Work], url=settings.database_url, tmp_path=tmp_path, clock=clock):
        assert "disks_have_space" not in [symptom.check for symptom in (await diagnose(settings, clock)).symptoms]
        monkeypatch.setattr(doctor, "ROOM_BYTES", 1 << 62)
        found = await diagnose(settings, clock)
        (symptom,) = [symptom for symptom in found.symptoms if symptom.check == "disks_have_space"]
        assert str(tmp_path) in symptom.what
