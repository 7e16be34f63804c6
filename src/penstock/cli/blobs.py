"""`penstock blobs`: the uploaded files, what uses them, and what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import Cursor, Db, Json, Limit, command, group
from penstock.cli.session import Place, ask
from penstock.printable import counted, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from penstock.blobs.model import BlobDescriptor, BlobEvent, Hold, Reference, Swept
    from penstock.engine import Penstock
    from penstock.listing import Page

__all__ = ["add_to", "delete", "hold", "list_blobs", "release", "show", "sweep"]

BlobId = Annotated[str, typer.Argument(metavar="BLOB", help="The blob's id.")]
Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME", help="The tenant whose blobs are meant.")]


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    made = group(
        app, "blobs", summary="Look after uploaded files.", example="blobs list --status Rejected --status Pending"
    )
    command(made, "list", list_blobs, example="blobs list --status Rejected")
    command(made, "show", show, example="blobs show 0199a3c2-1b2f-7c31-8e03-978e4f1d2a77")
    command(made, "delete", delete, example='blobs delete 0199a3c2-1b2f-7c31-8e03-978e4f1d2a77 --reason "GDPR Art. 17"')
    command(made, "hold", hold, example='blobs hold 0199a3c2-1b2f-7c31-8e03-978e4f1d2a77 --reason "case 2031/7"')
    command(made, "release", release, example='blobs release 0199a3c2-1b2f-7c31-8e03-978e4f1d2a77 --reason "closed"')
    command(made, "sweep", sweep, example="blobs sweep")


def list_blobs(
    *,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status", metavar="STATUS", help="Pending, Uploading, Valid, Rejected or Deleted; can be repeated."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="TEXT", help="Only files with this name.")] = None,
    held: Annotated[bool, typer.Option("--held", help="Only those with a hold.")] = False,
    unused: Annotated[bool, typer.Option("--unused", help="Only those that nothing uses.")] = False,
    tenant: Tenant = "",
    limit: Limit = 20,
    cursor: Cursor = None,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """List uploaded files, newest first."""
    from rich.text import Text

    from penstock import blob_resources, resources
    from penstock.cli import views
    from penstock.cli.screen import Screen

    async def question(penstock: Penstock) -> Page[BlobDescriptor]:
        return await penstock.blobs.tenant(tenant).list(
            status=status or None,
            file_name=name,
            is_held=True if held else None,
            is_used=False if unused else None,
            cursor=cursor,
            limit=limit,
        )

    page = ask(Place(db), question)

    def people() -> Iterator[RenderableType]:
        yield _table(page.items) if page.items else Text("No blob fits.", style="dim")
        yield from views.more(page.next_cursor)

    Screen(as_json=as_json).answer(lambda: resources.listing(page.items, blob_resources.blob, page.next_cursor), people)


def show(blob: BlobId, tenant: Tenant = "", db: Db = None, as_json: Json = False) -> None:
    """Show a file with what uses it, what holds it and everything that happened to it."""
    from penstock import blob_resources
    from penstock.cli.screen import Screen

    async def question(penstock: Penstock) -> tuple[Any, ...]:
        blobs = penstock.blobs.tenant(tenant)
        found = await blobs.get(blob)
        return found, await blobs.references(blob), await blobs.holds(blob), await blobs.history(blob)

    found, references, holds, history = ask(Place(db), question)
    Screen(as_json=as_json).answer(
        lambda: blob_resources.detailed(found, references, holds, history),
        lambda: _detailed(found, references, holds, history),
    )


def delete(
    blob: BlobId,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with the blob's record.")],
    tenant: Tenant = "",
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Delete the bytes of a file for good; its record and log stay.

    Refused while something uses or holds it.
    """
    from rich.text import Text

    from penstock import blob_resources
    from penstock.cli.screen import Screen

    found = ask(Place(db), lambda penstock: penstock.blobs.tenant(tenant).delete(blob, reason))
    left = "" if not found.has_bytes else " Its bytes could not be removed now; the next sweep removes them."
    said = f"{printable(found.file_name)} is deleted: {printable(str(found.deletion_reason))}.{left}"
    Screen(as_json=as_json).answer(lambda: blob_resources.blob(found), lambda: [Text(said)])


