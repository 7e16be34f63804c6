"""How operations, rows and errors look to people: values in, renderables out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.cli.tables import FittedTable, table
from penstock.operations.model import (
    ErrorGroup,
    Event,
    FileCheck,
    HistoryEntry,
    Operation,
    RowError,
    RowView,
    StepView,
    VerifyReport,
)
from penstock.printable import (
    ID_CHARS,
    compact,
    counted,
    cut,
    duration,
    moment,
    per_second,
    printable,
    short_moment,
)

__all__ = [
    "error_groups",
    "errors",
    "events",
    "facts",
    "file_check",
    "heading",
    "history",
    "more",
    "more_groups",
    "nothing",
    "operation",
    "operations",
    "row",
    "rows",
    "state",
    "try_next",
    "verdict",
    "verify_report",
]

MESSAGE_CHARS = 300

STYLES = {
    "Completed": "green",
    "CompletedWithErrors": "yellow",
    "Skipped": "dim",
    "WaitingForCompletion": "cyan",
    "Running": "cyan",
    "Validating": "cyan",
    "Failed": "red",
    "Invalid": "red",
    "TimedOut": "red",
    "Cancelled": "magenta",
}


def facts(pairs: Mapping[str, Any]) -> Table:
    """Names and values; a value of None or nothing is left out."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs.items():
        if value not in (None, "", (), {}):
            made.add_row(name, value if isinstance(value, Text) else Text(printable(str(value))))
    return made


def heading(text: str) -> Text:
    """A heading over a table."""
    return Text(f"\n{text}", style="bold")


def state(name: str) -> Text:
    """A state's name in its colour."""
    return Text(name, style=STYLES.get(name, ""))


def more(next_cursor: str | None) -> Iterator[Text]:
    """How to see the rest of a list."""
    if next_cursor is not None:
        yield Text(f"\nMore entries: add --cursor {shlex.quote(next_cursor)}", style="dim")


def operations(found: Sequence[Operation]) -> FittedTable:
    """Operations, one to a line."""
    chars = _id_chars([operation.id for operation in found])
    return table(
        "ID", "STATUS", "ROWS", "FAILED", "CREATED", "NAME", "FILE",
        rows=[
            (
                o.id[:chars], state(o.status), f"{o.total_rows or o.rows_read:,}", f"{o.failed_rows:,}",
                short_moment(o.created_at), o.name, cut(o.file_name, 60),
            )
            for o in found
        ],
        numbers=("ROWS", "FAILED"),
        may_go=("FILE", "CREATED"),
    )  # fmt: skip


def _id_chars(ids: Sequence[str]) -> int:
    """How much of the ids is needed to tell them apart."""
    return next((n for n in range(ID_CHARS, 36) if len({i[:n] for i in ids}) == len(set(ids))), 36)


def operation(found: Operation) -> Table:
    """Everything about one operation."""
    failed = ", ".join(
        f"{number:,} {what}"
        for number, what in (
            (found.invalid_rows, "invalid"),
            (found.failed_rows - found.invalid_rows - found.timed_out_rows, "in steps"),
            (found.timed_out_rows, "timed out"),
        )
        if number
    )
    return facts(
        {
            "Name": found.name,
            "Id": found.id,
            "Status": state(found.status),
            "Error": found.error,
            "Trouble": Text(printable(found.trouble), style="red") if found.trouble else None,
            "Version": found.version,
            "Hold": printable(found.hold) if found.hold else None,
            "Removed": ", ".join(found.pruned) or None,
            "Other code": Text("\n".join(printable(str(each)) for each in found.misfits)) if found.misfits else None,
            "Rows": f"{found.total_rows or found.rows_read:,}",
            "Successful": f"{found.successful_rows:,}",
            "Failed": f"{found.failed_rows:,}" + (f"  ({failed})" if failed else ""),
            "Waiting": f"{found.waiting_rows:,}" if found.waiting_rows else None,
            "Cancelled": f"{found.cancelled_rows:,}" if found.cancelled_rows else None,
            "Duration": _pace(found),
            "Steps": " → ".join(found.steps),
            "Metadata": compact(found.metadata) if found.metadata is not None else None,
            "File": f"{found.file_name}  ({found.file_bytes:,} bytes, SHA-256 {found.file_sha256[:12]}…)",
            "Created": f"{moment(found.created_at)} by {found.created_by}",
            "Retries": found.retry_count or None,
        }
    )


