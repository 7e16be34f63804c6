"""Object stores by `obstore`: S3, Google Cloud Storage, Azure Blob Storage, and the memory of this process."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from penstock.blobs.model import StoredBytes
from penstock.blobs.names import staged_name
from penstock.blobs.ranges import open_ranges
from penstock.blobs.storage import ListedObject, Opened, Storage, StorageWriter, digest_of, gone, shown, split_key
from penstock.errors import FileChanged, FileUnreadable, NotFound, SettingsInvalid
from penstock.settings import masked

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["ObjectStorage"]

MARKS = "marks"
PART_BYTES = 8 * 1024 * 1024
PARTS_AT_ONCE = 2
TIMEOUT_S = 30
CONNECT_S = 5
RETRIES = 3
SIGNING = ("s3", "gs", "az", "abfs", "abfss")


class ObjectStorage(Storage):
    """Objects below a URL such as `s3://bucket/prefix`. Options of the client stand behind it: `?region=eu-west-1`."""

    is_local = False

    def __init__(self, url: str) -> None:
        self._url = url
        self._scheme = urlsplit(url).scheme
        super().__init__(can_sign=self._scheme in SIGNING)
        self._mark: str | None = None

    @property
    def place(self) -> str:
        return str(masked(self._url))

    def require(self) -> None:
        _ = self.store

    @cached_property
    def store(self) -> ObjectStore:
        """The client; `SettingsInvalid` when there can be none."""
        try:
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError as error:
            raise SettingsInvalid(
                f"storage_url is {self.place}, and object stores need an extra: pip install 'penstock[blobs]'"
            ) from error
        plain, _, query = self._url.partition("?")
        config: dict[str, Any] = dict(parse_qsl(query))
        if self._scheme == "memory":
            config = {}
        client = {"timeout": f"{TIMEOUT_S}s", "connect_timeout": f"{CONNECT_S}s"}
        if str(config.get("endpoint", "")).startswith("http://"):
            client["allow_http"] = "true"
        retry = {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=TIMEOUT_S)}
        options: dict[str, Any] = {} if self._scheme == "memory" else {"client_options": client, "retry_config": retry}
        try:
            return from_url(plain, **options, **config)
        except (BaseError, ValueError, TypeError) as error:
            raise SettingsInvalid(f"storage_url {self.place} cannot be used: {_first_line(error)}") from error

    def key_of(self, name: str) -> str:
        return f"{name}@{self._marked()}"

    def trouble(self) -> str | None:
        try:
            self._marked()
        except FileUnreadable as error:
            return str(error)
        return None

    # --- taking in

    @contextmanager
    def stage(self, blob: str) -> Iterator[StorageWriter]:
        writer = _Writer(self, staged_name(blob))
        try:
            yield writer
            writer.close()
        except BaseException:
            with suppress(Exception):  # whatever becomes of it: it is not wanted
                writer.close()
            with suppress(Exception):
                self.remove_staged(blob)
            raise

    def open_staged(self, blob: str) -> Opened:
        try:
            return self._opened(staged_name(blob), f"read what was uploaded for blob {blob}")
        except _Missing:
            raise NotFound(f"nothing was uploaded for blob {blob}") from None

    def remove_staged(self, blob: str) -> int:
        return self._removed(staged_name(blob))

    def seal(self, blob: str, name: str, staged: Opened, *, sha256: str) -> StoredBytes:
        import obstore

        key = self.key_of(name)
        with self.asked(f"seal the bytes of blob {blob}"):
            obstore.copy(self.store, staged_name(blob), name)
        sealed = self._opened(name, f"seal the bytes of blob {blob}")
        with sealed.stream as stream:
            # Whoever has a URL to upload may have replaced the bytes since they were hashed. A copy mostly keeps the
            # version of what it is a copy of; where it does not, only the bytes can tell.
            is_same = sealed.version is not None and sealed.version == staged.version
            if sealed.size_bytes != staged.size_bytes or (not is_same and digest_of(stream) != sha256):
                self._removed(name)
                raise FileChanged(f"what was uploaded for blob {blob} was replaced meanwhile")
        return StoredBytes(key, sealed.size_bytes, sha256, sealed.version)

    # --- reading

    def peek(self, key: str) -> Opened:
        try:
            return self._opened(split_key(key)[0], f"read the stored file {shown(key)}")
        except _Missing:
            self._require_home(key)
            raise gone(key, self.place) from None

    def _opened(self, name: str, what: str) -> Opened:
        import obstore
        from obstore.exceptions import PreconditionError

        with self.asked(what):
            found = obstore.head(self.store, name)
        version, size = found["e_tag"], found["size"]

        def fetch(start: int, end: int) -> bytes:
            options: Any = {"range": (start, end)}
            if version is not None:
                options["if_match"] = version
            try:
                with self.asked(what):
                    try:
                        return bytes(obstore.get(self.store, name, options=options).bytes())
                    except PreconditionError:
                        raise FileChanged(f"cannot {what}: it was replaced while it was read") from None
            except _Missing as error:
                raise NotFound(f"cannot {what}: it was removed while it was read") from error

        return Opened(open_ranges(fetch, size), size, version)

    def listed(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[ListedObject]:
        import obstore

        found: list[ListedObject] = []
        with self.asked(f"list {prefix}"):
            pages = obstore.list(self.store, prefix.rstrip("/"), offset=after or None, chunk_size=limit)
            for page in pages:
                found += [_listed(each) for each in page if str(each["path"]) > after]
                if len(found) >= limit:
                    break
        return sorted(found, key=lambda each: each.name)[:limit]

    def folders(self, prefix: str) -> list[str]:
        import obstore

        with self.asked(f"list {prefix}"):
            found = obstore.list_with_delimiter(self.store, prefix.rstrip("/"))
        return sorted(f"{each}/" for each in found["common_prefixes"])

    def sign_upload(self, blob: str, expires_in: timedelta) -> str:
        return self._signed("PUT", staged_name(blob), expires_in)

    def sign_download(self, key: str, expires_in: timedelta) -> str:
        return self._signed("GET", split_key(key)[0], expires_in)

    def _signed(self, method: Any, name: str, expires_in: timedelta) -> str:
        import obstore

        store: Any = self.store
        with self.asked("sign a URL"):
            return obstore.sign(store, method, name, expires_in)

    # --- removing

    def remove(self, key: str) -> int | None:
        name = split_key(key)[0]
        removed = self._removed(name)
        if not removed:
            self._require_home(key)
        return removed

    def _removed(self, name: str) -> int:
        import obstore

        try:
            with self.asked(f"remove {name}"):
                size = obstore.head(self.store, name)["size"]
                obstore.delete(self.store, name)
        except _Missing:
            return 0
        return size

    # --- which storage this is

    def _marked(self) -> str:
        """The storage's mark. Two processes that make one at once leave two, and either will do."""
        if self._mark is None:
            import obstore

            marks = [each.name.rpartition("/")[2] for each in self.listed(f"{MARKS}/")]
            mark = min(marks) if marks else secrets.token_hex(8)
            if not marks:
                with self.asked(f"write to {self.place}"):
                    obstore.put(self.store, f"{MARKS}/{mark}", b"penstock\n")
            self._mark = mark
        return self._mark

    def _require_home(self, key: str) -> None:
        """`FileUnreadable` unless this is the storage in which the object was stored."""
        import obstore

        mark = split_key(key)[1]
        try:
            with self.asked(f"read from {self.place}"):
                obstore.head(self.store, f"{MARKS}/{mark}")
        except _Missing:
            raise FileUnreadable(
                f"{self.place} is not the storage in which the file {shown(key)} was stored: let storage_url "
                "(PENSTOCK_STORAGE_URL) name the same in every process"
            ) from None

    @contextmanager
    def asked(self, what: str) -> Iterator[None]:
        """Errors of the store as ours: `_Missing`, or `FileUnreadable`, which another try may help."""
        from obstore.exceptions import BaseError, NotFoundError

        try:
            yield
        except (NotFoundError, FileNotFoundError):
            raise _Missing(f"cannot {what} in {self.place}: it is not there") from None
        except BaseError as error:
            raise FileUnreadable(f"cannot {what} in {self.place}: {_first_line(error)}") from error
        except OSError as error:
            raise FileUnreadable(f"cannot {what} in {self.place}: {error}") from error


class _Missing(FileUnreadable):
    """There is no such object, or no such bucket."""


class _Writer:
    """Writes one object, in parts if it is large."""

    def __init__(self, storage: ObjectStorage, name: str) -> None:
        import obstore

        self._asked = partial(storage.asked, f"write {name}")
        with self._asked():
            self._inner = obstore.open_writer(
                storage.store, name, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )

    def write(self, block: bytes, /) -> int:
        with self._asked():
            return self._inner.write(block)

    def close(self) -> None:
        """Make the object; once."""
        if not self._inner.closed():
            with self._asked():
                self._inner.close()


def _listed(found: Any) -> ListedObject:
    return ListedObject(found["path"], found["size"], round(found["last_modified"].timestamp() * 1e6))


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:300]
