"""Importing a definition: one transaction; the same again changes nothing; a used version never changes.

Imports of one definition queue for its row, so each sees what the one before it left.
"""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Row, insert, select, update

from penstock.db.connection import Connection
from penstock.errors import Conflict, Fault
from penstock.graphs.model import GraphDocument
from penstock.graphs.names import name_key
from penstock.graphs.versions import environment_label
from penstock.lifecycles.model import Import
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.storing import store_graph
from penstock.lifecycles.tables import definitions, versions

__all__ = ["add_version", "import_document", "lock_definition"]


async def import_document(scope: Scope, document: GraphDocument, original: bytes, *, actor: str) -> Import:
    """Store a checked document as a published version; `original` is kept as it is."""

    async def work(tx: Connection) -> Import:
        definition, kept = await lock_definition(tx, scope, document)
        found = await version_row(tx, scope, definition, document.number)
        if found is not None:
            _require_same(found, document)
            return _result(document, definition, found.id, unchanged=True)
        version = await add_version(tx, scope, definition, document, original=original, actor=actor)
        await store_graph(tx, scope, version, document)
        made = _result(document, definition, version, unchanged=False)
        if kept is not None and document.description not in (None, kept):
            warning = Fault(
                "differs from the stored one, which is kept; `describe` changes it", "definition.description"
            )
            made = replace(made, warnings=(*made.warnings, warning))
        await scope.audit(tx, "import", document.name, actor=actor, version=document.number)
        return made

    result = await scope.db.transaction(work, "lifecycle_import")
    scope.tally["lifecycle_imports_total", "unchanged" if result.unchanged else "imported"] += 1
    return result


async def lock_definition(tx: Connection, scope: Scope, document: GraphDocument) -> tuple[int, str | None]:
    """The definition of this name and environment, made if it is missing and held until the commit; its description."""
    now = (await tx.execute(select(scope.db.now()))).scalar_one()
    row = {
        "tenant": scope.tenant,
        "name": document.name,
        "name_key": name_key(document.name),
        "environment": document.environment,
        "description": document.description,
        "created_at": now,
        "modified_at": now,
    }
    key = ("tenant", "name_key", "environment")
    await tx.execute(scope.db.dialect.upsert(definitions, key=key, update=()), [row])
    is_it = [definitions.c[name] == row[name] for name in key]
    await tx.execute(update(definitions).where(*is_it).values(environment=document.environment))
    found = (await tx.execute(select(definitions.c.id, definitions.c.description).where(*is_it))).one()
    return found.id, found.description


async def version_row(
    tx: Connection, scope: Scope, definition: int, number: int
) -> Row[int, str, str | None, str] | None:
    """A version of a definition by its number."""
    query = select(versions.c.id, versions.c.status, versions.c.label, versions.c.digest).where(
        versions.c.tenant == scope.tenant, versions.c.definition == definition, versions.c.number == number
    )
    return (await tx.execute(query)).one_or_none()


async def add_version(
    tx: Connection, scope: Scope, definition: int, document: GraphDocument, *, original: bytes | None, actor: str
) -> int:
    """A new version's id; without an original it is a draft."""
    now = (await tx.execute(select(scope.db.now()))).scalar_one()
    row = {
        "tenant": scope.tenant,
        "definition": definition,
        "number": document.number,
        "label": document.label,
        "status": "Draft" if original is None else "Published",
        "edits": 0,
        "digest": "" if original is None else document.digest(),
        "document": original or b"",
        "created_by": actor,
        "created_at": now,
        "published_at": None if original is None else now,
    }
    await tx.execute(insert(versions), [row])
    found = await version_row(tx, scope, definition, document.number)
    assert found is not None
    return int(found.id)


def _require_same(found: Row[int, str, str | None, str], document: GraphDocument) -> None:
    what = (
        f"version {document.label or document.number} of {document.name!r} in {environment_label(document.environment)}"
    )
    if found.status == "Draft":
        raise Conflict(f"{what} is a draft; publish or discard it first, or import under another version")
    if found.label != document.label:
        there = "no label" if found.label is None else f"the label {found.label!r}"
        raise Conflict(f"{what} has the number {document.number}, which is taken by a version with {there}")
    if found.digest != document.digest():
        raise Conflict(f"{what} is there with other content; a version never changes, so import it under a new one")


def _result(document: GraphDocument, definition: int, version: int, *, unchanged: bool) -> Import:
    return Import(
        definition,
        version,
        document.name,
        document.environment,
        document.number,
        document.label,
        0 if unchanged else len(document.states),
        0 if unchanged else len(document.events),
        0 if unchanged else len(document.transitions),
        unchanged,
        document.warnings,
    )