def _pace(found: Operation) -> str | None:
    if found.started_at is None or found.finished_at is None:
        return None
    seconds = (found.finished_at - found.started_at).total_seconds()
    rate = f"  ({per_second(found.processed_rows / seconds)})" if seconds and found.processed_rows else ""
    return duration(seconds) + rate


def rows(found: Sequence[RowView]) -> FittedTable:
    """Rows, one to a line, with what was wrong or the step they stand at."""
    return table(
        "ROW", "ROW KEY", "STATE", "STEP", "DONE", "DETAIL",
        rows=[
            (
                str(r.number), cut(r.row_key or "", 30), state(r.state), r.step_name,
                f"{r.completed_steps}/{r.total_steps}", _detail(r),
            )
            for r in found
        ],
        numbers=("ROW", "DONE"),
        may_go=("DONE",),
    )  # fmt: skip


def _detail(found: RowView) -> str:
    current = next((step for step in found.steps if step.index == found.step), None)
    return _with_data(current.message if current is not None else None, found.data)


def row(found: RowView) -> Group:
    """One row: its data and its way through the steps."""
    about = {
        "Row": str(found.number) + (f"  ({found.row_key})" if found.row_key else ""),
        "State": state(found.state),
        "Generation": found.generation or None,
    }
    data = found.data if isinstance(found.data, Mapping) else {"data": found.data}
    shown = {f"  {name}": cut(compact(value), MESSAGE_CHARS) for name, value in data.items() if value is not None}
    began = next((step.started_at for step in found.steps if step.started_at is not None), None)
    steps = table(
        "STEP", "STATE", "ATTEMPTS", "AT", "TOOK", "RESULT",
        rows=[
            (s.name, state(s.state), str(s.attempt), _since(began, s.started_at), _took(s), _result(s))
            for s in found.steps
        ],
        numbers=("ATTEMPTS", "AT", "TOOK"),
        may_go=("AT",),
    )  # fmt: skip
    return Group(facts(about | shown), Text(), steps)


def _since(began: datetime | None, at: datetime | None) -> str:
    return "" if began is None or at is None else f"+{(at - began).total_seconds():.3f} s"


def _took(step: StepView) -> str:
    if step.started_at is None or step.ended_at is None:
        return ""
    return duration((step.ended_at - step.started_at).total_seconds())


def _result(step: StepView) -> str:
    if step.message:
        return cut(f"{step.error_type}: {step.message}", MESSAGE_CHARS)
    if step.signal_key and step.state == "WaitingForCompletion":
        return f"waits for {step.signal_key} until {moment(step.deadline)}"
    return cut(compact(step.output), MESSAGE_CHARS) if step.output is not None else ""


def errors(found: Sequence[RowError]) -> FittedTable:
    """Errors, one to a line."""
    return table(
        "ROW", "ROW KEY", "STEP", "TYPE", "MESSAGE",
        rows=[
            (str(e.row), cut(e.row_key or "", 30), e.step_name, e.error_type, _with_data(e.message, e.data))
            for e in found
        ],
        numbers=("ROW",),
        may_go=("TYPE", "ROW KEY"),
    )  # fmt: skip


def _with_data(message: str | None, data: Any) -> str:
    lines = (message, None if data is None else compact(data))
    return "\n".join(cut(line, MESSAGE_CHARS) for line in lines if line)


def error_groups(found: Sequence[ErrorGroup]) -> FittedTable:
    """Errors of one kind to a line, the commonest first."""
    return table(
        "ROWS", "STEP", "TYPE", "FIRST ROW", "FOR EXAMPLE",
        rows=[
            (f"{g.rows:,}", g.step_name, g.error_type, str(g.first_row), cut(g.message, MESSAGE_CHARS))
            for g in found
        ],
        numbers=("ROWS", "FIRST ROW"),
        may_go=("TYPE",),
    )  # fmt: skip


