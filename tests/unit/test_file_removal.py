"""The store of uploaded files: removing them, and what uploads that were cut off have left behind."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from penstock.blobs.store import FileStore

HOUR_S, DAY_S = 3600, 86_400


def age(path: Path, seconds: float) -> None:
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("storage-"))


def cut_off(folder: Path, name: str, seconds: float) -> None:
    """An upload that wrote its last byte so long ago, and never ended."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"half")
    age(folder / name, seconds)


def test_uploads_that_were_cut_off_more_than_a_day_ago_are_removed_with_the_next_file(tmp_path: Path):
    cut_off(tmp_path, "staged-old", DAY_S + 60)
    cut_off(tmp_path, "staged-young", DAY_S - 60)
    cut_off(tmp_path, "not-ours", 9 * DAY_S)
    stored = FileStore(tmp_path).put(io.BytesIO(b"rows"))
    assert names(tmp_path) == sorted([stored.sha256, "staged-young", "not-ours"])


def test_a_process_looks_for_what_was_left_behind_once_and_whenever_it_is_told(tmp_path: Path):
    files = FileStore(tmp_path)
    files.remove_stale()
    first = files.put(io.BytesIO(b"one"))
    cut_off(tmp_path, "staged-old", DAY_S + 60)
    second = files.put(io.BytesIO(b"two"))
    assert names(tmp_path) == sorted([first.sha256, second.sha256, "staged-old"])
    files.remove_stale()
    assert names(tmp_path) == sorted([first.sha256, second.sha256])


def test_a_folder_that_is_not_there_has_nothing_to_remove(tmp_path: Path):
    files = FileStore(tmp_path / "none")
    files.remove_stale()
    assert files.remove("0" * 64) == 0
    assert not (tmp_path / "none").exists()


def test_a_file_that_was_stored_lately_is_not_removed(tmp_path: Path):
    files = FileStore(tmp_path)
    stored = files.put(io.BytesIO(b"rows"))
    key = stored.key
    assert files.remove(key) is None
    age(tmp_path / stored.sha256, HOUR_S + 60)
    assert files.remove(key) == 4
    assert files.remove(key) == 0
    assert names(tmp_path) == []


def test_a_file_stored_again_while_it_is_removed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is old when it is looked at, and a new one of the same bytes when it is taken away."""
    files = FileStore(tmp_path)
    stored = files.put(io.BytesIO(b"rows"))
    age(tmp_path / stored.sha256, HOUR_S + 60)
    replace, others = os.replace, [FileStore(tmp_path)]

    def store_again_first(source: Path, target: Path) -> None:
        while others:
            others.pop().put(io.BytesIO(b"rows"))
        replace(source, target)

    monkeypatch.setattr("penstock.blobs.store.os.replace", store_again_first)
    assert files.remove(stored.key) is None
    assert names(tmp_path) == [stored.sha256]
