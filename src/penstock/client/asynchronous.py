"""`AsyncClient`: the engine's calls about operations and signals, answered by a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

import httpx

from penstock.client import parsing
from penstock.client.transport import Transport, path
from penstock.errors import InvalidInput
from penstock.listing import Page
from penstock.operations.exporting import Export
from penstock.operations.intake import Source, name_of, open_source
from penstock.operations.model import ErrorGroup, Event, FileCheck, HistoryEntry, Operation, RowError, RowView
from penstock.operations.retrying import Eligibility, Retry
from penstock.operations.signals import Receipt, Unclaimed, Wait

__all__ = ["AsyncClient", "RemoteOperations", "RemoteSignals"]

EVENTS_MAX = 500  # that a server gives at once


class AsyncClient:
    """A server's operations and signals; use `async with`. `key` is an API key or a token.

    Requests that get no answer are sent again, changes with a key by which the server knows them. Errors are those that
    the engine raises; `Unavailable` when the server cannot be reached.
    """

    def __init__(self, url: str, key: str | None = None, *, client: httpx.AsyncClient | None = None) -> None:
        self._transport = Transport(url, key, client=client)
        self.operations = RemoteOperations(self._transport)
        self.signals = RemoteSignals(self._transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.close()


class RemoteOperations:
    """Create, list, look at, control and retry operations."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self,
        operation: str,
        *,
        file: Source,
        metadata: Mapping[str, Any] | None = None,
        file_name: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Operation:
        """Create an operation for a file, which is sent piece by piece. When this returns, it is durable."""
        document = await self._upload(path("bulks"), operation, file, file_name, metadata=metadata, options=options)
        return parsing.operation(document)

    async def validate(
        self,
        operation: str,
        *,
        file: Source,
        metadata: Mapping[str, Any] | None = None,
        file_name: str | None = None,
        options: Mapping[str, Any] | None = None,
        limit_errors: int = 100,
    ) -> FileCheck:
        """A dry run: check metadata, file and every row, and store nothing. The server lists 100 errors at most."""
        document = await self._upload(
            path("bulks", "validate"), operation, file, file_name, metadata=metadata, options=options
        )
        document["errors"] = document["errors"][:limit_errors]
        return parsing.file_check(document)

    async def _upload(
        self,
        where: str,
        operation: str,
        file: Source,
        file_name: str | None,
        **objects: Mapping[str, Any] | None,
    ) -> Any:
        fields = {"operationName": operation}
        fields |= {name: json.dumps(value) for name, value in objects.items() if value is not None}
        name = file_name or name_of(file)
        with open_source(file) as stream:
            if not stream.seekable():
                raise InvalidInput("a file that is sent must be seekable: it may have to be sent again")
            return await self._transport.send("POST", where, data=fields, files={"file": (name, stream)})

    async def get(self, operation: str) -> Operation:
        """The operation with this id."""
        return parsing.operation(await self._transport.get(path("bulks", operation)))

    async def list(
        self,
        *,
        name: str | None = None,
        status: Iterable[str] | None = None,
        created_by: str | None = None,
        created_from: datetime | None = None,
        created_to: datetime | None = None,
        sort: str = "created_at",
        descending: bool = True,
        cursor: str | None = None,
        limit: int = 20,
    ) -> Page[Operation]:
        """Operations that match, newest first unless told otherwise."""
        document = await self._transport.get(
            path("bulks"),
            operationName=name,
            status=None if status is None else [status] if isinstance(status, str) else [*status],
            createdBy=created_by,
            fromDate=created_from and created_from.isoformat(),
            toDate=created_to and created_to.isoformat(),
            sortBy=sort,
            sortDescending=descending,
            cursor=cursor,
            limit=limit,
        )
        return parsing.page(document, parsing.operation)

    async def events(self, operation: str | None = None, *, since: int | None = 0, limit: int = 100) -> Sequence[Event]:
        """Moves of one operation, or of all, behind the one numbered `since`; the newest where that is None."""
        where = path("events") if operation is None else path("bulks", operation, "events")
        found = await self._transport.get(where, since=since, limit=min(limit, EVENTS_MAX))
        return [parsing.event(each) for each in found]

    async def events_page(
        self, operation: str | None = None, *, cursor: str | None = None, limit: int = 100
    ) -> Page[Event]:
        """The same as part of a list, oldest first."""
        if cursor is not None and not (cursor.isascii() and cursor.isdigit()):
            raise InvalidInput(f"{cursor!r} is not a cursor of this list")
        limit = min(limit, EVENTS_MAX - 1)
        found = await self.events(operation, since=int(cursor or 0), limit=limit + 1)
        return Page(found[:limit], str(found[limit - 1].sequence) if len(found) > limit else None)

    async def wait(self, operation: str, *, every_s: float = 1.0) -> Operation:
        """Watch until the operation is settled."""
        while not (now := await self.get(operation)).is_settled:  # noqa: ASYNC110  # it ends on a server
            await asyncio.sleep(every_s)
        return now

    # --- rows

    async def rows(
        self,
        operation: str,
        *,
        state: str | Sequence[str] | None = None,
        step: int | str | None = None,
        error_type: str | None = None,
        row_key: str | None = None,
        first: int | None = None,
        last: int | None = None,
        data: bool = False,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[RowView]:
        """Rows that fit every filter given, by number."""
        document = await self._transport.get(
            path("bulks", operation, "rows"),
            state=state,
            stepName=step,
            errorType=error_type,
            rowId=row_key,
            first=first,
            last=last,
            data=data,
            cursor=cursor,
            limit=limit,
        )
        return parsing.page(document, partial(parsing.row, operation=operation))

    async def row(self, operation: str, number: int) -> RowView:
        """One row with its data and every step it has reached."""
        return parsing.row(await self._transport.get(path("bulks", operation, "rows", number)), operation)

    async def errors(
        self,
        operation: str,
        *,
        row: int | None = None,
        row_key: str | None = None,
        error_type: str | None = None,
        step: int | str | None = None,
        first: int | None = None,
        last: int | None = None,
        data: bool = False,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[RowError]:
        """What is wrong now: rows that are Invalid, Failed or TimedOut, by number."""
        document = await self._transport.get(
            path("bulks", operation, "errors"),
            rowNumber=row,
            rowId=row_key,
            errorType=error_type,
            stepName=step,
            first=first,
            last=last,
            data=data,
            cursor=cursor,
            limit=limit,
        )
        return parsing.page(document, parsing.error)

    async def error_groups(self, operation: str, *, limit: int = 20) -> Sequence[ErrorGroup]:
        """The errors of an operation counted, those that differ only in numbers, ids and quoted values as one."""
        document = await self._transport.get(path("bulks", operation, "errors", "groups"), limit=limit)
        return parsing.page(document, parsing.error_group).items

    async def history(
        self,
        operation: str,
        *,
        row: int | None = None,
        step: int | str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[HistoryEntry]:
        """What happened to rows before their present state."""
        where = path("bulks", operation, "retry", "history")
        document = await self._transport.get(where, rowNumber=row, stepName=step, cursor=cursor, limit=limit)
        return parsing.page(document, parsing.history_entry)

    async def export(
        self,
        operation: str,
        *,
        mode: str = "report",
        format: str = "csv",
        state: str | Sequence[str] | None = None,
        error_type: str | None = None,
        step: int | str | None = None,
        neutral: bool = True,
    ) -> Export:
        """Rows as a file, which is read piece by piece."""
        found = await self.get(operation)
        query = {"mode": mode, "format": format, "state": state, "errorType": error_type, "stepName": step}

        async def pieces() -> AsyncIterator[bytes]:
            async with self._transport.stream(path("bulks", found.id, "export"), **query, raw=not neutral) as answer:
                async for piece in answer.aiter_bytes():
                    yield piece

        return Export(f"operation-{found.id}-{mode}.{format}", "application/octet-stream", pieces())

    # --- control

    async def cancel(self, operation: str, *, cause: str | None = None) -> Operation:
        """Stop an operation for good."""
        return await self._steer(operation, "cancel", cause)

    async def pause(self, operation: str, *, cause: str | None = None) -> Operation:
        """Begin nothing more until `resume`."""
        return await self._steer(operation, "pause", cause)

    async def resume(self, operation: str, *, cause: str | None = None) -> Operation:
        """Go on where a paused operation stopped."""
        return await self._steer(operation, "resume", cause)

    async def _steer(self, operation: str, verb: str, cause: str | None) -> Operation:
        found = await self._transport.send("POST", path("bulks", operation, verb), json={"cause": cause})
        return parsing.operation(found)

    async def can_retry(self, operation: str) -> Eligibility:
        """Whether all failed rows could be retried now, and every reason against it."""
        return parsing.eligibility(await self._transport.get(path("bulks", operation, "retry", "eligibility")))

    async def retry(self, operation: str, *, rows: Iterable[int] | None = None, confirm_doubt: bool = False) -> Retry:
        """Run failed rows again from the step that failed: all that can be, or those named."""
        if rows is None:
            return parsing.retry(await self._transport.send("POST", path("bulks", operation, "retry")))
        body = {"rowNumbers": [*rows], "confirmDoubt": confirm_doubt}
        return parsing.retry(await self._transport.send("POST", path("bulks", operation, "retry", "rows"), json=body))

    async def edit_row(
        self, operation: str, row: int, changes: Mapping[str, Any], *, generation: int | None = None
    ) -> Retry:
        """Correct fields of a failed or invalid row and run it again."""
        body = {"changes": dict(changes), "generation": generation}
        return parsing.retry(await self._transport.send("PATCH", path("bulks", operation, "rows", row), json=body))


class RemoteSignals:
    """Send signals, which end waits, and look at waits and signals."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def complete(
        self, operation: str, key: str, *, payload: Any = None, row: int | None = None, id: str | None = None
    ) -> Receipt:
        """The awaited thing has happened; `payload` becomes the step's output."""
        return await self._send(operation, key=key, outcome="completed", payload=payload, row=row, id=id)

    async def fail(
        self, operation: str, key: str, message: str, *, row: int | None = None, id: str | None = None
    ) -> Receipt:
        """The awaited thing has failed: so does the step, with this message."""
        return await self._send(operation, key=key, outcome="failed", errorMessage=message, row=row, id=id)

    async def _send(self, operation: str, **body: Any) -> Receipt:
        return parsing.receipt(await self._transport.send("POST", path("bulks", operation, "signals"), json=body))

    async def waiting_page(
        self, operation: str | None = None, *, key: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> Page[Wait]:
        """Rows that wait for a signal, in row order; of one operation or of all."""
        where = path("waits") if operation is None else path("bulks", operation, "waits")
        return parsing.page(await self._transport.get(where, key=key, cursor=cursor, limit=limit), parsing.wait)

    async def unclaimed_page(self, operation: str, *, cursor: str | None = None, limit: int = 100) -> Page[Unclaimed]:
        """Stored signals of an operation that no row has taken."""
        where = path("bulks", operation, "signals", "unclaimed")
        return parsing.page(await self._transport.get(where, cursor=cursor, limit=limit), parsing.unclaimed)
