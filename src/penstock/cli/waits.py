"""`penstock signal`, `ops waits`, `ops unclaimed`: send signals, list waiting rows and signals that no row took."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import Cursor, Db, Json, Limit, OperationId, OperationIdOrAll, Url, command
from penstock.cli.pages import answer_page
from penstock.cli.problems import WrongUsage
from penstock.cli.session import Place, about, ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.cli.tables import FittedTable
    from penstock.engine import Penstock
    from penstock.operations.signals import Receipt, Unclaimed, Wait

__all__ = ["add_to", "add_to_ops", "receipt_sentence", "signal", "unclaimed", "unclaimed_table", "waits", "waits_table"]


def add_to(app: typer.Typer) -> None:
    """Add the command that sends."""
    command(app, "signal", signal, example="""signal 0199a3c2-1b2f carrier-3571 --payload '{"by": "ana"}'""")


def add_to_ops(ops: typer.Typer) -> None:
    """Add the commands that look."""
    command(ops, "waits", waits, example="ops waits 0199a3c2-1b2f --key carrier-3571")
    command(ops, "unclaimed", unclaimed, example="ops unclaimed 0199a3c2-1b2f")


def signal(
    operation: OperationId,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key that the row waits for; `ops waits` lists them.")],
    *,
    fail: Annotated[
        str | None,
        typer.Option("--fail", metavar="MESSAGE", help="Report a failure: the waiting step fails with this message."),
    ] = None,
    payload: Annotated[
        str | None, typer.Option("--payload", metavar="JSON", help="A JSON value that becomes the step's output.")
    ] = None,
    row: Annotated[
        int | None, typer.Option("--row", min=1, metavar="N", help="Only this row, if several rows have the same key.")
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", help="An id for this signal; sending it again with the same id has no effect."
        ),
    ] = None,
    db: Db = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Send a signal to a row that waits for it, now or later.

    The signal is stored when this command returns. Exits with 0 when it was accepted, with 1 when no row can wait for
    this key or the operation has ended.
    """
    from rich.text import Text

    from penstock import resources
    from penstock.cli.screen import Screen

    if fail is not None and payload is not None:
        raise WrongUsage("--fail and --payload cannot be used together: a failed step has no output")
    value = _json_value(payload)

    async def send(penstock: Penstock, of: str) -> Receipt:
        if fail is not None:
            return await penstock.signals.fail(of, key, fail, row=row, id=id)
        return await penstock.signals.complete(of, key, payload=value, row=row, id=id)

    receipt = ask(Place(db, url=url), about(operation, send))
    Screen(as_json=as_json).answer(lambda: resources.receipt(receipt), lambda: [Text(receipt_sentence(receipt))])


def waits(
    operation: OperationIdOrAll = None,
    *,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only rows that wait for this key.")] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    db: Db = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List rows that wait for signals, with their keys and deadlines."""
    from penstock import resources

    _require_cursor(operation, cursor)
    answer_page(
        Place(db, url=url),
        lambda penstock, part: penstock.signals.waiting_page(
            part.operation or None, key=key, cursor=part.cursor, limit=part.limit
        ),
        resources.wait,
        waits_table,
        operation=operation,
        cursor=cursor,
        limit=limit,
        noun="wait",
        as_json=as_json,
    )


def unclaimed(
    operation: OperationId,
    *,
    limit: Limit = 20,
    cursor: Cursor = None,
    db: Db = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List stored signals that no row has taken or is about to take, oldest first."""
    from penstock import resources

    answer_page(
        Place(db, url=url),
        lambda penstock, part: penstock.signals.unclaimed_page(part.operation, cursor=part.cursor, limit=part.limit),
        resources.unclaimed,
        unclaimed_table,
        operation=operation,
        cursor=cursor,
        limit=limit,
        noun="unclaimed signal",
        as_json=as_json,
    )


def _json_value(written: str | None) -> Any:
    if written is None:
        return None
    try:
        return json.loads(written)
    except ValueError as error:
        raise WrongUsage(f'--payload takes a JSON value, such as \'{{"by": "ana"}}\' or \'"yes"\'; {error}') from None


def _require_cursor(operation: str | None, cursor: str | None) -> None:
    """A cursor is the row of a wait of one operation, or names a wait among those of all."""
    is_row = operation is not None and (cursor or "").isdecimal()
    if cursor is not None and not is_row and ":" not in cursor:
        raise WrongUsage("--cursor must be the cursor that this list printed, with the same other options")


def receipt_sentence(receipt: Receipt) -> str:
    """What became of a signal."""
    match receipt.outcome:
        case "delivered" if receipt.row is None:
            return "Delivered to a waiting row."
        case "delivered":
            return f"Delivered to row {receipt.row}, step {receipt.step}."
        case "stored":
            return "Stored: no row waits for this key yet. The first one that does will get the signal."
        case _:
            taken = f"delivered to row {receipt.row}, step {receipt.step}" if receipt.row else "not delivered yet"
            return f"Already received, nothing changed: {taken}."


def waits_table(found: Sequence[Wait]) -> FittedTable:
    """Rows that wait, one to a line."""
    from penstock.cli.tables import table
    from penstock.printable import cut, moment, short_id

    return table(
        "OPERATION", "ROW", "ROW KEY", "STEP", "SINCE", "UNTIL", "SIGNAL KEY",
        rows=[
            (
                short_id(w.operation_id), str(w.row), cut(w.row_key or "", 30), w.step, moment(w.since),
                moment(w.deadline), w.key,
            )
            for w in found
        ],
        numbers=("ROW",),
        may_go=("SINCE", "ROW KEY", "OPERATION", "STEP"),
    )  # fmt: skip


def unclaimed_table(found: Sequence[Unclaimed]) -> FittedTable:
    """Signals that no row has taken, one to a line."""
    from penstock.cli.tables import table
    from penstock.printable import cut, moment

    return table(
        "ACCEPTED", "OUTCOME", "SIGNAL KEY", "MESSAGE",
        rows=[(moment(s.accepted_at), s.outcome, s.key, cut(s.message or "", 300)) for s in found],
        may_go=("ACCEPTED",),
    )  # fmt: skip
