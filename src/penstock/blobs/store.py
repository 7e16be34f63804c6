"""Where the bytes of uploaded files live: a folder, each file sealed under its digest."""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from penstock.errors import FileUnreadable, NotFound

__all__ = ["FileStore", "Stored"]

_BLOCK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes that are on disk for good: their key, size and SHA-256."""

    key: str
    size_bytes: int
    sha256: str


class FileStore:
    """Files in a folder. Staged first, then sealed: no reader ever sees part of a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, source: BinaryIO) -> Stored:
        """Store a stream; returns once the bytes would outlive a crash. The same bytes are kept once."""
        self._folder.mkdir(parents=True, exist_ok=True)
        digest, size = hashlib.sha256(), 0
        descriptor, staged = self._stage()
        try:
            with os.fdopen(descriptor, "wb") as target:
                while block := source.read(_BLOCK_BYTES):
                    digest.update(block)
                    size += target.write(block)
                target.flush()
                os.fsync(target.fileno())
            key = digest.hexdigest()
            os.replace(staged, self._folder / key)
        except BaseException:
            staged.unlink(missing_ok=True)
            raise
        self._sync_folder()
        return Stored(key, size, key)

    def open(self, key: str) -> BinaryIO:
        """The stored bytes, seekable; `NotFound` when they are gone, `FileUnreadable` when only we cannot have them."""
        try:
            return (self._folder / key).open("rb")
        except FileNotFoundError:
            if self._folder.is_dir():
                raise NotFound(f"the stored file {key[:12]}… is gone from the storage folder") from None
            raise FileUnreadable(f"the storage folder {self._folder} is not there") from None
        except OSError as error:
            raise FileUnreadable(f"the stored file {key[:12]}… cannot be read: {error.strerror}") from error

    def _stage(self) -> tuple[int, Path]:
        """A new file that whoever the umask admits can read: other workers may run as other users."""
        staged = self._folder / f"staged-{secrets.token_hex(8)}"
        return os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), staged

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