HoldName = Annotated[str, typer.Option("--name", metavar="TEXT", help="Which hold; a file can have several.")]


def hold(
    blob: BlobId,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with the hold.")],
    *,
    name: HoldName = "legal",
    tenant: Tenant = "",
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Keep a file from being deleted until the hold is released. Twice is once."""
    left = ask(Place(db), lambda penstock: penstock.blobs.tenant(tenant).hold(blob, reason, name=name))
    _show_holds(left, as_json=as_json)


def release(
    blob: BlobId,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the file's log.")],
    *,
    name: HoldName = "legal",
    tenant: Tenant = "",
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Release a hold on a file; the others stay."""
    left = ask(Place(db), lambda penstock: penstock.blobs.tenant(tenant).release(blob, reason, name=name))
    _show_holds(left, as_json=as_json)


def _show_holds(left: Sequence[Hold], *, as_json: bool) -> None:
    from rich.text import Text

    from penstock import blob_resources, resources
    from penstock.cli.screen import Screen
    from penstock.cli.tables import table

    rows = [(each.name, f"{each.placed_at:%Y-%m-%d %H:%M:%S}", each.placed_by, each.reason) for each in left]
    Screen(as_json=as_json).answer(
        lambda: resources.listing(left, blob_resources.hold),
        lambda: [table("HOLD", "SINCE", "BY", "WHY", rows=rows) if rows else Text("No hold is left.")],
    )


def sweep(db: Db = None, as_json: Json = False) -> None:
    """Expire unfinished uploads, remove bytes that belong to no file, and find files without bytes.

    Workers do so by themselves. Exits with 1 when files that something uses have lost their bytes.
    """
    from penstock import blob_resources
    from penstock.cli.screen import Screen

    found = ask(Place(db), lambda penstock: penstock.blobs.sweep())
    Screen(as_json=as_json).answer(lambda: blob_resources.swept(found), lambda: _swept(found))
    raise typer.Exit(1 if found.missing or not found.is_complete else 0)


def _table(found: Sequence[BlobDescriptor]) -> RenderableType:
    from penstock.cli.tables import table

    rows = [
        (each.status, f"{each.created_at:%Y-%m-%d %H:%M:%S}", "" if each.size_bytes is None else f"{each.size_bytes:,}",
         each.id, each.file_name)
        for each in found
    ]  # fmt: skip
    return table("STATUS", "CREATED", "BYTES", "ID", "FILE", rows=rows, numbers=("BYTES",))


def _detailed(
    found: BlobDescriptor, references: Sequence[Reference], holds: Sequence[Hold], history: Sequence[BlobEvent]
) -> Iterator[RenderableType]:
    from penstock.cli import views
    from penstock.cli.tables import table

    yield views.facts(
        {
            "Blob": found.id,
            "File": found.file_name,
            "Type": found.content_type,
            "Status": found.status,
            "Bytes": None if found.size_bytes is None else f"{found.size_bytes:,}",
            "SHA-256": found.sha256,
            "Rejected because": found.rejection_reason,
            "Deleted because": found.deletion_reason,
            "Used by": ", ".join(each.owner for each in references),
            "Held": ", ".join(f"{each.name}: {each.reason}" for each in holds),
        }
    )
    rows = [(f"{line.at:%Y-%m-%d %H:%M:%S}", line.event, line.target, line.actor, line.cause or "") for line in history]
    yield table("AT", "EVENT", "STATUS", "BY", "WHY", rows=rows)


def _swept(found: Swept) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text(
        f"{counted(found.expired, 'upload')} expired; {counted(found.removed_objects, 'object')} with "
        f"{counted(found.removed_bytes, 'byte')} removed; "
        f"{counted(found.deleted_without_bytes, 'record')} without bytes deleted."
    )
    if found.missing:
        yield Text(f"In use, and without bytes: {', '.join(found.missing)}", style="red")
    if not found.is_complete:
        yield Text("Not all could be looked at or removed; the log says why.", style="yellow")
