"""Lifecycles as a step of a pipeline: each row moves its entity by an event, many rows in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from penstock.errors import StepFailed, Unavailable
from penstock.lifecycles.model import Outcome, Start, Trigger
from penstock.lifecycles.records import INSTANCES_EACH
from penstock.lifecycles.service import Lifecycles
from penstock.lifecycles.tables import REFERENCE_CHARS
from penstock.pipeline import BatchContext, StepObject, step

__all__ = ["LifecycleStep"]


@dataclass(frozen=True, slots=True)
class _Move:
    """What one row asks for."""

    reference: str
    event: str
    request_key: str
    row: Any


class LifecycleStep(StepObject[str]):
    """Move the entity of each row: `book = LifecycleStep("order", "pay", reference="order_id")`.

    `reference` is the row's field that names the entity, or a function of the row; `event` is an event's name, or a
    function of the row. The instance is the one that the reference has in the newest version. Where there is none the
    row fails, or with `starts=True` one is started in the latest version, with the `data(row)` if given. Instances are
    those of the operation's tenant, unless another `tenant` is named.

    The request key is the row's effect key, so a batch that runs again after a crash moves nothing twice. A move that
    is refused fails the row with the reason; one that others keep coming between is retried as the step's `retries`
    say. The step's output is the instance's guid.
    """

    def __init__(
        self,
        definition: str,
        event: str | Callable[[Any], str],
        *,
        reference: str | Callable[[Any], object],
        starts: bool = False,
        data: Callable[[Any], Mapping[str, Any] | None] | None = None,
        metadata: Callable[[Any], Mapping[str, Any] | None] | None = None,
        environment: str | int | None = None,
        tenant: str | None = None,
        size: int = INSTANCES_EACH,
    ) -> None:
        self.definition, self.environment, self.tenant, self.starts = definition, environment, tenant, starts
        self._event = _always(event) if isinstance(event, str) else event
        self._reference = _field(reference) if isinstance(reference, str) else reference
        self._data, self._metadata = data, metadata
        self.given = MappingProxyType({"size": size})

    @step.batch(size=INSTANCES_EACH)
    async def run(self, rows: Sequence[Any], ctx: BatchContext[Any]) -> Sequence[Any]:
        """Move the rows' entities; a guid or an error for each."""
        tenant = ctx.run.tenant if self.tenant is None else self.tenant
        lifecycles = ctx.run.capability(Lifecycles).tenant(tenant)
        keys = [one.effect_key for one in ctx.rows]
        asked = [self._move(row, key) for row, key in zip(rows, keys, strict=True)]
        moves = [each for each in asked if isinstance(each, _Move)]
        guids = await self._guids(lifecycles, moves, ctx)
        triggers = [self._trigger(each, guids[each.reference]) for each in moves if each.reference in guids]
        found = await lifecycles.trigger_many(
            triggers, actor=ctx.operation_name, cause=f"operation {ctx.operation_id}", correlation=ctx.operation_id
        )
        outcomes = {trigger.request_key: outcome for trigger, outcome in zip(triggers, found, strict=True)}
        return [self._answer(each, outcomes) for each in asked]

    def _move(self, row: Any, request_key: str) -> _Move | StepFailed:
        given = self._reference(row)
        reference = "" if given is None else str(given)
        if not reference.strip():
            return StepFailed(f"it names no {self.definition}: its reference is {given!r}")
        if len(reference) > REFERENCE_CHARS:
            return StepFailed(
                f"its reference has {len(reference)} characters where {REFERENCE_CHARS} fit: {reference[:40]!r}…"
            )
        return _Move(reference, self._event(row), request_key, row)

    async def _guids(self, lifecycles: Lifecycles, moves: Sequence[_Move], ctx: BatchContext[Any]) -> dict[str, str]:
        """The guids of the entities by reference; those that are new are started if that is wanted."""
        rows = {each.reference: each.row for each in reversed(moves)}  # the first row of each
        found = await lifecycles.guids(self.definition, rows, environment=self.environment)
        missing = [reference for reference in reversed(rows) if reference not in found]
        if not missing or not self.starts:
            return found
        started = await lifecycles.start_many(
            self.definition,
            [Start(reference, self._data(rows[reference]) if self._data else None) for reference in missing],
            environment=self.environment,
            actor=ctx.operation_name,
            cause=f"operation {ctx.operation_id}",
            correlation=ctx.operation_id,
        )
        return found | {reference: each.guid for reference, each in zip(missing, started, strict=True)}

    def _trigger(self, move: _Move, guid: str) -> Trigger:
        return Trigger(guid, move.event, move.request_key, self._metadata(move.row) if self._metadata else None)

    def _answer(self, asked: _Move | StepFailed, outcomes: Mapping[str | None, Outcome]) -> Any:
        if isinstance(asked, StepFailed):
            return asked
        outcome = outcomes.get(asked.request_key)
        if outcome is None:
            return StepFailed(f"no {self.definition} has the reference {asked.reference!r}")
        if outcome.applied:
            return outcome.guid
        return Unavailable(str(outcome)) if outcome.kind == "conflict" else StepFailed(str(outcome))


def _always(event: str) -> Callable[[Any], str]:
    """The same event for every row."""
    return lambda _row: event


def _field(name: str) -> Callable[[Any], object]:
    """A row's field, whether rows are objects or mappings."""

    def value(row: Any) -> object:
        return row.get(name) if isinstance(row, Mapping) else getattr(row, name)

    return value
