"""Taking in bytes: staged and hashed in bounded memory, checked, then sealed."""

from __future__ import annotations

import asyncio
import hashlib
import inspect as python
import io
from collections.abc import AsyncIterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from penstock.blobs.checks.policy import BlobPolicy, inspect
from penstock.blobs.checks.upload import Rejection, Upload
from penstock.blobs.model import BlobDescriptor, StoredBytes
from penstock.blobs.names import sealed_name
from penstock.blobs.storage import BLOCK_BYTES, Opened, Storage, StorageWriter
from penstock.errors import FileChanged

__all__ = ["ByteSource", "Staged", "check_and_seal", "found_again", "look_at_staged", "stage", "stage_stream"]

ByteSource = str | Path | bytes | BinaryIO | AsyncIterable[bytes]


@dataclass(frozen=True, slots=True)
class Staged:
    """What was taken in, and what the storage said of it."""

    size_bytes: int
    sha256: str
    version: str | None


_REPLACED = Rejection("changed", "the bytes were replaced while they were checked")


class TooLarge(Exception):
    """More bytes came than are taken."""


class _Counting:
    """Passes bytes on, counts and hashes them."""

    def __init__(self, target: StorageWriter, bytes_max: int | None) -> None:
        self._target, self._bytes_max = target, bytes_max
        self._digest, self.size_bytes = hashlib.sha256(), 0

    def write(self, block: bytes) -> None:
        self.size_bytes += len(block)
        if self._bytes_max is not None and self.size_bytes > self._bytes_max:
            raise TooLarge
        self._digest.update(block)
        self._target.write(block)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


async def stage(storage: Storage, blob: BlobDescriptor, source: ByteSource) -> Staged | Rejection:
    """Take in the bytes of a blob; a rejection as soon as there are too many."""
    try:
        if isinstance(source, AsyncIterable):
            return await _stage_blocks(storage, blob, source)
        return await asyncio.to_thread(_stage_source, storage, blob, source)
    except TooLarge:
        return Rejection("too_large", f"the file has more than {blob.bytes_max:,} bytes, the most that are taken")


def _stage_source(storage: Storage, blob: BlobDescriptor, source: str | Path | bytes | BinaryIO) -> Staged:
    if isinstance(source, bytes):
        return stage_stream(storage, blob, io.BytesIO(source))
    if isinstance(source, str | Path):
        with Path(source).open("rb") as stream:
            return stage_stream(storage, blob, stream)
    return stage_stream(storage, blob, source)


def stage_stream(storage: Storage, blob: BlobDescriptor, stream: BinaryIO) -> Staged:
    """Take in a stream, on the thread of the caller."""
    with storage.stage(blob.id) as target:
        counting = _Counting(target, blob.bytes_max)
        while block := stream.read(BLOCK_BYTES):
            counting.write(block)
    return Staged(counting.size_bytes, counting.sha256, None)


async def _stage_blocks(storage: Storage, blob: BlobDescriptor, source: AsyncIterable[bytes]) -> Staged:
    context = storage.stage(blob.id)
    counting = _Counting(await asyncio.to_thread(context.__enter__), blob.bytes_max)
    try:
        waiting = bytearray()
        async for block in source:
            waiting += block
            if len(waiting) >= BLOCK_BYTES:
                await asyncio.to_thread(counting.write, bytes(waiting))
                waiting.clear()
        await asyncio.to_thread(counting.write, bytes(waiting))
    except BaseException as error:
        await asyncio.shield(asyncio.to_thread(context.__exit__, type(error), error, error.__traceback__))
        raise
    await asyncio.to_thread(context.__exit__, None, None, None)
    return Staged(counting.size_bytes, counting.sha256, None)


def look_at_staged(storage: Storage, blob: BlobDescriptor) -> Staged | Rejection:
    """What somebody has sent to the storage directly; `NotFound` when nothing came."""
    opened = storage.open_staged(blob.id)
    with opened.stream as stream:
        if blob.bytes_max is not None and opened.size_bytes > blob.bytes_max:
            return Rejection(
                "too_large", f"the file has {opened.size_bytes:,} bytes; at most {blob.bytes_max:,} are taken"
            )
        digest, size = hashlib.sha256(), 0
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return Staged(size, digest.hexdigest(), opened.version)


def found_again(storage: Storage, blob: BlobDescriptor, staged: Staged) -> Staged | Rejection:
    """The same bytes as the storage has them, with their version; a rejection when somebody replaced them by a URL."""
    try:
        found = look_at_staged(storage, blob)
    except FileChanged:
        return _REPLACED
    return _REPLACED if isinstance(found, Staged) and found.sha256 != staged.sha256 else found


async def check_and_seal(
    storage: Storage, blob: BlobDescriptor, staged: Staged, policy: BlobPolicy, *, looks_inside: bool = True
) -> StoredBytes | Rejection:
    """Check staged bytes and seal them. Unless it `looks_inside`, only the scanner is asked."""
    try:
        rejection = await _check(storage, blob, staged, policy, looks_inside=looks_inside)
        if rejection is not None:
            return rejection
        return await asyncio.to_thread(seal, storage, blob, staged)
    except FileChanged:
        return _REPLACED


def seal(storage: Storage, blob: BlobDescriptor, staged: Staged) -> StoredBytes:
    """Seal staged bytes under the blob's id and their digest, on the thread of the caller."""
    opened = _reopened(storage, blob, staged)
    opened.stream.close()
    return storage.seal(blob.id, sealed_name(blob.tenant, blob.id, staged.sha256), opened, sha256=staged.sha256)


async def _check(
    storage: Storage, blob: BlobDescriptor, staged: Staged, policy: BlobPolicy, *, looks_inside: bool
) -> Rejection | None:
    def opened() -> BinaryIO:
        return _reopened(storage, blob, staged).stream

    upload = Upload(
        blob.file_name,
        blob.content_type,
        staged.size_bytes,
        staged.sha256,
        opened,
        blob.bytes_max,
        blob.expected_bytes,
        blob.expected_sha256,
    )
    if looks_inside:
        rejection = await asyncio.to_thread(inspect, policy, upload)
        if rejection is not None:
            return rejection
    if policy.scanner is None:
        return None
    with await asyncio.to_thread(opened) as stream:
        if python.iscoroutinefunction(policy.scanner):
            said = await policy.scanner(stream)
        else:
            said = await asyncio.to_thread(policy.scanner, stream)
    return None if said is None else Rejection("scanner", str(said))


def _reopened(storage: Storage, blob: BlobDescriptor, staged: Staged) -> Opened:
    """The staged bytes once more; `FileChanged` when they are others by now."""
    opened = storage.open_staged(blob.id)
    if opened.size_bytes != staged.size_bytes or staged.version not in (None, opened.version):
        opened.stream.close()
        raise FileChanged(f"what was uploaded for blob {blob.id} was replaced meanwhile")
    return opened
