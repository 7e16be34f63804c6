"""`Client`: the asynchronous client for code without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from penstock.client.asynchronous import AsyncClient
from penstock.listing import Page
from penstock.operations.intake import Source
from penstock.operations.model import Operation, RowError, RowView
from penstock.operations.retrying import Retry
from penstock.operations.signals import Receipt

__all__ = ["Client"]

T = TypeVar("T")


class Client:
    """A server's operations and signals; use `with`. Filters are those of `AsyncClient`.

    For scripts and threads: in a coroutine or a notebook, use `AsyncClient`.
    """

    def __init__(self, url: str, key: str | None = None, *, client: httpx.AsyncClient | None = None) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(url, key, client=client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._client.__aexit__(kind, error, trace))
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def create(
        self,
        operation: str,
        file: Source,
        *,
        metadata: Mapping[str, Any] | None = None,
        file_name: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Operation:
        """Create an operation for a file. When this returns, it is durable."""
        create = self._client.operations.create
        return self._run(create(operation, file=file, metadata=metadata, file_name=file_name, options=options))

    def wait(self, operation: str, *, every_s: float = 1.0) -> Operation:
        """Watch until the operation is settled."""
        return self._run(self._client.operations.wait(operation, every_s=every_s))

    def get(self, operation: str) -> Operation:
        """The operation with this id."""
        return self._run(self._client.operations.get(operation))

    def list(self, **filters: Any) -> Page[Operation]:
        """Operations that match, newest first."""
        return self._run(self._client.operations.list(**filters))

    def rows(self, operation: str, **filters: Any) -> Page[RowView]:
        """Rows that fit every filter given, by number."""
        return self._run(self._client.operations.rows(operation, **filters))

    def row(self, operation: str, number: int) -> RowView:
        """One row with its data and every step it has reached."""
        return self._run(self._client.operations.row(operation, number))

    def errors(self, operation: str, **filters: Any) -> Page[RowError]:
        """What is wrong now, by row."""
        return self._run(self._client.operations.errors(operation, **filters))

    def cancel(self, operation: str, *, cause: str | None = None) -> Operation:
        """Stop an operation for good."""
        return self._run(self._client.operations.cancel(operation, cause=cause))

    def pause(self, operation: str, *, cause: str | None = None) -> Operation:
        """Begin nothing more until `resume`."""
        return self._run(self._client.operations.pause(operation, cause=cause))

    def resume(self, operation: str, *, cause: str | None = None) -> Operation:
        """Go on where a paused operation stopped."""
        return self._run(self._client.operations.resume(operation, cause=cause))

    def retry(self, operation: str, *, rows: Iterable[int] | None = None, confirm_doubt: bool = False) -> Retry:
        """Run failed rows again: all that can be, or those named."""
        return self._run(self._client.operations.retry(operation, rows=rows, confirm_doubt=confirm_doubt))

    def edit_row(self, operation: str, row: int, changes: Mapping[str, Any]) -> Retry:
        """Correct fields of a failed or invalid row and run it again."""
        return self._run(self._client.operations.edit_row(operation, row, changes))

    def complete(self, operation: str, key: str, *, payload: Any = None, row: int | None = None) -> Receipt:
        """Send a signal: the awaited thing has happened."""
        return self._run(self._client.signals.complete(operation, key, payload=payload, row=row))

    def fail(self, operation: str, key: str, message: str, *, row: int | None = None) -> Receipt:
        """Send a signal: the awaited thing has failed."""
        return self._run(self._client.signals.fail(operation, key, message, row=row))

    def export(
        self,
        operation: str,
        target: str | Path,
        *,
        mode: str = "report",
        format: str = "csv",
        state: str | Sequence[str] | None = None,
    ) -> None:
        """Write rows to a file, of any number."""

        async def write() -> None:
            found = await self._client.operations.export(operation, mode=mode, format=format, state=state)
            with Path(target).open("wb") as file:  # noqa: ASYNC230  # nothing else runs on this loop
                async for piece in found.pieces:
                    file.write(piece)

        self._run(write())
