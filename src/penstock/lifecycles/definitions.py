"""What a caller can ask about definitions: import, look, compare, draft, describe, delete."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from sqlalchemy import delete, func, select, update

from penstock.db.connection import Connection
from penstock.errors import Conflict, InvalidInput, NotFound
from penstock.graphs.document import parse_document
from penstock.graphs.versions import DEFAULT_ENVIRONMENT
from penstock.graphs.writing import document_of
from penstock.journal.queries import record
from penstock.lifecycles import queries, storing
from penstock.lifecycles.drafting import Draft, open_draft
from penstock.lifecycles.importing import import_document
from penstock.lifecycles.model import Category, Definition, Import, Version
from penstock.lifecycles.rules.comparing import Change, compare
from penstock.lifecycles.rules.drawing import to_svg
from penstock.lifecycles.rules.graph import Graph
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.tables import consumers, definitions, events, instances, states, transitions, versions
from penstock.machine import Machine

__all__ = ["Definitions"]

MACHINE = "lifecycle definition"
DOCUMENT_BYTES_MAX = 64 * 1024 * 1024

VersionName = str | int | None
"""A version by label or number; None is the latest published one."""


class Definitions:
    """The definitions of one tenant."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    # --- import

    async def import_file(self, path: str | Path, *, strict: bool = False, actor: str | None = None) -> Import:
        """Import a definition from a JSON file; see `import_text`."""
        try:
            original = await asyncio.to_thread(Path(path).read_bytes)
        except OSError as error:
            raise InvalidInput(f"{path} cannot be read: {error.strerror or error}") from error
        return await self.import_text(original, strict=strict, actor=actor)

    async def import_text(self, text: str | bytes, *, strict: bool = False, actor: str | None = None) -> Import:
        """Import a definition from a JSON document as a published version.

        The same content again changes nothing; other content under a used version is a `Conflict`. A document with
        faults is refused with all of them; `strict` counts warnings as faults.
        """
        original = text.encode() if isinstance(text, str) else text
        if len(original) > DOCUMENT_BYTES_MAX:
            raise InvalidInput(f"the document has {len(original):,} bytes; {DOCUMENT_BYTES_MAX:,} fit")
        document = parse_document(original, strict=strict)
        return await import_document(self._scope, document, original, actor=actor or self._scope.actor)

    async def import_machine(
        self,
        machine: Machine,
        *,
        environment: str | int = DEFAULT_ENVIRONMENT,
        version: str | int | None = None,
        actor: str | None = None,
    ) -> Import:
        """Import a machine that is written in Python."""
        document = machine.to_json()
        document["environment"] = environment
        if version is not None:
            document["definition"]["version" if isinstance(version, str) else "version_code"] = version
        return await self.import_text(json.dumps(document, indent=2, ensure_ascii=False), actor=actor)

    # --- definitions and versions

    async def definitions(self) -> list[Definition]:
        """Every definition, by name and environment."""
        async with self._scope.db.read() as tx:
            return await queries.all_definitions(tx, self._scope)

    async def definition(self, name: str | int, *, environment: str | int | None = None) -> Definition | None:
        """The definition with this name or id, or None; `InvalidInput` when several environments have one."""
        async with self._scope.db.read() as tx:
            if not await queries.definitions_named(tx, self._scope, name, environment):
                return None
            return await queries.definition_named(tx, self._scope, name, environment)

    async def exists(self, name: str, environment: str | int | None = None) -> bool:
        """Whether there is a definition of this name."""
        async with self._scope.db.read() as tx:
            return bool(await queries.definitions_named(tx, self._scope, name, environment))

    async def versions(self, name: str | int, *, environment: str | int | None = None) -> list[Version]:
        """The versions of a definition, newest first; drafts among them."""
        async with self._scope.db.read() as tx:
            definition = await queries.definition_named(tx, self._scope, name, environment)
            return await queries.versions_of(tx, definition)

    async def graph(
        self, name: str | int, *, version: VersionName = None, environment: str | int | None = None
    ) -> Graph:
        """The states, events and transitions of a version; the latest published one unless named."""
        async with self._scope.db.read() as tx:
            return await self._graph(tx, name, version, environment)

    async def export(
        self, name: str | int, *, version: VersionName = None, environment: str | int | None = None
    ) -> bytes:
        """The document a version was imported from, byte for byte; of a draft, the one it would be published as."""
        async with self._scope.db.read() as tx:
            graph = await self._graph(tx, name, version, environment)
            if not graph.version.is_draft:
                return await queries.stored_document(tx, graph.version)
        return json.dumps(document_of(graph.document()), indent=2, ensure_ascii=False).encode()

    async def diff(
        self,
        name: str | int,
        before: VersionName,
        after: VersionName = None,
        *,
        environment: str | int | None = None,
    ) -> list[Change]:
        """How a version differs from an earlier one."""
        async with self._scope.db.read() as tx:
            old = await self._graph(tx, name, before, environment)
            new = await self._graph(tx, name, after, environment)
        return compare(old.document(), new.document())

    async def diagram(
        self,
        name: str | int,
        *,
        version: VersionName = None,
        environment: str | int | None = None,
        form: str = "mermaid",
    ) -> str:
        """A version drawn: as a Mermaid state diagram or as SVG."""
        if form not in ("mermaid", "svg"):
            raise InvalidInput(f"a diagram is mermaid or svg; found {form!r}")
        graph = await self.graph(name, version=version, environment=environment)
        return to_svg(graph.document()) if form == "svg" else graph.machine().to_mermaid()

    async def describe(
        self, name: str | int, description: str | None, *, environment: str | int | None = None
    ) -> Definition:
        """Give a definition another description: all of it that may change."""
        scope = self._scope

        async def work(tx: Connection) -> Definition:
            found = await queries.definition_named(tx, scope, name, environment)
            changed = update(definitions).where(definitions.c.tenant == scope.tenant, definitions.c.id == found.id)
            await tx.execute(changed.values(description=description, modified_at=scope.db.now()))
            described = await queries.definition_named(tx, scope, found.id)
            await scope.audit(tx, "describe", found.name, environment=found.environment)
            return described

        changed = await scope.db.transaction(work, "lifecycle_describe")
        scope.graphs.clear()  # each holds its definition
        return changed

    async def delete_definition(
        self, name: str | int, *, environment: str | int | None = None, actor: str | None = None
    ) -> None:
        """Delete a definition with all its versions; refused while it has instances, or consumers of its own."""
        scope = self._scope

        async def work(tx: Connection) -> None:
            found = await queries.definition_named(tx, scope, name, environment)
            # Whoever starts an instance holds the version's row until it commits.
            held = update(versions).where(versions.c.tenant == scope.tenant, versions.c.definition == found.id)
            await tx.execute(held.values(edits=versions.c.edits + 1))
            mine = select(versions.c.id).where(versions.c.definition == found.id).scalar_subquery()
            used = select(func.count()).where(instances.c.tenant == scope.tenant, instances.c.version.in_(mine))
            if count := (await tx.execute(used)).scalar_one():
                raise Conflict(f"definition {found.name!r} has {count:,} instance(s); delete or migrate them first")
            bound = select(consumers.c.name).where(
                consumers.c.tenant == scope.tenant, consumers.c.definition == found.id
            )
            if told := (await tx.execute(bound.order_by(consumers.c.name))).scalars().all():
                raise Conflict(
                    f"definition {found.name!r} has the consumer(s) {', '.join(told)}; unregister them first"
                )
            for table in (transitions, events, states):
                await tx.execute(delete(table).where(table.c.tenant == scope.tenant, table.c.version.in_(mine)))
            await tx.execute(delete(versions).where(versions.c.definition == found.id))
            await tx.execute(delete(definitions).where(definitions.c.id == found.id))
            await record(
                scope.db, tx, machine=MACHINE, subject=str(found.id), source=None, event="deleted", target="Deleted",
                actor=actor or scope.actor,
                details={"name": found.name, "environment": found.environment, "tenant": scope.tenant},
            )  # fmt: skip
            await scope.audit(tx, "delete", found.name, actor=actor, environment=found.environment)

        await scope.db.transaction(work, "lifecycle_delete")
        scope.graphs.clear()

    # --- drafts

    async def draft(
        self,
        name: str,
        *,
        environment: str | int | None = None,
        version: str | int | None = None,
        base: VersionName = None,
        description: str | None = None,
        actor: str | None = None,
    ) -> Draft:
        """A new version that can be edited until it is published.

        It begins as a copy of `base`, or of the latest version; with nothing for a definition that is new.
        """
        scope = self._scope
        async with scope.db.read() as tx:
            there = await queries.definitions_named(tx, scope, name, environment)
            start = None
            if there:
                definition = await queries.definition_named(tx, scope, name, environment)
                environment = definition.environment
                known = await queries.versions_of(tx, definition)
                if base is not None or any(not each.is_draft for each in known):
                    start = await queries.version_named(tx, definition, base)
        return await open_draft(
            scope,
            name,
            environment=queries.environment_of(DEFAULT_ENVIRONMENT if environment is None else environment),
            version=version,
            base=start,
            description=description,
            actor=actor or scope.actor,
        )

    async def open_draft(
        self, name: str, version: str | int | None = None, *, environment: str | int | None = None
    ) -> Draft:
        """A draft that is there already: the newest unless named."""
        async with self._scope.db.read() as tx:
            definition = await queries.definition_named(tx, self._scope, name, environment)
            drafts = [each for each in await queries.versions_of(tx, definition) if each.is_draft]
            if version is not None:
                found = await queries.version_named(tx, definition, version)
                drafts = [each for each in drafts if each.id == found.id]
        if not drafts:
            raise NotFound(f"definition {name!r} has no such draft")
        return Draft(self._scope, drafts[0].id, self._scope.actor)

    # --- categories

    async def categories(self) -> list[Category]:
        """Every category, by name."""
        async with self._scope.db.read() as tx:
            return await queries.all_categories(tx, self._scope)

    async def category(self, name: str) -> Category | None:
        """The category of this name, ignoring case, or None."""
        async with self._scope.db.read() as tx:
            return await queries.find_category(tx, self._scope, name)

    async def add_category(self, name: str) -> Category:
        """The category of this name, made if it is missing."""
        if not name.strip() or not name.isprintable():
            raise InvalidInput(f"{name!r} is no name")

        async def work(tx: Connection) -> Category:
            await storing.category_ids(tx, self._scope, [name.strip()])
            found = await queries.find_category(tx, self._scope, name)
            assert found is not None
            return found

        return await self._scope.db.transaction(work, "lifecycle_category")

    async def _graph(
        self, tx: Connection, name: str | int, version: VersionName, environment: str | int | None
    ) -> Graph:
        definition = await queries.definition_named(tx, self._scope, name, environment)
        found = await queries.version_named(tx, definition, version)
        return await queries.graph_of(tx, self._scope, found.id)
