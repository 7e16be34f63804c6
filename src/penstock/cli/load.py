"""`penstock load`: the records of a file into a table, with an outcome for each, and no Python to write."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.inputs import InputFile, existing_file, output_file
from penstock.cli.options import Json, command
from penstock.cli.problems import INTERRUPTED, WrongUsage
from penstock.cli.session import Place
from penstock.cli.stopping import stop_on_signals
from penstock.errors import FileRejected, PenstockError
from penstock.printable import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.cli.load_file import LoadFile
    from penstock.targets import BulkResult, Mode
    from penstock.targets.sql.target import SqlTarget

__all__ = ["add_to", "load"]

MODES = ("create", "update", "upsert", "delete")
ERRORS_SHOWN = 5
OK, FAILED, WITH_ERRORS = 0, 1, 3


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    example = "load customers.csv --into postgresql://user@host/shop --table customers --key id"
    command(app, "load", load, example=example, exits=(0, 1, 2, 3, 130))


def load(
    file: InputFile,
    *,
    into: Annotated[
        str, typer.Option("--into", metavar="URL", help="The database: postgresql://…, mariadb://… or sqlite:///….")
    ],
    table: Annotated[str, typer.Option("--table", metavar="TABLE", help="The table, as TABLE or SCHEMA.TABLE.")],
    mode: Annotated[
        str, typer.Option("--mode", metavar="MODE", help="What to do: create, update, upsert or delete.")
    ] = "upsert",
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="COLUMN", help="A column of the key; can be repeated. Default: the primary key."),
    ] = None,
    errors: Annotated[
        str | None,
        typer.Option("--errors", metavar="FILE", help="Write the records that failed to this CSV file, with reasons."),
    ] = None,
    retry: Annotated[
        str | None,
        typer.Option("--retry", metavar="FILE", help="Send only what an earlier load left: its retry file."),
    ] = None,
    unknown: Annotated[
        bool,
        typer.Option("--unknown", help="With --retry: send also records that the earlier load may have created."),
    ] = False,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", metavar="N", min=1, help="Records in one transaction. Default: 10000.")
    ] = None,
    max_errors: Annotated[
        int | None, typer.Option("--max-errors", metavar="N", min=0, help="Stop when more records have failed.")
    ] = None,
    only_changed: Annotated[
        bool, typer.Option("--only-changed", help="Leave rows alone that already hold what the file says.")
    ] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Do not show progress on stderr.")] = False,
    as_json: Json = False,
) -> None:
    """Load the records of a file into a table of a database, and print what became of them.

    Texts are read as the column's type; empty cells of a CSV file are null. What was not loaded stands in a retry file
    beside the file, FILE.retry.json, and is sent again with --retry. Records that may have been created stay in it, and
    are sent only with --unknown. No Penstock database is needed.
    """
    from penstock.cli.screen import Screen

    request = _request(file, into, table, mode, retry, sends_unknown=unknown)
    failed = _errors_file(request, errors)
    options = {
        "key": key or None,
        "batch_size": batch_size,
        "max_errors": max_errors,
        "update_only_changed": only_changed,
    }
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    loaded = asyncio.run(_work(request, given, shows=not no_progress))
    left = _leave_behind(request, loaded, failed)
    Screen(as_json=as_json).answer(
        lambda: _document(request, loaded, left), lambda: _people(request, given, loaded, left)
    )
    raise typer.Exit(_exit_code(loaded))


@dataclass(frozen=True)
class _Request:
    """What is to be loaded, and where."""

    file: Path
    target: SqlTarget
    into: str
    table: str
    mode: Mode
    retry: Path | None
    sends_unknown: bool

    @property
    def retry_file(self) -> Path:
        return self.file.with_name(f"{self.file.name}.retry.json")


@dataclass(frozen=True)
class _Loaded:
    """What became of the records, and of the rows that are none."""

    result: BulkResult
    source: LoadFile
    was_interrupted: bool

    @property
    def unreadable(self) -> int:
        return len(self.source.unreadable)


def _request(file: str, into: str, table: str, mode: str, retry: str | None, *, sends_unknown: bool) -> _Request:
    """Everything that can be refused before a database is asked."""
    from penstock.targets import Mode, open_target
    from penstock.targets.sql.target import SqlTarget

    if sends_unknown and retry is None:
        raise WrongUsage("--unknown says what to do with the records of a retry file: add --retry FILE")
    if mode not in MODES:
        raise WrongUsage(f"--mode is one of {', '.join(MODES)}; found {mode!r}")
    try:
        target = open_target(into)
    except PenstockError as error:
        raise WrongUsage(f"--into: {error}") from error
    assert isinstance(target, SqlTarget)
    left = existing_file(retry) if retry else None
    request = _Request(existing_file(file), target, into, table, Mode(mode), left, sends_unknown)
    output_file(str(request.retry_file), request.retry_file)
    return request


def _errors_file(request: _Request, written: str | None) -> Path | None:
    """Where records that failed are written, which is neither the file they are in nor its retry file."""
    if written is None:
        return None
    path = output_file("--errors", written)
    for other, what in ((request.file, "the file that is loaded"), (request.retry_file, "the retry file")):
        if path.resolve() == other.resolve():
            raise WrongUsage(f"--errors: {written} is {what}; name another")
    return path


async def _work(request: _Request, options: dict[str, Any], *, shows: bool) -> _Loaded:
    from penstock.cli.load_file import LoadFile
    from penstock.targets.progress_display import ProgressDisplay

    async with request.target as target:
        found = await target.table(request.table)
        key = tuple(options.get("key") or found.primary_key)
        with (
            request.file.open("rb") as stream,
            ProgressDisplay(request.table, is_quiet=not shows) as display,
            stop_on_signals("finishing running batches") as stop,
        ):
            columns, sends_unknown = tuple(found.columns), request.sends_unknown
            source = LoadFile(stream, request.file.name, columns, retry=request.retry, sends_unknown=sends_unknown)
            records = source.ids(key) if request.mode == "delete" else source.records()
            call = target.start(request.mode, request.table, records, None, display, **options)
            stopping = asyncio.ensure_future(stop.wait())
            stopping.add_done_callback(lambda done: None if done.cancelled() else call.stop())
            try:
                result = await call
            finally:
                stopping.cancel()
            if result.input_error is not None and not result.success_count:
                raise result.input_error
            source.read_on()
            if not result.outcomes and not source.unreadable and not source.left_out:
                raise FileRejected(f"{request.file} has no rows", code="no_rows")
            return _Loaded(result, source, stop.is_set())


def _exit_code(loaded: _Loaded) -> int:
    result = loaded.result
    if loaded.was_interrupted:
        return INTERRUPTED
    if result.stopped_reason is not None:
        return FAILED
    is_all = result.is_success and not loaded.unreadable and not loaded.source.left_out
    return OK if is_all else WITH_ERRORS


def _leave_behind(request: _Request, loaded: _Loaded, errors: Path | None) -> Path | None:
    """Write what is left to do, and then what went wrong; the retry file, if there is one."""
    if loaded.result.input_error is not None:
        return None  # nobody knows what the rest of the file holds
    manifest = loaded.source.manifest(request.table, loaded.result)
    if manifest.tables:
        manifest.save(request.retry_file)
    else:
        request.retry_file.unlink(missing_ok=True)
    if errors is not None:
        with request.file.open("rb") as stream:
            loaded.source.write_failed(stream, errors, loaded.result)
    return request.retry_file if manifest.tables else None


def _counts(loaded: _Loaded) -> dict[str, int]:
    outcomes = loaded.result.outcomes
    names = ("created", "updated", "upserted", "unchanged", "deleted", "failed", "unknown", "not run", "skipped")
    counts = {name: outcomes.count(name) for name in names}
    counts["not run"] += loaded.source.unread
    counts["unknown"] += len(loaded.source.left_out)
    return {name: count for name, count in counts.items() if count}


def _document(request: _Request, loaded: _Loaded, left: Path | None) -> dict[str, Any]:
    result = loaded.result
    return {
        "table": request.table,
        "mode": request.mode,
        "records": len(result.outcomes) + loaded.source.unread + len(loaded.source.left_out),
        "outcomes": _counts(loaded),
        "unreadableRows": loaded.unreadable,
        "stoppedReason": result.stopped_reason,
        "durationS": round(result.duration_s, 3),
        "retryFile": str(left) if left else None,
        "errors": [{"row": row, "message": message} for row, message in loaded.source.told(result, ERRORS_SHOWN)],
    }


def _people(request: _Request, options: dict[str, Any], loaded: _Loaded, left: Path | None) -> Iterator[RenderableType]:
    from rich.text import Text

    from penstock.cli import views

    result = loaded.result
    counts = [f"{count:,} {name}" for name, count in _counts(loaded).items()]
    if loaded.unreadable:
        counts.append(f"{counted(loaded.unreadable, 'row')} could not be read")
    yield Text(f"{request.table}: {', '.join(counts) or 'nothing was done'}")
    if result.stopped_reason is not None:
        yield Text(f"It was stopped: {_why(result)}")
    for row, message in loaded.source.told(result, ERRORS_SHOWN):
        yield Text(f"  row {row}: {message}")
    if left is not None:
        again = Place().command(*_words(request, options), "--retry", str(left))
        maybe_created = _counts(loaded).get("unknown", 0) if request.mode == "create" else 0
        if maybe_created:
            yield Text(f"{counted(maybe_created, 'record')} may have been created: look, and send them with --unknown.")
        yield from views.try_next([again, f"{again} --unknown"] if maybe_created else [again])


def _words(request: _Request, options: dict[str, Any]) -> list[str]:
    """The same load as a command; a password in its address is hidden."""
    from penstock.settings import masked

    words = ["load", str(request.file), "--into", masked(request.into), "--table", request.table]
    words += ["--mode", request.mode, *(word for column in options.get("key", ()) for word in ("--key", column))]
    return [*words, "--only-changed"] if options.get("update_only_changed") else words


def _why(result: BulkResult) -> str:
    return f"{result.stopped_reason}: {result.stopped_error}" if result.stopped_error else str(result.stopped_reason)
