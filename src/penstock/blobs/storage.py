"""What a place for bytes can do. Its methods wait for disks and networks, so they are called on threads."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import BinaryIO, ClassVar, Protocol

from penstock.blobs.model import StoredBytes
from penstock.errors import FileChanged, NotFound

__all__ = ["BLOCK_BYTES", "ListedObject", "Opened", "Storage", "StorageWriter", "digest_of", "split_key"]

BLOCK_BYTES = 1024 * 1024
CHECKED_MAX = 1000  # objects whose digest was compared, and that are not read again for it


class StorageWriter(Protocol):
    """Where the bytes of one object go."""

    def write(self, block: bytes, /) -> object:
        """Append bytes."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The bytes of an object, seekable. `version` changes when they do, as far as the storage can tell."""

    stream: BinaryIO
    size_bytes: int
    version: str | None


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object as a list names it; `modified_us` is microseconds since 1970 on the storage's clock."""

    name: str
    size_bytes: int
    modified_us: int


class Storage(ABC):
    """A folder or bucket. An object's key is its name and the storage's mark: `<name>@<mark>`.

    By the mark, a process that looks in another place tells "this is not the storage" (`FileUnreadable`) from "the
    object is gone" (`NotFound`).
    """

    is_local: ClassVar[bool] = True  # reading waits for no network

    def __init__(self, *, can_sign: bool = False) -> None:
        """`can_sign`: it can take and give bytes by URL."""
        self.can_sign = can_sign
        self._checked: dict[tuple[str, str | None], None] = {}

    @property
    @abstractmethod
    def place(self) -> str:
        """Where it is, for people; without secrets."""

    @abstractmethod
    def require(self) -> None:
        """Raise `SettingsInvalid` where nothing can be stored or read."""

    @abstractmethod
    def stage(self, blob: str) -> AbstractContextManager[StorageWriter]:
        """Take in bytes that are not checked yet. They are durable when the block ends well, and gone otherwise."""

    @abstractmethod
    def open_staged(self, blob: str) -> Opened:
        """What was taken in for a blob; `NotFound` when there is nothing."""

    @abstractmethod
    def remove_staged(self, blob: str) -> int:
        """Remove what was taken in for a blob, if anything; how many bytes that were."""

    @abstractmethod
    def seal(self, blob: str, name: str, staged: Opened, *, sha256: str) -> StoredBytes:
        """Give staged bytes their final name; `FileChanged` when they are not those that were `opened` and hashed.

        Durable when it returns. Staged bytes may be left behind; remove them when the blob is Valid.
        """

    @abstractmethod
    def peek(self, key: str) -> Opened:
        """The bytes of an object, whatever they are; `NotFound` or `FileUnreadable`."""

    @abstractmethod
    def remove(self, key: str) -> int | None:
        """Remove an object that nobody needs; how many bytes it had. None when it must stay for a while."""

    @abstractmethod
    def listed(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[ListedObject]:
        """Objects below a prefix that ends with a slash, by name, behind one."""

    @abstractmethod
    def folders(self, prefix: str) -> list[str]:
        """The prefixes directly below one; each ends with a slash."""

    @abstractmethod
    def key_of(self, name: str) -> str:
        """The key of an object of this storage."""

    @abstractmethod
    def trouble(self) -> str | None:
        """Why nothing can be stored here now, if so."""

    def remove_stale(self) -> None:  # noqa: B027  # most leave nothing
        """Remove what uploads that were cut off have left."""

    def sign_upload(self, blob: str, expires_in: timedelta) -> str:
        """A URL to which the bytes of a blob can be PUT, where the storage `can_sign`."""
        raise NotImplementedError

    def sign_download(self, key: str, expires_in: timedelta) -> str:
        """A URL from which an object can be had, where the storage `can_sign`."""
        raise NotImplementedError

    @contextmanager
    def open(self, stored: StoredBytes) -> Iterator[BinaryIO]:
        """The bytes that were stored; `FileChanged` when the object now holds others."""
        opened = self.peek(stored.key)
        with opened.stream:
            self._require_same(stored, opened)
            yield opened.stream

    def opened(self, stored: StoredBytes) -> BinaryIO:
        """As `open`; the caller closes it."""
        opened = self.peek(stored.key)
        try:
            self._require_same(stored, opened)
        except BaseException:
            opened.stream.close()
            raise
        return opened.stream

    def _require_same(self, stored: StoredBytes, opened: Opened) -> None:
        """Compare size and version; where these differ, the digest decides, for a restored copy has another version."""
        if opened.size_bytes == stored.size_bytes and stored.version in (None, opened.version):
            return
        if (stored.key, opened.version) in self._checked:
            return
        if opened.size_bytes != stored.size_bytes:
            found, wanted = f"{opened.size_bytes:,} bytes", f"{stored.size_bytes:,}"
        else:
            found, wanted = digest_of(opened.stream), stored.sha256
            opened.stream.seek(0)
        if found != wanted:
            what = f"it has {found}, expected {wanted}"
            raise FileChanged(f"the stored file {shown(stored.key)} was changed after it was checked: {what}")
        if len(self._checked) >= CHECKED_MAX:
            self._checked.clear()
        self._checked[stored.key, opened.version] = None


def digest_of(stream: BinaryIO) -> str:
    """The SHA-256 of a stream from where it stands."""
    digest = hashlib.sha256()
    while block := stream.read(BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()


def split_key(key: str) -> tuple[str, str]:
    """The name and the mark of a key."""
    name, _, mark = key.partition("@")
    return name, mark


def shown(key: str) -> str:
    """A key, short enough for a message."""
    last = split_key(key)[0].rpartition("/")[2]
    return last if len(last) <= 40 else f"{last[:36]}…" if "." in last else f"{last[:12]}…"


def gone(key: str, where: str) -> NotFound:
    """The error for an object that is not where it was stored."""
    return NotFound(f"the stored file {shown(key)} is gone from the storage {where}")
