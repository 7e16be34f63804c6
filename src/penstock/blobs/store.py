"""A folder for the bytes of files. Each is staged first, then sealed: no reader ever sees part of one.

The folder's mark is an empty file that is named by chance. Files of releases before blobs lie in the folder itself,
named by their digest alone and shared by all operations with these bytes; they can be read and removed.
"""

from __future__ import annotations

import errno
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from penstock.blobs.model import StoredBytes
from penstock.blobs.names import SEALED, STAGED
from penstock.blobs.storage import ListedObject, Opened, Storage, gone, shown, split_key
from penstock.errors import DiskFull, FileUnreadable, NotFound, SettingsInvalid

__all__ = ["FileStore"]

_STAGED = "staged-"
_MARK = "storage-"
STALE_S = 86_400.0  # an upload that wrote nothing for so long was cut off
LATELY_S = 3600.0  # a shared file stored since then may belong to an operation that is about to be stored


class FileStore(Storage):
    """Files in a folder."""

    def __init__(self, folder: Path | None, *, fault: str | None = None) -> None:
        """Without a folder nothing can be stored or read: that raises `SettingsInvalid` with the fault."""
        super().__init__()
        self._given, self._fault = None if folder is None else folder.absolute(), fault
        self._has_looked = False  # for what was left behind
        self._mark: str | None = None

    @property
    def _folder(self) -> Path:
        if self._given is None:
            raise SettingsInvalid(self._fault or "there is no storage folder")
        return self._given

    @property
    def place(self) -> str:
        return "not named" if self._given is None else str(self._given)

    def require(self) -> None:
        _ = self._folder

    def key_of(self, name: str) -> str:
        return f"{name}@{self._marked()}"

    def trouble(self) -> str | None:
        # It is made when the first file comes, so its parent counts as well.
        place = next(each for each in (self._folder, *self._folder.parents) if each.exists())
        try:
            with tempfile.TemporaryFile(dir=place):
                return None
        except OSError as error:
            return str(error)

    # --- taking in

    @contextmanager
    def stage(self, blob: str) -> Iterator[BinaryIO]:
        with self._room():
            self._folder.mkdir(parents=True, exist_ok=True)
            if not self._has_looked:  # once is enough: who left something behind is not there any more
                self.remove_stale()
            staged = self._staged(blob)
            # Readable for whoever the umask admits: other workers may run as other users.
            descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                with os.fdopen(descriptor, "wb") as target:
                    yield target
                    target.flush()
                    os.fsync(target.fileno())
            except BaseException:
                staged.unlink(missing_ok=True)
                raise

    @contextmanager
    def _room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"the storage folder {self._folder} is full: {error.strerror}; make room") from error
            raise

    def open_staged(self, blob: str) -> Opened:
        try:
            return _opened(self._staged(blob))
        except FileNotFoundError:
            raise NotFound(f"nothing was uploaded for blob {blob}") from None
        except OSError as error:
            raise FileUnreadable(f"what was uploaded for blob {blob} cannot be read: {error.strerror}") from error

    def remove_staged(self, blob: str) -> int:
        return _unlinked(self._staged(blob))

    def seal(self, blob: str, name: str, staged: Opened, *, sha256: str) -> StoredBytes:
        path = self._folder / name
        with self._room():
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                for above in (path.parent.parent, self._folder):
                    _sync(above)
            os.replace(self._staged(blob), path)
            key = self.key_of(name)
            _sync(path.parent)
            _sync(self._folder)
        return StoredBytes(key, staged.size_bytes, sha256, staged.version)

    def _staged(self, blob: str) -> Path:
        return self._folder / f"{_STAGED}{blob}"

    # --- reading

    def peek(self, key: str) -> Opened:
        try:
            return _opened(self._path(key))
        except FileNotFoundError:
            self._require_home(key)
            raise gone(key, "folder") from None
        except OSError as error:
            raise FileUnreadable(f"the stored file {shown(key)} cannot be read: {error.strerror}") from error

    def _path(self, key: str) -> Path:
        return self._folder / split_key(key)[0]

    def _require_home(self, key: str) -> None:
        """`FileUnreadable` unless this is the folder in which the file was stored."""
        if not self._folder.is_dir():
            raise FileUnreadable(f"the storage folder {self._folder} is not there")
        mark = split_key(key)[1]
        if mark and not (self._folder / f"{_MARK}{mark}").exists():
            raise FileUnreadable(
                f"{self._folder} is not the storage folder in which the file {shown(key)} was stored: let storage_url "
                "(PENSTOCK_STORAGE_URL) name the same folder in every process"
            )

    def _marked(self) -> str:
        """The folder's mark. Two processes that make one at once leave two, and either will do."""
        if self._mark is None or not (self._folder / f"{_MARK}{self._mark}").exists():
            found = sorted(path.name.removeprefix(_MARK) for path in self._folder.glob(f"{_MARK}*"))
            self._mark = found[0] if found else secrets.token_hex(8)
            (self._folder / f"{_MARK}{self._mark}").touch()
        return self._mark

    def listed(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[ListedObject]:
        if prefix == STAGED:
            names = {f"{STAGED}{path.name.removeprefix(_STAGED)}": path for path in self._folder.glob(f"{_STAGED}*")}
        else:
            names = {f"{prefix}{path.name}": path for path in (self._folder / prefix).glob("*")}
        found = []
        for name in sorted(name for name in names if name > after):
            with suppress(FileNotFoundError):  # gone by now
                status = names[name].stat()
                found.append(ListedObject(name, status.st_size, status.st_mtime_ns // 1000))
            if len(found) == limit:
                break
        return found

    def folders(self, prefix: str) -> list[str]:
        return sorted(f"{prefix}{path.name}/" for path in (self._folder / prefix).glob("*") if path.is_dir())

    # --- removing

    def remove(self, key: str) -> int | None:
        name = split_key(key)[0]
        if name.startswith(STAGED):
            return self.remove_staged(name.removeprefix(STAGED))
        if not name.startswith(SEALED):
            return self._remove_shared(key)
        path = self._path(key)
        if not path.exists():
            self._require_home(key)
        size = _unlinked(path)
        if size:
            _sync(path.parent)
        return size

    def _remove_shared(self, key: str) -> int | None:
        """Remove a file that several operations may share; None when it was stored lately, and stays."""
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
        _sync(self._folder)
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


def _opened(path: Path) -> Opened:
    stream = path.open("rb")
    status = os.fstat(stream.fileno())
    return Opened(stream, status.st_size, f"{status.st_size:x}-{status.st_mtime_ns:x}")


def _unlinked(path: Path) -> int:
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
