"""A kept answer of an HTTP request as bytes: status, headers, and the body if it was not too large to keep."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import zstandard

__all__ = ["DROPPED_HEADERS", "KeptAnswer", "names"]

# They belong to one connection or one moment; a cookie may have been replaced by a newer one since.
DROPPED_HEADERS = frozenset(
    {b"set-cookie", b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"trailer", b"date", b"server",
     b"www-authenticate", b"proxy-authenticate", b"proxy-authorization", b"te"}
)  # fmt: skip
PLAIN, COMPRESSED = b"p", b"z"
COMPRESSED_FROM_BYTES = 1024


class _Stored(msgspec.Struct, array_like=True):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes | None


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """What a repeated request is answered with; `body` is None when it was too large to be kept."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes | None

    def to_bytes(self) -> bytes:
        """The form in which it is stored."""
        headers = [(name, value) for name, value in self.headers if name.lower() not in DROPPED_HEADERS]
        data = msgspec.msgpack.encode(_Stored(self.status, headers, self.body))
        if len(data) < COMPRESSED_FROM_BYTES:
            return PLAIN + data
        return COMPRESSED + zstandard.ZstdCompressor().compress(data)

    @classmethod
    def from_bytes(cls, data: bytes) -> KeptAnswer:
        """The answer that `to_bytes` wrote."""
        plain = data[1:] if data[:1] == PLAIN else zstandard.ZstdDecompressor().decompress(data[1:])
        stored = msgspec.msgpack.decode(plain, type=_Stored)
        return cls(stored.status, tuple(stored.headers), stored.body)


def names(kept: bytes, text: str) -> bool:
    """Whether something that is kept names this text: an answer of an HTTP request, or bytes of a user's own."""
    wanted = text.encode()
    try:
        answer = KeptAnswer.from_bytes(kept)
    except (msgspec.MsgspecError, zstandard.ZstdError):
        return wanted in kept
    return any(wanted in value for _, value in answer.headers) or wanted in (answer.body or b"")
