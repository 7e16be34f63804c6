"""Reading definitions, versions and graphs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, Select, select

from penstock.clock import from_micros
from penstock.db.connection import Connection
from penstock.errors import InvalidInput, NotFound
from penstock.graphs.flags import StateFlag, TransitionFlag
from penstock.graphs.model import StateAction, Timeout
from penstock.graphs.names import name_key, similar
from penstock.graphs.versions import environment_code, environment_label
from penstock.lifecycles.model import Category, Definition, Version
from penstock.lifecycles.rules.graph import Graph, LifecycleEvent, LifecycleState, LifecycleTransition
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.tables import categories, definitions, events, states, transitions, versions

__all__ = [
    "all_categories",
    "all_definitions",
    "definition_named",
    "definitions_named",
    "environment_of",
    "find_category",
    "graph_of",
    "stored_document",
    "version_named",
    "versions_of",
]

_VERSION = [column for column in versions.c if column.name != "document"]


def environment_of(given: str | int) -> int:
    """The code of an environment that a caller named."""
    try:
        return environment_code(given)
    except ValueError as error:
        raise InvalidInput(str(error)) from None


async def all_definitions(tx: Connection, scope: Scope) -> list[Definition]:
    """Every definition, by name and environment."""
    query = _definitions(scope).order_by(definitions.c.name_key, definitions.c.environment)
    return [_definition(row) for row in await tx.execute(query)]


async def definitions_named(
    tx: Connection, scope: Scope, name: str | int, environment: str | int | None = None
) -> list[Definition]:
    """The definitions with this name, or the one with this id, in one environment or in all."""
    is_it = definitions.c.id == name if isinstance(name, int) else definitions.c.name_key == name_key(name)
    query = _definitions(scope).where(is_it).order_by(definitions.c.environment)
    if environment is not None:
        query = query.where(definitions.c.environment == environment_of(environment))
    return [_definition(row) for row in await tx.execute(query)]


async def definition_named(
    tx: Connection, scope: Scope, name: str | int, environment: str | int | None = None
) -> Definition:
    """The one definition that is meant; the environment may be left out where there is only one."""
    found = await definitions_named(tx, scope, name, environment)
    if len(found) == 1:
        return found[0]
    if found:
        where = ", ".join(each.environment_label for each in found)
        raise InvalidInput(f"definition {name!r} is there in several environments: {where}; say which")
    known = [each.name for each in await all_definitions(tx, scope)]
    where = "" if environment is None else f" in {environment_label(environment_of(environment))}"
    raise NotFound(f"no definition {name!r}{where}{similar(str(name), known)}")


async def versions_of(tx: Connection, definition: Definition) -> list[Version]:
    """The versions of a definition, newest first; drafts among them."""
    query = select(*_VERSION).where(versions.c.definition == definition.id).order_by(versions.c.number.desc())
    return [_version(row, definition) for row in await tx.execute(query)]


async def version_named(tx: Connection, definition: Definition, version: str | int | None = None) -> Version:
    """A version by number or label; the latest published one unless named."""
    found = await versions_of(tx, definition)
    if version is None:
        latest = next((each for each in found if not each.is_draft), None)
        if latest is None:
            raise NotFound(f"definition {definition.name!r} has no published version")
        return latest
    wanted = str(version).strip()
    match = [each for each in found if wanted in (str(each.number), each.label)]
    if not match:
        known = ", ".join(each.label or str(each.number) for each in found) or "none"
        raise NotFound(f"definition {definition.name!r} has no version {version!r}; it has: {known}")
    return match[0]


async def graph_of(tx: Connection, scope: Scope, version: int) -> Graph:
    """The graph of a version, by its id; kept once it was read, unless it is a draft."""
    if version in scope.graphs:
        return scope.graphs[version]
    mine = versions.c.tenant == scope.tenant, versions.c.id == version
    row = (await tx.execute(select(*_VERSION).where(*mine))).one_or_none()
    if row is None:
        raise NotFound(f"no version has the id {version}")
    owner = (await tx.execute(_definitions(scope).where(definitions.c.id == row.definition))).one()
    graph = await _read_graph(tx, scope, _version(row, _definition(owner)))
    if not graph.version.is_draft:
        scope.graphs[version] = graph
    return graph


async def _read_graph(tx: Connection, scope: Scope, version: Version) -> Graph:
    query = (
        select(states, categories.c.name.label("category_name"))
        .outerjoin(categories, categories.c.id == states.c.category)
        .where(states.c.tenant == scope.tenant, states.c.version == version.id)
        .order_by(states.c.position, states.c.id)
    )
    found = {row.id: _state(row) for row in await tx.execute(query)}
    query = select(events).where(events.c.tenant == scope.tenant, events.c.version == version.id)
    named = {
        row.id: LifecycleEvent(row.id, row.name)
        for row in await tx.execute(query.order_by(events.c.position, events.c.id))
    }
    query = select(transitions).where(transitions.c.tenant == scope.tenant, transitions.c.version == version.id)
    lines = [
        LifecycleTransition(
            row.id, found[row.source], named[row.event], found[row.target], row.guard, row.condition,
            TransitionFlag(row.flags),
        )
        for row in await tx.execute(query.order_by(transitions.c.position, transitions.c.id))
    ]  # fmt: skip
    return Graph(version, tuple(found.values()), tuple(named.values()), tuple(lines))


async def stored_document(tx: Connection, version: Version) -> bytes:
    """The document that a version was imported from."""
    found: bytes = (await tx.execute(select(versions.c.document).where(versions.c.id == version.id))).scalar_one()
    return bytes(found)


async def all_categories(tx: Connection, scope: Scope) -> list[Category]:
    """Every category, by name."""
    query = select(categories.c.id, categories.c.name).where(categories.c.tenant == scope.tenant)
    return [Category(*row) for row in await tx.execute(query.order_by(categories.c.name_key))]


async def find_category(tx: Connection, scope: Scope, name: str) -> Category | None:
    """The category of this name, ignoring case."""
    query = select(categories.c.id, categories.c.name).where(
        categories.c.tenant == scope.tenant, categories.c.name_key == name_key(name)
    )
    row = (await tx.execute(query)).one_or_none()
    return None if row is None else Category(*row)


def _definitions(scope: Scope) -> Select[Any]:
    return select(definitions).where(definitions.c.tenant == scope.tenant)


def _definition(row: Row[Any]) -> Definition:
    return Definition(
        row.id,
        row.name,
        row.environment,
        row.description,
        from_micros(row.created_at),
        from_micros(row.modified_at),
    )


def _version(row: Row[Any], definition: Definition) -> Version:
    return Version(
        row.id,
        definition,
        row.number,
        row.label,
        row.status,
        row.digest,
        row.created_by,
        from_micros(row.created_at),
        None if row.published_at is None else from_micros(row.published_at),
    )


def _state(row: Row[Any]) -> LifecycleState:
    timeout = None
    if row.timeout_us is not None:
        timeout = Timeout(row.timeout_us, row.timeout_event, repeats=bool(row.timeout_repeats))
    on_entry, on_exit = (
        tuple(StateAction(kind, name) for each in plan or () for kind, name in each.items())
        for plan in (row.on_entry, row.on_exit)
    )
    return LifecycleState(row.id, row.name, StateFlag(row.flags), row.category_name, timeout, on_entry, on_exit)
