"""Stored files: whole or not at all, readable for other workers, and an error of ours when they are not."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from pathlib import Path

import pytest

from penstock.blobs.model import StoredBytes
from penstock.blobs.store import FileStore
from penstock.errors import FileChanged, FileUnreadable, NotFound, SettingsInvalid, Unavailable


def put(files: FileStore, content: bytes, blob: str = "b1") -> StoredBytes:
    """Store bytes as a blob's."""
    with files.stage(blob) as target:
        target.write(content)
    digest = hashlib.sha256(content).hexdigest()
    staged = files.open_staged(blob)
    staged.stream.close()
    return files.seal(blob, f"sealed/shared/{blob}.{digest}", staged, sha256=digest)


def path(folder: Path, key: str) -> Path:
    return folder / key.partition("@")[0]


def stored(folder: Path) -> Path:
    return path(folder, put(FileStore(folder), b"some bytes").key)


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_whoever_the_umask_admits_can_read_a_stored_file(tmp_path: Path, umask: int, mode: int):
    before = os.umask(umask)
    try:
        file = stored(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == mode


def test_a_stream_that_breaks_off_leaves_nothing_behind(tmp_path: Path):
    def broken() -> bytes:
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError), FileStore(tmp_path).stage("b1") as target:
        target.write(broken())
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_gone_is_not_found(tmp_path: Path):
    stored(tmp_path).unlink()
    with pytest.raises(NotFound, match="is gone from the storage folder"):
        FileStore(tmp_path).peek("0" * 64)


def test_a_file_that_is_there_but_cannot_be_read_is_no_reason_to_give_up(tmp_path: Path, monkeypatch):
    file = stored(tmp_path)

    def refuse(self: Path, mode: str) -> io.BytesIO:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FileUnreadable, match="Permission denied") as raised:
        FileStore(tmp_path).peek(str(file.relative_to(tmp_path)))
    assert isinstance(raised.value, Unavailable)
    assert isinstance(raised.value.__cause__, PermissionError)


def test_a_folder_that_is_not_there_says_nothing_about_its_files(tmp_path: Path):
    with pytest.raises(FileUnreadable, match="is not there"):
        FileStore(tmp_path / "unmounted").peek("0" * 64)


def test_another_folder_than_the_one_in_which_a_file_was_stored_says_nothing_about_it(tmp_path: Path):
    key = put(FileStore(tmp_path / "one"), b"rows").key
    put(FileStore(tmp_path / "other"), b"more")
    (tmp_path / "mount point").mkdir()
    for name in ("other", "mount point"):
        with pytest.raises(FileUnreadable, match=r"is not the storage folder in which the file .* was stored"):
            FileStore(tmp_path / name).peek(key)
        with pytest.raises(FileUnreadable, match="is not the storage folder"):
            FileStore(tmp_path / name).remove(key)


def test_a_folder_is_the_same_wherever_it_is_moved_and_whoever_stores_in_it(tmp_path: Path):
    keys = [put(FileStore(tmp_path / "one"), content, content.decode()).key for content in (b"rows", b"more")]
    (tmp_path / "one").rename(tmp_path / "two")
    moved = FileStore(tmp_path / "two")
    for key in keys:
        moved.peek(key).stream.close()
    path(tmp_path / "two", keys[0]).unlink()
    with pytest.raises(NotFound, match="is gone"):
        moved.peek(keys[0])


def test_the_mark_of_a_folder_survives_as_long_as_one_of_several_is_there(tmp_path: Path):
    """Two processes that take in the first files at once may each leave a mark."""
    (tmp_path / "storage-bbbb").touch()
    first = FileStore(tmp_path)
    key = put(first, b"rows").key
    (tmp_path / "storage-aaaa").touch()
    assert put(FileStore(tmp_path), b"rows").key.endswith("@aaaa")
    path(tmp_path, key).unlink()
    with pytest.raises(NotFound):
        first.peek(key)


def test_without_a_folder_the_fault_is_told():
    files = FileStore(None, fault="storage_url is not set")
    for call in (lambda: put(files, b"rows"), lambda: files.peek("0" * 64), files.require):
        with pytest.raises(SettingsInvalid, match="storage_url is not set"):
            call()
    files.remove_stale()


def test_bytes_that_were_replaced_are_not_taken_for_those_that_were_stored(tmp_path: Path):
    files = FileStore(tmp_path)
    kept = put(files, b"some rows")
    with files.open(kept) as stream:
        assert stream.read() == b"some rows"
    for content, found in ((b"OTHER ROW", "it has [0-9a-f]{64}, expected"), (b"no", "it has 2 bytes, expected 9")):
        path(tmp_path, kept.key).write_bytes(content)
        with pytest.raises(FileChanged, match=rf"was changed after it was checked: .*{found}"):
            files.opened(kept)


def test_a_copy_of_the_same_bytes_is_as_good(tmp_path: Path):
    """As after a restore, which makes new files."""
    kept = put(FileStore(tmp_path), b"some rows")
    os.utime(path(tmp_path, kept.key), (1, 1))
    with FileStore(tmp_path).open(kept) as stream:
        assert stream.read() == b"some rows"


def test_files_of_releases_before_blobs_can_be_read(tmp_path: Path):
    digest = hashlib.sha256(b"rows").hexdigest()
    (tmp_path / digest).write_bytes(b"rows")
    (tmp_path / "storage-aaaa").touch()
    with FileStore(tmp_path).open(StoredBytes(f"{digest}@aaaa", 4, digest)) as stream:
        assert stream.read() == b"rows"
