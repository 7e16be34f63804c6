"""Drafts: versions that are edited piece by piece, until publishing freezes them.

Every edit begins with the version's row, so edits of one draft queue, and none gets past its publication.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy import delete, func, select, update

from penstock.db.connection import Connection
from penstock.errors import Conflict, DefinitionInvalid, Fault, InvalidInput, NotFound
from penstock.graphs.conditions import condition_faults
from penstock.graphs.document import check_document
from penstock.graphs.flags import StateFlag, TransitionFlag
from penstock.graphs.model import GraphDocument, StateAction, StateLine, Timeout, TransitionLine
from penstock.graphs.names import name_key, similar
from penstock.graphs.versions import DEFAULT_NUMBER, label_number, version_number
from penstock.graphs.writing import document_of
from penstock.lifecycles import importing, queries, storing
from penstock.lifecycles.model import Import, Version
from penstock.lifecycles.rules.graph import Graph
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.tables import events, states, transitions, versions

__all__ = ["Draft", "open_draft"]

T = TypeVar("T")


async def open_draft(
    scope: Scope,
    name: str,
    *,
    environment: int,
    version: str | int | None,
    base: Version | None,
    description: str | None,
    actor: str,
) -> Draft:
    """A draft of a new version, beginning with the graph of `base` or with nothing."""
    label, number = _wanted(version)

    async def work(tx: Connection) -> int:
        graph = None if base is None else await queries.graph_of(tx, scope, base.id)
        empty = GraphDocument(name, environment, number or DEFAULT_NUMBER, label, description, (), (), ())
        definition, _ = await importing.lock_definition(tx, scope, empty)
        chosen = number or await _next_number(tx, scope, definition)
        if await importing.version_row(tx, scope, definition, chosen) is not None:
            raise Conflict(f"definition {name!r} has a version {label or chosen} already; choose another number")
        start = (
            replace(empty, number=chosen) if graph is None else replace(graph.document(), number=chosen, label=label)
        )
        made = await importing.add_version(tx, scope, definition, start, original=None, actor=actor)
        await storing.store_graph(tx, scope, made, start)
        return made

    return Draft(scope, await scope.db.transaction(work, "lifecycle_draft"), actor)


def _wanted(version: str | int | None) -> tuple[str | None, int | None]:
    try:
        if isinstance(version, str):
            return version.strip(), label_number(version)
        return None, None if version is None else version_number(version)
    except ValueError as error:
        raise InvalidInput(f"version: {error}") from None


async def _next_number(tx: Connection, scope: Scope, definition: int) -> int:
    query = select(func.max(versions.c.number)).where(
        versions.c.tenant == scope.tenant, versions.c.definition == definition
    )
    last = (await tx.execute(query)).scalar()
    return DEFAULT_NUMBER if last is None else last + 1


class Draft:
    """A version that can be edited: unknown names are refused, and what is used is not deleted."""

    def __init__(self, scope: Scope, version_id: int, actor: str) -> None:
        self._scope, self.version_id, self._actor = scope, version_id, actor

    async def graph(self) -> Graph:
        """The draft as it is now."""
        async with self._scope.db.read() as tx:
            return await queries.graph_of(tx, self._scope, self.version_id)

    # --- states

    async def add_state(
        self,
        name: str,
        *,
        flags: StateFlag = StateFlag.NONE,
        category: str | None = None,
        fires: Timeout | None = None,
        on_entry: Iterable[StateAction] = (),
        on_exit: Iterable[StateAction] = (),
    ) -> None:
        """Add a state; `fires` is its timeout."""

        async def work(tx: Connection, graph: Graph) -> None:
            if graph.find_state(name) is not None:
                raise Conflict(f"the draft has a state {name!r} already; names ignore case")
            line = StateLine(_named(name), flags, category, fires, tuple(on_entry), tuple(on_exit))
            await storing.add_states(tx, self._scope, self.version_id, [line], first=len(graph.states))

        await self._edit(work)

    async def change_state(
        self,
        name: str,
        *,
        flags: StateFlag | None = None,
        category: str | None = None,
        fires: Timeout | None = None,
        on_entry: Iterable[StateAction] | None = None,
        on_exit: Iterable[StateAction] | None = None,
    ) -> None:
        """Give a state other flags, another category, timeout (`fires`) or actions; what is left out stays."""

        async def work(tx: Connection, graph: Graph) -> None:
            state = graph.state(name)
            groups = await storing.category_ids(tx, self._scope, [c for c in (category, state.category) if c])
            line = StateLine(
                state.name,
                state.flags if flags is None else flags,
                category or state.category,
                fires or state.timeout,
                state.on_entry if on_entry is None else tuple(on_entry),
                state.on_exit if on_exit is None else tuple(on_exit),
            )
            changed = update(states).where(states.c.id == state.id, states.c.version == self.version_id)
            await tx.execute(changed.values(**storing.state_columns(line, groups)))

        await self._edit(work)

    async def delete_state(self, name: str) -> None:
        """Delete a state that no transition uses."""

        async def work(tx: Connection, graph: Graph) -> None:
            state = graph.state(name)
            users = [t for t in graph.transitions if state in (t.source, t.target)]
            if users:
                first = f"{users[0].source.name} --{users[0].event.name}--> {users[0].target.name}"
                raise Conflict(f"state {name!r} is used by {len(users)} transition(s), such as {first}")
            await tx.execute(delete(states).where(states.c.id == state.id))

        await self._edit(work)

    # --- events

    async def add_event(self, name: str) -> None:
        """Add an event."""

        async def work(tx: Connection, graph: Graph) -> None:
            if graph.find_event(name) is not None:
                raise Conflict(f"the draft has an event {name!r} already; names ignore case")
            await storing.add_events(tx, self._scope, self.version_id, [_named(name)], first=len(graph.events))

        await self._edit(work)

    async def delete_event(self, name: str) -> None:
        """Delete an event that no transition uses."""

        async def work(tx: Connection, graph: Graph) -> None:
            event = graph.event(name)
            users = sum(t.event == event for t in graph.transitions)
            if users:
                raise Conflict(f"event {name!r} is used by {users} transition(s)")
            await tx.execute(delete(events).where(events.c.id == event.id))

        await self._edit(work)

    # --- transitions

    async def add_transition(
        self,
        source: str,
        event: str,
        target: str,
        *,
        guard: str | None = None,
        condition: dict[str, Any] | None = None,
        flags: TransitionFlag = TransitionFlag.NONE,
    ) -> None:
        """Add a transition between states and an event that are there."""
        wrong = [] if condition is None else list(condition_faults(condition, "condition"))
        if wrong:
            raise InvalidInput(f"the condition cannot be asked: {'; '.join(map(str, wrong))}", wrong)

        async def work(tx: Connection, graph: Graph) -> None:
            _require_known(graph, (source, target), event)
            there = graph.transition(source, event)
            if there is not None:
                raise Conflict(f"({source!r}, {event!r}) leads to {there.target.name!r} already; a pair has one target")
            line = TransitionLine(source, event, target, guard, condition, flags)
            ids = {name_key(state.name): state.id for state in graph.states}
            event_ids = {name_key(each.name): each.id for each in graph.events}
            await storing.add_transitions(
                tx,
                self._scope,
                self.version_id,
                [line],
                state_ids=ids,
                event_ids=event_ids,
                first=len(graph.transitions),
            )

        await self._edit(work)

    async def delete_transition(self, source: str, event: str) -> None:
        """Delete the transition of a pair."""

        async def work(tx: Connection, graph: Graph) -> None:
            there = graph.transition(source, event)
            if there is None:
                raise NotFound(f"the draft has no transition for ({source!r}, {event!r})")
            await tx.execute(delete(transitions).where(transitions.c.id == there.id))

        await self._edit(work)

    # --- the end

    async def publish(self, *, strict: bool = False) -> Import:
        """Freeze the draft: instances can start from it, and it never changes again.

        `DefinitionInvalid` names every fault and leaves it a draft.
        """

        async def work(tx: Connection, graph: Graph) -> Import:
            made = graph.document()
            if not made.states:
                raise DefinitionInvalid(
                    "the draft has no state", [Fault("a definition has at least one state", "states")]
                )
            document = check_document(document_of(made), strict=strict)
            original = json.dumps(document_of(document), indent=2, ensure_ascii=False).encode()
            await tx.execute(
                update(versions)
                .where(versions.c.id == self.version_id)
                .values(
                    status="Published", document=original, digest=document.digest(), published_at=self._scope.db.now()
                )
            )
            for line in document.states:  # the document has flags that follow from others, or from a category
                state = graph.state(line.name)
                if state.flags != line.flags:
                    await tx.execute(update(states).where(states.c.id == state.id).values(flags=int(line.flags)))
            definition, number = graph.version.definition, graph.version.number
            await self._scope.audit(tx, "publish", definition.name, actor=self._actor, version=number)
            return Import(
                definition.id, self.version_id, definition.name, definition.environment, number,
                graph.version.label, len(graph.states), len(graph.events), len(graph.transitions), False,
                document.warnings,
            )  # fmt: skip

        result = await self._edit(work)
        self._scope.tally["lifecycle_imports_total", "published"] += 1
        return result

    async def discard(self) -> None:
        """Delete the draft."""

        async def work(tx: Connection, _: Graph) -> None:
            for table in (transitions, events, states):
                await tx.execute(delete(table).where(table.c.version == self.version_id))
            await tx.execute(delete(versions).where(versions.c.id == self.version_id))

        await self._edit(work)

    async def _edit(self, work: Callable[[Connection, Graph], Awaitable[T]]) -> T:
        """One edit, in a transaction that holds the draft."""
        scope = self._scope
        held = (
            update(versions)
            .where(versions.c.tenant == scope.tenant, versions.c.id == self.version_id, versions.c.status == "Draft")
            .values(edits=versions.c.edits + 1)
        )

        async def whole(tx: Connection) -> T:
            if (await tx.execute(held)).rowcount != 1:
                raise Conflict("this version is no draft any more; a published version never changes")
            return await work(tx, await queries.graph_of(tx, scope, self.version_id))

        return await scope.db.transaction(whole, "lifecycle_edit")


def _named(name: str) -> str:
    if not name.strip() or not name.isprintable():
        raise InvalidInput(f"{name!r} is no name")
    return name.strip()


def _require_known(graph: Graph, named: Iterable[str], event: str) -> None:
    """Every name that is not there, at once."""
    known = [state.name for state in graph.states]
    missing = [f"no state {name!r}{similar(name, known)}" for name in named if graph.find_state(name) is None]
    if graph.find_event(event) is None:
        missing.append(f"no event {event!r}{similar(event, (each.name for each in graph.events))}")
    if missing:
        raise NotFound("; ".join(missing))
