"""`penstock.operations`: everything a caller can ask of operations."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import datetime
from typing import Any

from penstock.access.audit import Audit
from penstock.blobs.model import BlobDescriptor
from penstock.blobs.service import Blobs
from penstock.clock import Clock, Entropy, micros, operation_id
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.db.unit import UnitOfWork
from penstock.errors import Conflict, Forbidden, InvalidInput, NotFound
from penstock.journal.numbering import number_new
from penstock.listing import named, parse_number_cursor
from penstock.operations import control, draining, intake, migrating, retrying
from penstock.operations.checking import check_file, check_row
from penstock.operations.exporting import Export, SourceFile, exported
from penstock.operations.intake import Source
from penstock.operations.model import (
    Difference,
    ErrorGroup,
    Event,
    FileCheck,
    Flow,
    HistoryEntry,
    Operation,
    Page,
    Pruned,
    RowError,
    RowView,
    Throughput,
    VerifyReport,
    Workload,
)
from penstock.operations.operation_ids import number_of
from penstock.operations.proof.verify import verify
from penstock.operations.pruning import applying as pruning
from penstock.operations.pruning import erasing
from penstock.operations.pruning.applying import Policy
from penstock.operations.retrying import Eligibility, Retry
from penstock.operations.rows.lifespans import Lifespans
from penstock.operations.rows.runtime import load_metadata
from penstock.operations.telling import Notify, notify_types
from penstock.operations.views import error_views, flow_views, operation_views, row_views
from penstock.operations.views.chunk_view import RowLayout, verdict_codes
from penstock.operations.views.operation_views import OperationFilter
from penstock.operations.views.row_views import RowFilter
from penstock.operations.visibility import EVERYTHING, Visible
from penstock.operations.worker.background import LONG_DEAD_S
from penstock.operations.worker_records import remove_dead_workers
from penstock.outbox.subscribing import subscription_row
from penstock.pipeline import Definition, definition_of
from penstock.pipeline.secret_values import MASK
from penstock.services import OnHint
from penstock.settings import Settings

__all__ = ["Operations"]

EXPORT_ROWS = 500  # that are in memory at once
DRAIN_S = 1.0  # how long a cancel helps to drain before it answers


class Operations:
    """Create, list, control, retry and check operations."""

    def __init__(
        self,
        db: Database,
        blobs: Blobs,
        settings: Settings,
        definitions: Mapping[str, Definition],
        lifespans: Lifespans,
        *,
        clock: Clock,
        entropy: Entropy,
        actor: str,
        hint: OnHint,
    ) -> None:
        self._db, self._blobs, self._settings, self._definitions = db, blobs, settings, definitions
        self._clock, self._entropy, self._actor, self._hint = clock, entropy, actor, hint
        self._pipeline = lifespans.pipeline
        self._visible = EVERYTHING

    def seen_by(self, visible: Visible, *, actor: str) -> Operations:
        """The same for somebody who knows of these operations only; for them the others do not exist."""
        scoped = copy(self)
        scoped._visible, scoped._actor = visible, actor
        scoped._blobs = self._blobs if visible.tenant is None else self._blobs.tenant(visible.tenant)
        scoped._definitions = {key: found for key, found in self._definitions.items() if visible.includes(key)}
        return scoped

    async def create(
        self,
        operation: object,
        *,
        file: Source | None = None,
        blob: str | None = None,
        metadata: Any = None,
        file_name: str | None = None,
        options: Mapping[str, Any] | None = None,
        created_by: str | None = None,
        notify: Sequence[Notify] = (),
        tx: UnitOfWork | None = None,
    ) -> Operation:
        """Create an operation, given by name or declaration, for a file or a Valid blob. Durable when this returns.

        `file` is stored as a blob of its own, which goes when the operation is removed. `notify` names who is told of
        this operation: webhooks, chats, e-mail addresses. With the `tx` of `penstock.transaction()` the operation is
        there once that is committed, and never if it is undone.
        """
        definition = self.definition(operation)
        if self._visible.tenant is not None:
            await intake.require_room(self._db, self._visible.tenant, self._settings)
        made = await intake.create(
            self._db,
            self._blobs,
            definition,
            await self._pipeline(definition),
            source=await self._source(file, blob),
            file_name=file_name,
            metadata=metadata,
            overrides=self._overrides(definition, options),
            created_by=created_by or self._actor,
            tenant=self._visible.tenant,
            clock=self._clock,
            entropy=self._entropy,
            settings=self._settings,
            told=[self._told(each, created_by or self._actor) for each in notify],
            unit=tx,
        )
        if tx is None:
            self._hint(made.id)
        return made

    def _overrides(self, definition: Definition, options: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """The options of a run: those of the deployment, then its own."""
        return {**self._settings.operations.get(definition.name, {}), **(options or {})}

    def _told(self, notify: Notify, created_by: str) -> Mapping[str, Any]:
        return subscription_row(
            operation_id(self._clock, self._entropy),
            notify.url,
            types=notify_types(notify.on),
            secret=notify.secret,
            keys=self._settings.secret_keys,
            allowed=self._settings.webhook_networks_allowed,
            created_by=created_by,
            tenant=self._visible.tenant or "",
        )

    async def _source(self, file: Source | None, blob: str | None) -> Source | BlobDescriptor:
        if file is not None and blob is None:
            return file
        if blob is not None and file is None:
            return await self._blobs.get(blob)
        raise InvalidInput("an operation needs a file or a blob, and only one of them")

    def definition(self, operation: object) -> Definition:
        """The definition of an operation given by name or declaration; it must be one of those we were opened with."""
        name = operation if isinstance(operation, str) else definition_of(operation).name
        try:
            return self._definitions[name.casefold()]
        except KeyError:
            known = ", ".join(sorted(d.name for d in self._definitions.values())) or "none"
            raise NotFound(f"unknown operation {name!r}; known: {known}") from None

    async def get(self, operation: str) -> Operation:
        """The operation with this id."""
        return await self._db.look(lambda tx: operation_views.get(self._db, tx, operation, self._visible))

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
        offset: int = 0,
        limit: int = 20,
    ) -> Page[Operation]:
        """Operations that match, newest first unless told otherwise."""
        filters = OperationFilter(name, status, created_by, created_from, created_to, self._visible)
        async with self._db.read() as tx:
            return await operation_views.list_operations(
                self._db,
                tx,
                filters,
                sort=sort,
                descending=descending,
                cursor=cursor,
                offset=offset,
                limit=self._page(limit),
            )

    async def count_by_status(self) -> dict[str, int]:
        """How many operations have which status; one that none has is missing."""
        async with self._db.read() as tx:
            return await operation_views.count_by_status(tx, self._visible)

    async def count(
        self,
        *,
        name: str | None = None,
        status: Iterable[str] | None = None,
        created_by: str | None = None,
        created_from: datetime | None = None,
        created_to: datetime | None = None,
    ) -> int:
        """How many operations match."""
        filters = OperationFilter(name, status, created_by, created_from, created_to, self._visible)
        async with self._db.read() as tx:
            return await operation_views.count_operations(tx, filters)

    async def events(
        self, operation: str | None = None, *, since: int | None = 0, limit: int = 100
    ) -> builtins.list[Event]:
        """Moves of one operation, or of all, behind the one numbered `since`; the newest where that is None.

        Go on with the last number you saw: no move is missed, however late it was committed. Numbers rise, with gaps.
        """
        await number_new(self._db)
        async with self._db.read() as tx:
            return await operation_views.events(
                tx, operation=operation, since=since, limit=limit, visible=self._visible
            )

    async def events_page(
        self, operation: str | None = None, *, cursor: str | None = None, limit: int = 100
    ) -> Page[Event]:
        """The same as part of a list, oldest first."""
        limit = self._page(limit)
        found = await self.events(operation, since=parse_number_cursor(cursor or "0"), limit=limit + 1)
        return Page(found[:limit], str(found[limit - 1].sequence) if len(found) > limit else None)

    async def wait(self, operation: str, *, every_s: float = 0.25) -> Operation:
        """Watch until the operation is settled; somebody else does the work."""
        while not (now := await self.get(operation)).is_settled:  # noqa: ASYNC110  # it ends in another process
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
        """Rows that fit every filter given, by number.

        `state` is a row's state or verdict, or several; `step` the step at which it stands, by name or index. A key is
        looked up as it stands in the file or in the row's records.
        """
        limit = self._page(limit)

        async def read(tx: Connection) -> Page[RowView]:
            layout = await self._layout(tx, operation)
            named: Mapping[str, Any] = {"state": state, "step": step, "error_type": error_type}
            wanted = _row_filter(layout, **named, row_key=row_key, first=first, last=last, cursor=cursor)
            found = await row_views.rows(tx, layout, wanted, limit=limit, with_data=data)
            return replace(found, total=layout.rows_read) if wanted.is_plain and first is None else found

        return await self._db.look(read)

    async def row(self, operation: str, number: int) -> RowView:
        """One row with its data and every step it has reached."""

        async def read(tx: Connection) -> RowView:
            return await row_views.row(tx, await self._layout(tx, operation), number)

        return await self._db.look(read)

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
        limit = self._page(limit)

        async def read(tx: Connection) -> Page[RowError]:
            layout = await self._layout(tx, operation)
            from_row, to_row = first, last
            if row is not None:
                from_row, to_row = max(first or row, row), row if last is None else min(last, row)
            named: Mapping[str, Any] = {"step": step, "error_type": error_type}
            wanted = _row_filter(layout, **named, row_key=row_key, first=from_row, last=to_row, cursor=cursor)
            return await error_views.errors(tx, layout, wanted, limit=limit, with_data=data)

        return await self._db.look(read)

    async def error_groups(self, operation: str, *, limit: int = 20) -> builtins.list[ErrorGroup]:
        """The errors of an operation counted, those that differ only in numbers, ids and quoted values as one."""
        async with self._db.read() as tx:
            layout = await self._layout(tx, operation)
            return await error_views.error_groups(tx, layout, limit=self._page(limit))

    async def flow(self, operation: str) -> Flow:
        """Where the rows are on their way through the steps."""
        async with self._db.read() as tx:
            return await flow_views.flow(tx, await self._layout(tx, operation))

    async def throughput(self, operation: str, *, spans: int = 60) -> Throughput | None:
        """How many rows ended in each of at most `spans` equal parts of the time; None before the first one ended."""
        async with self._db.read() as tx:
            return await flow_views.throughput(tx, await self._layout(tx, operation), spans=spans)

    async def workload(self) -> Workload:
        """Who works on what, over all operations."""
        async with self._db.read() as tx:
            return await flow_views.workload(self._db, tx)

    async def history(
        self,
        operation: str,
        *,
        row: int | None = None,
        step: int | str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[HistoryEntry]:
        """What happened to rows before their present state, such as attempts that were retried: row by row."""
        limit = self._page(limit)
        async with self._db.read() as tx:
            layout = await self._layout(tx, operation)
            index = None if step is None else layout.step_index(step)
            return await error_views.history_of(tx, layout, row=row, step=index, cursor=cursor, limit=limit)

    # --- files

    async def source_file(self, operation: str) -> SourceFile:
        """The file as it was uploaded; close its stream."""
        async with self._db.read() as tx:
            name, stored = await operation_views.file_of(tx, operation, self._visible)
        stream = await asyncio.to_thread(self._blobs.storage.opened, stored)
        return SourceFile(name, stored.size_bytes, stored.sha256, stream)

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
        """Rows as a file: a `report` with their states and errors, or their `data` alone; csv, jsonl or json.

        In CSV, what a spreadsheet would take for a formula begins with an apostrophe, unless not `neutral`. Rows that
        change meanwhile are shown as they are when they are read.
        """
        async with self._db.read() as tx:
            layout = await self._layout(tx, operation)
        if mode == "data" and not layout.tracks_rows:
            raise Conflict(f"operation {layout.id} does not keep its rows' data (track_row_data)")
        if mode == "data" and "rows" in (await self.get(layout.id)).pruned:
            raise Conflict(f"the rows' data of operation {layout.id} was removed (see `keep`)")
        known = self._definitions.get(layout.name.casefold())
        columns = layout.columns or (known.row.names if known else None)

        async def page(cursor: str | None) -> Page[RowView]:
            return await self.rows(
                layout.id,
                state=state,
                error_type=error_type,
                step=step,
                data=True,
                cursor=cursor,
                limit=EXPORT_ROWS,
            )

        _row_filter(layout, state=state, step=step, error_type=error_type)  # what is wrong with it is said at once
        name = f"operation-{layout.id}-{mode}"
        given: dict[str, Any] = {} if known is None else {"key_among": known.row.key_among}
        return exported(name, page, columns, mode=mode, format=format, neutral=neutral, **given)

    # --- control

    async def cancel(self, operation: str, *, cause: str | None = None, actor: str | None = None) -> Operation:
        """Stop an operation for good: no row begins any more, unfinished rows end Cancelled. Twice is once."""
        number = await self._number(operation)
        head = await control.cancel(self._db, number, actor=actor or self._actor, cause=cause)
        if head.state == "Stopping":
            owner = f"cancel-{self._entropy.bits(64):016x}"
            await draining.drain(
                self._db,
                number,
                owner=owner,
                clock=self._clock,
                definitions=self._definitions,
                within_s=DRAIN_S,
            )
        return await self.get(operation)

    async def pause(self, operation: str, *, cause: str | None = None, actor: str | None = None) -> Operation:
        """Begin nothing more until `resume`; running steps end and are recorded, deadlines go on."""
        await control.pause(self._db, await self._number(operation), actor=actor or self._actor, cause=cause)
        return await self.get(operation)

    async def resume(self, operation: str, *, cause: str | None = None, actor: str | None = None) -> Operation:
        """Go on where a paused operation stopped."""
        await control.resume(self._db, await self._number(operation), actor=actor or self._actor, cause=cause)
        self._hint(operation)
        return await self.get(operation)

    async def migrate(
        self,
        operation: str,
        renamed: Mapping[str, str] | None = None,
        *,
        cause: str | None = None,
        actor: str | None = None,
    ) -> Operation:
        """Let an operation go on with the code of this process, whose steps are others than when it was created.

        A step is the one of the same name, or the one that `renamed` names for it; rows go on where they are.
        `Conflict` where one would lose a step or run one again, or while a worker is at it (pause it first).
        """
        number = await self._number(operation)
        definition = self.definition((await self.get(operation)).name)
        await migrating.migrate(self._db, number, definition, renamed or {}, actor=actor or self._actor, cause=cause)
        self._hint(operation)
        return await self.get(operation)

    # --- running failed rows again

    async def can_retry(self, operation: str) -> Eligibility:
        """Whether all failed rows could be retried now, and every reason against it."""
        return await retrying.can_retry(self._db, await self._number(operation))

    async def retry(
        self,
        operation: str,
        *,
        rows: Iterable[int] | None = None,
        confirm_doubt: bool = False,
        actor: str | None = None,
    ) -> Retry:
        """Run failed rows again from the step that failed: all that can be, or those named. Durable when this returns.

        Rows in doubt run again only when named with `confirm_doubt`. What is left out comes back with the reason.
        """
        number, token = await self._number(operation), operation_id(self._clock, self._entropy)
        actor = actor or self._actor
        if rows is None:
            retry = await retrying.retry_all(self._db, number, actor=actor, token=token)
        else:
            named = list(rows)
            if not named:
                raise InvalidInput("name at least one row, or give no rows to retry all that failed")
            retry = await retrying.retry_rows(
                self._db, number, named, actor=actor, token=token, confirm_doubt=confirm_doubt
            )
        self._hint(operation)
        return retry

    async def edit_row(
        self,
        operation: str,
        row: int,
        changes: Mapping[str, Any],
        *,
        generation: int | None = None,
        actor: str | None = None,
    ) -> Retry:
        """Correct fields of a failed or invalid row and run it again; it is validated first, and again by its worker.

        `RowInvalid` names every fault where this process knows the operation. The old value stays in the history.
        `Conflict` when the row is not in the generation that you name as seen, or was changed while this call checks.
        """
        number = await self._number(operation)
        async with self._db.read() as tx:
            layout = await self._layout(tx, operation)
            view = await row_views.row(tx, replace(layout, secret_names=()), row)  # what is stored, not what is shown
            stored = await operation_views.stored_metadata(tx, number)
        definition = self._definitions.get(layout.name.casefold())
        row_type = None if definition is None else definition.row
        # Who sends a row back as it was shown has not seen its secrets.
        given = {name: new for name, new in changes.items() if new != MASK or name not in layout.secret_names}
        raw = retrying.edited(view, given, layout.columns, row_type)
        if definition is not None:
            pipeline = await self._pipeline(definition)
            meta = load_metadata(definition, layout.id, *stored, self._settings.secret_keys)
            await check_row(definition, pipeline, raw, layout.columns, meta=meta, clock=self._clock)
        retry = await retrying.retry_rows(
            self._db,
            number,
            [row],
            actor=actor or self._actor,
            token=operation_id(self._clock, self._entropy),
            data={row: raw},
            generations={row: view.generation if generation is None else generation},
        )
        self._hint(operation)
        return retry

    # --- what is kept

    async def prune(self, before: datetime | None = None, *, dry_run: bool = False) -> Pruned:
        """Remove for good what policies (`keep`) say is old enough; or only say what would go.

        With `before`, remove instead every operation that ended before that instant: records, events, files. What is
        held stays. Transactions are short, so that work goes on meanwhile; what a crash leaves half done, the next one
        finishes.
        """
        if self._visible is not EVERYTHING:
            raise Forbidden("this removes operations of all tenants; run `penstock ops prune`")
        if before is not None and before.tzinfo is None:
            raise InvalidInput("prune takes an instant with its time zone, such as datetime.now(UTC)")
        policy = Policy(self._settings.keep, all_before=None if before is None else micros(before))
        if dry_run:
            return await pruning.would_prune(self._db, policy, self._clock.now_us())
        self._blobs.storage.require()
        await remove_dead_workers(self._db, long_dead_s=LONG_DEAD_S)
        actor = None if before is None else self._actor  # who asks for more than what policies say
        return await pruning.prune(self._db, self._blobs.storage, policy, self._clock.now_us(), actor=actor)

    async def delete(self, operation: str) -> Pruned:
        """Remove one operation that has ended, for good; `Conflict` while it is held or under way."""
        number = await self._number(operation)
        self._blobs.storage.require()
        return await pruning.delete_operation(self._db, self._blobs.storage, number, actor=self._actor)

    async def erase(self, operation: str, *, rows: Iterable[int] | None = None, actor: str | None = None) -> Pruned:
        """Erase what is personal about an operation that has ended, or some of its rows; counters and states stay.

        Of rows that go data, outputs, history and error texts, and the file, because they stand in it; of a whole
        operation its metadata and all texts as well. `Conflict` while it is held or under way.
        """
        number, actor = await self._number(operation), actor or self._actor
        self._blobs.storage.require()
        if rows is None:
            return await erasing.erase(self._db, self._blobs.storage, number, actor=actor)
        named = list(rows)
        if not named:
            raise InvalidInput("name at least one row, or give no rows to erase the whole operation")
        async with self._db.read() as tx:
            known = self._definitions.get((await self._layout(tx, operation)).name.casefold())
        row_type = None if known is None else known.row
        return await erasing.erase_rows(self._db, self._blobs.storage, number, named, row_type=row_type, actor=actor)

    async def hold(self, operation: str, reason: str, *, actor: str | None = None) -> Operation:
        """Let nothing of an operation be removed, whatever any policy says, until `release`. The last reason counts."""
        if not reason.strip():
            raise InvalidInput("a hold needs a reason, for whoever meets it later")
        await control.hold(self._db, await self._number(operation), reason, actor=actor or self._actor)
        return await self.get(operation)

    async def release(self, operation: str, *, cause: str | None = None, actor: str | None = None) -> Operation:
        """End the hold of an operation; policies apply again."""
        await control.release(self._db, await self._number(operation), actor=actor or self._actor, cause=cause)
        return await self.get(operation)

    async def _layout(self, tx: Connection, operation: str) -> RowLayout:
        return await operation_views.layout(tx, operation, self._definitions, self._visible)

    async def _number(self, operation: str) -> int:
        async with self._db.read() as tx:
            return await number_of(tx, operation, self._visible)

    # --- checking

    async def validate(
        self,
        operation: object,
        *,
        file: Source | None,
        metadata: Any = None,
        file_name: str | None = None,
        options: Mapping[str, Any] | None = None,
        limit_errors: int = 100,
        data: bool = False,
    ) -> FileCheck:
        """A dry run: check metadata, file and every row, and store nothing. Bad content is reported, not raised.

        With `data` the first errors come with their rows. Without a file, the metadata alone is checked.
        """
        definition = self.definition(operation)
        return await check_file(
            definition,
            await self._pipeline(definition),
            self._settings,
            source=file,
            file_name=file_name,
            metadata=metadata,
            overrides=self._overrides(definition, options),
            clock=self._clock,
            errors_max=limit_errors,
            with_data=data,
        )

    async def verify(self, operation: str | None = None, *, deep: bool = False) -> VerifyReport:
        """Re-derive everything stored about one operation, or all, from the records and report every difference.

        Work may go on meanwhile. `deep` also reads the stored files.
        """
        found = await verify(self._db, self._blobs.storage, operation, deep=deep, visible=self._visible)
        if operation is not None:
            return found
        audit = Audit(self._db, tenant=self._visible.tenant, page_max=self._settings.page_max)
        wrong = [Difference("audit_chain", fault, None, None, None) async for fault in audit.faults()]
        return replace(found, differences=(*found.differences, *wrong))

    def _page(self, limit: int) -> int:
        if limit < 1:
            raise InvalidInput(f"limit is {limit}; a page has at least 1 entry")
        return min(limit, self._settings.page_max)


def _row_filter(
    layout: RowLayout,
    *,
    state: str | Sequence[str] | None = None,
    step: int | str | None = None,
    error_type: str | None = None,
    row_key: str | None = None,
    first: int | None = None,
    last: int | None = None,
    cursor: str | None = None,
) -> RowFilter:
    """A filter from what callers give; `InvalidInput` for a state, step or type of error that does not exist."""
    return RowFilter(
        states=None if state is None else verdict_codes(state),
        step=None if step is None else layout.step_index(step),
        error_type=None if error_type is None else named(error_type, error_views.ERROR_TYPES, "error type")[0],
        row_key=row_key,
        first=max(first or 1, parse_number_cursor(cursor or "0") + 1),
        last=last,
    )
