"""Where the bytes of uploaded files live: a folder, each file sealed under its digest.

The folder has a mark, an empty file named by chance. It is part of the key of every file that is stored here, so that a
process with another folder can tell "this is not the place" from "the file is gone".
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from penstock.errors import DiskFull, FileUnreadable, NotFound, SettingsInvalid

__all__ = ["FileStore", "Stored"]

_BLOCK_BYTES = 1024 * 1024
_STAGED = "staged-"
_MARK = "storage-"
STALE_S = 86_400.0  # an upload that wrote nothing for so long was cut off
LATELY_S = 3600.0  # a file stored since then may belong to an operation that is about to be stored


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes that are on disk for good: their key, size and SHA-256."""

    key: str
    size_bytes: int
    sha256: str


class FileStore:
    """Files in a folder. Staged first, then sealed: no reader ever sees part of a file."""

    def __init__(self, folder: Path | None, *, fault: str | None = None) -> None:
        """Without a folder nothing can be stored or read: that raises `SettingsInvalid` with the fault."""
        self._given, self._fault = None if folder is None else folder.absolute(), fault
        self._has_looked = False  # for what was left behind
        self._mark: str | None = None

    @property
    def _folder(self) -> Path:
        if self._given is None:
            raise SettingsInvalid(self._fault or "there is no storage folder")
        return self._given

    def require_folder(self) -> None:
        """Raise `SettingsInvalid` where files cannot be stored or read."""
        _ = self._folder

    def put(self, source: BinaryIO) -> Stored:
        """Store a stream; returns once the bytes would outlive a crash. The same bytes are kept once."""
        try:
            return self._put(source)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"the storage folder {self._folder} is full: {error.strerror}; make room") from error
            raise

    def _put(self, source: BinaryIO) -> Stored:
        self._folder.mkdir(parents=True, exist_ok=True)
        digest, size = hashlib.sha256(), 0
        if not self._has_looked:  # once is enough: who left something behind is not there any more
            self.remove_stale()
        descriptor, staged = self._stage()
        try:
            with os.fdopen(descriptor, "wb") as target:
                while block := source.read(_BLOCK_BYTES):
                    digest.update(block)
                    size += target.write(block)
                target.flush()
                os.fsync(target.fileno())
            name = digest.hexdigest()
            os.replace(staged, self._folder / name)
        except BaseException:
            staged.unlink(missing_ok=True)
            raise
        key = f"{name}@{self._marked()}"
        self._sync_folder()
        return Stored(key, size, name)

    def open(self, key: str) -> BinaryIO:
        """The stored bytes, seekable; `NotFound` when they are gone, `FileUnreadable` when only we cannot have them."""
        try:
            return self._path(key).open("rb")
        except FileNotFoundError:
            self._require_home(key)
            raise NotFound(f"the stored file {key[:12]}… is gone from the storage folder") from None
        except OSError as error:
            raise FileUnreadable(f"the stored file {key[:12]}… cannot be read: {error.strerror}") from error

    def _path(self, key: str) -> Path:
        return self._folder / key.partition("@")[0]

    def _require_home(self, key: str) -> None:
        """`FileUnreadable` unless this is the folder in which the file was stored."""
        if not self._folder.is_dir():
            raise FileUnreadable(f"the storage folder {self._folder} is not there")
        mark = key.partition("@")[2]
        if mark and not (self._folder / f"{_MARK}{mark}").exists():
            raise FileUnreadable(
                f"{self._folder} is not the storage folder in which the file {key[:12]}… was stored: let storage_url "
                "(PENSTOCK_STORAGE_URL) name the same folder in every process"
            )

    def _marked(self) -> str:
        """The folder's mark. Two processes that make one at once leave two, and either will do."""
        if self._mark is None or not (self._folder / f"{_MARK}{self._mark}").exists():
            found = sorted(path.name.removeprefix(_MARK) for path in self._folder.glob(f"{_MARK}*"))
            self._mark = found[0] if found else secrets.token_hex(8)
            (self._folder / f"{_MARK}{self._mark}").touch()
        return self._mark

    def _stage(self) -> tuple[int, Path]:
        """A new file that whoever the umask admits can read: other workers may run as other users."""
        staged = self._folder / f"{_STAGED}{secrets.token_hex(8)}"
        return os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), staged

    def remove(self, key: str) -> int | None:
        """Remove a file that no operation uses; how many bytes it had, or None when it was stored lately, and stays.

        Who takes a file in stores it first, and then the operation that uses it. `FileUnreadable` when it is elsewhere.
        """
        path = self._path(key)
        aside = path.with_name(f"{_STAGED}removed-{path.name}")
        try:
            lately = self._now() - LATELY_S
            if path.stat().st_mtime > lately:
                return None
            os.replace(path, aside)
        except FileNotFoundError:
            if "@" in key:
                self._require_home(key)
            return 0
        # Looked at again when it is out of the way: who stores the same bytes from now on makes a new file.
        found = aside.stat()
        if found.st_mtime > lately:
            os.replace(aside, path)
            return None
        aside.unlink()
        self._sync_folder()
        return found.st_size

    def remove_stale(self) -> None:
        """Remove what uploads and removals that were cut off have left here, after a day."""
        self._has_looked = True
        with suppress(OSError, SettingsInvalid):  # no folder yet, or one that is not ours
            stale = self._now() - STALE_S
            for path in self._folder.glob(f"{_STAGED}*"):
                with suppress(OSError):  # gone by now
                    if path.stat().st_mtime < stale:
                        path.unlink()

    def _now(self) -> float:
        """The time on the clock of the file system, which may be another machine's."""
        with tempfile.NamedTemporaryFile(prefix=_STAGED, dir=self._folder) as probe:
            return os.fstat(probe.fileno()).st_mtime

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