def events(found: Sequence[Event]) -> FittedTable:
    """The moves of operations, one to a line."""
    return table(
        "AT", "EVENT", "FROM", "TO", "BY", "CAUSE",
        rows=[
            (moment(e.at), e.event, e.source or "", state(e.target), e.actor, cut(e.cause or "", MESSAGE_CHARS))
            for e in found
        ],
        may_go=("BY", "FROM"),
    )  # fmt: skip


def history(found: Sequence[HistoryEntry]) -> FittedTable:
    """What happened to rows before their current records, one event to a line."""
    return table(
        "AT", "ROW", "STEP", "ATTEMPT", "EVENT", "BY", "TYPE", "MESSAGE",
        rows=[
            (
                moment(h.asked_at or h.at), str(h.row), h.step_name, str(h.attempt), h.event, h.actor or "",
                h.error_type or "", cut(_records_of_row(h), MESSAGE_CHARS),
            )
            for h in found
        ],
        numbers=("ROW", "ATTEMPT"),
        may_go=("TYPE", "AT", "BY"),
    )  # fmt: skip


def _records_of_row(entry: HistoryEntry) -> str:
    """What was corrected, and what was wrong before."""
    changes = "; ".join(f"{change.field}: {compact(change.old)} → {compact(change.new)}" for change in entry.changes)
    return f"{changes} ({entry.message})" if changes and entry.message else changes or entry.message or ""


def more_groups(found: Operation, groups: Sequence[ErrorGroup], how: str) -> Iterator[Text]:
    """How many rows failed with errors that these groups do not show, and how to see them."""
    others = found.failed_rows - sum(group.rows for group in groups)
    if groups and others > 0:
        yield Text(f"{counted(others, 'more row')} failed with other errors. To see all kinds: {how}", style="dim")


def verdict(
    found: Operation, groups: Sequence[ErrorGroup], commands: Sequence[str], *, all_groups: str
) -> Iterator[RenderableType]:
    """The end of a run: what became of the rows, what went wrong, and what to try next."""
    yield Text()
    yield operation(found)
    if groups:
        yield heading("What went wrong")
        yield error_groups(groups)
        yield from more_groups(found, groups, all_groups)
    yield from try_next(commands)


def try_next(commands: Sequence[str]) -> Iterator[Text]:
    """Commands to paste."""
    yield heading("Try next")
    for command in commands:
        yield Text(f"  {command}", no_wrap=True, overflow="ignore")


def file_check(found: FileCheck) -> Iterator[RenderableType]:
    """What would become of a file."""
    verdict = "is valid" if found.is_valid else "is not valid"
    yield Text(
        f"The file {verdict}: {counted(found.total_rows, 'row')}, {found.invalid_rows:,} invalid. Nothing was stored.",
        style="green" if found.is_valid else "red",
    )
    for fault in found.metadata_faults:
        yield Text(printable(f"  metadata: {fault}"))
    if found.file_fault is not None:
        yield Text(printable(f"  file: {found.file_fault.message}"))
        for fault in found.file_fault.faults:
            yield Text(printable(f"    {fault}"))
    if found.stop_reason is not None:
        yield Text(printable(f"  the operation would stop: {found.stop_reason}"))
    if found.groups:
        yield heading("Errors by kind")
        yield error_groups(found.groups)
    if found.errors:
        yield heading("First errors")
        yield errors(found.errors)


def verify_report(found: VerifyReport) -> Iterator[Text]:
    """Whether the records agree with each other."""
    looked = f"{counted(found.operations, 'operation')}, {counted(found.chunks, 'chunk')}, {counted(found.rows, 'row')}"
    if found.is_clean:
        yield Text(f"Clean: {looked} checked, no differences.", style="green")
        return
    number = len(found.differences) + found.unlisted
    yield Text(f"{counted(number, 'difference')} in {looked}:", style="red")
    for difference in found.differences:
        yield Text(printable(f"  - {difference}"))
    if found.unlisted:
        yield Text(f"  … and {found.unlisted:,} more")


def nothing(noun: str) -> Text:
    """What an empty list says."""
    return Text(f"{counted(0, noun)} found", style="dim")
