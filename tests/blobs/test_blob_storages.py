"""The folder, the memory and S3 do the same: whole objects, seekable, with a mark that tells storages apart."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from patience import HANG_S

from penstock.blobs import ranges
from penstock.blobs.model import StoredBytes
from penstock.blobs.objects import ObjectStorage
from penstock.blobs.ranges import open_ranges
from penstock.blobs.storage import Storage, StorageWriter
from penstock.errors import FileChanged, FileUnreadable, NotFound, SettingsInvalid

ID = "01900000-0000-7000-8000-00000000000{}"


def put(storage: Storage, content: bytes, number: int = 1) -> StoredBytes:
    blob, digest = ID.format(number), hashlib.sha256(content).hexdigest()
    with storage.stage(blob) as target:
        target.write(content)
    staged = storage.open_staged(blob)
    staged.stream.close()
    stored = storage.seal(blob, f"sealed/shared/{blob}.{digest}", staged, sha256=digest)
    storage.remove_staged(blob)
    return stored


def test_what_is_stored_comes_back_from_any_place_in_it(storage: Storage):
    content = bytes(range(256)) * 4000
    stored = put(storage, content)
    assert (stored.size_bytes, stored.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    with storage.open(stored) as stream:
        assert stream.read() == content
        for offset in (0, 7, 300_000, len(content) - 1):
            stream.seek(offset)
            assert stream.read(5) == content[offset : offset + 5]
        assert stream.seek(0, 2) == len(content)
        assert stream.read(1) == b""


def test_an_upload_that_breaks_off_is_never_readable(storage: Storage):
    def broken(target: StorageWriter) -> None:
        target.write(b"half of it")
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError), storage.stage(ID.format(1)) as target:
        broken(target)
    with pytest.raises(NotFound, match="nothing was uploaded for blob"):
        storage.open_staged(ID.format(1))


def test_an_object_that_is_gone_is_not_found(storage: Storage):
    stored = put(storage, b"rows")
    assert storage.remove(stored.key) == 4
    assert storage.remove(stored.key) == 0
    with pytest.raises(NotFound, match="is gone from the storage"):
        storage.peek(stored.key)


def test_bytes_that_were_replaced_after_they_were_sealed_are_noticed(storage: Storage):
    stored = put(storage, b"some rows")
    replace(storage, stored, b"SOME ROWS")
    with pytest.raises(FileChanged, match="was changed after it was checked"):
        storage.opened(stored)
    replace(storage, stored, b"some rows")
    with storage.open(stored) as stream:
        assert stream.read() == b"some rows", "a copy of the same bytes is as good"


def replace(storage: Storage, stored: StoredBytes, content: bytes) -> None:
    name = stored.key.partition("@")[0]
    if isinstance(storage, ObjectStorage):
        import obstore

        obstore.put(storage.store, name, content)
    else:
        (Path(storage.place) / name).write_bytes(content)


def test_objects_are_listed_by_name_behind_one_and_by_folder(storage: Storage):
    assert storage.listed("sealed/shared/") == []
    names = [put(storage, b"x" * n, n).key.partition("@")[0] for n in (3, 1, 2)]
    found = storage.listed("sealed/shared/")
    assert [each.name for each in found] == sorted(names)
    assert [each.size_bytes for each in found] == [1, 2, 3]
    assert [each.name for each in storage.listed("sealed/shared/", limit=2)] == sorted(names)[:2]
    assert [each.name for each in storage.listed("sealed/shared/", after=found[0].name)] == sorted(names)[1:]
    assert storage.folders("sealed/") == ["sealed/shared/"]
    with storage.stage(ID.format(9)) as target:
        target.write(b"not checked")
    assert [each.name for each in storage.listed("staged/")] == [f"staged/{ID.format(9)}"]
    assert storage.trouble() is None


def test_another_bucket_says_nothing_about_an_object(s3_url: str):
    stored = put(ObjectStorage(s3_url), b"rows")
    other = ObjectStorage(s3_url.replace("/test-", "/other-"))
    put(other, b"more")
    for call in (other.peek, other.remove):
        with pytest.raises(FileUnreadable, match=r"is not the storage in which the file .* was stored"):
            call(stored.key)


def test_a_bucket_that_is_not_there_is_no_verdict_on_its_objects(s3_url: str):
    absent = ObjectStorage(s3_url.replace("//penstock-tests/", "//no-such-bucket/"))
    for call in (lambda: absent.peek("sealed/shared/x@m"), lambda: put(absent, b"rows")):
        with pytest.raises(FileUnreadable):
            call()
    assert "no-such-bucket" in str(absent.trouble())


def test_what_a_message_says_of_a_storage_holds_no_secret(s3_url: str):
    storage = ObjectStorage(s3_url.replace("secret_access_key=x", "secret_access_key=hunter2"))
    assert "hunter2" not in storage.place
    with pytest.raises(SettingsInvalid, match="cannot be used") as refused:
        ObjectStorage("s3://bucket?no_such_option=hunter2&secret_key=hunter2").require()
    assert "secret_key=hunter2" not in str(refused.value)


def test_without_obstore_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    import sys

    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(SettingsInvalid, match=r"pip install 'penstock\[blobs\]'"):
        ObjectStorage("s3://bucket").require()


# --- ranges


class Far:
    """Bytes far away that are given by ranges, and fail as told."""

    def __init__(self, content: bytes) -> None:
        self.content, self.asked, self.failures = content, list[tuple[int, int]](), 0

    def fetch(self, start: int, end: int) -> bytes:
        self.asked.append((start, end))
        if self.failures:
            self.failures -= 1
            raise FileUnreadable("the network is away")
        return self.content[start:end]


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FIRST_BYTES", 10), ("MOST_BYTES", 40), ("BUFFER_BYTES", 4)):
        monkeypatch.setattr(ranges, name, value)


def test_ranges_grow_while_they_are_read_in_order_and_begin_small_elsewhere(small_ranges: None):
    far = Far(bytes(range(200)))
    stream = open_ranges(far.fetch, 200)
    assert stream.read(100) == far.content[:100]
    assert far.asked == [(0, 10), (10, 30), (30, 70), (70, 110)]
    stream.seek(150)
    assert stream.read(3) == far.content[150:153]
    assert far.asked[4:] == [(150, 160)]


def test_a_range_that_fails_is_asked_for_again_and_nothing_before_it(small_ranges: None):
    far, pauses = Far(bytes(range(100))), []
    stream = open_ranges(far.fetch, 100, pause=pauses.append)
    assert stream.read(30) == far.content[:30]
    far.failures = 2
    assert stream.read() == far.content[30:]
    assert far.asked == [(0, 10), (10, 30), (30, 70), (30, 70), (30, 70), (70, 100)]
    assert len(pauses) == 2


def test_a_stream_is_closed_at_once_although_a_range_does_not_come(small_ranges: None):
    """Whoever closes it may be the event loop, which must not wait for a network."""
    far, reached, released = Far(bytes(100)), threading.Event(), threading.Event()

    def fetch(start: int, end: int) -> bytes:
        reached.set()
        assert released.wait(HANG_S)
        return far.fetch(start, end)

    stream = open_ranges(fetch, 100)
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(stream.read, 50)
        assert reached.wait(HANG_S)
        stream.close()
        assert not reading.done()
        released.set()
        with pytest.raises(FileUnreadable, match="is closed"):
            reading.result()
    assert len(far.asked) == 1, "no further range is asked for"


def test_a_range_that_fails_for_good_says_so(small_ranges: None):
    far = Far(bytes(100))
    far.failures = 100
    with pytest.raises(FileUnreadable, match="the network is away"):
        open_ranges(far.fetch, 100, pause=lambda _: None).read(1)
    assert far.asked == [(0, 10)] * ranges.TRIES_MAX
