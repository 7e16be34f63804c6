"""Stored files: whole or not at all, readable for other workers, and an error of ours when they are not."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import pytest

from penstock.blobs.store import FileStore
from penstock.errors import FileUnreadable, NotFound, Unavailable


def stored(folder: Path) -> Path:
    key = FileStore(folder).put(io.BytesIO(b"some bytes")).key
    return folder / key


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
