"""Stored files: whole or not at all, readable for other workers, and an error of ours when they are not."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import pytest

from penstock.blobs.store import FileStore
from penstock.errors import FileUnreadable, NotFound, SettingsInvalid, Unavailable


def stored(folder: Path) -> Path:
    return folder / FileStore(folder).put(io.BytesIO(b"some bytes")).sha256


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_whoever_the_umask_admits_can_read_a_stored_file(tmp_path: Path, umask: int, mode: int):
    before = os.umask(umask)
    try:
        file = stored(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == mode


def test_a_stream_that_breaks_off_leaves_nothing_behind(tmp_path: Path):
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError):
        FileStore(tmp_path).put(Broken())
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_gone_is_not_found(tmp_path: Path):
    stored(tmp_path).unlink()
    with pytest.raises(NotFound, match="is gone from the storage folder"):
        FileStore(tmp_path).open("0" * 64)


def test_a_file_that_is_there_but_cannot_be_read_is_no_reason_to_give_up(tmp_path: Path, monkeypatch):
    file = stored(tmp_path)

    def refuse(self: Path, mode: str) -> io.BytesIO:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FileUnreadable, match="Permission denied") as raised:
        FileStore(tmp_path).open(file.name)
    assert isinstance(raised.value, Unavailable)
    assert isinstance(raised.value.__cause__, PermissionError)


def test_a_folder_that_is_not_there_says_nothing_about_its_files(tmp_path: Path):
    with pytest.raises(FileUnreadable, match="is not there"):
        FileStore(tmp_path / "unmounted").open("0" * 64)


def test_another_folder_than_the_one_in_which_a_file_was_stored_says_nothing_about_it(tmp_path: Path):
    key = FileStore(tmp_path / "one").put(io.BytesIO(b"rows")).key
    FileStore(tmp_path / "other").put(io.BytesIO(b"more"))
    (tmp_path / "mount point").mkdir()
    for name in ("other", "mount point"):
        with pytest.raises(FileUnreadable, match=r"is not the storage folder in which the file .* was stored"):
            FileStore(tmp_path / name).open(key)
        with pytest.raises(FileUnreadable, match="is not the storage folder"):
            FileStore(tmp_path / name).remove(key)


def test_a_folder_is_the_same_wherever_it_is_moved_and_whoever_stores_in_it(tmp_path: Path):
    keys = [FileStore(tmp_path / "one").put(io.BytesIO(content)).key for content in (b"rows", b"more")]
    (tmp_path / "one").rename(tmp_path / "two")
    moved = FileStore(tmp_path / "two")
    for key in keys:
        moved.open(key).close()
    (tmp_path / "two" / keys[0].partition("@")[0]).unlink()
    with pytest.raises(NotFound, match="is gone"):
        moved.open(keys[0])


def test_the_mark_of_a_folder_survives_as_long_as_one_of_several_is_there(tmp_path: Path):
    """Two processes that take in the first files at once may each leave a mark."""
    (tmp_path / "storage-bbbb").touch()
    first = FileStore(tmp_path)
    key = first.put(io.BytesIO(b"rows")).key
    (tmp_path / "storage-aaaa").touch()
    assert FileStore(tmp_path).put(io.BytesIO(b"rows")).key.endswith("@aaaa")
    (tmp_path / key.partition("@")[0]).unlink()
    with pytest.raises(NotFound):
        first.open(key)


def test_without_a_folder_the_fault_is_told():
    files = FileStore(None, fault="storage_url is not set")
    for call in (lambda: files.put(io.BytesIO(b"rows")), lambda: files.open("0" * 64), files.require_folder):
        with pytest.raises(SettingsInvalid, match="storage_url is not set"):
            call()
    files.remove_stale()
