"""The store of uploaded files: removing them, and what uploads that were cut off have left behind."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from test_file_store import put

from penstock.blobs.store import FileStore

HOUR_S, DAY_S = 3600, 86_400


def age(path: Path, seconds: float) -> None:
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def names(folder: Path) -> list[str]:
    found = (path for path in folder.rglob("*") if not path.is_dir())
    return sorted(path.name.partition(".")[2] or path.name for path in found if not path.name.startswith("storage-"))


def shared(folder: Path) -> str:
    """A file of a release before blobs, which operations share by its digest."""
    digest = hashlib.sha256(b"rows").hexdigest()
    (folder / digest).write_bytes(b"rows")
    (folder / "storage-aaaa").touch()
    return f"{digest}@aaaa"


def cut_off(folder: Path, name: str, seconds: float) -> None:
    """An upload that wrote its last byte so long ago, and never ended."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"half")
    age(folder / name, seconds)


def test_uploads_that_were_cut_off_more_than_a_day_ago_are_removed_with_the_next_file(tmp_path: Path):
    cut_off(tmp_path, "staged-old", DAY_S + 60)
    cut_off(tmp_path, "staged-young", DAY_S - 60)
    cut_off(tmp_path, "not-ours", 9 * DAY_S)
    stored = put(FileStore(tmp_path), b"rows")
    assert names(tmp_path) == sorted([stored.sha256, "staged-young", "not-ours"])


def test_a_process_looks_for_what_was_left_behind_once_and_whenever_it_is_told(tmp_path: Path):
    files = FileStore(tmp_path)
    files.remove_stale()
    first = put(files, b"one")
    cut_off(tmp_path, "staged-old", DAY_S + 60)
    second = put(files, b"two", "b2")
    assert names(tmp_path) == sorted([first.sha256, second.sha256, "staged-old"])
    files.remove_stale()
    assert names(tmp_path) == sorted([first.sha256, second.sha256])


def test_a_folder_that_is_not_there_has_nothing_to_remove(tmp_path: Path):
    files = FileStore(tmp_path / "none")
    files.remove_stale()
    assert files.remove("0" * 64) == 0
    assert not (tmp_path / "none").exists()


def test_a_file_of_a_blob_is_removed_at_once(tmp_path: Path):
    files = FileStore(tmp_path)
    key = put(files, b"rows").key
    assert files.remove(key) == 4
    assert files.remove(key) == 0
    assert names(tmp_path) == []


def test_a_shared_file_that_was_stored_lately_is_not_removed(tmp_path: Path):
    key = shared(tmp_path)
    files = FileStore(tmp_path)
    assert files.remove(key) is None
    age(tmp_path / key.partition("@")[0], HOUR_S + 60)
    assert files.remove(key) == 4
    assert files.remove(key) == 0
    assert names(tmp_path) == []


def test_a_shared_file_stored_again_while_it_is_removed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is old when it is looked at, and a new one of the same bytes when it is taken away."""
    key = shared(tmp_path)
    age(tmp_path / key.partition("@")[0], HOUR_S + 60)
    replace, others = os.replace, [tmp_path]

    def store_again_first(source: Path, target: Path) -> None:
        while others:
            shared(others.pop())
        replace(source, target)

    monkeypatch.setattr("penstock.blobs.store.os.replace", store_again_first)
    assert FileStore(tmp_path).remove(key) is None
    assert names(tmp_path) == [key.partition("@")[0]]
