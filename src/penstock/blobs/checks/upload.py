"""An upload as the checks see it, and what they answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

__all__ = ["HEAD_BYTES", "Rejection", "Upload"]

HEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Upload:
    """Bytes with what was said about them. `open` gives them from the beginning, as often as needed."""

    file_name: str
    content_type: str
    size_bytes: int
    sha256: str
    open: Callable[[], BinaryIO]
    bytes_max: int | None = None
    expected_bytes: int | None = None
    expected_sha256: str | None = None

    def head(self) -> bytes:
        """The first bytes."""
        with self.open() as stream:
            return stream.read(HEAD_BYTES)

    def tail(self, count: int) -> bytes:
        """The last bytes."""
        with self.open() as stream:
            stream.seek(max(0, self.size_bytes - count))
            return stream.read(count)


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why bytes are refused; `code` is a short stable word for the reason."""

    code: str
    reason: str
